"""Soft labels: what the target itself found likely at every place of its answers.

The target's last residual stream is tapped along with the drafter's features, by the same native
prefill; its final norm and the training head turn a row into the distribution of the next token.
Distributions are made for the rows that a chunk of the loss needs and dropped with it: memory is
that of a chunk's logits, however large the vocabulary. Knows no weights of a drafter.

Notation: A blocks of K drafted rows; T rows of the target; R rows of the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdraft.train.anchors import Blocks
from blockdraft.train.head import FrozenHead

__all__ = ["Distributions", "SoftLabels", "Teacher", "taps_with_teacher"]


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """Over the head's rows.

    Attributes:
        probs: "distinct R".
        entropy: In nats, [distinct].
        places: Which of them is that of each drafted token, [A*K].
    """

    probs: Tensor
    entropy: Tensor
    places: Tensor

    def of(self, rows: slice) -> Tensor:
        """Those of some drafted tokens, "rows R"."""
        return self.probs[self.places[rows]]


@dataclass(frozen=True, slots=True, eq=False)
class SoftLabels:
    """Where the distributions of some blocks' tokens come from.

    Attributes:
        rows: The target's rows before its head, "T width".
        places: Row that predicts each drafted token, "A K".
    """

    rows: Tensor
    places: Tensor

    def of(self, blocks: slice) -> "SoftLabels":
        """Those of some of the blocks."""
        return SoftLabels(self.rows, self.places[blocks])

    def distributions(self, head: FrozenHead) -> "Distributions":
        """The distributions, of each of the target's rows once: neighbouring blocks share them."""
        needed, places = torch.unique(self.places.flatten(), return_inverse=True)
        log_probs = head.finished(head.product(self.rows[needed])).log_softmax(1)
        probs = log_probs.exp()
        return Distributions(probs, -torch.linalg.vecdot(probs, log_probs), places)


class Teacher:
    """The end of the target: its final norm, for rows of its last layer."""

    def __init__(self, norm: Tensor, eps: float) -> None:
        """Take the norm.

        Args:
            norm: Its weight, [width]; its device is the labels'.
            eps: Of the norm.
        """
        self._norm = norm
        self._eps = eps

    def of(self, features: Tensor, blocks: Blocks) -> SoftLabels:
        """Soft labels of the blocks of one sequence.

        Args:
            features: Of the sequence from its first token; the last columns are the target's last
                layer.
            blocks: Its blocks.
        """
        device, width = self._norm.device, len(self._norm)
        first = int(blocks.positions[0])
        rows = functional.rms_norm(
            features[first:, -width:].to(device), (width,), self._norm, self._eps
        )
        offsets = torch.arange(blocks.width - 1, device=device) - first
        # Rows behind the end have no label; any distribution does for them.
        places = torch.from_numpy(blocks.positions).to(device)[:, None] + offsets
        return SoftLabels(rows, places.clamp_max(len(rows) - 1))


def taps_with_teacher(taps: Sequence[int], num_target_layers: int) -> tuple[int, ...]:
    """The drafter's taps, and the target's last layer as the last one."""
    last = num_target_layers - 1
    return (*taps, last) if taps[-1] != last else tuple(taps)
