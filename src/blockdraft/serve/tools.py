"""Functions that a model may call: what is shown to it, and a grammar that makes it call one.

Calls have the format of `serve.calls`; models of other formats are refused by name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from blockdraft.engine.rules import TokenRule
from blockdraft.errors import UnsupportedError
from blockdraft.serve.calls import CALL_END, CALL_START
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.serve.formats import compiled
from blockdraft.session.grammar import Grammars

__all__ = [
    "MAX_TOOLS",
    "Tool",
    "ToolChoice",
    "call_rule",
    "check_template",
    "offered",
]

MAX_TOOLS = 128
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
    before, after = f"{CALL_START}\n", f"\n{CALL_END}"
    return compiled(
        lambda: grammars.wrapped_json(schema, before=before, after=after, repeats=not is_one)
    )
