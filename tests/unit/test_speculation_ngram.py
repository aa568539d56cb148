"""Prompt lookup: equal to a scan of all tokens, at a constant time per token."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.speculative import DraftTask, NgramDrafter
from blockdraft.speculative.ngram import MAX_MATCH, MIN_MATCH, WEAK_DRAFTS, NgramIndex


def scanned(token_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The definition: longest end that occurred before, its latest occurrence, what followed."""
    for size in range(MAX_MATCH, MIN_MATCH - 1, -1):
        end = list(token_ids[-size:])
        for start in range(len(token_ids) - 1, size - 1, -1):
            if len(end) == size and list(token_ids[start - size : start]) == end:
                going_on = list(token_ids)
                count = max_tokens if size == MAX_MATCH else min(max_tokens, WEAK_DRAFTS)
                for i in range(count):
                    going_on.append(going_on[start + i])
                return going_on[len(token_ids) :]
    return []


@given(
    token_ids=st.lists(st.integers(0, 3), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    max_tokens=st.integers(1, 12),
)
def test_index_equals_a_scan(token_ids: list[int], cuts: list[int], max_tokens: int) -> None:
    array = np.array(token_ids, np.int32)
    index = NgramIndex()
    for cut in sorted(min(cut, len(array)) for cut in (*cuts, len(array))):
        index.extend(array[:cut])
        assert index.continuation(max_tokens)[0] == scanned(token_ids[:cut], max_tokens)


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
    index = NgramIndex()
    index.extend(np.array([ord(letter) for letter in text], np.int32))
    assert "".join(map(chr, index.continuation(3)[0])) == expected


def test_a_weak_match_drafts_little() -> None:
    index = NgramIndex()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    index.extend(np.array([*tokens, *tokens[:5]], np.int32))
    assert index.continuation(6)[0] == [6, 7, 8]
    index.extend(np.array([*tokens, *tokens[:6]], np.int32))
    assert index.continuation(6)[0] == [7, 8, 9, 10, 11, 12]


def test_longer_match_wins_over_a_later_one() -> None:
    index = NgramIndex()
    index.extend(np.array([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], np.int32))
    assert index.continuation(1)[0] == [7]


@pytest.mark.parametrize("token_id", [2**18 - 1, 2**18, 2**20])
def test_large_ids_are_kept_apart(token_id: int) -> None:
    index = NgramIndex()
    index.extend(np.array([token_id, 1, 5, 0, 1, 6, token_id, 1], np.int32))
    assert index.continuation(1)[0] == [5]


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
