"""Checkpoints of a training run: everything that the next step depends on, in one file.

All draws are keyed by (seed, epoch, index), so the place in the corpus is all the randomness
there is. A checkpoint is whole or absent, since it gets its name when it is complete. Knows no
network.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from blockdraft.errors import FileFormatError

__all__ = ["FORMAT_VERSION", "Checkpoint", "Progress", "load_checkpoint", "save_checkpoint"]

FORMAT_VERSION = 1
"""Version of the file's layout."""


@dataclass(slots=True)
class Progress:
    """How far a run is.

    Attributes:
        steps: Optimizer steps made.
        epoch: Counted from 0.
        position: Sequences of the epoch that were used.
        seconds: Of training, pauses left out.
        label_rows: Drafted rows with a label that were learned from.
        tokens: Corpus tokens whose features were used.
    """

    steps: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    label_rows: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Content of a checkpoint.

    Attributes:
        parameters: By name.
        optimizer: State of the optimizer.
        progress: How far the run is.
        draft_token_ids: Rows of the training head.
        mask_token_id: The mask token.
        fingerprint: Of the corpus.
        settings: Of the run, as plain values.
    """

    parameters: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    progress: Progress
    draft_token_ids: Tensor
    mask_token_id: int
    fingerprint: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the one that is there."""
    names = Progress.__dataclass_fields__
    content = {
        "format_version": FORMAT_VERSION,
        "parameters": {name: values.detach() for name, values in checkpoint.parameters.items()},
        "optimizer": checkpoint.optimizer,
        "progress": {name: getattr(checkpoint.progress, name) for name in names},
        "draft_token_ids": checkpoint.draft_token_ids,
        "mask_token_id": checkpoint.mask_token_id,
        "fingerprint": checkpoint.fingerprint,
        "settings": dict(checkpoint.settings),
    }
    partial = path.with_name(f"{path.name}.partial")
    torch.save(content, partial)
    partial.replace(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``; no code in the file is run.

    Raises:
        FileFormatError: It is damaged or of another version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise FileFormatError(f"{path} has format version {version}, not {FORMAT_VERSION}")
        return Checkpoint(
            parameters=content["parameters"],
            optimizer=content["optimizer"],
            progress=Progress(**content["progress"]),
            draft_token_ids=content["draft_token_ids"],
            mask_token_id=content["mask_token_id"],
            fingerprint=content["fingerprint"],
            settings=content["settings"],
        )
    except (
        *(KeyError, TypeError, ValueError, EOFError, RuntimeError),
        *(BadZipFile, pickle.UnpicklingError),
    ) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
