"""Training of DFlash 2's candidate selector: linear maps of frozen embedding rows.

The score of candidate b after token a is ``logit(b) + <A e_a * W h, B e_b>`` with e the target's
embedding, h the row before the head, and A, B, W trained. An export writes the tables ``A e`` and
``B e`` out, as the checkpoints' layout has them: a rare token then shares what frequent ones
learned, at a fraction of the parameters of two free tables. Knows no network and no head.

Source: inco.ai/blog/dflash2; its parameter counts fit maps of frozen rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Choice", "SelectorLoss", "SelectorMaps"]


@dataclass(frozen=True, slots=True, eq=False)
class SelectorMaps:
    """Trained parts of a selector.

    Attributes:
        predecessor: A, "rank width".
        successor: B, "rank width".
        projection: W, "rank width".
    """

    predecessor: Tensor
    successor: Tensor
    projection: Tensor

    def gains(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """What each candidate gains, "rows candidates".

        Args:
            hidden: Rows before the head, "rows width".
            before: Embedding of the token before each row, "rows width".
            candidates: Embeddings of candidates, "rows candidates width".
        """
        gated = (before @ self.predecessor.T) * (hidden @ self.projection.T)
        # Taking the query to the embedding's space costs one product, not one per candidate.
        return (candidates @ (gated @ self.successor).unsqueeze(-1)).squeeze(-1)

    def tables(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Codebooks of predecessors and successors, each "vocab rank"."""
        return embedding @ self.predecessor.T, embedding @ self.successor.T


@dataclass(slots=True, eq=False)
class Choice:
    """The selector's view of some rows; the graph reaches back to its inputs.

    Attributes:
        candidates: Head rows, "rows top_k".
        cross_entropy: Of the true candidate, [rows].
        counts: 1 where a row takes part in the loss, [rows].
        is_right: Whether the best candidate is the true token, none injected, [rows].
        is_recalled: Whether the true token is a candidate by itself, [rows].
    """

    candidates: Tensor
    cross_entropy: Tensor
    counts: Tensor
    is_right: Tensor
    is_recalled: Tensor
    _hidden: Tensor
    _unary: Tensor

    def backward(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of ``loss`` for the rows before the head and the candidates' logits."""
        loss.backward()  # type: ignore[no-untyped-call]
        assert self._hidden.grad is not None
        assert self._unary.grad is not None
        return self._hidden.grad, self._unary.grad


class SelectorLoss:
    """Chooses among the candidates that a head gives, with the true token before each row."""

    def __init__(
        self, maps: SelectorMaps, embedding: Tensor, top_k: int, *, inject_truth: bool = True
    ) -> None:
        """Bind the parts.

        Args:
            maps: Trained.
            embedding: Frozen, "vocab width".
            top_k: Candidates per row.
            inject_truth: Put a true token that is no candidate in the last one's place; False
                leaves such rows out of the loss.
        """
        self.maps = maps
        self._embedding = embedding
        self._top_k = top_k
        self._inject_truth = inject_truth

    def choose(
        self, hidden: Tensor, logits: Tensor, labels: Tensor, previous: Tensor, token_ids: Tensor
    ) -> Choice:
        """Scores of the candidates of each row.

        Args:
            hidden: Rows before the head, "rows width".
            logits: Of all head rows, "rows R".
            labels: True head row, "rows 1".
            previous: True target token before each row, [rows].
            token_ids: Target token of each head row, [R].
        """
        unary, candidates = logits.topk(self._top_k, dim=1)
        is_true = candidates == labels
        recalled = is_true.any(1)
        if self._inject_truth:
            candidates[:, -1:] = torch.where(recalled[:, None], candidates[:, -1:], labels)
            unary[:, -1:] = torch.where(recalled[:, None], unary[:, -1:], logits.gather(1, labels))
            is_true = candidates == labels
        with torch.enable_grad():
            hidden = hidden.detach().requires_grad_()
            unary = unary.detach().requires_grad_()
            before = self._embedding[previous]
            gains = self.maps.gains(hidden, before, self._embedding[token_ids[candidates]])
            scores = unary + gains
            place = is_true.float().argmax(1)
            loss = functional.cross_entropy(scores.float(), place, reduction="none")
        counts = is_true.any(1).float()
        right = (scores.detach().argmax(1) == place) & recalled
        return Choice(candidates, loss, counts, right, recalled, hidden, unary)
