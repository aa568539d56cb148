"""docs/numerics.md in numpy: what a pass must give, to the bit, written without the native core.

Slow and plain. Every array is float32 unless it says otherwise; "n." in a docstring names a
section of the specification.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import RopeConfig
from blockdraft.ops.rope import attention_factor, inverse_frequencies

__all__ = [
    "SPEC_TYPES",
    "Floats",
    "SpecMatrix",
    "attention",
    "capped",
    "decode",
    "fma",
    "gelu",
    "matmul",
    "quantize",
    "rms_norm",
    "rotate",
    "silu",
    "stored",
]

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
f32 = np.float32
CHUNK = 64
LANES = 16
GROUP = 32


def fma(a: Any, b: Any, c: Any) -> Floats:
    """``a * b + c`` rounded once: exact product and sum in binary64, rounded to odd, then down."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact: 48 bits
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    head = total - addend
    error = np.asarray((product - head) + (addend - (total - head)))
    inexact = error != 0  # one in fifty
    bits, away = total[inexact].view(np.int64), (error[inexact] > 0) == (total[inexact] > 0)
    odd = np.where(bits & 1, bits, bits + np.where(away, 1, -1))
    total[inexact] = odd.view(np.float64)
    return total.astype(np.float32)


def fold(lanes: Floats) -> Floats:
    """4. Sum of 16 lanes on the last axis: (i, i+8), (i, i+4), (i, i+2), (i, i+1)."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """4. Norm over the last axis."""
    acc = np.zeros((*x.shape[:-1], LANES), np.float32)
    for i in range(0, x.shape[-1], LANES):
        acc = fma(x[..., i : i + LANES], x[..., i : i + LANES], acc)
    r = f32(1) / np.sqrt(fold(acc) / f32(x.shape[-1]) + f32(eps))
    return (x * r[..., None]) * weight


# --- 5. functions


def exp(x: Floats) -> Floats:
    clamped = np.minimum(np.maximum(x, f32(-87.5)), f32(88))
    n = np.rint(clamped * f32(1.44269504088896341))
    r = fma(n, f32(-0.693145751953125), clamped)
    r = fma(n, f32(-1.42860682030941723e-6), r)
    p = np.full_like(r, f32(1 / 720))
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1, 1):
        p = fma(p, r, f32(coefficient))
    return np.where(clamped < -87, f32(0), np.ldexp(p, n.astype(np.int32)))


def tanh(u: Floats) -> Floats:
    return f32(1) - f32(2) / (exp(u + u) + f32(1))


def silu(x: Floats) -> Floats:
    return x / (f32(1) + exp(-x))


def gelu(x: Floats) -> Floats:
    u = f32(0.7978845608) * fma(f32(0.044715) * x, x * x, x)
    return (f32(0.5) * x) * (f32(1) + tanh(u))


def capped(x: Floats, cap: float | None) -> Floats:
    return x if cap is None else f32(cap) * tanh(x / f32(cap))


# --- 1. weights


@dataclass(frozen=True)
class SpecMatrix:
    """Weights "rows cols".

    Attributes:
        q: Float type: the weights. Otherwise int32 ``q - o``.
        s: Scales "rows parts"; a part is a group of 32 columns, or half of one. None: float type.
        z: Minima alike, or None.
    """

    q: NDArray[Any]
    s: Floats | None = None
    z: Floats | None = None

    @property
    def part(self) -> int:
        """Columns that share a scale."""
        assert self.s is not None
        return self.q.shape[1] // self.s.shape[1]

    def values(self) -> Floats:
        """All weights as numbers."""
        if self.s is None:
            return self.q.astype(np.float32)
        s = np.repeat(self.s, self.part, axis=1)
        z = np.zeros_like(s) if self.z is None else np.repeat(self.z, self.part, axis=1)
        return fma(s, self.q.astype(np.float32), z)


def _halfs(blocks: NDArray[np.uint8], offset: int) -> Floats:
    raw = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return raw.view(np.float16).astype(np.float32)


def _q4_1(blocks: NDArray[np.uint8]) -> tuple[Ints, Floats, Floats]:
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    return np.hstack([low, high]).astype(np.int32), _halfs(blocks, 0), _halfs(blocks, 2)


def _q8_0(blocks: NDArray[np.uint8]) -> tuple[Ints, Floats, None]:
    return blocks[:, 2:].view(np.int8).astype(np.int32), _halfs(blocks, 0), None


def _q6_k(blocks: NDArray[np.uint8]) -> tuple[Ints, Floats, None]:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4]).reshape(2, 1) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6]).reshape(4, 1) & 3
    q = low.reshape(-1, 256).astype(np.int32) + (high.reshape(-1, 256).astype(np.int32) << 4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return q - 32, _halfs(blocks, 208) * scales, None


def _q2_k(blocks: NDArray[np.uint8]) -> tuple[Ints, Floats, Floats]:
    shifts = np.array([0, 2, 4, 6]).reshape(4, 1)
    q = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256)
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    d, dmin = _halfs(blocks, 80), _halfs(blocks, 82)
    return q.astype(np.int32), d * scales.astype(f32), -(dmin * minima.astype(f32))


_BLOCKS: dict[str, tuple[int, Callable[[NDArray[np.uint8]], tuple[Ints, Floats, Floats | None]]]]
_BLOCKS = {"Q4_1": (20, _q4_1), "Q8_0": (34, _q8_0), "Q6_K": (210, _q6_k), "Q2_K": (84, _q2_k)}
SPEC_TYPES = ("F32", "F16", "BF16", *_BLOCKS)


def decode(tensor_type: str, data: NDArray[np.uint8], rows: int) -> SpecMatrix:
    """Rows of a tensor type in file layout."""
    if tensor_type == "BF16":
        words = data.view(np.uint16).astype(np.uint32) << 16
        return SpecMatrix(words.view(np.float32).reshape(rows, -1))
    if tensor_type in ("F32", "F16"):
        values = data.view(np.float32 if tensor_type == "F32" else np.float16)
        return SpecMatrix(values.astype(np.float32).reshape(rows, -1))
    nbytes, unpack = _BLOCKS[tensor_type]
    q, s, z = unpack(np.ascontiguousarray(data.reshape(-1, nbytes)))
    return SpecMatrix(
        q.reshape(rows, -1), s.reshape(rows, -1), None if z is None else z.reshape(rows, -1)
    )


# --- 2, 3. activations and products


def quantize(x: Floats) -> tuple[Ints, Floats]:
    """2. ``q`` "rows cols" and ``scale`` "rows groups"; all of x finite."""
    groups = x.reshape(len(x), -1, GROUP)
    a = np.abs(groups).max(axis=2)
    used = a >= f32(2.0**-100)
    safe = np.where(used, a, f32(1))
    q = np.rint(groups * (f32(127) / safe)[..., None])
    q = np.where(used[..., None], q, f32(0))
    return q.reshape(x.shape).astype(np.int32), np.where(used, a / f32(127), f32(0))


def matmul(weight: SpecMatrix, x: Floats) -> Floats:
    """3. ``x @ weight.T`` "rows out"; a float chain per output, ascending."""
    acc = np.zeros((len(x), len(weight.q)), np.float32)
    if weight.s is None:
        for k in range(x.shape[1]):
            acc = fma(weight.q[:, k], x[:, k : k + 1], acc)
        return acc
    q, scale = quantize(x)
    part = weight.part
    parts_per_group = GROUP // part
    for g in range(x.shape[1] // GROUP):
        halves = range(g * parts_per_group, (g + 1) * parts_per_group)
        columns = [slice(h * part, (h + 1) * part) for h in halves]
        for h, cut in zip(halves, columns, strict=True):
            exact = q[:, cut] @ weight.q[:, cut].T
            acc = fma(exact.astype(np.float32), weight.s[:, h] * scale[:, g : g + 1], acc)
        if weight.z is not None:
            for h, cut in zip(halves, columns, strict=True):
                f = scale[:, g] * q[:, cut].sum(axis=1).astype(np.float32)
                acc = fma(weight.z[:, h], f[:, None], acc)
    return acc


# --- 5, 6. rotation and attention


def rotate(x: Floats, rope: RopeConfig) -> Floats:
    """5. Heads "rows heads head_dim", row p at position p."""
    angles = np.arange(len(x))[:, None] * np.array(inverse_frequencies(rope))
    factor = attention_factor(rope)
    cos = (np.cos(angles) * f32(factor)).astype(np.float32)[:, None]
    sin = (np.sin(angles) * f32(factor)).astype(np.float32)[:, None]
    half = rope.dims // 2
    first = slice(0, rope.dims, 2) if rope.interleaved else slice(0, half)
    second = slice(1, rope.dims, 2) if rope.interleaved else slice(half, rope.dims)
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = fma(a, cos, -(b * sin))
    out[..., second] = fma(b, cos, a * sin)
    return out


def stored(x: Floats) -> Floats:
    """6. Through float16, saturated."""
    return np.clip(x, f32(-65504), f32(65504)).astype(np.float16).astype(np.float32)


@dataclass
class _Chunks:
    """6. Running maximum, sum and output of every query, chunk by chunk."""

    m: Floats
    l: Floats  # noqa: E741 - the letter of the specification
    o: Floats

    def merge(self, other: "_Chunks", seen: NDArray[np.bool_]) -> None:
        """Take in the next chunk where a query sees it; the first is taken as it is."""
        top = np.maximum(self.m, other.m)
        with np.errstate(invalid="ignore"):
            a, b = exp(self.m - top), exp(other.m - top)
        is_first = seen & (self.m == -np.inf)
        for name, more in (("l", 1), ("o", 2)):
            ours, theirs = getattr(self, name), getattr(other, name)
            factor_a, factor_b = (a, b) if more == 1 else (a[..., None], b[..., None])
            merged = fma(ours, factor_a, theirs * factor_b)
            first, taken = (is_first, seen) if more == 1 else (is_first[..., None], seen[..., None])
            setattr(self, name, np.where(first, theirs, np.where(taken, merged, ours)))
        self.m = np.where(seen, top, self.m)


def attend_chunk(
    q: Floats, k: Floats, v: Floats, visible: NDArray[np.bool_], softcap: float | None
) -> _Chunks:
    """6. q "rows heads dim"; k, v "positions heads dim" of one chunk; visible "rows positions"."""
    rows, heads, dim = q.shape
    score = np.zeros((rows, heads, len(k)), np.float32)
    for d in range(dim):
        score = fma(q[:, :, d, None], k[:, :, d].T[None], score)
    mask = visible[:, None, :]
    score = np.where(mask, capped(score, softcap), f32(-np.inf))
    m = score.max(axis=2)
    with np.errstate(invalid="ignore"):
        w = np.where(mask, exp(score - m[..., None]), f32(0))
    lanes = np.zeros((rows, heads, CHUNK), np.float32)
    lanes[..., : len(k)] = w
    acc = np.zeros((rows, heads, LANES), np.float32)
    for i in range(0, CHUNK, LANES):
        acc = acc + lanes[..., i : i + LANES]
    o = np.zeros((rows, heads, dim), np.float32)
    for j in range(len(k)):
        o = np.where(mask[..., j, None], fma(w[..., j, None], v[j][None], o), o)
    return _Chunks(m, fold(acc), o)


def attention(q: Floats, k: Floats, v: Floats, window: int | None, cap: float | None) -> Floats:
    """6. All rows of a sequence over its own K/V; k, v "positions heads dim" per query head."""
    positions = np.arange(len(q))
    running = _Chunks(
        np.full(q.shape[:2], -np.inf, np.float32),
        np.zeros(q.shape[:2], np.float32),
        np.zeros(q.shape, np.float32),
    )
    for start in range(0, len(q), CHUNK):
        keys = positions[start : start + CHUNK]
        visible = keys[None] <= positions[:, None]
        if window is not None:
            visible &= keys[None] > positions[:, None] - window
        chunk = attend_chunk(q, k[keys], v[keys], visible, cap)
        seen = np.repeat(visible.any(axis=1, keepdims=True), q.shape[1], axis=1)
        running.merge(chunk, seen)
    return running.o * (f32(1) / running.l)[..., None]
