"""A drafter on disk: a Hugging Face folder or a GGUF file, open under one set of names.

Everything is checked before a byte of a weight is read, and against the target before it is used.
Knows no network.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import DrafterConfig, ModelConfig
from blockdraft.errors import ConfigError, FileFormatError, UnsupportedError
from blockdraft.weights.drafter_folder import read_folder_drafter
from blockdraft.weights.drafter_gguf import read_gguf_drafter
from blockdraft.weights.drafter_names import (
    MASK_EMBEDDING,
    VOCAB_MAP,
    expected_tensors,
    folder_name,
    our_name,
)
from blockdraft.weights.ggml_types import ggml_type_name
from blockdraft.weights.gguf import GGUFFile, StringArray
from blockdraft.weights.header import TensorInfo
from blockdraft.weights.safetensors import SafetensorsFolder, read_json
from blockdraft.weights.same_tokens import TOKENS, check_same_table
from blockdraft.weights.tensors import check_expected

__all__ = ["DrafterFile", "check_fits", "check_tokens"]

_CONFIG = "config.json"
_PICKLE = "mask_embedding.pt"
_EXTRA_FILES = ("mask_embedding.safetensors",)
# What trainers keep beside a drafter and nothing reads at inference.
_TRAINING_ONLY = {"t2d", "verifier_lm_head.weight", "verifier_norm.weight"}
_INDEX_DTYPES = {24: "<i1", 26: "<i4", 27: "<i8"}


class DrafterFile:
    """An open drafter; a `TensorFile` under GGUF names.

    Attributes:
        path: The file or the folder.
        config: Its configuration.
        tensors: Entries under our names.
    """

    def __init__(
        self,
        file: GGUFFile | SafetensorsFolder,
        config: DrafterConfig,
        names: Mapping[str, str],
    ) -> None:
        """Wrap an open file; use `open` instead.

        Args:
            file: Where the tensors are.
            config: Its configuration.
            names: Our name of each tensor to the file's.
        """
        self.path = file.path
        self.config = config
        self.tensors = {ours: replace(file.tensors[n], name=ours) for ours, n in names.items()}
        self._file = file
        self._names = dict(names)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a drafter and check its configuration and the shape of every tensor.

        Args:
            path: A GGUF file of architecture ``dflash``, or a folder with ``config.json`` and
                safetensors.

        Raises:
            FileFormatError: It cannot be read, is damaged or contradicts itself.
            UnsupportedError: It asks for something that we do not compute.
        """
        path = Path(path)
        return cls._open_folder(path) if path.is_dir() else cls._open_gguf(path)

    @classmethod
    def _open_gguf(cls, path: Path) -> Self:
        file = GGUFFile.open(path)
        try:
            opened = cls(file, read_gguf_drafter(file), {name: name for name in file.tensors})
            _check_file(opened, label=str)
        except BaseException:
            file.close()
            raise
        return opened

    @classmethod
    def _open_folder(cls, path: Path) -> Self:
        config = read_json(path / _CONFIG)
        folder = SafetensorsFolder.open(path, extra_files=_EXTRA_FILES)
        try:
            names = _folder_names(folder)
            if (path / _PICKLE).exists() and MASK_EMBEDDING not in names:
                raise UnsupportedError(
                    f"{path / _PICKLE}: is a pickle, which can run code and is not read; save its"
                    f" vector as tensor {MASK_EMBEDDING} of {_EXTRA_FILES[0]} in the folder"
                )
            tensors = {ours: folder.tensors[theirs] for ours, theirs in names.items()}
            opened = cls(folder, read_folder_drafter(path / _CONFIG, config, tensors), names)
            _check_file(opened, label=folder_name)
        except BaseException:
            folder.close()
            raise
        return opened

    def close(self) -> None:
        """Close the file; the configuration stays, tensors can no longer be read."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def tensor(self, name: str) -> TensorInfo:
        """Entry of ``name``.

        Raises:
            FileFormatError: There is no such tensor.
        """
        if name not in self.tensors:
            known = name if isinstance(self._file, GGUFFile) else folder_name(name)
            raise FileFormatError(f"{self.path}: has no tensor {known!r}")
        return self.tensors[name]

    def read(self, name: str) -> NDArray[np.uint8]:
        """All bytes of a tensor.

        Raises:
            FileFormatError: There is no such tensor, or the file shrank.
        """
        return self.read_rows(name, 0, self.tensor(name).rows)

    def read_rows(
        self, name: str, row_start: int, count: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Bytes of ``count`` rows of a tensor, in ``out`` if given. Threads may call this at once.

        Raises:
            FileFormatError: There is no such tensor, or the file shrank.
        """
        self.tensor(name)
        return self._file.read_rows(self._names[name], row_start, count, out=out)

    def tokens(self) -> StringArray | None:
        """Tokens of the target that it was made for; None where the file has none."""
        found = self._file.metadata.get(TOKENS) if isinstance(self._file, GGUFFile) else None
        return found if isinstance(found, StringArray) else None

    def vocab_map(self) -> NDArray[np.int32] | None:
        """Target token of each row of the head; None where the head has all tokens in order.

        Raises:
            FileFormatError: A row stands for no token, or two rows for one.
        """
        if self.config.draft_vocab_size is None:
            return None
        info = self.tensor(VOCAB_MAP)
        if info.ggml_type not in (26, 27):
            raise FileFormatError(
                f"{self.path}: tensor {VOCAB_MAP} has type {ggml_type_name(info.ggml_type)}; it"
                " must be I32 or I64"
            )
        values = self.read(VOCAB_MAP).view(_INDEX_DTYPES[info.ggml_type]).astype(np.int64)
        if isinstance(self._file, SafetensorsFolder):  # there as distances from the row number
            values = values + np.arange(len(values))
        outside = np.flatnonzero((values < 0) | (values >= self.config.vocab_size))
        if outside.size:
            raise FileFormatError(
                f"{self.path}: row {outside[0]} of {VOCAB_MAP} gives token {values[outside[0]]} of"
                f" {self.config.vocab_size}"
            )
        if len(np.unique(values)) != len(values):
            raise FileFormatError(f"{self.path}: {VOCAB_MAP} gives a token twice")
        return values.astype(np.int32)


def check_fits(config: DrafterConfig, target: ModelConfig) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        ConfigError: They disagree; the message has both numbers.
    """
    pairs = (
        ("width", config.hidden_size, target.hidden_size),
        ("number of tokens", config.vocab_size, target.vocab_size),
        ("number of target layers", config.num_target_layers, target.num_layers),
    )
    for what, of_drafter, of_target in pairs:
        if of_drafter is not None and of_drafter != of_target:
            raise ConfigError(
                f"the drafter does not fit the target: its {what} is {of_drafter}, the target's is"
                f" {of_target}"
            )
    highest = max(config.target_layer_ids)
    if highest >= target.num_layers:
        raise ConfigError(
            f"the drafter does not fit the target: it reads layer {highest}, the target's last is"
            f" {target.num_layers - 1}"
        )


def check_tokens(drafter: DrafterFile, target: GGUFFile) -> None:
    """Refuse a drafter whose file has other tokens than the target's; a folder has none.

    Raises:
        ConfigError: They disagree; the message has both tokens.
    """
    tokens = drafter.tokens()
    if tokens is not None:
        check_same_table(drafter.path, tokens, target)


def _folder_names(folder: SafetensorsFolder) -> dict[str, str]:
    names: dict[str, str] = {}
    for theirs in folder.tensors:
        if theirs in _TRAINING_ONLY:
            continue
        ours = our_name(theirs.removeprefix("model."))
        if ours in names:
            raise FileFormatError(f"{folder.path}: {names[ours]} and {theirs} are one tensor")
        names[ours] = theirs
    return names


def _check_file(file: DrafterFile, *, label: Callable[[str], str]) -> None:
    """Check what neither format's reader sees alone."""
    config, path = file.config, file.path
    if config.conv is not None and config.hidden_size % config.conv.group_size:
        raise FileFormatError(
            f"{path}: rows of width {config.hidden_size} have no groups of {config.conv.group_size}"
        )
    if config.selector is not None and config.selector.top_k > config.vocab_size:
        raise FileFormatError(
            f"{path}: {config.selector.top_k} candidates of {config.vocab_size} tokens"
        )
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise FileFormatError(
            f"{path}: the mask token is {config.mask_token_id} of {config.vocab_size} tokens"
        )
    check_expected(
        file, expected_tensors(config), home=f"a drafter of {config.num_layers} layers", label=label
    )
    if any(a >= b for a, b in pairwise(config.target_layer_ids)):
        raise UnsupportedError(
            f"{path}: reads target layers {list(config.target_layer_ids)}; only ascending ones are"
            " supported"
        )
    if config.selector is not None and config.draft_vocab_size is not None:
        raise UnsupportedError(
            f"{path}: has a candidate selector and a reduced vocabulary of"
            f" {config.draft_vocab_size}; only one of them is supported"
        )
    _check_head_tokens(config, path)
    _check_accepted(config, path)
    if config.window is not None and config.window < config.block_size:
        raise UnsupportedError(
            f"{path}: the window of {config.window} is smaller than the block of"
            f" {config.block_size}, which is not supported"
        )


def _check_accepted(config: DrafterConfig, path: Path) -> None:
    """Shares of the first 1, 2, ... drafts: each at most that before it."""
    shares = (1.0, *config.accepted)
    if not all(0 <= b <= a for a, b in pairwise(shares)) or len(shares) > config.block_size:
        raise FileFormatError(
            f"{path}: accepted_by_position is {list(config.accepted)}; it must be at most"
            f" {config.block_size - 1} shares from 1 down to 0, each at most that before it"
        )


def _check_head_tokens(config: DrafterConfig, path: Path) -> None:
    token_ids = config.head_token_ids
    if token_ids is None:
        return
    if config.own_head:
        raise FileFormatError(
            f"{path}: has a head of its own and head_token_ids, which choose rows of the target's"
        )
    if any(a >= b for a, b in pairwise(token_ids)):
        raise FileFormatError(f"{path}: head_token_ids do not ascend")
    top_k = 1 if config.selector is None else config.selector.top_k
    if len(token_ids) < top_k:
        raise FileFormatError(
            f"{path}: head_token_ids has {len(token_ids)} tokens for {top_k} candidates"
        )
    if token_ids[0] < 0 or token_ids[-1] >= config.vocab_size:
        wrong = token_ids[0] if token_ids[0] < 0 else token_ids[-1]
        raise FileFormatError(
            f"{path}: head_token_ids has the token {wrong} of {config.vocab_size}"
        )
