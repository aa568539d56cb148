"""Measure speed on this machine; the table goes to standard output, progress to standard error.

kernels: what a pass over M rows costs; decode: plain tokens per second; speed: what drafting gains;
oracle: the most it could gain; peers, peers-spec, serve: against llama.cpp, in passes, in drafting
and as a server; startup: from the command to the first token.
"""

import argparse
import os
import sys
from typing import Any

from blockdraft.bench import decode, kernels, oracle, startup
from blockdraft.bench.lock import measuring
from blockdraft.bench.report import check_output, write_json
from blockdraft.bench.subject import Subject
from blockdraft.cli.bench_parts import (
    Report,
    add_command,
    add_prompt_options,
    integers,
    notify,
    prompts_of,
)
from blockdraft.cli.bench_peers import add_peers
from blockdraft.cli.bench_speed import add_speed
from blockdraft.cli.options import DRAFT_HINTS, cache_dir
from blockdraft.cli.parser import Parser, at_least
from blockdraft.cli.terminal import find_model
from blockdraft.errors import ConfigError
from blockdraft.hub import default_cache_dir

__all__ = ["add_arguments", "run"]

_MISSED = 1
_KINDS = ("kernels", "decode", "speed", "oracle", "peers", "peers-spec", "serve", "startup")


def add_arguments(parser: Parser) -> None:
    """Add the sub-commands of ``blockdraft bench`` with their flags."""
    parser.hints = DRAFT_HINTS
    commands = parser.add_subparsers(dest="what", metavar="|".join(_KINDS))
    _add_kernels(commands)
    _add_decode(commands)
    add_speed(commands)
    _add_oracle(commands)
    add_peers(commands)
    one = add_command(commands, "startup", startup, _run_startup, passes=_checked)
    one.add_argument("--repeats", type=at_least(1), default=5, metavar="N", help="(default: 5)")
    one.add_argument("--check", action="store_true", help="exit with 1 when a limit is missed")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the JSON file.

    Returns 1 when ``--check`` finds a missed limit, drafting changed a token, or ``--pairs`` found
    that it loses.

    Raises:
        BlockdraftError: Flags or model cannot be honoured.
    """
    if args.what is None:
        raise ConfigError(f"bench needs to know what: {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    if args.json is not None:
        check_output(args.json)
    path = find_model(args.model)
    if args.threads is None:
        args.threads = len(os.sched_getaffinity(0))
    subject = Subject(path, args.model, args.threads, args.isa)
    with measuring(cache_dir() or default_cache_dir()):
        report: Report = args.measure(subject, args)
    notify("")
    print(report.to_text())
    if args.json is not None:
        command = ["blockdraft", *sys.argv[1:]]
        write_json(args.json, report.to_json() | {"command": command})
    return 0 if args.passes(report, args) else _MISSED


def _add_kernels(commands: Any) -> None:
    one = add_command(commands, "kernels", kernels, _run_kernels)
    one.add_argument(
        "--rows", type=integers(1), default=kernels.ROWS, metavar="M,...", help="sizes of pass"
    )
    one.add_argument(
        "--contexts",
        type=integers(0),
        default=kernels.CONTEXTS,
        metavar="N,...",
        help="tokens before the rows",
    )
    one.add_argument(
        "--seconds", type=float, default=6.0, metavar="S", help="time per context (default: 6)"
    )


def _add_decode(commands: Any) -> None:
    one = add_command(commands, "decode", decode, _run_decode)
    one.add_argument(
        "--sequences", type=at_least(1), default=1, metavar="N", help="also N sequences together"
    )
    one.add_argument(
        "--busy-core", type=at_least(0), metavar="CORE", help="also with another process on CORE"
    )
    one.add_argument("--repeats", type=at_least(1), default=5, metavar="N", help="(default: 5)")


def _add_oracle(commands: Any) -> None:
    one = add_command(commands, "oracle", oracle, _run_oracle)
    one.add_argument(
        "--spec-draft-n-max", type=at_least(1), default=7, metavar="K", help="(default: 7)"
    )
    add_prompt_options(one, max_tokens=96)


def _checked(report: Any, args: argparse.Namespace) -> bool:
    return report.is_met or not args.check


def _run_kernels(subject: Subject, args: argparse.Namespace) -> Report:
    return kernels.bench_kernels(
        subject,
        rows=args.rows,
        contexts=args.contexts,
        seconds=args.seconds,
        notify=notify,
    )


def _run_decode(subject: Subject, args: argparse.Namespace) -> Report:
    core = args.busy_core
    cores = sorted(os.sched_getaffinity(0))
    if core is not None and core not in cores:
        raise ConfigError(f"--busy-core is {core}; this process may use the cores {cores}")
    return decode.bench_decode(
        subject,
        num_sequences=args.sequences,
        busy_core=core,
        repeats=args.repeats,
        notify=notify,
    )


def _run_oracle(subject: Subject, args: argparse.Namespace) -> Report:
    return oracle.bench_oracle(
        subject,
        prompts_of(args),
        num_draft_tokens=args.spec_draft_n_max,
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        notify=notify,
    )


def _run_startup(subject: Subject, args: argparse.Namespace) -> Report:
    return startup.bench_startup(subject, repeats=args.repeats, notify=notify)
