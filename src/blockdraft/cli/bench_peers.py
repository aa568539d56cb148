"""Flags of the comparisons with llama.cpp: ``bench peers``, ``peers-spec`` and ``serve``."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockdraft.bench import peers, peers_speculation, throughput
from blockdraft.bench.llama_server import LlamaFiles, LlamaSpec, parse_specs, spec_of
from blockdraft.bench.subject import Subject
from blockdraft.cli.bench_parts import (
    Report,
    add_command,
    add_prompt_options,
    integers,
    notify,
    prompts_of,
)
from blockdraft.cli.bench_speed import refuse_memory
from blockdraft.cli.options import add_draft_options, draft_config
from blockdraft.cli.parser import at_least
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session.drafting import settle

__all__ = ["add_peers"]

_LOOKUPS = (LlamaSpec("ngram-simple"), LlamaSpec("ngram-mod"))
_LONG = 7
"""K of a network besides llama.cpp's default of 3."""


def add_peers(commands: Any) -> None:
    """Add the three sub-commands."""
    one = add_command(commands, "peers", peers, _measure_peers, passes=_checked)
    one.add_argument(
        "--rows", type=integers(1), default=peers.ROWS, metavar="M,...", help="sizes of pass"
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

    one = add_command(commands, "peers-spec", peers_speculation, _measure_speculation)
    add_prompt_options(one, max_tokens=192, repeats=1)
    one.add_argument(
        "--peer-spec",
        metavar="TYPE[:K],...",
        help="how llama.cpp drafts (default: ngram-simple,ngram-mod, and with a drafter in a GGUF"
        " file that, with llama.cpp's K and with 7)",
    )
    _add_peer_options(one)

    one = add_command(commands, "serve", throughput, _measure_serve, passes=_checked)
    add_prompt_options(one, max_tokens=96)
    one.add_argument(
        "--streams",
        type=integers(1),
        default=throughput.STREAMS,
        metavar="N,...",
        help="clients at once (default: 1,2,4,8,16)",
    )
    one.add_argument(
        "--requests",
        type=at_least(1),
        default=3,
        metavar="N",
        help="questions of each client (default: %(default)s)",
    )
    one.add_argument(
        "--peer-spec",
        metavar="TYPE[:K]",
        help="how llama.cpp drafts; none compares plain decoding alone (default: with the"
        " drafter, where it is a GGUF file, or else ngram-simple)",
    )
    one.add_argument("--check", action="store_true", help="exit with 1 when ours is behind")
    _add_peer_options(one)


def _add_peer_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--llama-server",
        type=Path,
        metavar="PATH",
        help="llama.cpp's program, built for this machine (default: the xllamacpp package)",
    )
    add_draft_options(one)


def _checked(report: Any, args: argparse.Namespace) -> bool:
    return report.is_met or not args.check


def _measure_peers(subject: Subject, args: argparse.Namespace) -> Report:
    return peers.bench_peers(
        subject, context=args.context, rows=args.rows, repeats=args.repeats, notify=notify
    )


def _measure_speculation(subject: Subject, args: argparse.Namespace) -> Report:
    drafting, files, asked, network = _both_sides(subject, args)
    longer = tuple(replace(spec, n_max=_LONG) for spec in network)
    specs = asked or _LOOKUPS + network + longer
    plan = peers_speculation.SpeculationPlan(specs, args.max_tokens, args.repeats)
    return peers_speculation.bench_speculation(
        subject, prompts_of(args), plan, drafting=drafting, files=files, notify=notify
    )


def _measure_serve(subject: Subject, args: argparse.Namespace) -> Report:
    drafting, files, asked, network = _both_sides(subject, args)
    specs = asked or network or _LOOKUPS[:1]
    if len(specs) != 1:
        raise ConfigError(f"--peer-spec is {args.peer_spec}; bench serve compares with one")
    plan = throughput.ServePlan(args.streams, args.requests, args.max_tokens, args.repeats)
    return throughput.bench_serve(
        subject,
        prompts_of(args),
        plan,
        drafting=drafting,
        peer=specs[0],
        files=files,
        notify=notify,
    )


def _both_sides(
    subject: Subject, args: argparse.Namespace
) -> tuple[DraftConfig, LlamaFiles, tuple[LlamaSpec, ...], tuple[LlamaSpec, ...]]:
    """How we draft, llama.cpp's files, how it was asked to draft, and its network if it has one.

    Raises:
        ConfigError: There is no such program or drafter, or a flag cannot be honoured.
    """
    refuse_memory(args)
    if args.spec_type == "none":
        raise ConfigError("--spec-type none drafts nothing; bench peers compares plain decoding")
    drafting = draft_config(args)
    files = _files(subject, drafting, args)
    asked = () if args.peer_spec is None else parse_specs(args.peer_spec)
    return drafting, files, asked, () if files.drafter is None else (spec_of(files.drafter),)


def _files(subject: Subject, drafting: DraftConfig, args: argparse.Namespace) -> LlamaFiles:
    """llama.cpp's files: its drafter is ours, where that is a GGUF file.

    Raises:
        ConfigError: There is no such program, or a drafter is asked for and there is none.
    """
    binary: Path | None = args.llama_server
    if binary is not None and not binary.is_file():
        raise ConfigError(f"--llama-server: there is no file {binary}")
    drafter = settle(drafting, subject.path).drafter
    path = None if drafter is None else Path(drafter).expanduser()
    return LlamaFiles(path if path is not None and path.is_file() else None, binary)
