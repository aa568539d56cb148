"""Safetensors files: the tensors of a Hugging Face folder as raw bytes.

The header is read and checked by the `safetensors` library, which refuses overlaps, holes and
sizes that differ from the file's. The bytes are read with pread, as in `gguf` and for its reason;
the library has no bfloat16 without torch. Knows no network and no value.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import safetensors
from numpy.typing import NDArray

from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.ggml_types import INDEX_TYPES, SUPPORTED_TYPES
from blockdraft.weights.header import TensorInfo
from blockdraft.weights.pread import open_regular, read_into

__all__ = ["SafetensorsFolder", "read_json"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# GGML's types with the same bytes; masks of flags are kept as bytes.
_GGML_TYPES = {"F32": 0, "F16": 1, "BF16": 30, "BOOL": 24, "I8": 24, "U8": 24, "I32": 26, "I64": 27}
_MAX_JSON_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileFormatError: The file cannot be read, is too large, is no JSON or holds no object.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > _MAX_JSON_BYTES:
            raise FileFormatError(f"{path}: has {size} bytes; at most {_MAX_JSON_BYTES} are read")
        raw = bytearray(size)
        read_into(descriptor, memoryview(raw), 0, path=path, name="its text")
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is no JSON: {error}") from error
    finally:
        os.close(descriptor)
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: holds no JSON object")
    return value


@dataclass(frozen=True, slots=True)
class _File:
    """One open file and its tensors."""

    path: Path
    descriptor: int
    tensors: tuple[TensorInfo, ...]


class SafetensorsFolder:
    """The open weights of a Hugging Face folder: one file, or shards and their index.

    Attributes:
        path: The folder.
        tensors: Entries by the names in the files; offsets count from the start of each file.
    """

    def __init__(self, path: Path, files: list[_File]) -> None:
        """Wrap open files; use `open` instead."""
        self.path = path
        self.tensors = {info.name: info for file in files for info in file.tensors}
        self._homes = {info.name: file for file in files for info in file.tensors}
        self._files = files

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, extra_files: tuple[str, ...] = ()) -> Self:
        """Open the weights of ``folder``.

        Args:
            folder: Where ``model.safetensors`` is, or its shards and their index.
            extra_files: Files that are read too, if they are there.

        Raises:
            FileFormatError: A file is missing, cannot be read or is damaged, or files disagree.
            UnsupportedError: A tensor has a type that is not ours.
        """
        path = Path(folder)
        shards = _shards(path)
        names = sorted(set(shards.values())) if shards else [_SINGLE]
        names += [name for name in extra_files if (path / name).exists()]
        files: list[_File] = []
        try:
            for name in names:
                files.append(_open_file(path / name))
            _check_names(path, files, shards)
        except BaseException:
            _close(files)
            raise
        return cls(path, files)

    def close(self) -> None:
        """Close the files; tensors can no longer be read."""
        _close(self._files)
        self._files = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def tensor(self, name: str) -> TensorInfo:
        """Entry of ``name``.

        Raises:
            FileFormatError: There is no such tensor.
        """
        if name not in self.tensors:
            raise FileFormatError(f"{self.path}: has no tensor {name!r}")
        return self.tensors[name]

    def read(self, name: str) -> NDArray[np.uint8]:
        """All bytes of a tensor.

        Raises:
            FileFormatError: There is no such tensor, or its file shrank.
        """
        return self.read_rows(name, 0, self.tensor(name).rows)

    def read_rows(
        self, name: str, row_start: int, count: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Bytes of ``count`` rows of a tensor, in ``out`` if given. Threads may call this at once.

        Raises:
            FileFormatError: There is no such tensor, or its file shrank.
        """
        info = self.tensor(name)
        assert 0 <= row_start <= row_start + count <= info.rows
        assert self._files, "the folder is closed"
        nbytes = count * info.row_bytes
        data = np.empty(nbytes, np.uint8) if out is None else out[:nbytes]
        assert data.nbytes == nbytes
        home = self._homes[name]
        offset = info.offset + row_start * info.row_bytes
        read_into(home.descriptor, data.data, offset, path=home.path, name=name)
        return data


def _close(files: list[_File]) -> None:
    for file in files:
        os.close(file.descriptor)


def _shards(folder: Path) -> dict[str, str]:
    """File of each tensor as the index says; empty where there is none."""
    if not (folder / _INDEX).exists():
        return {}
    path = folder / _INDEX
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FileFormatError(f"{path}: has no weight_map")
    for tensor, name in shards.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise FileFormatError(f"{path}: {tensor} is in {name!r}, which is no file name")
    return shards


def _check_names(folder: Path, files: list[_File], shards: dict[str, str]) -> None:
    """Refuse a tensor that is in two files or not in the one that the index names."""
    homes: dict[str, str] = {}
    for file in files:
        for info in file.tensors:
            if info.name in homes:
                raise FileFormatError(
                    f"{folder}: tensor {info.name} is both in {homes[info.name]} and in"
                    f" {file.path.name}"
                )
            homes[info.name] = file.path.name
    for tensor, name in shards.items():
        if homes.get(tensor) != name:
            raise FileFormatError(f"{folder / name}: has no tensor {tensor!r}")


def _open_file(path: Path) -> _File:
    descriptor = open_regular(path)
    try:
        return _File(path, descriptor, tuple(_read_header(path, descriptor)))
    except BaseException:
        os.close(descriptor)
        raise


def _read_header(path: Path, descriptor: int) -> Iterator[TensorInfo]:
    """Entries in file order; the library has made sure that they fill the file without holes."""
    raw = bytearray(8)
    read_into(descriptor, memoryview(raw), 0, path=path, name="its header")
    offset = 8 + int.from_bytes(raw, "little")
    entries = []
    try:
        with safetensors.safe_open(path, "numpy", backend="pread") as opened:
            for name in opened.offset_keys():
                part = opened.get_slice(name)
                entries.append((name, part.get_dtype(), tuple(part.get_shape())))
    except (safetensors.SafetensorError, OSError) as error:
        raise FileFormatError(f"{path}: is damaged: {error}") from error
    for name, dtype, shape in entries:
        info = _entry(path, name, dtype, shape, offset)
        offset += info.nbytes
        yield info
    if offset != os.fstat(descriptor).st_size:
        raise FileFormatError(
            f"{path}: changed while it was read: tensors end at byte {offset}, the file has"
            f" {os.fstat(descriptor).st_size}"
        )


def _entry(path: Path, name: str, dtype: str, shape: tuple[int, ...], offset: int) -> TensorInfo:
    if dtype not in _GGML_TYPES:
        raise UnsupportedError(
            f"{path}: tensor {name} has type {dtype}; supported are {', '.join(_GGML_TYPES)}"
        )
    if not shape or 0 in shape:
        raise FileFormatError(f"{path}: tensor {name} has shape {list(shape)} without values")
    number = _GGML_TYPES[dtype]
    value_bytes = (SUPPORTED_TYPES.get(number) or INDEX_TYPES[number]).block_bytes
    return TensorInfo(name, shape, number, offset, math.prod(shape) * value_bytes)
