"""Rules of a request in the engine: masks along accepted drafts, faults, log-probabilities."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request, TokenEvent
from blockdraft.engine.logprobs import log_softmax, token_logprobs
from blockdraft.errors import ConfigError
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.fake_target import VOCAB_SIZE, FakeTarget

PARAMS = SamplingParams(seed=7, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
REQUEST = Request((1, 2, 3), PARAMS, max_tokens=24)


class Alternating:
    """Allows even ids after an even number of tokens, odd ids after an odd one.

    Attributes:
        seen: Every output that it was asked about.
    """

    def __init__(self, *, fails_at: int | None = None, empty_at: int | None = None) -> None:
        self.seen: list[list[int]] = []
        self._fails_at = fails_at
        self._empty_at = empty_at

    def __call__(self, output: NDArray[np.int32]) -> NDArray[np.uint32]:
        if self.seen:  # the protocol's promise
            assert output[: len(self.seen[-1])].tolist() == self.seen[-1]
        self.seen.append(output.tolist())
        if len(output) == self._fails_at:
            raise RuntimeError("a rule failed")
        word = 0x55555555 << len(output) % 2
        allowed = np.full(-(-VOCAB_SIZE // 32), word, np.uint32)
        return np.zeros_like(allowed) if len(output) == self._empty_at else allowed


def run(
    requests: Sequence[Request], drafter: ScriptedDrafter | None = None
) -> dict[int, list[TokenEvent]]:
    engine = Engine(FakeTarget(max_rows=64), max_cache_bytes=1 << 24, drafter=drafter)
    events: dict[int, list[TokenEvent]] = {engine.add(request): [] for request in requests}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
    assert engine.used_cache_bytes == 0
    return events


def drafter_of(name: str, requests: Sequence[Request], num_drafts: int = 7) -> ScriptedDrafter:
    plain = run(requests)
    answers = [
        [*request.token_ids, *(event.token_id or 0 for event in plain[i])]
        for i, request in enumerate(requests)
    ]
    return ScriptedDrafter(DRAFTERS[name], num_drafts, answers, vocab_size=VOCAB_SIZE)


def tokens(events: Sequence[TokenEvent]) -> list[int | None]:
    return [event.token_id for event in events]


def masked(**options: int) -> Request:
    return replace(REQUEST, token_rule=Alternating(**options))


def test_only_allowed_tokens_come() -> None:
    found = tokens(run([masked()])[0])
    assert [token % 2 for token in found if token is not None] == [0, 1] * 12
    assert found != tokens(run([REQUEST])[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", DRAFTERS)
def test_masks_follow_the_accepted_path(name: str, temperature: float) -> None:
    def request() -> Request:
        return replace(masked(), params=replace(PARAMS, temperature=temperature))

    plain = run([request()])[0]
    drafter = drafter_of(name, [request(), request()])
    for events in run([request(), request()], drafter).values():
        assert tokens(events) == tokens(plain)


def test_a_rule_sees_each_output_once() -> None:
    request = masked()
    drafter = drafter_of("oracle", [masked()])
    written = tokens(run([request], drafter)[0])
    assert isinstance(request.token_rule, Alternating)
    lengths = [len(output) for output in request.token_rule.seen]
    assert lengths == sorted(set(lengths))
    assert request.token_rule.seen[-1] == written[: lengths[-1]]


@pytest.mark.parametrize("name", [None, *DRAFTERS])
@pytest.mark.parametrize(
    ("fault", "kind"), [({"fails_at": 5}, RuntimeError), ({"empty_at": 5}, ConfigError)]
)
def test_a_fault_ends_its_request_alone(
    name: str | None, fault: dict[str, int], kind: type[Exception]
) -> None:
    good = replace(REQUEST, params=replace(PARAMS, seed=8))
    drafter = drafter_of(name, [masked(), good]) if name else None
    found = run([masked(**fault), good], drafter)
    last = found[0][-1]
    assert (last.token_id, last.finish_reason) == (None, "failed")
    assert isinstance(last.error, kind)
    # What was written before the fault does not depend on drafts.
    assert tokens(found[0])[:-1] == tokens(run([masked()])[0])[:5]
    assert tokens(found[1]) == tokens(run([good])[0])


def test_a_stop_rule_may_fail_too() -> None:
    def stop(token_id: int) -> bool:
        raise LookupError("no such token")

    found = run([replace(REQUEST, stop_rule=stop), REQUEST])
    assert [event.finish_reason for event in found[0]] == ["failed"]
    assert isinstance(found[0][0].error, LookupError)
    assert tokens(found[1]) == tokens(run([REQUEST])[0])


def test_a_request_limits_its_drafts() -> None:
    requests = [replace(REQUEST, draft_n_max=2), REQUEST]
    found = run(requests, drafter_of("oracle", requests))
    stats = [found[i][-1].stats for i in (0, 1)]
    assert stats[0] is not None
    assert stats[1] is not None
    assert stats[0].speculation is not None
    assert stats[1].speculation is not None
    assert stats[0].speculation.mean_acceptance_length <= 3
    assert len(stats[0].speculation.accepted_by_position) == 2
    assert len(stats[1].speculation.accepted_by_position) > 2
    assert tokens(found[0]) == tokens(found[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"draft_n_max": 0}, "draft_n_max is 0"), ({"num_logprobs": -1}, "num_logprobs is -1")],
)
def test_impossible_requests_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run([replace(REQUEST, **change)])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_logprobs_are_the_models_own_whatever_drafts(name: str | None) -> None:
    request = replace(REQUEST, num_logprobs=3)
    drafter = drafter_of(name, [request, REQUEST]) if name else None
    found = run([request, REQUEST], drafter)
    plain = run([request])[0]
    assert [event.logprobs for event in found[0]] == [event.logprobs for event in plain]
    assert [event.logprobs for event in found[1]] == [None] * 24
    for event in found[0]:
        assert event.logprobs is not None
        ids = [token_id for token_id, _ in event.logprobs.top]
        values = [value for _, value in event.logprobs.top]
        assert len(set(ids)) == 3
        assert values == sorted(values, reverse=True)
        assert event.logprobs.logprob <= values[0]
        if event.token_id in ids:
            assert event.logprobs.logprob == values[ids.index(event.token_id)]


def test_logprobs_are_a_softmax() -> None:
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1, abs=1e-12)
    found = token_logprobs(logits, 7, 50)
    assert [token for token, _ in found.top] == np.argsort(-logits, kind="stable").tolist()
    assert found.logprob == log_softmax(logits)[7]


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([0, 1, 1, 1, 0], np.float32)
    assert [token for token, _ in token_logprobs(logits, 0, 2).top] == [1, 2]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0, np.nan, 0], [np.log(0.5), -np.inf, np.log(0.5)]),
        ([np.inf, 3, np.inf], [np.log(0.5), -np.inf, np.log(0.5)]),
        ([-np.inf, -np.inf], [-np.inf, -np.inf]),
        ([-np.inf, 2], [-np.inf, 0]),
    ],
)
def test_hostile_logits_have_logprobs(logits: list[float], expected: list[float]) -> None:
    assert log_softmax(np.array(logits, np.float32)).tolist() == pytest.approx(expected)
