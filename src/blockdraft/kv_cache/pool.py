"""K/V pages of one size class each, shared by any number of holders, under one byte budget.

Knows addresses and bytes, not what is written there.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import CapacityError
from blockdraft.kv_cache.layout import KVLayout

__all__ = ["KVPool", "MemoryBudget", "page_view"]

_ALIGNMENT = 64
# Large slabs get huge pages: their first touch costs 0.5 ms/MB, that of 1.5 MB pieces 1.7 ms/MB.
_SLAB_BYTES = 32 << 20
_SLAB_PAGES = 256


def page_view(address: int, nbytes: int) -> NDArray[np.uint8]:
    """A writable view of ``nbytes`` at ``address``; valid while the page's pool is alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class MemoryBudget:
    """Bytes that the pages of several pools may take together.

    Attributes:
        max_bytes: The most in use at once.
        used_bytes: In use now.
        reclaim: Told how many bytes must be available, so that it gives up pages that are kept
            without need; None where nobody keeps any.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.reclaim: Callable[[int], None] | None = None

    @property
    def available_bytes(self) -> int:
        """Bytes that are not in use."""
        return self.max_bytes - self.used_bytes

    def take(self, nbytes: int) -> None:
        """Count ``nbytes`` as used.

        Raises:
            CapacityError: They are not available; nothing was taken.
        """
        if nbytes > self.available_bytes and self.reclaim is not None:
            self.reclaim(nbytes)
        if nbytes > self.available_bytes:
            raise CapacityError(
                f"K/V memory is full: {nbytes} bytes needed, {self.available_bytes} available "
                f"of {self.max_bytes}"
            )
        self.used_bytes += nbytes


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

    def give(self, addresses: Iterable[int]) -> None:
        self._free.extend(addresses)

    def _grow(self, num_pages: int) -> None:
        # np.zeros takes untouched memory from the system: a page costs nothing until it is written.
        slab = np.zeros(num_pages * self.page_bytes + _ALIGNMENT, np.uint8)
        base = -(-slab.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._slabs.append(slab)
        self._free.extend(base + i * self.page_bytes for i in reversed(range(num_pages)))


class KVPool:
    """All K/V memory of one network.

    Memory is touched when a page is first written, so a generous budget costs nothing by itself.
    Freed pages stay with the pool. Their stale contents are finite and beyond every committed
    length, where attention does not look.

    A page may have several holders, of whom none writes it; it is free once each has given it
    back.

    Args:
        layout: Shape of the pages.
        max_bytes: The most bytes of pages in use at once, or the budget of other pools to share.

    Attributes:
        layout: As given.
        budget: Bytes in use, with those of other pools on it.
        used_bytes: Bytes of this pool's pages in use.
    """

    def __init__(self, layout: KVLayout, max_bytes: int | MemoryBudget) -> None:
        self.layout = layout
        self.budget = max_bytes if isinstance(max_bytes, MemoryBudget) else MemoryBudget(max_bytes)
        self.used_bytes = 0
        self._full = _PageList(layout.full_page_bytes)
        self._window = _PageList(layout.window_page_bytes)
        self._shares: dict[int, int] = {}  # holders beyond the first, by address

    @property
    def max_bytes(self) -> int:
        """The most bytes of pages in use at once, those of other pools on the budget included."""
        return self.budget.max_bytes

    def allocate(self, num_pages: int) -> tuple[list[int], list[int]]:
        """Addresses of ``num_pages`` full and as many window pages, 0 for a class without layers.

        Raises:
            CapacityError: They do not fit the budget; nothing was allocated.
        """
        needed = num_pages * (self._full.page_bytes + self._window.page_bytes)
        self.budget.take(needed)
        self.used_bytes += needed
        return self._take(self._full, num_pages), self._take(self._window, num_pages)

    def share(self, addresses: Iterable[int]) -> None:
        """Count one more holder of each page; 0 stands for no page."""
        for address in addresses:
            if address:
                self._shares[address] = self._shares.get(address, 0) + 1

    def is_shared(self, address: int) -> bool:
        """Whether a page has more than one holder."""
        return address in self._shares

    def free_full(self, addresses: Sequence[int]) -> None:
        """Take back pages of the full layers from one holder."""
        self._give(self._full, addresses)

    def free_window(self, addresses: Sequence[int]) -> None:
        """Take back pages of the windowed layers from one holder."""
        self._give(self._window, addresses)

    def _take(self, pages: _PageList, num_pages: int) -> list[int]:
        if not pages.page_bytes:
            return [0] * num_pages
        max_pages = self.max_bytes // pages.page_bytes
        return [pages.take(max_pages) for _ in range(num_pages)]

    def _give(self, pages: _PageList, addresses: Sequence[int]) -> None:
        if not pages.page_bytes:
            return
        freed = [address for address in addresses if not self._has_other_holder(address)]
        pages.give(freed)
        nbytes = len(freed) * pages.page_bytes
        self.used_bytes -= nbytes
        self.budget.used_bytes -= nbytes

    def _has_other_holder(self, address: int) -> bool:
        """Count one holder less; False for the last one."""
        others = self._shares.pop(address, 0)
        if others > 1:
            self._shares[address] = others - 1
        return others > 0
