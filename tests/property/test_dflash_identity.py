"""Real DFlash networks are invisible: tokens, K/V and logits are those of plain decoding.

The plain side runs on a target without taps, so that giving features is invisible, too.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.target import TargetModel, load_target
from blockdraft.speculative import DFlashDrafter, SpeculationStats
from tests.marks import with_slow
from tests.native_dflash import TOSSED, load_networks, load_tapped, network
from tests.rounds import History, assert_identical, histories

TinyModel = Callable[..., Path]

# A window of 8 passes by inside a block; pages end inside blocks in both.
TARGETS = {"llama": ("Q4_0", 5), "gemma3": ("Q8_0", 6)}
NETWORKS = {
    "dflash": network(has_coin_head=True, block_size=8),
    "dflash, window": network(
        has_coin_head=True, block_size=8, kinds=("sliding", "sliding"), window=10, is_causal=True
    ),
    "dflash2": network(
        has_coin_head=True,
        block_size=8,
        kinds=("sliding", "full"),
        window=12,
        is_dflash2=True,
        top_k=9,
    ),
    "dflash2, any token": network(block_size=8, is_dflash2=True, is_causal=False, top_k=64),
}
NUM_TOKENS = 18


class Pair:
    """A target with and without taps, its networks, and what plain decoding gives."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.target = load_target(path, num_threads=1, max_rows=64)
        self.tapped = {rows: load_tapped(path, max_rows=rows) for rows in (64, 17)}
        self._models: dict[int, dict[str, DrafterModel]] = {
            rows: load_networks(NETWORKS, folder / str(rows), target)
            for rows, target in self.tapped.items()
        }
        self._histories: dict[Request, History] = {}

    def plain(self, request: Request) -> History:
        if request not in self._histories:
            self._histories[request] = histories(self.target, [request])[0]
        return self._histories[request]

    def check(
        self,
        name: str,
        num_drafts: int,
        requests: list[Request],
        *,
        max_rows: int = 64,
        tree_nodes: int = 0,
    ) -> list[SpeculationStats | None]:
        """Fail unless each request is as alone without drafts; returns what drafting gained."""
        target: TargetModel = self.tapped[max_rows]
        model = self._models[max_rows][name]
        drafter = DFlashDrafter(model, num_drafts, tree_nodes=tree_nodes)
        gained = []
        for found, request in zip(histories(target, requests, drafter), requests, strict=True):
            assert_identical(found, self.plain(request))
            assert found.last is not None
            assert found.last.stats is not None
            gained.append(found.last.stats.speculation)
        return gained


@pytest.fixture(scope="module")
def pairs(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("drafters")
    return {
        arch: Pair(tiny_model(arch, tensor_type, layers=layers), folder / arch)
        for arch, (tensor_type, layers) in TARGETS.items()
    }


def request_of(
    temperature: float, *, seed: int, num_prompt: int = 60, coins: bool = True
) -> Request:
    tokens = np.random.default_rng(seed).integers(5, 200, num_prompt)
    params = replace(TOSSED, temperature=temperature, seed=seed)
    if not coins:
        params = replace(params, frequency_penalty=0.0, logit_bias=())
    return Request(tuple(tokens.tolist()), params, NUM_TOKENS)


@pytest.mark.parametrize("num_drafts", with_slow([1, 3, 7], {1, 7}))
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("arch", TARGETS)
def test_every_network_block_and_temperature(
    pairs: dict[str, Pair], arch: str, name: str, num_drafts: int
) -> None:
    num_accepted = 0
    for temperature in (0.0, 0.7, 1.0, 3.0):
        request = request_of(temperature, seed=num_drafts)
        (stats,) = pairs[arch].check(name, num_drafts, [request])
        assert stats is not None
        assert stats.num_tokens == NUM_TOKENS - 1
        assert stats.block_size == num_drafts + 1
        assert stats.num_accepted < stats.num_drafted
        num_accepted += stats.num_accepted
    if name != "dflash2, any token":
        assert num_accepted > NUM_TOKENS // 2


@pytest.mark.parametrize("arch", TARGETS)
def test_a_walk_draws_what_the_target_draws(pairs: dict[str, Pair], arch: str) -> None:
    """Hot enough, the noise decides alone; it is the target's own in every position."""
    request = request_of(40.0, seed=1, coins=False)
    (stats,) = pairs[arch].check("dflash2, any token", 7, [request])
    assert stats is not None
    # One token in five is a candidate; noise of another kind would be right once in 299.
    assert stats.kept_by_position[0] / stats.proposed_by_position[0] > 0.1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("arch", TARGETS)
def test_trees(pairs: dict[str, Pair], arch: str, name: str) -> None:
    request = request_of(0.0, seed=2)
    (stats,) = pairs[arch].check(name, 5, [request, request], tree_nodes=12)[:1]
    assert stats is not None
    assert stats.block_size == 13
    assert stats.num_drafted > stats.num_rounds  # several nodes, of which a path may stay


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 2.0, 30.0]),
    top_k=st.sampled_from([0, 3, 40]),
    top_p=st.sampled_from([0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    repeat_last_n=st.sampled_from([0, 3, -1]),
    seed=st.integers(0, 2**64 - 1),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    logit_bias=st.sampled_from([(), TOSSED.logit_bias, TOSSED.logit_bias]),
)
REQUESTS = st.builds(
    Request,
    st.tuples(st.integers(1, 90), st.integers(0, 9)).map(
        lambda pair: tuple(np.random.default_rng(pair[1]).integers(5, 200, pair[0]).tolist())
    ),
    PARAMS,
    st.integers(1, 24),
    choice=st.integers(0, 2),
    draft=st.sampled_from([True, True, True, False]),
)


@settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    arch=st.sampled_from([*TARGETS]),
    name=st.sampled_from([*NETWORKS]),
    num_drafts=st.integers(1, 7),
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    stop_at=st.integers(0, 24),
    rows_and_nodes=st.sampled_from([(64, 0), (17, 0), (64, 9), (17, 9)]),
)
def test_any_requests_together(
    pairs: dict[str, Pair],
    arch: str,
    name: str,
    num_drafts: int,
    requests: list[Request],
    stop_at: int,
    rows_and_nodes: tuple[int, int],
) -> None:
    """Prompts are cut where a pass is full; the first request meets a stop token."""
    max_rows, tree_nodes = rows_and_nodes
    pair = pairs[arch]
    written = pair.plain(requests[0]).output
    if stop_at < len(written):
        stops = frozenset({written[stop_at]})
        requests = [replace(requests[0], stop_token_ids=stops), *requests[1:]]
    gained = pair.check(name, num_drafts, requests, max_rows=max_rows, tree_nodes=tree_nodes)
    assert [stats is not None for stats in gained] == [request.draft for request in requests]
