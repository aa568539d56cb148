"""Paged K/V memory of a decoder: pages, page tables, commit and rollback.

Knows positions, not tokens, and moves bytes without reading them. The native core writes and
reads the pages through their addresses.
"""

from blockdraft.kv_cache.layout import LARGEST_BLOCK, PAGE_POSITIONS, KVLayout
from blockdraft.kv_cache.pool import KVPool, MemoryBudget, page_view
from blockdraft.kv_cache.sequence import SequenceCache

__all__ = [
    "LARGEST_BLOCK",
    "PAGE_POSITIONS",
    "KVLayout",
    "KVPool",
    "MemoryBudget",
    "SequenceCache",
    "page_view",
]
