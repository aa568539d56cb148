"""A suffix automaton that grows with its text: every run of tokens that occurred, and how often.

A state is a class of runs that end at the same places. Its suffix link leads to the longest run of
its end that occurs at more places, so the links from the end of a text are the contexts of what
comes next, longest first. Knows tokens as integers, no sequences and no drafts.

Source: Blumer et al., 1985, "The smallest automaton recognizing the subwords of a text".
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "BYTES_PER_TOKEN",
    "ROOT",
    "SEPARATOR",
    "Context",
    "Cursor",
    "RecentText",
    "SuffixAutomaton",
]

BYTES_PER_TOKEN = 512
"""Memory of a `SuffixAutomaton` for each token, at most: 2 states of 32 bytes and one table of
further transitions with its integers, 350 bytes, and what lists hold in reserve. Text needs 130."""

ROOT = 0
"""The state of the empty run."""


SEPARATOR = -1
"""Stands between texts of one automaton."""


class Cursor(NamedTuple):
    """The end of some text, as far as an automaton knows it.

    Attributes:
        state: The class of its longest run that occurred.
        length: Tokens of that run, up to one more than the depth.
    """

    state: int = ROOT
    length: int = 0


class Context(NamedTuple):
    """A run at the end of some text that was followed by something.

    Attributes:
        state: Its class.
        length: Its tokens.
        num_followed: How often a token followed it.
    """

    state: int
    length: int
    num_followed: int


class SuffixAutomaton:
    """All runs of a text.

    A token costs amortised constant time, counting included, which is at most ``depth`` steps; a
    state that is split copies its transitions. It costs at most `BYTES_PER_TOKEN`.

    Args:
        depth: Tokens of a context at most; longer runs are found but not counted.

    Attributes:
        depth: As given.
        num_tokens: Tokens of the text.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.num_tokens = 0
        self._last = ROOT
        self._end = Cursor()  # of depth + 1 tokens: contexts and their followers are counted
        # By state. Most have a single transition, which is here and not in a table; of those that
        # have more, this is the most frequent.
        self._length = array("i", [0])
        self._link = array("i", [ROOT])
        self._count = array("i", [0])
        self._latest = array("i", [0])
        self._token = array("i", [0])
        self._target = array("i", [ROOT])  # no transition leads to the root: there is none
        self._tables: list[dict[int, int] | None] = [None]

    @property
    def num_states(self) -> int:
        """States: at most two for each token, and the root."""
        return len(self._length)

    @property
    def end(self) -> Cursor:
        """The end of the text itself."""
        return self._renewed(self._end, self.depth)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens to the end of the text; `SEPARATOR` is never proposed."""
        for token_id in token_ids:
            self._append(token_id)

    def step(self, state: int, token_id: int) -> int:
        """The state of the runs of ``state`` with one more token; `ROOT` if that never occurred."""
        table = self._tables[state]
        if table is not None:
            return table.get(token_id, ROOT)
        return self._target[state] if self._token[state] == token_id else ROOT

    def follower(self, context: Context) -> tuple[int, Cursor] | None:
        """The token that followed most often, the latest of equals, and the end with it.

        None if nothing but a `SEPARATOR` followed.
        """
        token_id = self._token[context.state]
        if token_id == SEPARATOR:
            return None
        return token_id, Cursor(self._target[context.state], context.length + 1)

    def count(self, state: int) -> int:
        """How often the runs of ``state`` occurred, those of at most ``depth`` + 1 tokens."""
        return self._count[state] if state else self.num_tokens

    def find(self, token_ids: Iterable[int]) -> int | None:
        """The state of a run; None if it never occurred."""
        state = ROOT
        for token_id in token_ids:
            state = self.step(state, token_id)
            if state == ROOT:
                return None
        return state

    def contexts(self, cursor: Cursor) -> list[Context]:
        """The ends of a text that were followed by something, longest first.

        The automaton may have grown since ``cursor`` was made.
        """
        state, limit = self._renewed(cursor, self.depth)
        counts, latest, num_tokens = self._count, self._latest, self.num_tokens
        found = []
        while state:
            # Nothing follows the end of the automaton's own text.
            num_followed = counts[state] - (latest[state] == num_tokens)
            if num_followed:
                found.append(Context(state, min(limit, self._length[state]), num_followed))
            state = self._link[state]
        return found

    def follow(self, cursor: Cursor, token_id: int) -> Cursor:
        """The cursor after one more token of its text, amortised constant over that text.

        The automaton may have grown since ``cursor`` was made.
        """
        state, length = self._renewed(cursor, self.depth)
        while state and not self.step(state, token_id):
            state = self._link[state]
            length = self._length[state]
        target = self.step(state, token_id)
        return Cursor(target, length + 1) if target else Cursor()

    def _renewed(self, cursor: Cursor, depth: int) -> Cursor:
        """The end of at most ``depth`` tokens; the class of ``cursor`` may have been split."""
        state, length = cursor
        length = min(length, depth)
        link, lengths = self._link, self._length
        while state and lengths[link[state]] >= length:
            state = link[state]
        return Cursor(state, length)

    def _append(self, token_id: int) -> None:
        """Add a token by the online construction, then count what ends there."""
        link, lengths = self._link, self._length
        self.num_tokens += 1
        new = self._new_state(self.num_tokens)
        state = self._last
        self._last = new
        while not (target := self.step(state, token_id)):
            self._connect(state, token_id, new)
            if state == ROOT:
                break
            state = link[state]
        if target:
            if lengths[target] > lengths[state] + 1:
                target = self._split(state, token_id, target)
            link[new] = target
        before = self._renewed(self._end, self.depth)
        after = Cursor(self.step(before.state, token_id), before.length + 1)
        self._end = self._renewed(after, self.depth + 1)
        self._count_ends()
        if token_id != SEPARATOR:
            self._rank(before.state, token_id)

    def _count_ends(self) -> None:
        """Count the runs that end at the last token."""
        link, counts, latest, num_tokens = self._link, self._count, self._latest, self.num_tokens
        state = self._end.state
        while state:
            counts[state] += 1
            latest[state] = num_tokens
            state = link[state]

    def _rank(self, state: int, token_id: int) -> None:
        """Where the token that came is now the most frequent one, hold it inline."""
        link, counts, tables = self._link, self._count, self._tables
        while state:
            table = tables[state]
            if table is not None:
                target, best = table[token_id], self._target[state]
                if counts[target] >= counts[best] or self._token[state] == SEPARATOR:
                    self._token[state], self._target[state] = token_id, target
            state = link[state]

    def _new_state(self, length: int) -> int:
        self._length.append(length)
        self._link.append(ROOT)
        self._count.append(0)
        self._latest.append(0)
        self._token.append(0)
        self._target.append(ROOT)
        self._tables.append(None)
        return len(self._length) - 1

    def _connect(self, state: int, token_id: int, target: int) -> None:
        table = self._tables[state]
        if self._target[state] == ROOT or self._token[state] == token_id:
            self._token[state], self._target[state] = token_id, target
        elif table is None:
            table = {self._token[state]: self._target[state]}
            self._tables[state] = table
        if table is not None:
            table[token_id] = target

    def _split(self, state: int, token_id: int, target: int) -> int:
        """Give the shorter runs of ``target``, those from ``state`` on, a state of their own."""
        short = self._new_state(self._length[state] + 1)
        for values in (self._link, self._count, self._latest, self._token, self._target):
            values[short] = values[target]
        table = self._tables[target]
        self._tables[short] = None if table is None else table.copy()
        self._link[target] = short
        while self.step(state, token_id) == target:
            self._connect(state, token_id, short)
            if state == ROOT:
                break
            state = self._link[state]
        return short


class RecentText:
    """The automaton of the latest tokens of a text without end.

    Two automata in rotation: once the first is half full the second grows beside it, and takes its
    place when it is full. So at least the latest half of ``max_tokens`` is always known, and
    memory is at most that of one and a half times ``max_tokens``.

    Args:
        depth: As for `SuffixAutomaton`.
        max_tokens: Tokens that are known at most, at least 2.

    Attributes:
        automaton: What is known; another object after a rotation.
        num_tokens: Tokens of the whole text, the forgotten ones included.
    """

    def __init__(self, depth: int, max_tokens: int) -> None:
        self.automaton = SuffixAutomaton(depth)
        self.num_tokens = 0
        self._next = SuffixAutomaton(depth)
        self._max_tokens = max_tokens

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens to the end of the text."""
        half = self._max_tokens // 2
        self.num_tokens += len(token_ids)
        done = 0
        while done < len(token_ids):
            if self.automaton.num_tokens == self._max_tokens:
                self.automaton, self._next = self._next, SuffixAutomaton(self.automaton.depth)
            known = self.automaton.num_tokens
            # Up to the next place where something changes.
            piece = token_ids[done : done + (half if known < half else self._max_tokens) - known]
            self.automaton.extend(piece)
            if known >= half:
                self._next.extend(piece)
            done += len(piece)
