"""What a request may ask for, given the vocabulary and the context. Knows no memory."""

from collections.abc import Sequence

from blockdraft.engine.request import Request
from blockdraft.errors import CapacityError, ConfigError

__all__ = ["check_request", "check_tokens"]


def check_request(request: Request, vocab_size: int, context_length: int) -> None:
    """Refuse a request that could never run.

    Raises:
        ConfigError: A number is out of range, or a token is not in the vocabulary.
        CapacityError: It exceeds the context.
    """
    if request.max_tokens < 1:
        raise ConfigError(f"max_tokens is {request.max_tokens}; it must be at least 1")
    if request.draft_n_max is not None and request.draft_n_max < 1:
        raise ConfigError(f"draft_n_max is {request.draft_n_max}; it must be at least 1")
    if request.num_logprobs is not None and request.num_logprobs < 0:
        raise ConfigError(f"num_logprobs is {request.num_logprobs}; it must be at least 0")
    check_tokens(request.token_ids, request.max_tokens, vocab_size, context_length)
    for token_id, _ in request.params.logit_bias:
        if token_id >= vocab_size:
            raise ConfigError(f"logit_bias names token {token_id} of {vocab_size}")


def check_tokens(
    token_ids: Sequence[int], max_tokens: int, vocab_size: int, context_length: int
) -> None:
    """Refuse tokens that a pass cannot read.

    Raises:
        ConfigError: There are none, or one is not in the vocabulary.
        CapacityError: With ``max_tokens`` more they exceed the context.
    """
    if not token_ids:
        raise ConfigError("the prompt is empty: it has no token")
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ConfigError(f"token id {wrong} is not in the vocabulary of {vocab_size}")
    if len(token_ids) + max_tokens > context_length:
        raise CapacityError(
            f"{len(token_ids)} prompt tokens and {max_tokens} more exceed "
            f"the context of {context_length}"
        )
