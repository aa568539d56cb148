"""Conversations of the OpenAI API as the turns that a chat template reads.

Text only: a picture, a sound or a file in a message is refused by name.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.session import Message

__all__ = [
    "MAX_TURNS",
    "CalledFunction",
    "ChatMessage",
    "ContentPart",
    "ToolCall",
    "as_turns",
    "parsed_arguments",
]

MAX_TURNS = 16_384
"""Turns of a conversation: checking them holds up everybody, two milliseconds for each thousand."""


class ContentPart(BaseModel):
    """A piece of a message; only those of type "text" are understood."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    type: str
    text: str | None = None


class CalledFunction(Strict):
    """Name of a function and its arguments, a JSON object in a string."""

    name: str
    arguments: str = "{}"


class ToolCall(Strict):
    """A call that the model made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


def as_turns(messages: Sequence[ChatMessage]) -> list[Message]:
    """The turns; "developer" is "system", which templates know.

    Raises:
        ApiError: A message has something else than text, or arguments that are no JSON object.
    """
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _turn(message: ChatMessage, place: str) -> Message:
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{place}.content"),
    }
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, key)
        if value is not None:
            turn[key] = value
    if message.tool_calls:
        if message.role != "assistant":
            raise _refused(f"{place}.tool_calls", f"a turn of {message.role} makes no calls")
        turn["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    return turn


def _text(content: str | list[ContentPart] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for i, part in enumerate(content):
        if part.type != "text":
            what = f"{place}[{i}] is of type {part.type[:40]}; this server reads text only"
            raise _refused(f"{place}[{i}].type", what, code="unsupported_value")
        texts.append(part.text or "")
    return "\n".join(texts)


def _call(call: ToolCall, place: str) -> dict[str, Any]:
    """A call with its arguments as an object: templates write them as JSON themselves."""
    arguments = parsed_arguments(call.function.arguments, f"{place}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def parsed_arguments(text: str, place: str) -> dict[str, Any]:
    """The arguments of a call as an object.

    Raises:
        ApiError: They are something else; it names ``place``.
    """
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _refused(place, f"{place} is no JSON object")
    return arguments


def _refused(param: str, message: str, *, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)
