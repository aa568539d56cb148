"""``blockdraft train``: flags, what is shown, exit codes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.train.corpus import CorpusConfig
from blockdraft.train.shards import Corpus

Output = pytest.CaptureFixture[str]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{i}", "prompt": f"count to {i}"}) for i in range(6)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def command(prompts: str, tmp_path: Path, tiny_model: Callable[..., Path]) -> list[str]:
    """What makes a corpus in ``c``."""
    folder = str(tmp_path / "c")
    flags = ["--prompts", prompts, "--max-tokens", "8", "--max-prompt-tokens", "64", "-t", "1"]
    return ["train", "corpus", "-m", str(tiny_model()), "-o", folder, *flags]


def test_a_corpus_is_made_and_continued(command: list[str], tmp_path: Path, capsys: Output) -> None:
    assert main([*command, "--limit", "2"]) == 0
    shown = capsys.readouterr()
    assert "blockdraft: 6 prompts: 6 other\n" in shown.err
    assert "at most 2 answers; " in shown.err
    assert "MB of memory, at most 0.0 MB on the disk" in shown.err
    assert "blockdraft: 2 of 2 answers, " in shown.err
    assert shown.out.startswith(f"{tmp_path / 'c'}: 2 kept, ")
    assert main(command) == 0
    assert len(Corpus.open(tmp_path / "c")) == 6
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'c'}: 6 kept, ")


def test_a_corpus_becomes_a_file_to_look_drafts_up_in(
    command: list[str], tmp_path: Path, tiny_model: Callable[..., Path], capsys: Output
) -> None:
    assert main(command) == 0
    corpus, output = Corpus.open(tmp_path / "c"), tmp_path / "answers"
    line = ["train", "suffixes", "--corpus", str(tmp_path / "c"), "-o", str(output)]
    capsys.readouterr()
    assert main([*line, "-m", str(tiny_model())]) == 0
    num_tokens = sum(len(each.token_ids) - each.prompt_length for each in corpus)
    shown = capsys.readouterr().out
    assert shown == f"{output}: {len(corpus)} answers, {num_tokens} tokens, 0.0 MB\n"
    asked = ["run", "hi", "-m", str(tiny_model()), "-t", "1", "-n", "4", "-c", "64"]
    assert main([*asked, "--spec-suffix-corpus", str(output)]) == 0
    assert main([*line[:-1], str(tmp_path), "-m", str(tiny_model())]) == 2
    assert f"cannot write {tmp_path}: it is a folder" in capsys.readouterr().err
    other = str(tiny_model("llama", "Q8_0", layers=5))
    assert main([*line, "-m", other]) == 2
    assert f"the corpus {tmp_path / 'c'} was written by the model" in capsys.readouterr().err


def test_flags_reach_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def make_corpus(subject: Any, folder: Path, config: CorpusConfig, **rest: Any) -> Any:
        seen.update(subject=subject, folder=folder, config=config)
        return {"kept": 1}

    monkeypatch.setattr("blockdraft.train.corpus.make_corpus", make_corpus)
    monkeypatch.setattr("blockdraft.cli.train_corpus.find_model", Path)
    flags = "--mix code=3,math=1.5 --temp 0.9 --greedy-share 0.25 --seed 7 --parallel 32 -t 3"
    files = "--prompts a b --prompts c --hold-out d --exclude-source x --exclude-source y*"
    assert main(["train", "corpus", "-m", "m", "-o", "c", *flags.split(), *files.split()]) == 0
    config = seen["config"]
    assert config.prompts == ("a", "b", "c")
    assert config.held_out == ("d",)
    assert config.selection.mix == (("code", 3.0), ("math", 1.5))
    assert config.selection.excluded_sources == ("x", "y*")
    assert config.selection.seed == config.answers.seed == 7
    assert (config.answers.temperature, config.answers.greedy_share) == (0.9, 0.25)
    assert (config.parallel, config.limit) == (32, None)
    assert (seen["subject"].num_threads, seen["folder"]) == (3, Path("c"))


def test_ctrl_c_and_kill_leave_a_corpus_to_continue(
    command: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def kill(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("blockdraft.cli.train_corpus.CorpusProgress.update", kill)
        assert main([*command, "--parallel", "1"]) == 130
    assert "blockdraft: interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(Corpus.open(tmp_path / "c")) < 6
    assert main(command) == 0
    assert len(Corpus.open(tmp_path / "c")) == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temp", "0.5"], r"answers was begun with temperature 0\.8, not 0\.5"),
        (["--mix", "code"], "--mix: 'code' is not CATEGORY=WEIGHT"),
        (["--mix", "code=1"], "no prompt is of the category 'code'; categories: other"),
        (["--exclude-source", "x"], "no prompt has a source like 'x'"),
        (["--hold-out", "none"], "the prompts none does not exist"),
        (["--max-tokens", "0"], "--max-tokens: 0 is below the smallest allowed, 1"),
        (["--max-tokens", "2000"], "of 64 tokens and answers of 2000 exceed the context of 2048"),
        (["--limt", "3"], "there is no flag --limt; did you mean --limit?"),
    ],
)
def test_wrong_flags_are_named(
    flags: list[str], message: str, command: list[str], capsys: Output
) -> None:
    assert main([*command, "--limit", "1"]) == 0
    capsys.readouterr()
    assert main([*command, *flags]) == 2
    error = capsys.readouterr().err
    assert message.replace("\\", "") in error
    assert "Traceback" not in error


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, blockdraft.cli.train, blockdraft.cli.train_corpus, blockdraft.train.suffixes;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
