from dataclasses import replace

import numpy as np
import pytest

from blockdraft.kv_cache import SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from tests.fake_target import FakeTarget


def sliced(target: FakeTarget, committed: int, rows: int, num_logits: int) -> RowSlice:
    cache = SequenceCache(target.new_cache_pool(1 << 22))
    cache.reserve(committed)
    cache.commit(range(committed))
    cache.reserve(rows)
    return RowSlice(cache, np.arange(rows, dtype=np.int32) + 10, num_logits)


def test_batch_lays_out_sequences_one_after_another() -> None:
    target = FakeTarget()
    slices = [sliced(target, 5, 1, 1), sliced(target, 0, 3, 0), sliced(target, 70, 2, 2)]
    batch = BatchBuilder(8).build(slices)
    assert batch.token_ids.tolist() == [10, 10, 11, 12, 10, 11]
    assert batch.positions.tolist() == [5, 0, 1, 2, 70, 71]
    assert batch.parents.tolist() == [-1, -1, 1, 2, -1, 4]
    assert batch.row_starts.tolist() == [0, 1, 4, 6]
    assert batch.base_lengths.tolist() == [5, 0, 70]
    assert batch.logit_rows.tolist() == [0, 4, 5]
    assert (batch.num_rows, batch.num_sequences) == (6, 3)


def test_page_tables_are_padded_with_zeros() -> None:
    target = FakeTarget()
    slices = [sliced(target, 150, 1, 1), sliced(target, 2, 1, 1)]
    batch = BatchBuilder(8).build(slices)
    assert batch.full_pages.shape == batch.window_pages.shape == (2, 3)
    assert batch.full_pages[0].tolist() == slices[0].cache.full_pages().tolist()
    assert (batch.full_pages[1] != 0).tolist() == [True, False, False]
    assert (batch.window_pages[0] != 0).tolist() == [False, True, True]


@pytest.mark.parametrize("pages", [1, 40])
def test_builder_leaves_nothing_of_the_batch_before(pages: int) -> None:
    target = FakeTarget()
    builder = BatchBuilder(8)
    builder.build([sliced(target, 64 * pages, 3, 0), sliced(target, 64 * pages, 3, 3)])
    part = sliced(target, 1, 1, 1)
    batch = builder.build([part])
    assert batch.full_pages.tolist() == [part.cache.full_pages().tolist()]
    assert batch.parents.tolist() == [-1]
    assert batch.logit_rows.tolist() == [0]


def test_arrays_are_contiguous_and_typed() -> None:
    batch = BatchBuilder(8).build([sliced(FakeTarget(), 3, 4, 1)])
    for name in ("token_ids", "positions", "parents", "row_starts", "base_lengths", "logit_rows"):
        assert getattr(batch, name).dtype == np.int32
    for pages in (batch.full_pages, batch.window_pages):
        assert pages.dtype == np.uint64
        assert pages.flags.c_contiguous


def test_a_tree_stands_at_the_depth_of_its_rows() -> None:
    target = FakeTarget()
    chain, tree = sliced(target, 5, 2, 1), sliced(target, 70, 5, 5)
    tree = replace(tree, parents=(-1, 0, 0, 1, 2))
    batch = BatchBuilder(8).build([chain, tree, sliced(target, 9, 1, 1)])
    assert batch.positions.tolist() == [5, 6, 70, 71, 71, 72, 72, 9]
    assert batch.parents.tolist() == [-1, 0, -1, 2, 2, 3, 4, -1]
    assert batch.logit_rows.tolist() == [1, 2, 3, 4, 5, 6, 7]
