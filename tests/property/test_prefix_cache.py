"""What is found in the prefix cache is what would have been computed, byte for byte.

Tokens, K/V hashes and logits of requests that begin alike, with pages found, given up and shared,
against each request alone on a target without taps, drafter and cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request, scheduler
from blockdraft.engine.prefix_cache import PrefixCache
from blockdraft.engine.sequence import SequenceState
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.small import load_small
from blockdraft.models.target import TargetModel, load_target
from blockdraft.session.draft_picks import SampledDrafts
from blockdraft.speculative import (
    AutoregressiveDrafter,
    Controller,
    DFlashDrafter,
    Drafter,
    NgramDrafter,
)
from blockdraft.speculative.costs import CostCurve, CostModel
from blockdraft.weights.gguf import GGUFFile
from tests.fake_target import write_cache_slots
from tests.native_dflash import TOSSED, load_networks, load_tapped, network
from tests.property.test_draft_cache_engine import Watched
from tests.rounds import CACHE_BYTES, History, Memory, assert_identical, histories

TinyModel = Callable[..., Path]

MAX_ROWS = 64
PAGE = 64
TARGETS = {"llama": ("Q4_0", {"layers": 5}), "gemma3": ("Q8_0", {"window": 70})}
NETWORKS = {
    "dflash": network(has_coin_head=True, block_size=8),
    "dflash, window": network(
        has_coin_head=True, block_size=8, kinds=("sliding", "sliding"), window=75, is_causal=True
    ),
    "dflash2, mixed": network(
        has_coin_head=True, block_size=8, kinds=("sliding", "full"), window=12, is_dflash2=True
    ),
}
DRAFTERS = ("none", "ngram", "draft-simple", "auto", *NETWORKS)


class Case:
    """A target with and without taps, its networks, and what requests get alone."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.plain: TargetModel = load_target(path, num_threads=1, max_rows=MAX_ROWS)
        self.tapped = load_tapped(path, max_rows=MAX_ROWS)
        self.networks: dict[str, DrafterModel] = load_networks(NETWORKS, folder, self.tapped)
        with GGUFFile.open(path) as file:
            self._same = load_small(file, self.plain, target_file=file)
        self._alone: dict[Request, History] = {}

    def drafter(self, name: str) -> Drafter | None:
        if name in NETWORKS:
            return self._network(name)
        if name == "draft-simple":
            return AutoregressiveDrafter(self._same, 4, pick=SampledDrafts())
        if name == "auto":  # a network that pays for some rounds
            costs = CostModel(CostCurve({1: 1e-3, 8: 2e-3}), {"dflash": CostCurve({1: 1e-4})})
            return Controller([NgramDrafter(5), self._network("dflash")], costs)
        return NgramDrafter(5) if name == "ngram" else None

    def _network(self, name: str) -> DFlashDrafter:
        return DFlashDrafter(self.networks[name])

    def target(self, name: str) -> TargetModel:
        return self.tapped if name in {"auto", *NETWORKS} else self.plain

    def history(self, request: Request) -> History:
        if request not in self._alone:
            self._alone[request] = histories(self.plain, [request])[0]
        return self._alone[request]

    def memory(self, name: str, longest: int, pages: tuple[int, int], max_running: int) -> Memory:
        """Room for the longest request and some spare pages, and how many of all may be kept."""
        drafter = self.drafter(name)
        layouts = [self.plain.new_cache_pool(0).layout]
        if drafter is not None and drafter.cache_layout is not None:
            layouts.append(drafter.cache_layout)
        page = sum(layout.full_page_bytes + layout.window_page_bytes for layout in layouts)
        needed = sum(layout.max_bytes(longest + 7, rows_per_pass=MAX_ROWS) for layout in layouts)
        return Memory(needed + pages[0] * page, pages[1] * page, max_running)


@pytest.fixture(scope="module")
def cases(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {
        arch: Case(tiny_model(arch, tensor_type, **options), tmp_path_factory.mktemp(arch))
        for arch, (tensor_type, options) in TARGETS.items()
    }


@pytest.fixture
def small_promises() -> Iterator[None]:
    """Requests are promised memory for one more token only, so that they run out of it often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "GROWTH", 1)
        yield


def prompt_of(stream: int, shared: int, tail: int) -> tuple[int, ...]:
    """Tokens that begin like others of ``stream``, and go on in their own way."""
    common = np.random.default_rng(stream).integers(5, 200, 400)[:shared]
    own = np.random.default_rng(1000 + tail).integers(5, 200, tail)
    return (*common.tolist(), *own.tolist())


PARAMS = st.sampled_from(
    [
        SamplingParams(temperature=0.0, seed=0),
        SamplingParams(temperature=1.0, seed=4, repeat_penalty=1.2),
        TOSSED,
        replace(TOSSED, seed=9, repeat_last_n=5),
    ]
)
REQUESTS = st.builds(
    Request,
    st.builds(prompt_of, st.integers(0, 1), st.integers(0, 260), st.integers(1, 9)),
    PARAMS,
    st.integers(1, 40),
    draft=st.sampled_from([True, True, True, False]),
)


@pytest.mark.usefixtures("small_promises")
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    arch=st.sampled_from([*TARGETS]),
    name=st.sampled_from(DRAFTERS),
    requests=st.lists(REQUESTS, min_size=2, max_size=5),
    pages=st.tuples(st.integers(0, 8), st.integers(1, 14)),
    max_running=st.integers(1, 4),
    cancel=st.tuples(st.integers(0, 4), st.integers(1, 12)),
)
def test_any_requests_in_little_memory(
    cases: dict[str, Case],
    arch: str,
    name: str,
    requests: list[Request],
    pages: tuple[int, int],
    max_running: int,
    cancel: tuple[int, int],
) -> None:
    """Of ``cancel`` the request of that place is cancelled after so many steps."""
    case = cases[arch]
    longest = max(len(request.token_ids) + request.max_tokens for request in requests)
    memory = case.memory(name, longest, pages, max_running)
    found = histories(
        case.target(name), requests, case.drafter(name), memory=memory, cancels=dict([cancel])
    )
    for place, (history, request) in enumerate(zip(found, requests, strict=True)):
        alone = case.history(replace(request, draft=True))
        if place == cancel[0] and (history.last is None or history.last.finish_reason is None):
            assert history.events == alone.events[: len(history.events)]
        else:
            assert_identical(history, alone)


@pytest.mark.parametrize("prefix_bytes", [0, 1 << 20], ids=["nothing-kept", "kept"])
@pytest.mark.parametrize("name", ["none", "draft-simple", "dflash, window"])
def test_a_request_that_was_sent_back_goes_on_as_if_nothing_had_happened(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch, name: str, prefix_bytes: int
) -> None:
    monkeypatch.setattr(scheduler, "GROWTH", 1)
    case = cases["llama" if name == "none" else "gemma3"]
    params = replace(TOSSED, repeat_penalty=1.1)
    requests = [Request(prompt_of(4, 50, 1 + i), params, 90 - 20 * i) for i in range(3)]
    sent_back: list[int] = []
    preempt = SequenceState.preempt

    def note(state: SequenceState) -> None:
        sent_back.append(state.request_id)
        preempt(state)

    monkeypatch.setattr(SequenceState, "preempt", note)
    memory = replace(case.memory(name, 141, (0, 0), 3), prefix_bytes=prefix_bytes)
    found = histories(case.target(name), requests, case.drafter(name), memory=memory)
    for history, request in zip(found, requests, strict=True):
        assert_identical(history, case.history(request))
    assert sent_back
    assert 0 not in sent_back  # the first one always goes on


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("llama", "none"),
        ("llama", "dflash"),
        ("gemma3", "draft-simple"),
        ("gemma3", "dflash, window"),
        ("gemma3", "dflash2, mixed"),
    ],
)
def test_a_hit_reads_the_rest_only_and_drafts_as_well(
    cases: dict[str, Case], arch: str, name: str
) -> None:
    case = cases[arch]
    requests = [
        Request(prompt_of(3, shared, tail), TOSSED, 30)
        for shared, tail in ((0, 9), (150, 3), (150, 40), (192, 9), (192, 9))
    ]
    cold, warm = (
        histories(
            case.target(name),
            requests,
            case.drafter(name),
            memory=Memory(prefix_bytes=prefix_bytes, max_running=1),
        )
        for prefix_bytes in (0, 64 << 20)
    )
    for found, plain, request in zip(warm, cold, requests, strict=True):
        assert_identical(found, case.history(request))
        assert found.last is not None
        assert plain.last is not None
        assert found.last.stats is not None
        assert plain.last.stats is not None
        assert plain.last.stats.cached_tokens == 0
        a, b = found.last.stats.speculation, plain.last.stats.speculation
        if a is not None and b is not None:
            assert (a.num_rounds, a.num_accepted) == (b.num_rounds, b.num_accepted)
    cached = [one.last.stats.cached_tokens for one in warm if one.last and one.last.stats]
    assert cached == [0, 0, 128, 128, 192]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_draft_cache_has_the_bits_of_a_miss(cases: dict[str, Case], name: str) -> None:
    case = cases["llama"]
    requests = [Request(prompt_of(3, shared, 5), TOSSED, 20) for shared in (150, 200, 200)]
    cold, warm = (Watched(case.networks[name]) for _ in range(2))
    histories(case.tapped, requests, cold, memory=Memory(max_running=1))
    found = histories(case.tapped, requests, warm, memory=Memory(CACHE_BYTES, CACHE_BYTES, 1))
    assert [one.last.stats.cached_tokens for one in found if one.last and one.last.stats][2] == 192
    assert warm.states == cold.states
    assert all(len(states) > 2 for states in warm.states.values())


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "none"])
def test_what_was_written_without_drafts_does_not_mislead_a_drafter(
    cases: dict[str, Case], name: str
) -> None:
    case = cases["llama"]
    plain = Request(prompt_of(3, 200, 1), TOSSED, 10, draft=False)
    requests = [plain, replace(plain, draft=True)] * 2
    memory = Memory(prefix_bytes=64 << 20, max_running=1)
    found = histories(case.target(name), requests, case.drafter(name), memory=memory)
    for history in found:
        assert_identical(history, case.history(requests[1]))
    cached = [one.last.stats.cached_tokens for one in found if one.last and one.last.stats]
    # A network's K/V are made of features, which are there only when the target reads; a window of
    # 75 does not look back to the first page.
    reads_tokens = name in ("ngram", "draft-simple")
    expected = 192 if reads_tokens else 64 if name == "dflash, window" else 0
    assert cached == [0, expected, 192, 192]


def test_choices_of_one_prompt_share_its_pages(cases: dict[str, Case]) -> None:
    case = cases["llama"]
    engine = Engine(case.plain, max_cache_bytes=64 << 20)
    engine.keep_prefixes(64 << 20)
    params = SamplingParams(temperature=1.0, seed=1)
    for choice in range(4):
        engine.add(Request(prompt_of(3, 250, 1), params, 6, choice=choice))
    page = case.plain.new_cache_pool(0).layout.full_page_bytes
    cached = {}
    most = 0
    while engine.has_work:
        for event in engine.step():
            if event.stats is not None:
                cached[event.request_id] = event.stats.cached_tokens
        most = max(most, engine.used_cache_bytes)
    assert cached == {0: 0, 1: 192, 2: 192, 3: 192}
    assert most <= (3 + 4 * 2) * page  # three pages in common


# --- the tree by itself, on pages whose contents tell their tokens

LAYOUT = KVLayout(1, 16, (0,), (1,), window=100, largest_block=8)


def written(cache: SequenceCache, tokens: list[int]) -> None:
    """Go on to all of ``tokens``; what is stored depends on all tokens up to it."""
    stored = list(accumulate(tokens, lambda sum_, token: (31 * sum_ + token) % 1999))
    while cache.length < len(tokens):
        num_rows = min(50, len(tokens) - cache.length)
        cache.reserve(num_rows)
        write_cache_slots(cache, LAYOUT, cache.length, stored[cache.length :][:num_rows])
        cache.commit(range(num_rows))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    asks=st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 63), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    kept=st.integers(0, 12),
)
def test_pages_found_hold_what_was_asked_for(
    asks: list[tuple[list[int], int, bool]], kept: int
) -> None:
    page_bytes = LAYOUT.full_page_bytes + LAYOUT.window_page_bytes
    pool = KVPool(LAYOUT, 40 * page_bytes)
    tree = PrefixCache([pool], kept * page_bytes)
    pool.budget.reclaim = tree.reclaim
    running: list[SequenceCache] = []
    for pages, rest, stays in asks:
        tokens = [7 if place < PAGE - 1 else page for page in pages for place in range(PAGE)]
        tokens += [5] * rest
        ids = np.array(tokens, np.int32)
        cache, fresh = SequenceCache(pool), SequenceCache(KVPool(LAYOUT, 40 * page_bytes))
        found = tree.attach(ids, [cache])
        assert found == cache.length <= len(tokens) - 1
        assert found % PAGE == 0
        written(cache, tokens)
        written(fresh, tokens)
        assert cache.state_hash() == fresh.state_hash()
        tree.keep(ids, [cache])
        assert tree.held_bytes <= kept * page_bytes
        running.append(cache)
        if not stays or len(running) > 3:
            running.pop(0).release()
    for cache in running:
        cache.release()
    assert pool.used_bytes == tree.held_bytes
    tree.clear()
    assert (tree.held_bytes, pool.used_bytes, pool.budget.used_bytes) == (0, 0, 0)
