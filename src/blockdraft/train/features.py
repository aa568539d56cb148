"""Target features of corpus sequences, computed as they will be when the drafter is served.

The quantized target runs on the native core: several sequences per pass, fresh K/V pages each
time, no logits. Since its results do not depend on batch neighbours, the same sequence always has
the same features. Knows no drafter.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.kv_cache import SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.target import TargetModel, load_target

__all__ = ["FeatureExtractor", "FeatureSource"]

_MAX_ROWS = 512
_CACHE_BYTES = 4 << 30


class FeatureSource(Protocol):
    """Something that gives features."""

    def extract(self, sequences: Sequence[NDArray[np.int32]], /) -> list[Tensor]:
        """Features of each sequence of token ids, float32 "tokens taps*hidden"."""
        ...


class FeatureExtractor:
    """A target that gives features.

    Attributes:
        target: The loaded model.
        num_tokens: Tokens whose features were computed so far.
        seconds: Time that took.
    """

    def __init__(self, path: Path, taps: Sequence[int], *, num_threads: int | None = None) -> None:
        """Load the target.

        Args:
            path: A GGUF file.
            taps: Target layers whose outputs are the features, ascending.
            num_threads: Threads of a pass; None is one per processor.

        Raises:
            BlockdraftError: The target cannot be loaded, or has no such layers.
        """
        self.target: TargetModel = load_target(
            path, num_threads=num_threads, taps=taps, max_rows=_MAX_ROWS
        )
        self.num_tokens = 0
        self.seconds = 0.0
        self._size = len(taps) * self.target.config.hidden_size
        self._pool = self.target.new_cache_pool(_CACHE_BYTES)
        self._builder = BatchBuilder(_MAX_ROWS)

    def extract(self, sequences: Sequence[NDArray[np.int32]]) -> list[Tensor]:
        """Features of each sequence of token ids, float32 "tokens taps*hidden"."""
        start = perf_counter()
        features = [np.empty((len(ids), self._size), np.float32) for ids in sequences]
        caches = [SequenceCache(self._pool) for _ in sequences]
        try:
            for parts in _passes([len(each) for each in sequences]):
                self._run(parts, sequences, caches, features)
        finally:
            for cache in caches:
                cache.release()
        self.num_tokens += sum(map(len, sequences))
        self.seconds += perf_counter() - start
        return [torch.from_numpy(each) for each in features]

    def _run(
        self,
        parts: Sequence[tuple[int, int, int]],
        sequences: Sequence[NDArray[np.int32]],
        caches: Sequence[SequenceCache],
        features: Sequence[NDArray[np.float32]],
    ) -> None:
        slices = []
        for index, start, stop in parts:
            caches[index].reserve(stop - start)
            slices.append(RowSlice(caches[index], sequences[index][start:stop], num_logits=0))
        found = self.target.forward(self._builder.build(slices)).features
        assert found is not None, "the target was loaded with taps"
        row = 0
        for index, start, stop in parts:
            features[index][start:stop] = found[row : row + stop - start]
            caches[index].commit(range(stop - start))
            row += stop - start


def _passes(lengths: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Passes of at most `_MAX_ROWS` rows: (sequence, first token, one past the last) each."""
    parts: list[tuple[int, int, int]] = []
    room = _MAX_ROWS
    for index, length in enumerate(lengths):
        start = 0
        while start < length:
            stop = min(start + room, length)
            parts.append((index, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield parts
                parts, room = [], _MAX_ROWS
    if parts:
        yield parts
