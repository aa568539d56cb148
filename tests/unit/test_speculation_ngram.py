"""Prompt lookup: equal to a scan of all tokens, at a constant time per token."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft._native import NgramIndex
from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.speculative import DraftTask, NgramDrafter
from blockdraft.speculative.ngram import MAX_MATCH, MIN_MATCH, WEAK_DRAFTS


def scanned(token_ids: Sequence[int], max_tokens: int) -> tuple[int, list[int]]:
    """The definition: longest end that occurred before, its latest occurrence, what followed."""
    for size in range(MAX_MATCH, MIN_MATCH - 1, -1):
        end = list(token_ids[-size:])
        for start in range(len(token_ids) - 1, size - 1, -1):
            if len(end) == size and list(token_ids[start - size : start]) == end:
                going_on = list(token_ids)
                for i in range(max_tokens):
                    going_on.append(going_on[start + i])
                return size, going_on[len(token_ids) :]
    return 0, []


def ids(token_ids: Sequence[int]) -> NDArray[np.int32]:
    return np.array(token_ids, np.int32)


def index_of(token_ids: Sequence[int]) -> NgramIndex:
    index = NgramIndex(MIN_MATCH, MAX_MATCH)
    index.extend(ids(token_ids))
    return index


@given(
    token_ids=st.lists(st.integers(0, 3), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    max_tokens=st.integers(0, 12),
)
def test_index_equals_a_scan(token_ids: list[int], cuts: list[int], max_tokens: int) -> None:
    index = NgramIndex(MIN_MATCH, MAX_MATCH)
    for cut in sorted(min(cut, len(token_ids)) for cut in (*cuts, len(token_ids))):
        index.extend(ids(token_ids[index.num_tokens : cut]))
        size, expected = scanned(token_ids[:cut], max_tokens)
        assert index.continuation(max_tokens) == (size, tuple(expected))


@pytest.mark.parametrize("num_kinds", [2, 12, 400])
def test_a_long_text_is_found_again(num_kinds: int) -> None:
    """Tables have grown many times; every n-gram leads to its latest place."""
    token_ids = random.Random(0).choices(range(num_kinds), k=3000)
    index = index_of(token_ids)
    for place in range(2900, 3000, 7):
        index.extend(ids(token_ids[place - 4 : place]))
        token_ids += token_ids[place - 4 : place]
        size, expected = scanned(token_ids, 3)
        assert index.continuation(3) == (size, tuple(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcdxxab", "cdx"),
        ("abcabdab", "dab"),  # the latest of two
        ("ab" * 4, "aba"),  # the occurrence overlaps the end
        ("aaa", "aaa"),
        ("abcdef", ""),
        ("axbxa", ""),  # one token is no match
        ("", ""),
    ],
    ids=["match", "latest", "overlap", "run", "none", "one-token", "empty"],
)
def test_what_followed_is_proposed(text: str, expected: str) -> None:
    index = index_of([ord(letter) for letter in text])
    assert "".join(map(chr, index.continuation(3)[1])) == expected


def test_a_weak_match_drafts_little() -> None:
    drafter = NgramDrafter(6)
    drafter.start(0)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    weak = drafter.propose([task([*tokens, *tokens[:5]], 6)])[0]
    assert (weak.token_ids, weak.probs) == ((6, 7, 8), (0.5,) * WEAK_DRAFTS)
    full = drafter.propose([task([*tokens, *tokens[:6]], 6)])[0]
    assert (full.token_ids, full.probs) == ((7, 8, 9, 10, 11, 12), (0.8,) * 6)


def test_longer_match_wins_over_a_later_one() -> None:
    assert index_of([1, 2, 3, 7, 2, 3, 8, 1, 2, 3]).continuation(1) == (3, (7,))


@pytest.mark.parametrize("token_id", [2**18 - 1, 2**18, 2**24, 2**31 - 1])
def test_large_ids_are_kept_apart(token_id: int) -> None:
    assert index_of([token_id, 1, 5, 0, 1, 6, token_id, 1]).continuation(1) == (2, (5,))


def test_a_negative_id_is_refused_before_anything_changes() -> None:
    index = index_of([1, 2, 3, 1, 2])
    with pytest.raises(ValueError, match="token id -3 is negative"):
        index.extend(ids([1, -3]))
    assert index.num_tokens == 5
    assert index.continuation(1) == (2, (3,))


@pytest.mark.parametrize("sizes", [(0, 6), (3, 2), (2, 17)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"sizes are {sizes[0]} to {sizes[1]}"):
        NgramIndex(*sizes)


@pytest.mark.parametrize("num_kinds", [1, 40, 100_000])
def test_memory_is_bounded(num_kinds: int) -> None:
    """At most 8 bytes a token and 11 for each of five sizes; some tables are there at once."""
    token_ids = random.Random(0).choices(range(num_kinds), k=4000)
    index = NgramIndex(MIN_MATCH, MAX_MATCH)
    for start in range(0, 4000, 50):
        index.extend(ids(token_ids[start : start + 50]))
        assert index.nbytes <= (8 + 5 * 11) * (start + 50) + 1024


def task(token_ids: Sequence[int], max_drafts: int, sequence_id: int = 0) -> DraftTask:
    params = SamplingParams(seed=0)
    return DraftTask(sequence_id, np.array(token_ids, np.int32), max_drafts, params, 0)


def test_drafter_keeps_sequences_apart_and_limits() -> None:
    drafter = NgramDrafter(3)
    for sequence_id in (0, 1):
        drafter.start(sequence_id)
    tasks = [task([1, 2, 3, 4, 5, 1, 2], 9, 0), task([1, 2, 9, 9, 1, 2], 2, 1)]
    proposals = drafter.propose(tasks)
    assert [proposal.token_ids for proposal in proposals] == [(3, 4, 5), (9, 9)]
    assert all(proposal.is_chain for proposal in proposals)
    drafter.end(0)
    drafter.start(0)
    assert drafter.propose([task([1, 2], 3)])[0].token_ids == ()
    assert (drafter.type_name, drafter.block_size) == ("ngram", 4)


def test_no_drafts_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft tokens is 0"):
        NgramDrafter(0)
