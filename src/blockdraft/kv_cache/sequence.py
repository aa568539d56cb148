"""The K/V pages of one sequence: page tables, commit, rollback, and a hash of what is stored.

Knows positions, not tokens. Windowed layers have a page table of their own, because their old
pages are freed.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import CapacityError
from blockdraft.kv_cache.layout import PAGE_POSITIONS, ceil_pages
from blockdraft.kv_cache.pool import KVPool, page_view

__all__ = ["SequenceCache"]


class SequenceCache:
    """The K/V pages of one sequence.

    ``length`` counts committed positions. A pass over n rows is: ``reserve(n)``, the pass writes
    slots ``length .. length + n - 1``, ``commit(rows)`` keeps the rows that turned out right.
    """

    def __init__(self, pool: KVPool) -> None:
        self.length = 0
        self._pool = pool
        self._num_pages = 0
        self._first_window_page = 0
        self._full = np.zeros(8, np.uint64)
        self._window = np.zeros(8, np.uint64)

    @property
    def num_pages(self) -> int:
        """Logical pages that have an address, freed window pages included."""
        return self._num_pages

    def full_pages(self) -> NDArray[np.uint64]:
        """Addresses by logical page, uint64 [num_pages]; valid until the next change."""
        return self._full[: self._num_pages]

    def window_pages(self) -> NDArray[np.uint64]:
        """The same for windowed layers; 0 where the window has passed or no layer is windowed."""
        return self._window[: self._num_pages]

    def reserve(self, num_rows: int) -> None:
        """Make the next ``num_rows`` slots writable.

        Raises:
            CapacityError: The pool's budget is used up; nothing changed.
        """
        wanted = ceil_pages(self.length + num_rows)
        if wanted <= self._num_pages:
            return
        self._append(*self._pool.allocate(wanted - self._num_pages))

    def adopt(self, full: Sequence[int], window: Sequence[int]) -> None:
        """Begin with whole pages that another sequence has filled; they are shared, not copied.

        Args:
            full: Addresses by logical page from 0 on, 0 in a class without layers.
            window: The same; also 0 for the first pages, as far as no row to come looks.

        Raises:
            ValueError: Something is stored.
        """
        if self.length or self._num_pages:
            raise ValueError(f"{self.length} positions are stored; only an empty cache may adopt")
        self._pool.share([*full, *window])
        self._append(full, window)
        self._first_window_page = next((i for i, page in enumerate(window) if page), len(window))
        self.length = len(full) * PAGE_POSITIONS

    def commit(self, rows: Sequence[int]) -> None:
        """Keep some rows of the last pass: they become the next positions.

        Args:
            rows: Ordinals of the kept rows, ascending; a range from 0 costs no copy.

        Raises:
            ValueError: ``rows`` is not ascending or reaches beyond the reserved slots.
        """
        num_rows = len(rows)
        if not num_rows:
            return
        if self.length + rows[-1] >= self._num_pages * PAGE_POSITIONS:
            slots = self._num_pages * PAGE_POSITIONS
            raise ValueError(f"row {rows[-1]} after {self.length} of {slots} reserved slots")
        if not isinstance(rows, range) and any(
            a >= b for a, b in zip((-1, *rows), rows, strict=False)
        ):
            raise ValueError(f"rows are not ascending from 0: {list(rows)}")
        if rows[0] != 0 or rows[-1] != num_rows - 1:
            self._move_rows(np.array(rows, np.int32))
        self.length += num_rows
        self._free_passed_window()

    def skip(self, length: int) -> None:
        """Go on at position ``length``, which no window sees beyond, without what is before it.

        Raises:
            ValueError: Something is stored, a layer is not windowed, or ``length`` is behind.
        """
        if self._num_pages > self._first_window_page or self._pool.layout.full_layers:
            raise ValueError(f"skip to {length}: only an empty, windowed cache may")
        if length < self.length:
            raise ValueError(f"skip to {length} from {self.length}")
        self.length = length
        self._first_window_page = length // PAGE_POSITIONS
        nothing = [0] * (self._first_window_page - self._num_pages)
        self._append(nothing, nothing)

    def rollback(self, length: int) -> None:
        """Forget every position at or after ``length``.

        Raises:
            ValueError: ``length`` is negative, beyond the committed length, or inside a page that
                others hold, where the next rows would be written.
            CapacityError: Windowed layers would need pages that were freed.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"rollback to {length} of {self.length} committed positions")
        page, offset = divmod(length, PAGE_POSITIONS)
        held = [*self._full[page : page + 1].tolist(), *self._window[page : page + 1].tolist()]
        if offset and any(map(self._pool.is_shared, held)):
            raise ValueError(f"rollback to {length}, inside a page that others hold")
        self._check_window(length)
        self._drop_pages(ceil_pages(length))
        self.length = length

    def release(self) -> None:
        """Give all pages back; the cache is empty and may be used again."""
        self._drop_pages(0)
        self.length = 0
        self._first_window_page = 0

    def state_hash(self, length: int | None = None) -> str:
        """SHA-256 over the K/V that a row at ``length`` can see, wherever it is stored.

        Full layers: positions from 0. Windowed layers: the last window. Equal histories give
        equal hashes, whatever the pages, chunks, rollbacks and freed windows.

        Args:
            length: Positions to cover; None is the committed length.

        Raises:
            ValueError: ``length`` is negative or beyond the committed length.
            CapacityError: Windowed layers no longer hold what it covers.
        """
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise ValueError(f"hash of {length} of {self.length} committed positions")
        self._check_window(length)
        layout = self._pool.layout
        digest = hashlib.sha256(length.to_bytes(8, "little"))
        self._hash_layers(digest, self._full, len(layout.full_layers), (0, length))
        if layout.window is not None:
            span = (max(0, length - layout.window + 1), length)
            self._hash_layers(digest, self._window, len(layout.windowed_layers), span)
        return digest.hexdigest()

    def _append(self, full: Sequence[int], window: Sequence[int]) -> None:
        """Add logical pages at these addresses."""
        wanted = self._num_pages + len(full)
        if wanted > len(self._full):
            spare = np.zeros(max(wanted, 2 * len(self._full)) - len(self._full), np.uint64)
            self._full = np.concatenate([self._full, spare])
            self._window = np.concatenate([self._window, spare])
        self._full[self._num_pages : wanted] = full
        self._window[self._num_pages : wanted] = window
        self._num_pages = wanted

    def _hash_layers(
        self,
        digest: "hashlib._Hash",
        pages: NDArray[np.uint64],
        num_layers: int,
        span: tuple[int, int],
    ) -> None:
        layout = self._pool.layout
        shape = (num_layers, layout.num_kv_heads, 2, PAGE_POSITIONS * layout.head_dim)
        heads = (num_layers, layout.num_kv_heads)
        nbytes = int(np.prod(shape)) * 2
        start, stop = span
        for page_idx in range(start // PAGE_POSITIONS, ceil_pages(stop) if nbytes else 0):
            first = page_idx * PAGE_POSITIONS
            page = page_view(int(pages[page_idx]), nbytes).view(np.float16).reshape(shape)
            keys = page[:, :, 0].reshape(*heads, layout.head_dim, PAGE_POSITIONS)
            values = page[:, :, 1].reshape(*heads, PAGE_POSITIONS, layout.head_dim)
            kept = slice(max(start - first, 0), min(stop - first, PAGE_POSITIONS))
            digest.update(keys[..., kept].transpose(3, 0, 1, 2).tobytes())
            digest.update(values[:, :, kept].transpose(2, 0, 1, 3).tobytes())

    def _move_rows(self, rows: NDArray[np.int32]) -> None:
        layout = self._pool.layout
        for pages, layers in (
            (self.full_pages(), layout.full_layers),
            (self.window_pages(), layout.windowed_layers),
        ):
            if layers:
                shape = (len(layers), layout.num_kv_heads, layout.head_dim)
                _native.move_rows(pages, shape, self.length, rows)

    def _free_passed_window(self) -> None:
        layout = self._pool.layout
        if layout.window is None:
            return
        # A page goes once its last position is further back than window + largest block.
        passed = (self.length - layout.window - layout.largest_block) // PAGE_POSITIONS
        first = self._first_window_page
        if passed > first:
            self._pool.free_window(self._window[first:passed].tolist())
            self._window[first:passed] = 0
            self._first_window_page = passed

    def _check_window(self, length: int) -> None:
        layout = self._pool.layout
        oldest = self._first_window_page * PAGE_POSITIONS
        if layout.window is not None and oldest and length - layout.window + 1 < oldest:
            raise CapacityError(
                f"position {length} needs keys from {max(0, length - layout.window + 1)} on; "
                f"windowed layers still hold {oldest} on"
            )

    def _drop_pages(self, num_kept: int) -> None:
        if num_kept >= self._num_pages:
            return
        dropped = slice(num_kept, self._num_pages)
        held_window = slice(max(num_kept, self._first_window_page), self._num_pages)
        self._pool.free_full(self._full[dropped].tolist())
        self._pool.free_window(self._window[held_window].tolist())
        self._full[dropped] = 0
        self._window[dropped] = 0
        self._num_pages = num_kept
