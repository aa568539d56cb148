"""Reports for people and for programs: aligned tables and JSON files.

Knows no measurement.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.errors import ConfigError

__all__ = ["Notify", "Table", "check_output", "format_table", "median", "write_json"]

Notify = Callable[[str], None]
"""Told in a few words what is being measured."""


@dataclass(frozen=True, slots=True)
class Table:
    """A header and rows of as many cells."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        """The table as `format_table` makes it."""
        return format_table(self.header, self.rows)


def median(values: Sequence[float]) -> float:
    """The middle of ``values``: what a neighbour's burst of work does not move."""
    return statistics.median(values)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with the first column aligned left and the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def check_output(path: Path) -> None:
    """Refuse an output path before minutes of measuring.

    Raises:
        ConfigError: Its folder does not exist or it is a folder itself.
    """
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write ``report`` to ``path``, whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
