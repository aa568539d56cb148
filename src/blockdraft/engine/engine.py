"""Many sequences, one target, one drafter: every step is one ragged pass.

For a sequence that decodes a step is a round: propose, run the target, verify, commit.

Knows no text. Synchronous and deterministic: a request gets the tokens it would get alone. Only how
a prompt is cut beside decoding depends on the clock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.checks import check_request, check_tokens
from blockdraft.engine.prefix_cache import PrefixCache
from blockdraft.engine.request import Request, RequestStats, TokenEvent
from blockdraft.engine.sampling import NativeSampler, Sampler, prepare_sampling
from blockdraft.engine.scheduler import Advance, Scheduler
from blockdraft.engine.score import score_tokens
from blockdraft.engine.sequence import Gain, SequenceState, features_of, kept_rows
from blockdraft.engine.target import Target
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.kv_cache import PAGE_POSITIONS, KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder
from blockdraft.ops.batch import PassResult
from blockdraft.speculative.drafter import CommittedRows, Drafter, Resting, Sleeping
from blockdraft.speculative.stats import RoundCounter
from blockdraft.speculative.types import NO_DRAFTS, Proposal, Verdict
from blockdraft.speculative.verify import Pick, verify

__all__ = ["Engine"]


class Engine:
    """Advances any number of requests on one target.

    Args:
        target: The network.
        max_cache_bytes: Budget of K/V memory, touched as it is used.
        context_length: The most tokens of a sequence; None is what the target was trained for.
        max_running: The most sequences at once; None is as many as a pass has rows.
        sampler: Picks tokens; None is the native sampler.
        drafter: Proposes tokens; None decodes plainly.
        clock: Seconds; only statistics and the cutting of prompts depend on it.

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
        drafter: Drafter | None = None,
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
        self._pool = target.new_cache_pool(max_cache_bytes)
        layout = None if drafter is None else drafter.cache_layout
        self._draft_pool = None if layout is None else KVPool(layout, self._pool.budget)
        self._prefixes: PrefixCache | None = None
        self._scheduler = Scheduler(
            self._pool,
            draft_pool=self._draft_pool,
            max_rows=target.max_rows,
            max_running=target.max_rows,
            num_draft_tokens=0 if drafter is None else drafter.block_size - 1,
            begin=self._begin,
        )
        if max_running is not None:
            self.limit_running(max_running)
        self._builder = BatchBuilder(target.max_rows)
        self._sampler = NativeSampler() if sampler is None else sampler
        self._drafter = drafter
        self._resting: Resting | None = None
        self._sleeping: Sleeping | None = None
        if drafter is not None:
            self._resting = drafter if isinstance(drafter, Resting) else None
            self._sleeping = drafter if isinstance(drafter, Sleeping) else None
        self._is_resting = False  # in the round that runs
        self._draft_s = self._verify_s = 0.0  # of the round that runs
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
    def drafter(self) -> Drafter | None:
        """What drafts for requests that want it."""
        return self._drafter

    def limit_running(self, max_running: int) -> None:
        """Admit at most ``max_running`` sequences at once from now on.

        Raises:
            ConfigError: It is out of range.
        """
        most = self.target.max_rows
        if not 1 <= max_running <= most:
            raise ConfigError(f"max_running is {max_running}; it must be in [1, {most}]")
        self._scheduler.max_running = max_running

    def keep_prefixes(self, max_bytes: int) -> None:
        """Keep K/V of what was read and written, for requests that begin alike.

        A request gets the same tokens with it, only sooner: by the time that takes, whoever sends
        requests can tell how others began.

        Args:
            max_bytes: How much of the K/V memory may be kept; what running requests need goes
                first. 0 keeps nothing.
        """
        if self._prefixes is not None:
            self._prefixes.clear()
        pools = [self._pool, *([] if self._draft_pool is None else [self._draft_pool])]
        self._prefixes = PrefixCache(pools, max_bytes) if max_bytes else None
        self._pool.budget.reclaim = None if self._prefixes is None else self._prefixes.reclaim

    @property
    def used_cache_bytes(self) -> int:
        """K/V memory in use, a drafter's and what is kept for later requests included."""
        return self._pool.budget.used_bytes

    @property
    def kept_cache_bytes(self) -> int:
        """K/V memory that is kept for later requests, whether or not one runs that uses it."""
        return 0 if self._prefixes is None else self._prefixes.held_bytes

    def add(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            ConfigError: The prompt is empty, an id is out of the vocabulary, there is no seed.
            CapacityError: It exceeds the context length or the whole K/V memory.
        """
        check_request(request, self.target.config.vocab_size, self.context_length)
        max_positions = len(request.token_ids) + request.max_tokens
        self._scheduler.check_fits(max_positions, has_drafts=request.draft)
        rounds = self._new_rounds(request)
        request_id = next(self._request_ids)
        sleeping = self._sleeping
        is_kept = rounds is not None and (sleeping is None or sleeping.keeps(request_id))
        draft_pool = self._draft_pool if is_kept else None
        sequence = SequenceState(
            request_id,
            request,
            cache=SequenceCache(self._pool),
            draft_cache=None if draft_pool is None else SequenceCache(draft_pool),
            sampling=prepare_sampling(request.params, request.choice),
            added_s=self._clock(),
            rounds=rounds,
        )
        if self._drafter is not None and sequence.rounds is not None:
            self._drafter.start(sequence.request_id)
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
        self._remove(sequence)
        return sequence.stats(self._clock())

    def step(self) -> list[TokenEvent]:
        """Run one pass; returns the tokens it gave, in batch order, as one event each.

        Nothing to do gives no events. After an exception (Ctrl-C, say) the requests that were
        running must be cancelled.
        """
        start_s = self._clock()
        self._scheduler.make_room()
        self._admit()
        advances = self._scheduler.next_pass()
        if not advances:
            return []
        proposals = self._propose(advances)
        result = self._run_pass(advances, proposals)
        verdicts = self._verify(advances, proposals, result.logits)
        prompts = [each.num_rows for each in advances if each.sequence.is_reading]
        events = self._commit(advances, proposals, verdicts, result)
        num_decoding = len(advances) - len(prompts)
        self._scheduler.pace.learn(num_decoding, sum(prompts), self._clock() - start_s)
        return events

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Natural log-probability of every token but the first given those before, [tokens - 1].

        Raises:
            ConfigError: An id is out of the vocabulary.
            CapacityError: The tokens exceed the context length or the free K/V memory.
        """
        check_tokens(token_ids, 0, self.target.config.vocab_size, self.context_length)
        needed = self._scheduler.bytes_needed(len(token_ids), has_drafts=False)
        if needed > self._scheduler.unpromised_bytes:
            raise CapacityError(
                f"scoring {len(token_ids)} tokens needs {needed} bytes of K/V memory, "
                f"{self._scheduler.unpromised_bytes} are free"
            )
        return score_tokens(self.target, self._pool, np.array(token_ids, np.int32))

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        if admitted:
            now_s = self._clock()
            for sequence in admitted:
                if sequence.started_s is None:
                    sequence.started_s = now_s

    def _begin(self, sequence: SequenceState) -> None:
        """Find what is known of a sequence that is about to be read."""
        if self._prefixes is None:
            return
        num_known = self._prefixes.attach(sequence.token_ids, sequence.caches)
        if num_known and sequence.rounds is not None:
            self._observe([sequence.committed_rows(0, None)])
        if not sequence.num_output:
            sequence.num_cached = num_known

    def _propose(self, advances: Sequence[Advance]) -> list[Proposal]:
        """A proposal for every advance, an empty one where nothing may be drafted."""
        proposals = [NO_DRAFTS] * len(advances)
        drafting = [i for i, advance in enumerate(advances) if advance.max_drafts]
        self._draft_s, self._is_resting = 0.0, False
        if self._drafter is None or not drafting:
            return proposals
        start_s = self._clock()
        if self._resting is not None and self._resting.rests():
            self._is_resting = True
            return proposals
        tasks = [advances[i].sequence.draft_task(advances[i].max_drafts) for i in drafting]
        for i, proposal in zip(drafting, self._drafter.propose(tasks), strict=True):
            assert len(proposal) <= advances[i].max_drafts
            proposals[i] = proposal
        self._draft_s = self._clock() - start_s
        return proposals

    def _run_pass(self, advances: Sequence[Advance], proposals: Sequence[Proposal]) -> PassResult:
        slices = []
        for advance, proposal in zip(advances, proposals, strict=True):
            advance.sequence.cache.reserve(advance.num_rows + len(proposal))
            slices.append(advance.sequence.next_rows(advance.num_rows, proposal))
        batch = self._builder.build(slices)
        start_s = self._clock()
        result = self.target.forward(batch)
        self._verify_s = self._clock() - start_s
        if self._prefixes is not None:
            self._prefixes.is_fed = result.features is not None
        return result

    def _verify(
        self,
        advances: Sequence[Advance],
        proposals: Sequence[Proposal],
        logits: NDArray[np.float32],
    ) -> list[Verdict | None]:
        """What each sequence gains; None for one whose prompt has not been read to its end."""
        ready = [advance.num_rows == advance.sequence.num_pending for advance in advances]
        if not any(proposals):
            sequences = [advances[i].sequence for i, is_ready in enumerate(ready) if is_ready]
            rows = [sequence.sample_row() for sequence in sequences]
            picked = iter(self._sampler.pick(logits, rows) if rows else ())
            return [Verdict((0,), (int(next(picked)),)) if is_ready else None for is_ready in ready]
        verdicts: list[Verdict | None] = []
        first = 0
        for advance, proposal, is_ready in zip(advances, proposals, ready, strict=True):
            if is_ready:
                verdicts.append(verify(proposal, self._picker(advance.sequence, logits, first)))
                first += 1 + len(proposal)
            else:
                verdicts.append(None)
        return verdicts

    def _picker(self, sequence: SequenceState, logits: NDArray[np.float32], first: int) -> Pick:
        """What the target picks after the rows of a sequence, whose logits begin at ``first``."""

        def pick(row: int, path: Sequence[int]) -> int:
            row_logits = logits[first + row : first + row + 1]
            return int(self._sampler.pick(row_logits, [sequence.sample_row(path)])[0])

        return pick

    def _commit(
        self,
        advances: Sequence[Advance],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict | None],
        result: PassResult,
    ) -> list[TokenEvent]:
        """Write the tokens gained, make the rows that stay permanent, tell the drafter."""
        gains: list[tuple[SequenceState, Gain]] = []
        seen: list[CommittedRows] = []
        filled: list[SequenceState] = []
        first = first_logits = 0
        num_rows = sum(advance.num_rows for advance in advances) + sum(map(len, proposals))
        for advance, proposal, verdict in zip(advances, proposals, verdicts, strict=True):
            sequence = advance.sequence
            gain = None
            if verdict is not None:
                gain = sequence.take(proposal, verdict, result.logits[first_logits:])
                first_logits += 1 + len(proposal)
            kept = kept_rows(advance.num_rows, gain)
            start = sequence.cache.length
            sequence.cache.commit(kept)
            if start // PAGE_POSITIONS != sequence.cache.length // PAGE_POSITIONS:
                filled.append(sequence)
            if gain is not None:
                gains.append((sequence, gain))
            if sequence.rounds is not None and self._is_wanted(sequence, gain):
                features = features_of(result, first, kept)
                seen.append(sequence.committed_rows(start, features, num_rows))
            first += advance.num_rows + len(proposal)
        self._observe(seen)
        self._keep(filled)
        now_s = self._clock()
        return [event for pair in gains for event in self._events(*pair, now_s)]

    def _is_wanted(self, sequence: SequenceState, gain: Gain | None) -> bool:
        """Whether the drafter is told of a pass."""
        is_left_out = self._is_resting and sequence.draft_cache is None
        return gain is None or (gain.reason is None and not is_left_out)

    def _keep(self, filled: Sequence[SequenceState]) -> None:
        """Keep the pages of sequences that have just filled one, for later requests."""
        if self._prefixes is not None:
            for sequence in filled:
                self._prefixes.keep(sequence.token_ids, sequence.caches)

    def _observe(self, rows: Sequence[CommittedRows]) -> None:
        if self._drafter is not None and rows:
            start_s = self._clock()
            self._drafter.observe(rows)
            self._draft_s += self._clock() - start_s

    def _events(self, sequence: SequenceState, gain: Gain, now_s: float) -> list[TokenEvent]:
        """An event for each token of one sequence; if it ended, it is removed."""
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        elif sequence.rounds is not None:
            sequence.rounds.add_time(self._draft_s, self._verify_s)
        events = [
            TokenEvent(
                sequence.request_id,
                token_id,
                is_drafted=i < gain.num_accepted,
                logprobs=gain.logprobs[i] if gain.logprobs else None,
            )
            for i, token_id in enumerate(gain.token_ids)
        ]
        if gain.reason is not None:
            self._remove(sequence)
            events[-1] = replace(
                events[-1],
                finish_reason=gain.reason,
                stats=sequence.stats(now_s),
                error=sequence.rules.error,
            )
        return events

    def _remove(self, sequence: SequenceState) -> None:
        self._scheduler.remove(sequence)
        if self._drafter is not None and sequence.rounds is not None:
            self._drafter.end(sequence.request_id)

    def _new_rounds(self, request: Request) -> RoundCounter | None:
        if self._drafter is None or not request.draft:
            return None
        return RoundCounter(self._drafter.type_name, self._drafter.block_size)
