"""Flags of ``blockdraft bench speed`` and its picture."""

import argparse
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from blockdraft.bench import speed
from blockdraft.bench.page import Page
from blockdraft.bench.report import check_output
from blockdraft.bench.speed import SpeedExtras, SpeedReport
from blockdraft.bench.subject import Subject
from blockdraft.cli.bench_parts import (
    add_command,
    add_prompt_options,
    integers,
    notify,
    prompts_of,
)
from blockdraft.cli.options import add_draft_options, draft_config
from blockdraft.cli.parser import at_least
from blockdraft.errors import ConfigError
from blockdraft.weights.replacing import replacing

__all__ = ["add_speed", "refuse_memory"]


def add_speed(commands: Any) -> None:
    """Add ``bench speed``."""
    one = add_command(commands, "speed", speed, _measure, passes=_passes)
    add_prompt_options(one, max_tokens=192)
    one.add_argument(
        "--pairs",
        type=at_least(2),
        metavar="N",
        help="instead of --repeats: at least N pairs of runs in every category, and exit with 1"
        " where drafting loses",
    )
    one.add_argument(
        "--adversary",
        action="store_true",
        help="replace every draft by a wrong one, at the same cost; for --pairs",
    )
    one.add_argument(
        "--sweep",
        action="store_true",
        help="also measure fixed settings, and what the policy loses against the best",
    )
    one.add_argument(
        "--alone",
        action="store_true",
        help="also measure each drafter by itself, and what they gain together",
    )
    one.add_argument(
        "--context-depths",
        type=integers(0),
        default=(0,),
        metavar="N,...",
        help="also with N tokens of other text before each prompt (default: 0)",
    )
    one.add_argument("--plot", type=Path, metavar="OUT.png", help="also draw the report")
    one.add_argument(
        "--html", type=Path, metavar="OUT.html", help="also write the report as one HTML file"
    )
    add_draft_options(one)


def refuse_memory(args: argparse.Namespace) -> None:
    """Refuse what would have read the answers before.

    Raises:
        ConfigError: ``--spec-suffix-cache`` is given.
    """
    if args.spec_suffix_cache is not None:
        raise ConfigError(
            f"--spec-suffix-cache would know the answers: bench {args.what} repeats its prompts"
        )


def _measure(subject: Subject, args: argparse.Namespace) -> SpeedReport:
    refuse_memory(args)
    depths = tuple(dict.fromkeys(args.context_depths))
    drawing = _drawing(args)
    report = speed.bench_speed(
        subject,
        prompts_of(args),
        drafting=draft_config(args),
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        extras=SpeedExtras(args.pairs, args.adversary, args.sweep, args.alone, depths),
        notify=notify,
    )
    if drawing is not None:
        _draw(drawing, report, args)
    return report


def _passes(report: SpeedReport, args: argparse.Namespace) -> bool:
    """No draft may change a token, nor where that is asked for lose time."""
    del args
    return report.is_identical and report.is_met


def _drawing(args: argparse.Namespace) -> Any:
    """What draws, if anything is to be drawn: refused before minutes of measuring."""
    outputs = [path for path in (args.plot, args.html) if path is not None]
    for path in outputs:
        check_output(path)
    if not outputs:
        return None
    try:
        return import_module("blockdraft.bench.drawing")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError("drawing needs matplotlib: pip install 'blockdraft[plot]'") from error


def _draw(drawing: Any, report: SpeedReport, args: argparse.Namespace) -> None:
    picture: bytes = drawing.draw_speed(report)
    if args.plot is not None:
        with replacing(args.plot) as file:
            file.write(picture)
    if args.html is not None:
        command = shlex.join(["blockdraft", *sys.argv[1:]])
        lines = [*report.title.split("\n"), *report.notes]
        page = Page(f"Drafting on {report.model}", lines, picture, report.tables(), command)
        with replacing(args.html) as file:
            file.write(page.to_html().encode())
