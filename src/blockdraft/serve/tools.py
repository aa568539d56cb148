"""Functions that a model may call: what is shown to it, and calls in the text it writes.

The format is that of Qwen's and Hermes' templates: ``<tool_call>``, a JSON object with name and
arguments, ``</tool_call>``. Models of other formats are refused by name.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field

from blockdraft.engine.rules import TokenRule
from blockdraft.errors import UnsupportedError
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.session.grammar import Grammars

__all__ = [
    "CALL_END",
    "CALL_START",
    "CallParser",
    "Tool",
    "ToolCallDelta",
    "ToolChoice",
    "call_rule",
    "check_template",
    "offered",
]

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Function(Strict):
    """A function that the model may call; its parameters are a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name in a `NamedTool`."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    Field(description="auto: the model decides; required, or one function: it must call"),
]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """One whole call that the model made.

    Attributes:
        index: How many calls came before it in the answer.
        id: Its number, for the turn that answers it.
        name: The function.
        arguments: A JSON object, as text.
    """

    index: int
    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """The call in a message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def check_template(source: str | None) -> None:
    """Refuse tools where the model was not taught this format.

    Args:
        source: The chat template; None for a base model.

    Raises:
        UnsupportedError: It does not show tools, or has calls written in another way.
    """
    if source is None or "tools" not in source:
        raise UnsupportedError("tools: the chat template of this model does not show any")
    if CALL_START not in source:
        raise UnsupportedError(
            f"tools: the chat template of this model does not write calls as {CALL_START}"
        )


def offered(tools: Sequence[Tool], choice: Literal["none", "auto", "required"] | NamedTool) -> (
    list[dict[str, Any]]
):  # fmt: skip
    """Descriptions for the template: of all tools, or of the one that must be called.

    Raises:
        ApiError: A name is malformed or given twice, or the choice names none of the tools.
    """
    names = [tool.function.name for tool in tools]
    for i, name in enumerate(names):
        if not _NAME.fullmatch(name) or name in names[:i]:
            message = f"the function name {name[:64]!r} is malformed or given twice"
            raise ApiError(400, message, param=f"tools[{i}].function.name", code="invalid_value")
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        wanted = choice.function.name
        if wanted not in names:
            message = f"tool_choice names {wanted[:64]!r}, which is not among the tools"
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        tools = [tool for tool in tools if tool.function.name == wanted]
    return [tool.model_dump(exclude_none=True) for tool in tools]


def call_rule(
    grammars: Grammars, offers: Sequence[Mapping[str, Any]], *, is_one: bool
) -> TokenRule:
    """A rule for an answer that is nothing but calls.

    Args:
        grammars: What compiles it.
        offers: Descriptions of the functions, as `offered` gave them.
        is_one: Whether there is one call, and not one or more.

    Raises:
        BlockdraftError: The parameters of a function are no schema that can be honoured.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": offer["function"]["name"]},
                "arguments": offer["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for offer in offers
    ]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return grammars.wrapped_json(
        schema, before=f"{CALL_START}\n", after=f"\n{CALL_END}", repeats=not is_one
    )


class CallParser:
    """Splits an answer, piece by piece, into text and calls.

    What looks like a call but is not one stays text.

    Attributes:
        num_calls: Calls found so far.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._held = ""

    def feed(self, text: str) -> list[str | ToolCallDelta]:
        """The texts and calls that ``text`` completes, in order."""
        self._held += text
        found: list[str | ToolCallDelta] = []
        while True:
            start = self._held.find(CALL_START)
            if start < 0:
                num_held = _overlap(self._held, CALL_START)
                self._emit(found, self._held[: len(self._held) - num_held])
                self._held = self._held[len(self._held) - num_held :]
                return found
            end = self._held.find(CALL_END, start)
            if end < 0:
                self._emit(found, self._held[:start])
                self._held = self._held[start:]
                return found
            whole = self._held[start : end + len(CALL_END)]
            self._emit(found, self._held[:start])
            self._held = self._held[end + len(CALL_END) :]
            self._take(found, whole)

    def flush(self) -> list[str | ToolCallDelta]:
        """The rest, when no more comes; a call may lack its end."""
        held, self._held = self._held, ""
        found: list[str | ToolCallDelta] = []
        if held.startswith(CALL_START):
            self._take(found, held)
        else:
            self._emit(found, held)
        return found

    def _take(self, found: list[str | ToolCallDelta], whole: str) -> None:
        inner = whole.removeprefix(CALL_START).removesuffix(CALL_END)
        call = _parsed(inner, self.num_calls)
        if call is None:
            self._emit(found, whole)
        else:
            self.num_calls += 1
            found.append(call)

    def _emit(self, found: list[str | ToolCallDelta], text: str) -> None:
        # Templates put line breaks around calls; beside calls they are no answer.
        if text and not (self.num_calls and text.isspace()):
            found.append(text)


def _parsed(text: str, index: int) -> ToolCallDelta | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCallDelta(index, f"call_{uuid4().hex[:24]}", call["name"], text)


def _overlap(text: str, start: str) -> int:
    """Length of the longest end of ``text`` that begins ``start``."""
    longest = min(len(text), len(start) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(start[:n])), 0)
