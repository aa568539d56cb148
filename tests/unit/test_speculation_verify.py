"""Proposals and the acceptance rule."""

from collections.abc import Sequence

import pytest

from blockdraft.speculative import NO_DRAFTS, Proposal, Verdict, verify

# Below the anchor 5 and 6; below 5 then 7 and 8, below 6 then 7.
TREE = Proposal((5, 6, 7, 8, 7), (-1, -1, 0, 0, 1))


def run(proposal: Proposal, picks: dict[int, int]) -> tuple[Verdict, list[tuple[int, list[int]]]]:
    """The verdict when row r is followed by ``picks[r]``, and what was asked."""
    asked: list[tuple[int, list[int]]] = []

    def pick(row: int, path: Sequence[int]) -> int:
        asked.append((row, list(path)))
        return picks[row]

    return verify(proposal, pick), asked


@pytest.mark.parametrize(
    ("picks", "rows", "token_ids"),
    [
        ({0: 9}, (0,), (9,)),
        ({0: 1, 1: 9}, (0, 1), (1, 9)),
        ({0: 1, 1: 2, 2: 9}, (0, 1, 2), (1, 2, 9)),
        ({0: 1, 1: 2, 2: 3, 3: 9}, (0, 1, 2, 3), (1, 2, 3, 9)),
        ({0: 2}, (0,), (2,)),
    ],
    ids=["none", "one", "two", "all", "right-token-too-early"],
)
def test_chain(picks: dict[int, int], rows: tuple[int, ...], token_ids: tuple[int, ...]) -> None:
    verdict, asked = run(Proposal.chain((1, 2, 3)), picks)
    assert verdict == Verdict(rows, token_ids)
    assert [row for row, _ in asked] == list(rows)
    assert verdict.num_accepted == len(rows) - 1
    assert verdict.acceptance_length == len(token_ids)
    assert verdict.next_token == token_ids[-1]


@pytest.mark.parametrize(
    ("picks", "rows", "token_ids"),
    [
        ({0: 4}, (0,), (4,)),
        ({0: 5, 1: 6}, (0, 1), (5, 6)),
        ({0: 5, 1: 8, 4: 1}, (0, 1, 4), (5, 8, 1)),
        ({0: 6, 2: 8}, (0, 2), (6, 8)),
        ({0: 6, 2: 7, 5: 2}, (0, 2, 5), (6, 7, 2)),
    ],
    ids=["none", "left", "left-right", "right", "right-leaf"],
)
def test_tree(picks: dict[int, int], rows: tuple[int, ...], token_ids: tuple[int, ...]) -> None:
    verdict, asked = run(TREE, picks)
    assert verdict == Verdict(rows, token_ids)
    assert asked == [(row, list(token_ids[:i])) for i, row in enumerate(rows)]


def test_no_drafts_is_plain_decoding() -> None:
    verdict, asked = run(NO_DRAFTS, {0: 3})
    assert (verdict, asked) == (Verdict((0,), (3,)), [(0, [])])


def test_twins_follow_the_first() -> None:
    verdict, _ = run(Proposal((5, 5, 6), (-1, -1, 1)), {0: 5, 1: 6})
    assert verdict == Verdict((0, 1), (5, 6))


@pytest.mark.parametrize(
    ("proposal", "is_chain", "depth"),
    [(NO_DRAFTS, True, 0), (Proposal.chain((4, 4, 4)), True, 3), (TREE, False, 2)],
    ids=["none", "chain", "tree"],
)
def test_shape(proposal: Proposal, is_chain: bool, depth: int) -> None:
    assert (proposal.is_chain, proposal.depth) == (is_chain, depth)


@pytest.mark.parametrize(
    ("token_ids", "parents", "probs", "message"),
    [
        ((1, 2), (-1,), None, "2 drafts with 1 parents"),
        ((1,), (-1,), (0.5, 0.5), "1 drafts with 2 probabilities"),
        ((1, 2), (-1, 1), None, "node 1 follows node 1"),
        ((1,), (-2,), None, "node 0 follows node -2"),
    ],
    ids=["parents", "probs", "itself", "below-anchor"],
)
def test_impossible_trees_are_refused(
    token_ids: tuple[int, ...],
    parents: tuple[int, ...],
    probs: tuple[float, ...] | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        Proposal(token_ids, parents, probs)
