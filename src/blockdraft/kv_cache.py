"""Paged K/V memory of a decoder: pages, page tables, commit and rollback.

Knows positions, not tokens, and moves bytes without reading them. The native core writes and
reads the pages through their addresses.

A page holds 64 consecutive positions of one *class* of layers (full attention or windowed): for
each layer of the class, each K/V head, K as float16 [head_dim, 64], then V as float16
[64, head_dim]. Windowed layers have their own page table, because their old pages are freed.
"""

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import DrafterConfig, ModelConfig
from blockdraft.errors import CapacityError

__all__ = [
    "LARGEST_BLOCK",
    "PAGE_POSITIONS",
    "KVLayout",
    "KVPool",
    "SequenceCache",
    "page_view",
]

PAGE_POSITIONS = 64
"""Positions per page; also the attention chunk of the numeric specification."""

LARGEST_BLOCK = 64
"""Rows that a rollback may take back without losing what a window still needs."""

_ALIGNMENT = 64
# Large slabs get huge pages: their first touch costs 0.5 ms/MB, that of 1.5 MB pieces 1.7 ms/MB.
_SLAB_BYTES = 32 << 20
_SLAB_PAGES = 256


def _ceil_pages(num_positions: int) -> int:
    return (num_positions + PAGE_POSITIONS - 1) // PAGE_POSITIONS


def page_view(address: int, nbytes: int) -> NDArray[np.uint8]:
    """A writable view of ``nbytes`` at ``address``; valid while the page's pool is alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the K/V memory of one network.

    Attributes:
        num_kv_heads: K/V heads per layer.
        head_dim: Width of a head.
        full_layers: Layer indices with full attention; a layer's ordinal is its place here.
        windowed_layers: Layer indices with a sliding window; the same.
        window: Tokens a windowed layer sees; None when no layer is windowed.
        largest_block: Rows that a rollback may take back, window or not.
    """

    num_kv_heads: int
    head_dim: int
    full_layers: tuple[int, ...]
    windowed_layers: tuple[int, ...] = ()
    window: int | None = None
    largest_block: int = LARGEST_BLOCK

    def __post_init__(self) -> None:
        """Check that windowed layers come with a window.

        Raises:
            ValueError: Only one of ``windowed_layers`` and ``window`` is given.
        """
        if bool(self.windowed_layers) != (self.window is not None):
            raise ValueError(
                f"{len(self.windowed_layers)} windowed layers with window {self.window}"
            )

    @classmethod
    def from_config(
        cls, config: ModelConfig | DrafterConfig, *, largest_block: int = LARGEST_BLOCK
    ) -> "KVLayout":
        """The layout of a decoder or a drafter."""
        windowed = tuple(i for i, flag in enumerate(config.windowed_layers) if flag)
        full = tuple(i for i in range(config.num_layers) if i not in set(windowed))
        window = config.window if windowed else None
        return cls(config.num_kv_heads, config.head_dim, full, windowed, window, largest_block)

    @property
    def full_page_bytes(self) -> int:
        """Bytes of a page of the full layers; 0 when there are none."""
        return len(self.full_layers) * self._layer_page_bytes

    @property
    def window_page_bytes(self) -> int:
        """Bytes of a page of the windowed layers; 0 when there are none."""
        return len(self.windowed_layers) * self._layer_page_bytes

    @property
    def bytes_per_token(self) -> int:
        """K/V bytes of one position over all layers, while no window has passed it."""
        return (self.full_page_bytes + self.window_page_bytes) // PAGE_POSITIONS

    @property
    def _layer_page_bytes(self) -> int:
        return self.num_kv_heads * 2 * PAGE_POSITIONS * self.head_dim * 2

    def max_bytes(self, num_positions: int, *, rows_per_pass: int) -> int:
        """The most page bytes a sequence holds on its way to ``num_positions`` positions.

        Args:
            num_positions: Slots ever reserved.
            rows_per_pass: The most rows it reserves at once.
        """
        pages = _ceil_pages(num_positions)
        window_pages = pages
        if self.window is not None:
            # The kept span starts anywhere in a page, hence one page more than its length needs.
            span = self.window + self.largest_block + rows_per_pass
            window_pages = min(pages, _ceil_pages(span) + 1)
        return pages * self.full_page_bytes + window_pages * self.window_page_bytes


class _PageList:
    """Pages of one size, handed out lowest address first and kept for reuse."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._slabs: list[NDArray[np.uint8]] = []
        self._free: list[int] = []

    def take(self, max_pages: int) -> int:
        """The address of a free page; a new slab has at most ``max_pages`` pages."""
        if not self._free:
            self._grow(max(1, min(_SLAB_BYTES // self.page_bytes, _SLAB_PAGES, max_pages)))
        return self._free.pop()

    def give(self, addresses: Sequence[int]) -> None:
        self._free.extend(addresses)

    def _grow(self, num_pages: int) -> None:
        # np.zeros takes untouched memory from the system: a page costs nothing until it is written.
        slab = np.zeros(num_pages * self.page_bytes + _ALIGNMENT, np.uint8)
        base = -(-slab.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._slabs.append(slab)
        self._free.extend(base + i * self.page_bytes for i in reversed(range(num_pages)))


class KVPool:
    """All K/V memory of one network under one byte budget.

    Memory is touched when a page is first written, so a generous budget costs nothing by itself.
    Freed pages stay with the pool. Their stale contents are finite and beyond every committed
    length, where attention does not look.

    Args:
        layout: Shape of the pages.
        max_bytes: The most bytes of pages in use at once.
    """

    def __init__(self, layout: KVLayout, max_bytes: int) -> None:
        self.layout = layout
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._full = _PageList(layout.full_page_bytes)
        self._window = _PageList(layout.window_page_bytes)

    def allocate(self, num_pages: int) -> tuple[list[int], list[int]]:
        """Addresses of ``num_pages`` full and as many window pages, 0 for a class without layers.

        Raises:
            CapacityError: They do not fit the budget; nothing was allocated.
        """
        needed = num_pages * (self._full.page_bytes + self._window.page_bytes)
        available = self.max_bytes - self.used_bytes
        if needed > available:
            raise CapacityError(
                f"K/V memory is full: {needed} bytes needed, {available} available "
                f"of {self.max_bytes}"
            )
        self.used_bytes += needed
        return self._take(self._full, num_pages), self._take(self._window, num_pages)

    def free_full(self, addresses: Sequence[int]) -> None:
        """Take back pages of the full layers."""
        self._give(self._full, addresses)

    def free_window(self, addresses: Sequence[int]) -> None:
        """Take back pages of the windowed layers."""
        self._give(self._window, addresses)

    def _take(self, pages: _PageList, num_pages: int) -> list[int]:
        if not pages.page_bytes:
            return [0] * num_pages
        max_pages = self.max_bytes // pages.page_bytes
        return [pages.take(max_pages) for _ in range(num_pages)]

    def _give(self, pages: _PageList, addresses: Sequence[int]) -> None:
        if pages.page_bytes:
            pages.give(addresses)
            self.used_bytes -= len(addresses) * pages.page_bytes


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
        wanted = _ceil_pages(self.length + num_rows)
        if wanted <= self._num_pages:
            return
        full, window = self._pool.allocate(wanted - self._num_pages)
        if wanted > len(self._full):
            spare = np.zeros(max(wanted, 2 * len(self._full)) - len(self._full), np.uint64)
            self._full = np.concatenate([self._full, spare])
            self._window = np.concatenate([self._window, spare])
        self._full[self._num_pages : wanted] = full
        self._window[self._num_pages : wanted] = window
        self._num_pages = wanted

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
        self._first_window_page = self._num_pages = length // PAGE_POSITIONS
        if self._num_pages > len(self._full):
            self._full = np.zeros(2 * self._num_pages, np.uint64)
            self._window = np.zeros(2 * self._num_pages, np.uint64)

    def rollback(self, length: int) -> None:
        """Forget every position at or after ``length``.

        Raises:
            ValueError: ``length`` is negative or beyond the committed length.
            CapacityError: Windowed layers would need pages that were freed.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"rollback to {length} of {self.length} committed positions")
        self._check_window(length)
        self._drop_pages(_ceil_pages(length))
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
        for page_idx in range(start // PAGE_POSITIONS, _ceil_pages(stop) if nbytes else 0):
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
