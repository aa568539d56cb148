"""``blockdraft train eval``: its flags, and what is seen of it."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from blockdraft.bench.evaluation import DrafterReport, evaluate_drafter
from blockdraft.bench.lock import measuring
from blockdraft.bench.prompts import BUILTIN, SpeedPrompt, load_prompts
from blockdraft.bench.report import check_output, write_json
from blockdraft.bench.speed import SpeedReport, bench_speed
from blockdraft.bench.subject import Subject
from blockdraft.cli.conversion import drafter_path
from blockdraft.cli.options import add_model_option, cache_dir
from blockdraft.cli.parser import at_least
from blockdraft.cli.terminal import find_model
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.hub import default_cache_dir
from blockdraft.train.eval_set import EVAL_SETS, eval_set
from blockdraft.train.run_folder import drafter_in, last_evaluation

__all__ = ["DESCRIPTION", "EvalProgress", "add_arguments", "run"]

DESCRIPTION = """Measure a drafter by real decoding: tau, and acceptance by position.

Each prompt is answered once, greedily, with the drafter alone and a fixed number of drafts. The
average gives every category the same weight; answers that end in a loop are counted, but not in
tau. --timed also answers with and without drafts, in turn, and compares times and tokens.
"""

_MISSED = 1
_LOG_S = 30.0
_GAP = (
    "The two differ: teacher-forced blocks stand at every few tokens of stored answers, some of\n"
    "them sampled; real blocks begin where a draft was wrong, at harder places, and are greedy."
)


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft train eval``."""
    add_model_option(one)
    one.add_argument(
        "-md",
        "--model-draft",
        required=True,
        metavar="DRAFTER",
        help="folder of a run, a drafter's folder or GGUF file, or hf:ORG/REPO[:FILE]",
    )
    one.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSON lines with id, category and prompt (default: builtin, prompts of our own)",
    )
    one.add_argument(
        "--eval-set",
        choices=EVAL_SETS,
        help="a set in --bench-data: quick, or full with 20 more prompts each of HumanEval, MBPP,"
        " GSM8K and MT-Bench (default with --bench-data: full)",
    )
    one.add_argument(
        "--bench-data",
        type=Path,
        metavar="DIR",
        help="folder with bench_quick.jsonl and bench.jsonl.gz",
    )
    one.add_argument(
        "--teacher-forced",
        action="store_true",
        help="also draft at every few tokens of the same answers, and say what makes the gap to"
        " real decoding; needs torch",
    )
    one.add_argument(
        "--max-tokens",
        type=at_least(2),
        default=128,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    one.add_argument(
        "--spec-draft-n-max",
        type=at_least(1),
        metavar="K",
        help="draft tokens of every round (default: all that the drafter's block has room for)",
    )
    one.add_argument(
        "--timed", action="store_true", help="also measure the speed-up, as bench speed does"
    )
    one.add_argument(
        "--repeats",
        type=at_least(1),
        default=3,
        metavar="N",
        help="timed runs of each prompt each way (default: %(default)s)",
    )
    one.add_argument(
        "-t", "--threads", type=at_least(1), metavar="N", help="threads (default: one per core)"
    )
    one.add_argument("--isa", metavar="NAME", help="instruction set (default: the best here)")
    one.add_argument("--json", type=Path, metavar="OUT", help="also write the report to OUT")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; returns 1 when ``--timed`` finds that drafts changed a token.

    Raises:
        BlockdraftError: Flags, prompts, model or drafter cannot be honoured.
    """
    if args.json is not None:
        check_output(args.json)
    prompts = _prompts(args)
    source = drafter_path(args.model_draft)
    drafter = drafter_in(source)
    subject = Subject(
        find_model(args.model),
        args.model,
        args.threads or len(os.sched_getaffinity(0)),
        args.isa,
    )
    progress = EvalProgress()
    report = evaluate_drafter(
        subject,
        drafter,
        prompts,
        max_tokens=args.max_tokens,
        num_draft_tokens=args.spec_draft_n_max,
        notify=progress.show,
    )
    progress.finish()
    teacher = None if drafter is source else last_evaluation(source)
    print(report.to_text())
    same = _teacher_forced(subject, drafter, report) if args.teacher_forced else None
    if teacher is not None:
        print(_teacher_text(teacher))
    if same is not None:
        print(same.explain(report, None if teacher is None else float(teacher["tau"])))
    elif teacher is not None:
        print(_GAP)
    speed = _timed(subject, drafter, prompts, report, args) if args.timed else None
    if args.json is not None:
        command = ["blockdraft", *sys.argv[1:]]
        found = {
            **report.to_json(),
            "teacher_forced": teacher,
            "same_answers": None if same is None else same.to_json(),
            "speed": None if speed is None else speed.to_json(),
        }
        write_json(args.json, found | {"command": command})
    return 0 if speed is None or speed.is_identical else _MISSED


class EvalProgress:
    """One redrawn line on a terminal; a line now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def show(self, text: str) -> None:
        """Show what is being answered."""
        if self._is_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._shown_s + _LOG_S:
            self._shown_s = time.monotonic()
            print(f"blockdraft: {text}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Leave no redrawn line."""
        if self._is_terminal:
            self.show("")


def _prompts(args: argparse.Namespace) -> tuple[SpeedPrompt, ...]:
    if args.bench_data is None:
        if args.eval_set is not None:
            raise ConfigError(f"--eval-set {args.eval_set} needs --bench-data DIR")
        return load_prompts(args.prompts or BUILTIN)
    if args.prompts is not None:
        raise ConfigError(f"--bench-data is for --eval-set, not for --prompts {args.prompts}")
    return eval_set(args.eval_set or EVAL_SETS[-1], args.bench_data)


def _timed(
    subject: Subject,
    drafter: Path,
    prompts: tuple[SpeedPrompt, ...],
    report: DrafterReport,
    args: argparse.Namespace,
) -> SpeedReport:
    """The speed-up of the same prompts, with drafts as a user gets them."""
    skipped = set(report.skipped)
    progress = EvalProgress()
    with measuring(cache_dir() or default_cache_dir()):
        speed = bench_speed(
            subject,
            [prompt for prompt in prompts if prompt.id not in skipped],
            drafting=DraftConfig(drafter=str(drafter)),
            max_tokens=args.max_tokens,
            repeats=args.repeats,
            notify=progress.show,
        )
    progress.finish()
    print(f"\n{speed.to_text()}")
    return speed


def _teacher_text(found: Mapping[str, Any]) -> str:
    shares = " ".join(f"{share:.0%}" for share in found["survival"])
    return f"teacher-forced, end of the run: tau {found['tau']:.2f}; by position {shares}"


def _teacher_forced(subject: Subject, drafter: Path, report: DrafterReport) -> Any:
    try:
        module = import_module("blockdraft.train.teacher_forced")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "--teacher-forced needs torch: pip install 'blockdraft[torch]'"
        ) from error
    return module.same_answers(
        subject.path,
        drafter,
        report.answers,
        width=report.block_size,
        num_threads=subject.num_threads,
    )
