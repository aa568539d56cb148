"""What a caller asks of the engine and what it gets back: ids in, ids out."""

from dataclasses import dataclass
from typing import Literal

from blockdraft.config import SamplingParams
from blockdraft.engine.logprobs import TokenLogprobs
from blockdraft.engine.rules import StopRule, TokenRule
from blockdraft.speculative.stats import SpeculationStats

__all__ = ["FinishReason", "Request", "RequestStats", "TokenEvent"]

FinishReason = Literal["stop", "length", "cancelled", "failed"]
"""Why a request ended: a stop token or rule, ``max_tokens``, the caller, or a rule that failed."""


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
        draft_n_max: K of this request, at least 1; None is the drafter's.
        token_rule: Which tokens may come; None allows all.
        num_logprobs: How many of the most probable tokens to report with each token, beside its
            own log-probability; None reports nothing.
    """

    token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    choice: int = 0
    stop_rule: StopRule | None = None
    draft: bool = True
    draft_n_max: int | None = None
    token_rule: TokenRule | None = None
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counts and times of one request that ended.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that were not read, since their K/V were known.
        prompt_s: From the first pass of the prompt until the first token was picked.
        predicted_tokens: Tokens written, without the stop token.
        predicted_s: From the first token until the end.
        tokens_per_s: Tokens picked after the first (a stop token counts) over ``predicted_s``;
            0 when there is none.
        ttft_s: From ``Engine.add`` until the first token; 0 when there is none.
        speculation: What drafting gained; None without it.
    """

    prompt_tokens: int
    cached_tokens: int
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
        token_id: The token written; None when a stop token or a failure ended the output.
        finish_reason: Why this was the last event; None when more follow.
        stats: Counts and times, with the last event.
        is_drafted: Whether the token is an accepted draft and not the target's own addition.
        logprobs: Log-probabilities at the token, where the request asked for them.
        error: What a rule of the request raised, when that ended it.
    """

    request_id: int
    token_id: int | None
    finish_reason: FinishReason | None = None
    stats: RequestStats | None = None
    is_drafted: bool = False
    logprobs: TokenLogprobs | None = None
    error: Exception | None = None
