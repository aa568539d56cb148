"""A drafter without weights: what followed the same tokens earlier in prompt and output.

Prompt lookup: the longest end of the tokens, 2 to 6 of them, that occurred before; what followed
its latest occurrence is proposed, little of it when fewer than 6 agree. Source: the method known
as prompt lookup decoding, on an index (csrc/ngram.h) that costs a constant time per token and not
a scan per round.
"""

from collections.abc import Sequence

from blockdraft import _native
from blockdraft.errors import ConfigError
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.types import NO_DRAFTS, Proposal

__all__ = ["MAX_MATCH", "MIN_MATCH", "WEAK_DRAFTS", "NgramDrafter"]

MIN_MATCH = 2
"""Tokens that must agree; with 1 there are twice as many rounds with drafts, most of them wrong."""

MAX_MATCH = 6
"""Tokens compared at most."""

WEAK_DRAFTS = 3
"""Drafts after a match below `MAX_MATCH`: a pass over 4 rows costs little more than one row."""

_WEAK_PROB, _FULL_PROB = 0.5, 0.8
"""Chances that are taken for granted after a weak and after a full match; no counts back them."""


class NgramDrafter:
    """Drafts by prompt lookup.

    Args:
        num_draft_tokens: K, the most drafts of a round.

    Raises:
        ConfigError: ``num_draft_tokens`` is below 1.
    """

    type_name = "ngram"
    cache_layout = None

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 1:
            raise ConfigError(f"draft tokens is {num_draft_tokens}; it must be at least 1")
        self.block_size = num_draft_tokens + 1
        self._indexes: dict[int, _native.NgramIndex] = {}

    def start(self, sequence_id: int) -> None:
        """A sequence begins."""
        self._indexes[sequence_id] = _native.NgramIndex(MIN_MATCH, MAX_MATCH)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """A chain for each task whose end occurred before."""
        return [self._propose(task) for task in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Nothing: each task brings all its tokens."""

    def end(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence_id, None)

    def _propose(self, task: DraftTask) -> Proposal:
        index = self._indexes[task.sequence_id]
        index.extend(task.token_ids[index.num_tokens :])
        size, token_ids = index.continuation(min(task.max_drafts, self.block_size - 1))
        if not token_ids:
            return NO_DRAFTS
        if size == MAX_MATCH:
            return Proposal.chain(token_ids, (_FULL_PROB,) * len(token_ids))
        weak = token_ids[:WEAK_DRAFTS]
        return Proposal.chain(weak, (_WEAK_PROB,) * len(weak))
