"""Whether drafting loses anywhere: pairs of runs, pooled by category.

Knows seconds, no models. The ratio is all plain over all drafted seconds, from the call to the end
of each answer, time to first token included; its lower bound is that of the 95 % interval over
resampled pairs. Above 1 drafting is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockdraft.bench.gains import Pair

__all__ = ["FLOOR", "Gate", "judge"]

FLOOR = 0.95
"""The least lower bound at which drafting counts as not losing."""

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on one category.

    Attributes:
        num_pairs: Pairs of runs.
        ratio: Plain over drafted seconds.
        ratio_low: Lower end of its 95 % interval.
    """

    num_pairs: int
    ratio: float
    ratio_low: float

    @property
    def is_met(self) -> bool:
        """Whether drafting does not lose here."""
        return self.ratio_low >= FLOOR

    def to_json(self) -> dict[str, Any]:
        """The verdict for programs; its keys are stable."""
        return {
            "pairs": self.num_pairs,
            "ratio": self.ratio,
            "ratio_low": self.ratio_low,
            "floor": FLOOR,
            "passed": self.is_met,
        }


def judge(pairs: Sequence[Pair]) -> Gate:
    """The verdict on the pairs of one category."""
    plain_s = np.array([pair.plain_s for pair in pairs])
    drafted_s = np.array([pair.drafted_s for pair in pairs])
    drawn = np.random.default_rng(0).integers(0, len(pairs), (_RESAMPLES, len(pairs)))
    ratios = plain_s[drawn].sum(axis=1) / drafted_s[drawn].sum(axis=1)
    low = float(np.quantile(ratios, 0.025))
    return Gate(len(pairs), float(plain_s.sum() / drafted_s.sum()), low)
