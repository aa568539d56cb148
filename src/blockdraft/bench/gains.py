"""What drafting gained over several prompts: rates, speed-ups with intervals, acceptance.

Knows counts and seconds, no models. Conventions: a category's rate is all its tokens over all its
seconds; a speed-up is drafted over plain rate; its interval holds 95 % of the speed-ups of
resampled prompts; tau is all tokens over all rounds. An average over categories gives each the
same weight. An answer that ends in a loop is counted, but not in tau and acceptance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blockdraft.bench.acceptance import Acceptance, acceptance_of, average_acceptance
from blockdraft.speculative.stats import SpeculationStats

__all__ = ["Pair", "PromptRun", "Summary", "average", "by_category", "ends_in_a_loop", "summarize"]

_LOOP_TOKENS = 48
_LOOP_PERIOD = 16
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of one prompt, one after the other.

    Attributes:
        plain_s: Seconds from the call to the end without drafts.
        drafted_s: The same with drafts.
    """

    plain_s: float
    drafted_s: float


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt, both ways.

    Attributes:
        id: Of the prompt.
        category: Of the prompt.
        num_tokens: Tokens picked after the first.
        plain_s: Median seconds for them without drafts.
        drafted_s: The same with drafts.
        stats: Rounds of the first drafted run.
        is_identical: Whether every run gave the same tokens.
        is_loop: Whether the answer ends in a loop.
        pairs: Each pair of runs, time to first token included.
        fixed_s: What ``plain_s`` is, of each fixed setting by its name.
        lone_s: The same of each drafter by itself.
        prompt_tokens: Tokens of the prompt.
    """

    id: str
    category: str
    num_tokens: int
    plain_s: float
    drafted_s: float
    stats: SpeculationStats
    is_identical: bool
    is_loop: bool
    pairs: tuple[Pair, ...] = ()
    fixed_s: Mapping[str, float] = field(default_factory=dict)
    lone_s: Mapping[str, float] = field(default_factory=dict)
    prompt_tokens: int = 0

    @property
    def speedup(self) -> float:
        """Plain over drafted seconds."""
        return self.plain_s / self.drafted_s

    def to_json(self) -> dict[str, Any]:
        """The run for programs; its keys are stable."""
        return {
            "id": self.id,
            "category": self.category,
            "tokens": self.num_tokens,
            "prompt_tokens": self.prompt_tokens,
            "plain_tokens_per_s": self.num_tokens / self.plain_s,
            "drafted_tokens_per_s": self.num_tokens / self.drafted_s,
            "speedup": self.speedup,
            **self.stats.to_dict(),
            "round_ms": _round_ms([self.stats]),
            "identical": self.is_identical,
            "loop": self.is_loop,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """Several prompts together, or several categories.

    Attributes:
        plain_tokens_per_s: Without drafts.
        drafted_tokens_per_s: With drafts.
        speedup: The second over the first.
        speedup_low: Lower end of the interval.
        speedup_high: Upper end.
        acceptance: Of the answers that do not end in a loop.
        round_ms: Milliseconds of a round: draft, verify, other.
        num_identical: Prompts whose tokens are the same both ways.
        num_loops: Prompts whose answer ends in a loop.
        num_prompts: All of them.
    """

    plain_tokens_per_s: float
    drafted_tokens_per_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    acceptance: Acceptance
    round_ms: dict[str, float]
    num_identical: int
    num_loops: int
    num_prompts: int

    def to_json(self) -> dict[str, Any]:
        """The summary for programs; its keys are stable."""
        return {
            "plain_tokens_per_s": self.plain_tokens_per_s,
            "drafted_tokens_per_s": self.drafted_tokens_per_s,
            "speedup": self.speedup,
            "speedup_low": self.speedup_low,
            "speedup_high": self.speedup_high,
            **self.acceptance.to_json(),
            "round_ms": self.round_ms,
            "identical": f"{self.num_identical}/{self.num_prompts}",
            "loops": self.num_loops,
        }


def ends_in_a_loop(token_ids: Sequence[int]) -> bool:
    """Whether the last 48 tokens repeat with a period of at most 16."""
    end = list(token_ids[-_LOOP_TOKENS:])
    if len(end) < _LOOP_TOKENS:
        return False
    return any(end[period:] == end[:-period] for period in range(1, _LOOP_PERIOD + 1))


def by_category(runs: Sequence[PromptRun]) -> dict[str, list[PromptRun]]:
    """The runs of each category, in the order in which categories first come."""
    names = dict.fromkeys(run.category for run in runs)
    return {name: [run for run in runs if run.category == name] for name in names}


def summarize(runs: Sequence[PromptRun]) -> Summary:
    """The prompts of one category."""
    plain_s, drafted_s = sum(run.plain_s for run in runs), sum(run.drafted_s for run in runs)
    num_tokens = sum(run.num_tokens for run in runs)
    low, high = _interval([runs])
    return Summary(
        plain_tokens_per_s=num_tokens / plain_s,
        drafted_tokens_per_s=num_tokens / drafted_s,
        speedup=plain_s / drafted_s,
        speedup_low=low,
        speedup_high=high,
        acceptance=acceptance_of([run.stats for run in runs if not run.is_loop]),
        round_ms=_round_ms([run.stats for run in runs]),
        num_identical=sum(run.is_identical for run in runs),
        num_loops=sum(run.is_loop for run in runs),
        num_prompts=len(runs),
    )


def average(groups: Mapping[str, Sequence[PromptRun]]) -> Summary:
    """The mean over categories; the interval resamples prompts within each."""
    parts = [summarize(runs) for runs in groups.values()]
    low, high = _interval(list(groups.values()))
    return Summary(
        plain_tokens_per_s=_mean([part.plain_tokens_per_s for part in parts]),
        drafted_tokens_per_s=_mean([part.drafted_tokens_per_s for part in parts]),
        speedup=_mean([part.speedup for part in parts]),
        speedup_low=low,
        speedup_high=high,
        acceptance=average_acceptance([part.acceptance for part in parts]),
        round_ms={key: _mean([part.round_ms[key] for part in parts]) for key in parts[0].round_ms},
        num_identical=sum(part.num_identical for part in parts),
        num_loops=sum(part.num_loops for part in parts),
        num_prompts=sum(part.num_prompts for part in parts),
    )


def _interval(groups: Sequence[Sequence[PromptRun]]) -> tuple[float, float]:
    """95 % interval of the mean speed-up over ``groups``, by the bootstrap over prompts."""
    random = np.random.default_rng(0)
    speedups = np.zeros(_RESAMPLES)
    for runs in groups:
        drawn = random.integers(0, len(runs), (_RESAMPLES, len(runs)))
        plain_s = np.array([run.plain_s for run in runs])[drawn].sum(axis=1)
        speedups += plain_s / np.array([run.drafted_s for run in runs])[drawn].sum(axis=1)
    low, high = np.quantile(speedups / len(groups), [0.025, 0.975])
    return float(low), float(high)


def _round_ms(stats: Sequence[SpeculationStats]) -> dict[str, float]:
    num_rounds = max(sum(one.num_rounds for one in stats), 1)
    seconds = {
        "draft": sum(one.draft_s for one in stats),
        "verify": sum(one.verify_s for one in stats),
        "other": sum(one.other_s for one in stats),
    }
    return {key: 1000 * value / num_rounds for key, value in seconds.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
