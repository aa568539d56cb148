"""Log-probabilities of tokens under the model's own distribution.

Of raw logits: before penalties, bias, masks, truncation and temperature. In binary64, and a
function of one row alone, so they do not depend on neighbours or drafts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenLogprobs", "log_softmax", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position.

    Attributes:
        logprob: Of the token that was picked.
        top: (token id, log-probability) of the most probable tokens, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural log-probabilities, [vocab]; NaN logits count as -inf."""
    shifted = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    largest = shifted.max()
    if not np.isfinite(largest):  # all mass on the ids at +inf, or on none
        at_top = shifted == np.inf
        return np.where(at_top, -np.log(max(int(at_top.sum()), 1)), -np.inf)
    shifted -= largest
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def token_logprobs(logits: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """What one row of logits says of ``token_id`` and of the ``num_top`` most probable tokens."""
    values = log_softmax(logits)
    num_top = min(num_top, len(values))
    top: list[tuple[int, float]] = []
    if num_top:
        floor = np.partition(values, len(values) - num_top)[len(values) - num_top]
        ids = np.flatnonzero(values >= floor)
        # Stable by id, so that ties go to the lower id.
        best = ids[np.argsort(-values[ids], kind="stable")][:num_top]
        top = [(int(token), float(values[token])) for token in best]
    return TokenLogprobs(float(values[token_id]), tuple(top))
