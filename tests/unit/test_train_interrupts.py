"""Ctrl-C and kill wait until a step is whole."""

import signal
import threading

import pytest

from blockdraft.train.interrupts import held_back


def interrupted(times: int, done: list[int]) -> None:
    """A block with so many Ctrl-C in it; notes after each that it goes on."""
    with held_back():
        for time in range(times):
            signal.raise_signal(signal.SIGINT)
            done.append(time)


def test_a_signal_waits_for_the_end_of_the_block() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(1, done)
    assert done == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_kill_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_comes_through_at_once() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(2, done)
    assert done == [0]


def test_an_error_goes_its_way() -> None:
    with pytest.raises(ValueError, match="own"), held_back():
        raise ValueError("own")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_get_no_signals() -> None:
    found = []

    def run() -> None:
        with held_back():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
