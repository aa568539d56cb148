"""Stop strings in streamed text: what may be shown, and where to cut.

Knows text only. Text that could be the beginning of a stop string is held back until the next
pieces decide.
"""

from collections.abc import Sequence

from blockdraft.errors import ConfigError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Finds the first of several stop strings in text that comes in pieces.

    Raises:
        ConfigError: A stop string is empty.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if not all(stop):
            raise ConfigError("a stop string is empty")
        self._stop = tuple(stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was completed.

        After a match the shown text ends before the stop string, and the matcher is done.
        """
        if not self._stop:
            return text, False
        text = self._held + text
        found = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        num_held = max(_overlap(text, stop) for stop in self._stop)
        shown = len(text) - num_held
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
