"""The cache rule of a drafter: its K/V are those of verified tokens, and of nothing else.

Here by hand, in any order of calls; what the engine does is in `test_draft_cache_engine`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.errors import CapacityError
from blockdraft.kv_cache import PAGE_POSITIONS, KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.drafter import DrafterModel
from blockdraft.ops.batch import Batch
from blockdraft.speculative import CommittedRows, DFlashDrafter
from tests.native_dflash import (
    NETWORKS,
    committed,
    features_of_run,
    filled,
    load_networks,
    load_tapped,
    task_of,
)

TinyModel = Callable[..., Path]

MAX_ROWS = 48
CACHE_BYTES = 64 << 20
WINDOWED = ("dflash, window", "dflash2, window")


@pytest.fixture(scope="module")
def models(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DrafterModel]:
    target = load_tapped(tiny_model("llama", "Q8_0", layers=5), max_rows=MAX_ROWS)
    return load_networks(NETWORKS, tmp_path_factory.mktemp("drafters"), target)


# --- any order of calls


@dataclass
class Tracked:
    """A cache that lives through everything, and the features that were committed to it."""

    cache: SequenceCache
    features: list[NDArray[np.float32]] = field(default_factory=list)

    def straight(self, drafter: DFlashDrafter) -> SequenceCache:
        """A new cache that these features were injected into, all at once."""
        cache = SequenceCache(KVPool(drafter.cache_layout, CACHE_BYTES))
        if self.features:
            drafter.observe([committed(cache, np.array(self.features))])
        return cache


def write_uncommitted(model: DrafterModel, cache: SequenceCache, rows: NDArray[np.float32]) -> None:
    """Leave rows at and after the anchor, as a round leaves those of rejected drafts."""
    cache.reserve(len(rows))
    model.features[: len(rows)] = rows
    part = RowSlice(cache, np.zeros(len(rows), np.int32), 0)
    model.inject(BatchBuilder(model.max_rows).build([part]))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["propose", "commit", "commit", "reject", "roll back", "release"]),
        st.integers(0, 2),
        st.integers(1, 110),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATIONS)
def test_pages_are_those_of_injecting_alone(
    models: dict[str, DrafterModel], name: str, operations: list[tuple[str, int, int]]
) -> None:
    model = models[name]
    drafter = DFlashDrafter(model)
    pool = KVPool(drafter.cache_layout, CACHE_BYTES)
    sequences = [Tracked(SequenceCache(pool)) for _ in range(3)]
    coming = iter(features_of_run(14 * 110, seed=len(operations)))
    for kind, which, count in operations:
        one = sequences[which]
        if kind == "propose":
            some = sequences[: which + 1]
            found = drafter.propose([task_of(each.cache) for each in some])
            assert found == drafter.propose([task_of(each.straight(drafter)) for each in some])
        elif kind == "commit":
            rows = [next(coming) for _ in range(count)]
            drafter.observe([committed(one.cache, np.array(rows))])
            one.features += rows
        elif kind == "reject":
            write_uncommitted(model, one.cache, 50 * features_of_run(min(count, MAX_ROWS), 7))
        elif kind == "roll back":
            roll_back(one, max(0, one.cache.length - count % 20))
        else:
            one.cache.release()
            one.features = []
        for each in sequences:
            assert each.cache.length == len(each.features)
            assert each.cache.state_hash() == each.straight(drafter).state_hash()
    for each in sequences:
        each.cache.release()
    assert pool.used_bytes == 0


def roll_back(one: Tracked, length: int) -> None:
    try:
        one.cache.rollback(length)
    except CapacityError:  # only below an earlier one, where the window has passed
        assert length > 9
    else:
        del one.features[length:]


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=10, deadline=None)
@given(num_rows=st.integers(0, 130), num_after=st.integers(1, MAX_ROWS), seed=st.integers(1, 99))
def test_features_at_or_after_the_anchor_change_no_draft(
    models: dict[str, DrafterModel], name: str, num_rows: int, num_after: int, seed: int
) -> None:
    model = models[name]
    drafter = DFlashDrafter(model)
    cache, params = filled(drafter, num_rows), SamplingParams(temperature=1.0, seed=seed)
    (before,) = drafter.propose([task_of(cache, params=params)])
    for scale in (1, 1000):
        write_uncommitted(model, cache, scale * features_of_run(num_after, seed))
        assert drafter.propose([task_of(cache, params=params)]) == [before]


@pytest.mark.parametrize("name", NETWORKS)
def test_features_before_the_anchor_change_drafts_as_far_as_a_window_sees(
    models: dict[str, DrafterModel], name: str
) -> None:
    """A row at position p sees p - window + 1 on; the anchor stands at 100."""
    drafter = DFlashDrafter(models[name])
    window = drafter.cache_layout.window
    sees_all = bool(drafter.cache_layout.full_layers)
    features = features_of_run(100)

    def probs(changed: int | None) -> object:
        rows = features.copy()
        if changed is not None:
            rows[changed] = -3 * rows[changed]
        cache = SequenceCache(KVPool(drafter.cache_layout, CACHE_BYTES))
        drafter.observe([committed(cache, rows)])
        return drafter.propose([task_of(cache)])[0].probs

    oldest = 0 if sees_all or window is None else 100 - window + 1
    assert probs(99) != probs(None)
    assert probs(oldest) != probs(None)
    if oldest:
        assert probs(oldest - 1) == probs(None)


# --- long prompts and windows


def count_injected(monkeypatch: pytest.MonkeyPatch, model: DrafterModel) -> list[int]:
    """Rows of each injection from now on."""
    rows: list[int] = []
    original = model.inject

    def inject(batch: Batch) -> None:
        rows.append(batch.num_rows)
        original(batch)

    monkeypatch.setattr(model, "inject", inject)
    return rows


@pytest.mark.parametrize("chunk", [1, 7, 48, 64, 400])
@pytest.mark.parametrize("num_prompt", [5, 64, 300, 400])
@pytest.mark.parametrize("name", [*WINDOWED, "dflash", "dflash, mixed"])
def test_only_the_window_of_a_prompt_is_injected(
    models: dict[str, DrafterModel],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    num_prompt: int,
    chunk: int,
) -> None:
    check_prompt(models[name], monkeypatch, name, num_prompt=num_prompt, chunk=chunk)


def check_prompt(
    model: DrafterModel,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    num_prompt: int,
    chunk: int,
) -> None:
    drafter = DFlashDrafter(model)
    layout = drafter.cache_layout
    features = features_of_run(num_prompt)
    whole = filled(drafter, num_prompt)
    pool = KVPool(layout, CACHE_BYTES)
    cache = SequenceCache(pool)
    rows = count_injected(monkeypatch, model)
    for start in range(0, num_prompt, chunk):
        piece = features[start : start + chunk]
        part = committed(cache, piece, start=start, prompt_length=num_prompt)
        drafter.observe([part])
        assert cache.length == start + len(piece)
    needed = 0 if layout.full_layers or layout.window is None else num_prompt - layout.window + 1
    first = max(0, needed) // PAGE_POSITIONS * PAGE_POSITIONS
    assert sum(rows) == num_prompt - first
    if name in WINDOWED:
        num_pages = -(-(num_prompt - first) // PAGE_POSITIONS)
        assert pool.used_bytes == num_pages * layout.window_page_bytes
    assert cache.state_hash() == whole.state_hash()
    for _ in range(3):
        assert drafter.propose([task_of(cache)]) == drafter.propose([task_of(whole)])
        for each in (cache, whole):
            part = committed(each, features_of_run(5, seed=each.length), prompt_length=num_prompt)
            drafter.observe([part])
        assert cache.state_hash() == whole.state_hash()


def test_a_windowed_cache_frees_what_its_window_has_passed(models: dict[str, DrafterModel]) -> None:
    drafter = DFlashDrafter(models["dflash, window"])
    pool = KVPool(drafter.cache_layout, CACHE_BYTES)
    cache = SequenceCache(pool)
    for _ in range(40):
        drafter.observe([committed(cache, features_of_run(20))])
        drafter.propose([task_of(cache)])
        # The window and what a rollback may take back; both may begin and end inside a page.
        assert pool.used_bytes <= 4 * drafter.cache_layout.window_page_bytes
    assert cache.length == 800


original_first = DFlashDrafter._first_needed


def forgets_a_page(self: DFlashDrafter, part: CommittedRows) -> int:
    """A prompt is injected from one page later on."""
    needed = original_first(self, part)
    return needed + PAGE_POSITIONS if needed else 0


def test_a_window_cut_too_short_is_noticed(
    models: dict[str, DrafterModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DFlashDrafter, "_first_needed", forgets_a_page)
    with pytest.raises((AssertionError, CapacityError)):
        check_prompt(models[WINDOWED[0]], monkeypatch, WINDOWED[0], num_prompt=330, chunk=48)
