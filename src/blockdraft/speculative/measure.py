"""Measures what passes cost on this machine, in less than half a second.

Passes over tokens of no meaning behind an empty context; the shortest of each size counts, since
what disturbs a pass only makes it longer.
"""

import time
from collections.abc import Callable

import numpy as np

from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.target import TargetModel
from blockdraft.speculative.costs import CostCurve, CostModel

__all__ = ["SIZES", "measure_costs"]

SIZES = (1, 2, 4, 8, 16)
"""Rows of the passes that are timed."""

_BUDGET_S = 0.4
_ROUNDS = 3


def measure_costs(
    target: TargetModel,
    drafter: DrafterModel | None = None,
    *,
    name: str = "dflash",
    clock: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """Costs of the target's passes and of a block of the drafter, called ``name``.

    Small passes come first, so that a slow machine runs out of time with the large ones; those
    are then taken to cost in proportion.
    """
    start_s = clock()
    verify: dict[int, float] = {}
    draft: dict[int, float] = {}
    for _ in range(_ROUNDS):
        for size in SIZES:
            if clock() - start_s > _BUDGET_S and verify:
                break
            if size <= target.max_rows:
                _keep(verify, size, _time_verify(target, size, clock))
            if drafter is not None and size == SIZES[0]:
                _keep(draft, 1, _time_draft(drafter, clock))
    return CostModel(CostCurve(verify), {name: CostCurve(draft)} if draft else None)


def _keep(known: dict[int, float], size: int, seconds: float) -> None:
    known[size] = min(known.get(size, seconds), seconds)


def _time_verify(target: TargetModel, num_rows: int, clock: Callable[[], float]) -> float:
    cache = SequenceCache(target.new_cache_pool(1 << 30))
    cache.reserve(num_rows)
    rows = RowSlice(cache, np.zeros(num_rows, np.int32), num_rows)
    batch = BatchBuilder(num_rows).build([rows])
    start_s = clock()
    target.forward(batch)
    return clock() - start_s


def _time_draft(drafter: DrafterModel, clock: Callable[[], float]) -> float:
    width = drafter.config.block_size
    cache = SequenceCache(KVPool(drafter.layout, 1 << 30))
    cache.reserve(width)
    rows = RowSlice(cache, np.zeros(width, np.int32), width - 1)
    batch = BatchBuilder(width).build([rows])
    start_s = clock()
    drafter.draft(batch)
    return clock() - start_s
