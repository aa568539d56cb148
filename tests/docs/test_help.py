"""Flags are frozen: scripts of users depend on them, so a change here is a decision."""

import argparse

import pytest

from blockdraft.cli import COMMANDS, command_parser, main
from blockdraft.cli.train import STEPS

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
    "--spec-policy",
    "--spec-draft-n-max",
    "--spec-draft-tree",
    "--spec-draft-p-min",
    "--spec-suffix-cache",
    "--spec-suffix-corpus",
    "--spec-trace",
}
SHOW_DRAFT = {"--show-draft", "--no-show-draft"}
SYSTEM = {"-sys", "--system-prompt"}
CACHE = {"-cram", "--cache-ram"}
OUTPUT = {"-o", "--output"}
THREADS = {"-t", "--threads"}
CORPUS = {"--prompts", "--hold-out", "--exclude-source", "--limit", "--max-tokens", "--seed"}
FLAGS = {
    "run": {"-f", "--file", "--raw", "--json", "--compare"}
    | MODEL
    | ENGINE
    | DRAFT
    | SHOW_DRAFT
    | SAMPLING
    | SYSTEM,
    "chat": MODEL | ENGINE | DRAFT | SHOW_DRAFT | SAMPLING | SYSTEM | CACHE,
    "serve": MODEL
    | ENGINE
    | DRAFT
    | SAMPLING
    | CACHE
    | {"-a", "--alias", "-np", "--parallel", "--queue", "--cache-mib", "--host", "--port"}
    | {"--api-key", "--no-api-key", "--cors-origin", "--allowed-host"},
    "inspect": {"-c", "--ctx-size", "--json"} | DRAFTER,
    "perplexity": {"-f", "--file"} | MODEL | ENGINE,
    "pull": {"--print-path"},
    "models": set(),
    "train": MODEL
    | OUTPUT
    | CORPUS
    | THREADS
    | {"--hours", "--steps", "--type", "--dtype", "--device", "--resume"},
    "quantize": {"--type"} | OUTPUT | MODEL,
    "export": {"--dtype"} | OUTPUT | MODEL,
    "bench": set(),
}
ANSWERED = {"--isa", "--json", "--prompts", "--categories", "--max-tokens", "--repeats"}
BENCH_FLAGS = {
    "speed": MODEL
    | THREADS
    | DRAFT
    | ANSWERED
    | {"--pairs", "--adversary", "--alone", "--sweep", "--context-depths", "--plot", "--html"},
    "peers-spec": MODEL | THREADS | DRAFT | ANSWERED | {"--peer-spec", "--llama-server"},
    "serve": MODEL
    | THREADS
    | DRAFT
    | ANSWERED
    | {"--streams", "--requests", "--peer-spec", "--llama-server", "--check"},
}
# Those of `train fit` are settings of the training, not yet a promise.
TRAIN_FLAGS = {
    "corpus": MODEL
    | OUTPUT
    | CORPUS
    | THREADS
    | {"--mix", "--max-prompt-tokens", "--greedy-share", "--temp", "--parallel", "--shard-answers"}
    | {"--isa"},
    "eval": MODEL
    | {"-md", "--model-draft", "--prompts", "--bench-data", "--max-tokens", "--spec-draft-n-max"}
    | {"--eval-set", "--teacher-forced", "--timed", "--repeats", "--isa", "--json"}
    | THREADS,
    "export": MODEL | OUTPUT | {"--type", "--corpus", "--prompts", "--evaluation"},
    "suffixes": MODEL | OUTPUT | {"--corpus"},
}


@pytest.mark.parametrize("name", TRAIN_FLAGS)
def test_flags_of_training_steps_are_frozen(name: str) -> None:
    parser = argparse.ArgumentParser()
    STEPS[name].add_arguments(parser)
    found = {flag for action in parser._actions for flag in action.option_strings}
    assert found == TRAIN_FLAGS[name] | {"-h", "--help"}
    assert all(action.help for action in parser._actions)


@pytest.mark.parametrize("name", BENCH_FLAGS)
def test_flags_of_comparisons_are_frozen(name: str) -> None:
    (commands,) = (each for each in command_parser("bench")._actions if each.dest == "what")
    assert commands.choices is not None
    parser = dict(commands.choices)[name]
    found = {flag for action in parser._actions for flag in action.option_strings}
    assert found == BENCH_FLAGS[name] | {"-h", "--help"}
    assert all(action.help for action in parser._actions)


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
