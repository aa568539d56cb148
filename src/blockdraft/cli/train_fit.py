"""``blockdraft train fit``: its flags, and what is seen while it runs."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from blockdraft.bench.lock import working
from blockdraft.cli.options import add_corpus_option, add_model_option, cache_dir
from blockdraft.cli.parser import at_least
from blockdraft.cli.terminal import find_model
from blockdraft.errors import ConfigError
from blockdraft.hub import default_cache_dir
from blockdraft.train.anchors import BlockSampler
from blockdraft.train.settings import (
    Budget,
    Evaluation,
    Objective,
    Optimization,
    TrainingSettings,
)
from blockdraft.train.shape import DrafterShape

__all__ = ["DESCRIPTION", "add_arguments", "run"]

DESCRIPTION = """Learn a drafter from a corpus of the target's own answers.

The folder gets the drafter (a Hugging Face folder), a checkpoint to go on from and metrics.jsonl.
Ctrl-C saves before it ends; --resume goes on. Needs torch: pip install 'blockdraft[torch]'.
"""

_GIB = 1 << 30


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft train fit``."""
    add_model_option(one)
    add_corpus_option(one)
    one.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the run"
    )
    start = one.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in DIR; its drafter, loss and steps stay as they were",
    )
    start.add_argument(
        "--from",
        dest="drafter",
        type=Path,
        metavar="DRAFTER",
        help="begin with the weights of a drafter (folder or GGUF), in its shape",
    )
    budget = one.add_mutually_exclusive_group(required=True)
    budget.add_argument("--hours", type=float, metavar="H", help="length, pauses left out")
    budget.add_argument("--steps", type=at_least(1), metavar="N", help="length in steps")
    budget.add_argument("--epochs", type=float, metavar="E", help="length in passes")
    _add_shape(one)
    _add_learning(one)
    _add_running(one)


def _add_shape(one: argparse.ArgumentParser) -> None:
    shape = DrafterShape()
    group = one.add_argument_group("drafter")
    group.add_argument(
        "--arch",
        choices=("dflash", "dflash2"),
        default="dflash2",
        help="dflash2 has convolutions and a candidate selector (default: %(default)s)",
    )
    _add_numbers(
        group,
        ("--layers", at_least(1), shape.num_layers, "blocks"),
        ("--ffn", at_least(1), None, "width of the feed-forward block (default: the target's)"),
        ("--heads", at_least(1), None, "query heads (default: the target's)"),
        ("--kv-heads", at_least(1), None, "key/value heads (default: the target's)"),
        ("--num-taps", at_least(1), shape.num_taps, "target layers that are read"),
        ("--block-size", at_least(2), shape.block_size, "widest block, the anchor included"),
        ("--window", at_least(0), shape.window, "tokens that attention sees; 0 is all"),
        ("--selector-rank", at_least(1), shape.selector_rank, "rank of the selector"),
        ("--selector-top-k", at_least(1), shape.selector_top_k, "candidates of the selector"),
    )
    group.add_argument(
        "--taps", type=_integers, metavar="I,...", help="which layers (default: spread)"
    )
    group.add_argument("--mask-token", metavar="TEXT", help="default: a reserved token")
    group.add_argument("--cold", action="store_true", help="do not start from the target's layers")


def _add_learning(one: argparse.ArgumentParser) -> None:
    sampler, objective, steps = BlockSampler(), Objective(), Optimization()
    group = one.add_argument_group("learning")
    group.add_argument(
        "--widths", type=_integers, default=sampler.widths, metavar="B,...", help="block widths"
    )
    group.add_argument(
        "--weighting",
        choices=("dpace", "decay"),
        default=objective.weighting,
        help="weights of positions: the drafter's confidence, or exponential"
        " (default: %(default)s)",
    )
    group.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        default=steps.kind,
        help="muon is for matrices, with AdamW for the rest (default: %(default)s)",
    )
    group.add_argument(
        "--selector",
        choices=("linear", "tables"),
        default="linear",
        help="the selector's tables: linear maps of the target's embedding, or free"
        " (default: %(default)s)",
    )
    _add_numbers(
        group,
        ("--anchors", at_least(1), sampler.anchors_per_512, "blocks per 512 tokens"),
        ("--gamma", float, objective.gamma, "of exponential weights"),
        ("--alpha", float, objective.alpha, "of confidence weights"),
        ("--selector-weight", float, objective.selector, "of the selector's loss"),
        ("--soft-labels", float, objective.soft, "share of the target's own distribution"),
        ("--lr", float, steps.learning_rate, "highest learning rate"),
        ("--slow", float, steps.slow, "factor on it for feature projection and convolutions"),
        ("--warmup", float, steps.warmup, "share of the budget in which it rises"),
        ("--weight-decay", float, steps.weight_decay, "of matrices"),
        ("--clip", float, steps.clip, "largest norm of the gradient"),
        ("--sequences-per-step", at_least(1), steps.sequences_per_step, "batch"),
        ("--draft-vocab", at_least(0), 8192, "rows of the training head; 0 is all"),
        ("--seed", int, 0, "of everything random"),
    )


def _add_running(one: argparse.ArgumentParser) -> None:
    looking = Evaluation()
    group = one.add_argument_group("running")
    _add_numbers(
        group,
        ("--held-out", float, looking.share, "share of the prompts that is held out"),
        ("--eval-sequences", at_least(1), looking.sequences, "held-out sequences looked at"),
        ("--eval-minutes", float, looking.every_s / 60, "between two evaluations"),
        ("--save-minutes", float, 10.0, "between two checkpoints"),
        ("--log-every", at_least(1), 20, "steps per line"),
        ("--rows-per-pass", at_least(1), Optimization().rows_per_pass, "bounds memory"),
        ("--feature-cache-gb", float, 20.0, "most that it takes on the disk"),
    )
    group.add_argument(
        "--feature-cache", type=Path, metavar="DIR", help="keep features for later epochs and runs"
    )
    group.add_argument(
        "--follow-corpus",
        action="store_true",
        help="at every epoch's beginning take up what was added to the corpus",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the arithmetic; weights stay float32 (default: %(default)s, faster on most CPUs)",
    )
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N")
    group.add_argument(
        "-t", "--threads", type=at_least(1), metavar="N", help="threads (default: one per core)"
    )


def run(args: argparse.Namespace) -> int:
    """Train and print what the drafter can do at the end.

    Raises:
        BlockdraftError: Flags, corpus or target cannot be honoured, or torch is missing.
    """
    settings = _settings(args)
    fit = _fit_module()
    files = fit.RunFiles(
        target=find_model(args.model),
        corpus=args.corpus,
        output=args.output,
        drafter=args.drafter,
        feature_cache=args.feature_cache,
        feature_cache_bytes=int(args.feature_cache_gb * _GIB),
    )
    found = fit.fit(
        files,
        settings,
        resume=args.resume,
        follow=args.follow_corpus,
        num_threads=args.threads,
        working=partial(working, cache_dir() or default_cache_dir()),
        notify=_notify,
    )
    print(
        f"{args.output}: {found.steps:,} steps, {found.hours:.2f} h, {found.label_rows:,} drafted"
        f" rows; teacher-forced tau {found.evaluation.stats.mean_acceptance_length:.3f}"
    )
    return 0


def _settings(args: argparse.Namespace) -> TrainingSettings:
    is_second = args.arch == "dflash2"
    return TrainingSettings(
        budget=Budget(args.hours, args.steps, args.epochs),
        shape=DrafterShape(
            num_layers=args.layers,
            ffn_size=args.ffn,
            num_heads=args.heads,
            num_kv_heads=args.kv_heads,
            taps=args.taps,
            num_taps=args.num_taps,
            block_size=args.block_size,
            window=args.window or None,
            conv=is_second,
            selector_rank=args.selector_rank if is_second else None,
            selector_top_k=args.selector_top_k,
        ),
        sampler=BlockSampler(args.seed, args.widths, args.anchors),
        objective=Objective(
            args.weighting, args.gamma, args.alpha, args.selector_weight, args.soft_labels
        ),
        optimization=Optimization(
            learning_rate=args.lr,
            kind=args.optimizer,
            slow=args.slow,
            warmup=args.warmup,
            weight_decay=args.weight_decay,
            clip=args.clip,
            sequences_per_step=args.sequences_per_step,
            rows_per_pass=args.rows_per_pass,
        ),
        evaluation=Evaluation(
            share=args.held_out,
            sequences=args.eval_sequences,
            every_s=60 * args.eval_minutes,
        ),
        draft_vocab_size=args.draft_vocab or None,
        selector=args.selector,
        is_warm=not args.cold,
        mask_token=args.mask_token,
        seed=args.seed,
        dtype=args.dtype,
        device=args.device,
        log_every=args.log_every,
        save_every_s=60 * args.save_minutes,
    )


def _fit_module() -> Any:
    """The trainer, which needs torch."""
    try:
        return import_module("blockdraft.train.fit")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError("training needs torch: pip install 'blockdraft[torch]'") from error


def _add_numbers(
    group: argparse._ArgumentGroup, *rows: tuple[str, Callable[[str], Any], Any, str]
) -> None:
    for flag, kind, default, text in rows:
        shown = text if default is None else f"{text} (default: %(default)s)"
        group.add_argument(flag, type=kind, default=default, metavar="N", help=shown)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _notify(line: str) -> None:
    print(f"blockdraft: {line}", file=sys.stderr, flush=True)
