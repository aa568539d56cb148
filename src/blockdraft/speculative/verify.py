"""The acceptance rule: sample and match.

At every row the target's own sampler picks its token, with the noise of that position. A draft is
kept while it equals what the target picked, so a drafter never changes a token, at any
temperature. Knows no models, caches or text.
"""

from collections.abc import Callable, Sequence

from blockdraft.speculative.types import Proposal, Verdict

__all__ = ["Pick", "verify"]

Pick = Callable[[int, Sequence[int]], int]
"""(row, accepted tokens on the path to it) -> the token that the target picks after that row."""


def verify(proposal: Proposal, pick: Pick) -> Verdict:
    """Follow the path of drafts that the target picks itself.

    Nodes come after their parents, so one sweep finds the path. Rows beside it are never sampled.

    Args:
        proposal: The drafts; none makes a round of plain decoding.
        pick: The target's sampler.
    """
    rows = [0]
    token_ids: list[int] = []
    next_token = pick(0, token_ids)
    for node, (drafted, parent) in enumerate(
        zip(proposal.token_ids, proposal.parents, strict=True)
    ):
        if parent + 1 == rows[-1] and drafted == next_token:
            rows.append(node + 1)
            token_ids.append(drafted)
            next_token = pick(node + 1, token_ids)
    return Verdict(tuple(rows), (*token_ids, next_token))
