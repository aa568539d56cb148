"""Cost curves: between and beyond known sizes, never falling, kept up to date."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.models.target import load_target
from blockdraft.speculative.costs import CostCurve, CostModel
from blockdraft.speculative.measure import SIZES, measure_costs

POINTS = st.dictionaries(
    st.integers(1, 64), st.floats(1e-4, 1.0, allow_nan=False), min_size=1, max_size=6
)


def test_linear_between_sizes_and_beyond_them() -> None:
    curve = CostCurve({2: 1.0, 4: 3.0})
    assert [curve.seconds(rows) for rows in (1, 2, 3, 4, 5)] == [1.0, 1.0, 2.0, 3.0, 4.0]


def test_one_size_costs_in_proportion() -> None:
    assert CostCurve({2: 1.0}).seconds(6) == 3.0


@settings(max_examples=60, deadline=None)
@given(points=POINTS, added=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0))))
def test_more_rows_never_cost_less(
    points: dict[int, float], added: list[tuple[int, float]]
) -> None:
    curve = CostCurve(points)
    for rows, seconds in added:
        curve.add(rows, seconds)
    found = [curve.seconds(rows) for rows in range(1, 80)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))
    assert all(seconds > 0 for seconds in found)


def test_the_median_of_recent_passes_counts() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    for seconds in (5.0, 1.5):
        curve.add(8, seconds)
    assert curve.seconds(8) == 2.0  # of 1.5, what was known, and 5
    curve.add(8, 1.6)
    curve.add(8, 1.6)
    assert curve.seconds(8) == 1.6
    for _ in range(20):
        curve.add(8, 3.0)
    assert curve.seconds(8) == 3.0


def test_a_new_size_counts_at_once() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    curve.add(4, 1.1)
    assert curve.seconds(4) == 1.1


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}])
def test_what_is_no_curve_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="not a cost curve"):
        CostCurve(points)


def test_a_drafter_without_a_curve_costs_nothing() -> None:
    costs = CostModel(CostCurve({1: 1.0}))
    assert costs.draft_seconds("dflash", 3) == 0.0
    costs.add_draft("dflash", 1, 0.5)
    assert costs.draft_seconds("dflash", 1) == 0.5
    assert costs.draft_seconds("dflash", 0) == 0.0


def test_costs_survive_a_file() -> None:
    costs = CostModel(CostCurve({1: 1.0, 4: 2.0}), {"dflash": CostCurve({1: 0.25})})
    again = CostModel.from_json(costs.to_json())
    assert again.to_json() == costs.to_json()


@pytest.mark.parametrize("value", [None, [], {}, {"draft": {}}, {"verify": [[1]], "draft": {}}])
def test_damaged_costs_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a cost|unpack"):
        CostModel.from_json(value)


def test_costs_are_measured(tiny_model: Callable[..., Path]) -> None:
    target = load_target(tiny_model("llama", "Q4_0"), num_threads=1, max_rows=32)
    costs = measure_costs(target)
    assert [rows for rows, _ in costs.verify.to_json()] == list(SIZES)
    assert costs.draft == {}


def test_a_slow_machine_measures_less(tiny_model: Callable[..., Path]) -> None:
    target = load_target(tiny_model("llama", "Q4_0"), num_threads=1, max_rows=32)
    ticks = iter(float(second) for second in range(1000))
    costs = measure_costs(target, clock=lambda: next(ticks))
    assert costs.verify.to_json() == [[1, 1.0]]
