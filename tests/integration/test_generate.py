"""From a GGUF file to text through the native core: sessions and engine on tiny models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.kv_cache import SequenceCache
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.target import TargetModel, load_target
from blockdraft.session import Session
from tests.tiny import ARCHITECTURES

TinyModel = Callable[..., Path]
PARAMS = SamplingParams(temperature=1.0, top_k=0, repeat_penalty=1.1, seed=11)
PROMPT = tuple(int(token) for token in np.random.default_rng(3).integers(5, 200, 90))


def tokens_of(engine: Engine, requests: list[Request]) -> list[list[int]]:
    tokens = {engine.add(request): list[int]() for request in requests}
    while engine.has_work:
        for event in engine.step():
            if event.token_id is not None:
                tokens[event.request_id].append(event.token_id)
    assert engine.used_cache_bytes == 0
    return list(tokens.values())


def engine_on(path: Path, *, max_rows: int = 64, num_threads: int = 1) -> Engine:
    target = load_target(path, num_threads=num_threads, max_rows=max_rows)
    return Engine(target, max_cache_bytes=1 << 26)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_chunks_neighbours_and_threads_do_not_change_tokens(
    tiny_model: TinyModel, arch: str
) -> None:
    path = tiny_model(arch)
    requests = [Request(PROMPT[: 90 - 20 * i], PARAMS, 12, choice=i) for i in range(4)]
    alone = [tokens_of(engine_on(path), [request])[0] for request in requests]
    assert len({tuple(tokens) for tokens in alone}) == 4
    for max_rows, num_threads in ((4, 1), (17, 2), (256, 2)):
        engine = engine_on(path, max_rows=max_rows, num_threads=num_threads)
        assert tokens_of(engine, requests) == alone


def forward_chain(target: TargetModel, cache: SequenceCache, tokens: list[int]) -> bytes:
    """Commit ``tokens`` in one pass; returns the bits of the last row's logits."""
    cache.reserve(len(tokens))
    rows = RowSlice(cache, np.array(tokens, np.int32), 1)
    logits = target.forward(BatchBuilder(target.max_rows).build([rows])).logits.tobytes()
    cache.commit(range(len(tokens)))
    return logits


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rollback_is_as_if_never_written(tiny_model: TinyModel, arch: str) -> None:
    target = load_target(tiny_model(arch), num_threads=1, max_rows=64)
    pool = target.new_cache_pool(1 << 24)
    straight, rolled = SequenceCache(pool), SequenceCache(pool)
    tokens = list(PROMPT[:60])
    forward_chain(target, straight, tokens)
    for start in range(0, 60, 20):
        forward_chain(target, rolled, tokens[start : start + 20])
        forward_chain(target, rolled, [7, 8, 9, 7, 8, 9, 7])
        rolled.rollback(start + 20)
    assert rolled.state_hash() == straight.state_hash()
    last = [forward_chain(target, cache, [33, 44]) for cache in (straight, rolled)]
    assert last[0] == last[1]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_score_equals_one_row_at_a_time(tiny_model: TinyModel, arch: str) -> None:
    path = tiny_model(arch)
    tokens = list(PROMPT[:70])
    expected = engine_on(path, max_rows=1).score(tokens)
    scores = engine_on(path, max_rows=32).score(tokens)
    assert scores.shape == (69,)
    assert (scores < 0).all()
    assert scores.tolist() == expected.tolist()


def test_session_generates_streams_and_batches_the_same(tiny_model: TinyModel) -> None:
    session = Session.load(tiny_model("llama"), num_threads=1)
    prompts = ["hello", "a b c", "x"]
    single = [
        session.generate(prompt, params=PARAMS, max_tokens=16, raw=True) for prompt in prompts
    ]
    batch = session.batch(prompts, params=PARAMS, max_tokens=16, raw=True)
    assert [result.token_ids for result in batch] == [result.token_ids for result in single]
    with session.stream(prompts[0], params=PARAMS, max_tokens=16, raw=True) as stream:
        text = "".join(chunk.text for chunk in stream)
    assert text == stream.result.text == single[0].text
    assert single[0].timings.predicted_tokens == len(single[0].token_ids)
    assert single[0].timings.ttft_s >= single[0].timings.prompt_s > 0


def test_greedy_ignores_the_seed(tiny_model: TinyModel) -> None:
    session = Session.load(tiny_model("qwen2"), num_threads=1)
    results = [
        session.generate("hi", params=SamplingParams(temperature=0), max_tokens=8, raw=True)
        for _ in range(2)
    ]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].seed != results[1].seed


def test_context_and_memory_limits_are_named(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    with pytest.raises(ConfigError, match="context length 1000000 is not in"):
        Session.load(path, num_threads=1, ctx_size=1000000)
    session = Session.load(path, num_threads=1, ctx_size=32)
    with pytest.raises(CapacityError, match="exceed the context of 32"):
        session.generate("hi", max_tokens=32, raw=True)
    small = Session.load(path, num_threads=1, max_cache_bytes=1)
    with pytest.raises(CapacityError, match="the budget is 1"):
        small.generate("hi", max_tokens=8, raw=True)
