"""From a run to a folder to publish: the drafter in both formats, provenance, curve, model card.

The Hugging Face files are those that z-lab's package, vLLM and SGLang read, in bf16; the GGUF file
is what blockdraft and llama.cpp draft with. Knows no training.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockdraft.bench.evaluation import drafter_sha256
from blockdraft.config import DrafterConfig
from blockdraft.errors import ConfigError
from blockdraft.train.checkpoint import Checkpoint, load_checkpoint
from blockdraft.train.curve import write_curve
from blockdraft.train.model_card import model_card
from blockdraft.train.provenance import (
    describe_corpus,
    describe_drafter,
    describe_evaluation,
    describe_run,
    describe_software,
    describe_target,
)
from blockdraft.train.run_folder import (
    CHECKPOINT,
    EVALUATION,
    drafter_in,
    last_evaluation,
    read_metrics,
)
from blockdraft.train.shard_files import file_sha256
from blockdraft.train.shards import Corpus
from blockdraft.weights.drafter import DrafterFile, check_fits, check_tokens
from blockdraft.weights.drafter_prior import add_accepted
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.drafter_writer import (
    FOLDER_FILES,
    write_drafter_folder,
    write_drafter_gguf,
)
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.replacing import replacing

__all__ = ["ExportFiles", "export_drafter", "gguf_name", "write_gguf"]

CARD, CURVE, PROVENANCE = "README.md", "curve.png", "provenance.json"
_GGUF_PATTERN = "drafter-*.gguf"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExportFiles:
    """What is exported, and what is known about it.

    Attributes:
        source: Folder of a run, or of a drafter.
        target: GGUF file of its target.
        output: Folder to write: new, empty or an earlier export.
        corpus: Folder of the corpus that it learned from, or None.
        prompts: Files of the corpus' prompts, which say where they come from.
        evaluation: Report of ``train eval``; None is the one in the run's folder, if there is one.
    """

    source: Path
    target: Path
    output: Path
    corpus: Path | None = None
    prompts: Sequence[str] = ()
    evaluation: Path | None = None


def gguf_name(type_name: str) -> str:
    """Name of the GGUF file of a type."""
    return f"drafter-{type_name}.gguf"


def write_gguf(source: Path, target: Path, output: Path, *, type_name: str) -> None:
    """Write the drafter of a run, or in a folder, as a GGUF file.

    Raises:
        BlockdraftError: A file cannot be read, or they do not fit together.
    """
    with GGUFFile.open(target) as target_file, _opened(source, target_file) as drafter:
        config = _completed(drafter, target_file, _run(source))
        values = DrafterValues(drafter)
        write_drafter_gguf(output, config, values, type_name=type_name, target=target_file)


def export_drafter(
    files: ExportFiles,
    *,
    type_name: str,
    command: Sequence[str],
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the folder and return its provenance.

    Args:
        files: What to export, and where to.
        type_name: Type of the GGUF file.
        command: What the user typed, for the provenance.
        notify: Told what is being written, and what is not known.

    Raises:
        ConfigError: Drafter, target, corpus or output folder do not fit together.
        BlockdraftError: A file cannot be read or written.
    """
    _check_output(files.output, files.source)
    run = _run(files.source)
    facts = _facts(files, run, notify)
    output, gguf = files.output, gguf_name(type_name)
    with GGUFFile.open(files.target) as target, _opened(files.source, target) as drafter:
        config = _completed(drafter, target, run)
        notify(f"writing {output}")
        write_drafter_folder(output, config, DrafterValues(drafter))
        parameters = sum(info.rows * info.cols for info in drafter.tensors.values())
        facts["drafter"] = describe_drafter(config, parameters)
    notify(f"writing {output / gguf}")
    for stale in output.glob(_GGUF_PATTERN):
        stale.unlink()
    write_gguf(files.source, files.target, output / gguf, type_name=type_name)
    if facts["evaluation"] is not None:
        facts["evaluation"]["evaluated"] = _evaluated(facts["evaluation"], output, gguf, notify)
        _keep_accepted((output, output / gguf), facts["evaluation"])
    curve = _write_curve(files, facts)
    facts["command"] = list(command)
    facts["files"] = {
        path.name: file_sha256(path)
        for path in sorted(output.iterdir())
        if path.name not in (CARD, PROVENANCE)
    }
    card = model_card(facts, gguf_name=gguf, curve_name=curve)
    _write_text(output / CARD, card)
    _write_text(output / PROVENANCE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    return facts


def _facts(
    files: ExportFiles, run: Checkpoint | None, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Everything in the provenance that is known before a file is written."""
    with GGUFFile.open(files.target) as target:
        described = describe_target(target)
    corpus = None
    if files.corpus is not None:
        corpus = describe_corpus(
            Corpus.open(files.corpus), described["sha256"], run=run, prompts=files.prompts
        )
        if not corpus.get("is_as_the_run_read_it", True):
            notify("the corpus has changed since the run read it, which the provenance says")
    elif files.prompts:
        raise ConfigError("prompts say where a corpus comes from, but no corpus is given")
    report = files.evaluation
    if report is None and (files.source / EVALUATION).is_file():
        report = files.source / EVALUATION
    if report is None:
        notify("there is no evaluation: the model card will have no tau")
    teacher = last_evaluation(files.source)
    return {
        "format": "blockdraft provenance",
        "format_version": _FORMAT_VERSION,
        "target": described,
        "drafter": None,
        "evaluation": None if report is None else describe_evaluation(report),
        "run": None if run is None else describe_run(run, teacher),
        "corpus": corpus,
        **describe_software(),
    }


def _run(source: Path) -> Checkpoint | None:
    path = source / CHECKPOINT
    return load_checkpoint(path) if path.is_file() else None


def _opened(source: Path, target: GGUFFile) -> DrafterFile:
    """The drafter, checked against its target."""
    path = drafter_in(source)
    if not path.is_dir():
        raise ConfigError(f"{path} is not the folder of a run or of a drafter")
    drafter = DrafterFile.open(path)
    try:
        check_fits(drafter.config, read_model_config(target))
        check_tokens(drafter, target)
    except ConfigError as error:
        drafter.close()
        raise ConfigError(f"{path}: {error}") from error
    return drafter


def _completed(drafter: DrafterFile, target: GGUFFile, run: Checkpoint | None) -> DrafterConfig:
    """The configuration with a name, the target's layers, and the tokens that it has learned.

    Rows of the target's head that the drafter never saw would cost time and gain nothing.
    """
    model, config = read_model_config(target), drafter.config
    kind = "DFlash" if config.conv is None else "DFlash 2"
    token_ids = config.head_token_ids
    if token_ids is None and run is not None and len(run.draft_token_ids) < config.vocab_size:
        token_ids = tuple(run.draft_token_ids.tolist())
    return replace(
        config,
        name=f"{kind} for {model.name or target.path.stem}",
        num_target_layers=model.num_layers,
        head_token_ids=token_ids,
    )


def _check_output(output: Path, source: Path) -> None:
    """Refuse a folder with anything in it that no export wrote."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"{output} is a file; it must be a folder")
    if drafter_in(source).exists() and output.samefile(drafter_in(source)):
        raise ConfigError(f"{output} is the drafter itself")
    known = {*FOLDER_FILES, CARD, CURVE, PROVENANCE}
    for path in sorted(output.iterdir()):
        if path.name not in known and not path.match(_GGUF_PATTERN):
            raise ConfigError(
                f"{output} holds {path.name}, which no export wrote; it must be new, empty or an"
                " earlier export"
            )


def _evaluated(
    evaluation: dict[str, Any], output: Path, gguf: str, notify: Callable[[str], None]
) -> str:
    """Which weights an evaluation is of."""
    if evaluation["drafter_sha256"] == drafter_sha256(output / gguf):
        return f"{gguf} in this folder"
    if evaluation["drafter_sha256"] == drafter_sha256(output):
        return "the bf16 weights in this folder"
    notify("the evaluation is of other weights than those exported, which the model card says")
    return f"other weights than these (sha256 {evaluation['drafter_sha256'][:12]})"


def _keep_accepted(paths: Sequence[Path], evaluation: dict[str, Any]) -> None:
    """Let the drafter say how often its drafts were accepted, so that a weak one is not tried."""
    for path in paths:
        add_accepted(path, evaluation["overall"]["accepted_by_position"])


def _write_curve(files: ExportFiles, facts: dict[str, Any]) -> str | None:
    training = read_metrics(files.source, "train")
    if not training:
        (files.output / CURVE).unlink(missing_ok=True)
        return None
    title = f"{facts['drafter']['kind']} for {facts['target']['name']}"
    evaluations = read_metrics(files.source, "evaluation")
    write_curve(files.output / CURVE, training, evaluations, title=title)
    return CURVE


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
