"""Who runs next: admission by K/V memory, and the rows of each pass.

Knows counts and bytes; token values, logits and time are nothing to it.

A sequence is promised memory for its tokens and `GROWTH` more, and is promised more when it comes
near. Where there is none the sequence that came last gives its memory back, waits at the front of
the queue and is read again later: the one that came first always goes on, so every request ends.
Drafts need no more: a round has fewer of them than tokens are left to write. Waiting sequences are
admitted strictly in order of arrival.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from blockdraft.engine.pace import Pace
from blockdraft.engine.sequence import SequenceState
from blockdraft.errors import CapacityError
from blockdraft.kv_cache import KVPool

__all__ = ["GROWTH", "Advance", "Scheduler"]

GROWTH = 256
"""Tokens for which memory is promised in advance: how often a sequence may be sent back at most."""

# Rows of a pass beyond which drafts cost about as much as they may gain: one block of the kernels.
_DRAFTING_ROWS = 16


@dataclass(frozen=True, slots=True)
class Advance:
    """A sequence and what it brings to the next pass.

    Attributes:
        sequence: Whose rows they are.
        num_rows: How many of its pending tokens.
        max_drafts: The most drafts after them.
    """

    sequence: SequenceState
    num_rows: int
    max_drafts: int = 0


@dataclass(frozen=True, slots=True)
class _Promise:
    """Memory that a running sequence may use without asking: up to so many tokens."""

    max_positions: int
    nbytes: int


def _begin_nothing(sequence: SequenceState) -> None:
    del sequence


class Scheduler:
    """Waiting and running sequences of one engine.

    Args:
        pool: K/V memory that the sequences share; its budget is that of both pools together.
        draft_pool: K/V memory of their drafter; None where it keeps none.
        max_rows: The most rows of a pass.
        max_running: The most sequences at once, at most ``max_rows``.
        num_draft_tokens: K, the most drafts of a sequence in a pass.
        begin: Called with a sequence that is about to get its first rows; it may find that some of
            them are known.

    Attributes:
        pace: Decides how many rows of prompts a pass has.
        max_running: As given; what already runs is not touched by a change.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        draft_pool: KVPool | None = None,
        max_rows: int,
        max_running: int,
        num_draft_tokens: int = 0,
        begin: Callable[[SequenceState], None] = _begin_nothing,
    ) -> None:
        self.pace = Pace()
        self._begin = begin
        self._pool = pool
        self._draft_pool = draft_pool
        self._num_draft_tokens = num_draft_tokens
        self._max_rows = max_rows
        self.max_running = min(max_running, max_rows)
        self._waiting: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []
        self._promised: dict[int, _Promise] = {}
        self._promised_bytes = 0

    @property
    def num_waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences admitted and not removed."""
        return len(self._running)

    @property
    def unpromised_bytes(self) -> int:
        """K/V memory that no running sequence was promised."""
        return self._pool.max_bytes - self._promised_bytes

    def bytes_needed(self, max_positions: int, *, has_drafts: bool) -> int:
        """K/V memory that a sequence of ``max_positions`` tokens may need."""
        needed = self._pool.layout.max_bytes(max_positions, rows_per_pass=self._max_rows)
        if self._draft_pool is not None and has_drafts:
            # A block is drafted whole, also where fewer tokens may still be written.
            needed += self._draft_pool.layout.max_bytes(
                max_positions + self._num_draft_tokens, rows_per_pass=self._max_rows
            )
        return needed

    def check_fits(self, max_positions: int, *, has_drafts: bool) -> None:
        """Refuse what could never be admitted.

        Raises:
            CapacityError: The whole budget is less than what it needs.
        """
        needed = self.bytes_needed(max_positions, has_drafts=has_drafts)
        if needed > self._pool.max_bytes:
            raise CapacityError(
                f"{max_positions} tokens need {needed} bytes of K/V memory; "
                f"the budget is {self._pool.max_bytes}"
            )

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence that `check_fits`."""
        self._waiting.append(sequence)

    def admit(self) -> list[SequenceState]:
        """Move waiting sequences to the running ones while they fit; returns those moved.

        What those that run will soon ask for stays free: who is admitted is not sent back at once.
        """
        admitted: list[SequenceState] = []
        if not self._waiting or len(self._running) >= self.max_running:
            return admitted
        reserved = sum(map(self._next_growth, self._running))
        while self._waiting and len(self._running) < self.max_running:
            sequence = self._waiting[0]
            if not self._promise(sequence, reserved):
                break
            reserved += self._next_growth(sequence)
            self._waiting.popleft()
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    def make_room(self) -> None:
        """Give every running sequence the memory of its next pass; the latest may have to wait."""
        place = 0
        while place < len(self._running):
            sequence = self._running[place]
            promised = self._promised[sequence.request_id].max_positions
            if self._reach(sequence) <= promised or self._promise(sequence):
                place += 1
            else:
                latest = self._running[-1]
                self._withdraw(latest)
                latest.preempt()
                self._waiting.appendleft(latest)

    def _reach(self, sequence: SequenceState, further: int = 0) -> int:
        """Tokens that it may have after a pass, or ``further`` ones later."""
        coming = len(sequence.token_ids) + self._num_draft_tokens + further
        return min(coming, sequence.max_positions)

    def _promise(self, sequence: SequenceState, reserved: int = 0) -> bool:
        """Promise memory for a while; False if there is none beside ``reserved`` bytes."""
        max_positions = self._reach(sequence, GROWTH)
        needed = self._needs(sequence, max_positions)
        known = self._promised.get(sequence.request_id)
        more = needed - (0 if known is None else known.nbytes)
        if more > self.unpromised_bytes - reserved:
            return False
        self._promised[sequence.request_id] = _Promise(max_positions, needed)
        self._promised_bytes += more
        return True

    def _next_growth(self, sequence: SequenceState) -> int:
        """Bytes that a sequence with a promise will ask for next."""
        promised = self._promised[sequence.request_id]
        max_positions = min(promised.max_positions + GROWTH, sequence.max_positions)
        return self._needs(sequence, max_positions) - promised.nbytes

    def _needs(self, sequence: SequenceState, max_positions: int) -> int:
        return self.bytes_needed(max_positions, has_drafts=sequence.draft_cache is not None)

    def _withdraw(self, sequence: SequenceState) -> None:
        self._promised_bytes -= self._promised.pop(sequence.request_id).nbytes
        self._running.remove(sequence)

    def next_pass(self) -> list[Advance]:
        """Rows of the next pass: decoding sequences, then prompts, first come first served.

        A decoding sequence brings one row and an equal share of the drafts. A prompt is cut
        wherever the pass is full, or as full as those that decode can bear.
        """
        decoding = [sequence for sequence in self._running if not sequence.is_reading]
        is_alone = len(decoding) == len(self._running)
        advances = self._with_drafts(decoding, is_alone=is_alone)
        if is_alone:
            return advances
        rows_left = self._max_rows - sum(1 + advance.max_drafts for advance in advances)
        most = self.pace.prompt_rows(len(decoding), len(self._running) - len(decoding))
        rows_left = rows_left if most is None else min(rows_left, most)
        for sequence in self._running:
            if not rows_left:
                break
            if sequence.is_reading:
                if not sequence.cache.length:
                    self._begin(sequence)
                num_rows = min(sequence.num_pending, rows_left)
                rows_left -= num_rows
                advances.append(Advance(sequence, num_rows))
        return advances

    def _with_drafts(self, decoding: list[SequenceState], *, is_alone: bool) -> list[Advance]:
        """One row for each sequence, and drafts; beside prompts at most half of what is left."""
        if not self._num_draft_tokens or not decoding:
            return [Advance(sequence, 1) for sequence in decoding]
        rows_left = self._max_rows - len(decoding)
        wanted = max(_DRAFTING_ROWS, 1 + self._num_draft_tokens) - len(decoding)
        share = max(min(wanted, rows_left if is_alone else rows_left // 2), 0) // len(decoding)
        limit = min(share, self._num_draft_tokens)
        return [Advance(sequence, 1, min(limit, sequence.max_drafts)) for sequence in decoding]

    def find(self, request_id: int) -> SequenceState | None:
        """The waiting or running sequence of that number."""
        for sequence in (*self._running, *self._waiting):
            if sequence.request_id == request_id:
                return sequence
        return None

    def remove(self, sequence: SequenceState) -> None:
        """Drop a sequence and free its memory at once."""
        if sequence.request_id in self._promised:
            self._withdraw(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.release()
