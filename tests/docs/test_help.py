"""Flags are frozen: scripts of users depend on them, so a change here is a decision."""

import pytest

from blockdraft.cli import COMMANDS, command_parser, main

MODEL = {"-m", "--model"}
ENGINE = {"-c", "--ctx-size", "-t", "--threads", "--isa"}
COMMON = {"-h", "--help", "-v", "--verbose"}
SAMPLING = {
    "--temp",
    "--top-k",
    "--top-p",
    "--min-p",
    "--repeat-penalty",
    "--repeat-last-n",
    "--presence-penalty",
    "--frequency-penalty",
    "-s",
    "--seed",
    "-n",
    "--predict",
    "--n-predict",
    "--stop",
}
DRAFTER = {"-md", "--model-draft", "--spec-draft-model"}
DRAFT = DRAFTER | {
    "--spec-type",
    "--spec-draft-n-max",
    "--spec-draft-p-min",
    "--show-draft",
    "--no-show-draft",
}
SYSTEM = {"-sys", "--system-prompt"}
FLAGS = {
    "run": {"-f", "--file", "--raw", "--json", "--compare"}
    | MODEL
    | ENGINE
    | DRAFT
    | SAMPLING
    | SYSTEM,
    "chat": MODEL | ENGINE | DRAFT | SAMPLING | SYSTEM,
    "inspect": {"-c", "--ctx-size", "--json"} | DRAFTER,
    "perplexity": {"-f", "--file"} | MODEL | ENGINE,
    "pull": {"--print-path"},
    "models": set(),
    "train": set(),
    "quantize": {"--type", "-o", "--output"} | MODEL,
    "export": {"-o", "--output", "--dtype"} | MODEL,
    "bench": set(),
}


def test_commands_are_frozen() -> None:
    assert list(COMMANDS) == list(FLAGS)


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_frozen(name: str) -> None:
    actions = command_parser(name)._actions
    found = {flag for action in actions for flag in action.option_strings}
    assert found == FLAGS[name] | COMMON


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_help_text(name: str) -> None:
    for action in command_parser(name)._actions:
        assert action.help or action.dest == "what", action.dest


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [flag for flag in FLAGS[name] | COMMON if flag not in shown] == []
