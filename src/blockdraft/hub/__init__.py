"""Model names, paths and Hugging Face specs to verified local files."""

from blockdraft.hub.fetch import Progress
from blockdraft.hub.huggingface import resolve_dataset
from blockdraft.hub.resolve import (
    default_cache_dir,
    downloaded_path,
    resolve,
    verified_sha256,
)
from blockdraft.hub.table import DEFAULT_MODEL, NAMED_MODELS, HubSource, NamedModel, WheelSource

__all__ = [
    "DEFAULT_MODEL",
    "NAMED_MODELS",
    "HubSource",
    "NamedModel",
    "Progress",
    "WheelSource",
    "default_cache_dir",
    "downloaded_path",
    "resolve",
    "resolve_dataset",
    "verified_sha256",
]
