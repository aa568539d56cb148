"""Ctrl-C and kill that wait until a step is whole.

A step moves weights, moments and counters one after another; between two steps all of them fit
together, and what is saved then can be continued bit for bit. Knows no training.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["held_back"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the end of the block; a second one comes through at once.

    Outside the main thread, which alone gets signals, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def hold(number: int, frame: FrameType | None) -> None:
        restore()
        waiting.append(number)
        del frame

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    for number in _SIGNALS:
        signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
    for held in waiting:
        signal.raise_signal(held)
