"""How many drafts were accepted over several answers.

Knows counts, no models and no seconds. Conventions: tau is all tokens over all rounds; the
acceptance rate is accepted over drafted; position k counts, among the proposals at least k deep,
those whose first k drafts were accepted. An average over categories gives each the same weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from blockdraft.speculative.stats import SpeculationStats

__all__ = ["Acceptance", "acceptance_of", "average_acceptance"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Several answers together, or several categories.

    Attributes:
        tau: Mean acceptance length; None without a round.
        rate: Accepted over drafted; None where nothing was drafted.
        by_position: The share by position, from 1.
    """

    tau: float | None
    rate: float | None
    by_position: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return {
            "tau": self.tau,
            "acceptance_rate": self.rate,
            "accepted_by_position": list(self.by_position),
        }

    def cells(self) -> tuple[str, str]:
        """Tau and acceptance rate for people; "-" where there is none."""
        tau = "-" if self.tau is None else f"{self.tau:.2f}"
        return tau, "-" if self.rate is None else f"{self.rate:.0%}"


def acceptance_of(stats: Sequence[SpeculationStats]) -> Acceptance:
    """The answers of one category."""
    num_rounds = sum(one.num_rounds for one in stats)
    num_drafted = sum(one.num_drafted for one in stats)
    accepted = sum(one.num_accepted for one in stats)
    proposed = [sum(k) for k in zip_longest(*(s.proposed_by_position for s in stats), fillvalue=0)]
    kept = [sum(k) for k in zip_longest(*(s.kept_by_position for s in stats), fillvalue=0)]
    return Acceptance(
        tau=sum(one.num_tokens for one in stats) / num_rounds if num_rounds else None,
        rate=accepted / num_drafted if num_drafted else None,
        by_position=tuple(a / b for a, b in zip(kept, proposed, strict=True)),
    )


def average_acceptance(parts: Sequence[Acceptance]) -> Acceptance:
    """The mean over categories; what a category does not know is left out of it."""
    columns = zip_longest(*(part.by_position for part in parts))
    return Acceptance(
        tau=_mean_of_known([part.tau for part in parts]),
        rate=_mean_of_known([part.rate for part in parts]),
        by_position=tuple(_mean_of_known(column) or 0.0 for column in columns),
    )


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
