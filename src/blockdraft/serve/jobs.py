"""What passes between the event loop and the engine thread: jobs down, events up.

A job is one HTTP request: one or more answers that start together and are cancelled together.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from blockdraft.serve.failure import ApiError
from blockdraft.session import AnswerSettings, Result, TextChunk

__all__ = ["Ended", "Event", "Failed", "Job", "Part", "Pieces"]

_PATIENCE_S = 15.0
_MAX_UNREAD = 4096
"""Rounds of an answer that may wait for a slow client: about a megabyte as it is sent."""


@dataclass(frozen=True, slots=True)
class Part:
    """One answer to write.

    Attributes:
        token_ids: Its prompt.
        settings: How it is written.
    """

    token_ids: Sequence[int]
    settings: AnswerSettings


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one round gave one answer of a job; ``index`` is its number in the job."""

    index: int
    chunks: Sequence[TextChunk]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one answer."""

    index: int
    result: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a whole job: an error, or None once it was cancelled."""

    error: Exception | None


Event = Pieces | Ended | Failed


class Job:
    """One request in the engine, seen from the event loop.

    Attributes:
        parts: Its answers.
        called_s: When the request came, by ``time.perf_counter``.
        accepted: Done when the engine has taken it; holds the error if it has not.
    """

    def __init__(self, parts: Sequence[Part], called_s: float) -> None:
        self.parts = parts
        self.called_s = called_s
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._is_lost = False

    def put(self, event: Event) -> bool:
        """Take an event; called on the event loop.

        Where too many are unread the job is lost: an error takes the event's place, False says to
        cancel it, and what comes later is dropped.
        """
        if self._is_lost:
            return True
        self._is_lost = self._events.qsize() >= _MAX_UNREAD * len(self.parts)
        if self._is_lost:
            event = Failed(ApiError(408, "the client read too slowly", code="slow_client"))
        self._events.put_nowait(event)
        return not self._is_lost

    async def events(self) -> AsyncIterator[Pieces | Ended | None]:
        """Pieces and ends of the answers, until all have ended; None when nothing came for long.

        Raises:
            Exception: What ended the job instead.
        """
        num_open = len(self.parts)
        while num_open:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    event = await self._events.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, Failed):
                if event.error is not None:
                    raise event.error
                return
            num_open -= isinstance(event, Ended)
            yield event
