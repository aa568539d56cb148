"""How fast prompts are read beside sequences that decode, from what rounds took.

A round with a piece of a prompt shall take at most `SLOWDOWN` times as long as one without, once
all that are being read decode as well. Knows counts and seconds. What it decides never changes a
token.
"""

import math
from collections import deque
from statistics import median

__all__ = ["SLOWDOWN", "Pace"]

SLOWDOWN = 2.25
"""Time of a round beside a prompt, over that of a round without."""

_LEAST_ROWS = 4
"""A pass over so many rows costs about what one row costs, see the kernels."""

_ALONE_EVERY = 64
"""Rounds with prompts before one without, which tells what decoding costs now."""

_KEPT = 15
"""Rounds without prompts whose median counts; older ones are forgotten."""

_CHEAPER, _DEARER = 0.83, 1.4
"""The most that one round changes the price of a row by."""


class Pace:
    """Decides how many rows of prompts a round has, and learns what they cost."""

    def __init__(self) -> None:
        # Seconds of rounds without prompts, by the number of sequences that decode.
        self._alone: dict[int, deque[float]] = {}
        self._row_s: float | None = None  # what a row of a prompt adds to a round
        self._asked = 0
        self._since_alone = 0

    def prompt_rows(self, num_decoding: int, num_reading: int = 1) -> int | None:
        """The most rows of ``num_reading`` prompts beside sequences that decode; None: no limit.

        0 asks for a round without prompts, since what is known of such rounds is nothing, or old.
        """
        if not num_decoding:
            return None
        if num_decoding not in self._alone or self._since_alone >= _ALONE_EVERY:
            return 0
        allowed_s = self._allowed_s(num_decoding, num_reading)
        if self._row_s is None:
            self._row_s = allowed_s / _LEAST_ROWS
        self._asked = max(int(allowed_s / self._row_s), _LEAST_ROWS)
        return self._asked

    def learn(self, num_decoding: int, num_prompt_rows: int, seconds: float) -> None:
        """Take note of a round that took ``seconds``."""
        seconds = max(seconds, 1e-9)  # a coarse clock
        if not num_prompt_rows:
            self._alone.setdefault(num_decoding, deque(maxlen=_KEPT)).append(seconds)
            self._since_alone = 0
        elif not num_decoding:
            if self._row_s is None:
                self._row_s = seconds / num_prompt_rows
        elif self._row_s is not None:
            self._since_alone += 1
            added_s = max(seconds - median(self._alone[num_decoding]), 0.0)
            # The root damps: in a pass of few rows the next one costs more than their mean.
            change = math.sqrt(added_s / (num_prompt_rows * self._row_s))
            # A piece shorter than asked for does not tell that more rows would be as cheap.
            least = _CHEAPER if num_prompt_rows >= self._asked else 1.0
            self._row_s *= min(max(change, least), _DEARER)

    def _allowed_s(self, num_decoding: int, num_reading: int) -> float:
        """Seconds that prompts may add to a round."""
        alone_s = median(self._alone[num_decoding])
        coming = max(size for size in self._alone if size <= num_decoding + num_reading)
        return SLOWDOWN * max(alone_s, median(self._alone[coming])) - alone_s
