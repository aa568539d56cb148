"""Tiny DFlash networks for tiny targets, on the native core, and what feeds them by hand.

Random drafts are never right, so networks may bring a *coin head* whose most probable token is
always one of two; a target that is biased to the same two accepts about half of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from blockdraft.models.drafter import DrafterModel, load_drafter
from blockdraft.models.target import TargetModel, load_target
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.speculative import CommittedRows, DFlashDrafter, DraftTask
from blockdraft.weights.drafter import DrafterFile
from tests.tiny_drafter import TinyDrafter

__all__ = [
    "COINS",
    "FEATURES",
    "HIDDEN",
    "NETWORKS",
    "TAPS",
    "TOSSED",
    "VOCAB_SIZE",
    "ScriptedNetwork",
    "committed",
    "features_of_run",
    "filled",
    "load_network",
    "load_networks",
    "load_tapped",
    "network",
    "scripted",
    "task_of",
]

TAPS = (0, 2, 3)
HIDDEN, VOCAB_SIZE = 64, 299
FEATURES = HIDDEN * len(TAPS)
COINS = (7, 9)
TOSSED = SamplingParams(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    frequency_penalty=1.0,
    repeat_last_n=-1,
    seed=1,
    logit_bias=tuple((token_id, 80.0) for token_id in COINS),
)
"""How a target writes coins only, and about as many of each."""

GREEDY = SamplingParams(temperature=0.0)


def _coin_head() -> NDArray[np.float32]:
    """A head with the rows a and -a for the coins and 0 for all other tokens."""
    head = np.zeros((VOCAB_SIZE, HIDDEN), np.float32)
    row = np.random.default_rng(5).standard_normal(HIDDEN).astype(np.float32)
    head[COINS[0]], head[COINS[1]] = row, -row
    return head


def network(*, has_coin_head: bool = False, **options: Any) -> TinyDrafter:
    """A drafter for any tiny target; ``options`` are the fields of `TinyDrafter`."""
    shape = TinyDrafter(
        hidden=HIDDEN,
        vocab_size=VOCAB_SIZE,
        mask_token_id=VOCAB_SIZE - 1,
        target_layer_ids=TAPS,
        num_target_layers=None,
        block_size=4,
    )
    extra = {"lm_head.weight": _coin_head()} if has_coin_head else {}
    return replace(shape, extra=extra, **options)


NETWORKS = {
    "dflash": network(),
    "dflash, window": network(kinds=("sliding", "sliding"), window=9, is_causal=True),
    "dflash, mixed": network(kinds=("full", "sliding"), window=70, is_causal=False),
    "dflash2": network(is_dflash2=True, is_causal=False),
    "dflash2, window": network(is_dflash2=True, kinds=("sliding", "sliding"), window=21),
}


def load_tapped(path: Path, *, max_rows: int = 64) -> TargetModel:
    """A target on one thread that gives the features of `TAPS`."""
    return load_target(path, num_threads=1, max_rows=max_rows, taps=TAPS)


def load_network(shape: TinyDrafter, folder: Path, target: TargetModel) -> DrafterModel:
    """The network of ``shape``, written below ``folder`` and loaded for ``target``."""
    with DrafterFile.open(shape.write_folder(folder)) as file:
        return load_drafter(file, target)


def load_networks(
    shapes: Mapping[str, TinyDrafter], folder: Path, target: TargetModel
) -> dict[str, DrafterModel]:
    """All of ``shapes`` by name."""
    return {name: load_network(shape, folder / name, target) for name, shape in shapes.items()}


def features_of_run(num_rows: int, seed: int = 0) -> NDArray[np.float32]:
    """Random target features, float32 [rows, FEATURES]; a shorter run is the start of a longer."""
    return np.random.default_rng(seed).standard_normal((num_rows, FEATURES)).astype(np.float32)


def committed(
    cache: SequenceCache,
    features: NDArray[np.float32],
    *,
    sequence_id: int = 0,
    start: int | None = None,
    prompt_length: int = 0,
) -> CommittedRows:
    """Rows with these features after what ``cache`` has; a prompt of length 0 is seen whole."""
    start = cache.length if start is None else start
    token_ids = np.zeros(len(features), np.int32)
    return CommittedRows(sequence_id, start, token_ids, features, cache, prompt_length)


def filled(drafter: Any, num_rows: int, seed: int = 0) -> SequenceCache:
    """A cache in a pool of its own, told of ``num_rows`` rows."""
    cache = SequenceCache(KVPool(drafter.cache_layout, 64 << 20))
    if num_rows:
        drafter.observe([committed(cache, features_of_run(num_rows, seed))])
    return cache


def task_of(
    cache: SequenceCache | None,
    *,
    num_tokens: int | None = None,
    anchor: int = 5,
    max_drafts: int = 63,
    params: SamplingParams = GREEDY,
    choice: int = 0,
    sequence_id: int = 0,
) -> DraftTask:
    """What the engine would ask after the rows of ``cache``."""
    if num_tokens is None:
        assert cache is not None
        num_tokens = cache.length + 1
    tokens: Sequence[int] = [0] * (num_tokens - 1) + [anchor]
    return DraftTask(sequence_id, np.array(tokens, np.int32), max_drafts, params, choice, cache)


class ScriptedNetwork:
    """Stands for `DrafterModel`: the same candidates for every block.

    Attributes:
        widths: Rows per block of every drafting pass.
    """

    def __init__(
        self,
        token_ids: NDArray[np.int32],
        scores: NDArray[np.float32] | None,
        *,
        probs: NDArray[np.float32] | None = None,
        max_rows: int = 64,
    ) -> None:
        self.config: Any = SimpleNamespace(block_size=len(token_ids) + 1, mask_token_id=298)
        self.layout = KVLayout(1, 16, (0,))
        self.max_rows = max_rows
        self.features = np.zeros((max_rows, FEATURES), np.float32)
        self.widths: list[list[int]] = []
        blank = np.zeros(token_ids.shape, np.float32)
        self._found = Candidates(token_ids, blank, blank if probs is None else probs, scores)

    def inject(self, batch: Batch) -> None:
        """Nothing is stored."""

    def draft(self, batch: Batch) -> Candidates:
        widths = np.diff(batch.row_starts).tolist()
        self.widths.append(widths)
        each = [None if a is None else a[: widths[0] - 1] for a in self._arrays()]
        stacked = [None if a is None else np.concatenate([a] * len(widths)) for a in each]
        return Candidates(*stacked)  # type: ignore[arg-type]

    def _arrays(self) -> Sequence[NDArray[Any] | None]:
        found = self._found
        return found.token_ids, found.logits, found.probs, found.scores


def scripted(
    *args: Any, tree_nodes: int = 0, **options: Any
) -> tuple[DFlashDrafter, ScriptedNetwork]:
    """A drafter with a scripted network, and the network."""
    model: Any = ScriptedNetwork(*args, **options)
    return DFlashDrafter(model, tree_nodes=tree_nodes), model
