"""The automaton of all runs: equal to a search of the text, in space linear in it."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.speculative.automaton import (
    BYTES_PER_TOKEN,
    SEPARATOR,
    Cursor,
    RecentText,
    SuffixAutomaton,
)

TOKENS = st.lists(st.integers(0, 2), max_size=40)
DEPTHS = st.integers(1, 6)


def ends(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """Where ``run`` ends in ``text``."""
    size = len(run)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(run)]


def followers(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """The tokens that followed ``run``, in the order of the text."""
    return [text[end] for end in ends(text, run) if end < len(text)]


def automaton_of(text: Sequence[int], depth: int = 8) -> SuffixAutomaton:
    automaton = SuffixAutomaton(depth)
    automaton.extend(text)
    return automaton


@settings(max_examples=60, deadline=None)
@given(text=TOKENS, depth=DEPTHS, other=st.lists(st.integers(0, 3), max_size=6))
def test_runs_and_counts_equal_a_search(text: list[int], depth: int, other: list[int]) -> None:
    automaton = automaton_of(text, depth)
    runs = [text[start:stop] for stop in range(len(text) + 1) for start in range(stop)]
    for run in [*runs, other]:
        state = automaton.find(run)
        assert (state is not None) == (not run or bool(ends(text, run)))
        if state is not None and len(run) <= depth + 1:
            assert automaton.count(state) == (len(ends(text, run)) if run else len(text))


@settings(max_examples=60, deadline=None)
@given(text=TOKENS, depth=DEPTHS, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_contexts_equal_a_search(text: list[int], depth: int, cuts: list[int]) -> None:
    """Every end that was followed by something is in one context, with what followed it."""
    automaton = SuffixAutomaton(depth)
    done = 0
    for cut in sorted(min(cut, len(text)) for cut in (*cuts, len(text))):
        automaton.extend(text[done:cut])
        done = cut
        known = text[:cut]
        contexts = automaton.contexts(automaton.end)
        lengths = [context.length for context in contexts]
        assert lengths == sorted(set(lengths), reverse=True)
        sizes = range(1, min(depth, cut) + 1)
        followed = {size: followers(known, known[cut - size :]) for size in sizes}
        assert max(lengths, default=0) == max((n for n in sizes if followed[n]), default=0)
        for size in range(1, max(lengths, default=0) + 1):
            context = min((one for one in contexts if one.length >= size), key=lambda c: c.length)
            assert context.num_followed == len(followed[size])
            counts, latest = Counter(followed[size]), {t: i for i, t in enumerate(followed[size])}
            found = automaton.follower(context)
            assert found is not None
            assert found[0] == max(counts, key=lambda t: (counts[t], latest[t]))
            assert found[1] == (automaton.step(context.state, found[0]), context.length + 1)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=6),
    text=st.lists(st.integers(0, 3), max_size=20),
    depth=DEPTHS,
)
def test_a_cursor_survives_growth(pieces: list[list[int]], text: list[int], depth: int) -> None:
    """It is the longest end of another text that occurs, whatever was added in between."""
    automaton, known, cursor = SuffixAutomaton(depth), list[int](), Cursor()
    waiting = list(pieces)
    for place, token_id in enumerate(text, 1):
        if waiting and place % 3 == 1:
            known += waiting[0]
            automaton.extend(waiting.pop(0))
        longest = cursor.length  # growth may have made a longer end known: it is not searched for
        cursor = automaton.follow(cursor, token_id)
        sizes = range(min(longest, depth) + 1, 0, -1)
        length = next((n for n in sizes if ends(known, text[place - n : place])), 0)
        assert cursor.length == length
        for context in automaton.contexts(cursor):
            run = text[place - context.length : place]
            assert context.num_followed == len(followers(known, run))


def test_a_separator_is_counted_and_never_proposed() -> None:
    automaton = automaton_of([1, 2, SEPARATOR, 1, 2, SEPARATOR, 1, 2, 3, SEPARATOR, 2, 5])
    state = automaton.find([1, 2])
    assert state is not None
    context = automaton.contexts(Cursor(state, 2))[0]
    assert (context.length, context.num_followed) == (2, 3)
    found = automaton.follower(context)
    assert found is not None
    assert found[0] == 3
    ended = automaton_of([7, 8, SEPARATOR, 4])
    state = ended.find([7, 8])
    assert state is not None
    assert ended.follower(ended.contexts(Cursor(state, 2))[0]) is None


def fibonacci(size: int) -> list[int]:
    one, two = [300], [300, 301]
    while len(two) < size:
        one, two = two, two + one
    return two[:size]


TEXTS: dict[str, Callable[[int], list[int]]] = {
    "run": lambda size: [300] * size,
    "most-states": lambda size: [300, *[301] * (size - 2), 302],
    "most-tables": lambda size: random.Random(0).choices((300, 301), k=size),
    "fibonacci": fibonacci,
    "few": lambda size: random.Random(0).choices(range(300, 340), k=size),
    "many": lambda size: random.Random(0).choices(range(300, 40_000), k=size),
    "no-repeats": lambda size: list(range(300, 300 + size)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_memory_is_bounded(name: str) -> None:
    size = 1000
    text = TEXTS[name](size)
    tracemalloc.start()
    # Integers of its own, as those of an array are.
    automaton = SuffixAutomaton(16)
    automaton.extend(token_id + 0 for token_id in text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert automaton.num_states <= 2 * size + 1
    assert peak <= BYTES_PER_TOKEN * size


def test_the_most_states_are_two_for_each_token() -> None:
    automaton = automaton_of(TEXTS["most-states"](50))
    assert automaton.num_states >= 2 * 50 - 2


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.lists(st.integers(0, 2), max_size=15), max_size=8),
    max_tokens=st.integers(2, 12),
)
def test_recent_text_is_the_automaton_of_its_end(pieces: list[list[int]], max_tokens: int) -> None:
    recent, text = RecentText(4, max_tokens), list[int]()
    for piece in pieces:
        recent.extend(piece)
        text += piece
        assert recent.num_tokens == len(text)
        known = recent.automaton.num_tokens
        assert min(len(text), max_tokens // 2) <= known <= max_tokens
        fresh = automaton_of(text[len(text) - known :], 4)
        assert recent.automaton.num_states == fresh.num_states
        assert recent.automaton.contexts(recent.automaton.end) == fresh.contexts(fresh.end)
