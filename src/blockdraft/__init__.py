"""Makes a local language model write faster without changing one byte of what it writes.

Names load on first use: ``import blockdraft`` itself imports nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockdraft.config import SamplingParams
    from blockdraft.errors import (
        BlockdraftError,
        CapacityError,
        ConfigError,
        DownloadError,
        FileFormatError,
        UnsupportedError,
    )
    from blockdraft.session import Result, Session, Stream, TextChunk, Timings

    __version__: str

__all__ = [
    "BlockdraftError",
    "CapacityError",
    "ConfigError",
    "DownloadError",
    "FileFormatError",
    "Result",
    "SamplingParams",
    "Session",
    "Stream",
    "TextChunk",
    "Timings",
    "UnsupportedError",
    "__version__",
]

_SESSION_NAMES = frozenset({"Result", "Session", "Stream", "TextChunk", "Timings"})


def __getattr__(name: str) -> Any:
    """The public name ``name``, imported now; names the missing one otherwise."""
    if name == "__version__":
        return import_module("importlib.metadata").version("blockdraft")
    if name not in __all__:
        raise AttributeError(f"module 'blockdraft' has no attribute {name!r}")
    if name in _SESSION_NAMES:
        module = "session"
    else:
        module = "config" if name == "SamplingParams" else "errors"
    return getattr(import_module(f"blockdraft.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
