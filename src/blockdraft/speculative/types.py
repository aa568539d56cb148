"""What a drafter proposes and what verification says of it.

Knows no models, caches or text. A proposal is a tree of draft tokens below the anchor; a chain is
the usual tree. Its node i is row i + 1 of the pass that verifies it, the anchor being row 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["NO_DRAFTS", "Proposal", "Verdict"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft tokens of one sequence in one round.

    Attributes:
        token_ids: One per node; a node comes after its parent.
        parents: Node that each one follows, -1 where that is the anchor.
        probs: ``q`` of each node given its path, or how probable it is where the noise of the pick
            is known; None when the drafter has no probabilities.
        drafter: Name of the drafter whose nodes these are, where several take turns; or "".
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    probs: tuple[float, ...] | None = None
    drafter: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the shape of the tree.

        Raises:
            ValueError: Lengths differ, or a node does not come after its parent.
        """
        if len(self.parents) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} drafts with {len(self.parents)} parents")
        if self.probs is not None and len(self.probs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} drafts with {len(self.probs)} probabilities")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} follows node {parent}; a parent comes first")

    @classmethod
    def chain(cls, token_ids: Sequence[int], probs: tuple[float, ...] | None = None) -> "Proposal":
        """Tokens one after another."""
        return cls(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)), probs)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def depth(self) -> int:
        """Nodes on the longest path."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


NO_DRAFTS = Proposal((), ())
"""A round that drafts nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round gives one sequence.

    Attributes:
        rows: Rows of the pass that stay, ascending: the anchor's 0, then the accepted drafts'.
        token_ids: The tokens gained: those of the accepted drafts, then the next token.
    """

    rows: tuple[int, ...]
    token_ids: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Drafts kept; excludes the next token."""
        return len(self.rows) - 1

    @property
    def next_token(self) -> int:
        """The token that the target itself contributed."""
        return self.token_ids[-1]

    @property
    def acceptance_length(self) -> int:
        """Tokens gained, the target's own included."""
        return len(self.token_ids)
