"""The engine thread: events in order, cancelled jobs, faults that stay alone, the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.engine.sampling import SampleRow
from blockdraft.errors import CapacityError
from blockdraft.serve.engine_thread import EngineThread
from blockdraft.serve.failure import ApiError
from blockdraft.serve.jobs import Ended, Job, Part, Pieces
from blockdraft.session import AnswerSettings, Result, Session
from tests.fake_codec import ALPHABET
from tests.serving import ScriptSampler, script_session

PARAMS = SamplingParams(seed=1)


def part(**settings: Any) -> Part:
    return Part([0, 3], AnswerSettings(PARAMS, **settings))


class World:
    """A running engine thread and what it told of."""

    def __init__(self, session: Session, max_open: int) -> None:
        self.session = session
        self.results: list[Result] = []
        self.engine = EngineThread(session, max_open=max_open, on_result=self.results.append)

    async def read(self, job: Job) -> tuple[dict[int, str], list[int]]:
        """Text by answer, and the order in which answers ended."""
        texts: dict[int, str] = {}
        ended: list[int] = []
        async for event in job.events():
            if isinstance(event, Pieces):
                text = "".join(chunk.text for chunk in event.chunks)
                texts[event.index] = texts.get(event.index, "") + text
            elif isinstance(event, Ended):
                ended.append(event.index)
                assert event.result.text == texts.get(event.index, "")
        return texts, ended

    async def settled(self, *, running: int = 0) -> None:
        """Wait until so many answers run and nothing else is left."""
        async with asyncio.timeout(5):
            while self.session.engine.num_running != running or self.engine.num_open != running:
                await asyncio.sleep(0.001)


def play(act: Callable[[World], Awaitable[None]], session: Session, *, max_open: int = 8) -> World:
    """Run ``act`` on an engine thread, which must end empty."""

    @asynccontextmanager
    async def opened() -> Any:
        world = World(session, max_open)
        world.engine.start()
        yield world
        async with asyncio.timeout(10):
            await world.engine.close()
        assert (session.engine.has_work, session.engine.used_cache_bytes) == (False, 0)

    async def main() -> World:
        async with opened() as world:
            await act(world)
        return world

    return asyncio.run(main())


def held_session(text: str = "hello$") -> tuple[Session, ScriptSampler]:
    """A session that picks no token before its sampler is released."""
    sampler = ScriptSampler([ALPHABET.index(letter) for letter in text], num_prompt=2)
    sampler.hold.clear()
    return script_session(sampler=sampler), sampler


def test_answers_of_a_job_come_together() -> None:
    async def act(world: World) -> None:
        job = await world.engine.submit([part(), part(max_tokens=2), part(stop=("l",))])
        texts, ended = await world.read(job)
        assert texts == {0: "hello", 1: "he", 2: "he"}
        assert ended == [1, 2, 0]

    world = play(act, script_session("hello$"))
    assert [result.finish_reason for result in world.results] == ["length", "stop", "stop"]
    assert world.engine.state.num_rounds == 6


def test_jobs_run_side_by_side() -> None:
    async def act(world: World) -> None:
        jobs = [await world.engine.submit([part()]) for _ in range(4)]
        found = await asyncio.gather(*(world.read(job) for job in jobs))
        assert [texts[0] for texts, _ in found] == ["hello"] * 4

    play(act, script_session("hello$"))


def test_cancelling_frees_within_a_round() -> None:
    session, sampler = held_session("x" * 200)

    async def act(world: World) -> None:
        job = await world.engine.submit([part(), part()])
        task = asyncio.create_task(world.engine.submit([part(max_tokens=3)]))
        await asyncio.sleep(0)
        world.engine.cancel(job)
        sampler.hold.set()
        assert (await world.read(await task))[0] == {0: "xxx"}
        await world.settled()
        assert world.engine.state.num_rounds <= 4
        world.engine.cancel(job)
        assert await world.read(job) in (({}, []), ({0: "x", 1: "x"}, []))

    play(act, session)


def test_a_cancelled_submit_leaves_nothing_behind() -> None:
    session, sampler = held_session("x" * 200)

    async def act(world: World) -> None:
        first = await world.engine.submit([part(max_tokens=1)])
        await asyncio.sleep(0.02)  # the thread waits inside a pass
        task = asyncio.create_task(world.engine.submit([part()]))
        await asyncio.sleep(0.02)
        task.cancel()
        sampler.hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.read(first)
        await world.settled()

    play(act, session)


def test_a_refused_part_refuses_its_job_alone() -> None:
    async def act(world: World) -> None:
        good = await world.engine.submit([part()])
        with pytest.raises(CapacityError, match="exceed the context"):
            await world.engine.submit([part(), part(max_tokens=600)])
        assert (await world.read(good))[0] == {0: "hello"}
        assert world.engine.num_open == 0

    play(act, script_session("hello$"))


class BrokenError(RuntimeError):
    """Not one of ours."""


def raising(_: object) -> Any:
    raise BrokenError("in a rule")


def test_a_fault_in_a_rule_ends_its_job_alone() -> None:
    async def act(world: World) -> None:
        bad = await world.engine.submit([part(), part(token_rule=raising)])
        good = await world.engine.submit([part()])
        with pytest.raises(BrokenError):
            await world.read(bad)
        assert (await world.read(good))[0] == {0: "hello"}
        await world.settled()

    play(act, script_session("hello$"))


class FailsOnce(ScriptSampler):
    """Fails at one position, once."""

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        if rows[0].position == 4 and self._token_ids:
            self._token_ids, kept = [], self._token_ids
            self.kept = kept
            raise BrokenError("a bad pass")
        if not self._token_ids:
            self._token_ids = self.kept
        return super().pick(logits, rows)


def test_a_pass_that_fails_loses_its_answers_and_no_later_ones() -> None:
    token_ids = [ALPHABET.index(letter) for letter in "hello$"]
    sampler = FailsOnce(token_ids, num_prompt=2)

    async def act(world: World) -> None:
        job = await world.engine.submit([part()])
        with pytest.raises(BrokenError):
            await world.read(job)
        again = await world.engine.submit([part(max_tokens=2)])
        assert (await world.read(again))[0] == {0: "he"}

    play(act, script_session(sampler=sampler))


def test_a_full_queue_says_when_to_come_back() -> None:
    session, sampler = held_session()

    async def act(world: World) -> None:
        # Not awaited yet: the thread may be inside a pass, and looks at its queue after it.
        tasks = [asyncio.create_task(world.engine.submit([part()] * n)) for n in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await world.engine.submit([part(), part()])
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        with pytest.raises(ApiError, match="5 answers at once; this server takes 4") as never:
            await world.engine.submit([part()] * 5)
        assert never.value.status == 400  # no use in coming back
        sampler.hold.set()
        for task in tasks:
            await world.read(await task)
        await world.read(await world.engine.submit([part()] * 4))

    play(act, session, max_open=4)


def test_closing_lets_answers_end_and_takes_no_more() -> None:
    session, sampler = held_session()

    async def act(world: World) -> None:
        job = await world.engine.submit([part()])
        closing = asyncio.create_task(world.engine.close())
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="shutting down") as caught:
            await world.engine.submit([part()])
        assert caught.value.status == 503
        assert not world.engine.is_alive
        sampler.hold.set()
        assert (await world.read(job))[0] == {0: "hello"}
        await closing

    play(act, session)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_of_the_thread_reaches_who_waits() -> None:
    session = script_session("hello$")

    class Fatal(BaseException):
        """What no handler takes."""

    def crash() -> None:
        raise Fatal

    async def act(world: World) -> None:
        job = await world.engine.submit([part()])
        with pytest.raises(ApiError, match="the engine has stopped"):
            await world.read(job)
        assert not world.engine.is_alive
        assert world.engine.num_open == 0

    session.advance = crash  # type: ignore[method-assign]
    play(act, session)
