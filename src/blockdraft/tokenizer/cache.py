"""Compiled vocabularies on disk, one file per digest.

A file is written under a temporary name and renamed, so that no reader sees half of one. Whatever
is wrong with a file, a reader gets None and compiles again: the cache may be deleted at any time.

Layout: magic, CRC-32 of what follows, size of the table of contents, the table of contents as
JSON, then its sections.
"""

import json
import logging
import os
import struct
import sys
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import cast

from blockdraft.tokenizer.compiled import CompiledModel, CompiledVocabulary, TokenizerInfo

__all__ = ["default_cache_dir", "load_compiled", "save_compiled"]

_logger = logging.getLogger(__name__)

# Changes with the layout, and with anything compile_vocabulary does differently.
_MAGIC = b"BDTOK\x00\x01" + sys.byteorder[:1].encode()
_HEADER = struct.Struct("<8sII")
_SECTIONS = (
    "texts",
    "offsets",
    "types",
    "ascii_document",
    "ascii_ids",
    "full_document",
    "full_ids",
)


def default_cache_dir() -> Path:
    """Where compiled vocabularies lie unless the caller says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "blockdraft" / "tokenizers"


def save_compiled(directory: Path, digest: str, compiled: CompiledVocabulary) -> None:
    """Keep ``compiled`` under ``digest``; a directory that cannot be written gives a warning."""
    parts = (
        compiled.texts,
        compiled.offsets,
        compiled.types,
        compiled.ascii_model.document,
        compiled.ascii_model.ids,
        compiled.full_model.document,
        compiled.full_model.ids,
    )
    contents = json.dumps(
        {
            "info": asdict(compiled.info),
            "sizes": [len(part) for part in parts],
            "ascii_spelled": list(compiled.ascii_model.spelled.items()),
            "full_spelled": list(compiled.full_model.spelled.items()),
        }
    )
    body = b"".join([contents.encode(), *parts])
    header = _HEADER.pack(_MAGIC, zlib.crc32(body), len(contents.encode()))
    path = _path(directory, digest)
    temporary: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            file.write(header)
            file.write(body)
        temporary.replace(path)
    except OSError as error:
        _logger.warning("could not cache the tokenizer as %s: %s", path, error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def load_compiled(directory: Path, digest: str) -> CompiledVocabulary | None:
    """What was kept under ``digest``, or None; a damaged file gives a warning."""
    path = _path(directory, digest)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _logger.warning("could not read the cached tokenizer %s: %s", path, error)
        return None
    try:
        return _parse(memoryview(data))
    except (ValueError, TypeError, KeyError, struct.error) as error:
        _logger.warning("the cached tokenizer %s is damaged and is made again: %s", path, error)
        return None


def _path(directory: Path, digest: str) -> Path:
    return directory / f"{digest}.tokenizer"


def _parse(data: memoryview) -> CompiledVocabulary:
    magic, checksum, contents_size = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC:
        raise ValueError(f"it starts with {bytes(magic)!r}")
    if zlib.crc32(body) != checksum:
        raise ValueError("its checksum differs")
    contents = json.loads(bytes(body[:contents_size]))
    position = contents_size
    sections: dict[str, memoryview] = {}
    for name, size in zip(_SECTIONS, cast("list[int]", contents["sizes"]), strict=True):
        sections[name] = body[position : position + size]
        position += size
    return CompiledVocabulary(
        info=TokenizerInfo(**contents["info"]),
        texts=sections["texts"],
        offsets=sections["offsets"],
        types=sections["types"],
        ascii_model=CompiledModel(
            sections["ascii_document"], sections["ascii_ids"], dict(contents["ascii_spelled"])
        ),
        full_model=CompiledModel(
            sections["full_document"], sections["full_ids"], dict(contents["full_spelled"])
        ),
    )
