"""Measure speed on this machine; the table goes to standard output, progress to standard error.

kernels: what a pass over M rows costs; decode: plain tokens per second; speed: what drafting gains;
oracle: the most it could gain; peers: against llama.cpp; startup: from the command to the first
token.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from blockdraft.bench import decode, kernels, oracle, peers, speed, startup
from blockdraft.bench.lock import measuring
from blockdraft.bench.prompts import BUILTIN, load_prompts
from blockdraft.bench.report import check_output, write_json
from blockdraft.bench.subject import Subject
from blockdraft.cli.options import (
    DRAFT_HINTS,
    add_draft_options,
    add_model_option,
    cache_dir,
    draft_config,
)
from blockdraft.cli.parser import Parser, at_least
from blockdraft.cli.terminal import find_model
from blockdraft.errors import ConfigError
from blockdraft.hub import default_cache_dir

__all__ = ["add_arguments", "run"]

_MISSED = 1


class _Report(Protocol):
    def to_json(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


def add_arguments(parser: Parser) -> None:
    """Add the sub-commands of ``blockdraft bench`` with their flags."""
    parser.hints = DRAFT_HINTS
    commands = parser.add_subparsers(
        dest="what", metavar="kernels|decode|speed|oracle|peers|startup"
    )
    one = _add_command(commands, "kernels", kernels, _run_kernels)
    one.add_argument(
        "--rows", type=_integers(1), default=kernels.ROWS, metavar="M,...", help="sizes of pass"
    )
    one.add_argument(
        "--contexts",
        type=_integers(0),
        default=kernels.CONTEXTS,
        metavar="N,...",
        help="tokens before the rows",
    )
    one.add_argument(
        "--seconds", type=float, default=6.0, metavar="S", help="time per context (default: 6)"
    )

    one = _add_command(commands, "decode", decode, _run_decode)
    one.add_argument(
        "--sequences", type=at_least(1), default=1, metavar="N", help="also N sequences together"
    )
    one.add_argument(
        "--busy-core", type=at_least(0), metavar="CORE", help="also with another process on CORE"
    )
    one.add_argument("--repeats", type=at_least(1), default=5, metavar="N", help="(default: 5)")

    one = _add_command(commands, "speed", speed, _run_speed)
    _add_prompt_options(one, max_tokens=192)
    add_draft_options(one)

    one = _add_command(commands, "oracle", oracle, _run_oracle)
    one.add_argument(
        "--spec-draft-n-max", type=at_least(1), default=7, metavar="K", help="(default: 7)"
    )
    _add_prompt_options(one, max_tokens=96)

    one = _add_command(commands, "peers", peers, _run_peers)
    one.add_argument(
        "--rows", type=_integers(1), default=peers.ROWS, metavar="M,...", help="sizes of pass"
    )
    one.add_argument(
        "--context",
        type=at_least(0),
        default=peers.CONTEXT,
        metavar="N",
        help="tokens before the rows (default: %(default)s)",
    )
    one.add_argument("--repeats", type=at_least(1), default=7, metavar="N", help="(default: 7)")
    one.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")

    one = _add_command(commands, "startup", startup, _run_startup)
    one.add_argument("--repeats", type=at_least(1), default=5, metavar="N", help="(default: 5)")
    one.add_argument("--check", action="store_true", help="exit with 1 when a limit is missed")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the JSON file.

    Returns 1 when ``--check`` finds a missed limit, or drafting changed a token.

    Raises:
        BlockdraftError: Flags or model cannot be honoured.
    """
    if args.what is None:
        raise ConfigError(
            "bench needs to know what: kernels, decode, speed, oracle, peers or startup"
        )
    if args.json is not None:
        check_output(args.json)
    path = find_model(args.model)
    if args.threads is None:
        args.threads = len(os.sched_getaffinity(0))
    subject = Subject(path, args.model, args.threads, args.isa)
    with measuring(cache_dir() or default_cache_dir()):
        report: _Report = args.measure(subject, args)
    _notify("")
    print(report.to_text())
    if args.json is not None:
        command = ["blockdraft", *sys.argv[1:]]
        write_json(args.json, report.to_json() | {"command": command})
    if isinstance(report, speed.SpeedReport):
        return 0 if report.is_identical else _MISSED
    if isinstance(report, peers.PeerReport | startup.StartupReport) and args.check:
        return 0 if report.is_met else _MISSED
    return 0


def _add_command(
    commands: Any, name: str, module: Any, measure: Callable[..., _Report]
) -> argparse.ArgumentParser:
    summary = module.__doc__.partition("\n")[0]
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=module.__doc__
    )
    parser.set_defaults(measure=measure)
    add_model_option(parser)
    parser.add_argument(
        "-t", "--threads", type=at_least(1), metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument("--isa", metavar="NAME", help="instruction set (default: the best here)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the report to OUT")
    return parser


def _add_prompt_options(one: argparse.ArgumentParser, *, max_tokens: int) -> None:
    one.add_argument(
        "--prompts",
        default=BUILTIN,
        metavar="FILE",
        help="JSON lines with id, category and prompt (default: builtin, 40 prompts of our own)",
    )
    one.add_argument(
        "--max-tokens",
        type=at_least(2),
        default=max_tokens,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    one.add_argument("--repeats", type=at_least(1), default=3, metavar="N", help="(default: 3)")


def _run_kernels(subject: Subject, args: argparse.Namespace) -> _Report:
    return kernels.bench_kernels(
        subject,
        rows=args.rows,
        contexts=args.contexts,
        seconds=args.seconds,
        notify=_notify,
    )


def _run_decode(subject: Subject, args: argparse.Namespace) -> _Report:
    core = args.busy_core
    cores = sorted(os.sched_getaffinity(0))
    if core is not None and core not in cores:
        raise ConfigError(f"--busy-core is {core}; this process may use the cores {cores}")
    return decode.bench_decode(
        subject,
        num_sequences=args.sequences,
        busy_core=core,
        repeats=args.repeats,
        notify=_notify,
    )


def _run_speed(subject: Subject, args: argparse.Namespace) -> _Report:
    if args.spec_suffix_cache is not None:
        raise ConfigError(
            "--spec-suffix-cache would know the answers: bench speed repeats its prompts"
        )
    return speed.bench_speed(
        subject,
        load_prompts(args.prompts),
        drafting=draft_config(args),
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        notify=_notify,
    )


def _run_oracle(subject: Subject, args: argparse.Namespace) -> _Report:
    return oracle.bench_oracle(
        subject,
        load_prompts(args.prompts),
        num_draft_tokens=args.spec_draft_n_max,
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        notify=_notify,
    )


def _run_peers(subject: Subject, args: argparse.Namespace) -> _Report:
    return peers.bench_peers(
        subject,
        context=args.context,
        rows=args.rows,
        repeats=args.repeats,
        notify=_notify,
    )


def _run_startup(subject: Subject, args: argparse.Namespace) -> _Report:
    return startup.bench_startup(subject, repeats=args.repeats, notify=_notify)


def _integers(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """A type of argument: whole numbers separated by commas."""
    integer = at_least(minimum)

    def integers(text: str) -> tuple[int, ...]:
        return tuple(integer(part) for part in text.split(","))

    return integers


def _notify(text: str) -> None:
    """Show what is being measured on one redrawn line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
