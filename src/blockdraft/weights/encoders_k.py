"""Float32 blocks of 256 values to the bytes of GGUF's K types.

A block has small blocks with scales of their own, which are whole numbers times one scale of the
whole block. Knows no file and no tensor's name.

Source: the block layouts in the documentation of the ggml project.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from blockdraft.weights.fit import code, fit_lines, fit_scales, line_errors

__all__ = ["to_q4_k", "to_q6_k"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def to_q4_k(blocks: Floats) -> Bytes:
    """Blocks of 8 times 32 codes in [0, 15]: scale times code minus minimum.

    Args:
        blocks: "blocks 256".

    Returns:
        "blocks 144": both scales of scales, 6-bit scales and minima, codes.
    """
    count = len(blocks)
    parts = blocks.reshape(-1, 32)
    scales, minima = (_six_bits(each.reshape(count, 8)) for each in fit_lines(parts, 15))
    _search_neighbours(parts, scales, minima)
    codes = code(parts + minima.values()[:, None], scales.values()[:, None], 0, 15)
    halves = codes.astype(np.uint8).reshape(count, 4, 2, 32)
    return np.hstack(
        [
            scales.stored.view(np.uint8),
            minima.stored.view(np.uint8),
            _pack_six_bits(scales.steps.astype(np.uint8), minima.steps.astype(np.uint8)),
            (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(count, 128),
        ]
    )


def to_q6_k(blocks: Floats) -> Bytes:
    """Blocks of 16 times 16 codes in [-32, 31] under signed 8-bit scales.

    Args:
        blocks: "blocks 256".

    Returns:
        "blocks 210": low four bits, high two bits, scales, scale of the scales.
    """
    count = len(blocks)
    parts = blocks.reshape(-1, 16)
    fitted = fit_scales(parts, 32).reshape(count, 16)
    extreme = np.take_along_axis(fitted, np.abs(fitted).argmax(1)[:, None], 1)
    stored = (extreme / -128).astype("<f2")
    whole = stored.astype(np.float32)
    steps = code(fitted, whole, -128, 127)
    codes = code(parts, (whole * steps).reshape(-1, 1), -32, 31) + 32
    quarters = codes.astype(np.uint8).reshape(count, 2, 4, 32)
    low = quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4
    high = quarters >> 4 << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.hstack(
        [
            low.reshape(count, 128),
            np.bitwise_or.reduce(high, axis=2).reshape(count, 64),
            steps.astype(np.int8).view(np.uint8),
            stored.view(np.uint8),
        ]
    )


@dataclass(slots=True)
class _Stepped:
    """Eight numbers of each block as they are stored: ``stored * steps``.

    Attributes:
        stored: "blocks 1".
        steps: "blocks 8", whole numbers in [0, 63].
    """

    stored: NDArray[np.float16]
    steps: Floats

    def values(self, change: int = 0) -> Floats:
        """One number for each small block, with ``change`` added to its step."""
        return (self.stored.astype(np.float32) * self.moved(change)).ravel()

    def moved(self, change: int) -> Floats:
        """The steps with ``change`` added."""
        return np.clip(self.steps + change, 0, 63)


def _six_bits(values: Floats) -> _Stepped:
    stored = (values.max(1, keepdims=True) / 63).astype("<f2")
    return _Stepped(stored, code(values, stored.astype(np.float32), 0, 63))


def _search_neighbours(parts: Floats, scales: _Stepped, minima: _Stepped) -> None:
    """Move a scale and a minimum by one step where that loses less than their nearest steps."""
    shape = scales.steps.shape
    best_error = line_errors(parts, scales.values(), minima.values(), 15).reshape(shape)
    best = scales.steps, minima.steps
    for changes in product((-1, 0, 1), repeat=2):
        if changes == (0, 0):
            continue
        pair = scales.values(changes[0]), minima.values(changes[1])
        error = line_errors(parts, *pair, 15).reshape(shape)
        moved = scales.moved(changes[0]), minima.moved(changes[1])
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best = np.where(better, moved[0], best[0]), np.where(better, moved[1], best[1])
    scales.steps, minima.steps = best


def _pack_six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Twelve bytes of eight scales and eight minima.

    The first four of each have a byte, whose two free bits are the top ones of the last four.
    """
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return np.hstack([first, second, third])
