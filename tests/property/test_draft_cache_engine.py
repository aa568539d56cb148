"""Draft caches in the engine: as if nothing was ever drafted, given back, and accounted for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft.engine import Engine, Request
from blockdraft.engine import engine as engine_module
from blockdraft.engine.sequence import features_of
from blockdraft.errors import CapacityError
from blockdraft.kv_cache import SequenceCache
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import PassResult
from blockdraft.speculative import (
    NO_DRAFTS,
    CommittedRows,
    Controller,
    DFlashDrafter,
    Drafter,
    DraftTask,
    NgramDrafter,
    Proposal,
)
from blockdraft.speculative.costs import CostCurve, CostModel
from blockdraft.speculative.policy import Switch
from tests.native_dflash import TOSSED, load_networks, load_tapped, network
from tests.rounds import assert_identical, histories

TinyModel = Callable[..., Path]

MAX_ROWS = 48
CACHE_BYTES = 64 << 20
NETWORKS = {
    "dflash": network(has_coin_head=True),
    "dflash2, window": network(
        has_coin_head=True, is_dflash2=True, kinds=("sliding", "sliding"), window=21, top_k=20
    ),
}


@dataclass
class Networks:
    """A tiny target and its drafters, loaded once."""

    target: TargetModel
    models: dict[str, DrafterModel]


@pytest.fixture(scope="module")
def networks(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Networks:
    target = load_tapped(tiny_model("llama", "Q8_0", layers=5), max_rows=MAX_ROWS)
    return Networks(target, load_networks(NETWORKS, tmp_path_factory.mktemp("drafters"), target))


# --- as if nothing was ever drafted


class Watched(DFlashDrafter):
    """Writes down the K/V hash of every committed length, by sequence."""

    def __init__(self, model: DrafterModel, *, is_silent: bool = False) -> None:
        super().__init__(model)
        self.states: dict[int, dict[int, str]] = {}
        self._is_silent = is_silent

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        if self._is_silent:
            return [NO_DRAFTS] * len(tasks)
        for task in tasks:
            assert task.cache is not None
            assert task.cache.length == len(task.token_ids) - 1
        return super().propose(tasks)

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        super().observe(rows)
        for part in rows:
            assert part.cache is not None
            if part.cache.length < part.prompt_length:
                continue  # a window may not see back to what was skipped
            states = self.states.setdefault(part.sequence_id, {})
            states[part.cache.length] = part.cache.state_hash()


def coin_request(num_prompt: int, max_tokens: int, seed: int, temperature: float = 1.0) -> Request:
    """A request whose target writes coins only."""
    tokens = np.random.default_rng(seed).integers(3, 250, num_prompt)
    params = replace(TOSSED, temperature=temperature, seed=seed)
    return Request(tuple(tokens.tolist()), params, max_tokens)


REQUESTS = (
    coin_request(70, 40, seed=1),
    coin_request(130, 30, seed=2, temperature=0.0),
    coin_request(3, 60, seed=3),
)


def run_all(target: TargetModel, drafter: Drafter, requests: Sequence[Request]) -> list[Any]:
    """Statistics of every request."""
    found = {}
    one = Engine(target, max_cache_bytes=CACHE_BYTES, drafter=drafter)
    for request in requests:
        one.add(request)
    while one.has_work:
        for event in one.step():
            found[event.request_id] = event.stats
    assert one.used_cache_bytes == 0
    return [found[key] for key in sorted(found)]


def compare(networks: Networks) -> None:
    """Fail unless draft caches are those of an engine whose drafter only watches."""
    for model in networks.models.values():
        drafting, silent = Watched(model), Watched(model, is_silent=True)
        stats = run_all(networks.target, drafting, REQUESTS)
        run_all(networks.target, silent, REQUESTS)
        assert drafting.states.keys() == silent.states.keys()
        for i, request in enumerate(REQUESTS):
            found, expected = drafting.states[i], silent.states[i]
            assert min(found) == len(request.token_ids)
            assert found.keys() <= expected.keys()  # one token at a time, each length is met
            for length in found:
                assert found[length] == expected[length], f"other K/V in the first {length}"
            speculation = stats[i].speculation
            assert 0 < speculation.num_accepted < speculation.num_drafted


def test_draft_caches_are_those_of_an_engine_that_never_drafts(networks: Networks) -> None:
    compare(networks)


@pytest.mark.parametrize("seed", range(3))
def test_a_network_that_is_told_late_has_the_same_caches(networks: Networks, seed: int) -> None:
    """The controller turns it on and off as random costs will have it."""
    steps = np.random.default_rng(seed).exponential(size=4)
    for model in networks.models.values():
        drafting, silent = Watched(model), Watched(model, is_silent=True)
        ticks = count()
        curve = CostCurve(dict(zip((1, 2, 4, 8), np.cumsum(steps).tolist(), strict=True)))
        controller = Controller(
            [drafting],
            CostModel(curve, {"dflash": CostCurve({1: 0.1, 4: 0.2})}),
            clock=lambda ticks=ticks: next(ticks) * 1e-3,  # type: ignore[misc]
        )
        run_all(networks.target, controller, REQUESTS)
        run_all(networks.target, silent, REQUESTS)
        assert drafting.states
        for i, found in drafting.states.items():
            assert found.items() <= silent.states[i].items()


def test_a_network_that_is_told_late_fills_its_pages_with_the_targets(networks: Networks) -> None:
    """So what is kept of a prompt is found again, whether or not the network ever drafted."""
    dear = CostModel(CostCurve({1: 1.0}), {"dflash": CostCurve({1: 9.0})})
    for model in networks.models.values():
        drafter = Controller([DFlashDrafter(model)], dear, clock=lambda: 0.0)
        engine = Engine(networks.target, max_cache_bytes=CACHE_BYTES, drafter=drafter)
        engine.keep_prefixes(CACHE_BYTES // 2)
        answers: list[list[int | None]] = []
        for request in (REQUESTS[1], REQUESTS[1]):
            engine.add(request)
            events = []
            while engine.has_work:
                events += engine.step()
            answers.append([event.token_id for event in events])
        assert answers[0] == answers[1]
        assert events[-1].stats is not None
        assert events[-1].stats.cached_tokens == 128  # of 130


def test_a_network_that_gains_nothing_is_kept_for_few_requests(networks: Networks) -> None:
    """Requests without its K/V draft with the rest, write the same, and leave nothing behind."""
    costs = CostModel(CostCurve({1: 1.0, 16: 1.1}), {"dflash": CostCurve({1: 90.0})})
    model = next(iter(networks.models.values()))
    controller = Controller([NgramDrafter(5), DFlashDrafter(model)], costs, clock=lambda: 0.0)
    plain = histories(networks.target, REQUESTS)
    controller._switch = Switch(runs=False, is_on=False, patience=256)
    found = histories(networks.target, REQUESTS, controller)
    for one, other in zip(found, plain, strict=True):
        assert_identical(one, other)
    engine = Engine(networks.target, max_cache_bytes=CACHE_BYTES, drafter=controller)
    for request in (*REQUESTS, replace(REQUESTS[0], draft=False)):
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert not controller._habits._asleep


original_propose = DFlashDrafter.propose


def commits_the_block(self: DFlashDrafter, tasks: Sequence[DraftTask]) -> list[Proposal]:
    """All rows of a block stay."""
    found = original_propose(self, tasks)
    for task in tasks:
        assert task.cache is not None
        task.cache.commit(range(self.block_size))
    return found


def keeps_the_anchor(self: DFlashDrafter, tasks: Sequence[DraftTask]) -> list[Proposal]:
    """The anchor's row of a block stays in place of its feature."""
    found = original_propose(self, tasks)
    for task in tasks:
        assert task.cache is not None
        task.cache.commit(range(1))
    return found


def without_the_anchor(
    self: DFlashDrafter, rows: Sequence[CommittedRows]
) -> list[tuple[SequenceCache, NDArray[np.float32]]]:
    """What `keeps_the_anchor` leaves to inject."""
    parts = []
    for part in rows:
        assert part.cache is not None
        assert part.features is not None
        known = part.cache.length - part.start
        pieces = range(known, len(part.features), self._model.max_rows)
        parts += [(part.cache, part.features[i : i + self._model.max_rows]) for i in pieces]
    return parts


def features_of_a_rejected_row(
    result: PassResult, first: int, rows: Sequence[int]
) -> NDArray[np.float32] | None:
    """The row after the last accepted one enters in its place."""
    assert result.features is not None
    is_round = 1 < len(rows) < 4 and first + len(rows) < len(result.features)
    return features_of(result, first, [*rows[:-1], rows[-1] + 1] if is_round else rows)


MUTANTS: dict[str, list[tuple[object, str, object]]] = {
    "block rows committed": [(DFlashDrafter, "propose", commits_the_block)],
    "anchor row of the block committed": [
        (DFlashDrafter, "propose", keeps_the_anchor),
        (DFlashDrafter, "_pieces", without_the_anchor),
    ],
    "features of rejected rows": [(engine_module, "features_of", features_of_a_rejected_row)],
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_dies(networks: Networks, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for owner, attribute, mutant in MUTANTS[name]:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises((AssertionError, ValueError)):
        compare(networks)


# --- memory


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_a_cancelled_request_gives_its_draft_cache_back(
    networks: Networks, name: str, num_steps: int
) -> None:
    drafting = DFlashDrafter(networks.models[name])
    one, plain = (
        Engine(networks.target, max_cache_bytes=CACHE_BYTES, drafter=drafter)
        for drafter in (drafting, None)
    )
    ids = [one.add(request) for request in REQUESTS]
    plain.add(REQUESTS[0])
    for _ in range(num_steps):
        one.step()
        plain.step()
    assert (one.used_cache_bytes > plain.used_cache_bytes) == (num_steps > 0)
    for request_id in ids:
        one.cancel(request_id)
    assert one.used_cache_bytes == 0


def needed_bytes(networks: Networks, drafter: DFlashDrafter, num_tokens: int) -> int:
    """What one request is promised: the target's K/V, and the drafter's up to a block's end."""
    layout = networks.target.new_cache_pool(0).layout
    draft = drafter.cache_layout
    return layout.max_bytes(num_tokens, rows_per_pass=MAX_ROWS) + draft.max_bytes(
        num_tokens + drafter.block_size - 1, rows_per_pass=MAX_ROWS
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_admission_counts_the_drafters_cache(networks: Networks, name: str) -> None:
    drafter = DFlashDrafter(networks.models[name])
    request = coin_request(60, 20, seed=4)
    needed = needed_bytes(networks, drafter, 80)
    small = Engine(networks.target, max_cache_bytes=needed - 1, drafter=drafter)
    with pytest.raises(CapacityError, match=f"80 tokens need {needed} bytes .* is {needed - 1}"):
        small.add(request)
    for engine in (small, Engine(networks.target, max_cache_bytes=needed - 1)):
        engine.add(replace(request, draft=False))  # without drafts it fits
    assert len(small.score(request.token_ids)) == 59
    one = Engine(networks.target, max_cache_bytes=2 * needed - 1, drafter=drafter)
    for _ in range(2):
        one.add(request)
    one.step()
    assert (one.num_running, one.num_waiting) == (1, 1)
    while one.has_work:
        one.step()
        assert one.used_cache_bytes <= needed
    assert one.used_cache_bytes == 0


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=12, deadline=None)
@given(num_prompt=st.integers(1, 200), max_tokens=st.integers(1, 40), seed=st.integers(0, 9))
def test_what_is_promised_is_enough(
    networks: Networks, name: str, num_prompt: int, max_tokens: int, seed: int
) -> None:
    drafter = DFlashDrafter(networks.models[name])
    needed = needed_bytes(networks, drafter, num_prompt + max_tokens)
    one = Engine(networks.target, max_cache_bytes=needed, drafter=drafter)
    one.add(coin_request(num_prompt, max_tokens, seed))
    while one.has_work:
        one.step()
        assert one.used_cache_bytes <= needed
    assert one.used_cache_bytes == 0
