"""Train a drafter for a model on this machine: all steps in one folder, or one of them.

corpus: the model's own answers to many prompts, what a drafter learns from.
fit: a drafter that learns from them.
eval: how many of its drafts the model accepts.
export: a folder that others can use.
suffixes: the answers as a file to look drafts up in, without a network.
"""

import argparse
import signal
from collections.abc import Callable

from blockdraft.cli import (
    train_corpus,
    train_eval,
    train_export,
    train_fit,
    train_suffixes,
    train_whole,
)
from blockdraft.cli.parser import Parser
from blockdraft.errors import ConfigError

__all__ = ["STEPS", "add_arguments", "run"]

# Their modules must not import torch, which not everyone has.
STEPS = {
    "corpus": train_corpus,
    "fit": train_fit,
    "eval": train_eval,
    "export": train_export,
    "suffixes": train_suffixes,
}
"""Sub-commands; each module has ``DESCRIPTION``, ``add_arguments`` and ``run``."""

_USAGE = f"""blockdraft train [-m MODEL] -o DIR --prompts FILE ... [flags]
       blockdraft train -o DIR --resume
       blockdraft train {"|".join(STEPS)} ..."""


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft train`` and its sub-commands with theirs."""
    parser.usage = _USAGE
    train_whole.add_arguments(parser)
    metavar = "|".join(STEPS)
    commands = parser.add_subparsers(dest="what", metavar=metavar, prog="blockdraft train")
    for name, step in STEPS.items():
        summary = step.DESCRIPTION.partition("\n")[0]
        one = commands.add_parser(name, help=summary, description=step.DESCRIPTION)
        step.add_arguments(one)
        one.set_defaults(step=step.run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command, or all of them.

    Raises:
        BlockdraftError: Flags, prompts or model cannot be honoured.
    """
    step: Callable[[argparse.Namespace], int] = train_whole.run
    if args.what is not None:
        misplaced = train_whole.given_flags(args)
        if misplaced:
            raise ConfigError(f"{misplaced[0]} must come after the step {args.what}")
        step = args.step
    # A job in the background is ended with SIGTERM: let it end as with Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return step(args)
    finally:
        signal.signal(signal.SIGTERM, before)
