"""Trees of the likeliest continuations, against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft.speculative.tree import best_tree, conditional_probs, nodes_kept
from blockdraft.speculative.types import Proposal


def paths_of(proposal: Proposal) -> dict[tuple[int, ...], float]:
    """Chance of each node by the tokens that lead to it."""
    assert proposal.probs is not None
    paths: list[tuple[int, ...]] = []
    chances: list[float] = []
    for token_id, parent, prob in zip(
        proposal.token_ids, proposal.parents, proposal.probs, strict=True
    ):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
        chances.append(prob * (chances[parent] if parent >= 0 else 1.0))
    return dict(zip(paths, chances, strict=True))


def all_paths(
    token_ids: NDArray[np.integer], probs: NDArray[np.floating]
) -> dict[tuple[int, ...], float]:
    depth, num_candidates = token_ids.shape
    found = {}
    for length in range(1, depth + 1):
        for path in product(range(num_candidates), repeat=length):
            chance, line = 1.0, 0
            for at, candidate in enumerate(path):
                chance *= float(probs[at, min(line, probs.shape[1] - 1), candidate])
                line = candidate
            found[tuple(int(token_ids[at, c]) for at, c in enumerate(path))] = chance
    return found


def random_case(
    seed: int, depth: int, num_candidates: int, *, is_marginal: bool
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    lines = 1 if is_marginal else num_candidates
    scores = 2 * rng.standard_normal((depth, lines, num_candidates))
    if not is_marginal:
        scores[0] = scores[0, 0]  # the anchor stands before every candidate of the first row
    ids = np.stack([rng.permutation(50)[:num_candidates] for _ in range(depth)])
    return ids.astype(np.int32), conditional_probs(scores)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 4),
    num_candidates=st.integers(1, 3),
    max_nodes=st.integers(0, 20),
    is_marginal=st.booleans(),
)
def test_a_tree_is_the_likeliest_paths(
    seed: int, depth: int, num_candidates: int, max_nodes: int, is_marginal: bool
) -> None:
    token_ids, probs = random_case(seed, depth, num_candidates, is_marginal=is_marginal)
    found = paths_of(best_tree(token_ids, probs, max_nodes))
    expected = all_paths(token_ids, probs)
    best = sorted(expected.values(), reverse=True)[:max_nodes]
    assert sorted(found.values(), reverse=True) == pytest.approx(best)
    for path, chance in found.items():
        assert chance == pytest.approx(expected[path])


def test_one_candidate_gives_a_chain() -> None:
    tree = best_tree(np.array([[7], [8], [9]]), np.ones((3, 1, 1)), 5)
    assert tree == Proposal.chain([7, 8, 9], (1.0, 1.0, 1.0))


def test_probabilities_depend_on_the_token_before() -> None:
    token_ids = np.array([[1, 2], [3, 4]])
    probs = np.array([[[0.6, 0.4]] * 2, [[0.9, 0.1], [0.2, 0.8]]])
    tree = best_tree(token_ids, probs, 4)
    assert list(paths_of(tree)) == [(1,), (1, 3), (2,), (2, 4)]


class TestKept:
    TREE = Proposal((5, 6, 7, 8), (-1, 0, 0, 2), (0.9, 0.5, 0.4, 0.3))

    def test_parents_are_counted_anew(self) -> None:
        kept = nodes_kept(self.TREE, [0, 2, 3])
        assert kept == Proposal((5, 7, 8), (-1, 0, 1), (0.9, 0.4, 0.3))

    def test_all_and_none(self) -> None:
        assert nodes_kept(self.TREE, [0, 1, 2, 3]) == self.TREE
        assert len(nodes_kept(self.TREE, [])) == 0

    def test_an_orphan_is_a_bug(self) -> None:
        with pytest.raises(ValueError, match="missing"):
            nodes_kept(self.TREE, [0, 3])
