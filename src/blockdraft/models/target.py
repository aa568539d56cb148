"""A target model, loaded: the decoder recorded for the native core, ready for ragged passes.

Knows no requests and no text; K/V pages come with each batch.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

from blockdraft import _native
from blockdraft.config import ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout, KVPool
from blockdraft.models.decoder import build_decoder
from blockdraft.ops.batch import Batch, PassResult
from blockdraft.ops.native import NativeOps
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import PackedWeights

__all__ = ["MAX_ROWS", "TargetModel", "load_target"]

MAX_ROWS = 256
"""Rows of a pass unless told otherwise; a longer prompt is cut into chunks of this size."""


class TargetModel:
    """One set of packed weights with its recorded pass.

    Attributes:
        config: Shape of the decoder.
        max_rows: Most rows of one pass.
        num_threads: Threads of the native core.
        weight_bytes: Packed size of all matrices.
        macs_per_row: Multiply-accumulates of the matrices for one row with logits.
        native_seconds: Time spent in native passes so far, in seconds.
        taps: Layers whose output each pass returns as features.
        pool: Threads of its passes.
        embedding: Packed table, "vocab hidden".
        head: Packed output matrix; the embedding where they are tied.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: PackedWeights,
        *,
        num_threads: int,
        isa: str | None,
        taps: Sequence[int],
        max_rows: int,
    ) -> None:
        """Record the pass; see `load_target`."""
        self.config = config
        self.max_rows = max_rows
        self.num_threads = num_threads
        self.native_seconds = 0.0
        self.taps = tuple(taps)
        self.pool = _native.Pool(num_threads)
        decoder = build_decoder(config, weights)
        self.embedding, self.head = decoder.weights.embedding, decoder.weights.head
        ops = NativeOps(
            max_rows,
            config.windowed_layers,
            isa=isa,
            feature_size=len(taps) * config.hidden_size,
        )
        logits = decoder.forward(ops, taps)
        self._plan = ops.finish_pass(self.pool, logits)
        self.weight_bytes = weights.nbytes
        self.macs_per_row = _macs_per_row(config)

    @property
    def isa(self) -> str:
        """Instruction set path in use."""
        return self._plan.isa

    def new_cache_pool(self, max_bytes: int) -> KVPool:
        """K/V memory for this model, at most ``max_bytes``."""
        return KVPool(KVLayout.from_config(self.config), max_bytes)

    def forward(self, batch: Batch) -> PassResult:
        """One ragged pass; writes the K/V of every row. The result is a view until the next."""
        start = perf_counter()
        result = self._plan.run(batch)
        self.native_seconds += perf_counter() - start
        return result


def load_target(
    file: GGUFFile | str | Path,
    *,
    num_threads: int | None = None,
    isa: str | None = None,
    taps: Sequence[int] = (),
    max_rows: int = MAX_ROWS,
) -> TargetModel:
    """Load a GGUF file for the native core.

    Args:
        file: An open file, which stays open, or the path of one.
        num_threads: Threads of a pass; None is one per processor that this process may use.
        isa: Instruction set path ("scalar", "avx2", "avx512"); None is the best of this machine.
        taps: Layers whose output residual stream each pass returns as features.
        max_rows: Most rows of one pass.

    Raises:
        FileFormatError: The file is damaged or its tensors do not fit together.
        UnsupportedError: The architecture or a tensor type is not one of ours.
        ConfigError: A thread count or instruction set that this machine cannot honour.
    """
    threads = len(os.sched_getaffinity(0)) if num_threads is None else num_threads
    if not 1 <= threads <= 256:
        raise ConfigError(f"threads is {threads}; it must be in [1, 256]")
    if isa is not None and isa not in _native.isa_names():
        names = ", ".join(_native.isa_names())
        raise ConfigError(f"instruction set {isa} is not available; this machine runs {names}")
    with nullcontext(file) if isinstance(file, GGUFFile) else GGUFFile.open(file) as opened:
        config = read_model_config(opened)
        weights = PackedWeights(opened, threads)
        weights.load_all(name for name, info in opened.tensors.items() if len(info.shape) == 2)
        return TargetModel(
            config, weights, num_threads=threads, isa=isa, taps=taps, max_rows=max_rows
        )


def _macs_per_row(config: ModelConfig) -> int:
    attention = 2 * config.num_heads * config.head_dim + 2 * config.num_kv_heads * config.head_dim
    per_layer = config.hidden_size * (attention + 3 * config.ffn_size)
    return config.num_layers * per_layer + config.hidden_size * config.vocab_size
