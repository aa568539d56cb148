"""A drafter without weights: what followed the same tokens earlier in prompt and output.

Prompt lookup: the longest end of the tokens, 2 to 6 of them, that occurred before; what followed
its latest occurrence is proposed, little of it when fewer than 6 agree. Source: the method known
as prompt lookup decoding, on an index that costs a constant time per token and not a scan per
round.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.types import NO_DRAFTS, Proposal

__all__ = ["MAX_MATCH", "MIN_MATCH", "WEAK_DRAFTS", "NgramDrafter", "NgramIndex"]

MIN_MATCH = 2
"""Tokens that must agree; with 1 there are twice as many rounds with drafts, most of them wrong."""

MAX_MATCH = 6
"""Tokens compared at most."""

WEAK_DRAFTS = 3
"""Drafts after a match below `MAX_MATCH`: a pass over 4 rows costs little more than one row."""

_WEAK_PROB, _FULL_PROB = 0.5, 0.8
"""Chances that are taken for granted after a weak and after a full match; no counts back them."""

_TOKEN_BITS = 24  # an n-gram is one integer; ids are below 2^24
_MASKS = [(1 << (_TOKEN_BITS * size)) - 1 for size in range(MIN_MATCH, MAX_MATCH + 1)]


class NgramIndex:
    """Where every n-gram of a growing sequence occurred last.

    An n-gram enters when its continuation is known, so a lookup never finds the end itself.
    """

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._latest: list[dict[int, int]] = [{} for _ in _MASKS]
        self._end = 0  # the last MAX_MATCH tokens as one integer

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in the tokens beyond those already known; ``token_ids`` is the whole sequence."""
        known = self._token_ids
        end = self._end
        sizes = list(zip(self._latest, _MASKS, strict=True))
        for place, token_id in enumerate(token_ids[len(known) :].tolist(), len(known)):
            for size, (latest, mask) in enumerate(sizes, MIN_MATCH):
                if size > place:
                    break
                latest[end & mask] = place
            end = (end << _TOKEN_BITS | token_id) & _MASKS[-1]
            known.append(token_id)
        self._end = end

    def continuation(self, max_tokens: int) -> tuple[list[int], bool]:
        """What followed the latest occurrence of the longest known end, and if the match is full.

        After a match of fewer than `MAX_MATCH` tokens these are at most `WEAK_DRAFTS`. Where the
        occurrence overlaps the end, what follows repeats: "a b a b" goes on "a b a b".
        """
        known = self._token_ids
        for size in range(min(MAX_MATCH, len(known) - 1), MIN_MATCH - 1, -1):
            start = self._latest[size - MIN_MATCH].get(self._end & _MASKS[size - MIN_MATCH])
            if start is not None:
                count = max_tokens if size == MAX_MATCH else min(max_tokens, WEAK_DRAFTS)
                found = known[start : start + count]
                while len(found) < count:
                    found.append(found[start - len(known)])
                return found, size == MAX_MATCH
        return [], False


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
        self._indexes: dict[int, NgramIndex] = {}

    def start(self, sequence_id: int) -> None:
        """A sequence begins."""
        self._indexes[sequence_id] = NgramIndex()

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
        index.extend(task.token_ids)
        token_ids, is_full = index.continuation(min(task.max_drafts, self.block_size - 1))
        prob = _FULL_PROB if is_full else _WEAK_PROB
        return Proposal.chain(token_ids, (prob,) * len(token_ids)) if token_ids else NO_DRAFTS
