"""Whether several drafters together beat each of them alone, under the same policy.

Knows rates, no models. The best of several is known only afterwards: where they are equally good,
chance makes one look better than all together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.bench.gains import PromptRun
from blockdraft.bench.ratios import Ratio, rate_ratio

__all__ = ["Together", "together_of"]


@dataclass(frozen=True, slots=True)
class Together:
    """The drafters of one category.

    Attributes:
        speedups: Of each drafter alone over plain decoding.
        speedup: Of all of them.
        best: The fastest alone.
        over_best: All over the best.
    """

    speedups: dict[str, float]
    speedup: float
    best: str
    over_best: Ratio

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return {
            "speedups": self.speedups,
            "speedup": self.speedup,
            "best": self.best,
            "over_best": self.over_best.to_json(),
        }


def together_of(runs: Sequence[PromptRun]) -> Together:
    """The drafters of one category; every run has the same ones."""
    plain_s = sum(run.plain_s for run in runs)
    names = list(runs[0].lone_s)
    seconds = {name: sum(run.lone_s[name] for run in runs) for name in names}
    best = min(names, key=lambda name: seconds[name])
    whole = [(run.num_tokens, run.drafted_s) for run in runs]
    lone = [(run.num_tokens, run.lone_s[best]) for run in runs]
    speedups = {name: plain_s / seconds[name] for name in names}
    speedup = plain_s / sum(run.drafted_s for run in runs)
    return Together(speedups, speedup, best, rate_ratio(whole, lone))
