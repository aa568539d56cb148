"""``blockdraft train`` without a step: all of them, in one folder.

The flags are of the command itself, before a step's name; their places in the namespace begin with
``whole_``, so that those of a step cannot hide them.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from blockdraft.bench.lock import working
from blockdraft.bench.subject import Subject
from blockdraft.cli.options import cache_dir
from blockdraft.cli.parser import at_least
from blockdraft.cli.terminal import find_model
from blockdraft.cli.train_corpus import CorpusProgress
from blockdraft.cli.train_eval import EvalProgress
from blockdraft.cli.train_export import torch_module
from blockdraft.errors import ConfigError
from blockdraft.hub import DEFAULT_MODEL, default_cache_dir
from blockdraft.train.answers import Progress
from blockdraft.train.corpus import Needs
from blockdraft.train.recipe import Plan, Recipe, begin, go_on
from blockdraft.weights.drafter_types import FILE_TYPES

__all__ = ["add_arguments", "given_flags", "run"]

_PREFIX = "whole_"
# Recipe's fields by flag: what decides the drafter from its beginning, and what may change later.
_FIXED = {
    "--prompts": "prompts",
    "-m": "model",
    "--hold-out": "hold_out",
    "--exclude-source": "excluded_sources",
    "--max-tokens": "answer_tokens",
    "--type": "type_name",
    "--seed": "seed",
    "--dtype": "dtype",
}
_CHANGEABLE = {"--hours": "hours", "--steps": "steps", "--limit": "limit", "--device": "device"}
_RUNNING = {"-o": "output", "-t": "threads", "--resume": "resume"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the whole training."""
    _add(
        parser,
        ("-m", "--model"),
        metavar="MODEL",
        help="a name from 'blockdraft models', a GGUF file, or hf:ORG/REPO[:FILE]"
        f" (default: {DEFAULT_MODEL})",
    )
    _add(parser, ("-o", "--output"), type=Path, metavar="DIR", help="folder of the training")
    _add(
        parser,
        ("--prompts",),
        action="extend",
        nargs="+",
        metavar="FILE",
        help="JSON lines with 'prompt' and optionally id, category, source and licence, or"
        " hf:ORG/DATASET[:FILE]",
    )
    _add(
        parser,
        ("--hold-out",),
        action="extend",
        nargs="+",
        metavar="FILE",
        help="evaluation prompts to keep away from",
    )
    _add(
        parser,
        ("--exclude-source",),
        action="append",
        metavar="PATTERN",
        help="leave out prompts whose source is like PATTERN",
    )
    _add(parser, ("--limit",), type=at_least(1), metavar="N", help="most answers (default: all)")
    _add(parser, ("--max-tokens",), type=at_least(1), metavar="N", help="most tokens of an answer")
    length = parser.add_mutually_exclusive_group()
    _add(length, ("--hours",), type=float, metavar="H", help="length of the fit (default: 3)")
    _add(length, ("--steps",), type=at_least(1), metavar="N", help="the same in steps")
    _add(parser, ("--type",), choices=sorted(FILE_TYPES), help="of the GGUF file (default: q4_0)")
    _add(parser, ("--seed",), type=int, metavar="N", help="of everything random (default: 0)")
    _add(parser, ("--dtype",), choices=("float32", "bfloat16"), help="of the fit's arithmetic")
    _add(parser, ("--device",), metavar="NAME", help="of the fit: cpu, cuda or cuda:N")
    _add(parser, ("-t", "--threads"), type=at_least(1), metavar="N", help="(default: all cores)")
    _add(
        parser,
        ("--resume",),
        action="store_true",
        default=None,
        help="go on with the training in DIR; --hours, --steps, --limit and --device may change",
    )


def given_flags(args: argparse.Namespace) -> list[str]:
    """Flags of the whole training that stand on the command line."""
    every = {**_FIXED, **_CHANGEABLE, **_RUNNING}
    return [flag for flag, name in every.items() if _value(args, name) is not None]


def run(args: argparse.Namespace) -> int:
    """Train, evaluate and export, or go on with it.

    Raises:
        BlockdraftError: Flags or files cannot be honoured, or torch is missing.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("several processes can fit together, not do all steps: use train fit")
    output: Path | None = _value(args, "output")
    if output is None:
        raise ConfigError("train needs -o DIR, or one of the steps")
    pipeline = torch_module("blockdraft.train.pipeline")
    plan = _plan(args, output)
    threads = _value(args, "threads") or len(os.sched_getaffinity(0))
    models = cache_dir()
    training = pipeline.Training(
        output,
        Subject(find_model(plan.recipe.model), plan.recipe.model, threads),
        ["blockdraft", *sys.argv[1:]],
        _Screen(),
        cache_dir=None if models is None else models / "tokenizers",
        working=partial(working, models or default_cache_dir()),
    )
    drafter = pipeline.run_training(training, plan)
    gguf = next(drafter.glob("*.gguf"))
    print(f"{drafter}: try it with blockdraft run PROMPT -m {plan.recipe.model} -md {gguf}")
    return 0


class _Screen:
    """Shows on standard error how it goes."""

    def __init__(self) -> None:
        self._corpus = CorpusProgress()
        self._eval = EvalProgress()

    def say(self, line: str) -> None:
        print(f"blockdraft: {line}", file=sys.stderr, flush=True)

    def corpus_needs(self, needs: Needs) -> None:
        self._corpus.announce(needs)

    def corpus_progress(self, progress: Progress) -> None:
        self._corpus.update(progress)

    def answering(self, text: str) -> None:
        self._eval.show(text)

    def end_step(self) -> None:
        self._corpus.finish()
        self._eval.finish()


def _plan(args: argparse.Namespace, output: Path) -> Plan:
    changes = _values(args, _CHANGEABLE)
    if not _value(args, "resume"):
        values = {"model": DEFAULT_MODEL, "prompts": (), **_values(args, _FIXED), **changes}
        # It may go on from another folder.
        values["model"] = _absolute(values["model"])
        for name in ("prompts", "hold_out"):
            values[name] = tuple(map(_absolute, values.get(name, ())))
        if "steps" in values:
            values["hours"] = None
        return begin(output, Recipe(**values))
    fixed = [flag for flag, name in _FIXED.items() if _value(args, name) is not None]
    if fixed:
        raise ConfigError(f"--resume goes on with the {fixed[0]} of the training in {output}")
    return go_on(output, **changes)


def _absolute(spec: str) -> str:
    """A path from the root; what names no file as it is."""
    path = Path(spec).expanduser()
    return str(path.absolute()) if path.exists() else spec


def _add(parser: argparse._ActionsContainer, flags: tuple[str, ...], **options: Any) -> None:
    names = {**_FIXED, **_CHANGEABLE, **_RUNNING}
    parser.add_argument(*flags, dest=_PREFIX + names[flags[0]], **options)


def _value(args: argparse.Namespace, name: str) -> Any:
    return getattr(args, _PREFIX + name)


def _values(args: argparse.Namespace, flags: Mapping[str, str]) -> dict[str, Any]:
    """What was given, by field of the recipe."""
    found = {name: _value(args, name) for name in flags.values()}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if value is not None
    }
