"""Answers in a file whose suffixes lie in order: equal to a search, and to an automaton."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft._native import ChainRule, Cursor, OrderCursor, OrderedText, SuffixAutomaton
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.speculative import Vocabulary, open_suffix_corpus, write_suffix_corpus
from blockdraft.speculative.suffix_cache import DEPTH
from tests.unit.test_speculation_automaton import ends

VOCABULARY = Vocabulary(300, "5a" * 32)
ANSWERS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=5)
RULE = ChainRule(1, 0.0, 0.0, 0, 0.0, [0.1 + 1 / max(n, 1) for n in range(DEPTH + 1)])


def ids(token_ids: Sequence[int]) -> NDArray[np.int32]:
    return np.array(token_ids, np.int32)


def corpus_of(folder: Path, answers: Sequence[Sequence[int]]) -> OrderedText:
    path = folder / "answers"
    write_suffix_corpus(path, [ids(answer) for answer in answers], VOCABULARY)
    return open_suffix_corpus(path, VOCABULARY)


def cursor_after(text: OrderedText, token_ids: Sequence[int]) -> OrderCursor:
    cursor = text.cursor()
    cursor.follow(ids(token_ids))
    return cursor


@settings(max_examples=60, deadline=None)
@given(answers=ANSWERS, text=st.lists(st.integers(0, 3), max_size=24))
def test_contexts_equal_a_search(
    answers: list[list[int]], text: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cursor = cursor_after(corpus_of(tmp_path_factory.mktemp("c"), answers), text)
    whole = [token for answer in answers for token in (*answer, None)]
    sizes = range(min(DEPTH, len(text)), 0, -1)
    counts = [(size, len(ends(whole, text[len(text) - size :]))) for size in sizes]
    assert cursor.contexts() == [(size, count) for size, count in counts if count]


@settings(max_examples=60, deadline=None)
@given(answers=ANSWERS, text=st.lists(st.integers(0, 2), min_size=1, max_size=24))
def test_a_draft_is_as_probable_as_an_automaton_says(
    answers: list[list[int]], text: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of two that followed equally often either may be taken; both are equally probable."""
    automaton = SuffixAutomaton(DEPTH)
    for answer in answers:
        automaton.extend(ids(answer))
        automaton.separate()
    known = Cursor(automaton)
    known.follow(ids(text))
    in_order = cursor_after(corpus_of(tmp_path_factory.mktemp("c"), answers), text)
    expected, found = known.best_chain(1, RULE), in_order.best_chain(1, RULE)
    assert len(found[0]) == len(expected[0])
    if found[0] == expected[0]:
        assert found[1] == pytest.approx(expected[1])


def test_a_chain_goes_on_where_the_answers_do(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [[1, 2, 3, 4, 5], [9, 2, 3, 4, 6], [7, 2, 3, 4, 5]])
    token_ids, probs, expected = cursor_after(corpus, [2, 3]).best_chain(4, RULE)
    assert token_ids == (4, 5)  # the mark behind an answer is never proposed
    assert probs[0] > probs[1] > 0.5
    assert expected == pytest.approx(probs[0] + probs[0] * probs[1])
    assert cursor_after(corpus, [9, 2, 3]).best_chain(2, RULE)[0] == (4, 6)


def test_what_follows_often_is_found_among_many(tmp_path: Path) -> None:
    """Of a context that occurred more often than is looked at, by a sample."""
    source = np.random.default_rng(0)
    others = [[5, int(token)] for token in source.integers(10, 290, 3000)]
    corpus = corpus_of(tmp_path, [*others, *[[5, 7]] * 1500])
    token_ids, probs, _ = cursor_after(corpus, [5]).best_chain(1, RULE)
    assert token_ids == (7,)
    assert probs == pytest.approx([1 / 3], abs=0.01)


def test_a_longer_text_is_ordered_by_all_that_counts(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    run = source.integers(0, 300, 40).tolist()
    answers = [run[start:] for start in range(20)] + [[*run[:DEPTH], n] for n in range(6)]
    corpus = corpus_of(tmp_path, answers)
    assert cursor_after(corpus, run[:DEPTH]).contexts()[0] == (DEPTH, 7)
    assert cursor_after(corpus, run[: DEPTH + 3]).contexts()[0] == (DEPTH, 4)


def test_arrays_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="2 places of a text of 3 tokens"):
        OrderedText(ids([1, 2, 3]), ids([0, 1]), DEPTH)
    for place in (-1, 3):
        with pytest.raises(ValueError, match=f"place {place} of a text of 3 tokens"):
            OrderedText(ids([1, 2, 3]), ids([0, 1, place]), DEPTH)
    with pytest.raises(ValueError, match="token id -2 is negative"):
        OrderedText(ids([1, -2]), ids([0, 1]), DEPTH)
    with pytest.raises(ValueError, match="contexts of 0 tokens"):
        OrderedText(ids([1]), ids([0]), 0)
    with pytest.raises(ValueError, match="3 discounts for contexts of 0 to 16"):
        OrderedText(ids([1]), ids([0]), DEPTH).cursor().best_chain(
            1, ChainRule(1, 0.0, 0.0, 0, 0.0, [1.0] * 3)
        )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_order_is_safe(data: st.DataObject) -> None:
    """One that is not sorted gives other drafts, and nothing else."""
    size = data.draw(st.integers(1, 30))
    tokens = data.draw(st.lists(st.integers(-1, 3), min_size=size, max_size=size))
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    cursor = OrderedText(ids(tokens), ids(places), DEPTH).cursor()
    cursor.follow(ids(data.draw(st.lists(st.integers(0, 3), max_size=20))))
    token_ids, _, _ = cursor.best_chain(8, RULE)
    assert set(token_ids) <= set(tokens) - {-1}


# --- the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two answers."""
    path = tmp_path / "answers"
    assert write_suffix_corpus(path, [ids([1, 2, 3]), ids([]), ids([299, 0])], VOCABULARY) == 7
    return path


def test_a_file_comes_back(path: Path) -> None:
    corpus = open_suffix_corpus(path, VOCABULARY)
    assert corpus.num_tokens == 7
    assert cursor_after(corpus, [2]).best_chain(3, RULE)[0] == (3,)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_every_damaged_byte_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises((ConfigError, FileFormatError), match=f"^{path}: "):
            open_suffix_corpus(path, VOCABULARY)


@pytest.mark.parametrize("size", [0, 7, 40, 60])
def test_a_file_that_is_cut_short_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FileFormatError, match=r"is empty|is no suffix corpus|is cut short|has 60"):
        open_suffix_corpus(path, VOCABULARY)


def test_whose_answers_they_are_is_checked(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a vocabulary of 300 tokens \(5a5a5a5a\); the model's"):
        open_suffix_corpus(path, Vocabulary(300, "6b" * 32))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        open_suffix_corpus(path.with_name("other"), VOCABULARY)


def test_a_token_beyond_the_vocabulary_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<i", data, 56, 300)
    struct.pack_into("<I", data, 20, zlib.crc32(data[24:]))
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="token 300 is not below 300"):
        open_suffix_corpus(path, VOCABULARY)


def test_no_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no answers to look drafts up in"):
        write_suffix_corpus(tmp_path / "answers", [ids([])], VOCABULARY)
    assert not any(tmp_path.iterdir())
