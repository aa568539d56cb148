"""What a draft is worth: the chance that it is accepted, learned from the rounds so far.

A drafter's own probability is the first guess and is then corrected, by position and by how sure
the drafter was. Knows no costs and no models.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft.speculative.types import Proposal

__all__ = ["Calibration", "sureness"]

_BUCKETS = 8
"""Grades of a drafter's sureness."""

_POSITIONS = 4
"""Positions told apart; from the last on they are one."""

_PRIOR_WEIGHT = 6.0
"""Rounds that the first guess counts for."""

_FORGET = 0.98
"""What a count keeps at the next one of its kind: about 50 of them matter."""

_UNKNOWN_PROB = 0.5
"""The first guess where the drafter has no probabilities."""


def sureness(scores: NDArray[np.float64], noise: NDArray[np.float64], chosen: int) -> float:
    """How probable it is that a draft drawn with the target's own noise is what the target picks.

    The geometric mean of q and of q after the noise: of 539 drafts of a small model's drafter at
    temperature 0.8 those that were accepted have a higher one than the others in 80 % of pairs,
    with q alone in 78 %.

    Args:
        scores: Of the candidates, over the temperature.
        noise: Of the candidates.
        chosen: The one with the highest sum.
    """
    q = _share(scores, chosen)
    return float(np.sqrt(q * _share(scores + noise, chosen)))


def _share(scores: NDArray[np.float64], chosen: int) -> float:
    weights = np.exp(scores - scores.max())
    return float(weights[chosen] / weights.sum())


class Calibration:
    """Acceptance of one drafter's drafts under one kind of sampling."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], float] = {}
        self._weights: dict[tuple[int, int], float] = {}

    def prefix_chances(self, proposal: Proposal) -> list[float]:
        """The chance of each node that it and its whole path are accepted."""
        chances: list[float] = []
        for depth, parent, prob in _nodes(proposal):
            of_parent = chances[parent] if parent >= 0 else 1.0
            chances.append(of_parent * self._chance(depth, prob))
        return chances

    def learn(self, proposal: Proposal, token_ids: Sequence[int]) -> None:
        """Take note of a round.

        Args:
            proposal: What was verified.
            token_ids: Its drafts that stayed, from the anchor on.
        """
        path = {-1}  # accepted nodes
        for node, (depth, parent, prob) in enumerate(_nodes(proposal)):
            if parent not in path:
                continue
            was_accepted = depth < len(token_ids) and proposal.token_ids[node] == token_ids[depth]
            key = _key(depth, prob)
            self._accepted[key] = self._accepted.get(key, 0.0) * _FORGET + float(was_accepted)
            self._weights[key] = self._weights.get(key, 0.0) * _FORGET + 1.0
            if was_accepted:
                path.add(node)

    def _chance(self, depth: int, prob: float) -> float:
        key = _key(depth, prob)
        accepted = self._accepted.get(key, 0.0) + _PRIOR_WEIGHT * prob
        return accepted / (self._weights.get(key, 0.0) + _PRIOR_WEIGHT)


def _nodes(proposal: Proposal) -> Iterator[tuple[int, int, float]]:
    """(depth, parent, probability) of each node; a first guess where the drafter has none."""
    depths: list[int] = []
    for node, parent in enumerate(proposal.parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        prob = _UNKNOWN_PROB if proposal.probs is None else proposal.probs[node]
        yield depths[-1], parent, prob


def _key(depth: int, prob: float) -> tuple[int, int]:
    return min(depth, _POSITIONS - 1), min(int(prob * _BUCKETS), _BUCKETS - 1)
