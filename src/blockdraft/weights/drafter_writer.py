"""Writes a drafter: as a Hugging Face folder in z-lab's layout, or as llama.cpp's GGUF.

Tensors come one at a time from a mapping, which may read or compute them when asked. A file
appears only when it is whole. Knows no training and no network.

Source: z-lab's checkpoints; llama.cpp's model ``dflash``.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import DrafterConfig
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter_json import folder_config
from blockdraft.weights.drafter_keys import gguf_keys
from blockdraft.weights.drafter_names import (
    MASK_EMBEDDING,
    VOCAB_MAP,
    expected_tensors,
    folder_name,
)
from blockdraft.weights.drafter_types import choose_types
from blockdraft.weights.encoders import encode
from blockdraft.weights.ggml_types import ggml_type_name, ggml_type_number
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.gguf_writer import NewTensor, write_gguf
from blockdraft.weights.replacing import replacing
from blockdraft.weights.safetensors_writer import SafetensorsEntry, write_safetensors
from blockdraft.weights.tensors import ExpectedTensor, format_shape

__all__ = ["FOLDER_DTYPES", "FOLDER_FILES", "write_drafter_folder", "write_drafter_gguf"]

FOLDER_DTYPES = ("bf16", "f16", "f32")
"""Types of the weights in a folder."""

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_MASK_WEIGHTS = "mask_embedding.safetensors"

FOLDER_FILES = (_CONFIG, _WEIGHTS, _MASK_WEIGHTS)
"""Names of all files that a folder may get."""

_I64 = "I64"
_LARGEST = {"F32": 3.4028234e38, "BF16": 3.3895313e38, _I64: 2.0**31}
_LARGEST_HALF = 65504.0  # of F16, and of the scales of all block types


def write_drafter_folder(
    directory: Path,
    config: DrafterConfig,
    tensors: Mapping[str, NDArray[Any]],
    *,
    dtype: str = "bf16",
) -> None:
    """Write ``config.json`` and ``model.safetensors``, which z-lab, vLLM and SGLang read.

    Args:
        directory: The folder; it is made where it is missing, and files of the same name in it
            are replaced.
        config: The drafter; its name is not written.
        tensors: Values under the names of `weights.drafter_names`, in the shapes of
            `expected_tensors`; each is asked for once. ``d2t`` holds the target token of every
            draft token.
        dtype: One of `FOLDER_DTYPES`.

    Raises:
        ConfigError: ``tensors`` are not those of ``config``, a value is not finite or too large
            for ``dtype``, or there is no such type.
        UnsupportedError: The layout has no key for something in ``config``.
        OSError: The folder cannot be written.
    """
    if dtype not in FOLDER_DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(FOLDER_DTYPES)}")
    content = folder_config(config, dtype)
    expected = list(expected_tensors(config))
    _check_names(expected, tensors)
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        _write_weights(directory, expected, tensors, dtype.upper())
        with replacing(directory / _CONFIG) as file:
            file.write(json.dumps(content, indent=2).encode() + b"\n")
    except BaseException:
        if is_new:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def write_drafter_gguf(
    path: Path,
    config: DrafterConfig,
    tensors: Mapping[str, NDArray[Any]],
    *,
    type_name: str,
    target: GGUFFile,
) -> None:
    """Write a GGUF file of architecture ``dflash``, which llama.cpp loads as a draft model.

    Args:
        path: The file; one that is there is replaced.
        config: The drafter; the number of the target's layers is not written.
        tensors: As for `write_drafter_folder`.
        type_name: One of `weights.drafter_types.FILE_TYPES`.
        target: A file with the target's tokenizer, whose keys are copied: the target, or a
            drafter of it.

    Raises:
        ConfigError: ``tensors`` are not those of ``config``, a value is not finite or too large
            for its type, there is no such type, or the tokenizer has another number of tokens.
        UnsupportedError: The architecture has no place for something in ``config``.
        OSError: The file cannot be written.
    """
    types = choose_types(config, type_name)
    keys = gguf_keys(config, type_name=type_name, target=target)
    expected = list(expected_tensors(config))
    _check_names(expected, tensors)
    write_gguf(
        path,
        keys,
        [NewTensor(each.name, each.shape, each.ggml_type) for each in types],
        _encoded(expected, tensors, [ggml_type_name(each.ggml_type) for each in types]),
    )


def _write_weights(
    directory: Path,
    expected: list[ExpectedTensor],
    tensors: Mapping[str, NDArray[Any]],
    float_type: str,
) -> None:
    """Write the safetensors files; a mask embedding has one of its own."""
    mask = [each for each in expected if each.name == MASK_EMBEDDING]
    for file_name, part in (
        (_WEIGHTS, [each for each in expected if each not in mask]),
        (_MASK_WEIGHTS, mask),
    ):
        if not part:
            (directory / file_name).unlink(missing_ok=True)
            continue
        types = [_I64 if each.name == VOCAB_MAP else float_type for each in part]
        entries = [
            SafetensorsEntry(folder_name(each.name), type_name, each.shape)
            for each, type_name in zip(part, types, strict=True)
        ]
        values = _encoded(part, tensors, types, map_as_distances=True)
        write_safetensors(directory / file_name, entries, values)


def _encoded(
    expected: list[ExpectedTensor],
    tensors: Mapping[str, NDArray[Any]],
    types: list[str],
    *,
    map_as_distances: bool = False,
) -> Iterator[NDArray[Any]]:
    """Bytes of each tensor in GGML's type of that name.

    Folders keep the vocabulary map as distances from the row number.
    """
    for each, type_name in zip(expected, types, strict=True):
        values = _checked(each, tensors, _LARGEST.get(type_name, _LARGEST_HALF))
        if type_name == _I64:
            yield values.astype("<i8") - np.arange(len(values)) * map_as_distances
        else:
            yield encode(ggml_type_number(type_name), values.reshape(-1, values.shape[-1]))


def _check_names(expected: list[ExpectedTensor], tensors: Mapping[str, NDArray[Any]]) -> None:
    known = {each.name for each in expected}
    for name in sorted(known - tensors.keys()):
        raise ConfigError(f"the drafter has no tensor {name}, which its configuration needs")
    for name in sorted(tensors.keys() - known):
        raise ConfigError(
            f"the drafter has a tensor {name}, for which its configuration has no use"
        )


def _checked(
    expected: ExpectedTensor, tensors: Mapping[str, NDArray[Any]], largest: float
) -> NDArray[Any]:
    """Values of one tensor, all between plus and minus ``largest``."""
    values = np.asarray(tensors[expected.name])
    if values.shape != expected.shape:
        raise ConfigError(
            f"tensor {expected.name} is {format_shape(values.shape)}; {expected.because} need"
            f" {format_shape(expected.shape)}"
        )
    # Not "> largest": that is false for a value that is no number.
    bad = np.flatnonzero(~(np.abs(values) <= largest))
    if bad.size:
        raise ConfigError(
            f"tensor {expected.name} has the value {values.flat[bad[0]]} at index {bad[0]}; the"
            f" largest that its type holds is {largest:g}"
        )
    return values
