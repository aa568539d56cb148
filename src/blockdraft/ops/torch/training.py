"""`DrafterOps` for training: the same network up to its head, faster, on many blocks at once.

A pass ends before the head. Its loss is made in chunks of rows (`blockdraft.train.loss`), since
logits of a whole pass would be the largest tensor by far; the final norm's rows and the head are
kept here for it. Knows no loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.ops.protocol import Linear, Norm, Selection, Selector
from blockdraft.ops.torch.batch import TorchPass
from blockdraft.ops.torch.block_attention import BlockAttention
from blockdraft.ops.torch.fused import (
    fused_convolve,
    fused_gated,
    fused_rms_norm,
    rounded_linears,
)
from blockdraft.ops.torch.operations import Rows, TorchOps
from blockdraft.ops.torch.weights import TorchMatrix

__all__ = ["BeforeHead", "TrainingOps"]


@dataclass(frozen=True, slots=True, eq=False)
class BeforeHead:
    """Where a pass stopped.

    Attributes:
        hidden: Final norm's rows, of the rows whose logits the pass wants, "rows width".
        head: The head that was not applied.
        scale: Factor on its output.
        softcap: Cap of the scaled output, or None.
    """

    hidden: Tensor
    head: Linear[TorchMatrix, Tensor]
    scale: float
    softcap: float | None


class TrainingOps(TorchOps):
    """`DrafterOps` for one pass of a network that is being trained.

    Attributes:
        before_head: Set by `logits`.
    """

    before_head: BeforeHead
    _norm = staticmethod(fused_rms_norm)
    _mix = staticmethod(fused_convolve)
    _silu_gated = staticmethod(fused_gated)

    def __init__(self, batch: TorchPass) -> None:
        """Start a pass."""
        super().__init__(batch)
        self._attention = BlockAttention(batch)

    def _linears(self, x: Tensor, linears: Sequence[Linear[TorchMatrix, Tensor]]) -> list[Tensor]:
        matrices = [linear.weight for linear in linears]
        rounded = [each.rounded for each in matrices if each.rounded is not None]
        if len(rounded) != len(matrices):
            return super()._linears(x, linears)
        found = rounded_linears(x, [each.values for each in matrices], rounded)
        return [
            y if linear.bias is None else y + linear.bias.to(y.dtype)
            for y, linear in zip(found, linears, strict=True)
        ]

    def logits(
        self,
        x: Rows,
        norm: Norm[Tensor],
        head: Linear[TorchMatrix, Tensor],
        *,
        scale: float,
        softcap: float | None,
    ) -> Rows:
        """Keep what the logits would be made of in ``before_head``; returns the normed rows."""
        hidden = self._norm(self._wanted(x), norm)
        self.before_head = BeforeHead(hidden, head, scale, softcap)
        return Rows(hidden)

    def select(
        self,
        x: Rows,
        norm: Norm[Tensor],
        logits: Rows,
        selector: Selector[TorchMatrix, Tensor],
    ) -> Selection[Rows]:
        """Refuse: networks are trained without their selector, which the loss adds.

        Raises:
            ConfigError: Always.
        """
        del x, norm, logits
        raise ConfigError(
            f"a selector of {selector.top_k} candidates is trained with the loss, not in a pass"
        )
