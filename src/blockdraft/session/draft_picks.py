"""How a smaller model picks drafts: by the sampler of the engine, as the target picks tokens.

Knows no network. With the parameters, the history and the noise of the target, a model that agrees
with it drafts what it will pick.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.sampling import NativeSampler, SampleRow, prepare_sampling
from blockdraft.speculative import DraftTask

__all__ = ["SampledDrafts"]


class SampledDrafts:
    """A `DraftPick` on the native sampler.

    Args:
        isa: Instruction set to force; None takes the best of this machine.
    """

    def __init__(self, isa: str | None = None) -> None:
        self._sampler = NativeSampler(isa)
        self._prepared = lru_cache(maxsize=256)(prepare_sampling)

    def __call__(
        self, logits: NDArray[np.float32], rows: Sequence[tuple[DraftTask, Sequence[int]]]
    ) -> Sequence[int]:
        """Token ids for ``logits`` [rows, vocab]."""
        return self._sampler.pick(logits, [self._row(task, path) for task, path in rows])

    def _row(self, task: DraftTask, path: Sequence[int]) -> SampleRow:
        sampling = self._prepared(task.params, task.choice)
        token_ids = task.token_ids
        if path and sampling.num_recent != 0:
            token_ids = np.concatenate([token_ids, np.array(path, np.int32)])
        position = len(task.token_ids) + len(path)
        return SampleRow(sampling, position, sampling.recent(token_ids))
