from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from blockdraft.tokenizer import Tokenizer
from tests.unit.test_tokenizer import build, byte_level, pieces


@cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    return build(byte_level()), build(pieces())


@given(st.sampled_from([0, 1]), st.lists(st.integers(0, 266)), st.booleans())
def test_pieces_add_up_to_the_whole_text(which: int, ids: list[int], skip: bool) -> None:
    tokenizer = tokenizers()[which]
    decoder = tokenizer.stream_decoder(skip_special=skip)
    parts = [decoder.feed(idx) for idx in ids] + [decoder.flush()]
    assert "".join(parts) == tokenizer.decode(ids, skip_special=skip)


@given(st.sampled_from([0, 1]), st.text())
def test_valid_text_never_shows_a_replacement(which: int, text: str) -> None:
    tokenizer = tokenizers()[which]
    decoder = tokenizer.stream_decoder()
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    parts = [decoder.feed(idx) for idx in ids]
    assert decoder.flush() == ""
    assert "".join(parts).count("\ufffd") == text.count("\ufffd")


def test_a_character_comes_with_its_last_byte() -> None:
    decoder = tokenizers()[1].stream_decoder()
    first = 5 + 0xE6
    ids = [5 + byte for byte in "日a".encode()]
    assert ids[0] == first
    assert [decoder.feed(idx) for idx in ids] == ["", "", "日", "a"]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    decoder = tokenizers()[1].stream_decoder()
    assert decoder.feed(5 + 0xE6) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.feed(5 + ord("a")) == "a"


def test_a_broken_character_is_replaced_when_it_breaks() -> None:
    decoder = tokenizers()[1].stream_decoder()
    assert [decoder.feed(5 + byte) for byte in b"\xe6a"] == ["", "\ufffda"]
