"""Requests run through an engine, with everything that may not depend on drafting written down.

Tokens, the K/V hash at the committed lengths that are met, the logits of every committed row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from blockdraft.engine import Engine, Request, TokenEvent
from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import Batch, PassResult
from blockdraft.speculative import Drafter

__all__ = ["CACHE_BYTES", "History", "Memory", "assert_identical", "histories"]

CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Memory:
    """K/V memory of an engine, and how many requests it runs at once."""

    max_bytes: int = CACHE_BYTES
    prefix_bytes: int = 0
    max_running: int | None = None


ROOMY = Memory()


@dataclass
class History:
    """What one request saw.

    Attributes:
        token_ids: Prompt and output.
        events: (token, finish reason) of each event.
        logits: Row's logits as bytes, by position of the row.
        states: K/V hash by committed length.
        length: Most committed positions that were met.
        num_passes: Passes that gave it a token.
    """

    token_ids: list[int]
    events: list[tuple[int | None, str | None]] = field(default_factory=list)
    last: TokenEvent | None = None
    logits: dict[int, bytes] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    length: int = 0
    num_passes: int = 0

    @property
    def output(self) -> list[int]:
        return [token_id for token_id, _ in self.events if token_id is not None]


@dataclass(frozen=True)
class _Row:
    """A row with logits; ``path`` are the tokens of its pass that lead to it, itself included."""

    position: int
    path: list[int]
    logits: np.ndarray


class _TracingTarget:
    """A target that keeps the rows with logits of its last pass, by sequence of the pass."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self.config = target.config
        self.max_rows = target.max_rows
        self.rows: list[list[_Row]] = []

    def new_cache_pool(self, max_bytes: int) -> KVPool:
        return self._target.new_cache_pool(max_bytes)

    def forward(self, batch: Batch) -> PassResult:
        result = self._target.forward(batch)
        self.rows = [[] for _ in range(batch.num_sequences)]
        for row, logits in zip(batch.logit_rows.tolist(), result.logits, strict=True):
            sequence = int(np.searchsorted(batch.row_starts, row, side="right")) - 1
            path: list[int] = []
            at = row
            while at >= 0:
                path.insert(0, int(batch.token_ids[at]))
                at = int(batch.parents[at])
            found = _Row(int(batch.positions[row]), path, logits)
            self.rows[sequence].append(found)
        return result


class _Tracer:
    """Knows which cache belongs to which request, and writes down what happens to it."""

    def __init__(self, engine: Engine, requests: Sequence[Request], hash_every: int) -> None:
        self.hash_every = hash_every
        self.histories = {engine.add(one): History(list(one.token_ids)) for one in requests}
        self.caches = {one.request_id: one.cache for one in engine._scheduler._waiting}
        self.order: list[int] = []  # requests of the pass, as the batch has them
        self._owners = {id(cache): key for key, cache in self.caches.items()}
        self._build = BatchBuilder.build
        self._release = SequenceCache.release

    def build(self, builder: BatchBuilder, slices: Sequence[RowSlice]) -> Batch:
        if all(id(part.cache) in self._owners for part in slices):  # not a drafter's pass
            self.order = [self._owners[id(part.cache)] for part in slices]
        return self._build(builder, slices)

    def release(self, cache: SequenceCache) -> None:
        if id(cache) in self._owners:
            self.hash_state(cache)
        self._release(cache)

    def hash_state(self, cache: SequenceCache, every: int = 1) -> None:
        history = self.histories[self._owners[id(cache)]]
        history.length = max(history.length, cache.length)
        if cache.length and cache.length % every == 0:
            history.states[cache.length] = cache.state_hash()

    def is_open(self, key: int) -> bool:
        history = self.histories.get(key)
        return history is not None and (history.last is None or not history.last.finish_reason)

    def note(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            history = self.histories[event.request_id]
            history.events.append((event.token_id, event.finish_reason))
            history.last = event
        for key in {event.request_id for event in events}:
            self.histories[key].num_passes += 1
        for cache in self.caches.values():
            self.hash_state(cache, self.hash_every)


def histories(
    target: TargetModel,
    requests: Sequence[Request],
    drafter: Drafter | None = None,
    *,
    memory: Memory = ROOMY,
    cancels: Mapping[int, int] | None = None,
    hash_every: int = 1,
) -> list[History]:
    """What each of the requests saw, run together from the first pass on.

    Args:
        target: The network.
        requests: What to run.
        drafter: What drafts.
        memory: K/V memory of the engine.
        cancels: Steps after which a request is cancelled, by its place.
        hash_every: K/V is hashed at the end and at lengths that this number divides.
    """
    tracing = _TracingTarget(target)
    engine = Engine(
        tracing, max_cache_bytes=memory.max_bytes, max_running=memory.max_running, drafter=drafter
    )
    engine.keep_prefixes(memory.prefix_bytes)
    tracer = _Tracer(engine, requests, hash_every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchBuilder, "build", lambda *args: tracer.build(*args))
        patch.setattr(SequenceCache, "release", lambda cache: tracer.release(cache))
        num_steps = 0
        while engine.has_work:
            events = engine.step()
            tracer.note(events)
            for key, found in zip(tracer.order, tracing.rows, strict=True):
                for row in found:
                    _keep_if_committed(tracer.histories[key], row)
            num_steps += 1
            assert engine.used_cache_bytes <= memory.max_bytes
            assert engine.kept_cache_bytes <= memory.prefix_bytes
            for key, step in (cancels or {}).items():
                if step == num_steps and tracer.is_open(key):
                    engine.cancel(key)
    for history in tracer.histories.values():
        history.token_ids += history.output
    engine.keep_prefixes(0)
    assert engine.used_cache_bytes == 0
    return list(tracer.histories.values())


def _keep_if_committed(history: History, row: _Row) -> None:
    start = row.position + 1 - len(row.path)
    if row.position >= history.length:
        return
    if [*history.token_ids, *history.output][start : row.position + 1] == row.path:
        logits = row.logits.tobytes()
        known = history.logits.setdefault(row.position, logits)
        assert known == logits, f"twin rows differ at position {row.position}"


def assert_identical(found: History, plain: History) -> None:
    """Fail unless tokens, end, K/V and logits are those of plain decoding."""
    assert found.events == plain.events
    assert found.last is not None
    assert plain.last is not None
    stats, expected = found.last.stats, plain.last.stats
    assert stats is not None
    assert expected is not None
    assert stats.predicted_tokens == expected.predicted_tokens
    assert stats.prompt_tokens == expected.prompt_tokens
    for length in found.states.keys() & plain.states.keys():  # a prompt may be cut elsewhere
        assert found.states[length] == plain.states[length], f"other K/V in the first {length}"
    assert found.length == plain.length == max(found.states) == max(plain.states)
    assert found.logits.keys() == plain.logits.keys()
    for position, logits in found.logits.items():
        assert logits == plain.logits[position], f"other logits at position {position}"
