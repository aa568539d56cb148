"""The tokens a drafter learns to draft: the frozen head's rows that the corpus needs.

A small model's head is its largest matrix. Rows of tokens that no answer has are left out of the
training head; since the rows stay the target's own, an export uses the full head again. Knows no
network.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.train.shards import CorpusSequence

__all__ = ["DraftVocabulary", "choose_vocabulary", "count_answer_tokens"]


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """Rows of the training head.

    Attributes:
        token_ids: Target token of each row, ascending, int64.
        coverage: Share of the corpus' answer tokens that are among them.
    """

    token_ids: NDArray[np.int64]
    coverage: float

    def head_token_ids(self, vocab_size: int) -> tuple[int, ...] | None:
        """The tokens as a drafter's configuration has them: None where they are all."""
        return tuple(self.token_ids.tolist()) if len(self.token_ids) < vocab_size else None

    def row_of(self, vocab_size: int) -> NDArray[np.int64]:
        """Row of each target token, -1 where it has none."""
        rows = np.full(vocab_size, -1, np.int64)
        rows[self.token_ids] = np.arange(len(self.token_ids))
        return rows


def count_answer_tokens(corpus: Iterable[CorpusSequence], vocab_size: int) -> NDArray[np.int64]:
    """How often each token occurs in answers."""
    counts = np.zeros(vocab_size, np.int64)
    for sequence in corpus:
        counts += np.bincount(sequence.answer_ids, minlength=vocab_size)
    return counts


def choose_vocabulary(counts: NDArray[np.int64], size: int | None) -> DraftVocabulary:
    """The ``size`` most frequent tokens, of equals the lower id; None takes all tokens."""
    if size is None or size >= len(counts):
        return DraftVocabulary(np.arange(len(counts)), 1.0)
    most = np.argsort(-counts, kind="stable")[:size]
    return DraftVocabulary(np.sort(most), float(counts[most].sum() / max(counts.sum(), 1)))
