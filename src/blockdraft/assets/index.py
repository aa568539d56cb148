"""Which drafter comes with blockdraft for a target.

``drafters.json`` is one object: the sha256 of a target's file, and for it ``target`` (its name),
``target_bytes``, ``file`` (the drafter's name in this folder), ``sha256`` of that file, ``tau``
(mean acceptance length by category, "overall" included) and ``command`` (what trained it).

Knows checksums and sizes, nothing of what is in a model's or a drafter's file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blockdraft.errors import FileFormatError

__all__ = ["ShippedDrafter", "asset_folder", "find_shipped", "read_index"]

_INDEX = "drafters.json"
_SHA256_LETTERS = 64


@dataclass(frozen=True, slots=True)
class ShippedDrafter:
    """One entry of the index.

    Attributes:
        target: Name of the target.
        target_bytes: Size of the target's file.
        path: The drafter's file.
        sha256: Its checksum.
        tau: Mean acceptance length by category, "overall" included.
        command: What trained it.
    """

    target: str
    target_bytes: int
    path: Path
    sha256: str
    tau: Mapping[str, float]
    command: str


def asset_folder() -> Path:
    """Where the index and its files lie."""
    return Path(__file__).parent


def read_index() -> dict[str, ShippedDrafter]:
    """All shipped drafters by the checksum of their target.

    Raises:
        FileFormatError: The index is damaged.
    """
    folder = asset_folder()
    path = folder / _INDEX
    try:
        found = json.loads(path.read_text("utf-8"))
        return {_checksum(target): _entry(values, folder) for target, values in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error!r}") from error


def find_shipped(target: Path, *, sha256: str | None = None) -> ShippedDrafter | None:
    """The drafter for a target's file; None where none is known.

    A file of a size that no known target has is not read.

    Args:
        target: The file.
        sha256: Its checksum where it is known already; None computes it where that can matter.

    Raises:
        FileFormatError: The index is damaged, or the drafter's file is missing.
    """
    index = read_index()
    if sha256 is None:
        size = target.stat().st_size
        if all(entry.target_bytes != size for entry in index.values()):
            return None
        with target.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    found = index.get(sha256)
    if found is not None and not found.path.is_file():
        raise FileFormatError(f"{found.path} is missing: the installation is not complete")
    return found


def _checksum(text: str) -> str:
    if len(text) != _SHA256_LETTERS:
        raise ValueError(f"{text!r} is no sha256")
    return text


def _entry(values: Mapping[str, object], folder: Path) -> ShippedDrafter:
    tau, size = values["tau"], values["target_bytes"]
    if not isinstance(tau, dict) or not isinstance(size, int):
        raise TypeError(f"tau and target_bytes are {tau!r} and {size!r}")
    return ShippedDrafter(
        target=str(values["target"]),
        target_bytes=size,
        path=folder / str(values["file"]),
        sha256=_checksum(str(values["sha256"])),
        tau={str(name): float(value) for name, value in tau.items()},
        command=str(values["command"]),
    )
