"""Where the tokens of an answer came from, in colour: accepted drafts are green.

Knows text chunks and the terminal, no sessions.
"""

import os
from collections.abc import Callable
from typing import TextIO

from blockdraft.session import TextChunk

__all__ = ["painter", "why_no_colour"]

_GREEN = "\x1b[32m"
_RESET = "\x1b[0m"


def why_no_colour(stream: TextIO) -> str | None:
    """Why ``stream`` gets no colours; None when it does."""
    if os.environ.get("NO_COLOR"):
        return "NO_COLOR is set"
    if not stream.isatty():
        return "the output is not a terminal"
    return "TERM is dumb" if os.environ.get("TERM") == "dumb" else None


def painter(*, in_colour: bool) -> Callable[[TextChunk], str]:
    """A function from a chunk to what is printed for it."""

    def paint(chunk: TextChunk) -> str:
        if in_colour and chunk.is_drafted and chunk.text:
            return f"{_GREEN}{chunk.text}{_RESET}"
        return chunk.text

    return paint
