"""A smaller model as drafter: invisible; always right where it is the target; what it remembers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.small import SmallModel, load_small
from blockdraft.models.target import TargetModel, load_target
from blockdraft.session.draft_picks import SampledDrafts
from blockdraft.speculative import NO_DRAFTS, AutoregressiveDrafter, DraftTask, Proposal
from blockdraft.weights.gguf import GGUFFile
from tests.rounds import assert_identical, histories

TinyModel = Callable[..., Path]

MAX_ROWS = 24  # prompts take several passes
NUM_TOKENS = 25


@dataclass
class Pair:
    """A target, a smaller model, and the target as its own drafter."""

    target: TargetModel
    small: SmallModel
    same: SmallModel


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def pair(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Pair:
    arch = request.param
    path = tiny_model(arch, "Q8_0")
    with (
        GGUFFile.open(path) as file,
        GGUFFile.open(tiny_model(arch, "Q4_0", seed=3)) as other,
    ):
        target = load_target(file, num_threads=1, max_rows=MAX_ROWS)
        return Pair(
            target,
            load_small(other, target, target_file=file),
            load_small(file, target, target_file=file),
        )


def request_of(seed: int, temperature: float, num_prompt: int, **options: float) -> Request:
    tokens = np.random.default_rng(seed).integers(5, 200, num_prompt)
    params = SamplingParams(temperature=temperature, seed=seed, **options)  # type: ignore[arg-type]
    return Request(tuple(tokens.tolist()), params, NUM_TOKENS)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_target_as_its_own_drafter_is_always_right(
    pair: Pair, temperature: float, penalty: float
) -> None:
    request = request_of(4, temperature, 30, repeat_penalty=penalty)
    plain = histories(pair.target, [request])[0]
    drafter = AutoregressiveDrafter(pair.same, 7, pick=SampledDrafts())
    found = histories(pair.target, [request], drafter)[0]
    assert_identical(found, plain)
    assert found.last is not None
    assert found.last.stats is not None
    stats = found.last.stats.speculation
    assert stats is not None
    assert stats.acceptance_rate == 1.0
    assert stats.num_rounds == -(-(NUM_TOKENS - 1) // 8)


class Watched(AutoregressiveDrafter):
    """Drafts in some rounds only, and checks the K/V after every round."""

    def __init__(self, model: SmallModel, num_drafts: int, seed: int) -> None:
        super().__init__(model, num_drafts, pick=SampledDrafts())
        self.model = model
        self.num_checked = 0
        self._random = Random(seed)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        drafting = [self._random.random() < 0.6 for _ in tasks]
        some = [task for task, is_drafting in zip(tasks, drafting, strict=True) if is_drafting]
        found = iter(super().propose(some) if some else ())
        for task in tasks:
            self._check(task)
        return [next(found) if is_drafting else NO_DRAFTS for is_drafting in drafting]

    def _check(self, task: DraftTask) -> None:
        """K/V are those of the tokens so far, read in one go."""
        assert task.cache is not None
        length = task.cache.length
        assert length <= len(task.token_ids)
        if not length:
            return
        straight = SequenceCache(KVPool(self.cache_layout, 64 << 20))
        for start in range(0, length, MAX_ROWS):
            rows = task.token_ids[start : min(length, start + MAX_ROWS)]
            straight.reserve(len(rows))
            self.model.run(BatchBuilder(MAX_ROWS).build([RowSlice(straight, rows, 0)]))
            straight.commit(range(len(rows)))
        assert task.cache.state_hash() == straight.state_hash()
        self.num_checked += 1


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    prompts=st.lists(st.integers(1, 70), min_size=1, max_size=2),
    temperature=st.sampled_from([0.0, 0.8]),
    num_drafts=st.integers(1, 12),
    is_same=st.booleans(),
    seed=st.integers(0, 999),
)
def test_its_state_is_that_of_verified_tokens(
    pair: Pair,
    prompts: list[int],
    temperature: float,
    num_drafts: int,
    is_same: bool,
    seed: int,
) -> None:
    """Any rounds, drafted or not; both models never agree or always do."""
    requests = [request_of(seed + i, temperature, size) for i, size in enumerate(prompts)]
    plain = [histories(pair.target, [request])[0] for request in requests]
    drafter = Watched(pair.same if is_same else pair.small, num_drafts, seed)
    for found, alone in zip(histories(pair.target, requests, drafter), plain, strict=True):
        assert_identical(found, alone)
    assert drafter.num_checked > 0


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "roll back", "release"]), st.integers(0, 30)),
    min_size=1,
    max_size=8,
)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=OPERATIONS, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))
def test_drafts_are_those_of_a_new_cache_whatever_was_before(
    pair: Pair, operations: list[tuple[str, int]], temperature: float, seed: int
) -> None:
    drafter = AutoregressiveDrafter(pair.small, 4, pick=SampledDrafts())
    rng, params = np.random.default_rng(seed), SamplingParams(temperature=temperature, seed=seed)

    def propose(tokens: list[int], cache: SequenceCache) -> Proposal:
        task = DraftTask(0, np.array(tokens, np.int32), 9, params, 0, cache)
        return drafter.propose([task])[0]

    pool = KVPool(drafter.cache_layout, 64 << 20)
    tokens, cache = [3], SequenceCache(pool)
    for kind, count in operations:
        if kind == "write":
            tokens += rng.integers(0, 200, count).tolist()
        elif kind == "roll back":
            del tokens[max(1, len(tokens) - count) :]
            cache.rollback(min(cache.length, len(tokens)))
        else:
            cache.release()
        assert propose(tokens, cache) == propose(tokens, SequenceCache(pool))
        assert cache.length == len(tokens)


def test_rows_of_rejected_drafts_are_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: K/V of drafts stay."""
    original = SequenceCache.rollback

    def keeps_one(cache: SequenceCache, length: int) -> None:
        original(cache, min(cache.length, length + 1))

    monkeypatch.setattr(SequenceCache, "rollback", keeps_one)
    with pytest.raises(AssertionError):
        histories(pair.target, [request_of(1, 0.0, 30)], Watched(pair.small, 4, seed=1))
