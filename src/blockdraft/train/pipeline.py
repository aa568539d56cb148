"""From a target to a drafter in one command: corpus, fit, evaluation, export.

A folder holds it all: ``corpus``, ``run``, ``drafter`` (what is exported), the prompts of the
evaluation, and how far it is. Every step leaves what it has when it is interrupted, and goes on
from there. Knows no flags.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

from blockdraft.bench.evaluation import evaluate_drafter
from blockdraft.bench.prompts import BUILTIN, SpeedPrompt, load_prompts
from blockdraft.bench.report import write_json
from blockdraft.bench.subject import Subject
from blockdraft.train.answers import Progress
from blockdraft.train.corpus import Needs, make_corpus
from blockdraft.train.eval_set import held_out_prompts, write_prompts
from blockdraft.train.export import ExportFiles, export_drafter, gguf_name, write_gguf
from blockdraft.train.fit import RunFiles, fit
from blockdraft.train.prompts import read_prompts
from blockdraft.train.recipe import STEPS, Plan, Recipe, save_plan
from blockdraft.train.run_folder import CHECKPOINT, EVALUATION, last_evaluation
from blockdraft.train.shape import drafter_config
from blockdraft.train.shards import Corpus
from blockdraft.weights.drafter_names import (
    SELECTOR_PREDECESSOR,
    SELECTOR_SUCCESSOR,
    expected_tensors,
)
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

__all__ = ["Listener", "Training", "describe_needs", "run_training"]

_PROMPTS = "eval_prompts.jsonl"
_MASTER_BYTES, _LEARNING_BYTES = 12, 16  # with two moments; with the gradient too


class Listener(Protocol):
    """Told how it goes."""

    def say(self, line: str) -> None:
        """Take a line that a person should see."""

    def corpus_needs(self, needs: Needs) -> None:
        """Take what the corpus will need."""

    def corpus_progress(self, progress: Progress) -> None:
        """Take the state of the corpus."""

    def answering(self, text: str) -> None:
        """Take what the evaluation is doing."""

    def end_step(self) -> None:
        """Take the end of a step, however it ended."""


@dataclass(frozen=True, slots=True)
class Training:
    """Where a training runs.

    Attributes:
        folder: Its folder.
        subject: The target and how it is run.
        command: What the user typed, for the provenance.
        listener: Told how it goes.
        cache_dir: Folder of compiled tokenizers; None is the user's.
        working: Entered for every step of the optimizer; it may wait.
    """

    folder: Path
    subject: Subject
    command: Sequence[str]
    listener: Listener
    cache_dir: Path | None = None
    working: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def corpus(self) -> Path:
        """Folder of the corpus."""
        return self.folder / "corpus"

    @property
    def run(self) -> Path:
        """Folder of the fit."""
        return self.folder / "run"

    @property
    def drafter(self) -> Path:
        """Folder that is exported."""
        return self.folder / "drafter"


def run_training(training: Training, plan: Plan) -> Path:
    """Make every step of a plan that is not done; returns the exported folder.

    Raises:
        BlockdraftError: A step cannot be made.
    """
    listener = training.listener
    for line in describe_needs(training.subject.path, training.folder, plan.recipe):
        listener.say(line)
    for number, (name, step) in enumerate(zip(STEPS, _STEPS, strict=True), 1):
        about = f"step {number} of {len(STEPS)}, {name}"
        if name in plan.done:
            listener.say(f"{about}: done")
            continue
        listener.say(about)
        try:
            step(training, plan.recipe)
        finally:
            listener.end_step()
        plan = plan.with_done(name)
        save_plan(training.folder, plan)
    return training.drafter


def describe_needs(target_path: Path, folder: Path, recipe: Recipe) -> list[str]:
    """What a training will need, for people; the corpus tells its own needs when it begins.

    Raises:
        ConfigError: No drafter of the default shape fits the target.
        BlockdraftError: The target cannot be read.
    """
    settings = recipe.training_settings()
    with GGUFFile.open(target_path) as file:
        target = read_model_config(file)
    config = drafter_config(settings.shape, target, 0)
    shapes = {each.name: each.shape for each in expected_tensors(config)}
    exported = sum(map(prod, shapes.values()))
    for name in (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR):
        if name in shapes:  # learned as a map of the target's embedding
            shapes[name] = (target.hidden_size, shapes[name][1])
    learned = sum(map(prod, shapes.values()))
    head_rows = min(settings.draft_vocab_size or target.vocab_size, target.vocab_size)
    tables = 4 * target.hidden_size * (target.vocab_size + head_rows)
    memory = _LEARNING_BYTES * learned + tables + target_path.stat().st_size
    # The drafter lies in the run's folder and in the exported one, there in fewer bits too.
    disk = _MASTER_BYTES * learned + 5 * exported
    length = f"{recipe.steps:,} steps" if recipe.hours is None else f"{recipe.hours:g} h"
    kind = "DFlash" if config.conv is None else "DFlash 2"
    free = shutil.disk_usage(folder).free
    return [
        f"{kind} drafter of {config.num_layers} layers: {learned / 1e6:.1f} M parameters to learn,"
        f" {exported / 1e6:.1f} M to export",
        f"fit: {length}, at least {memory / 1e6:,.0f} MB of memory; {folder} grows to about"
        f" {disk / 1e6:,.0f} MB and the corpus, {free / 1e6:,.0f} MB are free",
    ]


def _corpus(training: Training, recipe: Recipe) -> None:
    make_corpus(
        training.subject,
        training.corpus,
        recipe.corpus_config(),
        cache_dir=training.cache_dir,
        announce=training.listener.corpus_needs,
        notify=training.listener.corpus_progress,
    )


def _fit(training: Training, recipe: Recipe) -> None:
    fit(
        RunFiles(training.subject.path, training.corpus, training.run),
        recipe.training_settings(),
        resume=(training.run / CHECKPOINT).exists(),
        num_threads=training.subject.num_threads,
        working=training.working,
        notify=training.listener.say,
    )


def _evaluate(training: Training, recipe: Recipe) -> None:
    """Evaluate the drafter as it will be exported: in few bits."""
    drafter = training.run / gguf_name(recipe.type_name)
    write_gguf(training.run, training.subject.path, drafter, type_name=recipe.type_name)
    prompts = _eval_prompts(training, recipe)
    write_prompts(training.folder / _PROMPTS, prompts)
    report = evaluate_drafter(
        training.subject,
        drafter,
        prompts,
        max_tokens=recipe.eval_tokens,
        notify=training.listener.answering,
    )
    more = {"teacher_forced": last_evaluation(training.run), "speed": None}
    command = list(training.command)
    write_json(training.run / EVALUATION, report.to_json() | more | {"command": command})
    training.listener.end_step()
    training.listener.say(report.to_text())


def _eval_prompts(training: Training, recipe: Recipe) -> tuple[SpeedPrompt, ...]:
    found = held_out_prompts(
        Corpus.open(training.corpus),
        recipe.training_settings().evaluation.share,
        map(read_prompts, recipe.prompts),
        limit=recipe.eval_prompts,
    )
    if found:
        return found
    training.listener.say("so small a corpus holds out no prompt: evaluating on the builtin ones")
    return load_prompts(BUILTIN)


def _export(training: Training, recipe: Recipe) -> None:
    export_drafter(
        ExportFiles(
            training.run,
            training.subject.path,
            training.drafter,
            training.corpus,
            recipe.prompts,
        ),
        type_name=recipe.type_name,
        command=training.command,
        notify=training.listener.say,
    )


_STEPS: tuple[Callable[[Training, Recipe], None], ...] = (_corpus, _fit, _evaluate, _export)
