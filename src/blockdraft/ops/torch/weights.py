"""Weights as torch tensors.

Knows no architecture and no file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ArraySource", "TorchMatrix", "TorchWeights"]


@dataclass(frozen=True, slots=True, eq=False)
class TorchMatrix:
    """A weight matrix.

    Attributes:
        values: "out in".
        is_quantized: The native core multiplies it with int8 activations.
        rounded: A copy in fewer bits, with which training multiplies; None: with ``values``.
    """

    values: Tensor
    is_quantized: bool = False
    rounded: Tensor | None = None


class ArraySource(Protocol):
    """Weights as float32 arrays by name."""

    def matrix(self, name: str, /) -> NDArray[np.float32]:
        """The matrix "out in" called ``name``."""
        ...

    def vector(self, name: str, /) -> NDArray[np.float32]:
        """The vector called ``name``."""
        ...

    def has(self, name: str, /) -> bool:
        """Whether there is a tensor called ``name``."""
        ...


class TorchWeights:
    """Tensors of an array source, converted once each; float32 on the CPU shares its memory."""

    def __init__(
        self,
        source: ArraySource,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        is_quantized: Callable[[str], bool] | None = None,
    ) -> None:
        """Wrap ``source``.

        Args:
            source: Where the arrays come from.
            dtype: Of every tensor.
            device: Of every tensor.
            is_quantized: Whether the native core holds the named matrix quantized; None means no.
        """
        self._source = source
        self._dtype = dtype
        self._device = device
        self._is_quantized = is_quantized
        self._matrices: dict[str, TorchMatrix] = {}

    def matrix(self, name: str) -> TorchMatrix:
        """The matrix called ``name``; the same object at every call."""
        if name not in self._matrices:
            values = self._tensor(self._source.matrix(name))
            quantized = self._is_quantized is not None and self._is_quantized(name)
            self._matrices[name] = TorchMatrix(values, quantized)
        return self._matrices[name]

    def vector(self, name: str) -> Tensor:
        """The vector called ``name``."""
        return self._tensor(self._source.vector(name))

    def has(self, name: str) -> bool:
        """Whether there is a tensor called ``name``."""
        return self._source.has(name)

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        # torch warns when it wraps read-only memory.
        array = array if array.flags.writeable else array.copy()
        return torch.from_numpy(array).to(self._device, self._dtype)
