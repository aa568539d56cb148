"""Drafting is invisible: tokens, K/V and logits are those of plain decoding, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.models.target import TargetModel, load_target
from blockdraft.speculative import Drafter, NgramDrafter, SuffixDrafter
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.marks import with_slow
from tests.rounds import History, assert_identical, histories

TinyModel = Callable[..., Path]

# A window of 8 passes by inside a block; pages end inside blocks in both.
MODELS = {"llama": "Q4_0", "gemma3": "Q8_0"}
TEMPERATURES = (0.0, 0.7, 1.0)
BLOCKS = (1, 3, 7, 15)
LOOKED_UP = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
NAMES = [*DRAFTERS, *LOOKED_UP]
NUM_TOKENS = 36


class Plain:
    """Models and what plain decoding gives on them, each made once."""

    def __init__(self, tiny_model: TinyModel) -> None:
        self._tiny_model = tiny_model
        self._targets: dict[str, TargetModel] = {}
        self._histories: dict[tuple[str, Request], History] = {}

    def target(self, arch: str) -> TargetModel:
        if arch not in self._targets:
            path = self._tiny_model(arch, MODELS[arch])
            self._targets[arch] = load_target(path, num_threads=1, max_rows=64)
        return self._targets[arch]

    def history(self, arch: str, request: Request) -> History:
        if (arch, request) not in self._histories:
            self._histories[arch, request] = histories(self.target(arch), [request])[0]
        return self._histories[arch, request]

    def drafter(
        self, name: str, num_drafts: int, arch: str, requests: list[Request], *, seed: int = 0
    ) -> Drafter:
        if name in LOOKED_UP:
            return LOOKED_UP[name](num_drafts)
        answers = [self.history(arch, request).token_ids for request in requests]
        vocab_size = self.target(arch).config.vocab_size
        return ScriptedDrafter(
            DRAFTERS[name], num_drafts, answers, vocab_size=vocab_size, seed=seed
        )

    def drafted(
        self, name: str, num_drafts: int, arch: str, requests: list[Request], *, seed: int = 0
    ) -> list[History]:
        drafter = self.drafter(name, num_drafts, arch, requests, seed=seed)
        found = histories(self.target(arch), requests, drafter)
        if isinstance(drafter, ScriptedDrafter):
            assert not drafter.open_ids
        return found


@pytest.fixture(scope="module")
def plain(tiny_model: TinyModel) -> Plain:
    return Plain(tiny_model)


def request_of(temperature: float, *, seed: int = 0, num_prompt: int = 40) -> Request:
    tokens = np.random.default_rng(seed).integers(5, 200, num_prompt)
    params = SamplingParams(temperature=temperature, top_k=0, min_p=0.0, top_p=1.0, seed=seed)
    return Request(tuple(tokens.tolist()), params, NUM_TOKENS)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("num_drafts", with_slow(BLOCKS, {3, 15}))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", MODELS)
def test_every_drafter_block_and_temperature(
    plain: Plain, arch: str, name: str, num_drafts: int, temperature: float
) -> None:
    request = request_of(temperature, seed=num_drafts)
    found = plain.drafted(name, num_drafts, arch, [request])[0]
    assert_identical(found, plain.history(arch, request))
    assert found.last is not None
    assert found.last.stats is not None
    stats = found.last.stats.speculation
    assert stats is not None
    assert stats.num_rounds == found.num_passes - 1
    assert stats.num_tokens == NUM_TOKENS - 1
    if name == "oracle":
        assert stats.num_rounds == -(-(NUM_TOKENS - 1) // (num_drafts + 1))
        assert stats.acceptance_rate == 1.0
    if name == "adversary":
        assert (stats.num_accepted, stats.mean_acceptance_length) == (0, 1.0)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 5, 40]),
    top_p=st.sampled_from([0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    repeat_last_n=st.sampled_from([0, 3, 64, -1]),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.sampled_from([(), ((7, 4.0), (9, -3.0))]),
)
REQUESTS = st.builds(
    Request,
    # Few different tokens, so that n-grams repeat.
    st.lists(st.integers(0, 20), min_size=1, max_size=80).map(tuple),
    PARAMS,
    st.integers(1, 24),
    choice=st.integers(0, 2),
)


@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    arch=st.sampled_from([*MODELS]),
    name=st.sampled_from(NAMES),
    num_drafts=st.integers(1, 20),
    requests=st.lists(REQUESTS, min_size=1, max_size=3),
    stop_at=st.integers(0, 24),
    seed=st.integers(0, 99),
)
def test_any_requests_together(
    plain: Plain,
    arch: str,
    name: str,
    num_drafts: int,
    requests: list[Request],
    stop_at: int,
    seed: int,
) -> None:
    """Prompts, parameters, accept patterns, neighbours; the first request meets a stop token."""
    first = requests[0]
    written = plain.history(arch, first).output
    if stop_at < len(written):
        stops = frozenset({written[stop_at]})
        requests = [
            Request(first.token_ids, first.params, first.max_tokens, stops, first.choice),
            *requests[1:],
        ]
    found = plain.drafted(name, num_drafts, arch, requests, seed=seed)
    for history, request in zip(found, requests, strict=True):
        assert_identical(history, plain.history(arch, request))


@pytest.mark.parametrize("max_tokens", range(1, 11))
def test_the_limit_falls_anywhere_in_a_block(plain: Plain, max_tokens: int) -> None:
    tokens = request_of(1.0).token_ids
    request = Request(tokens, SamplingParams(temperature=1.0, seed=3), max_tokens)
    found = plain.drafted("oracle", 7, "llama", [request])[0]
    assert_identical(found, plain.history("llama", request))
    assert found.events[-1][1] == "length"


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("kind", ["id", "rule"])
def test_the_stop_falls_anywhere_in_a_block(plain: Plain, kind: str, place: int) -> None:
    request = request_of(1.0)
    stop = plain.history("llama", request).output[place]
    place = plain.history("llama", request).output.index(stop)
    ids = frozenset({stop}) if kind == "id" else frozenset[int]()
    rule = None if kind == "id" else stop.__eq__
    request = Request(request.token_ids, request.params, NUM_TOKENS, ids, stop_rule=rule)
    alone = plain.history("llama", request)
    # The drafter knows what would have come after the stop.
    answers = [plain.history("llama", request_of(1.0)).token_ids]
    drafter = ScriptedDrafter(DRAFTERS["oracle"], 7, answers, vocab_size=299)
    found = histories(plain.target("llama"), [request], drafter)[0]
    assert_identical(found, alone)
    assert found.last is not None
    assert found.last.finish_reason == "stop"
    assert found.last.stats is not None
    assert found.last.stats.predicted_tokens == place + (kind == "rule")
    assert found.last.stats.speculation is not None
    assert found.last.stats.speculation.num_tokens == place


def test_a_request_may_decline_drafts(plain: Plain) -> None:
    request = request_of(1.0)
    declined = Request(request.token_ids, request.params, NUM_TOKENS, draft=False)
    drafter = plain.drafter("oracle", 7, "llama", [request, declined])
    found = histories(plain.target("llama"), [request, declined], drafter)
    for history in found:
        assert_identical(history, plain.history("llama", request))
    assert found[1].num_passes == NUM_TOKENS
    assert found[1].last is not None
    assert found[1].last.stats is not None
    assert found[1].last.stats.speculation is None
