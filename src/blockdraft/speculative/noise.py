"""The noise by which the target will pick a token, known to who drafts it. Knows no models.

Source: docs/numerics.md section 7.
"""

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.speculative.drafter import DraftTask

__all__ = ["noise_of"]


def noise_of(task: DraftTask, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Gumbel noise of some tokens at a position of a sequence that has a seed, float64 [tokens]."""
    seed = task.params.seed
    assert seed is not None, "sampling has a seed"
    return np.array(
        [_native.gumbel(seed, task.choice, position, token_id) for token_id in token_ids.tolist()]
    )
