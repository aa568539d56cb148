"""``/v1/chat/completions``: conversations, through the model's chat template."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from blockdraft.engine.rules import TokenRule
from blockdraft.serve.answers import Envelope, chat_logprobs, finish_reason
from blockdraft.serve.calls import CALL_END, CallParser, ToolCallDelta
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import AnswerFields, answer_settings
from blockdraft.serve.formats import ResponseFormat, format_rule
from blockdraft.serve.jobs import Part
from blockdraft.serve.messages import MAX_TURNS, ChatMessage, as_turns
from blockdraft.serve.service import Service
from blockdraft.serve.tools import (
    MAX_TOOLS,
    Tool,
    ToolChoice,
    call_rule,
    check_template,
    offered,
)
from blockdraft.serve.writer import AnswerWriter
from blockdraft.session import Result, TextChunk

__all__ = ["ChatRequest", "ChatWriter", "call_parser", "chat_parts"]


class ChatRequest(AnswerFields):
    """Body of ``/v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, description="max_tokens by its new name")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    parallel_tool_calls: bool = Field(True, description="false ends the answer at its first call")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="more names that the model's template knows, such as enable_thinking"
    )
    store: Literal[False] | None = Field(None, description="nothing is stored")
    service_tier: Literal["auto", "default"] | None = Field(None, description="there is one")


class ChatWriter(AnswerWriter):
    """Writes the answers to a conversation."""

    stream_kind = "chat.completion.chunk"

    def __init__(
        self, fields: ChatRequest, service: Service, parts: Sequence[Part], num_prompt: int
    ) -> None:
        super().__init__(fields, service, parts, num_prompt)
        self.envelope = Envelope.of("chat.completion", service.settings.model_id, "chatcmpl")
        self._parsers = [call_parser(fields) for _ in parts]

    @classmethod
    def plan(cls, fields: ChatRequest, service: Service) -> "ChatWriter":
        """What writes the answers to a request; time and errors are those of `chat_parts`."""
        parts = chat_parts(fields, service)
        return cls(fields, service, parts, len(parts[0].token_ids))

    def choice(self, index: int, result: Result, chunk: TextChunk | None) -> dict[str, Any]:
        """A whole answer."""
        parser = self._parsers[index]
        message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
        if parser is not None:
            found = [*parser.feed(result.text), *parser.flush()]
            text = "".join(piece for piece in found if isinstance(piece, str))
            calls = [piece.to_dict() for piece in found if isinstance(piece, ToolCallDelta)]
            message["content"] = text
            if calls:
                message |= {"content": text or None, "tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": None if chunk is None else chat_logprobs(chunk, self.service.codec),
            "finish_reason": self._reason(index, result),
        }

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """The role."""
        yield _delta(index, {"role": "assistant", "content": ""})

    def pieces(self, index: int, chunk: TextChunk) -> Iterable[dict[str, Any]]:
        """Text and calls in a piece of an answer."""
        logprobs = chat_logprobs(chunk, self.service.codec)
        parser = self._parsers[index]
        found = [chunk.text] if parser is None else parser.feed(chunk.text)
        if not found and logprobs is not None:
            found = [""]
        for piece in found:
            yield _piece(index, piece) | {"logprobs": logprobs}
            logprobs = None  # of all tokens of the chunk, once

    def ending(self, index: int, result: Result) -> Iterable[dict[str, Any]]:
        """What was held back, and why the answer ended."""
        parser = self._parsers[index]
        if parser is not None:
            yield from (_piece(index, piece) for piece in parser.flush())
        yield _delta(index, {}) | {"finish_reason": self._reason(index, result)}

    def _reason(self, index: int, result: Result) -> str:
        parser = self._parsers[index]
        if parser is not None and parser.num_calls and result.finish_reason == "stop":
            return "tool_calls"
        return finish_reason(result)


def chat_parts(fields: ChatRequest, service: Service) -> list[Part]:
    """The answers to a conversation, still to be written; takes the time of its template.

    Raises:
        ApiError: A field asks for what this server does not have.
        BlockdraftError: A value, the conversation or the model's template cannot be honoured.
    """
    settings = answer_settings(
        fields, service.settings, drafter=service.drafter_name, max_tokens=_limit(fields)
    )
    if fields.logprobs:
        settings = replace(settings, num_logprobs=fields.top_logprobs or 0)
    elif fields.top_logprobs is not None:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    tools = _tools(fields, service)
    if tools and not fields.parallel_tool_calls:
        settings = replace(settings, stop=(*settings.stop, CALL_END))
    token_ids = service.session.encode(
        as_turns(fields.messages), tools=tools, variables=fields.chat_template_kwargs
    )
    settings = service.with_seed(settings)
    return [
        Part(token_ids, replace(settings, choice=i, token_rule=_rule(fields, tools, service)))
        for i in range(fields.n)
    ]


def _limit(fields: ChatRequest) -> int | None:
    if None not in (fields.max_tokens, fields.max_completion_tokens):
        message = "max_tokens and max_completion_tokens are two names of one limit"
        raise ApiError(400, message, param="max_completion_tokens", code="invalid_value")
    return fields.max_completion_tokens or fields.max_tokens


def call_parser(fields: ChatRequest) -> CallParser | None:
    """What finds calls in one answer; None where there are no tools."""
    if not fields.tools or fields.tool_choice == "none":
        return None
    names = [tool.function.name for tool in fields.tools]
    return CallParser(names, is_one=not fields.parallel_tool_calls)


def _tools(fields: ChatRequest, service: Service) -> list[dict[str, Any]] | None:
    """Descriptions for the template; None without tools."""
    if not fields.tools:
        if fields.tool_choice not in (None, "none"):
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        return None
    check_template(service.template_source)
    return offered(fields.tools, fields.tool_choice or "auto") or None


def _rule(
    fields: ChatRequest, tools: Sequence[dict[str, Any]] | None, service: Service
) -> TokenRule | None:
    """A fresh rule for one answer: of its format, or of the calls that it must be."""
    rule = format_rule(fields.response_format, service.session.grammars)
    if not tools:
        return rule
    if rule is not None:
        what = "an answer cannot follow response_format and call tools; give tool_choice: none"
        raise ApiError(400, what, param="response_format", code="invalid_value")
    if fields.tool_choice in (None, "auto"):
        return None
    is_one = fields.tool_choice != "required" or not fields.parallel_tool_calls
    return call_rule(service.session.grammars, tools, is_one=is_one)


def _piece(index: int, piece: str | ToolCallDelta) -> dict[str, Any]:
    if isinstance(piece, str):
        return _delta(index, {"content": piece})
    return _delta(index, {"tool_calls": [{"index": piece.index, **piece.to_dict()}]})


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
