"""GGUF files: typed metadata and raw tensor bytes.

Reads with pread only: a file that shrinks under a memory map kills the process, under pread it
is an error. Knows no architecture and no value of a weight.
"""

import hashlib
import math
import os
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import FileFormatError
from blockdraft.weights.ggml_types import ggml_type_name
from blockdraft.weights.header import Header, MetaValue, StringArray, TensorInfo, read_header
from blockdraft.weights.pread import open_regular, read_into

__all__ = ["REQUIRED", "GGUFFile", "MetaValue", "StringArray", "TensorInfo", "ggml_type_name"]


class _Required(Enum):
    REQUIRED = "required"


# Default of a getter whose key has to be there.
REQUIRED: Final = _Required.REQUIRED

_NAMES = {bool: "a bool", int: "an integer", float: "a float", str: "a string"}
_PLURALS = {bool: "bools", int: "integers", float: "floats", str: "strings"}
_ELEMENTS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}

D = TypeVar("D")
T = TypeVar("T", bool, int, float, str)


def _element_type(value: StringArray | NDArray[Any]) -> type:
    return str if isinstance(value, StringArray) else _ELEMENTS[value.dtype.kind]


def _describe(value: MetaValue) -> str:
    if isinstance(value, StringArray | np.ndarray):
        return f"an array of {_PLURALS[_element_type(value)]}"
    return _NAMES[type(value)]


class GGUFFile:
    """An open GGUF file whose header was read and checked.

    Attributes:
        path: Where it was opened.
        metadata: Values by key, in the file's order; arrays are numpy or `StringArray`.
        tensors: Table entries by name, in the file's order.
    """

    def __init__(self, path: Path, descriptor: int, header: Header) -> None:
        """Wrap an open descriptor; use `open` instead."""
        self.path = path
        self.metadata = header.metadata
        self.tensors = header.tensors
        self._spans = header.spans
        self._descriptor: int | None = descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a file and read its header.

        Raises:
            FileFormatError: The file cannot be read or is damaged.
            UnsupportedError: Its version, byte order or a tensor type is not ours.
        """
        path = Path(path)
        descriptor = open_regular(path)
        try:
            header = read_header(descriptor, os.fstat(descriptor).st_size, path)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise FileFormatError(f"{path}: cannot be read: {reason}") from error
            raise
        return cls(path, descriptor, header)

    def close(self) -> None:
        """Close the file; metadata stays, tensors can no longer be read."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    # --- tensors

    def tensor(self, name: str) -> TensorInfo:
        """Table entry of ``name``.

        Raises:
            FileFormatError: The file has no such tensor.
        """
        if name not in self.tensors:
            raise FileFormatError(f"{self.path}: has no tensor {name!r}")
        return self.tensors[name]

    def read(self, name: str) -> NDArray[np.uint8]:
        """All bytes of a tensor.

        Raises:
            FileFormatError: The file has no such tensor, or shrank.
        """
        return self.read_rows(name, 0, self.tensor(name).rows)

    def read_rows(
        self, name: str, row_start: int, count: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Bytes of ``count`` rows of a tensor. Threads may call this at the same time.

        Args:
            name: Tensor.
            row_start: First row.
            count: Rows.
            out: Buffer of at least the needed bytes to read into; the result is a view of it.

        Raises:
            FileFormatError: The file has no such tensor, or shrank.
        """
        info = self.tensor(name)
        assert 0 <= row_start <= row_start + count <= info.rows
        nbytes = count * info.row_bytes
        data = np.empty(nbytes, np.uint8) if out is None else out[:nbytes]
        assert data.nbytes == nbytes
        self._read_into(data.data, info.offset + row_start * info.row_bytes, name)
        return data

    def _read_into(self, buffer: memoryview, offset: int, name: str) -> None:
        assert self._descriptor is not None, "the file is closed"
        read_into(self._descriptor, buffer, offset, path=self.path, name=name)

    # --- metadata

    def get_int(self, key: str, default: D | _Required = REQUIRED) -> int | D:
        """Integer under ``key``.

        Raises:
            FileFormatError: It is missing without a default, or not an integer.
        """
        return self._scalar(key, default, int)

    def get_float(self, key: str, default: D | _Required = REQUIRED) -> float | D:
        """Finite number under ``key``.

        Raises:
            FileFormatError: It is missing without a default, not a float, or not finite.
        """
        value = self._scalar(key, default, float)
        if isinstance(value, float) and not math.isfinite(value):
            raise FileFormatError(f"{self.path}: {key} is {value}, it must be finite")
        return value

    def get_str(self, key: str, default: D | _Required = REQUIRED) -> str | D:
        """String under ``key``.

        Raises:
            FileFormatError: It is missing without a default, or not a string.
        """
        return self._scalar(key, default, str)

    def get_bool(self, key: str, default: D | _Required = REQUIRED) -> bool | D:
        """Flag under ``key``.

        Raises:
            FileFormatError: It is missing without a default, or not a bool.
        """
        return self._scalar(key, default, bool)

    def get_list(
        self, key: str, default: D | _Required = REQUIRED, *, of: type | None = None
    ) -> list[Any] | D:
        """Array under ``key`` as a new list of bools, ints, floats or strings.

        Args:
            key: Metadata key.
            default: Returned when the key is missing.
            of: Required element type: bool, int, float or str; None takes any.

        Raises:
            FileFormatError: It is missing without a default, no array, of another element type,
                or a string in it is not valid UTF-8.
        """
        if key not in self.metadata and not isinstance(default, _Required):
            return default
        value = self._find(key)
        expected = f"an array of {_PLURALS[of]}" if of else "an array"
        if not isinstance(value, StringArray | np.ndarray):
            raise self._mismatch(key, value, expected)
        if of is not None and _element_type(value) is not of:
            raise self._mismatch(key, value, expected)
        return list(value) if isinstance(value, StringArray) else value.tolist()

    def metadata_digest(self) -> str:
        """SHA-256, in hex, of every ``tokenizer.*`` key with its value as stored."""
        digest = hashlib.sha256()
        for key in self._spans:
            if key.startswith("tokenizer."):
                digest.update(self.raw_entry(key))
        return digest.hexdigest()

    def raw_entry(self, key: str) -> bytes:
        """The bytes of ``key`` and its value as stored, for a copy in another file.

        Raises:
            FileFormatError: It is missing, or the file shrank.
        """
        self._find(key)
        start, end = self._spans[key]
        buffer = bytearray(end - start)
        self._read_into(memoryview(buffer), start, key)
        return bytes(buffer)

    def _mismatch(self, key: str, value: MetaValue, expected: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: {key} is {_describe(value)}, it must be {expected}")

    def _find(self, key: str) -> MetaValue:
        if key not in self.metadata:
            raise FileFormatError(f"{self.path}: has no metadata key {key}")
        return self.metadata[key]

    def _scalar(self, key: str, default: D | _Required, kind: type[T]) -> T | D:
        if key not in self.metadata and not isinstance(default, _Required):
            return default
        value = self._find(key)
        # The exact type: a bool is an int to Python, not to GGUF.
        if type(value) is not kind:
            raise self._mismatch(key, value, _NAMES[kind])
        return value
