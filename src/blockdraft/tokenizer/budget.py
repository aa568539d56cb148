"""What one rendering of a template may use: time, memory and output.

Python cannot stop a single operation, so sizes are worked out before an operation runs, and the
clock is read between operations. Knows nothing of Jinja.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

__all__ = ["Budget", "LimitError"]

T = TypeVar("T")

# Characters and list entries that all operations together may make; a real template makes a few
# times what it prints.
_MAX_WORK = 1 << 27
_MAX_OUTPUT = 1 << 24
_MAX_INT_BITS = 1024
_MAX_DEPTH = 64
# Widths, indents and the like: `'{:>999999999}'` is a gigabyte.
_MAX_WIDTH = 1000
# Directives of `%`, strftime and str.format, up to their letter.
_FORMAT_SPEC = re.compile(r"%(?:\([^)]*\))?[^A-Za-z%]*|\{[^{}]*\{?")


class LimitError(Exception):
    """A template went beyond a limit; the text says which."""


class Budget:
    """Time and memory left to one rendering."""

    def __init__(self, time_limit_s: float) -> None:
        """Start the clock."""
        self._time_limit_s = time_limit_s
        self._deadline = time.monotonic() + time_limit_s
        self._work_left = _MAX_WORK
        self._output_left = _MAX_OUTPUT

    def tick(self) -> None:
        """Check the clock.

        Raises:
            LimitError: Time is up.
        """
        if time.monotonic() > self._deadline:
            raise LimitError(f"took longer than {self._time_limit_s:g} s")

    def spend(self, amount: int) -> None:
        """Take ``amount`` characters or entries that are about to be made, and check the clock.

        Raises:
            LimitError: That is more than is left, or time is up.
        """
        self.tick()
        self._work_left -= amount
        if self._work_left < 0:
            raise LimitError(f"made more than {_MAX_WORK} characters and list entries")

    def spend_output(self, amount: int) -> None:
        """Take ``amount`` characters of output.

        Raises:
            LimitError: That is more than is left.
        """
        self._output_left -= amount
        if self._output_left < 0:
            raise LimitError(f"wrote more than {_MAX_OUTPUT} characters")

    def guard(self, values: Iterable[T], per_step: int) -> Iterator[T]:
        """``values`` one by one, at ``per_step`` characters each."""
        for value in values:
            self.spend(per_step + 1)
            yield value

    def spend_result(self, value: T) -> T:
        """``value``, after taking its own size without what it refers to."""
        if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise LimitError(f"made a number of more than {_MAX_INT_BITS} bits")
        self.spend(len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1)
        return value

    def spend_written(self, value: object, *, indent: int = 0) -> None:
        """Take about as much as ``value`` has characters when it is written out.

        Raises:
            LimitError: That is more than is left, or it is nested too deeply.
        """
        pending: list[tuple[object, int]] = [(value, 0)]
        while pending:
            item, depth = pending.pop()
            if depth > _MAX_DEPTH:
                raise LimitError(f"nested values more than {_MAX_DEPTH} deep")
            self.spend(2 + depth * indent + (len(item) if isinstance(item, str | bytes) else 8))
            if isinstance(item, Mapping):
                pending += [(part, depth + 1) for pair in item.items() for part in pair]
            elif isinstance(item, list | tuple | set | frozenset):
                pending += [(part, depth + 1) for part in item]

    def check_width(self, value: object) -> None:
        """Check a number that pads text.

        Raises:
            LimitError: It is too big.
        """
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise LimitError(f"asked for a width of {value}, at most {_MAX_WIDTH} are allowed")

    def check_format(self, text: str) -> None:
        """Check that a format string holds no large widths.

        Raises:
            LimitError: It does.
        """
        for spec in _FORMAT_SPEC.findall(text):
            if "*" in spec or spec.count("{") > 1:
                raise LimitError("takes the width of a format from a value")
            for digits in re.findall(r"\d+", spec):
                self.check_width(int(digits[:20]))
