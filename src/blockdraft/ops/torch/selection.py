"""Candidates of drafted rows and the scores of their transitions.

Knows no pass: logits, hidden states and tokens in, scores out. Training scores the true
predecessors with the same functions.
"""

import torch
from torch import Tensor

from blockdraft.ops.protocol import Selector
from blockdraft.ops.torch.weights import TorchMatrix

__all__ = ["select_candidates", "transition_scores"]


def select_candidates(logits: Tensor, top_k: int) -> Tensor:
    """Ids of the largest logits, "rows top_k": by logit, then by lower id."""
    # topk promises no order among equals.
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]


def transition_scores(
    selector: Selector[TorchMatrix, Tensor],
    gates: Tensor,
    predecessors: Tensor,
    candidates: Tensor,
) -> Tensor:
    """What each candidate gains after each predecessor, "rows predecessors candidates".

    Args:
        selector: Codebooks.
        gates: Projected hidden states, "rows rank".
        predecessors: Token ids, "rows predecessors".
        candidates: Token ids, "rows candidates".
    """
    before = selector.predecessors.values[predecessors] * gates[:, None]
    after = selector.successors.values[candidates]
    return torch.einsum("tir,tjr->tij", before, after)
