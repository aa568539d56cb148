"""How often a network's drafts were accepted lately, by depth, and what came of its promises.

Knows no costs and no models.
"""

from collections.abc import Sequence

__all__ = ["Habit", "Promise"]

_FIRST_SHARE = 0.5
"""The share of drafts that is expected to follow the one before, of a network never seen."""

_PRIOR_ROUNDS = 3
"""Rounds that the expectation at the beginning counts for."""

_RELAXATION, _FALL = 0.01, 0.9
"""What is not drafted is forgotten at this rate a round; then it is expected to be this much of the
depth before, or what was expected at first where that is more."""

_RATE, _TRIAL_RATE = 1 / 32, 1 / 8
"""How fast the means of what rounds gave and owed follow, in rounds that a network drafts for its
own sake and in trials."""

_MOST_OWED = 4.0
"""Mean rounds that one counts for at most: it may have been interrupted."""


class Habit:
    """Acceptance of one network: of the drafts before which all were accepted, a share by depth.

    Args:
        shares: What is expected at first, at depth 1, 2, ...
        memory: What a mean keeps of itself at each round; the first ones count for more.
    """

    def __init__(self, shares: Sequence[float], memory: float) -> None:
        self._first = tuple(shares)
        self._shares = list(shares)
        self._rounds = [_PRIOR_ROUNDS] * len(self._shares)
        self._least_rate = 1 - memory

    @classmethod
    def expected(cls, block_size: int, accepted: Sequence[float], memory: float) -> "Habit":
        """A network as its file describes it.

        Args:
            block_size: The anchor and the most drafts.
            accepted: Share of rounds whose first 1, 2, ... drafts were all accepted; may be empty.
            memory: As for the class.
        """
        shares: list[float] = []
        before = 1.0
        for share in accepted[: block_size - 1]:
            shares.append(min(share / before, 1.0) if before > 0 else 0.0)
            before = share
        return cls(shares + [_FIRST_SHARE] * (block_size - 1 - len(shares)), memory)

    def copy(self, memory: float) -> "Habit":
        """The same expectations, to be learned anew."""
        return Habit(self._shares, memory)

    def prefix_shares(self, max_depth: int) -> tuple[float, ...]:
        """Chance that the first 1, 2, ... drafts are all accepted."""
        chances: list[float] = []
        chance = 1.0
        for share in self._shares[:max_depth]:
            chance *= share
            chances.append(chance)
        return tuple(chances)

    def learn(self, num_accepted: int, depth: int) -> None:
        """Take note of a round.

        Args:
            num_accepted: Drafts that stayed.
            depth: Drafts in a row that it might have had; one that was not worth verifying, or
                that the network did not dare, counts as wrong.
        """
        seen = min(num_accepted + 1, depth)
        for place in range(len(self._shares)):
            if place < seen:
                rate = max(self._least_rate, 1 / self._rounds[place])
                self._rounds[place] += 1
                self._shares[place] += rate * (float(place < num_accepted) - self._shares[place])
            elif place >= depth:
                expected = max(self._first[place], _FALL * self._shares[place - 1])
                self._shares[place] += _RELAXATION * (expected - self._shares[place])


class Promise:
    """What rounds with a network gave, against what was expected of them in the same time."""

    def __init__(self) -> None:
        self._given = self._owed = 1.0

    @property
    def kept(self) -> float:
        """The share that was given, 1 at most."""
        return min(self._given / self._owed, 1.0)

    def learn(self, num_tokens: int, owed: float, *, is_trial: bool) -> None:
        """Take note of a round.

        Args:
            num_tokens: That it gave.
            owed: Tokens that were expected in the time it took.
            is_trial: It was only tried.
        """
        rate = _TRIAL_RATE if is_trial else _RATE
        owed = min(max(owed, 0.0), _MOST_OWED * self._owed)
        self._given += rate * (num_tokens - self._given)
        self._owed += rate * (owed - self._owed)
