"""Attention and rotation on rows of a pass.

Knows the rows, their places and contexts; no weights.

Notation: n rows of a sequence; A blocks of B rows behind S positions of a context.
"""

import torch
from torch import Tensor

from blockdraft.config import RopeConfig
from blockdraft.ops.protocol import AttentionSpec
from blockdraft.ops.rope import attention_factor, inverse_frequencies
from blockdraft.ops.torch.arithmetic import soft_cap
from blockdraft.ops.torch.batch import BlockGroup, TorchPass

__all__ = ["Attention"]


class Attention:
    """Rotations and masks of one pass, made once each."""

    def __init__(self, batch: TorchPass) -> None:
        """Start without any."""
        self._batch = batch
        self._rotations: dict[RopeConfig, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, bool, int | None], Tensor] = {}

    def rotate(self, heads: Tensor, rope: RopeConfig) -> Tensor:
        """Heads "M heads head_dim" turned by their rows' positions."""
        cos, sin = self.angles(rope)
        turning, still = heads[..., : rope.dims], heads[..., rope.dims :]
        if rope.interleaved:
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = turning.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned, still), dim=-1)

    def angles(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rows' rotations, each "M 1 dims/2"."""
        if rope not in self._rotations:
            frequencies = torch.tensor(
                inverse_frequencies(rope), dtype=torch.float64, device=self._batch.device
            )
            angles = self._batch.positions[:, None, None] * frequencies
            factor, dtype = attention_factor(rope), self._batch.dtype
            self._rotations[rope] = (
                (angles.cos() * factor).to(dtype),
                (angles.sin() * factor).to(dtype),
            )
        return self._rotations[rope]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec[Tensor]) -> Tensor:
        """Attended values "M heads head_dim" of scaled, rotated queries."""
        batch = self._batch
        if batch.places is None:
            attended = [
                _attention(
                    q[start:end],
                    k[start:end],
                    v[start:end],
                    self._visible(sequence_idx, spec.causal, spec.window),
                    spec.softcap,
                )
                for sequence_idx, (start, end) in enumerate(batch.spans)
            ]
        else:
            attended = [_block_attention(q, k, v, group, spec) for group in batch.groups()]
        return torch.cat(attended)

    def _visible(self, sequence_idx: int, causal: bool, window: int | None) -> Tensor:
        """Which rows (second axis) each row (first axis) of a sequence sees, "n n"."""
        key = (sequence_idx, causal, window)
        if key not in self._masks:
            start, end = self._batch.spans[sequence_idx]
            mask = torch.ones(end - start, end - start, dtype=torch.bool)
            if causal:
                mask = _ancestors(end - start, self._batch.parents[sequence_idx])
            mask = mask.to(self._batch.device)
            if window is not None:
                positions = self._batch.positions[start:end]
                mask = mask & (positions[:, None] - positions[None, :] < window)
            self._masks[key] = mask
        return self._masks[key]


def _ancestors(num_rows: int, parents: tuple[int, ...] | None) -> Tensor:
    mask = torch.ones(num_rows, num_rows, dtype=torch.bool).tril()
    if parents is not None:
        mask = torch.eye(num_rows, dtype=torch.bool)
        for ordinal, parent in enumerate(parents):
            if parent >= 0:
                mask[ordinal] |= mask[parent]
    return mask


def _attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, softcap: float | None) -> Tensor:
    """Attended values of one sequence, "n heads head_dim"; softmax in float32 at least."""
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[2])
    scores = torch.einsum("nhgd,mhd->hgnm", grouped, k)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = soft_cap(scores, softcap).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1).to(v.dtype)
    return torch.einsum("hgnm,mhd->nhgd", weights, v).flatten(1, 2)


def _block_attention(
    q: Tensor, k: Tensor, v: Tensor, group: BlockGroup, spec: AttentionSpec[Tensor]
) -> Tensor:
    """Attended values of a group's rows over its context and each block's own rows."""
    num_blocks, width = group.positions.shape
    rows = slice(group.start, group.start + num_blocks * width)
    context_keys, context_values = group.context.layer(spec.layer_idx) or (k[:0], v[:0])
    # Queries are grouped by the K/V head that they share: "A B kv_heads group head_dim".
    queries = q[rows].reshape(num_blocks, width, k.shape[1], -1, q.shape[2])
    keys = k[rows].reshape(num_blocks, width, *k.shape[1:])
    values = v[rows].reshape(num_blocks, width, *v.shape[1:])
    scores = torch.cat(
        (
            torch.einsum("abhgd,shd->ahgbs", queries, context_keys),
            torch.einsum("abhgd,achd->ahgbc", queries, keys),
        ),
        dim=-1,
    )
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    visible = _block_visible(group, len(context_keys), spec)[:, None, None]
    scores = soft_cap(scores, spec.softcap).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1).to(v.dtype)
    of_context, of_block = weights[..., : len(context_keys)], weights[..., len(context_keys) :]
    attended = torch.einsum("ahgbs,shd->abhgd", of_context, context_values)
    attended = attended + torch.einsum("ahgbc,achd->abhgd", of_block, values)
    return attended.flatten(0, 1).flatten(1, 2)


def _block_visible(group: BlockGroup, num_context: int, spec: AttentionSpec[Tensor]) -> Tensor:
    """What each row of each block sees: context before its anchor, then its block, "A B S+B"."""
    positions = group.positions
    context = group.context.first + torch.arange(num_context, device=positions.device)
    in_context = (context < positions[:, :1, None]).expand(-1, positions.shape[1], -1)
    in_block = torch.ones_like(positions[:, :, None] - positions[:, None], dtype=torch.bool)
    if spec.causal:
        in_block = in_block.tril()
    if spec.window is not None:
        in_context = in_context & (positions[:, :, None] - context < spec.window)
        in_block = in_block & (positions[:, :, None] - positions[:, None] < spec.window)
    return torch.cat((in_context, in_block), dim=-1)
