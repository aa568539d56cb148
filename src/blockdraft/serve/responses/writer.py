"""From a job's events to a response object, or to the named events of its stream."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any
from uuid import uuid4

from starlette.responses import Response

from blockdraft.serve.answers import chat_logprobs, merged, timings
from blockdraft.serve.calls import CallParser, ToolCallDelta
from blockdraft.serve.chat import call_parser, chat_parts
from blockdraft.serve.failure import ApiError, as_api_error
from blockdraft.serve.jobs import Ended, Job, Part, Pieces
from blockdraft.serve.respond import PING, event, json_response
from blockdraft.serve.responses.output import Output
from blockdraft.serve.responses.request import ResponsesRequest, as_chat
from blockdraft.serve.service import Service
from blockdraft.serve.writer import JobWriter
from blockdraft.session import Result, TextChunk, Timings

__all__ = ["ResponseWriter"]

Event = dict[str, Any]


class ResponseWriter(JobWriter):
    """Writes the one answer to a request."""

    done = b""  # the last event says so itself

    def __init__(
        self,
        fields: ResponsesRequest,
        service: Service,
        parts: Sequence[Part],
        parser: CallParser | None,
    ) -> None:
        super().__init__(service, parts, is_streamed=fields.stream)
        self._output = Output()
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is held back
        self._head = _head(fields, parts[0], service.settings.model_id)
        self._parser = parser

    @classmethod
    def plan(cls, fields: ResponsesRequest, service: Service) -> "ResponseWriter":
        """What writes the answer to a request; time and errors are those of `chat_parts`."""
        chat = as_chat(fields)
        return cls(fields, service, chat_parts(chat, service), call_parser(chat))

    async def whole(self, job: Job) -> Response:
        """One object."""
        chunks: list[TextChunk] = []
        async for found in job.events():
            if isinstance(found, Ended):
                list(self._ended(found.result, chunks))
            elif found is not None:
                chunks += found.chunks
        return json_response(self._object())

    async def events(self, job: Job) -> AsyncIterator[bytes]:
        """Events from ``response.created`` to ``response.completed`` or another end."""
        number = 0
        async for found in self._found(job):
            if found is None:
                yield PING
            else:
                yield event({**found, "sequence_number": number}, name=found["type"])
                number += 1

    async def _found(self, job: Job) -> AsyncIterator[Event | None]:
        yield self._told("created")
        yield self._told("in_progress")
        try:
            async for found in job.events():
                for each in self._told_of(found):
                    yield each
        except Exception as error:  # noqa: BLE001 - the status is sent; the client learns it here
            self._fail(as_api_error(error))
        yield self._told(self._head["status"])

    def _told_of(self, found: Pieces | Ended | None) -> Iterable[Event | None]:
        if found is None:
            return (None,)
        if isinstance(found, Ended):
            return self._ended(found.result, ())
        return self._pieces(found.chunks)

    def _pieces(self, chunks: Iterable[TextChunk]) -> Iterable[Event]:
        for chunk in merged(chunks, by_origin=False):
            logprobs = chat_logprobs(chunk, self.service.codec)
            self._logprobs += [] if logprobs is None else logprobs["content"]
            yield from self._put(
                [chunk.text] if self._parser is None else self._parser.feed(chunk.text)
            )

    def _put(self, pieces: Iterable[str | ToolCallDelta]) -> Iterable[Event]:
        for piece in pieces:
            logprobs, self._logprobs = self._logprobs, []
            if isinstance(piece, str):
                yield from self._output.text(piece, logprobs)
            else:
                yield from self._output.call(piece)

    def _ended(self, result: Result, chunks: Iterable[TextChunk]) -> Iterable[Event]:
        """The rest, and the end."""
        yield from self._pieces(chunks)
        if self._parser is not None:
            yield from self._put(self._parser.flush())
        is_cut = result.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        yield from self._output.end(status)
        self._head |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": _usage(result.timings),
            "timings": timings([result]),
        }

    def _fail(self, error: ApiError) -> None:
        self._head |= {
            "status": "failed",
            "error": {"code": "server_error", "message": error.message},
        }

    def _told(self, what: str) -> Event:
        return {"type": f"response.{what}", "response": self._object()}

    def _object(self) -> dict[str, Any]:
        return {**self._head, "output": self._output.items}


def _head(fields: ResponsesRequest, part: Part, model_id: str) -> dict[str, Any]:
    """The response but for its output, before anything is written."""
    asked = fields.model_dump(mode="json", by_alias=True)
    echoed = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "user")
    params = part.settings.params
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        **{name: asked[name] for name in echoed},
        "model": model_id,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": asked["text"] or {"format": {"type": "text"}},
        "tool_choice": asked["tool_choice"] or "auto",
        "tools": asked["tools"] or [],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "seed": params.seed,
    }


def _usage(times: Timings) -> dict[str, Any]:
    return {
        "input_tokens": times.prompt_tokens,
        "input_tokens_details": {"cached_tokens": times.cached_tokens},
        "output_tokens": times.predicted_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": times.prompt_tokens + times.predicted_tokens,
    }
