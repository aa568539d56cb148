"""A drafter with torch ops over files on disk: what tests compare and generate with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.models.dflash import build_dflash, walk
from blockdraft.ops.protocol import Linear
from blockdraft.ops.torch import Place, TorchContext, TorchMatrix, TorchOps, TorchPass, TorchWeights
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.packed import FloatWeights

__all__ = ["Drafted", "TorchDrafter"]


@dataclass(frozen=True)
class Drafted:
    """One block: logits and tokens of the rows after the anchor."""

    logits: Tensor
    token_ids: list[int]
    candidates: NDArray[np.int64] | None = None
    scores: NDArray[np.float32] | None = None


class TorchDrafter:
    """A drafter file with a target's embedding and head."""

    def __init__(
        self, path: Path, embedding: Tensor, head: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.dtype = dtype
        with DrafterFile.open(path) as file:
            self.config = file.config
            self.vocab_map = file.vocab_map()
            self.network = build_dflash(
                file.config,
                TorchWeights(FloatWeights(file), dtype=dtype),
                embedding=TorchMatrix(embedding.to(dtype)),
                head=Linear(TorchMatrix(head.to(dtype))),
            )

    def inject(self, contexts: Sequence[TorchContext], features: Sequence[Tensor]) -> None:
        """Add target features of the next positions to contexts."""
        batch = TorchPass.inject(features, contexts, dtype=self.dtype)
        self.network.inject(TorchOps(batch))

    def draft(
        self, places: Sequence[Place], anchors: Sequence[int], width: int | None = None
    ) -> list[Drafted]:
        """Drafts after each anchor."""
        width = width or self.config.block_size
        blocks = [[anchor, *[self.config.mask_token_id] * (width - 1)] for anchor in anchors]
        rows = [i * width + k for i in range(len(blocks)) for k in range(1, width)]
        batch = TorchPass(blocks, dtype=self.dtype, places=places, logit_rows=rows)
        out = self.network.draft(TorchOps(batch))
        logits = out.logits.values.unflatten(0, (len(blocks), width - 1))  # type: ignore[no-untyped-call]
        if out.selection is None:
            return [Drafted(each, self._mapped(each.argmax(1).tolist())) for each in logits]
        shape = (len(blocks), width - 1, -1)
        candidates = out.selection.candidates.values.reshape(shape).numpy()
        scores = out.selection.scores.values.reshape(*shape[:2], candidates.shape[2], -1)
        return [
            Drafted(each, walk(ids, table), ids, table)
            for each, ids, table in zip(logits, candidates, scores.detach().numpy(), strict=True)
        ]

    def _mapped(self, rows: list[int]) -> list[int]:
        return rows if self.vocab_map is None else self.vocab_map[rows].tolist()
