"""The loss of drafted rows and its gradient, in chunks: no logits of a whole pass ever exist.

Takes rows before the head, as `blockdraft.ops.torch.TrainingOps` keeps them, and gives the
gradient with respect to them: the head is frozen. Knows no corpus and no optimizer.

Notation: A blocks of K = B - 1 drafted rows; position k = 1..K in the block; q the probability
that the drafter gives the true token. R rows of the head.

Sources: arXiv:2602.06036, section 4.2 (exponential decay); arXiv:2605.18810 (D-PACE).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockdraft.train.head import FrozenHead
from blockdraft.train.selector import SelectorLoss
from blockdraft.train.settings import Objective
from blockdraft.train.soft_labels import SoftLabels

__all__ = ["BlockLoss", "PositionStats", "loss_normalizer", "position_weights"]

_CHUNK_ROWS = 2048
_CACHED = 1 << 18
"""Logits that stay in a CPU's cache between operations."""


@dataclass(slots=True, eq=False)
class PositionStats:
    """Sums over blocks, by position.

    Attributes:
        sums: The properties below, "6 K", in float64.
        blocks: Blocks.
        weighted_loss: What is minimized, before it is normalized.
    """

    sums: Tensor
    blocks: float = 0.0
    weighted_loss: float = 0.0

    @classmethod
    def zeros(cls, num_positions: int) -> "PositionStats":
        """Of no blocks."""
        return cls(torch.zeros(6, num_positions, dtype=torch.float64))

    def add(self, other: "PositionStats") -> None:
        """Add blocks that have as many positions or fewer."""
        self.sums[:, : other.sums.shape[1]] += other.sums
        self.blocks += other.blocks
        self.weighted_loss += other.weighted_loss

    @property
    def loss(self) -> Tensor:
        """Of cross-entropies in nats, unweighted, [K]."""
        return self.sums[0]

    @property
    def labels(self) -> Tensor:
        """Rows with a label, [K]."""
        return self.sums[1]

    @property
    def right(self) -> Tensor:
        """Rows whose best token is the true one, [K]; the selector's best where there is one."""
        return self.sums[2]

    @property
    def survived(self) -> Tensor:
        """Blocks that are right up to and including each position, [K]."""
        return self.sums[3]

    @property
    def unary_right(self) -> Tensor:
        """Rows whose best token before the selector is the true one, [K]."""
        return self.sums[4]

    @property
    def recalled(self) -> Tensor:
        """Rows whose true token is a candidate of the selector, [K]."""
        return self.sums[5]

    @property
    def mean_acceptance_length(self) -> float:
        """Tau that greedy drafting would have with true tokens before every block."""
        return 1 + float(self.survived.sum()) / max(self.blocks, 1)


class BlockLoss:
    """Loss of blocks under one head."""

    def __init__(
        self, head: FrozenHead, objective: Objective, selector: SelectorLoss | None = None
    ) -> None:
        """Bind the parts.

        Args:
            head: Frozen.
            objective: Weights of positions.
            selector: Trained along; None for DFlash 1.
        """
        self.head = head
        self.objective = objective
        self.selector = selector

    def evaluate(self, hidden: Tensor, labels: Tensor, previous: Tensor) -> PositionStats:
        """Statistics alone, with logits in float32; see `gradient`."""
        exact = BlockLoss(self.head.exact(), self.objective, self.selector)
        return exact._run(hidden, labels, previous)[1]

    def gradient(
        self,
        hidden: Tensor,
        labels: Tensor,
        previous: Tensor,
        scale: float,
        *,
        soft: SoftLabels | None = None,
    ) -> tuple[Tensor, PositionStats]:
        """Gradient of ``scale`` times the summed loss, and statistics.

        The gradient of the selector's parameters is added to their ``grad``.

        Args:
            hidden: Rows before the head, "A K width".
            labels: Row of the head of each true token, "A K"; negative where there is none.
            previous: True target token before each row, "A K".
            scale: Factor on the loss.
            soft: Soft labels, for an objective that has a share of them.
        """
        grad, stats = self._run(hidden, labels, previous, scale, soft)
        assert grad is not None
        return grad, stats

    def _run(
        self,
        hidden: Tensor,
        labels: Tensor,
        previous: Tensor,
        scale: float | None = None,
        soft: SoftLabels | None = None,
    ) -> tuple[Tensor | None, PositionStats]:
        hidden = hidden.detach()
        num_positions = labels.shape[1]
        stats = PositionStats.zeros(num_positions)
        grad = None if scale is None else torch.empty_like(hidden)
        step = max(1, _CHUNK_ROWS // num_positions)
        for start in range(0, len(labels), step):
            part = slice(start, start + step)
            near = None if soft is None else soft.of(part)
            chunk = _Chunk(self, hidden[part], labels[part], previous[part], near)
            if grad is not None and scale is not None:
                grad[part] = chunk.backward(scale).view_as(grad[part])
            stats.add(chunk.stats)
        return grad, stats


class _Chunk:
    """Logits of some blocks, turned into their gradient in place.

    One product with the head; what follows takes a few rows at a time, which stay in cache.
    """

    def __init__(
        self,
        loss: BlockLoss,
        hidden: Tensor,
        labels: Tensor,
        previous: Tensor,
        soft: SoftLabels | None,
    ) -> None:
        self._loss = loss
        self._rows = hidden.flatten(0, 1)
        self._valid = labels >= 0
        self._labels = labels.clamp_min(0).flatten()[:, None]
        self._product = loss.head.product(self._rows)
        self._teacher = None if soft is None else soft.distributions(loss.head)
        true, self._best, self._total, likely = (
            self._rows.new_empty(len(self._rows), 1, dtype=torch.float32) for _ in range(4)
        )
        top: list[tuple[Tensor, Tensor]] = []
        for part in self._parts():
            logits = loss.head.finished(self._product[part])
            true[part] = logits.gather(1, self._labels[part])
            self._best[part] = logits.amax(1, keepdim=True)
            if loss.selector is not None:
                top.append(torch.topk(logits, loss.selector.top_k, dim=1))
            if self._teacher is not None:
                likely[part, 0] = torch.linalg.vecdot(self._teacher.of(part), logits)
            self._total[part] = (logits - self._best[part]).exp_().sum(1, keepdim=True)
        log_total = self._total.log() + self._best
        self._cross_entropy = (log_total - true).view_as(labels)
        self._divergence = None
        if self._teacher is not None:
            entropy = self._teacher.entropy[self._teacher.places][:, None]
            self._divergence = (log_total - likely - entropy).view_as(labels)
        self._weights = position_weights(loss.objective, (-self._cross_entropy).exp(), self._valid)
        self._choice = None
        if loss.selector is not None:
            unary, candidates = (torch.cat(each) for each in zip(*top, strict=True))
            self._choice = loss.selector.choose(
                self._rows,
                (unary, candidates),
                (true, self._labels),
                previous.flatten(),
                loss.head.token_ids,
            )
        unary_right = (true >= self._best).view_as(labels) & self._valid
        self.stats = self._statistics(unary_right)

    def _parts(self) -> Iterator[slice]:
        num_rows, width = self._product.shape
        is_cpu = self._product.device.type == "cpu"
        step = max(1, _CACHED // width) if is_cpu else num_rows
        for start in range(0, num_rows, step):
            yield slice(start, start + step)

    def _statistics(self, unary_right: Tensor) -> PositionStats:
        valid = self._valid
        right, recalled = unary_right, unary_right
        unary, share = self._cross_entropy, self._loss.objective.soft
        if self._divergence is not None:
            unary = (1 - share) * unary + share * self._divergence
        weighted = (unary * self._weights).sum()
        if self._choice is not None:
            right = self._choice.is_right.view_as(valid) & valid
            recalled = self._choice.is_recalled.view_as(valid) & valid
            weighted = weighted + self._selector_loss().detach()
        survived = right.double().cumprod(1)
        counted = (self._cross_entropy * valid, valid, right, survived, unary_right, recalled)
        return PositionStats(
            torch.stack([each.double().sum(0) for each in counted]).cpu(),
            blocks=float(len(valid)),
            weighted_loss=float(weighted),
        )

    def _selector_loss(self) -> Tensor:
        assert self._choice is not None
        weights = self._weights.flatten() * self._loss.objective.selector
        return (self._choice.cross_entropy * self._choice.counts * weights).sum()

    def backward(self, scale: float) -> Tensor:
        """Gradient with respect to the rows, "rows width"; overwrites the logits."""
        weights = self._weights.view(-1, 1) * scale
        share = 0.0 if self._teacher is None else self._loss.objective.soft
        of_rows = of_unary = None
        if self._choice is not None:
            of_rows, of_unary = self._choice.backward(self._selector_loss() * scale)
        head = self._loss.head
        for part in self._parts():
            logits = head.finished(self._product[part])
            # d tanh(x) = 1 - tanh(x)^2.
            slope = None if head.softcap is None else 1 - (logits / head.softcap).square()
            grad = (logits - self._best[part]).exp_().mul_(weights[part] / self._total[part])
            if self._teacher is not None:
                grad.sub_(self._teacher.of(part).mul_(weights[part] * share))
            grad.scatter_add_(1, self._labels[part], (share - 1) * weights[part])
            if self._choice is not None and of_unary is not None:
                grad.scatter_add_(1, self._choice.candidates[part], of_unary[part])
            self._product[part] = grad if slope is None else grad.mul_(slope)
        grad = (self._product @ head.weight).float().mul_(head.scale)
        return grad if of_rows is None else grad + of_rows


def loss_normalizer(objective: Objective, labels: Tensor) -> float:
    """What the summed loss of blocks with ``labels`` "A K" is divided by.

    Sums of decaying weights are known beforehand; those of D-PACE depend on the drafter, and labels
    are counted instead.
    """
    valid = labels >= 0
    if objective.weighting == "dpace":
        return float(valid.sum())
    return float(position_weights(objective, valid.double(), valid).sum())


def position_weights(objective: Objective, confidence: Tensor, valid: Tensor) -> Tensor:
    """Weight of every row, "A K"; 0 where there is no label.

    Args:
        objective: Which rule.
        confidence: Probability of each row's true token, "A K"; not differentiated.
        valid: Whether a row has a label, "A K".
    """
    if objective.weighting == "decay":
        places = torch.arange(valid.shape[1], device=valid.device, dtype=confidence.dtype)
        return (-places / objective.gamma).exp() * valid
    # w_j = sum over m >= j of the product over i <= m of (1 - alpha) q_i + alpha.
    smoothed = (1 - objective.alpha) * confidence.detach() + objective.alpha
    alive = (smoothed * valid).cumprod(1)
    return alive.flip(1).cumsum(1).flip(1) * valid
