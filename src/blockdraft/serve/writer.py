"""From a job's events to a response, whole or streamed.

Knows jobs and what chat and text completions have in common; each kind says what its objects look
like.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from blockdraft.serve.answers import Envelope, merged, timings, usage
from blockdraft.serve.fields import AnswerFields
from blockdraft.serve.jobs import Ended, Job, Part
from blockdraft.serve.respond import PING, EventStream, event, json_response, while_connected
from blockdraft.serve.service import Service
from blockdraft.session import Result, TextChunk

__all__ = ["AnswerWriter", "JobWriter"]


class JobWriter(ABC):
    """Runs the answers of one request as a job that ends with its client.

    Args:
        service: What answers it.
        parts: Its answers.
        is_streamed: Whether they are sent while they are written.

    Attributes:
        service: What answers it.
        parts: Its answers.
        done: What ends a stream.
    """

    done = b"data: [DONE]\n\n"

    def __init__(self, service: Service, parts: Sequence[Part], *, is_streamed: bool) -> None:
        self.service = service
        self.parts = parts
        self._is_streamed = is_streamed

    @abstractmethod
    async def whole(self, job: Job) -> Response:
        """The response to a request that is not streamed."""

    @abstractmethod
    def events(self, job: Job) -> AsyncIterator[bytes]:
        """The server-sent events of one that is."""

    async def respond(self, request: Request) -> Response:
        """The response; its headers wait until the engine has taken the job.

        Raises:
            ApiError: The queue is full.
            BlockdraftError: The engine refuses the job.
        """
        engine = self.service.engine
        job = await engine.submit(self.parts)

        def cancel() -> None:
            engine.cancel(job)

        if self._is_streamed:
            return EventStream(self.events(job), done=self.done, cancel=cancel)
        return await while_connected(request, self.whole(job), cancel=cancel)


class AnswerWriter(JobWriter):
    """Writes the choices of one request as they come.

    Args:
        fields: The request.
        service: What answers it.
        parts: Its answers.
        num_prompt: Tokens of its prompts.

    Attributes:
        fields: The request.
    """

    envelope: Envelope
    stream_kind: str

    def __init__(
        self, fields: AnswerFields, service: Service, parts: Sequence[Part], num_prompt: int
    ) -> None:
        super().__init__(service, parts, is_streamed=fields.stream)
        self.fields = fields
        self._num_prompt = num_prompt

    @abstractmethod
    def choice(self, index: int, result: Result, chunk: TextChunk | None) -> dict[str, Any]:
        """A whole answer; ``chunk`` has all its tokens."""

    @abstractmethod
    def pieces(self, index: int, chunk: TextChunk) -> Iterable[dict[str, Any]]:
        """Choices of a stream for a piece of an answer."""

    @abstractmethod
    def ending(self, index: int, result: Result) -> Iterable[dict[str, Any]]:
        """Choices of a stream for the end of an answer; the last one says why."""

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """Choices of a stream before anything is written."""
        del index
        return ()

    async def whole(self, job: Job) -> Response:
        """One object with all choices."""
        chunks: list[list[TextChunk]] = [[] for _ in self.parts]
        results: dict[int, Result] = {}
        async for found in job.events():
            if isinstance(found, Ended):
                results[found.index] = found.result
            elif found is not None:
                chunks[found.index] += found.chunks
        choices = []
        for index, result in sorted(results.items()):
            whole = merged(chunks[index], by_origin=False)
            choices.append(self.choice(index, result, whole[0] if whole else None))
        return json_response(self.envelope.wrap(choices, **self._totals(list(results.values()))))

    async def events(self, job: Job) -> AsyncIterator[bytes]:
        """A chunk for each piece of a choice."""
        envelope = replace(self.envelope, kind=self.stream_kind)
        for index in range(len(self.parts)):
            for choice in self.opening(index):
                yield event(envelope.wrap([choice]))
        results: list[Result] = []
        async for found in job.events():
            if found is None:
                yield PING
            elif isinstance(found, Ended):
                results.append(found.result)
                *before, last = self.ending(found.index, found.result)
                for choice in before:
                    yield event(envelope.wrap([choice]))
                yield event(envelope.wrap([last], **_ending_of(found.result)))
            else:
                for chunk in merged(found.chunks, by_origin=self.fields.mark_drafts):
                    for choice in self.pieces(found.index, chunk):
                        yield event(envelope.wrap([choice | self._origin(chunk)]))
        options = self.fields.stream_options
        if options is not None and options.include_usage:
            yield event(envelope.wrap([], **self._totals(results)))

    def _origin(self, chunk: TextChunk) -> dict[str, Any]:
        if not self.fields.mark_drafts:
            return {}
        return {"is_drafted": chunk.is_drafted, "num_tokens": len(chunk.token_ids)}

    def _totals(self, results: Sequence[Result]) -> dict[str, Any]:
        return {
            "usage": usage(results, self._num_prompt),
            "timings": timings(results),
            "seed": results[0].seed,
        }


def _ending_of(result: Result) -> dict[str, Any]:
    return {"timings": timings([result]), "seed": result.seed}
