"""The block-diffusion drafter: one pass of its network proposes all tokens of a block.

Injects the target features of every committed row into the sequence's draft cache, and drafts
behind it; rows of a block are never committed. Knows no requests; stateless, the caches are the
engine's.

Source: arXiv:2602.06036 (DFlash); inco.ai/blog/dflash2 (the walk over candidates).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.dflash import walk
from blockdraft.models.drafter import DrafterModel
from blockdraft.ops.batch import Candidates
from blockdraft.speculative.drafter import CommittedRows, DraftTask
from blockdraft.speculative.noise import noise_of
from blockdraft.speculative.tree import best_tree, conditional_probs, nodes_kept
from blockdraft.speculative.types import NO_DRAFTS, Proposal
from blockdraft.speculative.value import sureness

__all__ = ["DFlashDrafter"]


class DFlashDrafter:
    """Drafts with a DFlash or DFlash 2 network.

    The most probable tokens are drafted; by the candidate selector of DFlash 2, which conditions
    each token on the one before, they are drawn with the target's own noise where the target
    samples.

    Args:
        model: The network.
        num_draft_tokens: K; None is all that a block of the network has room for.
        min_prob: A draft less probable than this ends the proposal before it.
        tree_nodes: Where the target takes the most probable token, propose a tree of so many of
            the likeliest continuations; 0 proposes a chain.

    Attributes:
        depth: K, whether or not trees are drafted.

    Raises:
        ConfigError: A block has no room for ``num_draft_tokens``, or a pass none for a block.
    """

    type_name = "dflash"

    def __init__(
        self,
        model: DrafterModel,
        num_draft_tokens: int | None = None,
        *,
        min_prob: float = 0.0,
        tree_nodes: int = 0,
    ) -> None:
        most = model.config.block_size - 1
        wanted = most if num_draft_tokens is None else num_draft_tokens
        if not 1 <= wanted <= most:
            raise ConfigError(
                f"draft tokens is {wanted}; the drafter's block of {model.config.block_size} has"
                f" room for 1 to {most}"
            )
        self.depth = wanted
        self._tree_nodes = tree_nodes
        self.block_size = 1 + max(wanted, tree_nodes)
        if 1 + wanted > model.max_rows:
            raise ConfigError(
                f"a block of {1 + wanted} rows does not fit a pass of {model.max_rows}"
            )
        self._model = model
        self._min_prob = min_prob
        self._builder = BatchBuilder(model.max_rows)
        self._block = np.full(1 + wanted, model.config.mask_token_id, np.int32)

    @property
    def cache_layout(self) -> KVLayout:
        """K/V that every sequence keeps for this drafter."""
        return self._model.layout

    def start(self, sequence_id: int) -> None:
        """Nothing: what is known of a sequence is in its cache."""

    def end(self, sequence_id: int) -> None:
        """Nothing."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """A chain for each task, in as many passes as its rows need."""
        per_pass = self._model.max_rows // len(self._block)
        proposals: list[Proposal] = []
        for first in range(0, len(tasks), per_pass):
            proposals += self._draft(tasks[first : first + per_pass])
        return proposals

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Inject what became permanent, as far as a window can still see it."""
        pieces = list(self._pieces(rows))
        for group in _grouped(pieces, self._model.max_rows):
            slices, row = [], 0
            for cache, features in group:
                cache.reserve(len(features))
                self._model.features[row : row + len(features)] = features
                row += len(features)
                slices.append(RowSlice(cache, np.zeros(len(features), np.int32), 0))
            self._model.inject(self._builder.build(slices))
            for cache, features in group:
                cache.commit(range(len(features)))

    def _pieces(
        self, rows: Sequence[CommittedRows]
    ) -> Iterator[tuple[SequenceCache, NDArray[np.float32]]]:
        """Draft caches with the features that they lack, in pieces that fit a pass."""
        for part in rows:
            assert part.cache is not None, "this drafter keeps K/V"
            if part.features is None:
                assert part.cache.length == part.start + len(part.token_ids), "no target features"
                continue
            skipped = max(0, self._first_needed(part) - part.start)
            if skipped:
                part.cache.skip(part.start + min(skipped, len(part.features)))
            features = part.features[skipped:]
            for first in range(0, len(features), self._model.max_rows):
                yield part.cache, features[first : first + self._model.max_rows]

    def _first_needed(self, part: CommittedRows) -> int:
        """First position of a prompt that the first block after it can see."""
        layout = self.cache_layout
        if layout.window is None or layout.full_layers:
            return 0
        oldest = max(0, part.prompt_length - layout.window + 1)
        return oldest // PAGE_POSITIONS * PAGE_POSITIONS

    def _draft(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        depths = [self.depth if t.max_depth is None else t.max_depth for t in tasks]
        num_drafts = min(self.depth, max(depths))
        slices = []
        for task in tasks:
            assert task.cache is not None, "this drafter keeps K/V"
            task.cache.reserve(1 + num_drafts)
            block = self._block[: 1 + num_drafts].copy()
            block[0] = task.token_ids[-1]
            slices.append(RowSlice(task.cache, block, num_drafts))
        found = self._model.draft(self._builder.build(slices))
        return [
            self._proposal(task, _rows(found, i * num_drafts, num_drafts))
            for i, task in enumerate(tasks)
        ]

    def _proposal(self, task: DraftTask, found: Candidates) -> Proposal:
        if self._tree_nodes and task.params.temperature == 0:
            probs = (
                found.probs[:, None] if found.scores is None else conditional_probs(found.scores)
            )
            return self._pruned(
                best_tree(found.token_ids, probs, min(task.max_drafts, self._tree_nodes))
            )
        return self._chain(task, found)

    def _pruned(self, tree: Proposal) -> Proposal:
        """The tree without nodes below the least probability, and without what follows them.

        A probability that is no number is below any.
        """
        if tree.probs is None:
            return tree
        kept: list[int] = []
        for node, (parent, prob) in enumerate(zip(tree.parents, tree.probs, strict=True)):
            if prob >= self._min_prob and (parent < 0 or parent in kept):
                kept.append(node)
        return nodes_kept(tree, kept)

    def _chain(self, task: DraftTask, found: Candidates) -> Proposal:
        if found.scores is None:
            token_ids, probs = found.token_ids[:, 0].tolist(), found.probs[:, 0].tolist()
        else:
            token_ids, probs = _walked(task, found)
        count = min(task.max_drafts, len(token_ids))
        for place, prob in enumerate(probs[:count]):
            if not prob >= self._min_prob:
                count = place
                break
        return Proposal.chain(token_ids[:count], tuple(probs[:count])) if count else NO_DRAFTS


def _rows(found: Candidates, first: int, count: int) -> Candidates:
    rows = slice(first, first + count)
    scores = None if found.scores is None else found.scores[rows]
    return Candidates(found.token_ids[rows], found.logits[rows], found.probs[rows], scores)


def _walked(task: DraftTask, found: Candidates) -> tuple[list[int], list[float]]:
    """Tokens from left to right, each given the one before, and how probable each is."""
    assert found.scores is not None
    params = task.params
    probs: list[float] = []
    position = len(task.token_ids)

    def pick(place: int, found_scores: NDArray[np.floating]) -> int:
        scores = np.array(found_scores, np.float64)
        noise = np.zeros_like(scores)
        if params.temperature > 0:
            scores /= params.temperature
            if params.seed is not None:
                noise = noise_of(task, position + place, found.token_ids[place])
        chosen = int((scores + noise).argmax())
        probs.append(sureness(scores, noise, chosen))
        return chosen

    return walk(found.token_ids, found.scores, pick), probs


def _grouped(
    pieces: Sequence[tuple[SequenceCache, NDArray[np.float32]]], max_rows: int
) -> Iterator[list[tuple[SequenceCache, NDArray[np.float32]]]]:
    """Neighbouring pieces that fit one pass; two of one cache come one after the other."""
    group: list[tuple[SequenceCache, NDArray[np.float32]]] = []
    num_rows = 0
    for cache, features in pieces:
        is_full = num_rows + len(features) > max_rows
        if group and (is_full or any(cache is other for other, _ in group)):
            yield group
            group, num_rows = [], 0
        group.append((cache, features))
        num_rows += len(features)
    if group:
        yield group
