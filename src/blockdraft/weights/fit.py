"""Scales and offsets under which whole-number codes lose least: weighted least squares.

Every function takes many blocks, one a row. A trial scale gives codes, and the codes give the best
scale by a fit; the trial that loses least wins. Knows no layout of bytes.

Source: ordinary least squares; the search around the scale of the extreme value is the one that
ggml's quantizers made common.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["code", "fit_lines", "fit_scales", "line_errors"]

Floats = NDArray[np.float32]

# How much farther than the last code the extreme value is taken, in codes; of equals the first.
_SCALE_STEPS = tuple(np.float32(step / 10) for step in sorted(range(-9, 10), key=abs))
# More steps gain less than 0.3 %, as stored scales are coarse.
_LINE_STEPS = tuple(np.float32(step / 3) for step in range(-3, 4))
_ROUNDING = np.float32(1 + 1e-6)
# Less spread of the codes than this is rounding: one code apart in 32 gives ten times as much.
_SAME = np.float32(1e-5)


def code(blocks: Floats, scales: Floats, low: int, high: int) -> Floats:
    """Nearest codes in ``[low, high]``; a scale of 0 gives 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.where(scales == 0, np.float32(0), blocks / scales)
    return np.clip(np.rint(scaled), low, high)


def fit_scales(blocks: Floats, levels: int) -> Floats:
    """Scale of each block for codes in ``[-levels, levels)``.

    It has the sign that takes the value of largest size to the negative end, which has one code
    more.

    Args:
        blocks: "blocks size".
        levels: Codes below 0.
    """
    weights = _weigh(blocks)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    best_scale = np.zeros(len(blocks), np.float32)
    best_gain = np.zeros(len(blocks), np.float32)
    weighted = weights * blocks

    def attempt(scales: Floats) -> None:
        codes = code(blocks, scales, -levels, levels - 1)
        along = _dot(weighted, codes)
        size = _dot(weights * codes, codes)
        # The error of the best scale is sum(w x x) minus this.
        gain = _ratio(along * along, size)
        better = gain > best_gain * _ROUNDING
        best_gain[better] = gain[better]
        best_scale[better] = _ratio(along, size)[better]

    for step in _SCALE_STEPS:
        attempt(extreme / -(levels + step))
    attempt(best_scale[:, None])
    return best_scale


def fit_lines(blocks: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum of each block for ``scale * code - minimum``; neither is negative.

    Args:
        blocks: "blocks size".
        top: Last code; the first is 0.
    """
    weights = _weigh(blocks)
    low = np.minimum(blocks.min(1), 0)
    span = blocks.max(1) - low
    weighted = weights * blocks
    w, wx = weights.sum(1), weighted.sum(1)
    best_scale, best_minimum = np.zeros_like(low), -low
    best_error = np.full_like(low, np.inf)

    def attempt(scales: Floats, minima: Floats) -> None:
        codes = code(blocks + minima[:, None], scales[:, None], 0, top)
        weighted_codes = weights * codes
        wc, wcc, wxc = weighted_codes.sum(1), _dot(weighted_codes, codes), _dot(weighted, codes)
        determinant = w * wcc - wc * wc
        scale = _ratio(w * wxc - wx * wc, determinant)
        minimum = _ratio(wc * wxc - wcc * wx, determinant)
        # Where one code fits all, or the minimum would be negative: the best line through 0.
        through_zero = (determinant <= _SAME * w * wcc) | (minimum < 0)
        scale = np.where(through_zero, _ratio(wxc, wcc), scale)
        minimum = np.where(through_zero, np.float32(0), minimum)
        residual = scale[:, None] * codes - minimum[:, None] - blocks
        error = _dot(weights * residual, residual)
        better = (error < best_error) & (scale > 0)
        best_error[better] = error[better]
        best_scale[better] = scale[better]
        best_minimum[better] = minimum[better]

    for step in _LINE_STEPS:
        attempt(span / (top + step), -low)
    return best_scale, best_minimum


def line_errors(blocks: Floats, scales: Floats, minima: Floats, top: int) -> Floats:
    """Weighted squared error of each block under the nearest codes in ``[0, top]``.

    Args:
        blocks: "blocks size".
        scales: One for each block.
        minima: One for each block.
        top: Last code.
    """
    codes = code(blocks + minima[:, None], scales[:, None], 0, top)
    residual = scales[:, None] * codes - minima[:, None] - blocks
    return _dot(_weigh(blocks) * residual, residual)


def _weigh(blocks: Floats) -> Floats:
    """Weight of each value: its size plus the block's root mean square."""
    return np.abs(blocks) + np.sqrt(np.square(blocks).mean(1, keepdims=True))


def _dot(a: Floats, b: Floats) -> Floats:
    return np.einsum("ij,ij->i", a, b)


def _ratio(a: Floats, b: Floats) -> Floats:
    """``a / b``, 0 where ``b`` is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b > 0, a / b, np.float32(0))
