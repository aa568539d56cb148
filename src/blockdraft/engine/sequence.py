"""The state of one running request: its tokens, its K/V, its clock readings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.logprobs import TokenLogprobs, token_logprobs
from blockdraft.engine.request import FinishReason, Request, RequestStats
from blockdraft.engine.rules import RequestRules
from blockdraft.engine.sampling import PreparedSampling, SampleRow
from blockdraft.kv_cache import SequenceCache
from blockdraft.models.batching import RowSlice
from blockdraft.ops.batch import PassResult
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.stats import RoundCounter
from blockdraft.speculative.types import Proposal, Verdict

__all__ = ["Gain", "SequenceState", "features_of", "kept_rows"]


@dataclass(frozen=True, slots=True)
class Gain:
    """What a pass gave one sequence after its stop rules.

    Attributes:
        token_ids: Tokens gained; None in place of a stop token, which is not written.
        rows: Rows of the round that stay: the anchor's 0, then those of accepted drafts.
        num_accepted: Tokens that are accepted drafts; the first ones.
        reason: Why the output ends here; None when it goes on.
        logprobs: One for each token, where they were asked for.
    """

    token_ids: tuple[int | None, ...]
    rows: tuple[int, ...]
    num_accepted: int
    reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()


def kept_rows(num_pending: int, gain: Gain | None) -> Sequence[int]:
    """Ordinals of the rows of a pass that stay: pending tokens and accepted drafts.

    Args:
        num_pending: Rows of pending tokens, the first ones of the pass.
        gain: What the pass gave; None when it read a piece of a prompt.
    """
    num_rows = num_pending if gain is None else num_pending + len(gain.rows) - 1
    if gain is None or gain.rows[-1] == len(gain.rows) - 1:
        return range(num_rows)
    return [*range(num_pending), *(num_pending - 1 + row for row in gain.rows[1:])]


def features_of(result: PassResult, first: int, rows: Sequence[int]) -> NDArray[np.float32] | None:
    """Features of some rows of a sequence whose rows begin at ``first``; None without taps."""
    if result.features is None:
        return None
    if isinstance(rows, range):
        return result.features[first : first + len(rows)]
    return result.features[[first + row for row in rows]]


class SequenceState:
    """Prompt and output of one request with their K/V.

    *Pending* tokens are those whose K/V are not committed yet: the rest of what was *given*, or
    the one token that was picked last. Given is the prompt, and after a `preempt` also the output
    up to there.

    Attributes:
        request_id: Its number in the engine.
        request: What was asked.
        cache: K/V of the committed tokens.
        draft_cache: The same for the drafter; None where it keeps none.
        added_s: Clock reading of ``Engine.add``.
        started_s: Clock reading of the admission; None while it waits.
        first_token_s: Clock reading of the first token; None before.
        num_picked: Tokens picked, a stop token included.
        num_cached: Tokens of the prompt whose K/V were known when it was first read.
        rounds: Counts of its rounds; None when nothing drafts for it.
        rules: When its output ends and which tokens may come.
    """

    def __init__(
        self,
        request_id: int,
        request: Request,
        *,
        cache: SequenceCache,
        draft_cache: SequenceCache | None = None,
        sampling: PreparedSampling,
        added_s: float,
        rounds: RoundCounter | None = None,
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.cache = cache
        self.draft_cache = draft_cache
        self.added_s = added_s
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.num_picked = 0
        self.num_cached = 0
        self.rounds = rounds
        self.rules = RequestRules(request.stop_rule, request.token_rule)
        self._sampling = sampling
        self._num_prompt = len(request.token_ids)
        self._num_given = self._num_tokens = self._num_prompt
        self._token_ids = np.empty(self._num_prompt + request.max_tokens, np.int32)
        self._token_ids[: self._num_prompt] = request.token_ids

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Prompt and output so far, int32 [tokens], a view."""
        return self._token_ids[: self._num_tokens]

    @property
    def caches(self) -> tuple[SequenceCache, ...]:
        """Its K/V, the target's first."""
        return (self.cache,) if self.draft_cache is None else (self.cache, self.draft_cache)

    @property
    def max_positions(self) -> int:
        """Tokens it can have at its end."""
        return len(self._token_ids)

    @property
    def num_output(self) -> int:
        """Tokens written."""
        return self._num_tokens - self._num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens whose K/V are not committed."""
        return self._num_tokens - self.cache.length

    @property
    def is_reading(self) -> bool:
        """Whether given tokens are pending: it does not decode yet."""
        return self.cache.length < self._num_given

    @property
    def max_drafts(self) -> int:
        """Drafts of a round that are wanted and could be written: the round adds one token."""
        if self.rounds is None:
            return 0
        left = len(self._token_ids) - self._num_tokens - 1
        wanted = self.request.draft_n_max
        return left if wanted is None else min(left, wanted)

    def draft_task(self, max_drafts: int) -> DraftTask:
        """What a drafter needs to know of it."""
        params, choice = self.request.params, self.request.choice
        left = self.request.max_tokens - self.num_output
        return DraftTask(
            self.request_id, self.token_ids, max_drafts, params, choice, self.draft_cache, left
        )

    def committed_rows(
        self, start: int, features: NDArray[np.float32] | None, pass_rows: int = 0
    ) -> CommittedRows:
        """What a drafter is told of the rows committed from ``start`` on by a pass."""
        return CommittedRows(
            self.request_id,
            start,
            self.token_ids[start : self.cache.length],
            features,
            self.draft_cache,
            self._num_prompt,
            pass_rows,
        )

    def release(self) -> None:
        """Give all K/V memory back."""
        for cache in self.caches:
            cache.release()

    def preempt(self) -> None:
        """Give all K/V memory back for now: what was written so far has to be read again."""
        self.release()
        self._num_given = self._num_tokens

    def next_rows(self, num_rows: int, proposal: Proposal) -> RowSlice:
        """Rows of the next pass: ``num_rows`` pending tokens, and the drafts after the anchor.

        Logits are wanted after the last pending token and every draft.
        """
        start = self.cache.length
        stop = start + num_rows
        num_drafts = len(proposal)
        num_logits = 1 + num_drafts if stop == self._num_tokens else 0
        parents = None
        if num_drafts:
            self._token_ids[stop : stop + num_drafts] = proposal.token_ids
            if not proposal.is_chain:
                parents = (-1, *(parent + 1 for parent in proposal.parents))
        rows = self._token_ids[start : stop + num_drafts]
        return RowSlice(self.cache, rows, num_logits, parents)

    def sample_row(self, path: Sequence[int] = ()) -> SampleRow:
        """What picking a token needs: the next one, or the one after accepted drafts."""
        stop = self._num_tokens + len(path)
        if path:
            self._token_ids[self._num_tokens : stop] = path
        mask = self.rules.allowed(self._token_ids[self._num_prompt : stop])
        return SampleRow(self._sampling, stop, self._sampling.recent(self._token_ids[:stop]), mask)

    def take(
        self, proposal: Proposal, verdict: Verdict, logits: NDArray[np.float32] | None = None
    ) -> Gain:
        """Write the tokens of a pass one by one, as far as the output goes, and count the round.

        Args:
            proposal: What was drafted.
            verdict: What the target made of it.
            logits: float32 [1 + drafts, vocab], from the anchor's row on; only log-probabilities
                need them.
        """
        is_round = self.num_output > 0
        token_ids: list[int | None] = []
        reason: FinishReason | None = None
        for token_id in verdict.token_ids:
            written, reason = self._write(token_id)
            token_ids.append(written)
            if reason is not None:
                break
        num_taken = len(token_ids)
        num_accepted = min(verdict.num_accepted, num_taken)
        if is_round and self.rounds is not None:
            self.rounds.add_round(proposal, num_accepted=num_accepted, num_tokens=num_taken)
        rows = verdict.rows[:num_taken]
        num_top = self.request.num_logprobs
        logprobs: tuple[TokenLogprobs, ...] = ()
        if num_top is not None and logits is not None:
            pairs = zip(rows, verdict.token_ids, strict=False)
            logprobs = tuple(token_logprobs(logits[row], picked, num_top) for row, picked in pairs)
        return Gain(tuple(token_ids), rows, num_accepted, reason, logprobs)

    def _write(self, token_id: int) -> tuple[int | None, FinishReason | None]:
        """Add a picked token to the output; returns what was written and why the output ends."""
        request = self.request
        if self.rules.has_failed(self.num_output):
            return None, "failed"
        self.num_picked += 1
        if token_id in request.stop_token_ids:
            return None, "stop"
        self._token_ids[self._num_tokens] = token_id
        self._num_tokens += 1
        if self.rules.ends_with(token_id):
            return (token_id, "stop") if self.rules.error is None else (None, "failed")
        return token_id, "length" if self._num_tokens == len(self._token_ids) else None

    def stats(self, now_s: float) -> RequestStats:
        """Counts and times if it ended at ``now_s``."""
        started_s = now_s if self.started_s is None else self.started_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        predicted_s = now_s - first_s
        num_later = max(self.num_picked - 1, 0)
        return RequestStats(
            prompt_tokens=self._num_prompt,
            cached_tokens=self.num_cached,
            prompt_s=first_s - started_s,
            predicted_tokens=self.num_output,
            predicted_s=predicted_s,
            tokens_per_s=num_later / predicted_s if num_later and predicted_s > 0 else 0.0,
            ttft_s=0.0 if self.first_token_s is None else first_s - self.added_s,
            speculation=None if self.rounds is None else self.rounds.stats(predicted_s),
        )
