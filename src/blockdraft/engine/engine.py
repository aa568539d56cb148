"""Many sequences, one target: every step is one ragged pass and one token for each that decodes.

Knows no text. Synchronous and deterministic: the same calls give the same events, and a request
gets the tokens it would get alone.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.batching import BatchBuilder
from blockdraft.engine.request import FinishReason, Request, RequestStats, TokenEvent
from blockdraft.engine.sampling import NativeSampler, Sampler, prepare_sampling
from blockdraft.engine.scheduler import Advance, Scheduler
from blockdraft.engine.score import score_tokens
from blockdraft.engine.sequence import SequenceState
from blockdraft.engine.target import Target
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.kv_cache import SequenceCache

__all__ = ["Engine"]


class Engine:
    """Advances any number of requests on one target.

    Args:
        target: The network.
        max_cache_bytes: Budget of K/V memory, touched as it is used.
        context_length: The most tokens of a sequence; None is what the target was trained for.
        max_running: The most sequences at once; None is as many as a pass has rows.
        sampler: Picks tokens; None is the native sampler.
        clock: Seconds; only statistics depend on it.

    Raises:
        ConfigError: ``context_length`` or ``max_running`` is out of range.
    """

    def __init__(
        self,
        target: Target,
        *,
        max_cache_bytes: int,
        context_length: int | None = None,
        max_running: int | None = None,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        trained = target.config.context_length
        self.target = target
        self.context_length = trained if context_length is None else context_length
        if not 1 <= self.context_length <= trained:
            raise ConfigError(
                f"context length {self.context_length} is not in [1, {trained}], "
                "what the model was trained for"
            )
        if max_running is not None and not 1 <= max_running <= target.max_rows:
            raise ConfigError(f"max_running is {max_running}; it must be in [1, {target.max_rows}]")
        self._pool = target.new_cache_pool(max_cache_bytes)
        self._scheduler = Scheduler(
            self._pool,
            max_rows=target.max_rows,
            max_running=target.max_rows if max_running is None else max_running,
        )
        self._builder = BatchBuilder(target.max_rows)
        self._sampler = NativeSampler() if sampler is None else sampler
        self._clock = clock
        self._request_ids = count()

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold K/V memory."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return self._scheduler.num_waiting

    @property
    def used_cache_bytes(self) -> int:
        """K/V memory in use."""
        return self._pool.used_bytes

    def add(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            ConfigError: The prompt is empty, an id is out of the vocabulary, there is no seed.
            CapacityError: It exceeds the context length or the whole K/V memory.
        """
        self._check(request)
        sequence = SequenceState(
            next(self._request_ids),
            request,
            cache=SequenceCache(self._pool),
            sampling=prepare_sampling(request.params, request.choice),
            added_s=self._clock(),
        )
        self._scheduler.add(sequence)
        return sequence.request_id

    def cancel(self, request_id: int) -> RequestStats:
        """End a request and free its memory at once; returns its counts and times.

        Raises:
            KeyError: No waiting or running request has that number.
        """
        sequence = self._scheduler.find(request_id)
        if sequence is None:
            raise KeyError(request_id)
        self._scheduler.remove(sequence)
        return sequence.stats(self._clock())

    def step(self) -> list[TokenEvent]:
        """Run one pass; returns an event for every request that got a token, in batch order.

        Nothing to do gives no events. After an exception (Ctrl-C, say) the requests that were
        running must be cancelled.
        """
        admitted = self._scheduler.admit()
        if admitted:
            now_s = self._clock()
            for sequence in admitted:
                sequence.started_s = now_s
        advances = self._scheduler.next_pass()
        if not advances:
            return []
        logits = self._forward(advances)
        ready: list[SequenceState] = []
        for advance in advances:
            sequence = advance.sequence
            sequence.cache.commit(range(advance.num_rows))
            if not sequence.num_pending:
                ready.append(sequence)
        if not ready:
            return []
        token_ids = self._sampler.pick(logits, [sequence.sample_row() for sequence in ready])
        now_s = self._clock()
        return [
            self._take(sequence, int(token_id), now_s)
            for sequence, token_id in zip(ready, token_ids, strict=True)
        ]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Natural log-probability of every token but the first given those before, [tokens - 1].

        Raises:
            ConfigError: An id is out of the vocabulary.
            CapacityError: The tokens exceed the context length or the free K/V memory.
        """
        self._check_tokens(token_ids, 0)
        needed = self._scheduler.bytes_needed(len(token_ids))
        if needed > self._scheduler.unpromised_bytes:
            raise CapacityError(
                f"scoring {len(token_ids)} tokens needs {needed} bytes of K/V memory, "
                f"{self._scheduler.unpromised_bytes} are free"
            )
        return score_tokens(self.target, self._pool, np.array(token_ids, np.int32))

    def _forward(self, advances: Sequence[Advance]) -> NDArray[np.float32]:
        slices = []
        for advance in advances:
            advance.sequence.cache.reserve(advance.num_rows)
            slices.append(advance.sequence.next_rows(advance.num_rows))
        return self.target.forward(self._builder.build(slices)).logits

    def _take(self, sequence: SequenceState, token_id: int, now_s: float) -> TokenEvent:
        sequence.num_picked += 1
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        reason: FinishReason
        if token_id in sequence.request.stop_token_ids:
            written, reason = None, "stop"
        else:
            written = token_id
            sequence.append(token_id)
            if not sequence.is_full:
                return TokenEvent(sequence.request_id, written)
            reason = "length"
        self._scheduler.remove(sequence)
        return TokenEvent(sequence.request_id, written, reason, sequence.stats(now_s))

    def _check(self, request: Request) -> None:
        if request.max_tokens < 1:
            raise ConfigError(f"max_tokens is {request.max_tokens}; it must be at least 1")
        self._check_tokens(request.token_ids, request.max_tokens)
        vocab_size = self.target.config.vocab_size
        for token_id, _ in request.params.logit_bias:
            if token_id >= vocab_size:
                raise ConfigError(f"logit_bias names token {token_id} of {vocab_size}")
        self._scheduler.check_fits(len(request.token_ids) + request.max_tokens)

    def _check_tokens(self, token_ids: Sequence[int], max_tokens: int) -> None:
        if not token_ids:
            raise ConfigError("the prompt is empty: it has no token")
        vocab_size = self.target.config.vocab_size
        lowest, highest = min(token_ids), max(token_ids)
        if lowest < 0 or highest >= vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise ConfigError(f"token id {wrong} is not in the vocabulary of {vocab_size}")
        if len(token_ids) + max_tokens > self.context_length:
            raise CapacityError(
                f"{len(token_ids)} prompt tokens and {max_tokens} more exceed "
                f"the context of {self.context_length}"
            )
