"""Measures what passes cost on this machine, in less than half a second.

Passes over tokens of no meaning, behind nothing and behind some context; the shortest of each kind
counts, since what disturbs a pass only makes it longer.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout, KVPool, SequenceCache, page_view
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.small import SmallModel
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import Batch
from blockdraft.speculative.costs import ContextCost, CostCurve, CostModel

__all__ = ["SIZES", "are_overpriced", "measure_costs"]

SIZES = (1, 4, 8, 2, 16)
"""Rows of the passes that are timed, in the order of their use; the first two always are."""

_BUDGET_S = 0.35
_ROUNDS = 3
_FEW_ROWS, _MANY_ROWS = 1, 8
"""Rows of the passes behind a context."""
_READ_ROWS = 32
_MOST_CONTEXT, _CONTEXT_BYTES = 512, 32 << 20
"""Tokens of that context, as far as their K/V, which have to be touched, take no more memory."""

_CHECKED = (1, 4, 8)
_OVERPRICED = 1.2

_Clock = Callable[[], float]
_Key = tuple[str, int]


def measure_costs(
    target: TargetModel,
    drafter: DrafterModel | SmallModel | None = None,
    *,
    clock: _Clock = time.perf_counter,
) -> CostModel:
    """Costs of the target's passes and of a drafter's, under the name of what drafts with it.

    A slow machine runs out of time; what was not measured then follows from what was.
    """
    start_s = clock()
    known: dict[_Key, float] = {}
    context = _context_length(target)
    passes = dict(_passes(target, drafter, context))
    needed = {("verify", size) for size in SIZES[:2]} & passes.keys()
    for _ in range(_ROUNDS):
        for key, run in passes.items():
            # No pass takes much more than twice the longest before it.
            is_known = known.keys() >= needed
            if is_known and clock() - start_s + 2 * max(known.values()) > _BUDGET_S:
                break
            begin_s = clock()
            run()
            seconds = clock() - begin_s
            known[key] = min(known.get(key, seconds), seconds)
    verify = _kind(known, "verify")
    draft, read = _kind(known, "draft"), known.get(("read", _READ_ROWS))
    name = "dflash" if isinstance(drafter, DrafterModel) else "draft-simple"
    return CostModel(
        CostCurve(verify),
        {name: CostCurve(draft)} if draft else None,
        context=_context_cost(verify, _kind(known, "context"), context),
        read={name: read / _READ_ROWS} if read is not None else None,
    )


def are_overpriced(
    target: TargetModel, costs: CostModel, *, clock: _Clock = time.perf_counter
) -> bool:
    """Whether some pass is clearly faster now than ``costs`` say.

    Then they were measured while the machine did other work, which may have met one size and not
    the next. Slower passes say nothing about them. Takes three passes.
    """
    layout = target.new_cache_pool(0).layout
    for size in _CHECKED:
        if size > target.max_rows:
            continue
        run = _timed(target.forward, layout, size)
        begin_s = clock()
        run()
        if _OVERPRICED * (clock() - begin_s) < costs.verify.seconds(size):
            return True
    return False


def _kind(known: dict[_Key, float], kind: str) -> dict[int, float]:
    return {size: seconds for (name, size), seconds in known.items() if name == kind}


def _passes(
    target: TargetModel, drafter: DrafterModel | SmallModel | None, context: int
) -> Iterator[tuple[_Key, Callable[[], None]]]:
    """What is timed, the most needed first."""
    layout = target.new_cache_pool(0).layout
    for size in SIZES:
        if size > target.max_rows:
            continue
        yield ("verify", size), _timed(target.forward, layout, size)
        if drafter is not None and size == SIZES[1]:
            yield from _drafter_passes(drafter)
        if context and size == _MANY_ROWS:
            for rows in (_FEW_ROWS, _MANY_ROWS):
                yield ("context", rows), _timed(target.forward, layout, rows, context)


def _drafter_passes(
    drafter: DrafterModel | SmallModel,
) -> Iterator[tuple[_Key, Callable[[], None]]]:
    if isinstance(drafter, SmallModel):
        yield ("draft", 1), _timed(drafter.run, drafter.layout, 1)
        read: Callable[[Batch], object] = drafter.run
    else:
        width = drafter.config.block_size
        for size in sorted({2, min(4, width), width}):
            draft = _timed(drafter.draft, drafter.layout, size, num_logits=size - 1)
            yield ("draft", size), draft
        read = drafter.inject
    if drafter.max_rows >= _READ_ROWS:
        yield ("read", _READ_ROWS), _timed(read, drafter.layout, _READ_ROWS, num_logits=0)


def _timed(
    run: Callable[[Batch], object],
    layout: KVLayout,
    num_rows: int,
    context: int = 0,
    *,
    num_logits: int | None = None,
) -> Callable[[], None]:
    """The pass of ``num_rows`` rows after ``context`` tokens whose K/V are zero."""
    cache = SequenceCache(KVPool(layout, 1 << 30))
    if context:
        cache.reserve(context)
        for address in cache.full_pages().tolist() if layout.full_layers else []:
            page_view(address, layout.full_page_bytes)[:] = 0  # untouched memory reads too fast
        for address in cache.window_pages().tolist() if layout.windowed_layers else []:
            page_view(address, layout.window_page_bytes)[:] = 0
        cache.commit(range(context))
    cache.reserve(num_rows)
    rows = np.zeros(num_rows, np.int32)
    part = RowSlice(cache, rows, num_rows if num_logits is None else num_logits)
    batch = BatchBuilder(num_rows).build([part])

    def timed() -> None:
        assert cache.num_pages  # held, or its memory would be gone
        run(batch)

    return timed


def _context_length(target: TargetModel) -> int:
    """Whole pages, 0 where not even one is to be had."""
    bytes_per_token = target.new_cache_pool(0).layout.bytes_per_token
    most = min(_MOST_CONTEXT, _CONTEXT_BYTES // bytes_per_token, target.config.context_length // 2)
    return most // PAGE_POSITIONS * PAGE_POSITIONS


def _context_cost(alone: dict[int, float], behind: dict[int, float], context: int) -> ContextCost:
    """From passes with and without context; what was not measured costs nothing."""
    if not (_FEW_ROWS in behind and _MANY_ROWS in behind and _MANY_ROWS in alone):
        return ContextCost()
    few, many = (max(0.0, behind[size] - alone[size]) for size in (_FEW_ROWS, _MANY_ROWS))
    per_row = max(0.0, many - few) / (_MANY_ROWS - _FEW_ROWS)
    return ContextCost(max(0.0, few - per_row * _FEW_ROWS) / context, per_row / context)
