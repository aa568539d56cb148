"""Which blocks of a sequence are drafted in training, drawn anew in every epoch.

An anchor is a token of the answer that has a token after it; its block is the anchor and masked
rows. Knows token ids and positions, no network.

Source: arXiv:2602.06036, section 4.2 (random anchors); the draw is keyed by (seed, epoch,
sequence), so that a run can begin anywhere.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.train.shards import CorpusSequence

__all__ = ["NO_LABEL", "BlockSampler", "Blocks", "spread_blocks"]

NO_LABEL = -1
"""Label of a row that stands behind the end of its sequence."""

_DENSITY_TOKENS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks of one sequence, all of one width.

    Attributes:
        sequence: What they are blocks of.
        positions: Of the anchors, ascending, int64 [A].
        width: Rows of a block, B.
    """

    sequence: CorpusSequence
    positions: NDArray[np.int64]
    width: int

    @property
    def num_rows(self) -> int:
        """Rows of a pass over these blocks."""
        return len(self.positions) * self.width

    @property
    def num_features(self) -> int:
        """Leading tokens of the sequence whose features a block can see."""
        return int(self.positions[-1])

    @property
    def num_targets(self) -> int:
        """Tokens of the sequence whose successors a block may have to draft."""
        return len(self.sequence.token_ids) - 1 - int(self.positions[0])

    def tokens(self) -> NDArray[np.int64]:
        """True tokens of every block, the anchor first, "A B"; `NO_LABEL` behind the end."""
        places = self.positions[:, None] + np.arange(self.width)
        token_ids = self.sequence.token_ids
        inside = places < len(token_ids)
        found = token_ids[np.minimum(places, len(token_ids) - 1)]
        return np.where(inside, found, NO_LABEL).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BlockSampler:
    """How blocks are drawn.

    Attributes:
        seed: Of all draws.
        widths: Block widths to mix, each equally often.
        anchors_per_512: Anchors per 512 tokens of a sequence, its prompt included.
    """

    seed: int = 0
    widths: tuple[int, ...] = (4, 6, 8)
    anchors_per_512: int = 176

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            ConfigError: A width has no row to draft, or there would be no anchors.
        """
        if not self.widths or min(self.widths) < 2:
            raise ConfigError(f"block widths are {list(self.widths)}; each must be 2 or more")
        if self.anchors_per_512 < 1:
            raise ConfigError(f"anchors per 512 tokens are {self.anchors_per_512}; at least 1")

    def draw(self, sequence: CorpusSequence, *, epoch: int, index: int) -> Blocks:
        """Blocks of a sequence in an epoch: anchors without repetition, one width.

        Args:
            sequence: With at least two answer tokens.
            epoch: Counted from 0.
            index: Of the sequence in the corpus.
        """
        random = np.random.default_rng((self.seed, epoch, index))
        width = int(random.choice(self.widths))
        candidates = _candidates(sequence)
        wanted = max(1, round(len(sequence.token_ids) * self.anchors_per_512 / _DENSITY_TOKENS))
        count = min(wanted, len(candidates))
        chosen = random.choice(candidates, count, replace=False)
        return Blocks(sequence, np.sort(chosen), width)


def spread_blocks(sequence: CorpusSequence, width: int, stride: int) -> Blocks | None:
    """Whole blocks at every ``stride``-th answer token; None where the answer has no room."""
    last = len(sequence.token_ids) - width
    positions = np.arange(sequence.prompt_length, last + 1, stride, dtype=np.int64)
    return Blocks(sequence, positions, width) if len(positions) else None


def _candidates(sequence: CorpusSequence) -> NDArray[np.int64]:
    return np.arange(sequence.prompt_length, len(sequence.token_ids) - 1, dtype=np.int64)
