"""A drafter without weights: what usually followed the same tokens in prompt and output.

Reads the contexts of the end off a suffix automaton (csrc/automaton.h), however long they are, and
says how probable each draft is (csrc/chain.h). Optionally looks into earlier answers too, and into
a corpus of answers that was made before. Knows no text and no model.

Source: arXiv:2411.04975 (SuffixDecoding).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import ConfigError
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.suffix_cache import DEPTH, SuffixCache
from blockdraft.speculative.types import NO_DRAFTS, Proposal

__all__ = [
    "CHEAP_DRAFTS",
    "CHEAP_MIN_PATH_PROB",
    "CORPUS_DISCOUNTS",
    "EARLIER_DISCOUNTS",
    "MAX_TOKENS",
    "MIN_PATH_PROB",
    "OWN_DISCOUNTS",
    "DraftLimits",
    "SuffixDrafter",
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
"""The mass a of what never followed a context (csrc/chain.h), by its length: one occurrence of a
long run says more than many of a short. Fitted on answers of a small model, so that of the drafts
with a certain q that share is accepted, to within 0.07."""

EARLIER_DISCOUNTS = tuple(0.3 + 12 / max(length, 1) for length in range(DEPTH + 1))
"""The same where an earlier answer says it: another text is a weaker hint."""

CORPUS_DISCOUNTS = tuple(0.6 + 12 / max(length, 1) ** 0.5 for length in range(DEPTH + 1))
"""The same where a corpus does. Fitted on two models' answers to other prompts: of the drafts with
a certain q above 0.4 that share is accepted, to within 0.04."""


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

    def rule(self, discounts: Sequence[float]) -> _native.ChainRule:
        """The same for the native core, with the discount of each length of a context."""
        return _native.ChainRule(
            self.min_match,
            self.min_prob,
            self.min_path_prob,
            CHEAP_DRAFTS,
            min(self.min_path_prob, CHEAP_MIN_PATH_PROB),
            discounts,
        )


class _Sequence:
    """What is known of one sequence: its own text, and where its end is in other answers."""

    def __init__(
        self, max_tokens: int, cache: SuffixCache | None, corpus: _native.OrderedText | None
    ) -> None:
        self.text = _native.RecentText(DEPTH, max_tokens)
        self.token_ids: NDArray[np.int32] = np.empty(0, np.int32)
        self.prompt_length: int | None = None
        self._cache = cache
        self._cursor = None if cache is None else _native.Cursor(cache.automaton)
        self._corpus = corpus
        self._in_corpus = None if corpus is None else corpus.cursor()

    @property
    def output(self) -> NDArray[np.int32]:
        """The answer as far as it was seen, a view."""
        num_prompt = len(self.token_ids) if self.prompt_length is None else self.prompt_length
        return self.token_ids[num_prompt:]

    def take(self, token_ids: NDArray[np.int32]) -> None:
        """Go on to the whole sequence so far, prompt and output."""
        new = token_ids[self.text.num_tokens :]
        self.token_ids = token_ids
        self.text.extend(new)
        self._follow_cache(new)
        if self._corpus is not None and self._in_corpus is not None:
            if len(new) > DEPTH:  # no context reaches farther back
                self._in_corpus, new = self._corpus.cursor(), new[-DEPTH:]
            self._in_corpus.follow(new)

    def _follow_cache(self, new: NDArray[np.int32]) -> None:
        if self._cache is None or self._cursor is None:
            return
        known = self._cache.automaton
        if self._cursor.automaton is not known:  # rotated
            self._cursor = _native.Cursor(known)
            new = self.token_ids[-DEPTH:]
        self._cursor.follow(new)

    def drafts(self, max_drafts: int, rules: Sequence[_native.ChainRule]) -> Proposal:
        """What the text that expects most proposes; its own where they are equal.

        Args:
            max_drafts: The most of them.
            rules: For its own text, earlier answers and the corpus.
        """
        own, *others = rules
        token_ids, probs, expected = self.text.automaton.end().best_chain(max_drafts, own)
        for cursor, rule in zip((self._cursor, self._in_corpus), others, strict=True):
            if cursor is not None:
                other, other_probs, more = cursor.best_chain(max_drafts, rule)
                if more > expected:
                    token_ids, probs, expected = other, other_probs, more
        return Proposal.chain(token_ids, probs) if token_ids else NO_DRAFTS


class SuffixDrafter:
    """Drafts by suffix automata, one for each sequence.

    Args:
        num_draft_tokens: K, the most drafts of a round.
        limits: Where a proposal ends.
        max_tokens: Tokens of a sequence that are known at most, at least 2; its memory is at most
            1.5 times `_native.SuffixAutomaton.BYTES_PER_TOKEN` for each.
        cache: Earlier answers to look into as well, and to add the answers to. Whoever drafts
            with it can tell by the speed what is in it: give it to one user's requests only.
        corpus: Answers that anybody may know, to look into as well.

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
        corpus: _native.OrderedText | None = None,
    ) -> None:
        if num_draft_tokens < 1:
            raise ConfigError(f"draft tokens is {num_draft_tokens}; it must be at least 1")
        if max_tokens < 2:
            raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 2")
        self.block_size = num_draft_tokens + 1
        limits = limits or DraftLimits()
        every = (OWN_DISCOUNTS, EARLIER_DISCOUNTS, CORPUS_DISCOUNTS)
        self._rules = [limits.rule(discounts) for discounts in every]
        self._max_tokens = max_tokens
        self._cache = cache
        self._corpus = corpus
        self._sequences: dict[int, _Sequence] = {}

    def start(self, sequence_id: int) -> None:
        """A sequence begins."""
        self._sequences[sequence_id] = _Sequence(self._max_tokens, self._cache, self._corpus)

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
        max_drafts = min(task.max_drafts, self.block_size - 1)
        return sequence.drafts(max_drafts, self._rules)
