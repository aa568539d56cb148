"""Calls in the text that a model writes, piece by piece."""

import json
from typing import Any

import pytest

from blockdraft.serve.calls import CallParser, ToolCallDelta
from tests.calling import CALL


def parsed(pieces: list[str], parser: CallParser | None = None) -> list[Any]:
    parser = parser or CallParser()
    found: list[str | ToolCallDelta] = []
    for piece in pieces:
        found += parser.feed(piece)
    found += parser.flush()
    joined: list[Any] = []
    for each in found:
        if isinstance(each, ToolCallDelta):
            joined.append((each.index, each.name, json.loads(each.arguments)))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += each
        else:
            joined.append(each)
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", ["just text"]),
        (CALL, [(0, "add", {"a": 1})]),
        (f"I add.\n{CALL}", ["I add.\n", (0, "add", {"a": 1})]),
        (f"{CALL}\n{CALL}", [(0, "add", {"a": 1}), (1, "add", {"a": 1})]),
        (CALL.removesuffix("</tool_call>"), [(0, "add", {"a": 1})]),
        ("<tool_call>\nnot json\n</tool_call>", ["<tool_call>\nnot json\n</tool_call>"]),
        ('<tool_call>{"name": 3}</tool_call>', ['<tool_call>{"name": 3}</tool_call>']),
        ('<tool_call>{"name": "f", "arguments": []}</tool_call>',
         ['<tool_call>{"name": "f", "arguments": []}</tool_call>']),
        ('<tool_call>{"name": "f"}</tool_call>', [(0, "f", {})]),
        ("a < b and <tool", ["a < b and <tool"]),
        ("<tool_call>" + "[" * 9999, ["<tool_call>" + "[" * 9999]),
    ],
    ids=[
        *("text", "call", "text-and-call", "two", "unclosed", "no-json", "no-name", "no-object"),
        *("no-arguments", "begun", "deep"),
    ],
)  # fmt: skip
def test_calls_in_text(text: str, expected: list[Any], size: int) -> None:
    if len(text) > 1000 and size == 1:
        size = 100
    assert parsed([text[i : i + size] for i in range(0, len(text), size)]) == expected


BARE = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "is_one", "expected"),
    [
        (BARE, False, [(0, "add", {"a": 1})]),
        (f"\n{BARE}\n{BARE}", False, [(0, "add", {"a": 1}), (1, "add", {"a": 1})]),
        (f"{BARE}\n{BARE}", True, [(0, "add", {"a": 1})]),
        (f"{BARE} is it", False, [(0, "add", {"a": 1}), " is it"]),
        (f"{BARE}\n{BARE[:9]}", False, [(0, "add", {"a": 1}), f"\n{BARE[:9]}"]),
        (f"So {BARE}", False, [f"So {BARE}"]),
        ('{"name": "other"}', False, ['{"name": "other"}']),
        ('{"a": 1}', False, ['{"a": 1}']),
        ("{" * 9999, False, ["{" * 9999]),
    ],
    ids=["one", "two", "first", "text", "cut", "later", "other-name", "object", "deep"],
)
def test_calls_whose_tags_were_forgotten(
    text: str, size: int, expected: list[Any], *, is_one: bool
) -> None:
    if len(text) > 1000 and size == 1:
        size = 100
    parser = CallParser(["add"], is_one=is_one)
    assert parsed([text[i : i + size] for i in range(0, len(text), size)], parser) == expected
