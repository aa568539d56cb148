"""Cost curves: between and beyond known sizes, never falling, kept up to date."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.models.small import load_small
from blockdraft.models.target import load_target
from blockdraft.ops.batch import Batch
from blockdraft.speculative.costs import ContextCost, CostCurve, CostModel
from blockdraft.speculative.measure import SIZES, measure_costs
from blockdraft.weights.gguf import GGUFFile

POINTS = st.dictionaries(
    st.integers(1, 64), st.floats(1e-4, 1.0, allow_nan=False), min_size=1, max_size=6
)


def test_linear_between_sizes_and_beyond_them() -> None:
    curve = CostCurve({2: 1.0, 4: 3.0})
    assert [curve.seconds(rows) for rows in (1, 2, 3, 4, 5)] == [1.0, 1.0, 2.0, 3.0, 4.0]


def test_what_is_written_down_is_as_slow_bit_for_bit() -> None:
    costs = CostModel(CostCurve({1: 0.1, 8: 0.3}), context=ContextCost(1.1e-5, 3.3e-6))
    costs.slowness = 1.2345
    again = CostModel.from_json(costs.to_json())
    for context in (0.1, 77.7, 1234.5):
        assert again.verify_seconds(5, 3, context) == costs.verify_seconds(5, 3, context)


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


def test_a_new_size_counts_as_much_as_what_was_expected_of_it() -> None:
    curve = CostCurve({1: 1.0, 8: 2.4})
    curve.add(4, 1.2)
    assert curve.seconds(4) == pytest.approx(1.4)  # 1.6 between its neighbours
    curve.add(4, 1.2)
    assert curve.seconds(4) == pytest.approx(1.2)


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


def test_context_is_read_once_a_pass_and_worked_on_once_a_row() -> None:
    costs = CostModel(CostCurve({1: 1.0, 8: 2.0}), context=ContextCost(0.01, 0.001))
    assert costs.verify_seconds(1) == 1.0
    assert costs.verify_seconds(1, context=100) == pytest.approx(1.0 + 1.0 + 0.1)
    assert costs.verify_seconds(8, context=100) == pytest.approx(2.0 + 1.0 + 0.8)
    assert costs.verify_seconds(8, 2, 100) == pytest.approx(2.0 + 2.0 + 0.8)


@settings(max_examples=60, deadline=None)
@given(
    points=POINTS,
    per_pass=st.floats(0, 1e-3),
    per_row=st.floats(0, 1e-3),
    added=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0), st.floats(0, 9000))),
)
def test_neither_more_rows_nor_more_context_cost_less(
    points: dict[int, float],
    per_pass: float,
    per_row: float,
    added: list[tuple[int, float, float]],
) -> None:
    costs = CostModel(CostCurve(points), context=ContextCost(per_pass, per_row))
    for rows, seconds, context in added:
        costs.add_verify(rows, seconds, context=context)
    for grid in (
        [costs.verify_seconds(rows, 1, 500.0) for rows in range(1, 80)],
        [costs.verify_seconds(7, 1, 100.0 * step) for step in range(40)],
    ):
        assert all(0 < a <= b * (1 + 1e-12) for a, b in pairwise(grid))


def test_what_context_costs_is_no_part_of_the_curve() -> None:
    costs = CostModel(CostCurve({1: 1.0}), context=ContextCost(0.01))
    for _ in range(99):
        costs.add_verify(1, 4.0, context=100)  # twice as slow as was measured
    assert costs.verify_seconds(1) == pytest.approx(2.0, rel=0.02)
    assert costs.verify_seconds(1, context=200) == pytest.approx(6.0, rel=0.02)


def test_a_machine_that_slows_down_does_so_for_all_passes() -> None:
    costs = CostModel(CostCurve({1: 1.0, 4: 1.5}), {"net": CostCurve({1: 0.5})}, read={"net": 0.1})
    for _ in range(99):
        costs.add_verify(1, 3.0)
    assert costs.verify_seconds(4) == pytest.approx(4.5, rel=0.02)
    assert costs.draft_seconds("net", 1) == pytest.approx(1.5, rel=0.02)
    assert costs.read_seconds("net", 10) == pytest.approx(3.0, rel=0.02)
    for _ in range(20):
        costs.add_draft("net", 1, 3.0)
    assert costs.draft_seconds("net", 1) == pytest.approx(3.0)


def test_one_pass_that_was_held_up_changes_little() -> None:
    costs = CostModel(CostCurve({1: 1.0, 4: 1.5}))
    costs.add_verify(1, 500.0)
    assert costs.slowness < 1.1


@pytest.mark.parametrize("order", [(1, 4), (1, 1, 1, 1, 4), (4, 4, 4, 4, 1)])
def test_a_curve_of_another_shape_is_learned(order: tuple[int, ...]) -> None:
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0, 16: 1.0}))
    for _ in range(5):
        for rows in order:
            costs.add_verify(rows, 1.0 if rows == 1 else 2.0)
    assert costs.verify_seconds(4) / costs.verify_seconds(1) == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("costs", [(-1.0, 0.0), (0.0, -1.0), (float("nan"), 0.0)])
def test_context_never_makes_a_pass_cheaper(costs: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="not a cost of context"):
        ContextCost(*costs)


def test_costs_survive_a_file() -> None:
    costs = CostModel(
        CostCurve({1: 1.0, 4: 2.0}),
        {"dflash": CostCurve({1: 0.25})},
        context=ContextCost(1e-6, 1e-7),
        read={"dflash": 1e-5},
    )
    again = CostModel.from_json(costs.to_json())
    assert again.to_json() == costs.to_json()
    assert again.verify_seconds(3, 2, 100) == costs.verify_seconds(3, 2, 100)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"draft": {}},
        {"verify": [[1]], "draft": {}, "context": [0, 0], "read": {}},
        {"verify": [[1, 1.0]], "draft": {}, "context": [0, -1], "read": {}},
        {"verify": [[1, 1.0]], "draft": {}},
    ],
)
def test_damaged_costs_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a cost|unpack"):
        CostModel.from_json(value)


def test_costs_are_measured(tiny_model: Callable[..., Path]) -> None:
    target = load_target(tiny_model("llama", "Q4_0"), num_threads=1, max_rows=32)
    costs = measure_costs(target)
    assert [rows for rows, _ in costs.verify.to_json()] == sorted(SIZES)
    assert (costs.draft, costs.read) == ({}, {})


class Timed:
    """A clock that goes on by what the passes of a target cost."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def forward(self, batch: Batch) -> None:
        """4 microseconds a row; of the context, 2 nanoseconds a pass and 1 a row for each token."""
        context = int(batch.base_lengths[0])
        self.now += 4e-6 * batch.num_rows + context * (2e-9 + 1e-9 * batch.num_rows)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_rows_and_context_are_told_apart(
    arch: str, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, clock = load_target(tiny_model(arch, "Q8_0"), num_threads=1, max_rows=32), Timed()
    monkeypatch.setattr(target, "forward", clock.forward)
    costs = measure_costs(target, clock=clock)
    assert costs.verify_seconds(8) == pytest.approx(32e-6)
    assert costs.context.per_pass == pytest.approx(2e-9)
    assert costs.context.per_row == pytest.approx(1e-9)


def test_a_small_model_is_measured_too(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model("llama", "Q4_0")
    with GGUFFile.open(path) as file:
        target = load_target(file, num_threads=1, max_rows=32)
        costs = measure_costs(target, load_small(file, target, target_file=file))
    assert list(costs.draft) == list(costs.read) == ["draft-simple"]
    assert costs.draft_seconds("draft-simple", 1) > 0
    assert costs.read["draft-simple"] > 0


def test_a_slow_machine_measures_less(tiny_model: Callable[..., Path]) -> None:
    target = load_target(tiny_model("llama", "Q4_0"), num_threads=1, max_rows=32)
    ticks = iter(float(second) for second in range(1000))
    costs = measure_costs(target, clock=lambda: next(ticks))
    assert costs.verify.to_json() == [[1, 1.0], [4, 1.0]]
