"""The command as a whole: which module runs, what errors look like, exit codes."""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from blockdraft.cli import COMMANDS, command_parser, main
from blockdraft.errors import CapacityError

Output = pytest.CaptureFixture[str]


def replace_models(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Let ``blockdraft models`` do something else."""
    monkeypatch.setattr("blockdraft.cli.models.run", run)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], capsys: Output) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "there is no command 'rum'; did you mean run?"),
        (["zzz"], "there is no command 'zzz'; commands: run, chat"),
        (["--jsn"], "there is no flag --jsn"),
        (["-v", "models"], "-v must come after the command models"),
        (["models", "--zzz"], "there is no flag --zzz (see 'blockdraft models --help')"),
        (["models", "extra"], "unexpected argument 'extra'; text with spaces needs quotes"),
        (["pull"], "the following arguments are required: NAME"),
        (["pull", "x", "--print_path"], "no flag --print_path; did you mean --print-path?"),
    ],
)
def test_wrong_words_are_named(arguments: list[str], message: str, capsys: Output) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("blockdraft: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_version(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.8.7")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "blockdraft 9.8.7\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CapacityError("512 tokens, room for 100"), 2, "error: 512 tokens, room for 100"),
        (FileNotFoundError(2, "No such file", "x.txt"), 2, "error: x.txt: No such file"),
        (OSError("odd"), 2, "error: odd"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["deliberate", "system with file", "system", "ctrl-c"],
)
def test_errors_are_one_line(
    error: BaseException, code: int, message: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise error

    replace_models(monkeypatch, fail)
    assert main(["models"]) == code
    assert capsys.readouterr().err.lstrip("\n") == f"blockdraft: {message}\n"


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> int:
        raise ZeroDivisionError

    replace_models(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        main(["models"])


@pytest.mark.parametrize("code", [0, 1, 130])
def test_exit_code_is_the_commands(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_models(monkeypatch, lambda args: code)
    assert main(["models"]) == code


@pytest.mark.parametrize(("flags", "level"), [([], "WARNING"), (["-v"], "INFO")])
def test_verbose_shows_more(
    flags: list[str], level: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(args: object) -> int:
        log = logging.getLogger("blockdraft.somewhere")
        log.info("a note")
        log.warning("a warning")
        return 0

    replace_models(monkeypatch, note)
    main(["models", *flags])
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "blockdraft: warning: a warning"
    assert ("blockdraft: info: a note" in lines) == (level == "INFO")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_parser(name: str) -> None:
    assert command_parser(name).prog == f"blockdraft {name}"


def run_python(code: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command: Sequence[str] = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_help_imports_nothing_heavy() -> None:
    heavy = ["numpy", "tokenizers", "jinja2", "huggingface_hub", "logging", "importlib.metadata"]
    code = (
        "import sys; from blockdraft.cli import main; main(['--help']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    assert run_python(code).stderr == "[]\n"


def test_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from blockdraft.cli import main; sys.exit(main(['models']))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_unprintable_text_is_escaped() -> None:
    code = (
        "import blockdraft.cli as c, blockdraft.cli.models as m;"
        "m.run = lambda args: print('\\u4e2d'); c.main(['models'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert run_python(code, env=environment).stdout == "\\u4e2d\n"


def test_system_exit_of_a_command_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(args: object) -> int:
        raise SystemExit(3)

    replace_models(monkeypatch, leave)
    assert main(["models"]) == 3


def test_hints_know_flags_of_other_programs(capsys: Output) -> None:
    for flag, hint in {"-p": "argument of its own", "-ngl": "CPU", "-cnv": "chat"}.items():
        assert main(["run", flag, "x"]) == 2
        assert hint in capsys.readouterr().err


def test_sub_commands_flags_are_suggested() -> None:
    parser = command_parser("bench")
    message = parser._about_unknown(["--thread"])
    assert message == "there is no flag --thread; did you mean --threads?"


def test_arguments_after_two_dashes_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def note(args: argparse.Namespace) -> int:
        seen.append(args.prompt)
        return 0

    monkeypatch.setattr("blockdraft.cli.run.run", note)
    assert main(["run", "--", "-p is a flag"]) == 0
    assert seen == ["-p is a flag"]
