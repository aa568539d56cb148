"""The controller: what it picks from several drafters, what it learns, and that it is invisible."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from blockdraft.models.target import TargetModel, load_target
from blockdraft.speculative import NgramDrafter
from blockdraft.speculative.controller import Controller
from blockdraft.speculative.costs import CostCurve, CostModel
from blockdraft.speculative.policy import Switch
from tests.controlled import FLAT, Clock, Fixed, Small, Tree, World, committed, task
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.replay import assert_replays
from tests.rounds import assert_identical, histories


def request(temperature: float, *, seed: int) -> Request:
    tokens = np.random.default_rng(seed).integers(5, 200, 30)
    params = SamplingParams(temperature=temperature, top_k=0, min_p=0.0, top_p=1.0, seed=seed)
    return Request(tuple(tokens.tolist()), params, 40)


def test_a_right_network_is_used_in_full() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True)
    sizes = World([net], FLAT).run(64, num_accepted=3)
    # A few plain rounds, ever more rarely, tell what they cost now.
    assert [place for place, size in enumerate(sizes) if size != 3] == [8, 25, 58]


def test_a_wrong_network_is_turned_off() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    sizes = World([net], {1: 1.0, 4: 1.6}).run(200, num_accepted=0)
    assert sizes[0] == 3
    assert sum(size > 0 for size in sizes[100:]) <= 5
    assert net.num_proposals < 40
    assert 200 - 64 <= sum(net.seen) <= 200  # it sees the committed rows all the same, in pages
    assert len(net.seen) < 40


def test_a_network_that_gives_less_than_it_promises_is_turned_off() -> None:
    net = Fixed("net", (1,), 0.9, costs_kv=True, seconds=0.3)
    world = World([net], {1: 1.0, 2: 1.1})
    world.run(60, num_accepted=1)
    before = net.num_proposals
    world.run(60, num_accepted=1)
    assert net.num_proposals - before > 50
    world.stall_every, world.stall_s = 3, 4.0  # no median tells of it
    world.run(60, num_accepted=1)
    before = net.num_proposals
    world.run(60, num_accepted=1)
    assert net.num_proposals - before < 10


def test_a_network_in_vain_does_not_silence_what_is_at_hand() -> None:
    free = Fixed("free", (1, 2, 3), 0.9, costs_kv=False, seconds=0.01)
    net = Fixed("net", (5, 6, 7), 0.95, costs_kv=True, seconds=0.5)
    world = World([free, net], {1: 1.0, 4: 1.3}, known={"net": 0.1})
    free.chain = ()
    world.run(60, num_accepted=0)  # nothing at hand, and the network is always wrong
    free.chain = (1, 2, 3)
    before = free.num_proposals
    world.run(40, num_accepted=3)
    assert free.num_proposals - before > 35


def test_a_new_sequence_profits_from_the_last() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    world = World([net], {1: 1.0, 4: 1.6})
    world.run(200, num_accepted=0)
    before = net.num_proposals
    world.run(8, num_accepted=0)
    assert net.num_proposals - before <= 2


def test_a_network_in_vain_is_kept_for_few_sequences() -> None:
    free = Fixed("free", (), 0.9, costs_kv=False)
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    world = World([free, net], {1: 1.0, 4: 1.6})
    assert world.controller.keeps(0)
    world.run(3000, num_accepted=0)
    kept = []
    for _ in range(70):
        kept.append(world.controller.keeps(0))
        before = len(net.seen), net.num_proposals
        world.run(4, num_accepted=0)
        assert kept[-1] or (len(net.seen), net.num_proposals) == before
    assert sum(kept) == 2
    free.chain = (1, 2, 3)
    world.controller.keeps(0)
    assert sum(world.run(20, num_accepted=3)) > 40  # what is looked up goes on


def test_one_sequence_may_have_the_network_and_another_not() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True)
    controller = World([net], FLAT).controller
    controller._switch = Switch(runs=False, is_on=False, patience=256)
    assert [controller.keeps(i) for i in (0, 1)] == [False, False]
    controller._switch = Switch()
    assert controller.keeps(2)
    for sequence_id in (0, 1, 2):
        controller.start(sequence_id)
    found = controller.propose([task(sequence_id) for sequence_id in (0, 1, 2)])
    assert [proposal.token_ids for proposal in found] == [(), (), (1, 2, 3)]
    controller.observe([committed((), i, pass_rows=6) for i in (0, 1)] + [committed((1,), 2)])
    controller.end(0)
    assert controller.keeps(0)


def test_drafts_at_hand_spare_the_network() -> None:
    free = Fixed("free", (1, 2, 3, 4), 0.97, costs_kv=False)
    net = Fixed("net", (5, 6), 0.9, costs_kv=True, seconds=0.5)
    assert World([free, net], FLAT).run(8, num_accepted=4) == [4] * 8
    assert net.num_proposals <= 1  # what it costs has to be seen once


def test_the_better_proposal_wins() -> None:
    free = Fixed("free", (1,), 0.2, costs_kv=False)
    net = Fixed("net", (5, 6), 0.9, costs_kv=True)
    controller = World([free, net], FLAT).controller
    controller.start(0)
    (proposal,) = controller.propose([task()])
    assert proposal.token_ids == (5, 6)
    assert proposal.drafter == "net"


def test_a_network_drafts_as_deep_as_is_of_use() -> None:
    net = Fixed("net", tuple(range(1, 8)), 0.9, costs_kv=True, seconds=0.1)
    rows = {1: 1.0, 2: 1.1, 3: 1.2, 8: 1.9}
    World([net], rows).run(60, num_accepted=1)
    assert set(net.depths[-20:]) <= {1, 2}  # one more is tried at times
    World([net], rows).run(80, num_accepted=7)
    assert net.depths[-1] == 7


def test_what_the_file_says_of_a_network_is_believed_at_first() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.4)
    weak = World([net], {1: 1.0, 4: 1.6}, accepted=(0.3, 0.1, 0.0), known={"net": 0.4})
    assert not any(weak.run(15, num_accepted=3))
    strong = World([net], {1: 1.0, 4: 1.6}, accepted=(0.9, 0.8, 0.7), known={"net": 0.4})
    assert strong.run(1, num_accepted=3) == [3]


def test_costly_rows_are_not_verified() -> None:
    net = Fixed("net", (1, 2, 3), 0.3, costs_kv=True)
    assert World([net], {1: 1.0, 2: 2.0, 4: 4.0}).run(3, num_accepted=0)[0] == 0


def test_costs_that_were_measured_wrong_are_found_out() -> None:
    free = Fixed("free", (1, 2, 3), 0.8, costs_kv=False)
    world = World([free], {1: 1.0, 4: 1.1})
    world.controller._costs.verify = CostCurve({1: 1.0, 4: 9.0})
    sizes = world.run(200, num_accepted=3)
    assert not any(sizes[:60])
    assert sum(size == 3 for size in sizes[140:]) > 40


def test_looking_for_drafts_in_vain_takes_little_time() -> None:
    free = Fixed("free", (), 0.9, costs_kv=False, seconds=0.06)
    world = World([free], {1: 1.0, 4: 1.5})
    world.run(100, num_accepted=0)
    before = free.num_proposals
    world.run(600, num_accepted=0)
    assert (free.num_proposals - before) * 0.06 <= 0.01 * 600
    free.chain = (1, 2, 3)
    sizes = world.run(60, num_accepted=3)
    assert sum(size == 3 for size in sizes[20:]) >= 38


def test_rounds_without_a_look_are_left_alone_but_for_their_time() -> None:
    free = Fixed("free", (), 0.9, costs_kv=False, seconds=0.3)
    world = World([free], {1: 1.0, 4: 1.5})
    world.run(100, num_accepted=0)
    before, looks = len(free.seen), free.num_proposals
    world.run(400, num_accepted=0)
    looked = free.num_proposals - looks
    timed = len(free.seen) - before - looked
    assert 0 < looked < 20
    assert 400 / 8 - looked <= timed <= 400 / 8 + looked


def test_what_drafts_brought_decides_how_often_they_are_looked_for() -> None:
    free = Fixed("free", (1, 2, 3), 0.9, costs_kv=False, seconds=0.05)
    world = World([free], {1: 1.0, 4: 1.5})
    world.run(100, num_accepted=3)
    assert free.num_proposals > 90
    before = free.num_proposals
    world.run(200, num_accepted=0)  # as sure as ever
    assert free.num_proposals - before < 100


def test_a_new_answer_gets_a_new_chance() -> None:
    free = Fixed("free", (), 0.9, costs_kv=False, seconds=0.03)
    world = World([free], {1: 1.0, 4: 1.5})
    world.run(300, num_accepted=0)
    before = free.num_proposals
    world.run(60, num_accepted=0)
    looks = free.num_proposals - before
    assert 15 <= looks <= 40
    world.controller.start(1)  # from now on another one is being written
    world.run(60, num_accepted=0)
    before = free.num_proposals
    world.run(60, num_accepted=0)
    assert free.num_proposals - before <= looks // 2


def test_a_new_sequence_is_looked_at_at_once() -> None:
    free = Fixed("free", (1, 2, 3), 0.9, costs_kv=False, seconds=0.3)
    world = World([free], {1: 1.0, 4: 1.5})
    world.run(100, num_accepted=0)
    before = free.num_proposals
    world.run(1, num_accepted=0)
    assert free.num_proposals == before + 1


def test_passes_teach_what_they_cost() -> None:
    clock = Clock()
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0}))
    free = Fixed("free", (1, 2, 3), 0.9, costs_kv=False)
    controller = Controller([free], costs, clock=clock)
    controller.start(0)
    for _ in range(3):
        controller.propose([task()])
        clock.now += 5.0
        controller.observe([committed((1, 2, 3), pass_rows=4)])
    assert costs.verify_seconds(4) == pytest.approx(5.0, rel=0.1)


def test_rows_of_others_in_a_pass_are_not_booked_on_it() -> None:
    """A sequence that does not draft is not told of, but costs time."""
    clock = Clock()
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0}))
    controller = Controller([Fixed("free", (1, 2, 3), 0.9, costs_kv=False)], costs, clock=clock)
    controller.start(0)
    for _ in range(3):
        controller.propose([task()])
        clock.now += 5.0
        controller.observe([committed((1, 2, 3), pass_rows=204)])
    assert costs.verify_seconds(4) == 1.0


def test_sure_drafts_are_better_than_many_doubtful_ones() -> None:
    doubtful = Fixed("long", (1, 2, 3, 4, 5), 0.62, costs_kv=False)
    sure = Fixed("short", (6, 7), 0.9, costs_kv=False)
    costs = CostModel(CostCurve({1: 1.0, 3: 1.1, 6: 2.2}))
    controller = Controller([doubtful, sure], costs)
    controller.start(0)
    assert controller.propose([task()])[0].drafter == "short"


def test_a_network_is_not_asked_for_more_than_its_chain() -> None:
    net = Tree("net", (1, 2, 3), 0.9, costs_kv=True)
    net.block_size = 16
    World([net], FLAT).run(40, num_accepted=3)
    assert set(net.depths) <= {1, 2, 3}


def test_short_answers_do_not_make_trials_more_frequent() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    world = World([net], {1: 1.0, 4: 1.6})
    world.run(200, num_accepted=0)
    before = net.num_proposals
    for _ in range(300):
        world.run(2, num_accepted=0)
    assert net.num_proposals - before <= 12


def test_what_a_smaller_model_reads_is_not_booked_on_its_steps() -> None:
    small = Small("small", (1, 2, 3), 0.9, costs_kv=True, seconds=40.4)
    costs = CostModel(CostCurve(FLAT), {"small": CostCurve({1: 0.1})}, read={"small": 1.0})
    controller = Controller([small], costs, accepted=(0.99, 0.98, 0.97), clock=small.clock)
    controller.start(0)
    unread = SequenceCache(KVPool(KVLayout(1, 16, (0,)), 1 << 20))
    controller.propose([replace(task(), token_ids=np.arange(41, dtype=np.int32), cache=unread)])
    assert small.num_proposals == 1
    assert costs.draft_seconds("small", 1) == pytest.approx(0.1)


def test_a_pass_with_a_prompt_in_it_teaches_nothing() -> None:
    clock = Clock()
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0}))
    controller = Controller([Fixed("free", (1, 2, 3), 0.9, costs_kv=False)], costs, clock=clock)
    controller.start(0)
    controller.start(1)
    for _ in range(3):
        controller.propose([task()])
        clock.now += 5.0
        others = committed((0,) * 60, sequence_id=1, pass_rows=65)
        controller.observe([committed((1, 2, 3), pass_rows=65), others])
    assert costs.verify_seconds(4) == 1.0


def test_traces_replay_to_the_same_decisions() -> None:
    trace = io.StringIO()
    free = Fixed("free", (1, 2), 0.6, costs_kv=False)
    net = Fixed("net", (5, 6, 7), 0.8, costs_kv=True, seconds=0.4)
    world = World([free, net], {1: 1.0, 4: 1.4}, trace, accepted=(0.9, 0.8, 0.7))
    world.run(40, num_accepted=1)
    lines = trace.getvalue().splitlines()
    assert {json.loads(line)["what"] for line in lines} == {"network", "nodes", "rest"}
    switches = assert_replays(trace.getvalue())
    assert 0 < sum(switch.runs for switch in switches) < len(switches)


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> TargetModel:
    return load_target(tiny_model("gemma3", "Q8_0"), num_threads=1, max_rows=64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_costs_are_invisible(target: TargetModel, seed: int, temperature: float) -> None:
    """Tokens, K/V and logits are those of plain decoding, whatever the controller decides."""
    rng = np.random.default_rng(seed)
    requests = [request(temperature, seed=seed * 3 + i) for i in range(3)]
    plain = [histories(target, [one])[0] for one in requests]
    answers = [history.token_ids for history in plain]
    vocab_size = target.config.vocab_size
    scripted = [
        ScriptedDrafter(DRAFTERS[name], 5, answers, vocab_size=vocab_size, seed=seed, may_rest=True)
        for name in ("mixture", "adversary", "oracle")
    ]
    seconds = np.cumsum(rng.exponential(size=5)) + 0.1
    costs = CostModel(CostCurve(dict(zip((1, 2, 4, 8, 16), seconds.tolist(), strict=True))))
    found = histories(target, requests, Controller([NgramDrafter(7), *scripted], costs))
    for one, other in zip(found, plain, strict=True):
        assert_identical(one, other)
