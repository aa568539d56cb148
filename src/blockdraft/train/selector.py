"""Training of DFlash 2's candidate selector: linear maps of frozen embedding rows, or free tables.

The score of candidate b after token a is ``logit(b) + <A e_a * W h, B e_b>`` with e the target's
embedding, h the row before the head, and A, B, W trained. An export writes the tables ``A e`` and
``B e`` out, as the checkpoints' layout has them: a rare token then shares what frequent ones
learned, at a fraction of the parameters of two free tables. Free tables have rows for the draft
vocabulary alone; other tokens have no voice. Knows no network and no head.

Source: inco.ai/blog/dflash2; its parameter counts fit maps of frozen rows.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Choice", "SelectorLoss", "SelectorMaps", "SelectorTables", "SelectorWeights"]


class SelectorWeights(Protocol):
    """What is trained of a selector."""

    def gains(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """What each candidate gains, "rows candidates".

        Args:
            hidden: Rows before the head, "rows width".
            before: Token before each row, [rows].
            candidates: Tokens of candidates, "rows candidates".
        """
        ...

    def tables(self) -> tuple[Tensor, Tensor]:
        """Codebooks of predecessors and successors, each "vocab rank"."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SelectorMaps:
    """Linear maps of the embedding.

    Attributes:
        predecessor: A, "rank width".
        successor: B, "rank width".
        projection: W, "rank width".
        embedding: Frozen, "vocab width".
    """

    predecessor: Tensor
    successor: Tensor
    projection: Tensor
    embedding: Tensor

    def gains(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """See `SelectorWeights`."""
        gated = (self.embedding[before] @ self.predecessor.T) * (hidden @ self.projection.T)
        # Taking the query to the embedding's space costs one product, not one per candidate.
        query = (gated @ self.successor).unsqueeze(-1)
        return (self.embedding[candidates] @ query).squeeze(-1)

    def tables(self) -> tuple[Tensor, Tensor]:
        """See `SelectorWeights`."""
        embedding = self.embedding.float()
        return embedding @ self.predecessor.T, embedding @ self.successor.T


@dataclass(frozen=True, slots=True, eq=False)
class SelectorTables:
    """Free rows of the tokens of the draft vocabulary.

    Attributes:
        predecessor: "R rank".
        successor: "R rank".
        projection: W, "rank width".
        row_of: Row of each token, negative where it has none, [vocab].
    """

    predecessor: Tensor
    successor: Tensor
    projection: Tensor
    row_of: Tensor

    def gains(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """See `SelectorWeights`; candidates are of the draft vocabulary."""
        rows = self.row_of[before]
        known = (rows >= 0)[:, None]
        gates = functional.embedding(rows.clamp_min(0), self.predecessor) * known
        gated = gates * (hidden @ self.projection.T)
        after = functional.embedding(self.row_of[candidates], self.successor)
        return (after @ gated.unsqueeze(-1)).squeeze(-1)

    def tables(self) -> tuple[Tensor, Tensor]:
        """See `SelectorWeights`; zeros where a token has no row."""
        known = (self.row_of >= 0)[:, None]
        rows = self.row_of.clamp_min(0)
        return self.predecessor[rows] * known, self.successor[rows] * known


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
    """Chooses among the candidates that a head gives, with the true token before each row.

    Attributes:
        top_k: Candidates per row.
    """

    def __init__(self, weights: SelectorWeights, top_k: int, *, inject_truth: bool = True) -> None:
        """Bind the parts.

        Args:
            weights: Trained.
            top_k: Candidates per row.
            inject_truth: Put a true token that is no candidate in the last one's place; False
                leaves such rows out of the loss.
        """
        self.top_k = top_k
        self._weights = weights
        self._inject_truth = inject_truth

    def choose(
        self,
        hidden: Tensor,
        best: tuple[Tensor, Tensor],
        truth: tuple[Tensor, Tensor],
        previous: Tensor,
        token_ids: Tensor,
    ) -> Choice:
        """Scores of the candidates of each row.

        Args:
            hidden: Rows before the head, "rows width".
            best: Largest logits and their head rows, "rows top_k"; overwritten.
            truth: Logit and head row of the true token, "rows 1".
            previous: True target token before each row, [rows].
            token_ids: Target token of each head row, [R].
        """
        (unary, candidates), (of_truth, labels) = best, truth
        is_true = candidates == labels
        recalled = is_true.any(1)
        if self._inject_truth:
            candidates[:, -1:] = torch.where(recalled[:, None], candidates[:, -1:], labels)
            unary[:, -1:] = torch.where(recalled[:, None], unary[:, -1:], of_truth)
            is_true = candidates == labels
        with torch.enable_grad():
            hidden = hidden.detach().float().requires_grad_()
            unary = unary.detach().requires_grad_()
            scores = unary + self._weights.gains(hidden, previous, token_ids[candidates])
            place = is_true.float().argmax(1)
            loss = functional.cross_entropy(scores.float(), place, reduction="none")
        counts = is_true.any(1).float()
        right = (scores.detach().argmax(1) == place) & recalled
        return Choice(candidates, loss, counts, right, recalled, hidden, unary)
