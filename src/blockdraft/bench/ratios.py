"""Ratios of paired measurements with their intervals. Knows numbers alone."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

__all__ = ["Ratio", "paired_ratio", "rate_ratio"]

_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom; with more the last one is cautious."""

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio and its 95 % interval; without an interval where there is one pair.

    Attributes:
        ratio: The estimate.
        low: Lower end.
        high: Upper end.
    """

    ratio: float
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return asdict(self)

    def to_text(self) -> str:
        """The figures for people."""
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}"
        return f"{self.ratio:.2f} ({self.low:.2f}-{self.high:.2f})"


def paired_ratio(tops: Sequence[float], bottoms: Sequence[float]) -> Ratio:
    """Geometric mean of ``top / bottom`` over pairs; the interval is Student's on logarithms."""
    logs = [math.log(top / bottom) for top, bottom in zip(tops, bottoms, strict=True)]
    centre = mean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(centre), None, None)
    margin = _T[min(len(logs) - 1, len(_T)) - 1] * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(centre), math.exp(centre - margin), math.exp(centre + margin))


def rate_ratio(top: Sequence[tuple[int, float]], bottom: Sequence[tuple[int, float]]) -> Ratio:
    """Ratio of two rates, each all tokens over all seconds of the same prompts.

    Args:
        top: (tokens, seconds) of each prompt.
        bottom: The same of the other side, in the same order; resampled together with ``top``.
    """
    tops, bottoms = np.array(top, np.float64), np.array(bottom, np.float64)
    estimate = _rate(tops.sum(axis=0)) / _rate(bottoms.sum(axis=0))
    if len(top) < 2:
        return Ratio(float(estimate), None, None)
    drawn = np.random.default_rng(0).integers(0, len(top), (_RESAMPLES, len(top)))
    ratios = _rate(tops[drawn].sum(axis=1)) / _rate(bottoms[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(float(estimate), float(low), float(high))


def _rate(sums: np.ndarray) -> np.ndarray:
    """Tokens per second of sums, "... 2"."""
    rates: np.ndarray = sums[..., 0] / sums[..., 1]
    return rates
