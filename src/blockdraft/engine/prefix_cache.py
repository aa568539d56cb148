"""K/V pages of earlier prompts and answers, found again by their tokens.

A tree over token ids: a node is one page of 64 positions, and the path to it from the root is
what its K/V depend on. Only whole pages are shared, which nobody writes again, so K/V that are
found have the bits of K/V that are computed. Knows no requests and no networks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blockdraft.kv_cache import PAGE_POSITIONS, KVPool, SequenceCache

__all__ = ["PrefixCache"]

_Kind = tuple[int, bool]
"""(place of the pool, windowed layers): what a page is of."""


@dataclass(slots=True, eq=False)
class _Node:
    """64 tokens after those of the parent, and the pages that are kept of them.

    Attributes:
        pages: Addresses by kind. Windowed layers may have lost theirs, and the drafter has none
            where it was off.
    """

    parent: "_Node | None"
    key: bytes
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    pages: dict[_Kind, int] = field(default_factory=dict)


class PrefixCache:
    """Pages that are kept for requests to come, the least recently used of them given up first.

    Args:
        pools: The target's K/V memory, then the drafter's if it has one; both on one budget.
        max_bytes: The most bytes of pages that are kept, those included that running requests
            hold as well.

    Attributes:
        held_bytes: Bytes of pages that are kept.
        is_fed: Whether the drafter's K/V are made of target features. Those are there only when a
            row is computed, so target and drafter go on at the same position; a drafter that
            reads tokens reads what it lacks by itself.
    """

    def __init__(self, pools: Sequence[KVPool], max_bytes: int) -> None:
        self.held_bytes = 0
        self.is_fed = False
        self._pools = pools
        self._max_bytes = max_bytes
        self._root = _Node(None, b"")
        # Oldest first. On a path the pages of full layers are always older the deeper they are, so
        # that what goes first is the end of a path.
        self._used: OrderedDict[tuple[_Node, _Kind], None] = OrderedDict()

    def attach(self, token_ids: NDArray[np.int32], caches: Sequence[SequenceCache]) -> int:
        """Give empty caches what is known of a prompt; returns the target's positions.

        At least one token is left to read, for its logits.

        Args:
            token_ids: int32 [tokens], all that is to be read.
            caches: The request's, target first; the drafter's only where it drafts.
        """
        path = self._known_path(token_ids, (len(token_ids) - 1) // PAGE_POSITIONS)
        sizes = self._usable(path, len(token_ids), len(caches))
        for place, (cache, size) in enumerate(zip(caches, sizes, strict=True)):
            if not size:
                continue
            first = self._first_seen(place, size, len(token_ids))
            full = [node.pages.get((place, False), 0) for node in path[:size]]
            window = [node.pages.get((place, True), 0) for node in path[:size]]
            cache.adopt(full, [0] * first + window[first:])
            self._touch(path[:size], place, first)
        return sizes[0] * PAGE_POSITIONS

    def keep(self, token_ids: NDArray[np.int32], caches: Sequence[SequenceCache]) -> None:
        """Keep the whole pages of a request.

        Args:
            token_ids: int32, at least the tokens of the committed positions.
            caches: As in `attach`.
        """
        sizes = [cache.length // PAGE_POSITIONS for cache in caches]
        path = self._path(token_ids, max(sizes))
        for place, (cache, size) in enumerate(zip(caches, sizes, strict=True)):
            full, window = cache.full_pages().tolist(), cache.window_pages().tolist()
            for page, node in enumerate(path[:size]):
                self._add(node, (place, False), full[page])
                self._add(node, (place, True), window[page])
            self._touch(path[:size], place, self._first_seen(place, size, cache.length))
        while self.held_bytes > self._max_bytes:
            self._drop_oldest()

    def reclaim(self, nbytes: int) -> None:
        """Give pages up until ``nbytes`` are available or nothing is kept."""
        budget = self._pools[0].budget
        while self._used and budget.available_bytes < nbytes:
            self._drop_oldest()

    def clear(self) -> None:
        """Give all pages up."""
        while self._used:
            self._drop_oldest()

    def _known_path(self, token_ids: NDArray[np.int32], most: int) -> list[_Node]:
        """Nodes of the first pages, at most ``most``, as far as there are any."""
        path: list[_Node] = []
        node: _Node | None = self._root
        while len(path) < most and node is not None:
            node = node.children.get(_key(token_ids, len(path)))
            if node is not None:
                path.append(node)
        return path

    def _path(self, token_ids: NDArray[np.int32], size: int) -> list[_Node]:
        """Nodes of the first ``size`` pages; what is missing is added."""
        path = self._known_path(token_ids, size)
        while len(path) < size:
            parent = path[-1] if path else self._root
            key = _key(token_ids, len(path))
            path.append(parent.children.setdefault(key, _Node(parent, key)))
        return path

    def _usable(self, path: Sequence[_Node], num_tokens: int, num_caches: int) -> list[int]:
        """For each cache the most pages of ``path`` that a request can go on after."""
        places = range(num_caches)
        sizes: list[int] = []
        for group in [places] if self.is_fed else [[place] for place in places]:
            size = min(self._reach(path, place) for place in group)
            while not all(self._has_window(path[:size], place, num_tokens) for place in group):
                size -= 1
            sizes += [size] * len(group)
        return sizes

    def _reach(self, path: Sequence[_Node], place: int) -> int:
        """Pages from the root on that full layers have."""
        if not self._pools[place].layout.full_layers:
            return len(path)
        return next(
            (n for n, node in enumerate(path) if (place, False) not in node.pages), len(path)
        )

    def _has_window(self, path: Sequence[_Node], place: int, num_tokens: int) -> bool:
        """Whether windowed layers have all that rows after ``path`` may see."""
        first = self._first_seen(place, len(path), num_tokens)
        return all((place, True) in node.pages for node in path[first:])

    def _first_seen(self, place: int, size: int, num_tokens: int) -> int:
        """The first of ``size`` pages whose windowed layers rows to come may see."""
        window = self._pools[place].layout.window
        if window is None:
            return size
        # Features are stored without looking back: a fed drafter's next row drafts after them all.
        reader = num_tokens if place and self.is_fed else size * PAGE_POSITIONS
        return min(max(0, reader - window + 1) // PAGE_POSITIONS, size)

    def _add(self, node: _Node, kind: _Kind, address: int) -> None:
        if address and kind not in node.pages:
            self._pools[kind[0]].share([address])
            self.held_bytes += self._page_bytes(kind)
            node.pages[kind] = address
            self._used[node, kind] = None

    def _touch(self, path: Sequence[_Node], place: int, first_seen: int) -> None:
        """Note that pages of a path are of use, windowed ones from ``first_seen`` on."""
        for page in range(len(path) - 1, -1, -1):
            node = path[page]
            for kind in ((place, False), (place, True)):
                if kind in node.pages and (page >= first_seen or not kind[1]):
                    self._used[node, kind] = None  # it may be missing where Ctrl-C came between
                    self._used.move_to_end((node, kind))

    def _drop_oldest(self) -> None:
        (node, kind), _ = self._used.popitem(last=False)
        place, is_windowed = kind
        pool = self._pools[place]
        (pool.free_window if is_windowed else pool.free_full)([node.pages.pop(kind)])
        self.held_bytes -= self._page_bytes(kind)
        while node.parent is not None and not node.pages and not node.children:
            del node.parent.children[node.key]
            node = node.parent

    def _page_bytes(self, kind: _Kind) -> int:
        layout = self._pools[kind[0]].layout
        return layout.window_page_bytes if kind[1] else layout.full_page_bytes


def _key(token_ids: NDArray[np.int32], page: int) -> bytes:
    return token_ids[page * PAGE_POSITIONS : (page + 1) * PAGE_POSITIONS].tobytes()
