"""Writes a safetensors file tensor by tensor.

The `safetensors` library wants all values of a file at once, and has no bfloat16 without torch.
Knows no name and no configuration.

Source: the description of the format in the safetensors project: the length of a JSON table, the
table, the values in its order without gaps.
"""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.weights.replacing import replacing

__all__ = ["SafetensorsEntry", "write_safetensors"]

_ALIGNMENT = 8
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One tensor of a file.

    Attributes:
        name: Unique name.
        dtype: The format's name of its type: F32, F16, BF16 or I64.
        shape: Sizes, the last one contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


def write_safetensors(
    path: Path, entries: Iterable[SafetensorsEntry], values: Iterable[NDArray[Any]]
) -> None:
    """Write a file; one that is there is replaced when the new one is whole.

    Args:
        path: The file.
        entries: Its tensors, in their order.
        values: Their bytes in that order; each is asked for when those before it are written.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    entries = list(entries)
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.nbytes
        table[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        for entry, data in zip(entries, values, strict=True):
            assert data.nbytes == entry.nbytes, entry.name
            file.write(np.ascontiguousarray(data).data)
