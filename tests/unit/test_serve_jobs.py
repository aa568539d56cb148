"""What a job keeps for its reader, and no more."""

import asyncio

import pytest

from blockdraft.serve import jobs
from blockdraft.serve.failure import ApiError
from blockdraft.serve.jobs import Failed, Job, Part, Pieces
from blockdraft.session import AnswerSettings, TextChunk

PIECES = Pieces(0, [TextChunk("x", (3,))])


def test_too_many_unread_events_lose_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MAX_UNREAD", 3)

    async def run() -> None:
        job = Job([Part([0], AnswerSettings())], 0.0)
        kept = [job.put(PIECES) for _ in range(9)]
        assert kept == [True] * 3 + [False] + [True] * 5  # to cancel it once is enough
        job.put(Failed(None))
        events = job.events()
        assert [await anext(events) for _ in range(3)] == [PIECES] * 3
        with pytest.raises(ApiError, match="too slowly"):
            await anext(events)

    asyncio.run(run())


def test_a_reader_that_keeps_up_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MAX_UNREAD", 1)

    async def run() -> None:
        job = Job([Part([0], AnswerSettings())], 0.0)
        events = job.events()
        for _ in range(5):
            assert job.put(PIECES)
            assert await anext(events) is PIECES

    asyncio.run(run())


def test_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE_S", 0.01)

    async def run() -> None:
        job = Job([Part([0], AnswerSettings())], 0.0)
        assert await anext(job.events()) is None

    asyncio.run(run())
