"""Rows of many sequences laid out as one `Batch`.

Knows caches and token ids, no requests. The arrays of a batch are reused by the next one: at 64
sequences, allocating them anew would cost as much as filling them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.kv_cache import SequenceCache
from blockdraft.ops.batch import Batch

__all__ = ["BatchBuilder", "RowSlice"]


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows that one sequence brings into a pass.

    Attributes:
        cache: Its K/V, with the rows reserved.
        token_ids: int32 [rows], the tokens after the committed ones.
        num_logits: How many of the last rows want logits.
        parents: Ordinal of each row's predecessor, -1 for the first row; None: a chain.
    """

    cache: SequenceCache
    token_ids: NDArray[np.int32]
    num_logits: int
    parents: tuple[int, ...] | None = None


class BatchBuilder:
    """Builds batches of at most ``max_rows`` rows and as many sequences."""

    def __init__(self, max_rows: int) -> None:
        self._token_ids = np.zeros(max_rows, np.int32)
        self._positions = np.zeros(max_rows, np.int32)
        self._parents = np.zeros(max_rows, np.int32)
        self._row_starts = np.zeros(max_rows + 1, np.int32)
        self._base_lengths = np.zeros(max_rows, np.int32)
        self._full_pages = np.zeros(max_rows, np.uint64)
        self._window_pages = np.zeros(max_rows, np.uint64)

    def build(self, slices: Sequence[RowSlice]) -> Batch:
        """One pass over all ``slices``; valid until the next call."""
        logit_rows: list[int] = []
        row = 0
        for i, part in enumerate(slices):
            num_rows = len(part.token_ids)
            self._base_lengths[i] = part.cache.length
            self._fill_rows(row, num_rows, part)
            row += num_rows
            self._row_starts[i + 1] = row
            if part.num_logits:
                logit_rows.extend(range(row - part.num_logits, row))
        num_sequences = len(slices)
        full_pages, window_pages = self._page_tables([part.cache for part in slices])
        return Batch(
            token_ids=self._token_ids[:row],
            positions=self._positions[:row],
            parents=self._parents[:row],
            row_starts=self._row_starts[: num_sequences + 1],
            base_lengths=self._base_lengths[:num_sequences],
            full_pages=full_pages,
            window_pages=window_pages,
            logit_rows=np.array(logit_rows, np.int32),
        )

    def _fill_rows(self, row: int, num_rows: int, part: RowSlice) -> None:
        length = part.cache.length
        self._parents[row] = -1
        self._positions[row] = length
        if num_rows == 1:
            self._token_ids[row] = part.token_ids[0]
            return
        end = row + num_rows
        self._token_ids[row:end] = part.token_ids
        if part.parents is None:
            self._positions[row:end] = np.arange(length, length + num_rows, dtype=np.int32)
            self._parents[row + 1 : end] = np.arange(row, end - 1, dtype=np.int32)
            return
        for i, parent in enumerate(part.parents[1:], row + 1):
            self._parents[i] = row + parent
            self._positions[i] = self._positions[row + parent] + 1

    def _page_tables(
        self, caches: Sequence[SequenceCache]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        num_pages = max(cache.num_pages for cache in caches)
        size = len(caches) * num_pages
        if size > len(self._full_pages):
            self._full_pages = np.zeros(2 * size, np.uint64)
            self._window_pages = np.zeros(2 * size, np.uint64)
        shape = (len(caches), num_pages)
        full_pages = self._full_pages[:size].reshape(shape)
        window_pages = self._window_pages[:size].reshape(shape)
        for i, cache in enumerate(caches):
            used = cache.num_pages
            full_pages[i, :used] = cache.full_pages()
            full_pages[i, used:] = 0
            window_pages[i, :used] = cache.window_pages()
            window_pages[i, used:] = 0
        return full_pages, window_pages
