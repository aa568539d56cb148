"""Passes of a target written out by hand, and what each position gave: logits and K/V hashes.

For tests of bit identity: the same tokens in other passes must give the same bytes. Chains and
trees, any number of sequences per pass; no scheduler and no sampling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockdraft.kv_cache import LARGEST_BLOCK, SequenceCache
from blockdraft.models.target import TargetModel, load_target
from blockdraft.ops.batch import Batch

__all__ = [
    "CACHE_BYTES",
    "Part",
    "Replay",
    "Trace",
    "TracedModels",
    "assert_same",
    "run_pass",
    "token_stream",
]

CACHE_BYTES = 256 << 20


def token_stream(seed: int, length: int, vocab_size: int) -> NDArray[np.int32]:
    """Random tokens; the same arguments give the same."""
    return np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)


@dataclass(frozen=True)
class Part:
    """Rows of one sequence in a pass.

    Attributes:
        token_ids: One per row.
        parents: Ordinal of each row's predecessor, -1 for the last committed token; None: a chain.
        wanted: Ordinals of the rows whose logits are wanted, ascending; None: all.
    """

    cache: SequenceCache
    token_ids: NDArray[np.int32]
    parents: Sequence[int] | None = None
    wanted: Sequence[int] | None = None

    @property
    def ordinals_wanted(self) -> list[int]:
        return list(range(len(self.token_ids)) if self.wanted is None else self.wanted)

    def positions(self) -> list[int]:
        parents = range(-1, len(self.token_ids) - 1) if self.parents is None else self.parents
        positions: list[int] = []
        for parent in parents:
            positions.append(self.cache.length if parent < 0 else positions[parent] + 1)
        return positions


def _pages(tables: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    joined = np.zeros((len(tables), max(map(len, tables))), np.uint64)
    for row, table in zip(joined, tables, strict=True):
        row[: len(table)] = table
    return joined


def _batch(parts: Sequence[Part]) -> Batch:
    starts = np.cumsum([0, *(len(part.token_ids) for part in parts)])
    parents: list[int] = []
    wanted: list[int] = []
    for part, start in zip(parts, starts, strict=False):
        given = range(-1, len(part.token_ids) - 1) if part.parents is None else part.parents
        parents += [int(start) + parent if parent >= 0 else -1 for parent in given]
        wanted += [int(start) + ordinal for ordinal in part.ordinals_wanted]
    return Batch(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        positions=np.array([p for part in parts for p in part.positions()], np.int32),
        parents=np.array(parents, np.int32),
        row_starts=starts.astype(np.int32),
        base_lengths=np.array([part.cache.length for part in parts], np.int32),
        full_pages=_pages([part.cache.full_pages() for part in parts]),
        window_pages=_pages([part.cache.window_pages() for part in parts]),
        logit_rows=np.array(wanted, np.int32),
    )


def run_pass(model: TargetModel, parts: Sequence[Part]) -> list[list[bytes]]:
    """Logits of the rows wanted, as bytes, by part; nothing is committed."""
    for part in parts:
        part.cache.reserve(len(part.token_ids))
    logits = iter(model.forward(_batch(parts)).logits)
    return [[next(logits).tobytes() for _ in part.ordinals_wanted] for part in parts]


@dataclass
class Trace:
    """What a history of tokens gave: logits by position, K/V hash by length."""

    logits: dict[int, bytes] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


def assert_same(trace: Trace, reference: Trace) -> None:
    """Fail at the first length or position whose bytes are not those of ``reference``."""
    for length, state in sorted(trace.states.items()):
        assert state == reference.states[length], f"other K/V among the first {length} positions"
    for position, logits in sorted(trace.logits.items()):
        assert logits == reference.logits[position], f"other logits at position {position}"


class Replay:
    """One sequence that runs known tokens, pass by pass, and traces what it sees.

    The K/V is hashed after each pass and at the lengths before that a window would else have
    passed by: with at most `LARGEST_BLOCK` rows a pass each position of each layer is under some
    hash.
    """

    def __init__(self, model: TargetModel, token_ids: NDArray[np.int32]) -> None:
        self.model = model
        self.token_ids = token_ids
        self.cache = SequenceCache(model.new_cache_pool(CACHE_BYTES))
        self.trace = Trace()
        window = model.config.window if any(model.config.windowed_layers) else None
        self._hash_step = 1 << 30 if window is None else max(window - 1, 1)

    @property
    def left(self) -> int:
        """Tokens that have not run yet."""
        return len(self.token_ids) - self.cache.length

    def part(self, num_rows: int, wanted: Sequence[int] | None = None) -> Part:
        """The next rows, for a pass."""
        start = self.cache.length
        return Part(self.cache, self.token_ids[start : start + num_rows], wanted=wanted)

    def accept(self, part: Part, logits: Sequence[bytes], *, keep: int | None = None) -> None:
        """Commit the first ``keep`` rows (None: all) of a pass and trace them."""
        start = self.cache.length
        keep = len(part.token_ids) if keep is None else keep
        for ordinal, row in zip(part.ordinals_wanted, logits, strict=True):
            if ordinal < keep:
                self.trace.logits[start + ordinal] = row
        self.cache.commit(range(keep))
        self.trace_states(start)

    def trace_states(self, start: int) -> None:
        """Hash the committed K/V, back to ``start`` or as far as windowed layers still hold all."""
        oldest = max(start, self.cache.length - LARGEST_BLOCK)
        for length in range(self.cache.length, oldest, -self._hash_step):
            self.trace.states[length] = self.cache.state_hash(length)

    def advance(self, num_rows: int, wanted: Sequence[int] | None = None) -> None:
        """A pass of its own over the next rows."""
        part = self.part(num_rows, wanted)
        self.accept(part, run_pass(self.model, [part])[0])

    def run(self, *num_rows: int) -> Trace:
        """Passes of these numbers of rows, then of the last one until all tokens have run."""
        for count in num_rows:
            self.advance(count)
        while self.left:
            self.advance(min(num_rows[-1], self.left))
        return self.trace


@dataclass
class TracedModels:
    """Loaded models and reference traces (scalar, one row at a time), each made once."""

    path_of: Callable[[str], Path]
    lengths: Mapping[int, int]
    _models: dict[tuple[str, str, int], TargetModel] = field(default_factory=dict)
    _references: dict[tuple[str, int], Trace] = field(default_factory=dict)

    def model(self, case: str, isa: str, num_threads: int) -> TargetModel:
        """The model of ``case`` on an instruction set path."""
        key = (case, isa, num_threads)
        if key not in self._models:
            path = self.path_of(case)
            self._models[key] = load_target(path, num_threads=num_threads, isa=isa)
        return self._models[key]

    def token_ids(self, case: str, stream: int) -> NDArray[np.int32]:
        """Tokens of a stream, the same for every path."""
        vocab_size = self.model(case, "scalar", 1).config.vocab_size
        return token_stream(stream, self.lengths[stream], vocab_size)

    def replay(self, case: str, isa: str, num_threads: int, *, stream: int = 0) -> Replay:
        """A new sequence over the tokens of ``stream``."""
        return Replay(self.model(case, isa, num_threads), self.token_ids(case, stream))

    def reference(self, case: str, stream: int = 0) -> Trace:
        """What a stream gives on the scalar path, one row per pass, one thread."""
        if (case, stream) not in self._references:
            self._references[case, stream] = self.replay(case, "scalar", 1, stream=stream).run(1)
        return self._references[case, stream]
