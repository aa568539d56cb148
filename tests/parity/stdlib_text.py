"""Natural text without a download: the language reference and source code that come with Python.

Both are under the PSF licence. Other Python versions give other texts, the same every time.
"""

import inspect
import textwrap
from itertools import cycle
from pydoc_data.topics import topics
from types import ModuleType

__all__ = ["stdlib_text"]

# Pure Python, long-lived, in different styles; code and prose take turns.
_MODULES: tuple[ModuleType, ...] = (textwrap, inspect)
_PIECE = 3000


def stdlib_text(num_chars: int) -> str:
    """``num_chars`` characters, half prose and half code, in pieces of 3,000."""
    prose = "\n".join(text for _, text in sorted(topics.items()))
    code = "\n".join(inspect.getsource(module) for module in _MODULES)
    pieces: list[str] = []
    sources = cycle((prose, code))
    for start in range(0, num_chars, _PIECE):
        offset = start // (2 * _PIECE) * _PIECE
        pieces.append(next(sources)[offset : offset + _PIECE])
    text = "".join(pieces)[:num_chars]
    assert len(text) == num_chars
    return text
