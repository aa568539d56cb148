import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.errors import FileFormatError
from blockdraft.tokenizer.merges import checked_merges, derived_merges


def by_scores(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, word for word."""
    parts = list(text)
    while True:
        pairs = [
            (-scores[parts[idx] + parts[idx + 1]], idx)
            for idx in range(len(parts) - 1)
            if parts[idx] + parts[idx + 1] in scores
        ]
        if not pairs:
            return parts
        _, idx = min(pairs)
        parts[idx : idx + 2] = [parts[idx] + parts[idx + 1]]


def by_merges(text: str, merges: list[tuple[str, str]]) -> list[str]:
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    parts = list(text)
    while True:
        pairs = [
            (ranks[parts[idx], parts[idx + 1]], idx)
            for idx in range(len(parts) - 1)
            if (parts[idx], parts[idx + 1]) in ranks
        ]
        if not pairs:
            return parts
        _, idx = min(pairs)
        parts[idx : idx + 2] = [parts[idx] + parts[idx + 1]]


@given(
    st.lists(st.text("abc", min_size=1, max_size=6), unique=True, max_size=40),
    st.randoms(use_true_random=False),
    st.lists(st.text("abc", max_size=20), max_size=10),
)
def test_derived_merges_do_what_the_scores_do(tokens, random, texts) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(tokens)))
    random.shuffle(order)
    scores = {token: -float(rank) for token, rank in zip(tokens, order, strict=True)}
    merges = derived_merges(scores)
    for text in [*texts, *tokens]:
        assert by_merges(text, merges) == by_scores(text, scores)


def test_a_token_has_one_merge_and_an_unreachable_one_none() -> None:
    scores = {"a": 0.0, "b": 0.0, "ab": -1.0, "aab": -2.0, "abab": -3.0, "bbb": -4.0}
    assert derived_merges(scores) == [("a", "b"), ("a", "ab"), ("ab", "ab")]


def test_repeated_merges_count_once_at_their_first_place() -> None:
    texts = frozenset({"a", "b", "ab", "ba"})
    assert checked_merges(["a b", "b a", "a b"], texts) == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize("line", ["ab", "a c", "a a", "a  b", ""])
def test_refuses_a_merge_that_makes_no_token(line: str) -> None:
    with pytest.raises(FileFormatError, match=r"merges\[1\]"):
        checked_merges(["a b", line], frozenset({"a", "b", "ab"}))
