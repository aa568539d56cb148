"""A drafter whose weights are parameters: the network of `models.dflash` on torch tensors.

One definition serves training and inference: this file only holds the weights, runs passes over
many blocks, and writes out what was learned. The selector is not part of the passes; its loss has
it (`blockdraft.train.selector`). Knows no corpus, no loss and no optimizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from blockdraft.config import DrafterConfig
from blockdraft.models.dflash import build_dflash
from blockdraft.ops.protocol import Linear
from blockdraft.ops.torch import Place, TorchContext, TorchMatrix, TorchPass, TrainingOps
from blockdraft.train.anchors import Blocks
from blockdraft.train.selector import SelectorMaps, SelectorTables, SelectorWeights
from blockdraft.weights.drafter_names import (
    SELECTOR_PREDECESSOR,
    SELECTOR_PROJECTION,
    SELECTOR_SUCCESSOR,
)

__all__ = ["TrainableDrafter"]

_SELECTOR = (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR, SELECTOR_PROJECTION)


class TrainableDrafter:
    """Parameters by name and the passes over them.

    Attributes:
        config: Shape and flags.
        parameters: float32 masters under the names of `weights.drafter_names`; of the selector
            the maps, or rows of the tables.
        embedding: The target's table, frozen, "vocab width".
        selector: Of DFlash 2; None for DFlash 1.
    """

    selector: SelectorWeights | None

    def __init__(
        self,
        config: DrafterConfig,
        tensors: Mapping[str, NDArray[np.float32]],
        *,
        embedding: Tensor,
        dtype: torch.dtype = torch.float32,
        table_rows: Tensor | None = None,
    ) -> None:
        """Make parameters of ``tensors``.

        Args:
            config: Shape and flags.
            tensors: First values.
            embedding: The target's table; its device is the drafter's.
            dtype: Of matrix products, for which `refresh` rounds the weights. Rows between them
                have it on a GPU; a CPU computes them faster in float32.
            table_rows: For a selector of free tables, each token's row in ``tensors``, negative
                where it has none; None: ``tensors`` has maps of the embedding.
        """
        device = embedding.device
        self.config = config
        self.embedding = embedding
        self.parameters = {
            name: Parameter(torch.tensor(values, device=device))
            for name, values in sorted(tensors.items())
        }
        self._dtype = torch.float32 if device.type == "cpu" else dtype
        self._rounded = {
            name: values.detach().to(dtype)
            for name, values in self.parameters.items()
            if dtype != torch.float32 and values.dim() == 2 and name not in _SELECTOR
        }
        self.selector = None
        if config.selector is not None:
            before, after, gate = (self.parameters[name] for name in _SELECTOR)
            if table_rows is None:
                self.selector = SelectorMaps(before, after, gate, embedding)
            else:
                self.selector = SelectorTables(before, after, gate, table_rows.to(device))
        table = TorchMatrix(embedding.to(self._dtype))
        # Passes end before the head: any matrix serves as one.
        self._network = build_dflash(
            replace(config, selector=None),
            _Source(self.parameters, self._rounded),
            embedding=table,
            head=Linear(table),
        )

    @property
    def num_parameters(self) -> int:
        """Trained numbers."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def refresh(self) -> None:
        """Round the weights anew; call it after they changed."""
        for name, values in self._rounded.items():
            values.copy_(self.parameters[name].detach())

    def hidden(self, features: Sequence[Tensor], blocks: Sequence[Blocks]) -> list[Tensor]:
        """Rows before the head of all masked rows, "A B-1 width" per sequence.

        Args:
            features: Target features of each sequence from its first token, as many tokens as
                its blocks see, "tokens size"; columns behind the drafter's are not read.
            blocks: Blocks of each sequence.
        """
        device = self.embedding.device
        contexts = [TorchContext() for _ in blocks]
        size = self.config.feature_size
        seen = [
            each[: part.num_features, :size].to(device)
            for each, part in zip(features, blocks, strict=True)
        ]
        batch = TorchPass.inject(seen, contexts, dtype=self._dtype)
        self._network.inject(TrainingOps(batch))
        ops = TrainingOps(self._drafting(contexts, blocks))
        self._network.draft(ops)
        rows = torch.split(ops.before_head.hidden, [_num_masked(part) for part in blocks])
        return [
            each.view(len(part.positions), part.width - 1, -1)
            for each, part in zip(rows, blocks, strict=True)
        ]

    def _drafting(self, contexts: Sequence[TorchContext], blocks: Sequence[Blocks]) -> TorchPass:
        ids: list[list[int]] = []
        places: list[Place] = []
        wanted: list[int] = []
        row = 0
        for context, part in zip(contexts, blocks, strict=True):
            masked = [self.config.mask_token_id] * (part.width - 1)
            for position in part.positions.tolist():
                ids.append([int(part.sequence.token_ids[position]), *masked])
                places.append(Place(context, position))
                wanted += range(row + 1, row + part.width)
                row += part.width
        return TorchPass(
            ids,
            dtype=self._dtype,
            device=self.embedding.device,
            places=places,
            logit_rows=wanted,
        )

    @torch.no_grad()
    def export(self) -> dict[str, NDArray[np.float32]]:
        """Weights under the names and in the shapes of `weights.drafter_names`.

        The selector's maps are written out as tables.
        """
        tensors = {
            name: values.detach().float().cpu().numpy() for name, values in self.parameters.items()
        }
        if self.selector is not None:
            before, after = self.selector.tables()
            tensors[SELECTOR_PREDECESSOR] = before.cpu().numpy()
            tensors[SELECTOR_SUCCESSOR] = after.cpu().numpy()
        return tensors


class _Source:
    """Parameters as a network asks for them."""

    def __init__(self, parameters: Mapping[str, Parameter], rounded: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._rounded = rounded
        self._matrices: dict[str, TorchMatrix] = {}

    def matrix(self, name: str) -> TorchMatrix:
        if name not in self._matrices:
            rounded = self._rounded.get(name)
            self._matrices[name] = TorchMatrix(self._parameters[name], rounded=rounded)
        return self._matrices[name]

    def vector(self, name: str) -> Tensor:
        return self._parameters[name]

    def has(self, name: str) -> bool:
        return name in self._parameters


def _num_masked(blocks: Blocks) -> int:
    return len(blocks.positions) * (blocks.width - 1)
