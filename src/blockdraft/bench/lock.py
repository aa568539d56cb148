"""Keeps measurements and training off the processor at the same time.

Two lock files in the cache: a *gate* that a measurement closes first, so that no new training
step begins, and *busy*, which every step holds while it runs and a measurement takes once the
last one has ended. The system frees both when a process dies. Knows neither side.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["measuring", "working"]

_GATE, _BUSY = "measure.gate", "measure.busy"


@contextmanager
def measuring(cache_dir: Path) -> Iterator[None]:
    """Hold the machine; waits for steps that are running and for other measurements."""
    with _held(cache_dir / _GATE, fcntl.LOCK_EX), _held(cache_dir / _BUSY, fcntl.LOCK_EX):
        yield


@contextmanager
def working(cache_dir: Path) -> Iterator[None]:
    """Hold the machine for one step of work; waits while something is measured."""
    with _held(cache_dir / _GATE, fcntl.LOCK_SH):
        busy = _held(cache_dir / _BUSY, fcntl.LOCK_SH)
        busy.__enter__()
    try:
        yield
    finally:
        busy.__exit__(None, None, None)


@contextmanager
def _held(path: Path, kind: int) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
