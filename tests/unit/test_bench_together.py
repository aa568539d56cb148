"""Several drafters against each alone."""

from typing import Any

import pytest

from blockdraft.bench.gains import PromptRun
from blockdraft.bench.together import together_of
from blockdraft.speculative import RoundCounter

STATS = RoundCounter("ngram+suffix", 8).stats(1.0)


def run_of(plain_s: float, drafted_s: float, lone_s: dict[str, float]) -> PromptRun:
    times: dict[str, Any] = {"plain_s": plain_s, "drafted_s": drafted_s, "lone_s": lone_s}
    return PromptRun("a", "code", 10, stats=STATS, is_identical=True, is_loop=False, **times)


def test_the_best_alone_is_that_of_all_prompts() -> None:
    found = together_of(
        [
            run_of(4.0, 2.0, {"ngram": 1.0, "suffix": 3.0}),
            run_of(4.0, 2.0, {"ngram": 5.0, "suffix": 2.0}),
        ]
    )
    assert found.speedups == pytest.approx({"ngram": 8 / 6, "suffix": 8 / 5})
    assert found.best == "suffix"
    assert found.speedup == pytest.approx(2.0)
    assert found.over_best.ratio == pytest.approx(5 / 4)
    assert found.over_best.low == pytest.approx(1.0)  # of the second prompt alone
    assert found.over_best.high == pytest.approx(1.5)


def test_together_they_may_lose() -> None:
    found = together_of([run_of(2.0, 2.0, {"ngram": 1.0, "suffix": 1.5})])
    assert found.over_best.ratio == pytest.approx(0.5)
    assert found.to_json()["best"] == "ngram"
