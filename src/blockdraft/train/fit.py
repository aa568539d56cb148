"""Train a drafter on a corpus: everything between a command line and the loop.

A folder holds one run: its checkpoint, the drafter so far (a Hugging Face folder), metrics. Knows
no flags.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from blockdraft.errors import ConfigError
from blockdraft.train.allocation import keep_freed_memory
from blockdraft.train.checkpoint import Checkpoint, load_checkpoint
from blockdraft.train.evaluation import EvaluationResult
from blockdraft.train.feature_cache import FeatureCache
from blockdraft.train.prepare import Given, Parts, prepare, split_corpus
from blockdraft.train.processes import Processes
from blockdraft.train.restart import given_drafter
from blockdraft.train.settings import TrainingSettings, settings_from
from blockdraft.train.shards import Corpus, CorpusSequence, check_target
from blockdraft.train.trainer import CHECKPOINT, Hooks, Trainer

__all__ = ["FitResult", "RunFiles", "fit"]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where a run reads and writes.

    Attributes:
        target: GGUF file.
        corpus: Folder of the target's answers.
        output: Folder of the run.
        drafter: Folder of a drafter whose weights are the first ones, or None.
        feature_cache: Folder of features, or None.
        feature_cache_bytes: What it may take on the disk.
    """

    target: Path
    corpus: Path
    output: Path
    drafter: Path | None = None
    feature_cache: Path | None = None
    feature_cache_bytes: int = 20 << 30


@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """What came out.

    Attributes:
        evaluation: Of the held-out sequences, at the end.
        steps: Optimizer steps in all.
        hours: Of training in all.
        label_rows: Drafted rows that were learned from.
    """

    evaluation: EvaluationResult
    steps: int
    hours: float
    label_rows: int


def fit(
    files: RunFiles,
    settings: TrainingSettings,
    *,
    resume: bool = False,
    follow: bool = False,
    num_threads: int | None = None,
    working: Callable[[], AbstractContextManager[None]] = nullcontext,
    notify: Callable[[str], None] = lambda _: None,
) -> FitResult:
    """Train until the budget is used up.

    Args:
        files: Where everything is.
        settings: Of the run.
        resume: Go on with the checkpoint in the output folder: everything that decides the
            drafter is then as it was, and ``settings`` gives the budget (counted from the run's
            beginning), the device, evaluation and what is logged.
        follow: Take up, at every epoch's beginning, what was added to the corpus meanwhile.
        num_threads: Threads of torch and of the native core; None is one per processor.
        working: Entered for every step; it may wait.
        notify: Gets one line of text now and then.

    Raises:
        ConfigError: Files and settings do not fit together, or a run is there already.
        BlockdraftError: A file cannot be read.
    """
    keep_freed_memory()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    corpus = Corpus.open(files.corpus)
    check_target(corpus, files.corpus, files.target)
    checkpoint = _checkpoint(files.output / CHECKPOINT, resume=resume)
    if checkpoint is not None and files.drafter is not None:
        raise ConfigError(f"{files.output} goes on with its checkpoint, not with {files.drafter}")
    given = None
    if checkpoint is not None:
        given, settings = _given(checkpoint), _continued(settings, checkpoint)
    if files.drafter is not None:
        given, settings = given_drafter(files.drafter, files.target, settings)

    def reload() -> list[CorpusSequence]:
        return split_corpus(Corpus.open(files.corpus), settings)[0]

    processes = Processes.from_environment(settings.device)
    with ExitStack() as stack:
        stack.callback(processes.close)
        parts = prepare(files.target, corpus, settings, given=given, num_threads=num_threads)
        if files.feature_cache is not None:
            parts = _cached(parts, files, corpus.target_sha256, processes, stack)
        if processes.is_first:
            for line in _about(parts, settings):
                notify(line)
        trainer = Trainer(
            parts,
            settings,
            files.output,
            checkpoint=checkpoint,
            processes=processes,
            hooks=Hooks(reload if follow else None, working, notify),
        )
        evaluation = trainer.run()
    done = trainer.progress
    return FitResult(evaluation, done.steps, done.seconds / 3600, done.label_rows)


def _checkpoint(path: Path, *, resume: bool) -> Checkpoint | None:
    if resume:
        if not path.exists():
            raise ConfigError(f"there is no run to go on with: {path} does not exist")
        return load_checkpoint(path)
    if path.exists():
        raise ConfigError(f"{path.parent} has a run already; go on with it, or use another folder")
    return None


def _continued(settings: TrainingSettings, checkpoint: Checkpoint) -> TrainingSettings:
    stored = settings_from(checkpoint.settings)
    return replace(
        stored,
        budget=settings.budget,
        device=settings.device,
        evaluation=replace(settings.evaluation, share=stored.evaluation.share),
        log_every=settings.log_every,
        save_every_s=settings.save_every_s,
    )


def _given(checkpoint: Checkpoint) -> Given:
    return Given(
        {name: values.float().numpy() for name, values in checkpoint.parameters.items()},
        checkpoint.mask_token_id,
        checkpoint.draft_token_ids.numpy(),
    )


def _cached(
    parts: Parts, files: RunFiles, target_sha256: str, processes: Processes, stack: ExitStack
) -> Parts:
    assert files.feature_cache is not None
    folder = files.feature_cache
    cache = FeatureCache(
        # A folder per process: each sees its own part of every step.
        folder if processes.size == 1 else folder / f"{processes.rank}-of-{processes.size}",
        parts.features,
        target_sha256=target_sha256,
        taps=parts.taps,
        hidden_size=parts.config.hidden_size,
        max_bytes=files.feature_cache_bytes // processes.size,
    )
    stack.callback(cache.close)
    return replace(parts, features=cache)


def _about(parts: Parts, settings: TrainingSettings) -> list[str]:
    """What a run is about to do and what it needs."""
    config, drafter = parts.config, parts.drafter
    tokens = sum(len(each.token_ids) for each in parts.training)
    kind = "DFlash" if config.conv is None else "DFlash 2"
    # Masters, gradients and two moments; the tables of embedding and head.
    weights = 16 * drafter.num_parameters
    tables = drafter.embedding.nbytes + parts.loss.head.weight.nbytes
    return [
        f"{kind}, {config.num_layers} layers, {drafter.num_parameters / 1e6:.1f} M parameters,"
        f" {parts.start} start, taps {list(config.target_layer_ids)}, mask token"
        f" {config.mask_token_id}",
        f"{len(parts.training):,} sequences, {tokens:,} tokens; {len(parts.held_out)} held out;"
        f" {len(parts.vocabulary.token_ids):,} draft tokens cover"
        f" {100 * parts.vocabulary.coverage:.2f} %",
        f"about {(weights + tables) / 1e6:,.0f} MB of weights and tables, {torch.get_num_threads()}"
        f" threads, {settings.dtype} on {settings.device}",
    ]
