"""Drafts by what usually followed: equal to their definition, bounded, honest about chances."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.speculative import (
    NO_DRAFTS,
    CommittedRows,
    DraftLimits,
    DraftTask,
    Proposal,
    SuffixCache,
    SuffixDrafter,
    Vocabulary,
    open_suffix_corpus,
    write_suffix_corpus,
)
from blockdraft.speculative import suffix_cache as caching
from blockdraft.speculative.suffix import (
    CHEAP_DRAFTS,
    CHEAP_MIN_PATH_PROB,
    MIN_PATH_PROB,
    OWN_DISCOUNTS,
)
from blockdraft.speculative.suffix_cache import DEPTH
from tests.unit.test_speculation_automaton import ends, followers

VOCABULARY = Vocabulary(300, "5a" * 32)
PARAMS = SamplingParams(seed=0)


def task(token_ids: Sequence[int], max_drafts: int = 9, sequence_id: int = 0) -> DraftTask:
    return DraftTask(sequence_id, np.array(token_ids, np.int32), max_drafts, PARAMS, 0)


def propose(
    token_ids: Sequence[int], limits: DraftLimits | None = None, *, num_drafts: int = 9
) -> Proposal:
    drafter = SuffixDrafter(num_drafts, limits)
    drafter.start(0)
    return drafter.propose([task(token_ids)])[0]


def scanned(text: Sequence[int], path: Sequence[int]) -> tuple[int, float] | None:
    """The definition, by a search of all tokens: the next draft after ``path``, and its q."""
    going_on = [*text, *path]
    sizes = range(1, min(DEPTH, len(going_on)) + 1)
    seen = {size: followers(text, going_on[len(going_on) - size :]) for size in sizes}
    places = {size: ends(text, going_on[len(going_on) - size :]) for size in sizes}
    sizes_seen = [size for size in sizes if seen[size]]
    if not sizes_seen:
        return None
    longest = seen[sizes_seen[-1]]
    token_id = max(
        longest,
        key=lambda one: (longest.count(one), max(i for i, t in enumerate(longest) if t == one)),
    )
    prob = 0.0
    for size in sizes_seen:
        # Runs that end at the same places are one context, the longest of them.
        if size + 1 in sizes_seen and len(places[size + 1]) == len(places[size]):
            continue
        discount = OWN_DISCOUNTS[size]
        prob = (seen[size].count(token_id) + discount * prob) / (len(seen[size]) + discount)
    return token_id, prob


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.integers(0, 2), max_size=50), max_drafts=st.integers(1, 9))
def test_drafts_equal_their_definition(text: list[int], max_drafts: int) -> None:
    expected: list[tuple[int, float]] = []
    path_prob = 1.0
    while len(expected) < max_drafts:
        found = scanned(text, [token_id for token_id, _ in expected])
        if found is None:
            break
        path_prob *= found[1]
        is_cheap = len(expected) < CHEAP_DRAFTS
        if path_prob < (CHEAP_MIN_PATH_PROB if is_cheap else MIN_PATH_PROB):
            break
        expected.append(found)
    drafted = propose(text, num_drafts=max_drafts)
    assert drafted.is_chain
    assert drafted.token_ids == tuple(token_id for token_id, _ in expected)
    assert (drafted.probs or ()) == tuple(prob for _, prob in expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcdefgh, abcdefg", "h, "),
        ("ab" * 9, "abababab"),  # what follows overlaps the end
        ("a" * 20, "a" * 8),
        ("xabc yabd zabe wab", "e"),  # the latest of equals
        ("xabd yabd zabc wab", "d"),  # the more frequent
        ("abcdef", ""),
        ("", ""),
    ],
    ids=["match", "overlap", "run", "latest", "frequent", "none", "empty"],
)
def test_what_usually_followed_is_proposed(text: str, expected: str) -> None:
    drafted = propose([ord(letter) for letter in text], num_drafts=8)
    assert "".join(map(chr, drafted.token_ids)).startswith(expected)
    assert bool(drafted.token_ids) == bool(expected)


def test_a_longer_match_is_a_surer_hint() -> None:
    first = []
    for size in (1, 2, 4, 8, 16):
        run = list(range(100, 100 + size))
        drafted = propose([*run, 7, 1, 2, 3, *run])
        assert drafted.token_ids[0] == 7
        assert drafted.probs is not None
        first.append(drafted.probs[0])
    assert first == sorted(first)
    assert first[0] < 0.25
    assert first[-1] > 0.8


def test_limits_end_a_proposal() -> None:
    text = [*range(10, 30), *range(10, 16)]
    everything = propose(text, DraftLimits(min_path_prob=0.0))
    assert everything.token_ids == tuple(range(16, 25))
    assert len(propose(text, DraftLimits(min_path_prob=0.0), num_drafts=4)) == 4
    assert propose(text, DraftLimits(min_match=6, min_path_prob=0.0)) == everything
    assert propose(text, DraftLimits(min_match=7)) is NO_DRAFTS
    assert everything.probs is not None
    assert propose(text, DraftLimits(min_prob=everything.probs[0] + 1e-6)) is NO_DRAFTS
    some = propose(text)
    assert CHEAP_DRAFTS <= len(some) < len(everything)
    assert some.token_ids == everything.token_ids[: len(some)]
    assert np.prod(everything.probs[: len(some) + 1]) < MIN_PATH_PROB


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_match": 0}, "min_match is 0"),
        ({"min_match": DEPTH + 1}, "min_match is 17"),
        ({"min_prob": 1.5}, "min_prob is 1.5"),
        ({"min_path_prob": -0.5}, "min_path_prob is -0.5"),
    ],
)
def test_impossible_limits_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftLimits(**settings)  # type: ignore[arg-type]


def test_impossible_drafters_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft tokens is 0"):
        SuffixDrafter(0)
    with pytest.raises(ConfigError, match="max_tokens is 1"):
        SuffixDrafter(1, max_tokens=1)


def test_a_drafter_keeps_sequences_apart_and_limits() -> None:
    drafter = SuffixDrafter(3)
    for sequence_id in (0, 1):
        drafter.start(sequence_id)
    drafter.observe([CommittedRows(0, 0, np.zeros(3, np.int32), None, prompt_length=3)])
    run = list(range(10, 22))
    tasks = [task([*run, *run[:6]], 9, 0), task([*run[::-1], *run[:5:-1]], 2, 1)]
    proposals = drafter.propose(tasks)
    assert [proposal.token_ids for proposal in proposals] == [(16, 17, 18), (15, 14)]
    drafter.end(0)
    drafter.end(7)  # never began
    drafter.start(0)
    assert drafter.propose([task([11, 12])]) == [NO_DRAFTS]
    assert (drafter.type_name, drafter.block_size, drafter.cache_layout) == ("suffix", 4, None)


def test_old_tokens_are_forgotten() -> None:
    drafter = SuffixDrafter(4, max_tokens=64)
    drafter.start(0)
    old, recent = list(range(100, 108)), list(range(200, 208))
    text = [*old, *range(300, 360), *recent, *range(400, 416)]
    assert drafter.propose([task([*text, *old[:4]])])[0] is NO_DRAFTS
    text = [*text, *old[:4], *recent[:4]]
    assert drafter.propose([task(text)])[0].token_ids[:3] == tuple(recent[4:7])


def test_probabilities_are_honest() -> None:
    """Text of phrases in random order: of drafts that are n times sure, n come true."""
    source = random.Random(3)
    phrases = [source.choices(range(40), k=source.randint(2, 9)) for _ in range(60)]
    kept: defaultdict[bool, list[float]] = defaultdict(list)
    sure: defaultdict[int, list[bool]] = defaultdict(list)
    for sequence_id in range(4):
        drafter = SuffixDrafter(1)
        drafter.start(sequence_id)
        text = [token for _ in range(70) for token in source.choice(phrases)]
        for place in range(60, len(text)):
            drafted = drafter.propose([task(text[:place], 1, sequence_id)])[0]
            if drafted.probs is not None:
                was_right = drafted.token_ids[0] == text[place]
                kept[was_right].append(drafted.probs[0])
                sure[min(int(drafted.probs[0] * 3), 2)].append(was_right)
    shares = [sum(sure[grade]) / len(sure[grade]) for grade in range(3)]
    assert shares == sorted(shares)
    assert all(
        abs(share - middle) < 0.25 for share, middle in zip(shares, (0.2, 0.5, 0.85), strict=True)
    )
    mean = sum(map(sum, kept.values())) / sum(map(len, kept.values()))
    assert mean == pytest.approx(len(kept[True]) / sum(map(len, kept.values())), abs=0.12)


def test_a_corpus_is_looked_into_as_well(tmp_path: Path) -> None:
    answers = [np.array(list(range(60)), np.int32)] * 20
    write_suffix_corpus(tmp_path / "answers", answers, VOCABULARY)
    corpus = open_suffix_corpus(tmp_path / "answers", VOCABULARY)
    drafter = SuffixDrafter(4, corpus=corpus)
    drafter.start(0)
    text = [100, *range(30)]  # longer than a context
    (proposal,) = drafter.propose([task(text)])
    assert proposal.token_ids == (30, 31, 32, 33)
    (proposal,) = drafter.propose([task([*text, 30, 31])])
    assert proposal.token_ids == (32, 33, 34, 35)
    (proposal,) = drafter.propose([task([*text, 30, 31, 200])])
    assert proposal == NO_DRAFTS
    own = [7, 8, 200] * 8
    drafter.start(1)
    (proposal,) = drafter.propose([task([*own, 7, 8], sequence_id=1)])
    assert proposal.token_ids[0] == 200  # its own text is surer


class TestEarlierAnswers:
    PROMPT = (50, 51, 52, 53)
    ANSWER = (*range(100, 112),)

    def answer(self, drafter: SuffixDrafter, sequence_id: int, tokens: Sequence[int]) -> Proposal:
        """One request that writes ``tokens``; returns its last proposal."""
        text = np.array([*self.PROMPT, *tokens], np.int32)
        drafter.start(sequence_id)
        drafter.observe([CommittedRows(sequence_id, 0, text[:4], None, prompt_length=4)])
        drafted = drafter.propose([task(text.tolist(), 9, sequence_id)])[0]
        drafter.end(sequence_id)
        return drafted

    def test_the_next_request_drafts_from_them(self, tmp_path: Path) -> None:
        cache = SuffixCache.open(tmp_path / "cache", VOCABULARY)
        drafter = SuffixDrafter(5, cache=cache)
        assert self.answer(drafter, 0, self.ANSWER) is NO_DRAFTS
        assert self.answer(drafter, 1, self.ANSWER[:9]).token_ids[:2] == (109, 110)
        # The answers alone were kept, and are found in the file.
        assert [one.tolist() for one in cache.answers] == [
            [*self.ANSWER],
            [*self.ANSWER[:9]],
        ]
        again = SuffixDrafter(5, cache=SuffixCache.open(tmp_path / "cache", VOCABULARY))
        assert self.answer(again, 0, self.ANSWER[:8]).token_ids[:2] == (108, 109)

    def test_another_cache_knows_nothing_of_them(self, tmp_path: Path) -> None:
        mine = SuffixDrafter(5, cache=SuffixCache.open(tmp_path / "mine", VOCABULARY))
        self.answer(mine, 0, self.ANSWER)
        yours = SuffixDrafter(5, cache=SuffixCache.open(tmp_path / "yours", VOCABULARY))
        assert self.answer(yours, 1, self.ANSWER[:9]) is NO_DRAFTS
        assert self.answer(SuffixDrafter(5), 1, self.ANSWER[:9]) is NO_DRAFTS

    def test_a_prompt_that_was_not_read_is_not_kept(self, tmp_path: Path) -> None:
        cache = SuffixCache.open(tmp_path / "cache", VOCABULARY)
        drafter = SuffixDrafter(5, cache=cache)
        drafter.start(0)
        drafter.end(0)
        assert cache.answers == ()
        assert not (tmp_path / "cache").exists()

    def test_a_sequence_outlives_a_rotation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(caching, "MAX_CACHE_TOKENS", 16)
        cache = SuffixCache.open(tmp_path / "cache", VOCABULARY)
        drafter = SuffixDrafter(5, cache=cache)
        drafter.start(9)
        drafter.observe([CommittedRows(9, 0, np.array(self.PROMPT), None, prompt_length=4)])
        text = [*self.PROMPT, *self.ANSWER[:3]]
        drafter.propose([task(text, 9, 9)])
        first = cache.automaton
        recent = range(200, 212)  # came when the first automaton was full
        for sequence_id, tokens in enumerate([self.ANSWER] * 4 + [recent]):
            self.answer(drafter, sequence_id, tokens)
        assert cache.automaton is not first
        text += recent[:8]
        assert drafter.propose([task(text, 9, 9)])[0].token_ids[:2] == (208, 209)
