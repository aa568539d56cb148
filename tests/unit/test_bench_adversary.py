"""The drafter that is always wrong."""

from collections.abc import Sequence

import numpy as np

from blockdraft.bench.adversary import Adversary
from blockdraft.config import SamplingParams
from blockdraft.speculative import NO_DRAFTS, DraftTask, NgramDrafter, Proposal


class Fixed(NgramDrafter):
    """Proposes what it was made with."""

    def __init__(self, proposal: Proposal) -> None:
        super().__init__(4)
        self.proposal = proposal

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [self.proposal for _ in tasks]


def propose(inner: Proposal, *, max_drafts: int = 3) -> Proposal:
    adversary = Adversary(Fixed(inner), vocab_size=10)
    adversary.start(0)
    token_ids = np.array([1, 5], np.int32)
    task = DraftTask(0, token_ids, max_drafts, SamplingParams(seed=0), 0)
    (found,) = adversary.propose([task])
    adversary.end(0)
    return found


def test_every_token_is_another_and_sure_of_itself() -> None:
    tree = Proposal((9, 2, 3), (-1, -1, 0), (0.1, 0.2, 0.3))
    found = propose(tree)
    assert found.token_ids == (0, 3, 4)
    assert found.parents == tree.parents
    assert found.probs == (0.99,) * 3


def test_it_drafts_where_the_other_has_nothing_to_say() -> None:
    assert propose(NO_DRAFTS, max_drafts=3).token_ids == (6, 6, 6)
    assert propose(NO_DRAFTS, max_drafts=9).token_ids == (6, 6, 6, 6)


def test_it_needs_what_the_other_needs() -> None:
    adversary = Adversary(NgramDrafter(3), vocab_size=10)
    assert adversary.cache_layout is None
    assert adversary.block_size == 4
