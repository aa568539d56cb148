"""What is drafted for one sequence in a round, and which of two proposals is the better one.

Knows costs, no drafters and keeps nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.policy import best_rate
from blockdraft.speculative.types import NO_DRAFTS, Proposal
from blockdraft.speculative.value import Calibration

__all__ = ["NOTHING", "Choice", "better_of"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is drafted for one sequence.

    Attributes:
        name: Of the drafter.
        proposal: Its drafts.
        calibration: What is known of such drafts.
        chances: Of each that it and its path are accepted.
    """

    name: str
    proposal: Proposal
    calibration: Calibration
    chances: Sequence[float] = ()


NOTHING = Choice("", NO_DRAFTS, Calibration())


def better_of(
    one: Choice, other: Choice, costs: CostModel, *, num_sequences: int, context: float
) -> Choice:
    """The choice whose best drafts give more tokens per second; of equals the first.

    Many doubtful drafts may promise more tokens than a few sure ones, and take longer to verify.
    """
    if not one.chances or not other.chances:
        return one if one.chances else other
    rates = [
        best_rate(each.chances, costs, num_sequences=num_sequences, context=context)
        for each in (one, other)
    ]
    return one if rates[0] >= rates[1] else other
