"""What a caller asks of the engine and what it gets back: ids in, ids out."""

from dataclasses import dataclass
from typing import Literal, Protocol

from blockdraft.config import SamplingParams
from blockdraft.speculative.stats import SpeculationStats

__all__ = ["FinishReason", "Request", "RequestStats", "StopRule", "TokenEvent"]

FinishReason = Literal["stop", "length", "cancelled"]
"""Why a request ended: a stop token or rule, ``max_tokens``, or the caller."""


class StopRule(Protocol):
    """Decides after each written token whether the output ends with it."""

    def __call__(self, token_id: int, /) -> bool:
        """Whether ``token_id`` is the last one; asked once per token, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One continuation to write.

    Attributes:
        token_ids: The prompt, at least one token.
        params: How tokens are picked; the seed must be given.
        max_tokens: The most tokens to write, at least 1.
        stop_token_ids: Tokens that end the output; they are not part of it.
        choice: Index among several answers to one prompt; part of the key of the noise.
        stop_rule: What else ends the output, after a token that is part of it; None is nothing.
        draft: Whether the engine's drafter, if it has one, drafts for this request.
    """

    token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    choice: int = 0
    stop_rule: StopRule | None = None
    draft: bool = True


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counts and times of one request that ended.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        prompt_s: From the first pass of the prompt until the first token was picked.
        predicted_tokens: Tokens written, without the stop token.
        predicted_s: From the first token until the end.
        tokens_per_s: Tokens picked after the first (a stop token counts) over ``predicted_s``;
            0 when there is none.
        ttft_s: From ``Engine.add`` until the first token; 0 when there is none.
        speculation: What drafting gained; None without it.
    """

    prompt_tokens: int
    prompt_s: float
    predicted_tokens: int
    predicted_s: float
    tokens_per_s: float
    ttft_s: float
    speculation: SpeculationStats | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one request, or its end.

    Attributes:
        request_id: What ``Engine.add`` returned.
        token_id: The token written; None when a stop token ended the output.
        finish_reason: Why this was the last event; None when more follow.
        stats: Counts and times, with the last event.
        is_drafted: Whether the token is an accepted draft and not the target's own addition.
    """

    request_id: int
    token_id: int | None
    finish_reason: FinishReason | None = None
    stats: RequestStats | None = None
    is_drafted: bool = False
