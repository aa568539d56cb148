"""Typed keys of a JSON configuration, with ranges and with more than one place.

Newer writers moved keys into an inner object; a key that is in several places has to say the same
in all. ``null`` is missing. Each error names the file and the key. Knows no network.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from blockdraft.errors import FileFormatError, UnsupportedError

__all__ = ["JsonKeys"]

T = TypeVar("T")


class JsonKeys:
    """Reads keys of one JSON object, or of several that are searched in turn.

    Every method raises FileFormatError for what is missing, of another type, out of range or
    contradictory, and UnsupportedError for what we do not compute.
    """

    def __init__(self, path: Path, *places: tuple[str, Mapping[str, Any]]) -> None:
        """Read from ``places``, objects with the prefix of their keys in messages."""
        self.path = path
        self._places = places

    def find(self, name: str) -> tuple[str, Any]:
        """The key's full name and value; None where it is nowhere.

        Raises:
            FileFormatError: Two places hold different values.
        """
        found = [
            (prefix + name, place[name])
            for prefix, place in self._places
            if place.get(name) is not None
        ]
        for key, value in found[1:]:
            if value != found[0][1]:
                raise FileFormatError(
                    f"{self.path}: {found[0][0]} is {found[0][1]}, but {key} is {value}"
                )
        return found[0] if found else (self._places[0][0] + name, None)

    def wrong(self, key: str, value: object, rule: str) -> FileFormatError:
        """The error of a key that breaks ``rule``."""
        return FileFormatError(f"{self.path}: {key} is {value!r}; it must be {rule}")

    def integer(
        self, name: str, low: int, high: int, *, default: int | None = None, multiple: int = 1
    ) -> int:
        """Integer in ``[low, high]``, a multiple; required where there is no default."""
        key, value = self._required(name, default)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(key, value, f"an integer in [{low}, {high}]")
        if value % multiple:
            raise UnsupportedError(
                f"{self.path}: {key} is {value}; only multiples of {multiple} are supported"
            )
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """`integer`, or None where the key is missing."""
        return None if self.find(name)[1] is None else self.integer(name, low, high)

    def number(self, name: str, low: float, high: float, *, default: float | None = None) -> float:
        """Number in ``[low, high]``; required where there is no default."""
        key, value = self._required(name, default)
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number or not low <= value <= high:
            raise self.wrong(key, value, f"a number in [{low:g}, {high:g}]")
        return float(value)

    def flag(self, name: str) -> bool | None:
        """Flag, or None where the key is missing."""
        key, value = self.find(name)
        if value is not None and type(value) is not bool:
            raise self.wrong(key, value, "true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, T], *, default: str) -> T:
        """What the key's string stands for; a string that is no choice is unsupported."""
        key, value = self._required(name, default)
        if not isinstance(value, str) or value not in choices:
            raise UnsupportedError(
                f"{self.path}: {key} is {value!r}; supported are {', '.join(choices)}"
            )
        return choices[value]

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...] | None:
        """Integers in ``[low, high]``, at least one, or None where the key is missing."""
        key, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value:
            raise self.wrong(key, value, "a list of integers")
        if not all(type(each) is int and low <= each <= high for each in value):
            raise self.wrong(key, value, f"a list of integers in [{low}, {high}]")
        return tuple(value)

    def numbers(self, name: str, low: float, high: float) -> tuple[float, ...]:
        """Numbers in ``[low, high]``, none where the key is missing."""
        key, value = self.find(name)
        if value is None:
            return ()
        is_list = isinstance(value, list)
        if not is_list or not all(type(x) in (int, float) and low <= x <= high for x in value):
            raise self.wrong(key, value, f"a list of numbers in [{low:g}, {high:g}]")
        return tuple(float(each) for each in value)

    def strings(self, name: str) -> tuple[str, ...] | None:
        """Strings, or None where the key is missing."""
        key, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(key, value, "a list of strings")
        return tuple(value)

    def inner(self, name: str) -> Mapping[str, Any]:
        """Object under the key; empty where it is missing."""
        key, value = self.find(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return value or {}

    def refuse(self, names: Collection[str], neutral: Sequence[object] = (False,)) -> None:
        """Refuse keys that ask for what we do not compute, unless their value is neutral."""
        for name in names:
            key, value = self.find(name)
            if value is not None and value not in neutral:
                raise UnsupportedError(f"{self.path}: {key} is {value!r}, which is not supported")

    def _required(self, name: str, default: object) -> tuple[str, Any]:
        key, value = self.find(name)
        if value is None:
            value = default
        if value is None:
            raise FileFormatError(f"{self.path}: has no key {key}")
        return key, value
