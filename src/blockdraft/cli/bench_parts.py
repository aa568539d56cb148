"""What the sub-commands of ``blockdraft bench`` have in common: flags, prompts, progress.

Knows no measurement.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from blockdraft.bench.prompts import BUILTIN, SpeedPrompt, load_prompts
from blockdraft.bench.subject import Subject
from blockdraft.cli.options import add_model_option
from blockdraft.cli.parser import at_least
from blockdraft.errors import ConfigError

__all__ = [
    "Passes",
    "Report",
    "add_command",
    "add_prompt_options",
    "always",
    "integers",
    "notify",
    "prompts_of",
]


class Report(Protocol):
    """What a measurement gives."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        ...

    def to_text(self) -> str:
        """For people."""
        ...


Passes = Callable[[Any, argparse.Namespace], bool]
"""(report, flags) -> whether the command ends well."""


def always(report: Report, args: argparse.Namespace) -> bool:
    """A measurement that judges nothing ends well."""
    del report, args
    return True


def add_command(
    commands: Any,
    name: str,
    module: Any,
    measure: Callable[[Subject, argparse.Namespace], Report],
    *,
    passes: Passes = always,
) -> argparse.ArgumentParser:
    """A sub-command with the flags that all have; its help is the docstring of ``module``."""
    summary = module.__doc__.partition("\n")[0]
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=module.__doc__
    )
    parser.set_defaults(measure=measure, passes=passes)
    add_model_option(parser)
    parser.add_argument(
        "-t", "--threads", type=at_least(1), metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument("--isa", metavar="NAME", help="instruction set (default: the best here)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the report to OUT")
    return parser


def add_prompt_options(one: argparse.ArgumentParser, *, max_tokens: int, repeats: int = 3) -> None:
    """Add what is answered, how far and how often."""
    one.add_argument(
        "--prompts",
        default=BUILTIN,
        metavar="FILE",
        help="JSON lines with id, category and prompt (default: builtin, 48 prompts of our own)",
    )
    one.add_argument(
        "--categories", metavar="NAME,...", help="only prompts of these (default: all)"
    )
    one.add_argument(
        "--max-tokens",
        type=at_least(2),
        default=max_tokens,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    one.add_argument(
        "--repeats", type=at_least(1), default=repeats, metavar="N", help="(default: %(default)s)"
    )


def prompts_of(args: argparse.Namespace) -> tuple[SpeedPrompt, ...]:
    """The prompts that the flags ask for.

    Raises:
        ConfigError: They cannot be read, or there is no such category.
    """
    prompts = load_prompts(args.prompts)
    if args.categories is None:
        return prompts
    known = dict.fromkeys(prompt.category for prompt in prompts)
    wanted = args.categories.split(",")
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--categories names {name!r}; {args.prompts} has {', '.join(known)}")
    return tuple(prompt for prompt in prompts if prompt.category in wanted)


def integers(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """A type of argument: whole numbers separated by commas."""
    integer = at_least(minimum)

    def integers(text: str) -> tuple[int, ...]:
        return tuple(integer(part) for part in text.split(","))

    return integers


def notify(text: str) -> None:
    """Show what is being measured on one redrawn line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
