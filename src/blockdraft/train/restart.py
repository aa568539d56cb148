"""A new run from a drafter that is there: its weights, without the state of an optimizer.

A folder holds the selector's tables, not the maps they came from; since the tables are products
with the target's full-rank embedding, least squares gives the maps back, up to the folder's
rounding. (Of tables that were trained freely it gives the nearest maps.) Knows no corpus.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import DrafterConfig
from blockdraft.errors import UnsupportedError
from blockdraft.train.prepare import Given
from blockdraft.train.settings import TrainingSettings
from blockdraft.weights.drafter import DrafterFile, check_fits
from blockdraft.weights.drafter_names import SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.tensors import EMBEDDING

__all__ = ["given_drafter"]


def given_drafter(
    path: Path, target_path: Path, settings: TrainingSettings
) -> tuple[Given, TrainingSettings]:
    """A drafter's weights, and the settings with its shape.

    Args:
        path: Its folder or GGUF file.
        target_path: GGUF file of its target.
        settings: Of the new run.

    Raises:
        ConfigError: The drafter was made for another target, or its blocks are too narrow.
        UnsupportedError: It has parts that are not trained here.
        BlockdraftError: A file cannot be read.
    """
    with DrafterFile.open(path) as file, GGUFFile.open(target_path) as target_file:
        config = file.config
        target = read_model_config(target_file)
        check_fits(config, target)
        _check_trainable(path, config)
        weights = FloatWeights(file)
        tensors = {
            name: (
                weights.matrix(name)
                if len(info.shape) == 2
                else weights.vector(name).reshape(info.shape)
            )
            for name, info in file.tensors.items()
        }
        if config.selector is not None and settings.selector == "linear":
            embedding = FloatWeights(target_file).matrix(EMBEDDING)
            for name in (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR):
                tensors[name] = _map_of(tensors[name], embedding)
    return Given(tensors, config.mask_token_id), _with_shape(settings, config)


def _check_trainable(path: Path, config: DrafterConfig) -> None:
    for what, found in (
        ("an embedding of its own", config.own_embedding),
        ("a head of its own", config.own_head),
        ("a mask embedding", config.mask_embedding),
        ("causal layers", any(config.causal_layers)),
        ("layers with and without a window", len(set(config.windowed_layers)) > 1),
        ("convolutions over three rows or more", config.conv and config.conv.kernel_size > 2),
    ):
        if found:
            raise UnsupportedError(f"{path} has {what}, which cannot be trained on")


def _map_of(table: NDArray[np.float32], embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    """The map "rank width" whose products with the embedding's rows are the table's."""
    wide = embedding.astype(np.float64)
    gram, right = wide.T @ wide, wide.T @ table.astype(np.float64)
    return np.ascontiguousarray(np.linalg.solve(gram, right).T, np.float32)


def _with_shape(settings: TrainingSettings, config: DrafterConfig) -> TrainingSettings:
    shape = replace(
        settings.shape,
        num_layers=config.num_layers,
        ffn_size=config.ffn_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        taps=config.target_layer_ids,
        block_size=config.block_size,
        window=config.window,
        conv=config.conv is not None,
        selector_rank=None if config.selector is None else config.selector.rank,
    )
    if config.selector is not None:
        shape = replace(shape, selector_top_k=config.selector.top_k)
    if config.conv is not None:
        shape = replace(shape, conv_group_size=config.conv.group_size)
    return replace(settings, shape=shape)
