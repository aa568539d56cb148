import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.engine import Engine, Request
from blockdraft.engine.prefix_cache import PrefixCache
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from tests.fake_target import FakeSampler, FakeTarget
from tests.unit.test_engine import PARAMS, run_all

FULL = KVLayout(1, 16, (0,))
BOTH = KVLayout(1, 16, (0,), (1,), window=100, largest_block=8)


def tree_of(layout: KVLayout, num_pages: int) -> PrefixCache:
    page_bytes = layout.full_page_bytes + layout.window_page_bytes
    return PrefixCache([KVPool(layout, 50 * page_bytes)], num_pages * page_bytes)


def ids_of(*pages: int) -> NDArray[np.int32]:
    """64 tokens for each page, and one after them."""
    return np.repeat(np.array([*pages, 0], np.int32), [64] * len(pages) + [1])


def keep(tree: PrefixCache, *pages: int) -> None:
    """What a request that ended with these pages leaves behind."""
    cache = SequenceCache(tree._pools[0])
    tree.attach(ids_of(*pages), [cache])
    while cache.length < 64 * len(pages):
        cache.reserve(8)
        cache.commit(range(8))
        tree.keep(ids_of(*pages), [cache])
    cache.release()


def found(tree: PrefixCache, *pages: int) -> int:
    """Pages that a request would find."""
    cache = SequenceCache(tree._pools[0])
    num_positions = tree.attach(ids_of(*pages), [cache])
    cache.release()
    return num_positions // 64


def test_common_pages_are_kept_once() -> None:
    tree = tree_of(FULL, 10)
    keep(tree, 1, 2, 3)
    keep(tree, 1, 2, 4, 5)
    assert tree.held_bytes == tree._pools[0].used_bytes == 5 * FULL.full_page_bytes
    assert [found(tree, 1, 2, 3), found(tree, 1, 2, 4, 5), found(tree, 1, 3)] == [3, 4, 1]


def test_one_token_is_left_to_read() -> None:
    tree = tree_of(FULL, 10)
    keep(tree, 1, 2)
    assert tree.attach(ids_of(1, 2)[:128], [SequenceCache(tree._pools[0])]) == 64


def test_the_least_recently_used_goes_first() -> None:
    tree = tree_of(FULL, 2)
    keep(tree, 1)
    keep(tree, 2)
    assert found(tree, 1) == 1
    keep(tree, 3)
    assert [found(tree, page) for page in (1, 2, 3)] == [1, 0, 1]


def test_the_end_of_a_path_goes_before_its_beginning() -> None:
    tree = tree_of(FULL, 3)
    keep(tree, 1, 2, 3)
    keep(tree, 9)
    assert [found(tree, 1, 2, 3), found(tree, 9)] == [2, 1]


def test_windowed_pages_go_first_where_nobody_looks_back_to_them() -> None:
    tree = tree_of(BOTH, 20)
    keep(tree, 1, 2, 3, 4, 5)
    budget = tree._pools[0].budget
    out_of_sight = 3 * BOTH.window_page_bytes  # a window of 100 after page 5 sees pages 4 and 5
    tree.reclaim(budget.available_bytes + out_of_sight)
    assert found(tree, 1, 2, 3, 4, 5) == 5
    assert found(tree, 1, 2) == 0  # what it would look back to is gone
    tree.reclaim(budget.available_bytes + 1)
    assert found(tree, 1, 2, 3, 4, 5) < 5


def test_pages_that_others_hold_outlive_the_tree() -> None:
    tree = tree_of(FULL, 5)
    keep(tree, 1, 2)
    pool, cache = tree._pools[0], SequenceCache(tree._pools[0])
    tree.attach(ids_of(1, 2), [cache])
    tree.clear()
    assert (tree.held_bytes, pool.used_bytes) == (0, 2 * FULL.full_page_bytes)
    cache.release()
    assert pool.used_bytes == 0


def test_a_full_memory_takes_what_is_kept() -> None:
    target = FakeTarget()
    budget = target.layout.max_bytes(200, rows_per_pass=16)
    engine = Engine(target, max_cache_bytes=budget, sampler=FakeSampler())
    engine.keep_prefixes(budget)
    for first in range(4):
        engine.add(Request((first,) * 190, PARAMS, 10))
    assert len([event for event in run_all(engine) if event.finish_reason]) == 4
    assert 0 < engine.kept_cache_bytes <= engine.used_cache_bytes <= budget
    engine.keep_prefixes(0)
    assert (engine.kept_cache_bytes, engine.used_cache_bytes) == (0, 0)


@pytest.mark.parametrize("is_kept", [False, True])
def test_stats_tell_what_was_known(is_kept: bool) -> None:
    target = FakeTarget()
    engine = Engine(target, max_cache_bytes=1 << 24, sampler=FakeSampler())
    engine.keep_prefixes((1 << 22) * is_kept)
    tokens: tuple[int, ...] = (3,) * 100
    answers = []
    for _ in range(2):
        engine.add(Request(tokens, PARAMS, 40))
        events = run_all(engine)
        tokens = (*tokens, *(event.token_id or 0 for event in events), 4, 4)
        answers.append(events[-1].stats)
    known = [(one.cached_tokens, one.prompt_tokens) for one in answers if one is not None]
    assert known == [(0, 100), (128 * is_kept, 142)]
    assert sum(target.pass_rows) == 100 + 39 + 142 + 39 - 128 * is_kept
