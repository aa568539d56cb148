"""The native automaton of all runs: equal to a search of the text, in space linear in it."""

import ctypes
import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft._native import ChainRule, Cursor, RecentText, SuffixAutomaton

TOKENS = st.lists(st.integers(0, 2), max_size=40)
DEPTHS = st.integers(1, 6)
Text = Sequence[int | None]  # None between texts

_FREE_BYTES = 8192
"""What an automaton may hold however short its text is."""


def ids(token_ids: Sequence[int]) -> NDArray[np.int32]:
    return np.array(token_ids, np.int32)


def ends(text: Text, run: Text) -> list[int]:
    """Where ``run`` ends in ``text``."""
    size = len(run)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(run)]


def followers(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """The tokens that followed ``run``, in the order of the text."""
    return [text[end] for end in ends(text, run) if end < len(text)]


def automaton_of(text: Text, depth: int = 8) -> SuffixAutomaton:
    automaton = SuffixAutomaton(depth)
    for token_id in text:
        if token_id is None:
            automaton.separate()
        else:
            automaton.extend(ids([token_id]))
    return automaton


@settings(max_examples=60, deadline=None)
@given(text=TOKENS, depth=DEPTHS, other=st.lists(st.integers(0, 3), max_size=6))
def test_runs_and_counts_equal_a_search(text: list[int], depth: int, other: list[int]) -> None:
    automaton = automaton_of(text, depth)
    runs = [text[start:stop] for stop in range(len(text) + 1) for start in range(stop)]
    for run in [*runs, other]:
        if len(run) <= depth + 1:
            assert automaton.count(ids(run)) == (len(ends(text, run)) if run else len(text))


@pytest.mark.parametrize("num_kinds", [2, 5, 40])
def test_a_long_text_is_counted(num_kinds: int) -> None:
    """States with many transitions were split many times, and buckets have doubled."""
    source = random.Random(num_kinds)
    text: list[int] = []
    while len(text) < 3000:
        start = source.randrange(len(text) + 1)
        text += [*text[start : start + 30], source.randrange(num_kinds)]
    automaton = SuffixAutomaton(16)
    automaton.extend(ids(text))
    for size in (1, 2, 4, 9, 17):
        runs = Counter(tuple(text[i : i + size]) for i in range(len(text) - size + 1))
        assert all(automaton.count(ids(run)) == times for run, times in runs.items())


@settings(max_examples=60, deadline=None)
@given(text=TOKENS, depth=DEPTHS, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_contexts_equal_a_search(text: list[int], depth: int, cuts: list[int]) -> None:
    """Every end that was followed by something is in one context, with what followed it."""
    automaton = SuffixAutomaton(depth)
    done = 0
    for cut in sorted(min(cut, len(text)) for cut in (*cuts, len(text))):
        automaton.extend(ids(text[done:cut]))
        done = cut
        known = text[:cut]
        contexts = automaton.end().contexts()
        lengths = [length for length, _, _ in contexts]
        assert lengths == sorted(set(lengths), reverse=True)
        sizes = range(1, min(depth, cut) + 1)
        followed = {size: followers(known, known[cut - size :]) for size in sizes}
        assert max(lengths, default=0) == max((n for n in sizes if followed[n]), default=0)
        for size in range(1, max(lengths, default=0) + 1):
            _, num_followed, follower = min(one for one in contexts if one[0] >= size)
            assert num_followed == len(followed[size])
            counts, latest = Counter(followed[size]), {t: i for i, t in enumerate(followed[size])}
            assert follower == max(counts, key=lambda t: (counts[t], latest[t]))


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=6),
    text=st.lists(st.integers(0, 3), max_size=20),
    depth=DEPTHS,
)
def test_a_cursor_survives_growth(pieces: list[list[int]], text: list[int], depth: int) -> None:
    """It is the longest end of another text that occurs, whatever was added in between."""
    automaton, known = SuffixAutomaton(depth), list[int]()
    cursor = Cursor(automaton)
    assert cursor.automaton is automaton
    waiting = list(pieces)
    for place, token_id in enumerate(text, 1):
        if waiting and place % 3 == 1:
            known += waiting[0]
            automaton.extend(ids(waiting.pop(0)))
        longest = cursor.length  # growth may have made a longer end known: it is not searched for
        cursor.follow(ids([token_id]))
        sizes = range(min(longest, depth) + 1, 0, -1)
        length = next((n for n in sizes if ends(known, text[place - n : place])), 0)
        assert cursor.length == length
        for size, num_followed, _ in cursor.contexts():
            assert num_followed == len(followers(known, text[place - size : place]))


def test_an_empty_automaton_knows_nothing() -> None:
    cursor = Cursor(SuffixAutomaton(6))
    cursor.follow(ids([1, 2]))
    assert (cursor.length, cursor.contexts()) == (0, [])
    assert cursor.best_chain(3, ChainRule(1, 0.0, 0.0, 0, 0.0, [1.0] * 7)) == ((), (), 0.0)


def test_a_cursor_keeps_its_automaton() -> None:
    cursor = automaton_of([1, 2, 3, 1]).end()
    assert cursor.contexts() == [(1, 1, 2)]


def test_a_separator_is_counted_and_never_proposed() -> None:
    automaton = automaton_of([1, 2, None, 1, 2, None, 1, 2, 3, None, 2, 5])
    cursor = Cursor(automaton)
    cursor.follow(ids([1, 2]))
    assert cursor.contexts() == [(2, 3, 3), (1, 4, 5)]
    cursor = Cursor(automaton_of([7, 8, None, 4]))
    cursor.follow(ids([7, 8]))
    assert cursor.contexts() == [(2, 1, None)]


def expected_chain(
    text: Text, end: Text, max_drafts: int, rule: tuple[int, float, float, int, float]
) -> tuple[list[int], list[float], float]:
    """The definition of a chain after ``end``, by a search of ``text``; contexts of up to 4."""
    min_match, min_prob, min_path_prob, num_cheap, cheap_min_path_prob = rule
    path = list(end)
    drafts: list[int] = []
    probs: list[float] = []
    path_prob, expected = 1.0, 0.0
    while len(drafts) < max_drafts:
        # Contexts: runs that end at the same places are one, the longest of them.
        places: dict[int, list[int]] = {}
        for size in range(1, min(4, len(path)) + 1):
            found = ends(text, path[len(path) - size :])
            if not found:
                break
            if len(found) == len(places.get(size - 1, ())):
                del places[size - 1]
            places[size] = found
        after = {size: [text[i] for i in found if i < len(text)] for size, found in places.items()}
        contexts = [(size, after[size]) for size in sorted(after) if after[size]]
        can_follow = [
            [one for one in tokens if one is not None]
            for size, tokens in contexts
            if size >= min_match and any(one is not None for one in tokens)
        ]
        if not can_follow:
            break
        longest = can_follow[-1]
        token_id = max(reversed(longest), key=longest.count)
        prob = 0.0
        for size, tokens in contexts:
            discount = DISCOUNTS[size]
            prob = (tokens.count(token_id) + discount * prob) / (len(tokens) + discount)
        path_prob *= prob
        worth = cheap_min_path_prob if len(drafts) < num_cheap else min_path_prob
        if path_prob < worth or prob < min_prob:
            break
        drafts.append(token_id)
        probs.append(prob)
        expected += path_prob
        # Drafts go on from the context that was followed, whatever longer one ended a text.
        kept = next(size for size, tokens in reversed(contexts) if token_id in tokens)
        path = [*path[len(path) - kept :], token_id]
    return drafts, probs, expected


DISCOUNTS = (4.0, 4.1, 1.5, 0.8, 0.6)
RULES = st.tuples(
    st.integers(1, 4),
    st.sampled_from((0.0, 0.3)),
    st.sampled_from((0.0, 0.02, 0.3)),
    st.integers(0, 3),
    st.sampled_from((0.0, 0.1)),
)


@settings(max_examples=80, deadline=None)
@given(
    text=st.lists(st.sampled_from((0, 1, 2, 1, 0, None)), max_size=30),
    max_drafts=st.integers(-1, 6),
    rule=RULES,
    size=st.integers(0, 12),
)
def test_a_chain_equals_its_definition(
    text: list[int | None],
    max_drafts: int,
    rule: tuple[int, float, float, int, float],
    size: int,
) -> None:
    """To the last bit, of the text itself and of another one."""
    automaton = automaton_of(text, 4)
    native = ChainRule(*rule, DISCOUNTS)
    other = [token_id or 0 for token_id in text[:size]]
    cursor = Cursor(automaton)
    cursor.follow(ids(other))
    for found, end in ((automaton.end(), text), (cursor, other)):
        drafts, probs, expected = expected_chain(text, end, max_drafts, rule)
        assert found.best_chain(max_drafts, native) == (tuple(drafts), tuple(probs), expected)


def fibonacci(size: int) -> list[int]:
    one, two = [300], [300, 301]
    while len(two) < size:
        one, two = two, two + one
    return two[:size]


TEXTS: dict[str, Callable[[int], list[int]]] = {
    "run": lambda size: [300] * size,
    "most-states": lambda size: [300, *[301] * (size - 2), 302],
    "most-branches": lambda size: random.Random(0).choices((300, 301), k=size),
    "fibonacci": fibonacci,
    "few": lambda size: random.Random(0).choices(range(300, 340), k=size),
    "many": lambda size: random.Random(0).choices(range(300, 40_000), k=size),
    "no-repeats": lambda size: list(range(300, 300 + size)),
}


class MallInfo(ctypes.Structure):
    """What mallinfo2(3) returns; ``uordblks`` and ``hblkhd`` are the bytes in use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int | None:
    """What this process holds by malloc; None where its C library does not say."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = MallInfo
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


@pytest.mark.parametrize("name", TEXTS)
def test_memory_is_bounded(name: str) -> None:
    size = 8200  # just after the buckets of one that has a branch for each token have doubled
    text = ids(TEXTS[name](size))
    gc.collect()
    before = heap_bytes()
    automaton = SuffixAutomaton(16)
    automaton.extend(text)
    after = heap_bytes()
    assert automaton.num_states <= 2 * size + 1
    assert automaton.nbytes <= SuffixAutomaton.BYTES_PER_TOKEN * size + _FREE_BYTES
    if before is not None and after is not None:
        # malloc gave what it says it holds, 16 bytes of each piece more, and the interpreter some.
        assert after - before == pytest.approx(automaton.nbytes, rel=0.02, abs=1 << 16)


def test_the_most_states_are_two_for_each_token() -> None:
    automaton = automaton_of(TEXTS["most-states"](50))
    assert automaton.num_states >= 2 * 50 - 2


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.none() | st.lists(st.integers(0, 2), max_size=15), max_size=10),
    max_tokens=st.integers(2, 12),
)
def test_recent_text_is_the_automaton_of_its_end(
    pieces: list[list[int] | None], max_tokens: int
) -> None:
    recent, text = RecentText(4, max_tokens), list[int | None]()
    for piece in pieces:
        if piece is None:
            recent.separate()
        else:
            recent.extend(ids(piece))
        text += [None] if piece is None else piece
        assert recent.num_tokens == len(text)
        known = recent.automaton.num_tokens
        assert min(len(text), max_tokens // 2) <= known <= max_tokens
        fresh = automaton_of(text[len(text) - known :], 4)
        assert recent.automaton.num_states == fresh.num_states
        assert recent.automaton.end().contexts() == fresh.end().contexts()


@pytest.mark.parametrize("token_id", [-1, -2, -(2**31)])
def test_a_negative_id_is_refused_before_anything_changes(token_id: int) -> None:
    automaton, recent = automaton_of([1, 2, 1]), RecentText(4, 8)
    bad = ids([3, token_id])
    for call in (automaton.extend, automaton.count, recent.extend, automaton.end().follow):
        with pytest.raises(ValueError, match=f"token id {token_id} is negative"):
            call(bad)
    assert (automaton.num_tokens, automaton.num_states, recent.num_tokens) == (3, 4, 0)


def test_the_largest_id_is_a_token() -> None:
    automaton = automaton_of([2**31 - 1, 0, 2**31 - 1])
    assert automaton.end().contexts() == [(1, 1, 0)]
    assert automaton.count(ids([0, 2**31 - 1])) == 1


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.float32])
def test_ids_of_another_type_are_refused(kind: type) -> None:
    with pytest.raises(TypeError):
        SuffixAutomaton(4).extend(np.array([2**31], kind))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SuffixAutomaton(0), r"depth is 0; it must be in \[1, 1024\]"),
        (lambda: RecentText(1025, 8), "depth is 1025"),
        (lambda: RecentText(4, 1), "max_tokens is 1"),
        (lambda: RecentText(4, 2**40), "max_tokens is 1099511627776"),
        (lambda: SuffixAutomaton(2).count(ids([1] * 4)), "a run of 4 tokens; those of at most 3"),
        (lambda: ChainRule(1, 0.0, 0.0, 0, 0.0, [1.0, -1.0]), "discount -1.0"),
        (lambda: ChainRule(1, 0.0, 0.0, 0, 0.0, [float("nan")]), "discount -?nan"),
        (
            lambda: SuffixAutomaton(2).end().best_chain(3, ChainRule(1, 0.0, 0.0, 0, 0.0, [1.0])),
            "1 discounts for contexts of 0 to 2 tokens",
        ),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
