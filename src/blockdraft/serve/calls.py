"""Calls of functions in the text that a model writes.

The format is that of Qwen's and Hermes' templates: ``<tool_call>``, a JSON object with name and
arguments, ``</tool_call>``. Knows no requests.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

__all__ = ["CALL_END", "CALL_START", "CallParser", "ToolCallDelta"]

CALL_START, CALL_END = "<tool_call>", "</tool_call>"


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


class CallParser:
    """Splits an answer, piece by piece, into text and calls.

    What looks like a call but is not one stays text. Small models forget the tags, so an answer
    that begins with an object is held back to its end: it may be calls without them.

    Args:
        names: Functions that a call without tags may name.
        is_one: Whether the first call is the only one.

    Attributes:
        num_calls: Calls found so far.
    """

    def __init__(self, names: Collection[str] = (), *, is_one: bool = False) -> None:
        self.num_calls = 0
        self._names = names
        self._is_one = is_one
        self._held = ""
        self._is_bare: bool | None = None  # None until the first letter

    def feed(self, text: str) -> list[str | ToolCallDelta]:
        """The texts and calls that ``text`` completes, in order."""
        self._held += text
        if self._is_bare is None and (first := self._held.lstrip()[:1]):
            self._is_bare = first == "{"
        return [] if self._is_bare is not False else self._split()

    def _split(self) -> list[str | ToolCallDelta]:
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
        found: list[str | ToolCallDelta] = []
        if self._is_bare:
            found += self._bare()
        found += self._split()
        held, self._held = self._held, ""
        if held.startswith(CALL_START):
            self._take(found, held)
        else:
            self._emit(found, held)
        return found

    def _bare(self) -> list[str | ToolCallDelta]:
        """Calls without tags at the beginning of what is held; the rest stays there."""
        found: list[str | ToolCallDelta] = []
        while True:
            call, end = _first_object(self._held, self.num_calls)
            if call is None or call.name not in self._names:
                return found
            self._held = "" if self._is_one else self._held[end:]
            self.num_calls += 1
            found.append(call)

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


def _first_object(text: str, index: int) -> tuple[ToolCallDelta | None, int]:
    """The call that a text begins with, and where its object ends."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, 0
    return _as_call(value, index), end


def _parsed(text: str, index: int) -> ToolCallDelta | None:
    try:
        return _as_call(json.loads(text), index)
    except (ValueError, RecursionError):
        return None


def _as_call(call: Any, index: int) -> ToolCallDelta | None:
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
