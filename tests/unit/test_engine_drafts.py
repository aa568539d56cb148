"""Rounds in the engine: how many drafts, who is told what, and memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine import Engine, Request
from blockdraft.engine.sequence import Gain, features_of, kept_rows
from blockdraft.errors import ConfigError
from blockdraft.ops.batch import PassResult
from blockdraft.speculative import CommittedRows, DraftTask, Proposal
from tests.fake_target import FakeSampler, FakeTarget

PARAMS = SamplingParams(seed=7)
REQUEST = Request((1, 2, 3), PARAMS, max_tokens=8)


class Recorder:
    """Drafts as much as it may; keeps what it was asked and told."""

    type_name = "recorder"
    cache_layout = None

    def __init__(self, num_drafts: int) -> None:
        self.block_size = num_drafts + 1
        self.asked: list[dict[int, int]] = []
        self.seen: dict[int, list[int]] = {}
        self.ended: list[int] = []

    def start(self, sequence_id: int) -> None:
        self.seen[sequence_id] = []

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        self.asked.append({task.sequence_id: task.max_drafts for task in tasks})
        return [Proposal.chain([0] * task.max_drafts) for task in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        for part in rows:
            assert part.start == len(self.seen[part.sequence_id])
            self.seen[part.sequence_id] += part.token_ids.tolist()

    def end(self, sequence_id: int) -> None:
        self.ended.append(sequence_id)


def run(
    drafter: Recorder, requests: Sequence[Request], *, max_rows: int = 64, budget: int = 1 << 24
) -> FakeTarget:
    target = FakeTarget(max_rows=max_rows)
    engine = Engine(target, max_cache_bytes=budget, sampler=FakeSampler(), drafter=drafter)
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
        assert engine.used_cache_bytes <= budget
    assert engine.used_cache_bytes == 0
    return target


def test_drafts_never_exceed_what_is_left_to_write() -> None:
    drafter = Recorder(5)
    run(drafter, [REQUEST])
    assert [asked[0] for asked in drafter.asked] == [5, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("num_sequences", "expected"), [(1, 7), (2, 7), (3, 4), (8, 1), (16, None)]
)
def test_sequences_share_the_rows_that_pay(num_sequences: int, expected: int | None) -> None:
    drafter = Recorder(7)
    requests = [replace(REQUEST, max_tokens=20)] * num_sequences
    run(drafter, requests)
    first = drafter.asked[0] if drafter.asked and len(drafter.asked[0]) == num_sequences else {}
    assert set(first.values()) == (set() if expected is None else {expected})


def test_a_long_block_is_not_cut_for_one_sequence() -> None:
    drafter = Recorder(31)
    run(drafter, [replace(REQUEST, max_tokens=60)])
    assert drafter.asked[0] == {0: 31}


@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_drafts_fit_the_rows_of_a_pass(max_rows: int) -> None:
    drafter = Recorder(7)
    target = run(drafter, [replace(REQUEST, max_tokens=20)], max_rows=max_rows)
    assert max(target.pass_rows) == max_rows
    assert all(asked[0] <= max_rows - 1 for asked in drafter.asked)


def test_prompts_are_read_beside_drafts() -> None:
    drafter = Recorder(7)
    requests = [replace(REQUEST, max_tokens=30), replace(REQUEST, token_ids=(5,) * 40)]
    target = FakeTarget(max_rows=8)
    engine = Engine(target, max_cache_bytes=1 << 24, sampler=FakeSampler(), drafter=drafter)
    engine.add(requests[0])
    engine.step()
    engine.add(requests[1])
    for _ in range(12):
        engine.step()
    assert drafter.asked[0] == {0: 3}  # half of the seven rows beside the anchor
    assert drafter.seen[1][:40] == [5] * 40


def test_drafter_sees_every_committed_token_once_and_each_end() -> None:
    drafter = Recorder(3)
    requests = [REQUEST, replace(REQUEST, token_ids=(4,) * 30, max_tokens=20)]
    run(drafter, requests, max_rows=16)
    assert drafter.seen[0][:3] == [1, 2, 3]
    assert drafter.seen[1][:30] == [4] * 30
    assert sorted(drafter.ended) == [0, 1]


def test_cancelled_requests_end_at_the_drafter() -> None:
    drafter = Recorder(3)
    engine = Engine(
        FakeTarget(), max_cache_bytes=1 << 24, sampler=FakeSampler(), drafter=drafter, max_running=1
    )
    ids = [engine.add(REQUEST) for _ in range(2)]
    engine.step()
    for request_id in ids:
        engine.cancel(request_id)
    assert drafter.ended == ids


def test_a_request_that_fits_plainly_fits_with_drafts() -> None:
    target = FakeTarget(max_rows=64)
    request = replace(REQUEST, token_ids=(3,) * 60, max_tokens=68)  # its end is a page's end
    budget = target.layout.max_bytes(128, rows_per_pass=64)
    run(Recorder(31), [request], budget=budget)


def test_gathered_rows() -> None:
    assert kept_rows(5, None) == range(5)
    assert kept_rows(3, Gain((9,), (0,), 0, None)) == range(3)
    assert kept_rows(1, Gain((9, 8), (0, 1), 1, None)) == range(2)
    assert kept_rows(1, Gain((9, 8, 7), (0, 2, 5), 2, None)) == [0, 2, 5]


def test_features_are_those_of_the_rows_that_stay() -> None:
    logits: NDArray[np.float32] = np.zeros((1, 1), np.float32)
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    result = PassResult(logits, features)
    chain, tree = features_of(result, 2, range(3)), features_of(result, 1, [0, 2, 3])
    assert chain is not None
    assert tree is not None
    assert chain.tolist() == features[2:5].tolist()
    assert tree.tolist() == features[[1, 3, 4]].tolist()
    assert features_of(PassResult(logits), 0, range(2)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spec_type": "ngram", "draft_tree": 5}, "draft_tree is 5, but spec_type is ngram"),
        ({"policy": "fixed", "trace": "t"}, "trace is t, but policy is fixed"),
        ({"spec_type": "none", "trace": "t"}, "trace is t, but spec_type is none"),
        ({"spec_type": "eagle"}, "eagle; it must be one of none, ngram, suffix, dflash"),
        ({"draft_n_max": 0}, "draft_n_max is 0"),
        ({"draft_n_max": 64}, r"draft_n_max is 64; it must be in \[1, 63\]"),
        ({"spec_type": "ngram", "drafter": "d.gguf"}, "ngram, which does not use the drafter d.g"),
        ({"spec_type": "suffix", "drafter": "d.gguf"}, "suffix, which does not use the drafter d"),
        (
            {"suffix_cache": "f", "policy": "fixed"},
            "suffix_cache is f, but spec_type is not given; only suffix",
        ),
        ({"drafter": "d.gguf", "draft_p_min": 1.5}, r"draft_p_min is 1.5; it must be in \[0, 1\]"),
        ({"spec_type": "ngram", "draft_p_min": 0.5}, "is 0.5, but drafts of ngram have no prob"),
        ({"spec_type": ""}, "spec_type is ; it must be one of none, ngram, suffix, dflash"),
        ({"spec_type": "ngram,eagle,owl"}, "spec_type is eagle,owl; it must be one of none"),
        ({"spec_type": "ngram,none"}, "is ngram,none; it must be none alone, or some others"),
        ({"spec_type": "ngram,suffix,ngram"}, "ngram,suffix,ngram; it must be without repet"),
        ({"spec_type": "ngram,suffix", "drafter": "d"}, "which does not use the drafter d"),
        ({"spec_type": "ngram,suffix", "policy": "fixed"}, "takes one spec_type, .* ngram,suffix"),
        ({"policy": "slow"}, "policy is slow; it must be auto or fixed"),
        ({"draft_tree": -1}, r"draft_tree is -1; it must be in \[0, 63\]"),
        ({"draft_tree": 64}, r"draft_tree is 64; it must be in \[0, 63\]"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftConfig(**settings)
