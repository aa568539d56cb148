"""Where a drafter comes from: target, corpus, run, evaluation, versions and machine.

Everything is read from what the other steps have written; no path of this machine gets in but in
the commands that a person typed. Knows no weights.
"""

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blockdraft.bench.limits import describe_machine
from blockdraft.config import DrafterConfig
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.hub import NAMED_MODELS, verified_sha256
from blockdraft.train.checkpoint import Checkpoint
from blockdraft.train.prepare import fingerprint
from blockdraft.train.prompts import read_prompts
from blockdraft.train.shard_files import file_sha256
from blockdraft.train.shards import Corpus
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

__all__ = [
    "describe_corpus",
    "describe_drafter",
    "describe_evaluation",
    "describe_run",
    "describe_software",
    "describe_target",
]

_LICENCE = "general.license"
_EVALUATION_KEYS = (
    *("overall", "categories", "skipped", "block_size", "max_tokens", "drafter_sha256"),
    *("machine", "isa", "command"),
)


def describe_target(file: GGUFFile) -> dict[str, Any]:
    """Name, checksum and licence of the target; a named model's are those of the table."""
    config = read_model_config(file)
    sha256 = verified_sha256(file.path) or file_sha256(file.path)
    named = next((each for each in NAMED_MODELS.values() if each.sha256 == sha256), None)
    licence = file.metadata.get(_LICENCE)
    return {
        "name": config.name or file.path.name if named is None else named.name,
        "file": file.path.name if named is None else named.file_name,
        "sha256": sha256,
        "architecture": config.architecture,
        "num_layers": config.num_layers,
        "licence": (licence if isinstance(licence, str) else None)
        if named is None
        else named.licence,
    }


def describe_drafter(config: DrafterConfig, num_parameters: int) -> dict[str, Any]:
    """The drafter's shape."""
    return {
        "kind": "DFlash" if config.conv is None else "DFlash 2",
        "parameters": num_parameters,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "ffn_size": config.ffn_size,
        "block_size": config.block_size,
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.mask_token_id,
        "window": config.window,
        "vocab_size": config.vocab_size,
        "head_rows": config.head_size,
    }


def describe_corpus(
    corpus: Corpus,
    target_sha256: str,
    *,
    run: Checkpoint | None = None,
    prompts: Sequence[str] = (),
) -> dict[str, Any]:
    """The corpus: its manifest, categories, and the sources of its prompts with their licences.

    Args:
        corpus: The corpus.
        target_sha256: Checksum of the drafter's target.
        run: The run that learned from it, whose held-out share is described; None leaves it out.
        prompts: The files of prompts that it was made from, which say where they come from; none
            leaves the sources out.

    Raises:
        ConfigError: Another target wrote it, or it was made from other files.
    """
    if corpus.target_sha256 != target_sha256:
        raise ConfigError(
            f"the corpus was written by the model {corpus.target_sha256[:12]}, the target is"
            f" {target_sha256[:12]}"
        )
    described = dict(corpus.manifest)
    described["sequences"] = len(corpus)
    described["categories"] = dict(Counter(sequence.category for sequence in corpus))
    described["sources"] = _sources(corpus, prompts) if prompts else None
    if run is not None:
        training, held_out = corpus.split(run.settings["evaluation"]["share"])
        learned = [sequence for sequence in training if len(sequence.answer_ids) > 1]
        described["held_out_sequences"] = len(held_out)
        # A corpus may have grown since the run read it.
        described["is_as_the_run_read_it"] = fingerprint(learned) == run.fingerprint
    return described


def describe_run(run: Checkpoint, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    """Every setting of a run, how long it took, and its last teacher-forced evaluation."""
    return {
        "settings": _plain(run.settings),
        "progress": asdict(run.progress),
        "draft_vocabulary": len(run.draft_token_ids),
        "corpus_fingerprint": run.fingerprint,
        "teacher_forced": evaluation,
    }


def describe_evaluation(path: Path) -> dict[str, Any]:
    """The report of ``train eval`` at ``path``, without its single answers.

    Raises:
        FileFormatError: It is damaged or something else.
    """
    try:
        report = json.loads(path.read_text("utf-8"))
        return {key: report[key] for key in _EVALUATION_KEYS}
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is no report of train eval: {error!r}") from error


def describe_software() -> dict[str, Any]:
    """Versions and machine."""
    packages = ("blockdraft", "torch", "numpy")
    return {
        "versions": {
            **{name: version(name) for name in packages},
            "python": platform.python_version(),
        },
        "machine": asdict(describe_machine()),
    }


def _sources(corpus: Corpus, prompts: Sequence[str]) -> list[dict[str, Any]]:
    """Prompts with an answer in the corpus, counted by source and licence."""
    files = [read_prompts(spec) for spec in prompts]
    known: Mapping[str, str] = corpus.manifest.get("prompts", {}).get("files", {})
    for file in files:
        if file.sha256 not in known.values():
            raise ConfigError(
                f"the corpus was not made from this {file.name}; its prompts are those of"
                f" {', '.join(known) or 'no file'}"
            )
    places = {
        prompt.id: (prompt.source, prompt.licence) for file in files for prompt in file.prompts
    }
    ids = {sequence.prompt_id for sequence in corpus}
    counts = Counter(places.get(each, ("", "")) for each in ids)
    return [
        {"source": source, "licence": licence, "prompts": count}
        for (source, licence), count in sorted(counts.items())
    ]


def _plain(value: Any) -> Any:
    """``value`` as it comes back from JSON."""
    return json.loads(json.dumps(value))
