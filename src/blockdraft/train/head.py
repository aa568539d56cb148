"""The target's head as training has it: frozen, and only the rows of the draft vocabulary.

Knows no loss.
"""

from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["FrozenHead"]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenHead:
    """The target's head, or some of its rows.

    Attributes:
        weight: "R width".
        token_ids: Target token of each row, [R].
        scale: Factor on its output.
        softcap: Cap of the scaled output, or None.
    """

    weight: Tensor
    token_ids: Tensor
    scale: float = 1.0
    softcap: float | None = None

    def exact(self) -> "FrozenHead":
        """The same head with a float32 weight: logits in fewer bits have ties at the top."""
        return replace(self, weight=self.weight.float())

    def product(self, hidden: Tensor) -> Tensor:
        """Rows "rows width" times the weight, in its dtype, "rows R"."""
        return hidden.to(self.weight.dtype) @ self.weight.T

    def finished(self, product: Tensor) -> Tensor:
        """Logits of what `product` gives, in float32; not to be written to."""
        logits = product.float()
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh_()
