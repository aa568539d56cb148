"""The controller: what it picks from several drafters, what it learns, and that it is invisible."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.kv_cache import KVLayout
from blockdraft.models.target import TargetModel, load_target
from blockdraft.speculative import CommittedRows, DraftTask, NgramDrafter, Proposal
from blockdraft.speculative.controller import Controller
from blockdraft.speculative.costs import CostCurve, CostModel
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.replay import assert_replays
from tests.rounds import assert_identical, histories

PARAMS = SamplingParams(temperature=0.0)


def request(temperature: float, *, seed: int) -> Request:
    tokens = np.random.default_rng(seed).integers(5, 200, 30)
    params = SamplingParams(temperature=temperature, top_k=0, min_p=0.0, top_p=1.0, seed=seed)
    return Request(tuple(tokens.tolist()), params, 40)


FLAT = {1: 1.0, 64: 1.001}


class Clock:
    """Goes on by what the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fixed:
    """Proposes the same chain always, which takes ``seconds``; counts how often."""

    def __init__(
        self,
        name: str,
        chain: Sequence[int],
        prob: float,
        *,
        costs_kv: bool,
        seconds: float = 0.0,
    ) -> None:
        self.type_name = name
        self.block_size = len(chain) + 1
        self.cache_layout = KVLayout(1, 16, (0,)) if costs_kv else None
        self.num_proposals = 0
        self.depths: list[int | None] = []
        self.seen: list[int] = []
        self.open_ids: set[int] = set()
        self.clock = Clock()
        self._seconds = seconds
        self._proposal = Proposal.chain(chain, (prob,) * len(chain))

    def start(self, sequence_id: int) -> None:
        self.open_ids.add(sequence_id)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        self.num_proposals += 1
        self.depths += [task.max_depth for task in tasks]
        self.clock.now += self._seconds
        return [self._proposal for _ in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        self.seen += [len(part.token_ids) for part in rows]

    def end(self, sequence_id: int) -> None:
        self.open_ids.remove(sequence_id)


def task(sequence_id: int = 0, max_drafts: int = 7) -> DraftTask:
    return DraftTask(sequence_id, np.arange(5, dtype=np.int32), max_drafts, PARAMS, 0)


def committed(accepted: Sequence[int], sequence_id: int = 0) -> CommittedRows:
    return CommittedRows(sequence_id, 4, np.array([0, *accepted], np.int32), None)


class World:
    """Drafters and a target with known costs."""

    def __init__(
        self, drafters: Sequence[Fixed], verify: dict[int, float], trace: TextIO | None = None
    ) -> None:
        self.clock = Clock()
        for drafter in drafters:
            drafter.clock = self.clock
        self._true = CostCurve(verify)
        self.controller = Controller(
            drafters, CostModel(CostCurve(verify)), trace=trace, clock=self.clock
        )

    def run(self, num_rounds: int, num_accepted: int) -> list[int]:
        """Sizes of the proposals of one sequence of whose drafts at most so many are accepted."""
        self.controller.start(0)
        sizes = []
        for _ in range(num_rounds):
            (proposal,) = self.controller.propose([task()])
            self.clock.now += self._true.seconds(1 + len(proposal))
            sizes.append(len(proposal))
            self.controller.observe([committed(proposal.token_ids[:num_accepted])])
        self.controller.end(0)
        return sizes


def test_a_right_network_is_used_in_full() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True)
    assert World([net], FLAT).run(20, num_accepted=3) == [3] * 20


def test_a_wrong_network_is_turned_off() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    sizes = World([net], {1: 1.0, 4: 1.6}).run(200, num_accepted=0)
    assert sizes[0] == 3
    assert sum(size > 0 for size in sizes[100:]) <= 5
    assert net.num_proposals < 40
    assert len(net.seen) == 200  # it sees every committed row all the same


def test_a_new_sequence_profits_from_the_last() -> None:
    net = Fixed("net", (1, 2, 3), 0.9, costs_kv=True, seconds=0.5)
    world = World([net], {1: 1.0, 4: 1.6})
    world.run(200, num_accepted=0)
    before = net.num_proposals
    world.run(8, num_accepted=0)
    assert net.num_proposals - before <= 2


def test_drafts_at_hand_spare_the_network() -> None:
    free = Fixed("free", (1, 2, 3, 4), 0.97, costs_kv=False)
    net = Fixed("net", (5, 6), 0.9, costs_kv=True, seconds=0.5)
    assert World([free, net], FLAT).run(10, num_accepted=4) == [4] * 10
    assert net.num_proposals <= 1  # what it costs has to be seen once


def test_the_better_proposal_wins() -> None:
    free = Fixed("free", (1,), 0.2, costs_kv=False)
    net = Fixed("net", (5, 6), 0.9, costs_kv=True)
    controller = World([free, net], FLAT).controller
    controller.start(0)
    (proposal,) = controller.propose([task()])
    assert proposal.token_ids == (5, 6)


def test_a_network_drafts_as_deep_as_is_of_use() -> None:
    net = Fixed("net", tuple(range(1, 8)), 0.9, costs_kv=True, seconds=0.1)
    World([net], FLAT).run(30, num_accepted=0)
    assert net.depths[0] == 3  # one accepted draft is expected at first
    assert net.depths[-1] == 3
    World([net], FLAT).run(60, num_accepted=7)
    assert net.depths[-1] >= 7


def test_costly_rows_are_not_verified() -> None:
    net = Fixed("net", (1, 2, 3), 0.3, costs_kv=True)
    assert World([net], {1: 1.0, 2: 2.0, 4: 4.0}).run(3, num_accepted=0)[0] == 0


def test_passes_teach_what_they_cost() -> None:
    clock = Clock()
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0}))
    free = Fixed("free", (1, 2, 3), 0.9, costs_kv=False)
    controller = Controller([free], costs, clock=clock)
    controller.start(0)
    for _ in range(3):
        controller.propose([task()])
        clock.now += 5.0
        controller.observe([committed((1, 2, 3))])
    assert costs.verify.seconds(4) == 5.0


def test_a_pass_with_a_prompt_in_it_teaches_nothing() -> None:
    clock = Clock()
    costs = CostModel(CostCurve({1: 1.0, 4: 1.0}))
    controller = Controller([Fixed("free", (1, 2, 3), 0.9, costs_kv=False)], costs, clock=clock)
    controller.start(0)
    controller.start(1)
    for _ in range(3):
        controller.propose([task()])
        clock.now += 5.0
        controller.observe([committed((1, 2, 3)), committed((0,) * 60, sequence_id=1)])
    assert costs.verify.seconds(4) == 1.0


def test_traces_replay_to_the_same_decisions() -> None:
    trace = io.StringIO()
    free = Fixed("free", (1, 2), 0.6, costs_kv=False)
    net = Fixed("net", (5, 6, 7), 0.8, costs_kv=True, seconds=0.4)
    World([free, net], {1: 1.0, 4: 1.4}, trace).run(40, num_accepted=1)
    lines = trace.getvalue().splitlines()
    assert {json.loads(line)["what"] for line in lines} == {"network", "nodes"}
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
        ScriptedDrafter(DRAFTERS[name], 5, answers, vocab_size=vocab_size, seed=seed)
        for name in ("mixture", "adversary", "oracle")
    ]
    seconds = np.cumsum(rng.exponential(size=5)) + 0.1
    costs = CostModel(CostCurve(dict(zip((1, 2, 4, 8, 16), seconds.tolist(), strict=True))))
    found = histories(target, requests, Controller([NgramDrafter(7), *scripted], costs))
    for one, other in zip(found, plain, strict=True):
        assert_identical(one, other)
