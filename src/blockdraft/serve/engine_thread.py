"""The one thread that runs the session: requests in through a queue, events out to the event loop.

Knows no HTTP. The session below is synchronous and used by this thread alone. Between two rounds
the thread looks at its queue, so that a cancelled job has freed its memory within one round.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from blockdraft.serve.failure import ApiError
from blockdraft.serve.jobs import Ended, Event, Failed, Job, Part, Pieces
from blockdraft.session import Result, Session, Stream

__all__ = ["EngineState", "EngineThread"]

_LOG = logging.getLogger(__name__)

_FIRST_GUESS_S = 2.0  # how long an answer takes, before one has been seen


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine was doing after its last round.

    Attributes:
        num_running: Answers that hold K/V memory.
        num_waiting: Answers that wait for it.
        used_cache_bytes: K/V memory in use.
        num_rounds: Rounds so far.
    """

    num_running: int = 0
    num_waiting: int = 0
    used_cache_bytes: int = 0
    num_rounds: int = 0


class EngineThread:
    """Runs jobs on a session.

    Args:
        session: Nobody else may use it while the thread runs.
        max_open: Answers that may run or wait.
        on_result: Told of every answer that ended, on the event loop.

    Attributes:
        state: What the engine was doing after its last round.
        num_open: Answers that run or wait, as the event loop counts them.
    """

    def __init__(
        self, session: Session, *, max_open: int, on_result: Callable[[Result], None]
    ) -> None:
        self.state = EngineState()
        self.num_open = 0
        self._session = session
        self._max_open = max_open
        self._on_result = on_result
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: dict[Job, dict[int, Stream]] = {}
        self._events: list[tuple[Job, Event]] = []
        self._answer_s = _FIRST_GUESS_S
        self._is_closing = False
        self._has_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # --- on the event loop

    @property
    def is_alive(self) -> bool:
        """Whether jobs are taken."""
        return self._thread.is_alive() and not self._is_closing

    def start(self) -> None:
        """Start the thread; events go to the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, parts: Sequence[Part]) -> Job:
        """Queue a job, and wait until the engine has looked at it.

        Raises:
            ApiError: The queue is full (429) or could never hold it (400), or the server is going
                down (503).
            BlockdraftError: The engine refuses a part of it.
        """
        if not self.is_alive:
            raise _closing()
        if len(parts) > self._max_open:
            message = f"{len(parts)} answers at once; this server takes {self._max_open} at most"
            raise ApiError(400, message, param="n", code="too_many_answers")
        if self.num_open + len(parts) > self._max_open:
            wait_s = max(1, round(self._answer_s))
            raise ApiError(
                429,
                f"{self.num_open} answers are running or waiting, and {len(parts)} more exceed"
                f" the limit of {self._max_open}",
                code="queue_full",
                headers={"Retry-After": str(wait_s)},
            )
        job = Job(parts, time.perf_counter())
        self.num_open += len(parts)
        self._commands.put(partial(self._start, job))
        try:
            await job.accepted
        except asyncio.CancelledError:
            self.cancel(job)
            raise
        return job

    def cancel(self, job: Job) -> None:
        """End a job; does nothing after its end."""
        self._commands.put(partial(self._cancel, job))

    def drain(self) -> None:
        """Take no more jobs from now on; the thread ends with the last one."""
        self._is_closing = True
        self._commands.put(lambda: None)

    def abandon(self) -> None:
        """End all jobs now, with an error."""
        self._commands.put(partial(self._abandon, _closing()))

    async def close(self) -> None:
        """Drain, and wait for the end."""
        self.drain()
        await asyncio.to_thread(self._thread.join)

    def _deliver(self, events: Sequence[tuple[Job, Event]], closed: Sequence[Job]) -> None:
        for job, event in events:
            if isinstance(event, Ended):
                timings = event.result.timings
                seconds = timings.prompt_s + timings.predicted_s
                self._answer_s += 0.2 * (seconds - self._answer_s)
                self._on_result(event.result)
            if not job.put(event):
                self.cancel(job)
        for job in closed:
            self.num_open -= len(job.parts)

    # --- on the thread

    def _run(self) -> None:
        try:
            while self._obey():
                self._round()
        finally:  # after a crash nobody may wait for ever
            self._is_closing = self._has_stopped = True
            self._abandon(_stopped())
            while not self._commands.empty():
                self._commands.get()()

    def _obey(self) -> bool:
        """Carry out what was asked for; waits while there is nothing else to do. False: the end."""
        while True:
            try:
                command = self._commands.get(block=not self._streams and not self._is_closing)
            except Empty:
                return bool(self._streams) or not self._is_closing
            command()

    def _start(self, job: Job) -> None:
        streams: dict[int, Stream] = {}
        try:
            if self._has_stopped:
                raise _stopped()
            for index, part in enumerate(job.parts):
                streams[index] = self._session.start(
                    part.token_ids, part.settings, called_s=job.called_s
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
            for stream in streams.values():
                stream.close()
            self._send([], [job])  # who is told may come again at once
            self._post(_reject, job, error)
            return
        self._streams[job] = streams
        self._post(_accept, job)

    def _cancel(self, job: Job) -> None:
        streams = self._streams.pop(job, None)
        if streams is None:
            return
        for stream in streams.values():
            stream.close()
        self._note_state()
        self._send([(job, Failed(None))], [job])

    def _abandon(self, error: Exception) -> None:
        jobs = list(self._streams)
        for streams in self._streams.values():
            for stream in streams.values():
                with suppress(Exception):  # after a crash the session may be beyond that
                    stream.close()
        self._streams.clear()
        self._note_state()
        self._send([(job, Failed(error)) for job in jobs], jobs)

    def _round(self) -> None:
        if not self._streams:
            return
        failure: Exception | None = None
        try:
            self._session.advance()
        except Exception as error:  # noqa: BLE001 - a bad pass must not end the server
            _LOG.error("a pass failed; the answers in it are lost: %s", type(error).__name__)
            _LOG.debug("its traceback", exc_info=error)
            failure = error
        self._note_state(num_rounds=1)
        events: list[tuple[Job, Event]] = []
        closed: list[Job] = []
        for job in list(self._streams):
            events += self._collect(job, failure)
            if job not in self._streams:
                closed.append(job)
        self._send(events, closed)

    def _collect(self, job: Job, failure: Exception | None) -> list[tuple[Job, Event]]:
        """What a round gave a job; a job that ends with it is forgotten."""
        events: list[tuple[Job, Event]] = []
        streams = self._streams[job]
        for index, stream in list(streams.items()):
            chunks = stream.drain()
            if chunks:
                events.append((job, Pieces(index, chunks)))
            if not stream.has_ended:
                continue
            error = stream.error or failure
            if error is not None:
                for other in streams.values():
                    other.close()
                del self._streams[job]
                return [*events, (job, Failed(error))]
            events.append((job, Ended(index, stream.result)))
            del streams[index]
        if not streams:
            del self._streams[job]
        return events

    def _note_state(self, num_rounds: int = 0) -> None:
        engine = self._session.engine
        self.state = EngineState(
            engine.num_running,
            engine.num_waiting,
            engine.used_cache_bytes,
            self.state.num_rounds + num_rounds,
        )

    def _send(self, events: Sequence[tuple[Job, Event]], closed: Sequence[Job]) -> None:
        """Hand the events of a round to the event loop, in one call."""
        if events or closed:
            self._post(self._deliver, events, closed)

    def _post(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _closing() -> ApiError:
    return ApiError(503, "the server is shutting down", headers={"Retry-After": "5"})


def _stopped() -> ApiError:
    return ApiError(503, "the engine has stopped")


def _accept(job: Job) -> None:
    if not job.accepted.done():  # the client may have left
        job.accepted.set_result(None)


def _reject(job: Job, error: Exception) -> None:
    if not job.accepted.done():
        job.accepted.set_exception(error)
