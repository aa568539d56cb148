"""Servers that benchmarks compare, as processes of their own, on a real model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft.bench.llama_server import (
    LlamaFiles,
    LlamaSettings,
    LlamaSpec,
    program_of,
    start_llama,
    system_of,
)
from blockdraft.bench.load import drive, questions
from blockdraft.bench.our_server import start_ours
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.sides import LlamaSide
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError

pytest.importorskip("xllamacpp", reason="needs llama.cpp")
pytestmark = pytest.mark.model

ModelPath = Callable[[str], Path]
QUESTIONS = questions([SpeedPrompt("1", "a", "Count to twenty.")], 2, 8, salt="test")


@pytest.fixture
def subject(model_path: ModelPath) -> Subject:
    return Subject(model_path("smollm2-135m"), "smollm2-135m", 1)


def settings_of(subject: Subject, spec: LlamaSpec) -> LlamaSettings:
    return LlamaSettings(subject.path, 1, 2, 256, spec, LlamaFiles())


@pytest.mark.parametrize("spec_type", ["none", "ngram"])
def test_ours_answers_several_at_once(subject: Subject, spec_type: str) -> None:
    with start_ours(subject, DraftConfig(spec_type), parallel=2) as server:
        assert drive(server.ask, QUESTIONS, 2) > 0


def test_llama_cpps_answers_several_at_once_and_times_one(subject: Subject) -> None:
    with start_llama(settings_of(subject, LlamaSpec("ngram-simple"))) as server:
        assert drive(server.ask, QUESTIONS, 2) > 0
        answer = LlamaSide("x", server).answer([504, 253, 1004], 8)
        assert answer.num_tokens == 7
        assert answer.seconds > 0
        assert program_of(server).startswith("llama.cpp (xllamacpp 20")
        assert "CPU" in system_of(server)


def test_a_way_to_draft_that_llama_cpp_does_not_know_is_named(subject: Subject) -> None:
    with pytest.raises(ConfigError, match=r"ended with code 1: .*no --spec-type magic"):
        start_llama(settings_of(subject, LlamaSpec("magic")))
