"""Decisions from made-up costs and chances."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.speculative.costs import ContextCost, CostCurve, CostModel
from blockdraft.speculative.policy import (
    Network,
    Prospect,
    Switch,
    choose_nodes,
    gain_of,
    least_chance,
    next_switch,
    rest_rounds,
)
from blockdraft.speculative.types import Proposal
from blockdraft.speculative.value import Calibration, sureness

NET = Network("net")
BLOCK = {"net": CostCurve({1: 0.2, 64: 0.2001})}
FLAT = CostModel(CostCurve({1: 1.0, 64: 1.0001}), BLOCK)
STEEP = CostModel(CostCurve({1: 1.0, 2: 2.0}), BLOCK)
CHAINS = st.lists(
    st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda chain: sorted(chain, reverse=True)),
    min_size=1,
    max_size=3,
)
COSTS = st.lists(st.floats(0.1, 5.0), min_size=3, max_size=3).map(
    lambda s: CostModel(CostCurve({1: s[0], 4: s[0] + s[1], 16: s[0] + s[1] + s[2]}))
)


def rate(chains: list[list[float]], sizes: tuple[int, ...], costs: CostModel, sunk: float) -> float:
    tokens = len(chains) + sum(sum(c[:n]) for c, n in zip(chains, sizes, strict=True))
    return tokens / (sunk + costs.verify.seconds(len(chains) + sum(sizes)))


@settings(max_examples=100, deadline=None)
@given(chains=CHAINS, costs=COSTS, sunk=st.floats(0.0, 2.0))
def test_no_other_choice_of_sizes_is_faster(
    chains: list[list[float]], costs: CostModel, sunk: float
) -> None:
    sizes = [len(nodes) for nodes in choose_nodes(chains, costs, sunk_s=sunk)]
    best = max(
        rate(chains, other, costs, sunk) for other in product(*(range(len(c) + 1) for c in chains))
    )
    if any(sizes):
        assert rate(chains, tuple(sizes), costs, sunk) == pytest.approx(best)
    else:  # a little more speed is not worth a larger round
        assert rate(chains, tuple(sizes), costs, sunk) * 1.08 >= best * (1 - 1e-6)


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert choose_nodes([[0.5, 0.25, 0.1]], FLAT) == [[0, 1, 2]]


def test_rows_that_cost_a_pass_each_are_not() -> None:
    assert choose_nodes([[0.5, 0.25], []], STEEP) == [[], []]


def test_what_is_likelier_goes_first() -> None:
    costs = CostModel(CostCurve({1: 1.0, 2: 1.0, 4: 1.2, 5: 9.0}))
    assert choose_nodes([[0.3, 0.2], [0.9, 0.8]], costs) == [[], [0, 1]]


def test_some_may_be_wanted_whether_or_not_they_pay() -> None:
    assert choose_nodes([[0.5, 0.25], [0.3]], STEEP, least=2) == [[0], [0]]
    assert choose_nodes([[0.5], []], STEEP, least=3) == [[0], []]
    assert choose_nodes([[]], STEEP, least=3) == [[]]
    assert choose_nodes([[0.9, 0.8]], FLAT, least=1) == [[0, 1]]


def test_equal_rates_take_the_smaller_pass() -> None:
    assert choose_nodes([[0.0]], CostModel(CostCurve({1: 1.0, 2: 1.0}))) == [[]]


def test_a_long_context_makes_rows_dear() -> None:
    costs = CostModel(CostCurve({1: 1.0, 16: 1.3}), context=ContextCost(0.0, 0.001))
    chances = [[0.5, 0.25, 0.1]]
    assert choose_nodes(chances, costs) == [[0, 1, 2]]
    assert choose_nodes(chances, costs, context=400) == [[0]]
    assert choose_nodes(chances, costs, context=4000) == [[]]


class TestSwitch:
    GOOD, BAD = Prospect((), (0.9, 0.7, 0.4)), Prospect((), (0.05, 0.0, 0.0))

    def test_a_good_network_runs_as_deep_as_pays(self) -> None:
        assert next_switch([self.GOOD], FLAT, NET, Switch()) == Switch(depth=3)
        costs = CostModel(CostCurve({1: 1.0, 3: 1.1, 4: 2.0}), BLOCK)
        assert next_switch([self.GOOD], costs, NET, Switch()) == Switch(depth=2)

    def test_a_wide_block_has_its_price(self) -> None:
        costs = CostModel(FLAT.verify, {"net": CostCurve({2: 0.1, 3: 0.9})})
        assert next_switch([self.GOOD], costs, NET, Switch()) == Switch(depth=1)

    def test_a_bad_one_is_left_and_tried_again_ever_more_rarely(self) -> None:
        switch, tries = Switch(), []
        for round_idx in range(400):
            switch = next_switch([self.BAD], FLAT, NET, switch)
            assert not switch.is_on
            if switch.runs:
                tries.append(round_idx)
        gaps = [b - a for a, b in pairwise(tries)]
        assert tries[0] == 16
        assert gaps == sorted(gaps)
        assert gaps[-1] >= 2 * gaps[0]

    def test_trials_take_a_hundredth_of_the_time(self) -> None:
        dear = CostModel(FLAT.verify, {"net": CostCurve({1: 3.0, 64: 3.001})})
        switch, num_trials = Switch(), 0
        for _ in range(3000):
            switch = next_switch([self.BAD], dear, NET, switch)
            num_trials += switch.runs
        assert 8 <= num_trials <= 10  # each loses 3 plain rounds

    def test_drafts_at_hand_may_make_it_needless(self) -> None:
        ready = Prospect((0.99, 0.98, 0.97, 0.96), (0.9, 0.7, 0.4))
        assert not next_switch([ready], FLAT, NET, Switch()).runs

    def test_a_close_call_stays_as_it_is(self) -> None:
        even = Prospect((), (0.26,))  # 1.26 tokens in 1.2 s, or 1 in 1 s
        assert next_switch([even], FLAT, NET, Switch()).runs
        off = Switch(runs=False, is_on=False)
        assert not next_switch([even], FLAT, NET, off).runs

    def test_what_it_kept_of_its_promise_counts(self) -> None:
        on = next_switch([self.GOOD], FLAT, NET, Switch())
        assert on.promise == pytest.approx(3.0 / 1.2, rel=0.01)
        assert next_switch([self.GOOD], FLAT, NET, Switch(), kept=0.5).runs
        assert not next_switch([self.GOOD], FLAT, NET, Switch(), kept=0.4).runs

    def test_what_has_to_be_read_first_counts(self) -> None:
        costs = CostModel(FLAT.verify, BLOCK, read={"net": 0.1})
        assert next_switch([self.GOOD], costs, NET, Switch()).runs
        late = Prospect((), self.GOOD.shares, lag=2000)
        assert not next_switch([late], costs, NET, Switch()).runs

    def test_it_is_earned_back_in_the_rounds_that_are_left(self) -> None:
        costs = CostModel(FLAT.verify, BLOCK, read={"net": 0.1})
        some = replace(self.GOOD, lag=100)
        assert next_switch([some], costs, NET, Switch()).runs
        assert not next_switch([replace(some, left=3)], costs, NET, Switch()).runs

    def test_however_far_behind_it_is_it_is_tried_at_last(self) -> None:
        costs = CostModel(FLAT.verify, BLOCK, read={"net": 0.1})
        switch, tries = Switch(), 0
        for lag in range(3000):
            switch = next_switch([replace(self.BAD, lag=lag)], costs, NET, switch)
            tries += switch.runs
        assert 2 <= tries <= 6

    def test_a_pass_for_each_draft_is_paid_for_each(self) -> None:
        costs = CostModel(FLAT.verify, {"net": CostCurve({1: 0.5, 2: 0.6})})
        small = Network("net", is_stepwise=True)
        assert next_switch([self.GOOD], costs, small, Switch()).depth == 2

    def test_a_step_is_worth_as_many_tokens_as_plain_decoding_writes_meanwhile(self) -> None:
        costs = CostModel(CostCurve({1: 1.0, 5: 1.4}), {"net": CostCurve({1: 0.2})})
        assert least_chance(costs, Network("net", is_stepwise=True), 1) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("gain", "price", "rounds"),
    [(0.1, 0.05, 0), (0.05, 0.05, 0), (0.04, 0.05, 10), (0.0, 0.001, 1), (0.0, 9.0, 32)],
)
def test_looking_for_drafts_takes_little_time_where_it_does_not_pay(
    gain: float, price: float, rounds: int
) -> None:
    assert rest_rounds(gain, price) == rounds


def test_a_little_more_speed_is_not_worth_a_larger_round() -> None:
    costs = CostModel(CostCurve({1: 1.0, 2: 1.5}))
    assert choose_nodes([[0.61]], costs) == [[]]
    assert choose_nodes([[0.63]], costs) == [[0]]


def test_the_gain_is_what_a_round_added_to_the_speed() -> None:
    costs = CostModel(CostCurve({2: 1.0, 4: 1.2}))
    assert gain_of(3, 4, costs, num_sequences=2) == pytest.approx(3 / 1.2 / 2 - 1)
    assert gain_of(2, 4, costs, num_sequences=2) < 0


def test_of_a_tree_the_likeliest_nodes_are_taken() -> None:
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0, 5: 9.0}))
    # two children of the anchor, and one child of each
    assert choose_nodes([[0.6, 0.3, 0.5, 0.1]], costs) == [[0, 1, 2]]


def test_what_the_noise_favours_is_surer() -> None:
    scores, zero = np.log([0.6, 0.4]), np.zeros(2)
    assert sureness(scores, zero, 0) == pytest.approx(0.6)
    assert sureness(scores, np.array([2.0, 0.0]), 0) > sureness(scores, np.array([0.1, 0.0]), 0)
    assert sureness(scores, np.array([99.0, 0.0]), 0) == pytest.approx(0.6**0.5)


class TestCalibration:
    def test_the_first_guess_is_the_drafters(self) -> None:
        chain = Proposal.chain([1, 2], (0.9, 0.5))
        assert Calibration().prefix_chances(chain) == pytest.approx([0.9, 0.45])

    def test_a_boaster_is_believed_less(self) -> None:
        calibration, chain = Calibration(), Proposal.chain([1, 2], (0.95, 0.95))
        for _ in range(40):
            calibration.learn(chain, [])
        first, second = calibration.prefix_chances(chain)
        assert first < 0.2
        assert second == pytest.approx(0.95 * first)  # never reached, nothing learned

    def test_a_good_one_is_believed_more(self) -> None:
        calibration, chain = Calibration(), Proposal.chain([1, 2], (0.3, 0.3))
        for _ in range(40):
            calibration.learn(chain, [1, 2])
        assert calibration.prefix_chances(chain)[1] > 0.64

    def test_old_rounds_are_forgotten(self) -> None:
        calibration, chain = Calibration(), Proposal.chain([1], (0.5,))
        for _ in range(300):
            calibration.learn(chain, [])
        for _ in range(100):
            calibration.learn(chain, [1])
        assert calibration.prefix_chances(chain)[0] > 0.75

    def test_siblings_share_what_is_left(self) -> None:
        calibration = Calibration()
        twins = Proposal((1, 2), (-1, -1), (0.55, 0.3))
        for place in range(200):
            calibration.learn(twins, [1 if place % 2 else 2])
        first, second = calibration.prefix_chances(twins)
        assert first == pytest.approx(0.5, abs=0.1)
        assert second == pytest.approx(0.5, abs=0.1)

    def test_a_branch_that_was_not_taken_teaches_nothing(self) -> None:
        calibration = Calibration()
        tree = Proposal((1, 2, 3), (-1, -1, 0), (0.6, 0.3, 0.9))
        for _ in range(50):
            calibration.learn(tree, [2])
        assert calibration.prefix_chances(Proposal.chain([1, 3], (0.99, 0.9)))[1] > 0.8
