"""Keeps large tensors' memory with the process.

glibc gives every freed block of more than some megabytes back to the system, and touching it anew
costs more than most row operations: a softmax over 1,024 rows of 8,192 took 45 ms with fresh memory
and 12 ms without. Other allocators are left alone.
"""

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Tell the C library to reuse freed memory; False where it cannot be told."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(key, value) == 1 for key, value in settings)
