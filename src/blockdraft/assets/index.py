"""What comes with blockdraft for a target, to draft with.

``index.json`` is one object: the sha256 of a target's file, and for it ``target`` (its name),
``target_bytes``, and ``drafter`` (a network) or ``suffix_corpus`` or both. Either has ``file`` (the
name in this folder), ``sha256`` of that file and ``command`` (what made it).

Knows checksums and sizes, nothing of what is in a model's or a drafter's file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blockdraft.errors import FileFormatError

__all__ = ["Asset", "Shipped", "asset_folder", "find_shipped", "read_index"]

_INDEX = "index.json"
_SHA256_LETTERS = 64


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        path: Where it is.
        sha256: Its checksum.
        command: What made it.
    """

    path: Path
    sha256: str
    command: str

    def check(self) -> None:
        """Make sure that it is there.

        Raises:
            FileFormatError: It is not.
        """
        if not self.path.is_file():
            raise FileFormatError(f"{self.path} is missing: the installation is not complete")


@dataclass(frozen=True, slots=True)
class Shipped:
    """One entry of the index.

    Attributes:
        target: Name of the target.
        target_bytes: Size of the target's file.
        drafter: A network made for it.
        suffix_corpus: Answers of the target, to look drafts up in.
    """

    target: str
    target_bytes: int
    drafter: Asset | None
    suffix_corpus: Asset | None

    @property
    def assets(self) -> tuple[Asset, ...]:
        """What there is."""
        return tuple(each for each in (self.drafter, self.suffix_corpus) if each is not None)


def asset_folder() -> Path:
    """Where the index and its files lie."""
    return Path(__file__).parent


def read_index() -> dict[str, Shipped]:
    """Everything that is shipped, by the checksum of its target.

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


def find_shipped(target: Path, *, sha256: str | None = None) -> Shipped | None:
    """What comes with blockdraft for a target's file; None where none is known.

    A file of a size that no known target has is not read.

    Args:
        target: The file.
        sha256: Its checksum where it is known already; None computes it where that can matter.

    Raises:
        FileFormatError: The index is damaged.
    """
    index = read_index()
    if sha256 is None:
        size = target.stat().st_size
        if all(entry.target_bytes != size for entry in index.values()):
            return None
        with target.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return index.get(sha256)


def _checksum(text: str) -> str:
    if len(text) != _SHA256_LETTERS:
        raise ValueError(f"{text!r} is no sha256")
    return text


def _entry(values: Mapping[str, object], folder: Path) -> Shipped:
    size = values["target_bytes"]
    if not isinstance(size, int):
        raise TypeError(f"target_bytes is {size!r}")
    drafter, corpus = (_asset(values.get(name), folder) for name in ("drafter", "suffix_corpus"))
    return Shipped(str(values["target"]), size, drafter, corpus)


def _asset(values: object, folder: Path) -> Asset | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} describes no file")
    file, command = str(values["file"]), str(values["command"])
    return Asset(folder / file, _checksum(str(values["sha256"])), command)
