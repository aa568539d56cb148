"""Float32 rows to the bytes of a GGUF tensor type, all blocks at once.

A block of whole-number codes times a scale loses least squared error where each value weighs by
its size: what is large moves a product most. The scale is searched near the one that takes the
largest value to the last code; of each trial's codes the best scale is a least-squares fit.
Types with blocks of blocks are in `encoders_k`. Knows no file and no tensor's name.

Source: the block layouts in the documentation of the ggml project.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from blockdraft.weights.encoders_k import to_q4_k, to_q6_k
from blockdraft.weights.fit import code, fit_scales
from blockdraft.weights.ggml_types import SUPPORTED_TYPES

__all__ = ["ENCODABLE", "encode"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_PIECE_VALUES = 1 << 17  # the arrays of one piece stay in a core's cache
_BLOCK = 32
_LOW_BITS = np.uint8(15)
_SMALLEST = np.finfo(np.float32).tiny


def encode(ggml_type: int, rows: Floats) -> Bytes:
    """Bytes of ``rows`` in a tensor type.

    Args:
        ggml_type: GGML's number, one of `ENCODABLE`.
        rows: Finite values, "rows cols"; cols is a whole number of the type's blocks.

    Returns:
        "rows row_bytes".
    """
    info = SUPPORTED_TYPES[ggml_type]
    num_rows, cols = rows.shape
    assert cols % info.block_size == 0, (info.name, cols)
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, info.block_size)
    encoded = np.empty((len(blocks), info.block_bytes), np.uint8)
    step = _PIECE_VALUES // info.block_size
    for start in range(0, len(blocks), step):
        piece = slice(start, start + step)
        encoded[piece] = _ENCODERS[ggml_type](blocks[piece])
    return encoded.reshape(num_rows, -1)


# --- plain numbers


def _to_f32(values: Floats) -> Bytes:
    return values.astype("<f4", copy=False).view(np.uint8)


def _to_f16(values: Floats) -> Bytes:
    return values.astype("<f2").view(np.uint8)


def _to_bf16(values: Floats) -> Bytes:
    """Round to nearest, of two equally near to the even one."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)


# --- blocks of 32 values and one scale


def _to_q8_0(blocks: Floats) -> Bytes:
    """The largest value takes code 127 or -127; what lies between two codes goes outwards."""
    scales = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverses = np.where(scales < _SMALLEST, np.float32(0), 1 / scales)
    scaled = blocks * inverses
    whole = np.trunc(scaled)
    codes = whole + np.trunc(2 * (scaled - whole))
    return np.hstack([_half(scales), codes.astype(np.int8).view(np.uint8)])


def _to_q4_0(blocks: Floats) -> Bytes:
    scales, codes = _signed_codes(blocks, levels=8)
    return np.hstack([scales, _nibbles(codes)])


def _to_q5_0(blocks: Floats) -> Bytes:
    scales, codes = _signed_codes(blocks, levels=16)
    fifth_bits = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.hstack([scales, fifth_bits, _nibbles(codes & _LOW_BITS)])


def _signed_codes(blocks: Floats, *, levels: int) -> tuple[Bytes, Bytes]:
    """Scales as stored, and codes in ``[0, 2 * levels)`` of which ``levels`` stands for 0."""
    stored = fit_scales(blocks, levels).astype("<f2")
    codes = code(blocks, stored.astype(np.float32)[:, None], -levels, levels - 1)
    return stored[:, None].view(np.uint8), (codes + levels).astype(np.uint8)


def _half(scales: Floats) -> Bytes:
    return scales.astype("<f2").view(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    """Code i in the low and code i + 16 in the high half of byte i."""
    half = _BLOCK // 2
    return codes[:, :half] | codes[:, half:] << np.uint8(4)


_ENCODERS: dict[int, Callable[[Floats], Bytes]] = {
    0: _to_f32,
    1: _to_f16,
    2: _to_q4_0,
    6: _to_q5_0,
    8: _to_q8_0,
    12: to_q4_k,
    14: to_q6_k,
    30: _to_bf16,
}

ENCODABLE = frozenset(_ENCODERS)
"""GGML's numbers of the types that can be written."""
