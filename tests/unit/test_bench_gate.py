"""The verdict on pairs: no loss, or loss."""

from dataclasses import replace

import pytest

from blockdraft.bench.gains import Pair
from blockdraft.bench.gate import FLOOR, Gate, judge


def test_the_ratio_is_of_all_seconds() -> None:
    gate = judge([Pair(1.0, 2.0), Pair(9.0, 3.0)])
    assert gate.ratio == pytest.approx(10 / 5)
    assert gate.num_pairs == 2


def test_equal_pairs_leave_no_doubt() -> None:
    gate = judge([Pair(2.0, 2.0)] * 40)
    assert gate.ratio == gate.ratio_low == pytest.approx(1.0)
    assert gate.is_met


def test_pairs_that_differ_lower_the_bound() -> None:
    gate = judge([Pair(1.0, 0.8), Pair(1.0, 1.3)] * 20)
    assert gate.ratio_low < gate.ratio < 1
    assert not gate.is_met


def test_more_pairs_make_the_bound_closer() -> None:
    some, more = ([Pair(1.0, 0.9), Pair(1.0, 1.1)] * count for count in (5, 50))
    assert judge(some).ratio_low < judge(more).ratio_low < 1


def test_the_floor_itself_passes() -> None:
    gate = Gate(40, 1.0, FLOOR)
    assert gate.is_met
    assert not replace(gate, ratio_low=FLOOR - 0.001).is_met
    assert gate.to_json()["passed"] is True
