from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from blockdraft.tokenizer.special import SpecialTokens


def longest_first(text: str, tokens: list[str]) -> list[str | int]:
    """Look for one token after the other, longest first, in what is left of the text."""
    pieces: list[str | int] = [text]
    for token in sorted(tokens, key=len, reverse=True):
        pieces = [part for piece in pieces for part in _cut(piece, token, tokens.index(token))]
    return [piece for piece in pieces if piece != ""]


def _cut(piece: str | int, token: str, token_id: int) -> Iterator[str | int]:
    if isinstance(piece, int):
        yield piece
        return
    for idx, part in enumerate(piece.split(token)):
        if idx:
            yield token_id
        yield part


@st.composite
def _tokens(draw: st.DrawFn) -> list[str]:
    """Tokens of different lengths: between equals the leftmost wins, which `split` cannot say."""
    lengths = draw(st.lists(st.integers(1, 7), unique=True, min_size=1, max_size=5))
    return [draw(st.text("ab", min_size=length, max_size=length)) for length in lengths]


@given(_tokens(), st.text("abc", max_size=40))
def test_splits_like_looking_for_the_longest_first(tokens: list[str], text: str) -> None:
    special = SpecialTokens({token: idx for idx, token in enumerate(tokens)})
    assert list(special.split(text)) == longest_first(text, tokens)


def test_of_equally_long_tokens_the_leftmost_wins() -> None:
    special = SpecialTokens({"bc": 0, "ab": 1})
    assert list(special.split("abc")) == [1, "c"]


def test_a_longer_token_wins_over_an_earlier_one() -> None:
    special = SpecialTokens({"ab": 0, "bcd": 1})
    assert list(special.split("abcd")) == ["a", 1]


def test_finds_nothing_without_tokens() -> None:
    assert list(SpecialTokens({"": 3}).split("a]b")) == ["a]b"]
    assert list(SpecialTokens({}).split("")) == []


def test_a_token_that_ends_the_text_is_found() -> None:
    special = SpecialTokens({"\n" * count: count for count in (1, 2, 5)})
    assert list(special.split("a\n\n")) == ["a", 2]
