"""What the policy leaves on the table: its speed against the best fixed setting of each category.

Knows rates, no models. The best setting is known only afterwards, and is the best of many noisy
figures: a regret of a few per cent is expected of a perfect policy.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.bench.gains import PromptRun

__all__ = ["PLAIN", "Regret", "mean_regret", "regret_of"]

PLAIN = "plain"
"""Name of the setting that drafts nothing."""


@dataclass(frozen=True, slots=True)
class Regret:
    """The fixed settings of one category.

    Attributes:
        tokens_per_s: Rate of each setting by its name; `PLAIN` among them.
        auto_tokens_per_s: Rate of the policy.
    """

    tokens_per_s: dict[str, float]
    auto_tokens_per_s: float

    @property
    def best(self) -> str:
        """The fastest setting."""
        return max(self.tokens_per_s, key=lambda name: self.tokens_per_s[name])

    @property
    def regret(self) -> float:
        """1 - auto / best; below 0 where the policy is faster than every setting."""
        return 1 - self.auto_tokens_per_s / self.tokens_per_s[self.best]

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return {
            "best": self.best,
            "best_tokens_per_s": self.tokens_per_s[self.best],
            "auto_tokens_per_s": self.auto_tokens_per_s,
            "regret": self.regret,
            "tokens_per_s": self.tokens_per_s,
        }


def mean_regret(regrets: Collection[Regret]) -> float:
    """The mean over categories."""
    return sum(one.regret for one in regrets) / len(regrets)


def regret_of(runs: Sequence[PromptRun]) -> Regret:
    """The settings of one category; every run has the same ones."""
    num_tokens = sum(run.num_tokens for run in runs)
    rates = {PLAIN: num_tokens / sum(run.plain_s for run in runs)}
    for name in runs[0].fixed_s:
        rates[name] = num_tokens / sum(run.fixed_s[name] for run in runs)
    return Regret(rates, num_tokens / sum(run.drafted_s for run in runs))
