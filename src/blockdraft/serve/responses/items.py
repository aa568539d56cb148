"""Items of the Responses API that a client sends, and the turns of a chat that they are.

Text and function calls only. Nothing is stored here, so a client sends the whole conversation, with
the items that it got in earlier responses as they are.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.serve.messages import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    ToolCall,
    parsed_arguments,
)

__all__ = ["InputItem", "as_messages"]

_TEXTS = ("input_text", "output_text")
Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(BaseModel):
    """A piece of a message; only texts are understood."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    type: str
    text: str | None = None


class InputMessage(Strict):
    """One turn, a client's own or of an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputPart], Field(fail_fast=True)]
    id: str | None = None
    status: Status | None = None
    phase: str | None = Field(None, description="a label; without effect")


class FunctionCall(Strict):
    """A call that the model made in an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutput(Strict):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[InputPart], Field(fail_fast=True)]
    id: str | None = None
    status: Status | None = None


def _kind(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return f"<{kind or 'message'}>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[FunctionCallOutput, Tag("<function_call_output>")],
    Discriminator(
        _kind,
        custom_error_type="item_kind",
        custom_error_message=(
            "its type is not supported; this server reads message, function_call and"
            " function_call_output"
        ),
    ),
]


def as_messages(
    items: str | Sequence[InputMessage | FunctionCall | FunctionCallOutput],
    instructions: str | None,
) -> list[ChatMessage]:
    """The conversation of a request; neighbouring calls are made by one turn, with its text.

    Raises:
        ApiError: An item has something else than text, or arguments that are no JSON object.
    """
    found = [] if instructions is None else [_message("system", instructions)]
    if isinstance(items, str):
        return [*found, _message("user", items)]
    for i, item in enumerate(items):
        if isinstance(item, InputMessage):
            found.append(_message(item.role, _content(item.content, f"input[{i}].content")))
        elif isinstance(item, FunctionCallOutput):
            content = _content(item.output, f"input[{i}].output")
            found.append(_message("tool", content, tool_call_id=item.call_id))
        else:
            parsed_arguments(item.arguments, f"input[{i}].arguments")
            if not (found and found[-1].role == "assistant"):
                found.append(_message("assistant", None))
            function = CalledFunction(name=item.name, arguments=item.arguments)
            calls = found[-1].tool_calls or []
            found[-1].tool_calls = [*calls, ToolCall(id=item.call_id, function=function)]
    return found


def _message(role: Any, content: str | list[ContentPart] | None, **more: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, **more)


def _content(content: str | list[InputPart], place: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type not in _TEXTS:
            message = f"{place}[{i}] is of type {part.type[:40]}; this server reads text only"
            raise ApiError(400, message, param=f"{place}[{i}].type", code="unsupported_value")
    return [ContentPart(type="text", text=part.text or "") for part in content]
