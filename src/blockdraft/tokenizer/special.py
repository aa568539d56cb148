"""Finds special tokens written out in text, so that the rest can be merged piece by piece.

Longer tokens win over shorter ones wherever they overlap, and the leftmost of equally long ones:
the order in which llama.cpp looks for them.
"""

import heapq
import re
from collections.abc import Iterator, Mapping

__all__ = ["SpecialTokens"]


class SpecialTokens:
    """A set of tokens that are recognised by their text."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Prepare to find the texts of ``ids``; an empty one is never found."""
        self._ids = {text: idx for text, idx in ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        starts = "".join(sorted({re.escape(text[0]) for text in self._ids}))
        self._start = re.compile(f"[{starts}]") if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of ``text`` in order: ids of tokens found, and the text between them."""
        position = 0
        for start, found in self._matches(text):
            if start > position:
                yield text[position:start]
            yield self._ids[found]
            position = start + len(found)
        if position < len(text):
            yield text[position:]

    def _matches(self, text: str) -> list[tuple[int, str]]:
        """Start and text of every token, left to right and free of overlap."""
        waiting = [
            candidate for start in self._starts(text) if (candidate := self._at(text, start))
        ]
        heapq.heapify(waiting)
        taken = bytearray(len(text))
        kept: list[tuple[int, str]] = []
        while waiting:
            _, start, length = heapq.heappop(waiting)
            if taken.find(1, start, start + length) < 0:
                taken[start : start + length] = b"\x01" * length
                kept.append((start, text[start : start + length]))
            elif not taken[start]:
                shorter = self._at(text, start, below=length)
                if shorter is not None:
                    heapq.heappush(waiting, shorter)
        kept.sort()
        return kept

    def _starts(self, text: str) -> Iterator[int]:
        return (match.start() for match in self._start.finditer(text)) if self._start else iter(())

    def _at(
        self, text: str, start: int, *, below: int | None = None
    ) -> tuple[int, int, int] | None:
        """The longest token at ``start`` that has fewer than ``below`` characters.

        Returns:
            Its size in bytes, negated; ``start``; its length. None when there is no such token.
        """
        # A token of one character is filed under itself, longer ones under their first two.
        for key in (text[start : start + 2], text[start]):
            for length in self._lengths.get(key, ()):
                piece = text[start : start + length]
                if (below is None or len(piece) < below) and piece in self._ids:
                    return -len(piece.encode()), start, len(piece)
        return None
