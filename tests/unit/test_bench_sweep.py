"""The policy against fixed settings."""

from typing import Any

import pytest

from blockdraft.bench.gains import PromptRun
from blockdraft.bench.sweep import regret_of
from blockdraft.speculative import RoundCounter

STATS = RoundCounter("ngram", 8).stats(1.0)


def run_of(plain_s: float, drafted_s: float, fixed_s: dict[str, float]) -> PromptRun:
    times: dict[str, Any] = {"plain_s": plain_s, "drafted_s": drafted_s, "fixed_s": fixed_s}
    return PromptRun("a", "code", 10, stats=STATS, is_identical=True, is_loop=False, **times)


def test_regret_is_against_the_best_setting_over_all_prompts() -> None:
    runs = [
        run_of(4.0, 2.0, {"ngram K1": 3.0, "ngram K3": 1.0}),
        run_of(4.0, 3.0, {"ngram K1": 3.0, "ngram K3": 3.0}),
    ]
    found = regret_of(runs)
    assert found.best == "ngram K3"
    assert found.tokens_per_s["ngram K3"] == pytest.approx(20 / 4)
    assert found.regret == pytest.approx(1 - (20 / 5) / (20 / 4))


def test_plain_decoding_is_a_setting_too() -> None:
    found = regret_of([run_of(1.0, 2.0, {"ngram K1": 4.0})])
    assert found.best == "plain"
    assert found.regret == pytest.approx(0.5)


def test_a_policy_may_beat_them_all() -> None:
    found = regret_of([run_of(4.0, 1.0, {"ngram K1": 2.0})])
    assert found.regret == pytest.approx(-1.0)
    assert found.to_json()["best_tokens_per_s"] == pytest.approx(5.0)
