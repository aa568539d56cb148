"""From logits to token ids: one call per step for all sequences.

Knows rows, not requests. The rule itself (processors, truncation, position-keyed noise) is in the
native core; docs/numerics.md section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError

__all__ = ["NativeSampler", "PreparedSampling", "SampleRow", "Sampler", "prepare_sampling"]

_NO_TOKENS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class PreparedSampling:
    """Sampling parameters of one request, in the form that every step uses.

    Attributes:
        params: What the caller asked for.
        choice: Index among several answers to one prompt.
        native: The same parameters for the native core.
        bias: (int32 ids, float32 values) to add, or None.
        num_recent: How many recent tokens the penalties need; None is all, 0 none.
    """

    params: SamplingParams
    choice: int
    native: _native.SamplerParams
    bias: tuple[NDArray[np.int32], NDArray[np.float32]] | None
    num_recent: int | None

    def recent(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The end of ``token_ids`` (prompt and output) that the penalties look at."""
        if self.num_recent == 0:
            return _NO_TOKENS
        if self.num_recent is None:
            return token_ids
        return token_ids[-self.num_recent :]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What picking one token needs besides its logits.

    Attributes:
        sampling: Parameters of the request.
        position: Absolute position of the token to pick.
        recent: int32 tokens that the penalties look at.
        mask: Allowed ids, bit ``id % 32`` of word ``id // 32``; None allows all.
    """

    sampling: PreparedSampling
    position: int
    recent: NDArray[np.int32]
    mask: NDArray[np.uint32] | None = None


class Sampler(Protocol):
    """Picks one token per row."""

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> Sequence[int]:
        """Token ids for ``logits`` [rows, vocab]."""
        ...


def prepare_sampling(params: SamplingParams, choice: int) -> PreparedSampling:
    """The prepared form of ``params``.

    Raises:
        ConfigError: No seed is given.
    """
    if params.seed is None:
        raise ConfigError("sampling needs a seed")
    native = _native.SamplerParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_penalty=params.repeat_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
    )
    bias = None
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        bias = (np.array(ids, np.int32), np.array(values, np.float32))
    return PreparedSampling(params, choice, native, bias, _num_recent(params))


def _num_recent(params: SamplingParams) -> int | None:
    penalties = (params.repeat_penalty - 1, params.presence_penalty, params.frequency_penalty)
    if not any(penalties):
        return 0
    return None if params.repeat_last_n < 0 else params.repeat_last_n


class NativeSampler:
    """The sampler of the native core.

    Args:
        isa: Instruction set to force; None takes the best of this machine.
    """

    def __init__(self, isa: str | None = None) -> None:
        self._isa = isa or _native.isa_names()[-1]

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> Sequence[int]:
        """Token ids for ``logits`` [rows, vocab]."""
        samplings = [row.sampling for row in rows]
        masks = [row.mask for row in rows]
        return _native.sample(
            logits,
            [sampling.native for sampling in samplings],
            [sampling.choice for sampling in samplings],
            [row.position for row in rows],
            [row.recent for row in rows],
            [sampling.bias for sampling in samplings],
            self._isa,
            None if all(mask is None for mask in masks) else masks,
        )
