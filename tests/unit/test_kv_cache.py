import numpy as np
import pytest

from blockdraft.errors import CapacityError
from blockdraft.kv_cache import KVLayout, KVPool, MemoryBudget, SequenceCache, page_view
from tests.fake_target import fake_config, read_slots, write_cache_slots

FULL = KVLayout(2, 16, (0, 1))
BOTH = KVLayout(2, 16, (0,), (1, 2), window=40, largest_block=8)


def pool_of(layout: KVLayout, num_pages: int = 64) -> KVPool:
    return KVPool(layout, num_pages * (layout.full_page_bytes + layout.window_page_bytes))


def written_cache(pool: KVPool, token_ids: list[int], *, chunk: int = 1000) -> SequenceCache:
    cache = SequenceCache(pool)
    extend(cache, pool.layout, token_ids, chunk=chunk)
    return cache


def extend(
    cache: SequenceCache, layout: KVLayout, token_ids: list[int], *, chunk: int = 1000
) -> None:
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        cache.reserve(len(part))
        write_cache_slots(cache, layout, cache.length, part)
        cache.commit(range(len(part)))


def test_layout_counts_bytes_per_class() -> None:
    head_bytes = 2 * 64 * 16 * 2
    assert BOTH.full_page_bytes == 1 * 2 * head_bytes
    assert BOTH.window_page_bytes == 2 * 2 * head_bytes
    assert BOTH.bytes_per_token == 3 * 2 * 2 * 16 * 2


def test_layout_from_config_splits_layers_by_window() -> None:
    layout = KVLayout.from_config(fake_config(windowed_layers=(True, False, True), window=7))
    assert (layout.full_layers, layout.windowed_layers, layout.window) == ((1,), (0, 2), 7)


def test_layout_refuses_windowed_layers_without_a_window() -> None:
    with pytest.raises(ValueError, match="1 windowed layers with window None"):
        KVLayout(1, 16, (0,), (1,))


def test_pages_are_aligned_and_apart() -> None:
    cache = SequenceCache(pool_of(BOTH))
    cache.reserve(64 * 20)
    full, window = cache.full_pages(), cache.window_pages()
    assert len(full) == len(window) == 20
    assert not (full % 64).any()
    assert not (window % 64).any()
    assert np.diff(np.sort(full)).min() >= BOTH.full_page_bytes
    assert np.diff(np.sort(window)).min() >= BOTH.window_page_bytes
    assert not page_view(int(full[3]), BOTH.full_page_bytes).any()


@pytest.mark.parametrize(
    ("windowed", "full"), [(False, True), (True, False)], ids=["full-only", "windowed-only"]
)
def test_class_without_layers_has_no_addresses(windowed: bool, full: bool) -> None:
    layout = KVLayout(1, 16, (0,)) if full else KVLayout(1, 16, (), (0,), window=4)
    cache = written_cache(pool_of(layout), [1, 2, 3])
    assert bool(cache.full_pages()[0]) is full
    assert bool(cache.window_pages()[0]) is windowed


def test_reserve_over_budget_names_both_numbers_and_changes_nothing() -> None:
    pool = pool_of(FULL, num_pages=2)
    cache = written_cache(pool, [1] * 70)
    page = FULL.full_page_bytes
    with pytest.raises(CapacityError, match=f"{page} bytes needed, 0 available of {2 * page}"):
        cache.reserve(64)
    assert (cache.num_pages, pool.used_bytes) == (2, 2 * page)


def test_release_frees_all_and_pages_are_reused() -> None:
    pool = pool_of(BOTH, num_pages=3)
    for _ in range(5):
        cache = written_cache(pool, list(range(150)))
        cache.release()
        assert (pool.used_bytes, cache.length, cache.num_pages) == (0, 0, 0)


def test_reserve_inside_the_last_page_takes_none() -> None:
    cache = written_cache(pool_of(FULL), [1, 2, 3])
    cache.reserve(61)
    assert cache.num_pages == 1
    cache.reserve(62)
    assert cache.num_pages == 2


def test_commit_of_scattered_rows_moves_them_together() -> None:
    pool = pool_of(BOTH)
    cache = written_cache(pool, [5] * 60)
    cache.reserve(10)
    write_cache_slots(cache, BOTH, 60, range(20, 30))
    cache.commit([0, 2, 3, 7, 9])
    assert cache.length == 65
    for windowed, pages in ((False, cache.full_pages()), (True, cache.window_pages())):
        kept = read_slots(BOTH, pages, range(60, 65), windowed=windowed)[:, 0]
        assert kept.tolist() == [20, 22, 23, 27, 29]


def test_commit_of_a_prefix_keeps_it_and_forgets_the_rest() -> None:
    pool = pool_of(FULL)
    cache = written_cache(pool, [1, 2])
    cache.reserve(4)
    write_cache_slots(cache, FULL, 2, range(9, 13))
    cache.commit([0, 1])
    assert cache.state_hash() == written_cache(pool, [1, 2, 9, 10]).state_hash()


@pytest.mark.parametrize("rows", [[1, 1], [2, 1], [-1, 0]], ids=str)
def test_commit_refuses_rows_that_do_not_ascend(rows: list[int]) -> None:
    cache = SequenceCache(pool_of(FULL))
    cache.reserve(4)
    with pytest.raises(ValueError, match="not ascending"):
        cache.commit(rows)


def test_commit_refuses_rows_beyond_the_reserved_slots() -> None:
    cache = written_cache(pool_of(FULL), [1] * 63)
    with pytest.raises(ValueError, match="row 1 after 63 of 64 reserved slots"):
        cache.commit([0, 1])


def test_rollback_equals_never_having_written() -> None:
    pool = pool_of(BOTH)
    cache = written_cache(pool, list(range(130)))
    cache.rollback(125)
    extend(cache, BOTH, [7, 8])
    assert cache.state_hash() == written_cache(pool, [*range(125), 7, 8]).state_hash()


def test_rollback_frees_pages_beyond() -> None:
    pool = pool_of(FULL)
    cache = written_cache(pool, [1] * 200)
    cache.rollback(64)
    assert (cache.num_pages, pool.used_bytes) == (1, FULL.full_page_bytes)


@pytest.mark.parametrize("length", [-1, 4])
def test_rollback_refuses_lengths_that_never_were(length: int) -> None:
    cache = written_cache(pool_of(FULL), [1, 2, 3])
    with pytest.raises(ValueError, match=f"rollback to {length} of 3"):
        cache.rollback(length)


@pytest.mark.parametrize(
    ("length", "num_freed"), [(64 + 47, 0), (64 + 48, 1), (128 + 47, 1), (128 + 48, 2)]
)
def test_window_page_goes_past_window_and_largest_block(length: int, num_freed: int) -> None:
    pool = pool_of(BOTH)
    cache = written_cache(pool, [1] * length, chunk=5)
    window = cache.window_pages()
    assert not window[:num_freed].any()
    assert window[num_freed:].all()
    held = len(window) - num_freed
    used = len(window) * BOTH.full_page_bytes + held * BOTH.window_page_bytes
    assert pool.used_bytes == used


def test_rollback_by_the_largest_block_always_works() -> None:
    cache = written_cache(pool_of(BOTH), [1] * (64 + 48))
    cache.rollback(64 + 40)
    assert cache.length == 64 + 40


def test_rollback_behind_the_window_is_refused_with_numbers() -> None:
    cache = written_cache(pool_of(BOTH), [1] * 112)
    with pytest.raises(CapacityError, match="needs keys from 63 on; windowed layers still hold 64"):
        cache.rollback(102)
    assert cache.length == 112


def test_state_hash_does_not_depend_on_pages_or_chunks() -> None:
    pool = pool_of(BOTH)
    token_ids = [i % 40 for i in range(180)]
    other = written_cache(pool, [9] * 70)
    cache = written_cache(pool, token_ids, chunk=7)
    other.release()
    again = written_cache(pool, token_ids, chunk=64)
    assert cache.full_pages().tolist() != again.full_pages().tolist()
    assert cache.state_hash() == again.state_hash()
    assert cache.state_hash(178) == written_cache(pool, token_ids[:178]).state_hash()


@pytest.mark.parametrize("slot", [0, 63, 64, 99])
def test_state_hash_sees_every_position(slot: int) -> None:
    cache = written_cache(pool_of(FULL), [1] * 100)
    before = cache.state_hash()
    write_cache_slots(cache, FULL, slot, [2])
    assert cache.state_hash() != before


def test_state_hash_ignores_what_is_not_committed() -> None:
    cache = written_cache(pool_of(BOTH), [1] * 10)
    before = cache.state_hash()
    cache.reserve(3)
    write_cache_slots(cache, BOTH, 10, [5])
    assert cache.state_hash() == before


def test_state_hash_refuses_more_than_is_committed() -> None:
    with pytest.raises(ValueError, match="hash of 3 of 2"):
        written_cache(pool_of(FULL), [1, 2]).state_hash(3)


def test_max_bytes_bounds_the_window() -> None:
    pages = -(-1000 // 64)
    window_pages = -(-(40 + 8 + 16) // 64) + 1
    expected = pages * BOTH.full_page_bytes + window_pages * BOTH.window_page_bytes
    assert BOTH.max_bytes(1000, rows_per_pass=16) == expected
    assert FULL.max_bytes(65, rows_per_pass=16) == 2 * FULL.full_page_bytes


WINDOWED = KVLayout(2, 16, (), (0, 1), window=40, largest_block=8)


def test_a_skip_takes_no_page_and_hashes_as_if_all_were_written() -> None:
    pool = pool_of(WINDOWED)
    tokens = list(range(1, 1001))
    whole = written_cache(pool_of(WINDOWED), tokens)
    cache = SequenceCache(pool)
    for length in (10, 70, 640, 640):  # piece by piece, as a prompt is read
        cache.skip(length)
        assert (cache.length, pool.used_bytes) == (length, 0)
    extend(cache, WINDOWED, tokens[640:], chunk=90)
    assert cache.state_hash() == whole.state_hash()
    assert np.array_equal(cache.window_pages() != 0, whole.window_pages() != 0)
    cache.release()
    assert (cache.length, cache.num_pages, pool.used_bytes) == (0, 0, 0)
    extend(cache, WINDOWED, tokens)
    assert cache.state_hash() == whole.state_hash()


def test_only_an_empty_windowed_cache_may_skip_and_only_onwards() -> None:
    with pytest.raises(ValueError, match="only an empty, windowed cache may"):
        SequenceCache(pool_of(BOTH)).skip(100)
    with pytest.raises(ValueError, match="only an empty, windowed cache may"):
        written_cache(pool_of(WINDOWED), [1]).skip(100)
    cache = SequenceCache(pool_of(WINDOWED))
    cache.skip(100)
    with pytest.raises(ValueError, match="skip to 99 from 100"):
        cache.skip(99)


def test_what_was_skipped_cannot_be_rolled_back_to() -> None:
    cache = SequenceCache(pool_of(WINDOWED))
    cache.skip(640)
    extend(cache, WINDOWED, list(range(100)))
    cache.rollback(640 + 39)
    with pytest.raises(CapacityError, match="position 678 needs keys from 639 on"):
        cache.rollback(640 + 38)


# --- pages with several holders


def adopted(pool: KVPool, donor: SequenceCache, num_pages: int) -> SequenceCache:
    cache = SequenceCache(pool)
    pages = donor.full_pages()[:num_pages].tolist(), donor.window_pages()[:num_pages].tolist()
    cache.adopt(*pages)
    return cache


def test_adopted_pages_hold_what_their_sequence_wrote() -> None:
    pool = pool_of(BOTH)
    tokens = [i % 50 for i in range(150)]
    donor = written_cache(pool, tokens)
    used_bytes = pool.used_bytes
    cache = adopted(pool, donor, 2)
    assert (cache.length, pool.used_bytes) == (128, used_bytes)
    assert cache.state_hash() == donor.state_hash(128)
    extend(cache, BOTH, tokens[128:])
    assert cache.state_hash() == donor.state_hash()


@pytest.mark.parametrize("is_donor_first", [True, False])
def test_a_page_is_free_once_the_last_holder_gave_it_back(is_donor_first: bool) -> None:
    pool = pool_of(BOTH)
    donor = written_cache(pool, [1] * 150)
    cache = adopted(pool, donor, 2)
    first, last = (donor, cache) if is_donor_first else (cache, donor)
    state = last.state_hash()
    first.release()
    other = written_cache(pool, [9] * 150)  # takes pages that are free
    assert last.state_hash() == state
    last.release()
    other.release()
    assert (pool.used_bytes, pool.budget.used_bytes) == (0, 0)


def test_only_an_empty_cache_adopts() -> None:
    pool = pool_of(FULL)
    donor = written_cache(pool, [1] * 64)
    with pytest.raises(ValueError, match="64 positions are stored"):
        donor.adopt(donor.full_pages().tolist(), [0])


def test_nobody_rolls_back_into_a_page_that_others_hold() -> None:
    pool = pool_of(BOTH)
    donor = written_cache(pool, [1] * 140)
    cache = adopted(pool, donor, 2)
    for holder in (donor, cache):
        with pytest.raises(ValueError, match="rollback to 100, inside a page that others hold"):
            holder.rollback(100)
    donor.rollback(135)
    cache.rollback(128)
    cache.release()
    donor.rollback(120)


def test_pools_on_one_budget_ask_for_what_is_kept() -> None:
    page = FULL.full_page_bytes
    budget = MemoryBudget(3 * page)
    pools = [KVPool(FULL, budget) for _ in range(2)]
    kept = written_cache(pools[0], [1])
    asked: list[int] = []

    def reclaim(nbytes: int) -> None:
        asked.append(nbytes)
        kept.release()

    budget.reclaim = reclaim
    cache = written_cache(pools[1], [1] * 130)
    assert asked == [3 * page]
    assert (pools[0].used_bytes, pools[1].used_bytes) == (0, 3 * page)
    with pytest.raises(CapacityError, match=f"{page} bytes needed, 0 available of {3 * page}"):
        cache.reserve(100)
