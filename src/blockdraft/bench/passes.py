"""Timed target passes over one sequence: M rows after a committed context, and prefill.

A timed pass is not committed, so that it can be repeated: it writes the same slots again.
Knows no model file and no statistics.
"""

import time

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine import Target
from blockdraft.errors import CapacityError
from blockdraft.kv_cache import KVLayout, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice

__all__ = ["PassTimer", "draw_tokens"]


def draw_tokens(count: int, vocab_size: int) -> NDArray[np.int32]:
    """``count`` token ids, the same at every call; a pass takes as long with any."""
    return np.random.default_rng(0).integers(0, vocab_size, count, dtype=np.int32)


class PassTimer:
    """Times passes of a target; the context grows when told to.

    Args:
        target: The network.
        max_positions: The most positions of context and rows together.

    Raises:
        CapacityError: The model was trained for fewer positions.
    """

    def __init__(self, target: Target, max_positions: int) -> None:
        trained = target.config.context_length
        if max_positions > trained:
            raise CapacityError(
                f"{max_positions} positions exceed the model's context of {trained}"
            )
        layout = KVLayout.from_config(target.config)
        # Two pages more: a pool may round up the span that its windowed layers keep.
        spare = 2 * (layout.full_page_bytes + layout.window_page_bytes)
        pool = target.new_cache_pool(
            layout.max_bytes(max_positions, rows_per_pass=target.max_rows) + spare
        )
        self._target = target
        self._cache = SequenceCache(pool)
        self._builder = BatchBuilder(target.max_rows)
        self._tokens = draw_tokens(max_positions, target.config.vocab_size)

    def clear(self) -> None:
        """Start again with no context."""
        self._cache.release()

    def extend(self, length: int) -> None:
        """Prefill until the context has ``length`` tokens, without logits but the last row's.

        Raises:
            CapacityError: ``length`` is beyond the positions planned for.
        """
        while self._cache.length < length:
            num_rows = min(length - self._cache.length, self._target.max_rows)
            self._cache.reserve(num_rows)
            is_last = self._cache.length + num_rows == length
            self._target.forward(self._builder.build([self._rows(num_rows, int(is_last))]))
            self._cache.commit(range(num_rows))

    def time_rows(self, num_rows: int, num_repeats: int) -> list[float]:
        """Seconds of each of ``num_repeats`` passes over ``num_rows`` rows, all with logits.

        Raises:
            CapacityError: The rows reach beyond the positions planned for.
        """
        self._cache.reserve(num_rows)
        batch = self._builder.build([self._rows(num_rows, num_rows)])
        seconds = []
        for _ in range(num_repeats):
            start = time.perf_counter()
            self._target.forward(batch)
            seconds.append(time.perf_counter() - start)
        return seconds

    def time_prefill(self, num_tokens: int) -> float:
        """Seconds to read ``num_tokens`` tokens from no context, with logits of the last.

        Raises:
            CapacityError: ``num_tokens`` is beyond the positions planned for.
        """
        self.clear()
        start = time.perf_counter()
        self.extend(num_tokens)
        return time.perf_counter() - start

    def _rows(self, num_rows: int, num_logits: int) -> RowSlice:
        length = self._cache.length
        if length + num_rows > len(self._tokens):
            raise CapacityError(f"{length + num_rows} positions of {len(self._tokens)} planned")
        return RowSlice(self._cache, self._tokens[length : length + num_rows], num_logits)
