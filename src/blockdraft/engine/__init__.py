"""Many sequences on one target: requests of token ids in, token events out."""

from blockdraft.engine.engine import Engine
from blockdraft.engine.logprobs import TokenLogprobs
from blockdraft.engine.request import FinishReason, Request, RequestStats, TokenEvent
from blockdraft.engine.rules import StopRule, TokenRule
from blockdraft.engine.sampling import NativeSampler, Sampler
from blockdraft.engine.score import score_tokens
from blockdraft.engine.target import Target

__all__ = [
    "Engine",
    "FinishReason",
    "NativeSampler",
    "Request",
    "RequestStats",
    "Sampler",
    "StopRule",
    "Target",
    "TokenEvent",
    "TokenLogprobs",
    "TokenRule",
    "score_tokens",
]
