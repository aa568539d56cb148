"""A small decoder that drafts for a large one: recorded like a target, ranked like a drafter.

Runs on the target's threads. Knows no requests and no text; K/V pages come with each batch.
"""

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout
from blockdraft.models.decoder import build_decoder
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.ops.native_drafter import NativeDrafterOps
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import PackedWeights
from blockdraft.weights.same_tokens import check_same_tokenizer

__all__ = ["SmallModel", "check_small", "load_small"]

_TOP_K = 64
"""Tokens of a row whose probabilities are known; what else may be drawn is improbable."""


class SmallModel:
    """One set of packed weights with its pass.

    Attributes:
        config: Shape of the decoder.
        layout: Shape of its K/V.
        max_rows: Most rows of one pass.
        weight_bytes: Packed size of all matrices.
    """

    def __init__(self, file: GGUFFile, target: TargetModel) -> None:
        """Pack the weights of an open file and record the pass; see `load_small`."""
        config = self.config = read_model_config(file)
        self.layout = KVLayout.from_config(config)
        self.max_rows = target.max_rows
        weights = PackedWeights(file, target.num_threads)
        weights.load_all(name for name, info in file.tensors.items() if len(info.shape) == 2)
        self.weight_bytes = weights.nbytes
        ops = NativeDrafterOps(self.max_rows, config.windowed_layers, isa=target.isa)
        logits = build_decoder(config, weights).forward(ops)
        self._pass = ops.finish_draft(target.pool, logits, None, min(_TOP_K, config.vocab_size))
        self._logits = ops.view(logits)

    def run(self, batch: Batch) -> tuple[NDArray[np.float32], Candidates]:
        """One pass; writes the K/V of every row.

        Returns logits, float32 [rows with logits, vocab], and the likeliest tokens of the same
        rows; both are views that the next pass overwrites.
        """
        found = self._pass.run(batch)
        return self._logits[: len(batch.logit_rows)], found


def check_small(file: GGUFFile, target: GGUFFile) -> None:
    """Refuse a model that cannot draft for another, before a weight of either is read.

    Raises:
        ConfigError: It cuts text in another way than the target; the message has both facts.
        FileFormatError: A file is damaged.
        UnsupportedError: The architecture or a tensor type is not one of ours.
    """
    size = read_model_config(file).vocab_size
    check_same_tokenizer(file, target)
    target_size = read_model_config(target).vocab_size
    if size != target_size:
        raise ConfigError(
            f"{file.path}: has an embedding of {size} tokens, the target has {target_size}:"
            f" {target.path}"
        )


def load_small(file: GGUFFile, target: TargetModel, *, target_file: GGUFFile) -> SmallModel:
    """The decoder of an open file, on the threads of ``target``.

    Args:
        file: Open until this returns.
        target: What it drafts for.
        target_file: Where the target came from, open.

    Raises:
        CapacityError: There is no memory for it.
        BlockdraftError: As `check_small`.
    """
    check_small(file, target_file)
    return SmallModel(file, target)
