"""``blockdraft train fit`` as users type it."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from blockdraft.cli import main
from blockdraft.cli.parser import Parser
from blockdraft.cli.train_fit import add_arguments
from tests.tiny import write_tiny
from tests.tiny_corpus import write_counting_corpus

SMALL = ["--layers", "1", "--taps", "0,2", "--selector-rank", "4", "--selector-top-k", "3"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    target = write_tiny(tmp_path / "tiny.gguf", "llama", layers=4)
    corpus = write_counting_corpus(tmp_path / "corpus", target, count=8)
    places = ["-m", str(target), "--corpus", str(corpus), "-o", str(tmp_path / "run")]
    return ["train", "fit", *places, "-t", "1", "--draft-vocab", "32", *SMALL]


def test_a_run_ends_with_a_drafter(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--steps", "2", "--log-every", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path / 'run'}: 2 steps, 0.00 h, ")
    assert "DFlash 2, 1 layers" in err
    assert "step 2, 100.0 %" in err
    assert "held out after step 2" in err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint.pt",
        "drafter",
        "metrics.jsonl",
    ]
    assert main([*command, "--steps", "3", "--resume"]) == 0
    assert ": 3 steps" in capsys.readouterr().out


def test_kill_leaves_a_checkpoint_to_continue(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def kill(message: str) -> None:
        if message.startswith("step 2"):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("blockdraft.cli.train_fit._notify", kill)
        assert main([*command, "--steps", "9", "--log-every", "1"]) == 130
    assert "blockdraft: interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    assert main([*command, "--steps", "3", "--resume", "--log-every", "1"]) == 0
    assert "step 2," not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "one of the arguments --hours --steps --epochs is required"),
        ("--steps 1 --hours 2", "not allowed with argument"),
        ("--steps 1 --widths 4,9", "blocks of 9 are wider than the drafter's 8"),
        ("--steps 1 --resume", "there is no run to go on with"),
        ("--steps 1 --device nothing", "device 'nothing' cannot be used"),
        ("--steps 1 --mask-token x-y-z", "has no token 'x-y-z'"),
    ],
)
def test_bad_flags_are_one_line(
    flags: str, message: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *flags.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("error:") == 1


def test_missing_torch_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("blockdraft.train.fit")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([*command, "--steps", "1"]) == 2
    assert "pip install 'blockdraft[torch]'" in capsys.readouterr().err


def test_every_flag_has_a_help_text() -> None:
    parser = Parser()
    add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
