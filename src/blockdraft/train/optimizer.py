"""The optimizer of a run: AdamW, or Muon for matrices and AdamW for the rest.

Knows names and shapes of parameters, no loss.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Parameter

from blockdraft.train.muon import Muon
from blockdraft.train.settings import Optimization
from blockdraft.weights.drafter_names import FEATURE_PROJECTION

__all__ = ["RunOptimizer"]

_NO_MATRIX = "_conv_base"
"""End of the names of tables of per-channel numbers."""

_SLOW = (FEATURE_PROJECTION, "_conv_proj.weight")
"""Ends of the names of matrices with a rate of their own."""


class RunOptimizer:
    """Moves all parameters of a run."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        settings: Optimization,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Take the parameters by name.

        Args:
            parameters: Float32; their order decides the layout of `state_dict`.
            settings: Of the steps.
            dtype: Of matrix products.
        """
        matrices = {
            name: values
            for name, values in parameters.items()
            if settings.kind == "muon" and values.dim() == 2 and not name.endswith(_NO_MATRIX)
        }
        slow = {
            name: values
            for name, values in parameters.items()
            if settings.slow != 1 and name not in matrices and name.endswith(_SLOW)
        }
        rest = [values for name, values in parameters.items() if name not in {**matrices, **slow}]
        self._parameters = list(parameters.values())
        self._muon = None
        if matrices:
            self._muon = Muon(
                matrices,
                settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
                dtype=dtype,
            )
        decay = settings.weight_decay
        groups = [
            ([each for each in rest if each.dim() > 1], decay),
            ([each for each in rest if each.dim() == 1], 0.0),
        ]
        self._factors = [1.0, 1.0]
        if slow:
            groups.append((list(slow.values()), decay))
            self._factors.append(settings.slow)
        self._adamw = torch.optim.AdamW(
            [{"params": params, "weight_decay": one} for params, one in groups],
            lr=settings.learning_rate,
            betas=settings.betas,
            fused=True,
        )

    def step(self, rate: float) -> None:
        """Move by the gradients, at a learning rate, and forget them."""
        for group, factor in zip(self._adamw.param_groups, self._factors, strict=True):
            group["lr"] = factor * rate
        self._adamw.step()
        if self._muon is not None:
            self._muon.rate = rate
            self._muon.step()
        for each in self._parameters:
            each.grad = None

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: AdamW's own, or that of both by name."""
        if self._muon is None:
            return self._adamw.state_dict()
        return {"adamw": self._adamw.state_dict(), "muon": self._muon.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a state of the same kind of optimizer."""
        if self._muon is None:
            self._adamw.load_state_dict(dict(state))
            return
        self._adamw.load_state_dict(state["adamw"])
        self._muon.load_state_dict(state["muon"])
