"""What a network did lately: how often its drafts were accepted, and what came of its promises.

Knows no costs and no models.
"""

from collections.abc import Sequence

__all__ = ["Habit", "Habits", "Promise"]

_FIRST_SHARE = 0.5
"""The share of drafts that is expected to follow the one before, of a network never seen."""

_PRIOR_ROUNDS = 3
"""Rounds that the expectation at the beginning counts for."""

_RELAXATION, _FALL = 0.01, 0.9
"""What is not drafted is forgotten at this rate a round; then it is expected to be this much of the
depth before, or what was expected at first where that is more."""

_MEMORY = 0.85
"""What a sequence's mean shares keep of themselves at each round with the network."""

_LONG_MEMORY = 0.98
"""The same for the mean over sequences, with which a new one begins."""

_AWAKE_EVERY = 32
"""Sequences from one that a network may draft for to the next, where it gained nothing lately."""

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


class Habits:
    """Acceptance of one network in all sequences, and for which of them it may draft.

    Args:
        depth: The most drafts in a row.
        accepted: As for `Habit.expected`.
    """

    def __init__(self, depth: int, accepted: Sequence[float]) -> None:
        self._usual = Habit.expected(1 + depth, accepted, _LONG_MEMORY)
        self._of: dict[int, Habit] = {}
        self._asleep: set[int] = set()
        self._since_awake = 0

    @property
    def num_sequences(self) -> int:
        """Those that have begun and not ended."""
        return len(self._of)

    def admit(self, sequence_id: int, *, is_hopeless: bool) -> bool:
        """Whether the network may draft for a new sequence: seldom where it gains nothing.

        To tell it of rows costs a sequence some hundredths of its time.
        """
        self._since_awake += 1
        if is_hopeless and self._since_awake < _AWAKE_EVERY:
            self._asleep.add(sequence_id)
            return False
        self._since_awake = 0
        return True

    def start(self, sequence_id: int) -> None:
        """A sequence begins; it is expected to be as others were."""
        self._of[sequence_id] = self._usual.copy(_MEMORY)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._of.pop(sequence_id, None)
        self._asleep.discard(sequence_id)

    def is_awake(self, sequence_id: int) -> bool:
        """Whether the network may draft for it."""
        return sequence_id not in self._asleep

    def prefix_shares(self, sequence_id: int, max_depth: int) -> tuple[float, ...]:
        """As of `Habit`; nothing where the network may not draft."""
        return self._of[sequence_id].prefix_shares(max_depth) if self.is_awake(sequence_id) else ()

    def learn(self, sequence_id: int, num_accepted: int, depth: int) -> None:
        """As of `Habit`."""
        self._of[sequence_id].learn(num_accepted, depth)
        self._usual.learn(num_accepted, depth)


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
