"""A drafter that is always wrong, for measuring that drafting never loses.

It works as hard as the drafter it spoils and is surer of itself; knows no models. Tokens stay the
same: no draft can change one.
"""

from collections.abc import Sequence

from blockdraft.kv_cache import KVLayout
from blockdraft.speculative import CommittedRows, Drafter, DraftTask, Proposal

__all__ = ["Adversary"]

_PROB = 0.99


class Adversary:
    """Drafts what another drafter drafts, with every token replaced by the next in the vocabulary.

    Args:
        inner: The drafter to spoil; where it has nothing to say, the last token is repeated.
        vocab_size: Of the target.
    """

    type_name = "adversary"

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self.block_size = inner.block_size
        self._inner = inner
        self._vocab_size = vocab_size

    @property
    def cache_layout(self) -> KVLayout | None:
        """That of the spoiled drafter."""
        return self._inner.cache_layout

    def start(self, sequence_id: int) -> None:
        """A sequence begins."""
        self._inner.start(sequence_id)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """Wrong drafts for every task."""
        proposals = self._inner.propose(tasks)
        return [self._spoiled(*pair) for pair in zip(tasks, proposals, strict=True)]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Let the spoiled drafter see what became permanent."""
        self._inner.observe(rows)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._inner.end(sequence_id)

    def _spoiled(self, task: DraftTask, proposal: Proposal) -> Proposal:
        if not len(proposal):
            count = min(task.max_drafts, self.block_size - 1)
            proposal = Proposal.chain([int(task.token_ids[-1])] * count)
        token_ids = tuple((token_id + 1) % self._vocab_size for token_id in proposal.token_ids)
        return Proposal(token_ids, proposal.parents, (_PROB,) * len(token_ids))
