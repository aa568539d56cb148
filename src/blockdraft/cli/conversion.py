"""What the commands that convert drafters share: opening, checking, progress."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from blockdraft.cli.terminal import TerminalProgress, find_model
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter import DrafterFile, check_fits, check_tokens
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.ggml_types import SUPPORTED_TYPES, ggml_type_name
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

__all__ = ["WatchedValues", "check_target", "drafter_path", "quantized_types"]


class WatchedValues(Mapping[str, NDArray[Any]]):
    """Values of a drafter; every access moves a line of progress on."""

    def __init__(self, file: DrafterFile, progress: TerminalProgress, step: str) -> None:
        """Take values from ``file``, which has to stay open, and show ``step``."""
        self._file = file
        self._values = DrafterValues(file)
        self._progress = progress
        self._step = step
        self._done = 0
        self._total = sum(info.nbytes for info in file.tensors.values())

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> NDArray[Any]:
        self._progress.update(self._step, self._done, self._total)
        values = self._values[name]
        self._done += self._file.tensors[name].nbytes
        return values


def drafter_path(spec: str) -> Path:
    """The folder or file of a drafter.

    Raises:
        ConfigError: ``spec`` is neither a path nor ``hf:ORG/REPO[:FILE]``.
        DownloadError: It cannot be fetched.
    """
    path = Path(spec).expanduser()
    return path if path.is_dir() else find_model(spec)


def check_target(drafter: DrafterFile, target: GGUFFile) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        ConfigError: They disagree; the message has both facts.
    """
    try:
        check_fits(drafter.config, read_model_config(target))
    except ConfigError as error:
        raise ConfigError(f"{drafter.path}: {error}") from error
    check_tokens(drafter, target)


def quantized_types(file: DrafterFile) -> list[str]:
    """Names of the types in blocks that a drafter has."""
    numbers = sorted({info.ggml_type for info in file.tensors.values()})
    return [
        ggml_type_name(number)
        for number in numbers
        if number in SUPPORTED_TYPES and SUPPORTED_TYPES[number].block_size > 1
    ]
