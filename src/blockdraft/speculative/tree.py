"""The likeliest continuations of one drafting pass as a tree.

A node's chance is the product of the probabilities on its path, so that it never exceeds its
parent's, and the N likeliest nodes are a tree: a heap takes them in order. Knows no models.

Source: DDTree (arXiv:2604.12989), here also with probabilities that depend on the token before.
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from blockdraft.speculative.types import Proposal

__all__ = ["best_tree", "conditional_probs", "nodes_kept"]


def conditional_probs(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Softmax over the candidates of each line, "rows lines candidates"."""
    shifted = scores.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def best_tree(
    token_ids: NDArray[np.integer], probs: NDArray[np.floating], max_nodes: int
) -> Proposal:
    """The ``max_nodes`` likeliest nodes, or fewer where there are no more; a parent comes first.

    Args:
        token_ids: Candidates of each depth, "depth candidates".
        probs: Of each candidate given each candidate one depth before, "depth lines candidates";
            with a single line given nothing.
        max_nodes: At least 0.
    """
    depth, num_candidates = token_ids.shape
    orders = np.argsort(-probs, axis=-1, kind="stable")
    nodes: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    # (-chance, age, depth, line, rank, parent, chance of the parent)
    heap: list[tuple[float, int, int, int, int, int, float]] = []

    def push(at: int, line: int, rank: int, parent: int, of_parent: float) -> None:
        if at < depth and rank < num_candidates:
            row = min(line, probs.shape[1] - 1)
            chance = of_parent * float(probs[at, row, orders[at, row, rank]])
            heappush(heap, (-chance, len(nodes), at, row, rank, parent, of_parent))

    push(0, 0, 0, -1, 1.0)
    while heap and len(nodes) < max_nodes:
        negative, _, at, row, rank, parent, of_parent = heappop(heap)
        candidate = int(orders[at, row, rank])
        nodes.append(int(token_ids[at, candidate]))
        parents.append(parent)
        chances.append(-negative / of_parent if of_parent else 0.0)
        push(at, row, rank + 1, parent, of_parent)
        push(at + 1, candidate, 0, len(nodes) - 1, -negative)
    return Proposal(tuple(nodes), tuple(parents), tuple(chances))


def nodes_kept(proposal: Proposal, nodes: list[int]) -> Proposal:
    """A proposal of some nodes of another, ascending, with each one's parent among them.

    Raises:
        ValueError: A parent is not among them.
    """
    places = {-1: -1} | {node: place for place, node in enumerate(nodes)}
    try:
        parents = tuple(places[proposal.parents[node]] for node in nodes)
    except KeyError as error:
        raise ValueError(f"node {error} is missing among {nodes}") from error
    probs = None if proposal.probs is None else tuple(proposal.probs[node] for node in nodes)
    return Proposal(tuple(proposal.token_ids[node] for node in nodes), parents, probs)
