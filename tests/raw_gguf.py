"""A GGUF writer without opinions: it writes damaged files as readily as sound ones.

Source: the GGUF specification in the documentation of the ggml project.
"""

import struct
from collections.abc import Sequence
from typing import Any

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
HUGE = 2**64 - 1


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string after its length, which may be a lie."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """A metadata key with its value."""
    return text(key) + struct.pack("<I", kind) + payload


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    """A metadata key with an array."""
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + payload)


def value_entry(key: str, value: Any) -> bytes:
    """A metadata key with a Python value: integers become u32, or i32 if negative, floats f32."""
    if isinstance(value, list):
        kind, _ = _encode(value[0])
        return array(key, kind, len(value), b"".join(_encode(item)[1] for item in value))
    return entry(key, *_encode(value))


def _encode(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return BOOL, bytes([value])
    if isinstance(value, int):
        return (U32, struct.pack("<I", value)) if value >= 0 else (I32, struct.pack("<i", value))
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    return STRING, text(value)


def tensor(
    name: str | bytes, sizes: Sequence[int] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    """An entry of the tensor table; ``sizes`` in the file's order, columns first."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def build(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    start: bytes = b"GGUF" + struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
    data: bytes | int = 256,
) -> bytes:
    """A file; only arguments that were given can make it unsound.

    Args:
        keys: Entries of the metadata.
        tensors: Entries of the tensor table.
        start: Magic and version.
        counts: Numbers of tensors and of keys that the header states, or None for the true ones.
        data: Bytes after the header, or how many zeros.
    """
    raw = start + struct.pack("<QQ", *(counts or (len(tensors), len(keys))))
    raw += b"".join(keys) + b"".join(tensors)
    return raw + bytes(-len(raw) % 32) + (bytes(data) if isinstance(data, int) else data)
