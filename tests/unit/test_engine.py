from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request, TokenEvent
from blockdraft.engine.sampling import prepare_sampling
from blockdraft.errors import BlockdraftError, CapacityError, ConfigError
from blockdraft.ops.batch import Batch, PassResult
from tests.fake_target import VOCAB_SIZE, FakeSampler, FakeTarget, fake_config

PARAMS = SamplingParams(seed=7)
REQUEST = Request((1, 2, 3), PARAMS, max_tokens=8)
BUDGET = 1 << 24


def engine_of(target: FakeTarget | None = None, *, max_cache_bytes: int = BUDGET) -> Engine:
    return Engine(target or FakeTarget(), max_cache_bytes=max_cache_bytes, sampler=FakeSampler())


def run_all(engine: Engine) -> list[TokenEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def output_of(events: list[TokenEvent], request_id: int) -> list[int]:
    mine = [event for event in events if event.request_id == request_id]
    assert [event.finish_reason is not None for event in mine[:-1]] == [False] * (len(mine) - 1)
    assert mine[-1].finish_reason is not None
    return [event.token_id for event in mine if event.token_id is not None]


def alone(request: Request) -> list[int]:
    engine = engine_of()
    request_id = engine.add(request)
    return output_of(run_all(engine), request_id)


def test_length_ends_a_request() -> None:
    engine = engine_of()
    engine.add(REQUEST)
    events = run_all(engine)
    assert [event.finish_reason for event in events] == [None] * 7 + ["length"]
    assert engine.used_cache_bytes == 0


def test_stop_token_ends_a_request_and_is_not_written() -> None:
    written = alone(REQUEST)
    engine = engine_of()
    engine.add(replace(REQUEST, stop_token_ids=frozenset({written[3]})))
    events = run_all(engine)
    assert [event.token_id for event in events] == [*written[: written.index(written[3])], None]
    assert events[-1].finish_reason == "stop"
    assert events[-1].stats is not None
    assert events[-1].stats.predicted_tokens == written.index(written[3])


@pytest.mark.parametrize("max_rows", [1, 2, 7, 64])
def test_prompt_chunks_do_not_change_the_output(max_rows: int) -> None:
    request = replace(REQUEST, token_ids=tuple(i % VOCAB_SIZE for i in range(150)))
    target = FakeTarget(max_rows=max_rows)
    engine = engine_of(target)
    request_id = engine.add(request)
    assert output_of(run_all(engine), request_id) == alone(request)
    assert max(target.pass_rows) == min(max_rows, 150)


def test_neighbours_do_not_change_the_output() -> None:
    requests = [
        Request(tuple(range(1, 2 + 9 * i)), replace(PARAMS, seed=i), max_tokens=5 + i)
        for i in range(5)
    ]
    engine = engine_of()
    ids = [engine.add(request) for request in requests]
    events = run_all(engine)
    assert [output_of(events, i) for i in ids] == [alone(request) for request in requests]


def test_output_depends_on_seed_and_choice() -> None:
    outputs = {
        tuple(alone(replace(REQUEST, params=replace(PARAMS, seed=seed), choice=choice)))
        for seed in (1, 2)
        for choice in (0, 1)
    }
    assert len(outputs) == 4


def test_decoding_goes_on_while_a_long_prompt_is_read() -> None:
    target = FakeTarget(max_rows=8)
    engine = engine_of(target)
    first = engine.add(replace(REQUEST, max_tokens=12))
    engine.step()
    engine.add(replace(REQUEST, token_ids=(5,) * 40))
    for _ in range(5):
        assert [event.request_id for event in engine.step()] == [first]
    assert target.pass_rows[1] == 1  # shows what decoding costs alone
    assert min(target.pass_rows[2:]) > 1


def test_short_rest_of_a_prompt_shares_the_pass_with_the_next() -> None:
    target = FakeTarget(max_rows=8)
    engine = engine_of(target)
    engine.add(replace(REQUEST, token_ids=(5,) * 10))
    engine.add(replace(REQUEST, token_ids=(6,) * 5))
    assert engine.step() == []
    assert [event.request_id for event in engine.step()] == [0, 1]
    assert target.pass_rows == [8, 7]


def test_requests_wait_for_memory_in_order() -> None:
    target = FakeTarget()
    needed = target.layout.max_bytes(11, rows_per_pass=16)
    engine = engine_of(target, max_cache_bytes=2 * needed)
    ids = [engine.add(REQUEST) for _ in range(5)]
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 3)
    events = run_all(engine)
    ends = [event.request_id for event in events if event.finish_reason]
    assert ends == ids


def test_max_running_limits_admission() -> None:
    engine = Engine(FakeTarget(), max_cache_bytes=BUDGET, max_running=2, sampler=FakeSampler())
    for _ in range(3):
        engine.add(REQUEST)
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 1)


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["waiting", "prefilling", "decoding"])
def test_cancel_frees_at_once(num_steps: int) -> None:
    engine = engine_of()
    request_id = engine.add(replace(REQUEST, token_ids=(4,) * 20))
    for _ in range(num_steps):
        engine.step()
    stats = engine.cancel(request_id)
    assert (engine.has_work, engine.used_cache_bytes) == (False, 0)
    assert (stats.prompt_tokens, stats.predicted_tokens) == (20, max(0, num_steps - 1))
    with pytest.raises(KeyError):
        engine.cancel(request_id)


def test_cancel_leaves_the_others_alone() -> None:
    engine = engine_of()
    gone, kept = engine.add(REQUEST), engine.add(replace(REQUEST, max_tokens=6))
    events = engine.step()
    engine.cancel(gone)
    events += run_all(engine)
    assert output_of(events, kept) == alone(replace(REQUEST, max_tokens=6))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (replace(REQUEST, token_ids=()), ConfigError, "prompt is empty"),
        (replace(REQUEST, token_ids=(1, 48)), ConfigError, "id 48 is not in the vocabulary of 48"),
        (replace(REQUEST, token_ids=(-1,)), ConfigError, "id -1 is not in the vocabulary of 48"),
        (replace(REQUEST, max_tokens=0), ConfigError, "max_tokens is 0"),
        (replace(REQUEST, max_tokens=510), CapacityError, "3 prompt tokens and 510 more .* 512"),
        (replace(REQUEST, params=SamplingParams()), ConfigError, "needs a seed"),
        (
            replace(REQUEST, params=SamplingParams(seed=1, logit_bias=((48, 1.0),))),
            ConfigError,
            "names token 48 of 48",
        ),
    ],
    ids=["empty", "id-high", "id-low", "no-tokens", "context", "seed", "bias"],
)
def test_impossible_requests_are_refused(
    request_: Request, error: type[BlockdraftError], message: str
) -> None:
    engine = engine_of()
    with pytest.raises(error, match=message):
        engine.add(request_)
    assert not engine.has_work


def test_request_larger_than_all_memory_is_refused_with_numbers() -> None:
    layout = FakeTarget().layout
    budget = layout.max_bytes(64, rows_per_pass=16)
    needed = layout.max_bytes(65, rows_per_pass=16)
    engine = engine_of(max_cache_bytes=budget)
    with pytest.raises(
        CapacityError, match=rf"65 tokens need {needed} bytes .* budget is {budget}"
    ):
        engine.add(replace(REQUEST, max_tokens=62))


@pytest.mark.parametrize("context_length", [0, 513])
def test_context_beyond_the_models_is_refused(context_length: int) -> None:
    with pytest.raises(ConfigError, match=f"context length {context_length} is not in"):
        Engine(FakeTarget(), max_cache_bytes=BUDGET, context_length=context_length)


def test_max_running_beyond_the_rows_of_a_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_running is 17"):
        Engine(FakeTarget(), max_cache_bytes=BUDGET, max_running=17)


def test_step_without_work_gives_nothing() -> None:
    assert engine_of().step() == []


class TimedTarget(FakeTarget):
    """A pass takes a second."""

    now_s = 0.0

    def forward(self, batch: Batch) -> PassResult:
        self.now_s += 1.0
        return super().forward(batch)


def test_stats_measure_waiting_prompt_and_decoding() -> None:
    target = TimedTarget()
    engine = Engine(
        target, max_cache_bytes=BUDGET, sampler=FakeSampler(), clock=lambda: target.now_s
    )
    engine.add(replace(REQUEST, max_tokens=4))
    target.now_s += 5.0
    stats = run_all(engine)[-1].stats
    assert stats is not None
    assert (stats.ttft_s, stats.prompt_s, stats.predicted_s) == (6.0, 1.0, 3.0)
    assert (stats.prompt_tokens, stats.predicted_tokens, stats.tokens_per_s) == (3, 4, 1.0)
    assert stats.speculation is None


def test_penalties_see_the_last_tokens_of_prompt_and_output() -> None:
    seen: list[list[int]] = []

    class Spy(FakeSampler):
        def pick(self, logits: object, rows: object) -> list[int]:
            seen.append(rows[0].recent.tolist())  # type: ignore[index]
            return [9]

    params = SamplingParams(seed=1, repeat_penalty=1.1, repeat_last_n=3)
    engine = Engine(FakeTarget(), max_cache_bytes=BUDGET, sampler=Spy())
    engine.add(Request((1, 2, 3, 4), params, max_tokens=3))
    run_all(engine)
    assert seen == [[2, 3, 4], [3, 4, 9], [4, 9, 9]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(seed=1), []),
        (SamplingParams(seed=1, presence_penalty=0.5, repeat_last_n=0), []),
        (SamplingParams(seed=1, frequency_penalty=0.5, repeat_last_n=-1), [0, 1, 2, 3, 4]),
    ],
    ids=["no-penalty", "none", "all"],
)
def test_penalty_window_sizes(params: SamplingParams, expected: list[int]) -> None:
    recent = prepare_sampling(params, 0).recent(np.arange(5, dtype=np.int32))
    assert recent.tolist() == expected


class RecordingTarget(FakeTarget):
    logits: list[NDArray[np.float32]]

    def forward(self, batch: Batch) -> PassResult:
        result = super().forward(batch)
        self.logits = [*getattr(self, "logits", []), result.logits]
        return result


@pytest.mark.parametrize("max_rows", [1, 16, 128])
def test_score_is_the_log_softmax_of_what_follows(max_rows: int) -> None:
    token_ids = [i * 5 % VOCAB_SIZE for i in range(90)]
    target = RecordingTarget(max_rows=max_rows)
    scores = engine_of(target).score(token_ids)
    logits = np.concatenate(target.logits).astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert probs.shape == (89, VOCAB_SIZE)
    expected = np.log(probs[np.arange(89), token_ids[1:]])
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_score_of_one_token_is_empty() -> None:
    assert engine_of().score([3]).shape == (0,)


def test_score_respects_memory_promised_to_others() -> None:
    target = FakeTarget()
    engine = engine_of(target, max_cache_bytes=target.layout.max_bytes(11, rows_per_pass=16))
    engine.add(REQUEST)
    engine.step()
    with pytest.raises(CapacityError, match=r"scoring 2 tokens needs .* 0 are free"):
        engine.score([1, 2])


def test_full_attention_only_targets_work() -> None:
    config = fake_config(windowed_layers=(False, False))
    engine = engine_of(FakeTarget(config))
    request_id = engine.add(replace(REQUEST, token_ids=(3,) * 100))
    assert len(output_of(run_all(engine), request_id)) == 8
