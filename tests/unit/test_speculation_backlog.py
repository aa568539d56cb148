"""A network is told of every committed row once, in order, and seldom."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blockdraft.speculative import CommittedRows
from blockdraft.speculative.backlog import Backlog


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[list[CommittedRows]] = []

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        self.calls.append(list(rows))

    def positions(self, sequence_id: int) -> list[int]:
        """Positions of the rows of a sequence, by their features."""
        parts = [part for call in self.calls for part in call if part.sequence_id == sequence_id]
        for part in parts:
            assert part.features is not None
            assert part.features[0, 0] == part.start
            assert part.token_ids.tolist() == (part.features[:, 0] + 7).tolist()
        return [int(f) for part in parts if part.features is not None for f in part.features[:, 0]]


def rows(start: int, count: int, sequence_id: int = 0) -> CommittedRows:
    at = np.arange(start, start + count)
    features = at[:, None].astype(np.float32)
    return CommittedRows(sequence_id, start, (at + 7).astype(np.int32), features)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def backlog(listener: Listener) -> Backlog:
    network: Any = listener
    return Backlog(network)


def test_rows_wait_until_they_are_asked_for(listener: Listener, backlog: Backlog) -> None:
    for start in range(10, 40, 3):
        backlog.add([rows(start, 3), rows(start, 3, sequence_id=1)])
    assert listener.calls == []
    backlog.tell([1])
    assert listener.positions(1) == list(range(10, 40))
    assert listener.positions(0) == []
    backlog.tell([1])
    assert len(listener.calls) == 1


def test_a_full_page_is_told_in_one_call(listener: Listener, backlog: Backlog) -> None:
    for start in range(64):
        assert listener.calls == []
        backlog.add([rows(start, 1)])
    assert len(listener.calls) == 1
    assert listener.positions(0) == list(range(64))


def test_a_long_prompt_does_not_wait(listener: Listener, backlog: Backlog) -> None:
    backlog.add([rows(0, 100)])
    backlog.add([rows(100, 20)])
    assert listener.positions(0) == list(range(100))


def test_arrays_may_be_overwritten_after_the_call(listener: Listener, backlog: Backlog) -> None:
    part = rows(0, 4)
    backlog.add([part])
    assert part.features is not None
    part.features[:] = -1
    part.token_ids[:] = -1
    backlog.tell([0])
    assert listener.positions(0) == [0, 1, 2, 3]


def test_a_sequence_that_is_read_again_begins_anew(listener: Listener, backlog: Backlog) -> None:
    backlog.add([rows(70, 5)])
    backlog.add([rows(0, 5)])
    backlog.tell([0])
    assert listener.positions(0) == [0, 1, 2, 3, 4]


def test_rows_without_features_are_told_at_once(listener: Listener, backlog: Backlog) -> None:
    backlog.add([rows(70, 5)])
    known = CommittedRows(0, 0, np.zeros(64, np.int32), None)
    backlog.add([known])
    assert listener.calls == [[known]]
    backlog.tell([0])
    assert len(listener.calls) == 1  # what was kept is of K/V that are gone


def test_what_has_ended_is_dropped(listener: Listener, backlog: Backlog) -> None:
    backlog.add([rows(0, 5)])
    backlog.forget(0)
    backlog.tell([0])
    assert listener.calls == []
