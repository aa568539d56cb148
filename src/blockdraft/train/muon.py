"""Muon: momentum whose singular values are all made about one, for matrices.

Every direction of a matrix then moves as much as any other; AdamW's steps follow the few that
dominate the gradient. Steps are scaled to the size of AdamW's, so that one learning rate serves
both. Knows no model.

Sources: K. Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024 (iteration and
its coefficients); arXiv:2502.16982, section 2.2 (scale of a step).
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

__all__ = ["Muon", "orthogonalized"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAMW_RMS = 0.2


class Muon:
    """Steps of some matrices.

    Attributes:
        rate: Learning rate of the next step.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        rate: float,
        *,
        momentum: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Take matrices by name.

        Args:
            parameters: Float32.
            rate: Learning rate of the first step.
            momentum: Share of the gradients before.
            weight_decay: Per step and unit of the learning rate.
            dtype: Of the products that make a step orthogonal.
        """
        self.rate = rate
        self._parameters = dict(parameters)
        self._momentum = momentum
        self._decay = weight_decay
        self._dtype = dtype
        self._averages: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every matrix that has a gradient."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            average = self._averages.setdefault(name, torch.zeros_like(parameter))
            average.mul_(self._momentum).add_(parameter.grad)
            ahead = parameter.grad.add(average, alpha=self._momentum)
            size = _ADAMW_RMS * max(parameter.shape) ** 0.5
            parameter.mul_(1 - self.rate * self._decay)
            step = orthogonalized(ahead.to(self._dtype)).to(parameter.dtype)
            parameter.add_(step, alpha=-self.rate * size)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by name."""
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the momentum of `state_dict`."""
        self._averages = {
            name: values.to(self._parameters[name].device) for name, values in state.items()
        }


def orthogonalized(matrix: Tensor) -> Tensor:
    """The matrix with singular values near one, between 0.7 and 1.2; of zeros, zeros."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
