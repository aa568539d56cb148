"""``blockdraft train corpus``: its flags, and what is seen while it runs."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from blockdraft.bench.subject import Subject
from blockdraft.cli.options import add_model_option, cache_dir
from blockdraft.cli.parser import at_least
from blockdraft.cli.terminal import find_model
from blockdraft.train import corpus
from blockdraft.train.answers import AnswerSettings, Progress
from blockdraft.train.selection import Selection

__all__ = ["DESCRIPTION", "CorpusProgress", "add_arguments", "run"]

DESCRIPTION = corpus.__doc__ or ""

_REDRAW_S = 0.5
_LOG_S = 30.0


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft train corpus``."""
    add_model_option(one)
    one.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the corpus"
    )
    one.add_argument(
        "--prompts",
        action="extend",
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSON lines with 'prompt' and optionally id, category and source (.jsonl, .jsonl.gz),"
        " or hf:ORG/DATASET[:FILE]",
    )
    one.add_argument(
        "--hold-out",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="evaluation prompts; a prompt that shares a run of 10 words with one is left out",
    )
    one.add_argument(
        "--exclude-source",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out prompts whose source is like PATTERN, such as 'gpteacher-*'",
    )
    one.add_argument(
        "--mix",
        type=_weights,
        metavar="CATEGORY=WEIGHT,...",
        help="weights of the categories to use (default: all, as they come)",
    )
    one.add_argument("--limit", type=at_least(1), metavar="N", help="most answers (default: all)")
    _add_answer_options(one)


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    default, shards = AnswerSettings(), corpus.CorpusConfig(())
    for flag, kind, value, text in (
        ("--max-tokens", at_least(1), default.max_tokens, "most tokens of an answer"),
        ("--max-prompt-tokens", at_least(1), default.max_prompt_tokens, "skip longer prompts"),
        ("--greedy-share", float, default.greedy_share, "share of greedy answers"),
        ("--temp", float, default.temperature, "temperature of the other answers"),
        ("--seed", int, default.seed, "decides order, who is greedy, and the noise"),
        ("--parallel", at_least(1), shards.parallel, "answers at once"),
        ("--shard-answers", at_least(1), shards.shard_answers, "answers a crash may lose"),
    ):
        parser.add_argument(
            flag, type=kind, default=value, metavar="N", help=f"{text} (default: {value})"
        )
    parser.add_argument(
        "-t", "--threads", type=at_least(1), metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument("--isa", metavar="NAME", help="instruction set (default: the best here)")


def _weights(text: str) -> tuple[tuple[str, float], ...]:
    pairs = []
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            pairs.append((name.strip(), float(weight)))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not CATEGORY=WEIGHT") from None
    return tuple(pairs)


def run(args: argparse.Namespace) -> int:
    """Begin or continue a corpus.

    Raises:
        BlockdraftError: Flags, prompts, model or folder cannot be honoured.
    """
    config = corpus.CorpusConfig(
        prompts=tuple(args.prompts),
        held_out=tuple(args.hold_out),
        selection=Selection(tuple(args.exclude_source), args.mix, args.seed),
        answers=AnswerSettings(
            max_tokens=args.max_tokens,
            max_prompt_tokens=args.max_prompt_tokens,
            greedy_share=args.greedy_share,
            temperature=args.temp,
            seed=args.seed,
        ),
        limit=args.limit,
        parallel=args.parallel,
        shard_answers=args.shard_answers,
    )
    threads = args.threads or len(os.sched_getaffinity(0))
    folder = cache_dir()
    shown = CorpusProgress()
    try:
        counts = corpus.make_corpus(
            Subject(find_model(args.model), args.model, threads, args.isa),
            args.output,
            config,
            cache_dir=None if folder is None else folder / "tokenizers",
            announce=shown.announce,
            notify=shown.update,
        )
    finally:
        shown.finish()
    print(f"{args.output}: {_count_text(counts)}")
    return 0


class CorpusProgress:
    """What is seen of a corpus on standard error: its needs, then one line redrawn."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._drawn_s = time.monotonic()
        self._num_wanted = 0
        self._last: Progress | None = None

    def announce(self, needs: corpus.Needs) -> None:
        """Show what the corpus is made of and what it takes."""
        self._num_wanted = needs.num_wanted
        total = sum(needs.num_prompts.values())
        lines = [f"{total:,} prompts: {_count_text(needs.num_prompts)}"]
        if needs.left_out:
            lines.append(f"left out: {_count_text(needs.left_out)}")
        lines.append(
            f"at most {needs.num_wanted:,} answers; {needs.memory_bytes / 1e6:,.0f} MB of memory,"
            f" at most {needs.disk_bytes / 1e6:,.1f} MB on the disk"
        )
        for line in lines:
            print(f"blockdraft: {line}", file=sys.stderr, flush=True)

    def update(self, progress: Progress) -> None:
        """Show how far it is."""
        self._last = progress
        now = time.monotonic()
        if now >= self._drawn_s + (_REDRAW_S if self._is_terminal else _LOG_S):
            self._drawn_s = now
            self._draw(progress)

    def finish(self) -> None:
        """Show the last state, on a line that stays."""
        if self._last is not None:
            self._draw(self._last)
            if self._is_terminal:
                print(file=sys.stderr, flush=True)
        self._last = None

    def _draw(self, progress: Progress) -> None:
        parts = [
            f"{progress.num_answered:,} of {self._num_wanted:,} answers",
            f"{progress.counts.get('tokens', 0):,} tokens",
            f"{progress.tokens_per_s:.0f} tokens/s",
        ]
        if progress.answers_per_s:
            left_s = (self._num_wanted - progress.num_answered) / progress.answers_per_s
            parts.append(f"{_duration(max(left_s, 0))} left")
        text = ", ".join(parts)
        if self._is_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"blockdraft: {text}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def _count_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.items())
