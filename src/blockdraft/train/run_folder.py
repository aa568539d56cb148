"""What the folder of a training run holds, for those who read it and need no torch.

The trainer writes it: a checkpoint, the drafter so far (a Hugging Face folder) and metrics, one
JSON object per line. Evaluation and quantization add their files. Knows no tensor.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft.errors import FileFormatError

__all__ = [
    "CHECKPOINT",
    "DRAFTER",
    "EVALUATION",
    "METRICS",
    "drafter_in",
    "is_run",
    "last_evaluation",
    "read_metrics",
]

CHECKPOINT, DRAFTER, METRICS = "checkpoint.pt", "drafter", "metrics.jsonl"
EVALUATION = "evaluation.json"
"""Name of the report of ``train eval`` where an export looks for it."""


def is_run(path: Path) -> bool:
    """Whether ``path`` is the folder of a run that has saved a drafter."""
    return (path / DRAFTER / "config.json").is_file()


def drafter_in(path: Path) -> Path:
    """The drafter of a run's folder; any other path stands for itself."""
    return path / DRAFTER if is_run(path) else path


def read_metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind, "train" or "evaluation", by step; none where there is no file.

    A run that ended without a checkpoint makes some steps twice: the last record of a step counts.

    Raises:
        FileFormatError: A line is damaged.
    """
    path = run / METRICS
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            step, is_wanted = int(record["step"]), record["kind"] == kind
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path}, line {number}, is damaged: {error!r}") from error
        while records and records[-1]["step"] >= step + (not is_wanted):
            records.pop()
        if is_wanted:
            records.append(record)
    return records


def last_evaluation(run: Path) -> Mapping[str, Any] | None:
    """The run's latest teacher-forced evaluation, or None.

    Raises:
        FileFormatError: The metrics are damaged.
    """
    found: Sequence[Mapping[str, Any]] = read_metrics(run, "evaluation")
    return found[-1] if found else None
