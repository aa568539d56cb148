"""What was drafted in the rounds of several answers: by whom, how much.

Knows counts, no models and no seconds. A share is of all rounds, those that drafted nothing
included. An average over categories gives each the same weight.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.speculative.stats import SpeculationStats

__all__ = ["NOBODY", "Choices", "average_choices", "choices_of"]

NOBODY = "none"
"""Name of the drafter of rounds that drafted nothing."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Rounds of several answers, or of several categories.

    Attributes:
        by_drafter: Share of the rounds by drafter, `NOBODY` among them.
        by_size: Share of the rounds by drafts verified, ascending.
    """

    by_drafter: Mapping[str, float]
    by_size: Mapping[int, float]

    @property
    def mean_nodes(self) -> float:
        """Drafts verified in a round, on average."""
        return sum(size * share for size, share in self.by_size.items())

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return {
            "drafters": dict(self.by_drafter),
            "sizes": {f"{size}": share for size, share in self.by_size.items()},
            "mean_nodes": self.mean_nodes,
        }


def choices_of(stats: Sequence[SpeculationStats]) -> Choices:
    """The answers of one category."""
    drafters: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for one in stats:
        for (name, size), num_rounds in one.choices.items():
            drafters[name or NOBODY] += num_rounds
            sizes[size] += num_rounds
    total = max(sum(sizes.values()), 1)
    return Choices(
        {name: count / total for name, count in drafters.most_common()},
        {size: sizes[size] / total for size in sorted(sizes)},
    )


def average_choices(parts: Sequence[Choices]) -> Choices:
    """The mean over categories."""
    return Choices(
        {name: _mean(part.by_drafter.get(name, 0.0) for part in parts) for name in _names(parts)},
        {
            size: _mean(part.by_size.get(size, 0.0) for part in parts)
            for size in sorted({size for part in parts for size in part.by_size})
        },
    )


def _names(parts: Sequence[Choices]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.by_drafter))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
