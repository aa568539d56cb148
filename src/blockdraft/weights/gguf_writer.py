"""Writes a GGUF file, version 3, little endian, tensor by tensor.

Knows no architecture and no value of a weight.

Source: the GGUF specification in the documentation of the ggml project.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockdraft.weights.ggml_types import INDEX_TYPES, SUPPORTED_TYPES
from blockdraft.weights.replacing import replacing

__all__ = ["NewTensor", "NewValue", "RawEntry", "write_gguf"]

_ALIGNMENT = 32
_BOOL, _STRING, _ARRAY = 7, 8, 9
_KINDS = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": _BOOL,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}


@dataclass(frozen=True, slots=True)
class RawEntry:
    """A key with its value as another file has them.

    Attributes:
        data: All bytes, those of the key included.
    """

    data: bytes


NewValue: TypeAlias = (
    bool | int | float | str | np.generic | NDArray[Any] | Sequence[str] | RawEntry
)
"""Python integers are written as uint32 and floats as float32; numpy values keep their type."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """One tensor of a file to write.

    Attributes:
        name: Unique name.
        shape: Sizes in numpy order: the last is the one contiguous in the file.
        ggml_type: GGML's number of a type that `weights.ggml_types` knows.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        info = SUPPORTED_TYPES.get(self.ggml_type) or INDEX_TYPES[self.ggml_type]
        count = int(np.prod(self.shape))
        assert self.shape[-1] % info.block_size == 0, (self.name, info.name)
        return count // info.block_size * info.block_bytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, NewValue],
    tensors: Iterable[NewTensor],
    values: Iterable[NDArray[Any]],
) -> None:
    """Write a file; one that is there is replaced when the new one is whole.

    Args:
        path: The file.
        metadata: Values by key, in their order.
        tensors: Entries of the table, in their order.
        values: The tensors' bytes in that order; each is asked for when those before it are
            written.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    tensors = list(tensors)
    keys = [_entry(key, value) for key, value in metadata.items()]
    table, offset = [], 0
    for tensor in tensors:
        table.append(_table_entry(tensor, offset))
        offset += _aligned(tensor.nbytes)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    header += b"".join(keys) + b"".join(table)
    with replacing(path) as file:
        file.write(header + bytes(_aligned(len(header)) - len(header)))
        for tensor, data in zip(tensors, values, strict=True):
            assert data.nbytes == tensor.nbytes, tensor.name
            file.write(np.ascontiguousarray(data).data)
            file.write(bytes(_aligned(data.nbytes) - data.nbytes))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _entry(key: str, value: NewValue) -> bytes:
    if isinstance(value, RawEntry):
        return value.data
    if isinstance(value, np.ndarray):
        return _array(key, _KINDS[value.dtype.name], len(value), _little(value).tobytes())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array(key, _STRING, len(value), b"".join(map(_text, value)))
    return _text(key) + _scalar(value)


def _array(key: str, kind: int, count: int, items: bytes) -> bytes:
    return _text(key) + struct.pack("<IIQ", _ARRAY, kind, count) + items


def _scalar(value: bool | int | float | str | np.generic) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        value = np.bool_(value)
    elif isinstance(value, int):
        value = np.uint32(value)
    elif isinstance(value, float) and not isinstance(value, np.float64):
        value = np.float32(value)
    return struct.pack("<I", _KINDS[value.dtype.name]) + _little(np.asarray(value)).tobytes()


def _little(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("<"))


def _table_entry(tensor: NewTensor, offset: int) -> bytes:
    sizes = tensor.shape[::-1]
    kind_offset = struct.pack("<IQ", tensor.ggml_type, offset)
    return _text(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + kind_offset
