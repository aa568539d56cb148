"""Runs of training on a tiny target: they learn, stop, go on, and leave a drafter that reloads."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.train.anchors import BlockSampler
from blockdraft.train.checkpoint import load_checkpoint
from blockdraft.train.fit import FitResult, RunFiles, fit
from blockdraft.train.settings import (
    Budget,
    Evaluation,
    Objective,
    Optimization,
    TrainingSettings,
    settings_from,
)
from blockdraft.train.shape import DrafterShape
from blockdraft.train.trainer import Trainer
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.packed import FloatWeights
from tests.marks import with_slow
from tests.tiny import write_tiny
from tests.tiny_corpus import write_counting_corpus

Trained = Callable[[str], tuple[RunFiles, FitResult]]

DFLASH2 = DrafterShape(
    num_layers=1, taps=(0, 2), block_size=5, window=16, selector_rank=8, selector_top_k=4
)
DFLASH = replace(DFLASH2, num_layers=2, conv=False, selector_rank=None, window=None)
SETTINGS = TrainingSettings(
    Budget(steps=16),
    shape=DFLASH2,
    sampler=BlockSampler(widths=(3, 5)),
    optimization=Optimization(learning_rate=2e-2, sequences_per_step=4),
    evaluation=Evaluation(share=0.2, sequences=3, stride=3),
    draft_vocab_size=64,
    log_every=8,
)
OPTIONS = {
    "dflash, decay": replace(SETTINGS, shape=DFLASH, objective=Objective("decay")),
    "dflash2": SETTINGS,
    "soft labels": replace(SETTINGS, objective=Objective(soft=0.5)),
    "muon": replace(SETTINGS, optimization=replace(SETTINGS.optimization, kind="muon")),
    "tables": replace(SETTINGS, selector="tables"),
    # Its products are slow on processors without them.
    "bfloat16": replace(SETTINGS, dtype="bfloat16", budget=Budget(steps=8), log_every=4),
    "muon, soft labels, tables": replace(
        SETTINGS,
        objective=Objective(soft=0.5),
        optimization=replace(SETTINGS.optimization, kind="muon"),
        selector="tables",
    ),
}
# Those that others contain, and one that is slow.
RARE = {"soft labels", "muon", "tables", "bfloat16"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("target") / "tiny.gguf", "llama", layers=4)


@pytest.fixture
def files(target: Path, tmp_path: Path) -> RunFiles:
    corpus = write_counting_corpus(tmp_path / "corpus", target)
    return RunFiles(target, corpus, tmp_path / "run")


@pytest.fixture(scope="module")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A function from one of `OPTIONS` to its run, which is made once."""
    corpus = write_counting_corpus(tmp_path_factory.mktemp("trained") / "corpus", target)

    @cache
    def run(option: str) -> tuple[RunFiles, FitResult]:
        files = RunFiles(target, corpus, tmp_path_factory.mktemp("run"))
        return files, train(files, OPTIONS[option])

    return run


def train(files: RunFiles, settings: TrainingSettings = SETTINGS, **options: Any) -> FitResult:
    return fit(files, settings, num_threads=1, **options)


def weights(files: RunFiles) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(files.output / "checkpoint.pt").parameters)


def records(files: RunFiles, kind: str) -> list[dict[str, Any]]:
    lines = (files.output / "metrics.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["kind"] == kind]


def interrupting(after: int) -> Callable[[], Any]:
    """Something to enter for every step that interrupts the run."""
    count = 0

    @contextmanager
    def working() -> Iterator[None]:
        nonlocal count
        if count == after:
            raise KeyboardInterrupt
        count += 1
        yield

    return working


@pytest.mark.parametrize("option", with_slow(OPTIONS, RARE))
def test_a_few_steps_learn_and_the_drafter_reloads(trained: Trained, option: str) -> None:
    files, found = trained(option)
    before, after = records(files, "evaluation")[:: len(records(files, "evaluation")) - 1]
    assert sum(after["loss_by_position"]) < 0.8 * sum(before["loss_by_position"])
    assert after["tau"] > before["tau"]
    assert found.evaluation.stats.mean_acceptance_length == after["tau"]
    assert (found.steps, len(records(files, "train"))) == (OPTIONS[option].budget.steps, 2)
    with DrafterFile.open(files.output / "drafter") as drafter:
        assert drafter.config.target_layer_ids == (0, 2)
        assert not any(drafter.config.causal_layers)
        assert drafter.config.head_token_ids is not None
        assert len(drafter.config.head_token_ids) == 64
        source = FloatWeights(drafter)
        learned = weights(files)
        for name in ("fc.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
            bf16 = learned[name].to(torch.bfloat16).float().numpy()
            np.testing.assert_array_equal(source.matrix(name), bf16)


@pytest.mark.parametrize("option", ["dflash2", "muon, soft labels, tables"])
def test_an_interrupted_run_goes_on_bit_for_bit(
    trained: Trained, tmp_path: Path, option: str
) -> None:
    files, settings = trained(option)[0], OPTIONS[option]
    second = replace(files, output=tmp_path / "second")
    with pytest.raises(KeyboardInterrupt):  # in the second of several epochs
        train(second, settings, working=interrupting(after=7))
    assert load_checkpoint(second.output / "checkpoint.pt").progress.epoch == 1
    other = replace(OPTIONS["dflash, decay"], seed=9)
    train(second, other, resume=True)
    assert load_checkpoint(second.output / "checkpoint.pt").progress.epoch > 2
    whole, halves = weights(files), weights(second)
    assert whole.keys() == halves.keys()
    for name, values in whole.items():
        assert torch.equal(halves[name], values), name
    assert records(second, "train")[-1]["loss"] == records(files, "train")[-1]["loss"]


def test_ctrl_c_within_a_step_loses_nothing_either(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, settings = trained("dflash2")[0], OPTIONS["dflash2"]
    second, num_calls = replace(files, output=tmp_path / "second"), count()
    gradient = Trainer._gradient

    def interrupted(*args: Any) -> Any:
        if next(num_calls) == 7:
            signal.raise_signal(signal.SIGINT)
        return gradient(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_gradient", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(second, settings)
    assert load_checkpoint(second.output / "checkpoint.pt").progress.steps == 8
    train(second, settings, resume=True)
    halves = weights(second)
    for name, values in weights(files).items():
        assert torch.equal(halves[name], values), name


def test_soft_labels_bring_the_drafter_nearer_to_the_target(files: RunFiles) -> None:
    # The tiny target did not write the corpus: only its own distributions lead to it.
    objective = Objective("decay", selector=0.0, soft=1.0)
    train(files, replace(SETTINGS, objective=objective, log_every=1))
    losses = [each["loss"] for each in records(files, "train")]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize(
    ("option", "selector"),
    [("dflash2", "linear"), ("tables", "tables")],
    ids=["linear", "tables"],
)
def test_a_run_begins_from_a_drafter(
    trained: Trained, tmp_path: Path, option: str, selector: Literal["linear", "tables"]
) -> None:
    files, first = trained(option)
    assert OPTIONS[option].selector == selector
    second = replace(files, output=tmp_path / "second", drafter=files.output / "drafter")
    settings = replace(
        SETTINGS, budget=Budget(steps=1), shape=DrafterShape(num_layers=3), selector=selector
    )
    train(second, settings)
    begun = records(second, "evaluation")[0]
    # The folder is bf16; the selector's maps come back from its tables.
    assert begun["tau"] == pytest.approx(first.evaluation.stats.mean_acceptance_length, abs=0.1)
    assert begun["recall"] == pytest.approx(records(files, "evaluation")[-1]["recall"], abs=0.05)


def test_a_grown_corpus_begins_an_epoch(files: RunFiles, target: Path, tmp_path: Path) -> None:
    train(files, replace(SETTINGS, budget=Budget(steps=2)))
    grown = replace(files, corpus=write_counting_corpus(tmp_path / "grown", target, count=30))
    lines: list[str] = []
    train(grown, replace(SETTINGS, budget=Budget(steps=4)), resume=True, notify=lines.append)
    assert any("corpus has changed" in line for line in lines)
    progress = load_checkpoint(files.output / "checkpoint.pt").progress
    assert (progress.steps, progress.epoch, progress.position) == (4, 1, 8)


def test_a_growing_corpus_is_followed(files: RunFiles, tmp_path: Path, target: Path) -> None:
    lines: list[str] = []

    def grow(line: str) -> None:
        lines.append(line)
        if line.startswith("held out after step 0"):
            write_counting_corpus(files.corpus, target, count=30)

    train(files, replace(SETTINGS, budget=Budget(epochs=2)), follow=True, notify=grow)
    (line,) = [line for line in lines if "corpus has grown" in line]
    before, after = (int(word) for word in line.split() if word.isdigit())
    assert 15 < before < after
    assert load_checkpoint(files.output / "checkpoint.pt").progress.steps == sum(
        -(-count // 4) for count in (before, after)
    )


def test_settings_of_earlier_checkpoints_are_read() -> None:
    values = asdict(SETTINGS)
    for part, names in (("objective", ("soft",)), ("optimization", ("kind", "momentum", "slow"))):
        for name in names:
            del values[part][name]
    del values["selector"]
    assert settings_from(values) == SETTINGS


def test_hours_end_a_run(files: RunFiles) -> None:
    found = train(files, replace(SETTINGS, budget=Budget(hours=1e-6)))
    assert found.steps == 1


def test_wrong_files_are_refused(files: RunFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to go on with"):
        train(files, resume=True)
    short = replace(SETTINGS, budget=Budget(steps=1))
    train(files, short)
    with pytest.raises(ConfigError, match="has a run already"):
        train(files, short)
    other = tmp_path / "other.gguf"
    other.write_bytes(files.target.read_bytes() + b"\0")
    with pytest.raises(ConfigError, match="was written by the model"):
        train(replace(files, target=other, output=tmp_path / "second"), short)
    (files.output / "checkpoint.pt").write_bytes(b"PK")
    with pytest.raises(FileFormatError, match="damaged"):
        train(files, short, resume=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: Budget(), "0 are given"),
        (lambda: Budget(hours=1, steps=2), "2 are given"),
        (lambda: Budget(hours=-1), "must be positive"),
        (lambda: Objective("linear"), "dpace or decay|decay or dpace"),  # type: ignore[arg-type]
        (lambda: Objective(alpha=2), "alpha is 2"),
        (lambda: Objective(soft=-1), "soft labels is -1"),
        (lambda: Optimization(kind="sgd"), "adamw or muon"),  # type: ignore[arg-type]
        (lambda: replace(SETTINGS, selector="free"), "linear or tables"),  # type: ignore[arg-type]
        (lambda: DrafterShape(conv=False), "come together"),
        (lambda: DrafterShape(window=4), "smaller than the block"),
        (lambda: replace(SETTINGS, sampler=BlockSampler()), "wider than the drafter's 5"),
        (lambda: replace(SETTINGS, draft_vocab_size=3), "cannot be chosen"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings()
