"""Rotary frequencies of every scaling rule, in double precision.

One home for the rules, so that the native core and the torch oracle rotate by the same angles: a
row at position p turns its i-th pair by ``p * inverse_frequencies(rope)[i]`` and multiplies by
`attention_factor`. Knows no tensors.

Sources: arXiv:2309.00071 (yarn: section 3.2, attention factor 3.4), arXiv:2306.15595 (linear);
llama3 as published with Llama 3.1.
"""

import math

from blockdraft.config import RopeConfig
from blockdraft.errors import ConfigError

__all__ = ["attention_factor", "inverse_frequencies"]


def inverse_frequencies(rope: RopeConfig) -> tuple[float, ...]:
    """Radians per position of each of the ``dims / 2`` rotated pairs.

    Raises:
        ConfigError: The scaling rule is unknown, or there is not one factor per pair.
    """
    num_pairs = rope.dims // 2
    plain = [rope.theta ** (-2 * i / rope.dims) for i in range(num_pairs)]
    if rope.freq_factors:
        if len(rope.freq_factors) != num_pairs:
            raise ConfigError(
                f"rope has {len(rope.freq_factors)} frequency factors; {rope.dims} rotated"
                f" dimensions need {num_pairs}"
            )
        plain = [f / divisor for f, divisor in zip(plain, rope.freq_factors, strict=True)]
    match rope.scaling:
        case "none":
            return tuple(plain)
        case "linear":
            return tuple(f / rope.factor for f in plain)
        case "yarn":
            return _yarn(plain, rope)
        case "llama3":
            return tuple(_llama3(f, rope) for f in plain)
    raise ConfigError(f"rope scaling is {rope.scaling!r}; it must be none, linear, yarn or llama3")


def attention_factor(rope: RopeConfig) -> float:
    """Factor on cos and sin: the configured one, times yarn's own ``0.1 ln(factor) + 1``."""
    if rope.scaling == "yarn" and rope.factor > 1:
        return rope.attention_factor * (0.1 * math.log(rope.factor) + 1)
    return rope.attention_factor


def _yarn(plain: list[float], rope: RopeConfig) -> tuple[float, ...]:
    """Stretch slow pairs by the factor, keep fast ones, blend between the two rotation counts."""

    def pair_turning(rotations: float) -> float:
        turns = rope.original_context / (rotations * 2 * math.pi)
        return rope.dims * math.log(turns) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_turning(rope.beta_fast)), 0)
    high = min(math.ceil(pair_turning(rope.beta_slow)), rope.dims - 1)
    width = max(high - low, 0.001)
    scaled = []
    for i, frequency in enumerate(plain):
        ramp = min(max((i - low) / width, 0.0), 1.0)
        scaled.append(frequency * (1 - ramp) + frequency / rope.factor * ramp)
    return tuple(scaled)


def _llama3(frequency: float, rope: RopeConfig) -> float:
    """Stretch pairs that turn rarely in the original context, blend up to those that turn often."""
    turns = rope.original_context * frequency / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * keep + frequency / rope.factor * (1 - keep)
