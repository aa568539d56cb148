"""Makes a local language model write faster without changing one byte of what it writes.

Names load on first use: ``import blockdraft`` itself imports nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockdraft.config import DraftConfig, SamplingParams
    from blockdraft.errors import (
        BlockdraftError,
        CapacityError,
        ConfigError,
        DownloadError,
        FileFormatError,
        UnsupportedError,
    )
    from blockdraft.session import Result, Session, Stream, TextChunk, Timings
    from blockdraft.speculative import SpeculationStats

    __version__: str

__all__ = [
    "BlockdraftError",
    "CapacityError",
    "ConfigError",
    "DownloadError",
    "DraftConfig",
    "FileFormatError",
    "Result",
    "SamplingParams",
    "Session",
    "SpeculationStats",
    "Stream",
    "TextChunk",
    "Timings",
    "UnsupportedError",
    "__version__",
]

_MODULES = {
    "session": {"Result", "Session", "Stream", "TextChunk", "Timings"},
    "config": {"DraftConfig", "SamplingParams"},
    "speculative": {"SpeculationStats"},
}


def __getattr__(name: str) -> Any:
    """The public name ``name``, imported now; names the missing one otherwise."""
    if name == "__version__":
        return import_module("importlib.metadata").version("blockdraft")
    if name not in __all__:
        raise AttributeError(f"module 'blockdraft' has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    return getattr(import_module(f"blockdraft.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
