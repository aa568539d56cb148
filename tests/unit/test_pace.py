from collections.abc import Callable
from itertools import pairwise

import pytest

from blockdraft.engine.pace import SLOWDOWN, Pace


def small_model(num_decoding: int, num_rows: int) -> float:
    """Memory-bound up to four rows, then in proportion."""
    return 0.002 + 0.0006 * max(0, num_decoding + num_rows - 4)


def with_blocks(num_decoding: int, num_rows: int) -> float:
    """Every 16 rows begin another block of the kernels."""
    return 0.002 + 0.004 * ((num_decoding + num_rows - 1) // 16)


def compute_bound(num_decoding: int, num_rows: int) -> float:
    """The first row costs as much as any other."""
    return 0.01 * (num_decoding + num_rows)


def read(pace: Pace, cost: Callable[[int, int], float], num_decoding: int, count: int) -> list[int]:
    """Rows of so many rounds beside a prompt that does not end."""
    asked = []
    for _ in range(count):
        num_rows = pace.prompt_rows(num_decoding)
        assert num_rows is not None
        pace.learn(num_decoding, num_rows, cost(num_decoding, num_rows))
        asked.append(num_rows)
    return asked


def test_nothing_limits_a_prompt_where_nothing_decodes() -> None:
    assert Pace().prompt_rows(0) is None


def test_the_first_round_shows_what_decoding_costs() -> None:
    pace = Pace()
    assert pace.prompt_rows(3) == 0
    pace.learn(3, 0, 0.002)
    assert pace.prompt_rows(3) == 4
    assert pace.prompt_rows(2) == 0


@pytest.mark.parametrize("num_decoding", [1, 4, 8])
@pytest.mark.parametrize("cost", [small_model, with_blocks, compute_bound])
def test_rounds_take_as_long_as_they_may(
    cost: Callable[[int, int], float], num_decoding: int
) -> None:
    pace = Pace()
    asked = read(pace, cost, num_decoding, 60)[20:]
    alone = cost(num_decoding, 0)
    times = [cost(num_decoding, rows) / alone for rows in asked]
    assert max(times) <= 3.0 or min(asked) == 4
    assert sum(times) / len(times) > 0.6 * SLOWDOWN or cost is with_blocks
    assert min(asked) >= 4


def test_it_starts_small_and_grows_step_by_step() -> None:
    asked = read(Pace(), small_model, 8, 12)
    assert asked[:2] == [0, 4]
    assert all(later <= 1.3 * rows + 1 for rows, later in pairwise(asked[1:]))
    assert asked[-1] > 8


def test_what_a_whole_prompt_cost_is_the_first_guess() -> None:
    pace = Pace()
    pace.learn(0, 100, 0.06)
    pace.learn(1, 0, 0.004)
    assert pace.prompt_rows(1) == int((SLOWDOWN - 1) * 0.004 / 0.0006)


def test_many_prompts_may_take_what_their_streams_will_take() -> None:
    pace = Pace()
    for num_decoding in (1, 8):
        pace.learn(num_decoding, 0, small_model(num_decoding, 0))
    one, few, many = (pace.prompt_rows(1, num_reading) for num_reading in (1, 6, 7))
    assert (one, few) == (4, 4)  # rounds of 8 say nothing of those of 7
    assert many is not None
    added_s = SLOWDOWN * small_model(8, 0) - small_model(1, 0)
    assert many == int(4 * added_s / ((SLOWDOWN - 1) * small_model(1, 0)))


def test_decoding_is_measured_again_once_in_a_while() -> None:
    asked = read(Pace(), small_model, 2, 200)
    assert [i for i, rows in enumerate(asked) if not rows] == [0, 65, 130, 195]


def test_short_pieces_do_not_promise_that_long_ones_are_cheap() -> None:
    pace = Pace()
    before = read(pace, small_model, 1, 30)[-1]
    for _ in range(30):
        pace.prompt_rows(1)
        pace.learn(1, 1, small_model(1, 1))
    asked = pace.prompt_rows(1)
    assert asked is not None
    assert asked <= before + 1


def test_one_slow_round_is_soon_forgotten() -> None:
    pace = Pace()
    before = read(pace, small_model, 2, 40)[-1]
    pace.learn(2, before, 1.0)
    after = read(pace, small_model, 2, 4)
    assert 0 < after[0] < before
    assert after[-1] >= before - 1


def test_a_clock_that_stands_still_is_no_error() -> None:
    asked = read(Pace(), lambda _decoding, _rows: 0.0, 1, 10)
    assert asked[0] == 0
    assert min(asked[1:]) >= 4
