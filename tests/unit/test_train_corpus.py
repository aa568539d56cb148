"""A whole corpus from a tiny model."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft.bench.subject import Subject
from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.session import Session
from blockdraft.train.answers import AnswerSettings
from blockdraft.train.corpus import CorpusConfig, Needs, make_corpus
from blockdraft.train.selection import Selection
from blockdraft.train.shards import Corpus

MAX_TOKENS = 12


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    with path.open("w") as file:
        for i in range(12):
            category, source = ("code", "own") if i % 3 else ("math", "gpt-x")
            text = f"count to {i}" + " and on" * (50 if i == 4 else 0)
            line = {"id": f"p{i}", "category": category, "source": source, "prompt": text}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def subject(tiny_model: Callable[..., Path]) -> Subject:
    return Subject(tiny_model(), "tiny", num_threads=1)


def config_of(prompts: Path, **change: Any) -> CorpusConfig:
    answers = AnswerSettings(max_tokens=MAX_TOKENS, max_prompt_tokens=100)
    return replace(CorpusConfig((str(prompts),), answers=answers, parallel=4), **change)


def test_answers_are_those_of_a_session(subject: Subject, prompts: Path, tmp_path: Path) -> None:
    config = config_of(prompts)
    counts = make_corpus(subject, tmp_path / "c", config)
    corpus = Corpus.open(tmp_path / "c")
    assert counts["kept"] == len(corpus) == 11  # one is too long
    session = Session.load(subject.path, num_threads=1)
    for one in corpus:
        text = f"count to {one.prompt_id[1:]}"
        assert one.token_ids[: one.prompt_length].tolist() == session.encode(text)
        result = session.generate(
            text, params=config.answers.sampling(one.prompt_id), max_tokens=MAX_TOKENS
        )
        ended = [*result.token_ids, *one.answer_ids[len(result.token_ids) :].tolist()]
        assert one.answer_ids.tolist() == ended
        assert len(ended) <= len(result.token_ids) + 1
        assert set(ended[len(result.token_ids) :]) <= session.tokenizer.eos_ids


def test_the_end_token_of_the_model_ends_an_answer_and_is_kept(
    subject: Subject, prompts: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    make_corpus(subject, tmp_path / "a", config_of(prompts))
    end = int(Corpus.open(tmp_path / "a")[0].answer_ids[4])
    path = tiny_model(metadata={"tokenizer.ggml.eos_token_id": end})
    make_corpus(replace(subject, path=path), tmp_path / "b", config_of(prompts))
    answers = [one.answer_ids.tolist() for one in Corpus.open(tmp_path / "b")]
    assert answers[0][-1] == end
    assert all(end not in answer[:-1] for answer in answers)


def test_the_manifest_says_how_it_was_made(subject: Subject, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "evaluation").write_text('{"prompt": "count to 5"}\n')
    config = config_of(
        prompts,
        held_out=(str(tmp_path / "evaluation"),),
        selection=Selection(excluded_sources=("gpt-*",), seed=3),
    )
    counts = make_corpus(subject, tmp_path / "c", config)
    manifest = Corpus.open(tmp_path / "c").manifest
    digest = hashlib.sha256(subject.path.read_bytes()).hexdigest()
    assert manifest["target"]["sha256"] == digest == Corpus.open(tmp_path / "c").target_sha256
    assert manifest["target"]["vocab_size"] == 299
    assert manifest["chat_template"]["end_ids"] == [0, 2]
    assert len(manifest["chat_template"]["sha256"]) == 64
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    assert manifest["prompts"]["files"] == {"prompts.jsonl": digest}
    assert list(manifest["prompts"]["held_out"]) == ["evaluation"]
    assert manifest["prompts"]["excluded_sources"] == ["gpt-*"]
    assert manifest["answers"]["top_k"] == SamplingParams().top_k
    assert manifest["counts"] == counts
    assert counts["kept"] == 6
    assert {one.category for one in Corpus.open(tmp_path / "c")} == {"code"}


def test_needs_are_announced_before_anything_is_written(
    subject: Subject, prompts: Path, tmp_path: Path
) -> None:
    seen: list[Needs] = []

    def announce(needs: Needs) -> None:
        assert not (tmp_path / "c").exists()
        seen.append(needs)

    config = config_of(prompts, limit=5, selection=Selection(excluded_sources=("gpt-*",)))
    make_corpus(subject, tmp_path / "c", config, announce=announce)
    (needs,) = seen
    assert needs.num_prompts == {"code": 8}
    assert needs.left_out == {"source": 4}
    assert needs.num_wanted == 5
    assert needs.disk_bytes == 5 * (100 + MAX_TOKENS) * 2
    assert needs.memory_bytes > subject.load(max_rows=1).weight_bytes


def test_limit_may_change(subject: Subject, prompts: Path, tmp_path: Path) -> None:
    names = []
    for limit in (4, 2, 7):
        make_corpus(subject, tmp_path / "c", config_of(prompts, limit=limit))
        names.append([one.prompt_id for one in Corpus.open(tmp_path / "c")])
    assert [len(found) for found in names] == [4, 4, 7]
    assert names[2][:4] == names[1] == names[0]


def test_changed_prompts_are_refused(subject: Subject, prompts: Path, tmp_path: Path) -> None:
    make_corpus(subject, tmp_path / "c", config_of(prompts, limit=2))
    prompts.write_text(prompts.read_text() + '{"prompt": "one more"}\n')
    with pytest.raises(ConfigError, match=r"c, prompts, files was begun with prompts\.jsonl"):
        make_corpus(subject, tmp_path / "c", config_of(prompts))


@pytest.mark.parametrize("name", ["limit", "parallel", "shard_answers"])
def test_counts_below_one_are_refused(name: str, prompts: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        config_of(prompts, **{name: 0})
