"""What a draft is worth: the chance that it is accepted, learned from the rounds so far.

A drafter's own probability is the first guess and is then corrected, by position and by how sure
the drafter was. Knows no costs and no models.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from blockdraft.speculative.types import Proposal

__all__ = ["Calibration"]

_BUCKETS = 8
"""Grades of a drafter's sureness."""

_POSITIONS = 4
"""Positions told apart; from the last on they are one."""

_PRIOR_WEIGHT = 6.0
"""Rounds that the first guess counts for."""

_FORGET = 0.98
"""What a count keeps at the next one of its kind: about 50 of them matter."""

_UNKNOWN_PROBS = (0.5, 0.8)
"""First guesses where the drafter has no probabilities: of a short proposal, of a long one."""

_SHORT = 3


class Calibration:
    """Acceptance of one drafter's drafts under one kind of sampling."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], float] = {}
        self._weights: dict[tuple[int, int], float] = {}

    def chances(self, proposal: Proposal) -> list[float]:
        """The chance of each node of a chain, given that those before it are accepted."""
        return [self._chance(place, prob) for place, prob in enumerate(_probs(proposal))]

    def prefix_chances(self, proposal: Proposal) -> list[float]:
        """The chance that a chain is accepted up to and with each node; they never rise."""
        return list(accumulate(self.chances(proposal), mul))

    def learn(self, proposal: Proposal, num_accepted: int) -> None:
        """Take note of a round.

        Args:
            proposal: The chain that was verified.
            num_accepted: Its nodes that stayed.
        """
        for place, prob in enumerate(_probs(proposal)[: num_accepted + 1]):
            key = _key(place, prob)
            was_accepted = float(place < num_accepted)
            self._accepted[key] = self._accepted.get(key, 0.0) * _FORGET + was_accepted
            self._weights[key] = self._weights.get(key, 0.0) * _FORGET + 1.0

    def _chance(self, place: int, prob: float) -> float:
        key = _key(place, prob)
        accepted = self._accepted.get(key, 0.0) + _PRIOR_WEIGHT * prob
        return accepted / (self._weights.get(key, 0.0) + _PRIOR_WEIGHT)


def _probs(proposal: Proposal) -> Sequence[float]:
    if proposal.probs is not None:
        return proposal.probs
    return [_UNKNOWN_PROBS[len(proposal) > _SHORT]] * len(proposal)


def _key(place: int, prob: float) -> tuple[int, int]:
    return min(place, _POSITIONS - 1), min(int(prob * _BUCKETS), _BUCKETS - 1)
