"""The drafter that is a smaller model with the target's tokens: one pass for each draft.

Reads what is committed, anchor included, when it next drafts, however many rounds later, in as few
passes as its rows need. Its K/V are those of committed tokens: rows of drafts are dropped before
`propose` returns. Knows no requests; stateless but for the count of its passes, the caches are the
engine's. Source: arXiv:2211.17192, with the target's own noise in place of rejection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.small import SmallModel
from blockdraft.ops.batch import Candidates
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.noise import noise_of
from blockdraft.speculative.types import NO_DRAFTS, Proposal
from blockdraft.speculative.value import sureness

__all__ = ["AutoregressiveDrafter", "DraftPick"]


class DraftPick(Protocol):
    """Picks drafts as the target picks tokens: by its parameters, history and noise."""

    def __call__(
        self, logits: NDArray[np.float32], rows: Sequence[tuple[DraftTask, Sequence[int]]]
    ) -> Sequence[int]:
        """Token ids for ``logits`` [rows, vocab].

        Args:
            logits: Of the drafter.
            rows: Of each row its task, and the drafts between the anchor and it.
        """
        ...


@dataclass(slots=True)
class _Draft:
    """A proposal in the making.

    Attributes:
        task: Whose.
        cache: K/V of the drafter.
        most: Drafts at most.
        chance: That all drafts so far are right, if the drafter is.
        is_open: Another draft is wanted.
    """

    task: DraftTask
    cache: SequenceCache
    most: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    chance: float = 1.0
    is_open: bool = True

    def unread(self) -> NDArray[np.int32]:
        """Tokens whose K/V are not there."""
        if self.token_ids:  # all but the last one have been read
            return np.array(self.token_ids[-1:], np.int32)
        return self.task.token_ids[self.cache.length :]

    def add(self, token_id: int, prob: float, min_prob: float) -> None:
        """Take a draft, unless it is less probable than ``min_prob``."""
        if not prob >= min_prob:
            self.is_open = False
            return
        self.token_ids.append(token_id)
        self.probs.append(prob)
        self.chance *= prob
        self.is_open = len(self.token_ids) < self.most and self.chance >= self.task.least_chance

    def finish(self) -> Proposal:
        """The proposal; K/V are again those of committed tokens."""
        self.cache.rollback(len(self.task.token_ids))
        return Proposal.chain(self.token_ids, tuple(self.probs)) if self.token_ids else NO_DRAFTS


class AutoregressiveDrafter:
    """Drafts token by token with a smaller model, for all sequences at once.

    Where the target takes the most probable token so does the drafter; where it samples, drafts
    are drawn with the target's own noise. A model that equals the target is always right.

    Args:
        model: The model.
        num_draft_tokens: K, the most drafts of a round.
        pick: Picks drafts.
        min_prob: A draft less probable than this ends the proposal before it.

    Attributes:
        num_steps: Passes of the last `propose`.

    Raises:
        ConfigError: ``num_draft_tokens`` is below 1.
    """

    type_name = "draft-simple"

    def __init__(
        self,
        model: SmallModel,
        num_draft_tokens: int,
        *,
        pick: DraftPick,
        min_prob: float = 0.0,
    ) -> None:
        if num_draft_tokens < 1:
            raise ConfigError(f"draft tokens is {num_draft_tokens}; it must be at least 1")
        self.block_size = num_draft_tokens + 1
        self.num_steps = 0
        self._num_drafts = num_draft_tokens
        self._model = model
        self._pick = pick
        self._min_prob = min_prob
        self._builder = BatchBuilder(model.max_rows)

    @property
    def cache_layout(self) -> KVLayout:
        """K/V that every sequence keeps for this drafter."""
        return self._model.layout

    def start(self, sequence_id: int) -> None:
        """Nothing: what is known of a sequence is in its cache."""

    def end(self, sequence_id: int) -> None:
        """Nothing."""

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Nothing: committed tokens are read when they are needed."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """A chain for each task; an empty one beyond the context that the model was trained for."""
        self.num_steps = 0
        drafts = [self._begin(task) for task in tasks]
        unfinished = [draft for draft in drafts if draft is not None]
        while unfinished:
            self._add_one(unfinished)
            unfinished = [draft for draft in unfinished if draft.is_open]
        return [NO_DRAFTS if draft is None else draft.finish() for draft in drafts]

    def _begin(self, task: DraftTask) -> _Draft | None:
        assert task.cache is not None, "this drafter keeps K/V"
        room = self._model.config.context_length - len(task.token_ids)
        most = min(self._num_drafts, task.max_drafts, room)
        if task.max_depth is not None:
            most = min(most, task.max_depth)
        if most < 1:
            return None
        task.cache.rollback(min(task.cache.length, len(task.token_ids) - 1))
        return _Draft(task, task.cache, most)

    def _add_one(self, drafts: Sequence[_Draft]) -> None:
        """One more draft for each, in as many passes as the unread tokens need."""
        waiting = [(draft, draft.unread()) for draft in drafts]
        while waiting:
            room = self._model.max_rows
            ready: list[_Draft] = []
            slices: list[RowSlice] = []
            left: list[tuple[_Draft, NDArray[np.int32]]] = []
            for draft, unread in waiting:
                piece = unread[:room]
                is_last = len(piece) == len(unread)
                if len(piece):
                    draft.cache.reserve(len(piece))
                    slices.append(RowSlice(draft.cache, piece, int(is_last)))
                    room -= len(piece)
                if is_last:
                    ready.append(draft)
                else:
                    left.append((draft, unread[len(piece) :]))
            self._run(slices, ready)
            waiting = left

    def _run(self, slices: Sequence[RowSlice], ready: Sequence[_Draft]) -> None:
        logits, found = self._model.run(self._builder.build(slices))
        self.num_steps += 1
        for part in slices:
            part.cache.commit(range(len(part.token_ids)))
        if not ready:
            return
        picked = self._pick(logits, [(draft.task, draft.token_ids) for draft in ready])
        for row, (draft, token_id) in enumerate(zip(ready, picked, strict=True)):
            prob = _prob(draft, found, row, int(token_id))
            draft.add(int(token_id), prob, self._min_prob)


def _prob(draft: _Draft, found: Candidates, row: int, token_id: int) -> float:
    """How probable a draft is, 0 where it is not among the likeliest tokens."""
    (places,) = np.nonzero(found.token_ids[row] == token_id)
    if not places.size:
        return 0.0
    place, params = int(places[0]), draft.task.params
    if params.temperature == 0:
        return float(found.probs[row, place])
    position = len(draft.task.token_ids) + len(draft.token_ids)
    noise = noise_of(draft.task, position, found.token_ids[row])
    return sureness(found.logits[row].astype(np.float64) / params.temperature, noise, place)
