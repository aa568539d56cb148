"""64 requests at once, each of its own kind, get what each gets alone.

Together they draft, find each other's prefixes, wait for memory, are sent back and read beside
decoding; alone there is neither drafter nor cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine import scheduler
from blockdraft.session import Result, Session
from blockdraft.session.settings import AnswerSettings
from tests.native_dflash import COINS, network

NUM_REQUESTS = 64
CTX_SIZE = 512


class EveryOther:
    """Allows even tokens, then odd ones, in turn."""

    def __call__(self, output: NDArray[np.int32]) -> NDArray[np.uint32]:
        bits = 0x55555555 if len(output) % 2 else 0xAAAAAAAA
        return np.full(10, bits, np.uint32)


def mixed_requests(seed: int) -> list[tuple[list[int], AnswerSettings]]:
    """Prompts with common beginnings, some with the same text, and settings of all kinds."""
    random = Random(seed)
    begins = [[random.randrange(3, 250) for _ in range(200)] for _ in range(3)]
    found = []
    for place in range(NUM_REQUESTS):
        own = [random.randrange(3, 250) for _ in range(random.randint(1, 30))]
        token_ids = random.choice(begins)[: random.choice([0, 70, 130, 200])] + own
        params = SamplingParams(
            temperature=random.choice([0.0, 0.7, 1.0, 3.0]),
            top_k=random.choice([0, 5, 40]),
            top_p=random.choice([0.7, 1.0]),
            min_p=random.choice([0.0, 0.05]),
            repeat_penalty=random.choice([1.0, 1.2]),
            frequency_penalty=random.choice([0.0, 1.0]),
            repeat_last_n=random.choice([3, 64, -1]),
            seed=random.choice([place, 7]),
            logit_bias=random.choice([(), tuple((coin, 80.0) for coin in COINS)]),
        )
        settings = AnswerSettings(
            params,
            max_tokens=random.randint(1, 60),
            stop=random.choice([(), ("th", "e\n"), ("\x00",)]),
            choice=random.randint(0, 2),
            draft=random.random() < 0.85,
            draft_n_max=random.choice([None, 1, 3]),
            num_logprobs=random.choice([None, None, 0, 4]),
            token_rule=random.choice([None, None, None, EveryOther()]),
        )
        found.append((token_ids, settings))
    return found


def answers(
    session: Session, requests: Sequence[tuple[list[int], AnswerSettings]]
) -> list[tuple[Result, list[object]]]:
    """Results and log-probabilities of requests that run together."""
    streams = [session.start(token_ids, settings) for token_ids, settings in requests]
    logprobs: list[list[object]] = [[] for _ in streams]
    while not all(stream.has_ended for stream in streams):
        session.advance()
        for found, stream in zip(logprobs, streams, strict=True):
            found += [each for chunk in stream.drain() for each in chunk.logprobs]
    return [(stream.result, found) for stream, found in zip(streams, logprobs, strict=True)]


def test_each_gets_what_it_gets_alone(
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "GROWTH", 8)
    path = tiny_model("llama", "Q8_0", layers=5)
    drafter = network(has_coin_head=True, block_size=8).write_folder(tmp_path)
    drafting = DraftConfig("dflash", str(drafter), policy="fixed")
    together, alone = (
        Session.load(path, num_threads=1, ctx_size=CTX_SIZE, drafting=each, max_cache_bytes=2 << 20)
        for each in (drafting, DraftConfig("none"))
    )
    together.engine.keep_prefixes(1 << 20)
    requests = mixed_requests(seed=6)
    found = answers(together, requests)
    cached = 0
    for (result, logprobs), request in zip(found, requests, strict=True):
        ((expected, its_logprobs),) = answers(alone, [request])
        assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
        assert result.finish_reason == expected.finish_reason
        assert logprobs == its_logprobs
        cached += result.timings.cached_tokens
    assert cached > 10 * 64
    stats = [result.stats for result, _ in found if result.stats is not None]
    assert sum(each.num_accepted for each in stats) > 5
    assert together.engine.used_cache_bytes == together.engine.kept_cache_bytes


def test_choices_differ_and_come_again(tiny_model: Callable[..., Path]) -> None:
    session = Session.load(
        tiny_model("llama", "Q8_0", layers=5), ctx_size=CTX_SIZE, drafting=DraftConfig("ngram")
    )
    session.engine.keep_prefixes(1 << 20)
    settings = AnswerSettings(SamplingParams(temperature=1.0, seed=3), max_tokens=12)
    requests = [([9] * 150, replace(settings, choice=choice)) for choice in range(6)]
    first, again = (
        [result.token_ids for result, _ in answers(session, requests)] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == 6
