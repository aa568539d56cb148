"""What a network's rounds say of its next one."""

import pytest

from blockdraft.speculative.habit import Habit


def learned(rounds: list[tuple[int, int]], shares: tuple[float, ...] = (0.5, 0.5, 0.5)) -> Habit:
    habit = Habit(shares, 0.85)
    for num_accepted, depth in rounds:
        habit.learn(num_accepted, depth)
    return habit


def test_a_file_gives_shares_of_what_came_before() -> None:
    habit = Habit.expected(5, (0.6, 0.3), 0.9)
    assert habit.prefix_shares(9) == pytest.approx((0.6, 0.3, 0.15, 0.075))
    assert Habit.expected(2, (0.6, 0.3), 0.9).prefix_shares(9) == (0.6,)
    assert Habit.expected(4, (0.0, 0.0), 0.9).prefix_shares(9) == (0.0, 0.0, 0.0)


def test_room_is_a_limit() -> None:
    assert Habit((0.5, 0.5), 0.9).prefix_shares(1) == (0.5,)
    assert Habit((0.5, 0.5), 0.9).prefix_shares(0) == ()


def test_the_sum_of_prefix_shares_is_what_is_accepted() -> None:
    habit = Habit((0.5,) * 4, 0.99)
    rounds = [0, 1, 1, 4, 2, 0, 3, 1] * 60
    for num_accepted in rounds:
        habit.learn(num_accepted, 4)
    assert sum(habit.prefix_shares(4)) == pytest.approx(sum(rounds) / len(rounds), rel=0.1)


def test_what_was_not_reached_is_not_known() -> None:
    assert learned([(0, 3)] * 30).prefix_shares(1)[0] < 0.02
    shares = learned([(1, 3)] * 30).prefix_shares(3)
    assert shares[0] > 0.98
    assert shares[1] < 0.02


def test_a_draft_that_was_not_verified_counts_as_wrong() -> None:
    cut = learned([(1, 2)] * 30).prefix_shares(3)
    assert cut[1] < 0.02


def test_a_depth_that_is_not_drafted_is_expected_to_do_as_the_one_before() -> None:
    habit = learned([(1, 3)] * 30)
    for _ in range(300):
        habit.learn(1, 1)
    assert habit.prefix_shares(2)[1] > 0.8


def test_a_copy_learns_alone() -> None:
    habit = learned([(3, 3)] * 30)
    copy = habit.copy(0.5)
    for _ in range(20):
        copy.learn(0, 3)
    assert habit.prefix_shares(1)[0] > 0.98
    assert copy.prefix_shares(1)[0] < 0.1
