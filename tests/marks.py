"""Marks of single parameters of a test."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["with_slow"]


def with_slow(values: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """Parameters of a test; those in ``slow`` are for the slow tests, and tuples are spread."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[pytest.mark.slow] if value in slow else [],
        )
        for value in values
    ]
