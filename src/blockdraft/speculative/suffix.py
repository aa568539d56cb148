"""A drafter without weights: what usually followed the same tokens in prompt and output.

Reads the contexts of the end off a suffix automaton, however long they are, and says how probable
each draft is. Optionally looks into earlier answers too. Knows no text and no model.

Notation: ``q`` of a token in a context that was followed n times, by this token c times:
q = (c + a q') / (n + a), where q' is that of the next shorter context, 0 below one token, and a
falls with the length of the context: one occurrence of a long run says more than many of a short.

Sources: arXiv:2411.04975 (SuffixDecoding); MacKay and Peto, 1995, "A hierarchical Dirichlet
language model" (q).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.speculative.automaton import Context, Cursor, RecentText, SuffixAutomaton
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.suffix_cache import DEPTH, SuffixCache
from blockdraft.speculative.types import NO_DRAFTS, Proposal

__all__ = [
    "CHEAP_DRAFTS",
    "CHEAP_MIN_PATH_PROB",
    "EARLIER_DISCOUNTS",
    "MAX_TOKENS",
    "MIN_PATH_PROB",
    "OWN_DISCOUNTS",
    "DraftLimits",
    "SuffixDrafter",
    "best_chain",
]

MAX_TOKENS = 1 << 16
"""Tokens of a sequence that are known at most, the latest half of them always."""

CHEAP_DRAFTS = 3
"""Drafts that are nearly free: a pass over 4 rows costs little more than one row."""

CHEAP_MIN_PATH_PROB = 0.1
"""A cheap draft is worth it when it and all before it are this probable together."""

MIN_PATH_PROB = 0.4
"""The same for further drafts: up to 8 rows each costs a fifth of a pass over one."""

OWN_DISCOUNTS = tuple(0.1 + 4 / max(length, 1) ** 1.5 for length in range(DEPTH + 1))
"""The mass a of what never followed a context, by its length; fitted on answers of a small model,
so that of the drafts with a certain q that share is accepted, to within 0.07."""

EARLIER_DISCOUNTS = tuple(0.3 + 12 / max(length, 1) for length in range(DEPTH + 1))
"""The same where an earlier answer says it: another text is a weaker hint."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What is not worth a draft.

    Attributes:
        min_match: Tokens of the end that must have occurred before, at least 1.
        min_prob: A draft whose ``q`` is lower ends the proposal before it.
        min_path_prob: A draft that is less probable than this together with all before it does
            too; of the first `CHEAP_DRAFTS` each, `CHEAP_MIN_PATH_PROB` where that is lower.
    """

    min_match: int = 1
    min_prob: float = 0.0
    min_path_prob: float = MIN_PATH_PROB

    def __post_init__(self) -> None:
        """Check the range of every limit.

        Raises:
            ConfigError: One is out of range; the message names it.
        """
        if not 1 <= self.min_match <= DEPTH:
            raise ConfigError(f"min_match is {self.min_match}; it must be in [1, {DEPTH}]")
        for name in ("min_prob", "min_path_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")


def best_chain(
    automaton: SuffixAutomaton,
    end: Cursor,
    max_drafts: int,
    limits: DraftLimits,
    discounts: Sequence[float] = OWN_DISCOUNTS,
) -> tuple[Proposal, float]:
    """What most often followed the longest contexts, and how many drafts it expects to be kept.

    Args:
        automaton: Where to look.
        end: The end of the sequence in it.
        max_drafts: Drafts at most.
        limits: What is not worth a draft.
        discounts: By the length of a context, up to `DEPTH`.
    """
    token_ids: list[int] = []
    probs: list[float] = []
    path_prob, expected = 1.0, 0.0
    while len(token_ids) < max_drafts:
        contexts = automaton.contexts(end)
        found = _likeliest(automaton, contexts, limits.min_match)
        if found is None:
            break
        token_id, end = found
        prob = _prob(automaton, contexts, token_id, discounts)
        path_prob *= prob
        worth = limits.min_path_prob
        if len(token_ids) < CHEAP_DRAFTS:
            worth = min(worth, CHEAP_MIN_PATH_PROB)
        if path_prob < worth or prob < limits.min_prob:
            break
        token_ids.append(token_id)
        probs.append(prob)
        expected += path_prob
    return Proposal.chain(token_ids, tuple(probs)) if token_ids else NO_DRAFTS, expected


def _likeliest(
    automaton: SuffixAutomaton, contexts: Sequence[Context], min_match: int
) -> tuple[int, Cursor] | None:
    """What follows the longest context of at least ``min_match`` tokens, and the end with it."""
    for context in contexts:
        if context.length < min_match:
            break
        found = automaton.follower(context)
        if found is not None:
            return found
    return None


def _prob(
    automaton: SuffixAutomaton,
    contexts: Sequence[Context],
    token_id: int,
    discounts: Sequence[float],
) -> float:
    """``q`` of a token after the first of ``contexts``, the longest."""
    prob = 0.0
    for state, length, num_followed in reversed(contexts):
        longer = automaton.step(state, token_id)
        count = automaton.count(longer) if longer else 0
        discount = discounts[length]
        prob = (count + discount * prob) / (num_followed + discount)
    return prob


class _Sequence:
    """What is known of one sequence: its own text, and where its end is in earlier answers."""

    def __init__(self, max_tokens: int, cache: SuffixCache | None) -> None:
        self.text = RecentText(DEPTH, max_tokens)
        self.token_ids: NDArray[np.int32] = np.empty(0, np.int32)
        self.prompt_length: int | None = None
        self._cache = cache
        self._searched = None if cache is None else cache.automaton
        self._cursor = Cursor()

    @property
    def output(self) -> NDArray[np.int32]:
        """The answer as far as it was seen, a view."""
        num_prompt = len(self.token_ids) if self.prompt_length is None else self.prompt_length
        return self.token_ids[num_prompt:]

    def take(self, token_ids: NDArray[np.int32]) -> None:
        """Go on to the whole sequence so far, prompt and output."""
        new = token_ids[self.text.num_tokens :].tolist()
        self.token_ids = token_ids
        self.text.extend(new)
        if self._cache is None:
            return
        if self._searched is not self._cache.automaton:  # rotated: states mean something else
            self._searched, self._cursor = self._cache.automaton, Cursor()
            new = token_ids[-DEPTH:].tolist()
        for token_id in new:
            self._cursor = self._searched.follow(self._cursor, token_id)

    def drafts(self, max_drafts: int, limits: DraftLimits) -> Proposal:
        """What either text proposes, whichever expects more; its own where they are equal."""
        own = self.text.automaton
        proposal, expected = best_chain(own, own.end, max_drafts, limits)
        if self._searched is not None:
            other, more = best_chain(
                self._searched, self._cursor, max_drafts, limits, EARLIER_DISCOUNTS
            )
            if more > expected:
                return other
        return proposal


class SuffixDrafter:
    """Drafts by suffix automata, one for each sequence.

    Args:
        num_draft_tokens: K, the most drafts of a round.
        limits: Where a proposal ends.
        max_tokens: Tokens of a sequence that are known at most, at least 2; its memory is at most
            1.5 times `automaton.BYTES_PER_TOKEN` for each.
        cache: Earlier answers to look into as well, and to add the answers to. Whoever drafts
            with it can tell by the speed what is in it: give it to one user's requests only.

    Raises:
        ConfigError: ``num_draft_tokens`` is below 1 or ``max_tokens`` below 2.
    """

    type_name = "suffix"
    cache_layout = None

    def __init__(
        self,
        num_draft_tokens: int,
        limits: DraftLimits | None = None,
        *,
        max_tokens: int = MAX_TOKENS,
        cache: SuffixCache | None = None,
    ) -> None:
        if num_draft_tokens < 1:
            raise ConfigError(f"draft tokens is {num_draft_tokens}; it must be at least 1")
        if max_tokens < 2:
            raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 2")
        self.block_size = num_draft_tokens + 1
        self._limits = limits or DraftLimits()
        self._max_tokens = max_tokens
        self._cache = cache
        self._sequences: dict[int, _Sequence] = {}

    def start(self, sequence_id: int) -> None:
        """A sequence begins."""
        self._sequences[sequence_id] = _Sequence(self._max_tokens, self._cache)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """A chain for each task whose end occurred before."""
        return [self._propose(task) for task in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Where answers begin; each task brings all its tokens."""
        for part in rows:
            self._sequences[part.sequence_id].prompt_length = part.prompt_length

    def end(self, sequence_id: int) -> None:
        """Forget a sequence; its answer, but for what its last round gave, goes to the cache."""
        sequence = self._sequences.pop(sequence_id, None)
        if self._cache is not None and sequence is not None and len(sequence.output):
            self._cache.add(sequence.output)
            self._cache.save()

    def _propose(self, task: DraftTask) -> Proposal:
        sequence = self._sequences[task.sequence_id]
        sequence.take(task.token_ids)
        return sequence.drafts(min(task.max_drafts, self.block_size - 1), self._limits)
