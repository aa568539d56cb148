"""The report of always right drafts, on a tiny model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft.bench.oracle import bench_oracle
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.subject import Subject
from blockdraft.errors import ConfigError

TinyModel = Callable[..., Path]
PROMPTS = [SpeedPrompt("a", "code", "one two"), SpeedPrompt("b", "chat", "three")]


@pytest.fixture
def subject(tiny_model: TinyModel) -> Subject:
    return Subject(tiny_model("llama", "Q4_0"), "tiny", num_threads=1)


def test_every_round_accepts_all_its_drafts(subject: Subject) -> None:
    report = bench_oracle(subject, PROMPTS, num_draft_tokens=3, max_tokens=17, repeats=1)
    assert (report.num_identical, report.num_prompts) == (2, 2)
    assert report.tau == 4.0  # the first token belongs to the prompt: 4 rounds of 4
    assert report.speedup > 0
    assert 0 < report.machinery_share < 1
    assert report.to_json()["num_draft_tokens"] == 3
    assert "K 3" in report.to_text()


def test_an_answer_of_one_token_has_no_speed(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="no answer has two tokens"):
        bench_oracle(subject, PROMPTS, max_tokens=1, repeats=1)
