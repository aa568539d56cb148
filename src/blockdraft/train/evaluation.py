"""Teacher-forced evaluation: how many drafted tokens a greedy target would accept.

Blocks stand at every few tokens of held-out answers, with true features before them. Real decoding
puts its blocks elsewhere (after what was rejected, hence at harder places), and its drafts meet
the target's own choices instead of the corpus', so its tau differs; `blockdraft.bench` measures it.
Knows no optimizer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockdraft.train.anchors import Blocks, spread_blocks
from blockdraft.train.features import FeatureSource
from blockdraft.train.labels import BlockLabels
from blockdraft.train.loss import BlockLoss, PositionStats
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.shards import CorpusSequence

__all__ = ["EvaluationResult", "HeldOut"]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationResult:
    """What was found.

    Attributes:
        stats: Of all blocks.
        tau_by_category: Mean acceptance length of each kind of prompt.
    """

    stats: PositionStats
    tau_by_category: dict[str, float]


class HeldOut:
    """Held-out sequences with their features, which are computed once and kept as float16."""

    def __init__(
        self,
        sequences: Sequence[CorpusSequence],
        extractor: FeatureSource,
        *,
        width: int,
        stride: int,
    ) -> None:
        """Compute the features.

        Args:
            sequences: Held out.
            extractor: Gives features.
            width: Rows of a block.
            stride: Answer tokens between two anchors.
        """
        spread = [spread_blocks(each, width, stride) for each in sequences]
        self._blocks = [each for each in spread if each is not None]
        self._features = [self._extract(extractor, each) for each in self._blocks]
        self._width = width

    def __len__(self) -> int:
        return len(self._blocks)

    @torch.no_grad()
    def evaluate(
        self, drafter: TrainableDrafter, loss: BlockLoss, labels: BlockLabels
    ) -> EvaluationResult:
        """Statistics of all blocks."""
        total = PositionStats.zeros(self._width - 1)
        by_category: dict[str, PositionStats] = defaultdict(
            lambda: PositionStats.zeros(self._width - 1)
        )
        for blocks, features in zip(self._blocks, self._features, strict=True):
            (hidden,) = drafter.hidden([features.float()], [blocks])
            stats = loss.evaluate(hidden, *labels.of(blocks))
            total.add(stats)
            by_category[blocks.sequence.category].add(stats)
        taus = {name: stats.mean_acceptance_length for name, stats in sorted(by_category.items())}
        return EvaluationResult(total, taus)

    @staticmethod
    def _extract(extractor: FeatureSource, blocks: Blocks) -> Tensor:
        (features,) = extractor.extract([blocks.sequence.token_ids[: blocks.num_features]])
        # Residual streams have outliers, but none beyond float16.
        return features.clamp(-65504, 65504).half()
