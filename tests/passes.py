"""Passes of a target written out by hand, and what each position gave: logits and K/V hashes.

For tests of bit identity: the same tokens in other passes must give the same bytes. Chains and
trees, any number of sequences per pass; no scheduler and no sampling.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout, SequenceCache, page_view
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
LONG_ROW = 1 << 14


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


def kv_hashes(cache: SequenceCache, layout: KVLayout, slots: range) -> list[str]:
    """One hash per slot over its K and V in all layers; pages must be held."""
    heads, dim = layout.num_kv_heads, layout.head_dim
    digests = [hashlib.blake2b(digest_size=16) for _ in slots]
    for pages, layers in (
        (cache.full_pages(), len(layout.full_layers)),
        (cache.window_pages(), len(layout.windowed_layers)),
    ):
        nbytes = layers * heads * 2 * PAGE_POSITIONS * dim * 2
        for slot, digest in zip(slots if layers else (), digests, strict=False):
            page = page_view(int(pages[slot // PAGE_POSITIONS]), nbytes).view(np.uint16)
            halves = page.reshape(layers, heads, 2, PAGE_POSITIONS * dim)
            keys = halves[:, :, 0].reshape(layers, heads, dim, PAGE_POSITIONS)
            values = halves[:, :, 1].reshape(layers, heads, PAGE_POSITIONS, dim)
            digest.update(keys[..., slot % PAGE_POSITIONS].tobytes())
            digest.update(values[:, :, slot % PAGE_POSITIONS].tobytes())
    return [digest.hexdigest() for digest in digests]


def _hash(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=16).digest()


@dataclass
class Trace:
    """What a history of tokens gave.

    Attributes:
        kv: Hash of the K/V by position.
        logits: By position, where wanted; hashes of them for large vocabularies.
        state: `SequenceCache.state_hash` once all tokens have run.
    """

    kv: dict[int, str] = field(default_factory=dict)
    logits: dict[int, bytes] = field(default_factory=dict)
    state: str = ""


def assert_same(trace: Trace, reference: Trace) -> None:
    """Fail at the first position whose bytes are not those of ``reference``."""
    assert trace.kv, "nothing has run"
    for position, kv in sorted(trace.kv.items()):
        assert kv == reference.kv[position], f"other K/V at position {position}"
    for position, logits in sorted(trace.logits.items()):
        assert logits == reference.logits[position], f"other logits at position {position}"
    assert trace.state in ("", reference.state), "other K/V after the last pass"


class Replay:
    """One sequence that runs known tokens, pass by pass, and traces what they give."""

    def __init__(self, model: TargetModel, token_ids: NDArray[np.int32]) -> None:
        self.model = model
        self.token_ids = token_ids
        self.cache = SequenceCache(model.new_cache_pool(CACHE_BYTES))
        self.trace = Trace()
        self._layout = KVLayout.from_config(model.config)

    @property
    def left(self) -> int:
        """Tokens that have not run yet."""
        return len(self.token_ids) - self.cache.length

    def part(self, num_rows: int, wanted: Sequence[int] | None = None) -> Part:
        """The next rows, for a pass."""
        start = self.cache.length
        return Part(self.cache, self.token_ids[start : start + num_rows], wanted=wanted)

    def accept(self, part: Part, logits: Sequence[bytes]) -> None:
        """Trace and commit all rows of a pass."""
        start = self.cache.length
        for ordinal, row in zip(part.ordinals_wanted, logits, strict=True):
            self.trace.logits[start + ordinal] = row if len(row) < LONG_ROW else _hash(row)
        self.trace_kv(range(start, start + len(part.token_ids)))
        self.cache.commit(range(len(part.token_ids)))
        if not self.left:
            self.trace.state = self.cache.state_hash()

    def trace_kv(self, slots: range) -> None:
        """Hash what these slots hold."""
        hashes = kv_hashes(self.cache, self._layout, slots)
        self.trace.kv |= dict(zip(slots, hashes, strict=True))

    def advance(self, num_rows: int, wanted: Sequence[int] | None = None) -> None:
        """A pass of its own over the next rows."""
        part = self.part(num_rows, wanted)
        self.accept(part, run_pass(self.model, [part])[0])

    def run(self, *num_rows: int) -> Trace:
        """Passes of these numbers of rows, then of the last one, until all tokens have run."""
        sizes = chain(num_rows, repeat(num_rows[-1]))
        while self.left:
            self.advance(min(next(sizes), self.left))
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
