"""How one request picks its tokens."""

import math
from dataclasses import dataclass, field

from blockdraft.config.ranges import check

__all__ = ["SamplingParams"]

_LARGEST = 1e38  # of what the native core adds to logits, or multiplies them by


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request picks its tokens; names, defaults and order are llama.cpp's.

    Order: penalties and bias, top-k, top-p, min-p, temperature last.

    Attributes:
        temperature: 0 is greedy.
        top_k: Keep the k most probable; 0 keeps all.
        top_p: Keep the smallest set with this probability mass; 1 keeps all.
        min_p: Drop what is less probable than this share of the best; 0 keeps all.
        repeat_penalty: Divides positive and multiplies negative logits of recent tokens; 1 is off.
        presence_penalty: Subtracted once from logits of recent tokens.
        frequency_penalty: Subtracted per occurrence from logits of recent tokens.
        repeat_last_n: How many recent tokens the penalties see; 0 none, -1 the whole context.
        seed: 64-bit seed of the position-keyed noise; None lets the session draw and report one.
        logit_bias: (token id, added value) pairs.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = field(default=())

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ConfigError: A parameter is out of range; the message names it.
        """
        check(0 <= self.temperature <= 100, "temperature", self.temperature, "in [0, 100]")
        check(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 (off) or positive")
        check(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        check(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        penalty = self.repeat_penalty
        rule = "positive, and a number in 32 bits"
        check(1 / _LARGEST <= penalty <= _LARGEST, "repeat_penalty", penalty, rule)
        for name in ("presence_penalty", "frequency_penalty"):
            in_range = abs(getattr(self, name)) <= _LARGEST
            check(in_range, name, getattr(self, name), "a finite number in 32 bits")
        check(-1 <= self.repeat_last_n < 2**31, "repeat_last_n", self.repeat_last_n, "-1 or more")
        check(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "in [0, 2^64)")
        for token_id, bias in self.logit_bias:
            check(
                token_id >= 0 and (abs(bias) <= _LARGEST or math.isinf(bias)),
                "logit_bias",
                (token_id, bias),
                "a number in 32 bits",
            )
