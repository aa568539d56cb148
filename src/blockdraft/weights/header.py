"""The header of a GGUF file, versions 2 and 3, little endian: metadata and tensor table.

Trusts nothing it reads: every count and offset is compared with the size of the file before
anything is read or allocated. Big arrays of strings are walked here and decoded when first used,
so that opening a file takes milliseconds. Knows no architecture and reads no tensor.

Source: the GGUF specification in the documentation of the ggml project.
"""

import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.ggml_types import INDEX_TYPES, SUPPORTED_TYPES, ggml_type_name

__all__ = ["Header", "MetaValue", "StringArray", "TensorInfo", "read_header"]

_FIRST_WINDOW = 1 << 20
_MAX_HEADER_BYTES = 1 << 28
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 16
_MAX_ARRAY = 1 << 24
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 127
_MAX_STRING_BYTES = 1 << 24
_MAX_ALIGNMENT = 1 << 16

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class StringArray(Sequence[str]):
    """A metadata array of strings, decoded as a whole when first read."""

    def __init__(self, data: bytes, count: int, label: str) -> None:
        """Wrap ``count`` length-prefixed strings whose lengths were checked to fill ``data``."""
        self._data = data
        self._count = count
        self._label = label
        self._strings: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.to_list()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def is_same(self, other: "StringArray") -> bool:
        """Whether both have the same strings; decodes none."""
        return self._data == other._data

    def to_list(self) -> list[str]:
        """All strings; the same list at every call.

        Raises:
            FileFormatError: A string is not valid UTF-8.
        """
        if self._strings is None:
            self._strings = self._decode()
            self._data = b""
        return self._strings

    def _decode(self) -> list[str]:
        data, unpack, position = self._data, _U64.unpack_from, 0
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(self._count):
                start = position + 8
                position = start + unpack(data, position)[0]
                append(data[start:position].decode())
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self._label}[{len(strings)}] is not valid UTF-8: {error.reason}"
                f" at its byte {error.start}"
            ) from None
        return strings


MetaValue: TypeAlias = bool | int | float | str | StringArray | NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table, checked against the file.

    Attributes:
        name: Unique name.
        shape: Sizes in numpy order: the last is the one contiguous in the file.
        ggml_type: GGML's type number, a supported one.
        offset: First byte, counted from the start of the file.
        nbytes: Size in the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int

    @property
    def cols(self) -> int:
        """Values per row."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Rows of ``cols`` values; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.nbytes // self.rows


@dataclass(frozen=True, slots=True)
class Header:
    """All of a file before its tensor data.

    Attributes:
        metadata: Values by key, in the file's order.
        spans: First and one past the last byte of each key with its value.
        tensors: Table entries by name, in the file's order.
    """

    metadata: dict[str, MetaValue]
    spans: dict[str, tuple[int, int]]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """A position in the file's header and the window of it that was read so far."""

    def __init__(self, descriptor: int, size: int, path: Path) -> None:
        self.descriptor = descriptor
        self.size = size
        self.path = path
        self.position = 0
        self.data = b""

    def error(self, message: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: {message}")

    def need(self, count: int, what: str) -> None:
        """Make the next ``count`` bytes readable, or say why they cannot be."""
        end = self.position + count
        if end > self.size:
            raise self.error(
                f"truncated or damaged: {what} ends at byte {end}, the file has {self.size}"
            )
        if end > _MAX_HEADER_BYTES:
            raise self.error(
                f"{what} ends at byte {end}, a header may have at most {_MAX_HEADER_BYTES}"
            )
        if end > len(self.data):
            window = min(self.size, max(end, 2 * len(self.data), _FIRST_WINDOW))
            more = os.pread(self.descriptor, window - len(self.data), len(self.data))
            self.data += more
            if len(self.data) < end:
                raise self.error(f"shrank while it was read: byte {end} is no longer there")

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        self.need(layout.size, what)
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def string(self, what: str, limit: int) -> str:
        length = self.scalar(_U64, f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} has {length} bytes, at most {limit} are allowed")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"{what} is not valid UTF-8: {error.reason} at its byte {error.start}"
            ) from None

    def string_array(self, count: int, what: str) -> StringArray:
        """Walk over ``count`` strings; only their lengths are looked at."""
        start, position, done, unpack = self.position, self.position, 0, _U64.unpack_from
        while done < count:
            data = self.data
            try:
                for _ in range(done, count):
                    position += 8 + unpack(data, position)[0]
                    done += 1
            except (struct.error, OverflowError):
                self.position = position
                self.need(8, f"the length of {what}[{done}]")
        self.position = start
        raw = self.take(position - start, f"{what}[{count - 1}]")
        return StringArray(raw, count, f"{self.path}: {what}")

    def array(self, what: str) -> MetaValue:
        kind = self.scalar(_U32, f"the element type of {what}")
        count = self.scalar(_U64, f"the count of {what}")
        if kind != _STRING and kind != _BOOL and kind not in _SCALARS:
            found = "an array" if kind == _ARRAY else f"type number {kind}"
            raise self.error(f"{what} is an array of {found}, which GGUF does not allow here")
        if count > _MAX_ARRAY:
            raise self.error(f"{what} has {count} elements, at most {_MAX_ARRAY} are allowed")
        if kind == _STRING:
            self.need(8 * count, f"{what} of {count} strings")
            return self.string_array(count, what)
        code = "u1" if kind == _BOOL else _SCALARS[kind].format
        dtype = np.dtype(code)
        raw = self.take(dtype.itemsize * count, f"{what} of {count} elements")
        values = np.frombuffer(raw, dtype)
        if kind == _BOOL:
            if count and values.max() > 1:
                raise self.error(f"{what} holds a byte {values.max()}, a bool is 0 or 1")
            values = values.view(np.bool_)
        return values

    def value(self, what: str) -> MetaValue:
        kind = self.scalar(_U32, f"the type of {what}")
        if kind == _STRING:
            return self.string(what, _MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(what)
        if kind == _BOOL:
            number: int = self.scalar(_SCALARS[0], what)
            if number > 1:
                raise self.error(f"{what} is the byte {number}, a bool is 0 or 1")
            return bool(number)
        if kind not in _SCALARS:
            raise self.error(f"{what} has type number {kind}, GGUF defines 0 to 12")
        result: int | float = self.scalar(_SCALARS[kind], what)
        return result


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return the counts of tensors and of keys."""
    magic = cursor.take(4, "the magic")
    if magic != b"GGUF":
        raise cursor.error(f"is not a GGUF file: it starts with {magic!r}, not b'GGUF'")
    version = cursor.scalar(_U32, "the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(f"{cursor.path}: is big-endian GGUF; blockdraft reads little-endian")
    if version not in (2, 3):
        raise UnsupportedError(
            f"{cursor.path}: is GGUF version {version}; blockdraft reads versions 2 and 3"
        )
    counts = []
    # A tensor takes at least 32 bytes of header, a key at least 13.
    for what, limit, least in (("tensor", _MAX_TENSORS, 32), ("key", _MAX_KEYS, 13)):
        count = cursor.scalar(_U64, f"the {what} count")
        most = min(limit, (cursor.size - cursor.position) // least)
        if count > most:
            raise cursor.error(
                f"truncated or damaged: the {what} count is {count},"
                f" a file of {cursor.size} bytes has at most {most}"
            )
        counts.append(count)
    return counts[0], counts[1]


def _read_metadata(
    cursor: _Cursor, count: int
) -> tuple[dict[str, MetaValue], dict[str, tuple[int, int]]]:
    """Return the values and the byte range of each key with its value."""
    metadata: dict[str, MetaValue] = {}
    spans: dict[str, tuple[int, int]] = {}
    for index in range(count):
        start = cursor.position
        key = cursor.string(f"key {index}", _MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
        spans[key] = (start, cursor.position)
    return metadata, spans


def _read_tensor(cursor: _Cursor, index: int) -> TensorInfo:
    """Read one table entry; its offset still counts from the start of the data."""
    name = cursor.string(f"the name of tensor {index}", _MAX_NAME_BYTES)
    num_dims = cursor.scalar(_U32, f"the dimension count of {name!r}")
    if not 1 <= num_dims <= 4:
        raise cursor.error(f"tensor {name!r} has {num_dims} dimensions, 1 to 4 are allowed")
    sizes = [cursor.scalar(_U64, f"the shape of {name!r}") for _ in range(num_dims)]
    if 0 in sizes:
        raise cursor.error(f"tensor {name!r} has a dimension of size 0: {sizes}")
    number = cursor.scalar(_U32, f"the type of {name!r}")
    offset = cursor.scalar(_U64, f"the offset of {name!r}")
    info = SUPPORTED_TYPES.get(number) or INDEX_TYPES.get(number)
    if info is None:
        raise UnsupportedError(
            f"{cursor.path}: tensor {name} has type {ggml_type_name(number)},"
            " which blockdraft does not support"
        )
    if sizes[0] % info.block_size:
        raise cursor.error(
            f"tensor {name!r} has {sizes[0]} columns, {info.name} needs a multiple of"
            f" {info.block_size}"
        )
    nbytes = math.prod(sizes) // info.block_size * info.block_bytes
    return TensorInfo(name, tuple(reversed(sizes)), number, offset, nbytes)


def _read_alignment(cursor: _Cursor, metadata: dict[str, MetaValue]) -> int:
    value = metadata.get("general.alignment", 32)
    # Not isinstance: a bool is an int to Python.
    if type(value) is not int or not 8 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise cursor.error(
            f"general.alignment is {value}, it must be a power of two from 8 to {_MAX_ALIGNMENT}"
        )
    return value


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Read the table and place it in the file: aligned, inside, no two overlapping."""
    entries = [_read_tensor(cursor, index) for index in range(count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        name, offset = entry.name, entry.offset
        if name in tensors:
            raise cursor.error(f"tensor {name!r} occurs twice")
        if offset % alignment:
            raise cursor.error(
                f"tensor {name!r} is misaligned: offset {offset}, alignment {alignment}"
            )
        if start + offset + entry.nbytes > cursor.size:
            raise cursor.error(
                f"truncated or damaged: tensor {name!r} ends at byte"
                f" {start + offset + entry.nbytes}, the file has {cursor.size}"
            )
        tensors[name] = TensorInfo(name, entry.shape, entry.ggml_type, start + offset, entry.nbytes)
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise cursor.error(
                f"tensors {before.name!r} and {after.name!r} overlap: the first ends at byte"
                f" {before.offset + before.nbytes}, the second starts at {after.offset}"
            )
    return tensors


def read_header(descriptor: int, size: int, path: Path) -> Header:
    """Read and check the header of the open file ``descriptor`` of ``size`` bytes.

    Args:
        descriptor: Open for reading; its position is neither used nor moved.
        size: Length of the file.
        path: Only for messages.

    Raises:
        FileFormatError: The file is damaged; the message has the two facts that disagree.
        UnsupportedError: Its version, byte order or a tensor type is not ours.
    """
    cursor = _Cursor(descriptor, size, path)
    num_tensors, num_keys = _read_counts(cursor)
    metadata, spans = _read_metadata(cursor, num_keys)
    alignment = _read_alignment(cursor, metadata)
    return Header(metadata, spans, _read_tensors(cursor, num_tensors, alignment))
