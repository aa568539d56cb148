"""Log-probabilities of given tokens: teacher-forced passes, as perplexity needs them.

Knows no text and picks no token; the log-softmax is in binary64.
"""

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.logprobs import log_softmax
from blockdraft.engine.target import Target
from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice

__all__ = ["score_tokens"]

# Logits of one pass stay at 64 MB, also with a vocabulary of 262,144.
_MAX_LOGITS = 1 << 24


def score_tokens(target: Target, pool: KVPool, token_ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Natural log of p(token | tokens before it) for every token but the first, [tokens - 1].

    Raises:
        CapacityError: The pool cannot hold the tokens.
    """
    chunk_rows = max(1, min(target.max_rows, _MAX_LOGITS // target.config.vocab_size))
    builder = BatchBuilder(chunk_rows)
    cache = SequenceCache(pool)
    num_scored = len(token_ids) - 1
    scores = np.empty(max(num_scored, 0), np.float64)
    try:
        for start in range(0, num_scored, chunk_rows):
            stop = min(start + chunk_rows, num_scored)
            cache.reserve(stop - start)
            rows = RowSlice(cache, token_ids[start:stop], stop - start)
            logits = target.forward(builder.build([rows])).logits
            cache.commit(range(stop - start))
            for i in range(stop - start):
                scores[start + i] = log_softmax(logits[i])[token_ids[start + i + 1]]
    finally:
        cache.release()
    return scores
