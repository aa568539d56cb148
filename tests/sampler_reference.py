"""The sampler once more, slow and obvious, in numpy; and calls of the native one.

Shares nothing with the native code but `gumbel`, which has a second implementation here too.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams

__all__ = ["Row", "native_tokens", "python_gumbel", "reference_probabilities", "reference_token"]

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 64


@dataclass(frozen=True)
class Row:
    """What decides one token.

    Attributes:
        logits: float32 [vocab].
        params: Sampling parameters; ``logit_bias`` is used, ``repeat_last_n`` is not.
        choice: Index of the answer.
        position: Absolute position of the token.
        recent: Tokens that the penalties see.
        allowed: bool [vocab], or None.
    """

    logits: NDArray[np.float32]
    params: SamplingParams
    choice: int = 0
    position: int = 0
    recent: tuple[int, ...] = ()
    allowed: NDArray[np.bool_] | None = None


def native_tokens(rows: Sequence[Row], isa: str | None = None) -> list[int]:
    """The native sampler's tokens, one call for all rows."""
    return list(
        _native.sample(
            np.stack([row.logits for row in rows]),
            [_native_params(row.params) for row in rows],
            [row.choice for row in rows],
            [row.position for row in rows],
            [np.array(row.recent, np.int32) for row in rows],
            [_bias(row.params) for row in rows],
            isa or _native.isa_names()[-1],
            [None if row.allowed is None else _bitmask(row.allowed) for row in rows],
        )
    )


@cache
def _native_params(params: SamplingParams) -> _native.SamplerParams:
    return _native.SamplerParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_penalty=params.repeat_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed or 0,
    )


@cache
def _bias(params: SamplingParams) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
    if not params.logit_bias:
        return None
    ids, values = zip(*params.logit_bias, strict=True)
    return np.array(ids, np.int32), np.array(values, np.float32)


def _bitmask(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    padded = np.zeros((len(allowed) + 31) // 32 * 32, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4")


def _processed(row: Row) -> NDArray[np.float32]:
    """Logits after bias, penalties and mask; NaN is -inf."""
    params = row.params
    x = row.logits.copy()
    with np.errstate(all="ignore"):
        for token_id, bias in params.logit_bias:
            x[token_id] += np.float32(bias)
        repeat = np.float32(params.repeat_penalty)
        for token_id, count in Counter(row.recent).items():
            x[token_id] = x[token_id] * repeat if x[token_id] <= 0 else x[token_id] / repeat
            frequency = np.float32(count) * np.float32(params.frequency_penalty)
            x[token_id] -= frequency + np.float32(params.presence_penalty)
    x[np.isnan(x)] = -np.inf
    if row.allowed is not None:
        x[~row.allowed] = -np.inf
    return x


def _survivors(x: NDArray[np.float32], params: SamplingParams) -> NDArray[np.intp]:
    order = np.lexsort((np.arange(len(x)), -x))
    if params.top_k > 0:
        order = order[: params.top_k]
    below = x[order].astype(np.float64) - np.float64(x.max())
    if params.top_p < 1:
        mass = np.cumsum(np.rint(np.exp(below) * 2.0**40))
        order = order[: int(np.argmax(mass >= params.top_p * mass[-1])) + 1]
    if params.min_p > 0:
        least = np.float64(x.max()) + math.log(params.min_p)
        order = order[x[order].astype(np.float64) >= least]
    return order


def reference_token(row: Row) -> int:
    """The token of one row by sorting everything and drawing noise for every survivor."""
    x = _processed(row)
    if np.isneginf(x).all():
        return 0 if row.allowed is None else int(np.argmax(row.allowed))
    if row.params.temperature == 0 or np.isposinf(x).any():
        return int(np.argmax(x))
    ids = np.sort(_survivors(x, row.params))
    seed = row.params.seed or 0
    noise = [_native.gumbel(seed, row.choice, row.position, int(i)) for i in ids]
    with np.errstate(over="ignore"):
        scores = (x[ids].astype(np.float64) - np.float64(x.max())) / row.params.temperature
    return int(ids[np.argmax(scores + noise)])


def reference_probabilities(row: Row) -> NDArray[np.float64]:
    """The distribution that one row's token is drawn from, [vocab]."""
    x = _processed(row)
    ids = _survivors(x, row.params)
    weights = np.zeros(len(x))
    weights[ids] = np.exp((x[ids].astype(np.float64) - x.max()) / row.params.temperature)
    return weights / weights.sum()


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def _draw(stream: int, n: int) -> int:
    return _mix((stream + _GOLDEN * (n + 1)) & _MASK64)


def _exponential(bits: int) -> float:
    if bits < 2**62:
        return -math.log1p(-(bits + 0.5) / 2**64)
    return -math.log((2**64 - 1 - bits + 0.5) / 2**64)


def python_gumbel(seed: int, choice: int, position: int, token_id: int) -> float:
    """`_native.gumbel` from its definition in docs/numerics.md, with Python's logarithm."""
    key = _mix((seed + _GOLDEN) & _MASK64)
    key = _mix(((key ^ (position & _MASK64)) + _GOLDEN) & _MASK64)
    key = _mix(((key ^ choice) + _GOLDEN) & _MASK64)
    block_stream, winner_stream, id_stream = (_draw(key, n) for n in range(3))
    block = token_id // _BLOCK
    smallest = _exponential(_draw(block_stream, block)) / _BLOCK
    if token_id % _BLOCK == _draw(winner_stream, block) % _BLOCK:
        return -math.log(smallest)
    return -math.log(smallest + _exponential(_draw(id_stream, token_id)))
