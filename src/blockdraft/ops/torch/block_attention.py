"""Attention of many blocks behind one context, with a gradient written by hand.

Equals `Attention` on the same pass, at a fraction of its memory traffic: blocks are taken in
chunks that stay in cache, keys that no block of a chunk sees are not multiplied, and a mask touches
only the columns on which the blocks of a chunk differ. Fastest when the blocks of a context come
in the order of their anchors. Knows the rows, their places and contexts; no weights.

Notation: A blocks of B rows behind S positions; H key/value heads that G query heads share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockdraft.config import RopeConfig
from blockdraft.ops.protocol import AttentionSpec
from blockdraft.ops.torch.attention import Attention
from blockdraft.ops.torch.batch import BlockGroup, TorchPass
from blockdraft.ops.torch.fused import rotate_halves

__all__ = ["BlockAttention"]

# Scores of a chunk are rows x heads x context floats; 192 rows of 9 heads over 256 are 1.8 MB.
_CHUNK_ROWS = 192
_DEVICE_CHUNK_ROWS = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Blocks that are attended together.

    Attributes:
        blocks: Their range in the group.
        width: Rows of a block, B.
        keys: Context rows that any of them sees.
        hidden: (first column, one past the last, mask "A B columns" of what is not seen) of the
            parts of ``keys`` that some row does not see.
        hidden_block: Rows of its block that a row does not see, "A B B"; None: it sees all.
    """

    blocks: tuple[int, int]
    width: int
    keys: tuple[int, int]
    hidden: tuple[tuple[int, int, Tensor], ...]
    hidden_block: Tensor | None


class BlockAttention(Attention):
    """Rotations and masks of one drafting or injecting pass, made once each."""

    def __init__(self, batch: TorchPass) -> None:
        """Start without any."""
        super().__init__(batch)
        self._chunks: dict[tuple[int, bool, int | None, int], list[_Chunk]] = {}

    def rotate(self, heads: Tensor, rope: RopeConfig) -> Tensor:
        """Heads "M heads head_dim" turned by their rows' positions."""
        if rope.interleaved or rope.dims != heads.shape[-1]:
            return super().rotate(heads, rope)
        return rotate_halves(heads, *self.angles(rope))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec[Tensor]) -> Tensor:
        """Attended values "M heads head_dim" of scaled, rotated queries."""
        if self._batch.places is None or spec.softcap is not None:
            return super().attend(q, k, v, spec)
        attended = []
        for group in self._batch.groups():
            num_blocks, width = group.positions.shape
            rows = slice(group.start, group.start + num_blocks * width)
            keys, values = group.context.layer(spec.layer_idx) or (k[:0], v[:0])
            chunks = self._chunks_of(group, len(keys), spec)
            attended.append(
                _BlockAttention.apply(q[rows], k[rows], v[rows], keys, values, chunks)  # type: ignore[no-untyped-call]
            )
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _chunks_of(
        self, group: BlockGroup, num_context: int, spec: AttentionSpec[Tensor]
    ) -> list[_Chunk]:
        key = (group.start, spec.causal, spec.window, num_context)
        if key not in self._chunks:
            self._chunks[key] = list(_cut(group, num_context, spec.causal, spec.window))
        return self._chunks[key]


def _cut(group: BlockGroup, num_context: int, causal: bool, window: int | None) -> Iterator[_Chunk]:
    """The group in chunks, each with what its rows do not see."""
    positions = group.positions
    num_blocks, width = positions.shape
    budget = _CHUNK_ROWS if positions.device.type == "cpu" else _DEVICE_CHUNK_ROWS
    step = max(1, budget // width)
    anchors = (positions[:, 0] - group.context.first).tolist()
    for start in range(0, num_blocks, step):
        stop = min(start + step, num_blocks)
        nearest, farthest = min(anchors[start:stop]), max(anchors[start:stop])
        low, all_low = 0, 0
        if window is not None:
            low = min(max(nearest - window + 1, 0), num_context)
            all_low = min(max(farthest + width - window, low), num_context)
        high = min(max(farthest, low), num_context)
        all_high = min(max(nearest, low), high)
        places = positions[start:stop] - group.context.first
        parts = ((low, all_low), (all_high, high)) if all_low < all_high else ((low, high),)
        yield _Chunk(
            (start, stop),
            width,
            (low, high),
            tuple(
                (first - low, last - low, ~_seen(places, first, last, window))
                for first, last in parts
                if first < last
            ),
            _unseen_in_block(places, causal, window),
        )


def _seen(places: Tensor, first: int, last: int, window: int | None) -> Tensor:
    """Which of the context's rows [first, last) each row sees, "A B columns"."""
    context = torch.arange(first, last, device=places.device)
    seen = (context < places[:, :1, None]).expand(-1, places.shape[1], -1)
    return seen if window is None else seen & (places[:, :, None] - context < window)


def _unseen_in_block(places: Tensor, causal: bool, window: int | None) -> Tensor | None:
    width = places.shape[1]
    if not causal and (window is None or window >= width):
        return None
    distances = places[:, :, None] - places[:, None]
    unseen = torch.zeros_like(distances, dtype=torch.bool)
    if causal:
        unseen |= distances < 0
    if window is not None:
        unseen |= distances >= window
    return unseen


class _BlockAttention(torch.autograd.Function):
    """Keeps queries, keys, values and the weights of every chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context_keys: Tensor,
        context_values: Tensor,
        chunks: list[_Chunk],
    ) -> Tensor:
        out = torch.empty_like(q)
        kept: list[Tensor] = []
        keys, values = context_keys.transpose(0, 1), context_values.transpose(0, 1)
        for chunk in chunks:
            view = _View(q, k, v, chunk)
            low, high = chunk.keys
            scores = view.scores(keys[:, low:high])
            view.hide(scores)
            weights = scores.softmax(-1)
            of_context = weights[..., : high - low]
            of_block = weights[..., high - low :]
            attended = of_context @ values[:, low:high]
            attended += view.within(of_block, view.values)
            out[view.rows] = view.as_rows(attended)
            kept += [view.queries, weights]
        ctx.save_for_backward(q, k, v, context_keys, context_values, *kept)
        ctx.chunks = chunks
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, context_keys, context_values, *kept = ctx.saved_tensors
        of_q, of_k, of_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        keys, values = context_keys.transpose(0, 1), context_values.transpose(0, 1)
        of_keys, of_values = torch.zeros_like(context_keys), torch.zeros_like(context_values)
        sums = of_keys.transpose(0, 1), of_values.transpose(0, 1)
        for chunk, queries, weights in zip(ctx.chunks, kept[::2], kept[1::2], strict=True):
            view = _View(q, k, v, chunk, queries)
            low, high = chunk.keys
            size = high - low
            g = view.as_heads(grad[view.rows])
            of_scores = torch.cat((g @ values[:, low:high].mT, view.against(g, view.values)), -1)
            # The softmax's gradient: w * (g - sum(w * g)).
            of_scores.sub_((of_scores * weights).sum(-1, keepdim=True)).mul_(weights)
            of_context, of_block = of_scores[..., :size], of_scores[..., size:]
            of_queries = of_context @ keys[:, low:high]
            of_queries += view.within(of_block, view.keys)
            of_q[view.rows] = view.as_rows(of_queries)
            of_k[view.rows] = view.gathered(of_block, queries)
            of_v[view.rows] = view.gathered(weights[..., size:], g)
            sums[0][:, low:high] += of_context.mT @ queries
            sums[1][:, low:high] += weights[..., :size].mT @ g
        return of_q, of_k, of_v, of_keys, of_values, None


class _View:
    """A chunk's rows arranged for batched products, "H A*B*G head_dim".

    Attributes:
        rows: Of the group.
        queries: The chunk's.
        keys: Of the blocks themselves, "H A B head_dim".
        values: The same.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chunk: _Chunk,
        queries: Tensor | None = None,
    ) -> None:
        start, stop = chunk.blocks
        width = chunk.width
        self.rows = slice(start * width, stop * width)
        self._chunk = chunk
        self._shape = (stop - start, width, k.shape[1], q.shape[1] // k.shape[1], q.shape[2])
        self.keys, self.values = (self._by_block(x[self.rows]) for x in (k, v))
        self.queries = self.as_heads(q[self.rows]) if queries is None else queries

    def _by_block(self, x: Tensor) -> Tensor:
        num_blocks, width, num_kv_heads, _, head_dim = self._shape
        return x.reshape(num_blocks, width, num_kv_heads, head_dim).permute(2, 0, 1, 3)

    def as_heads(self, x: Tensor) -> Tensor:
        """Rows "A*B heads head_dim" as "H A*B*G head_dim"."""
        num_blocks, width, num_kv_heads, shared, head_dim = self._shape
        split = x.reshape(num_blocks * width, num_kv_heads, shared, head_dim)
        return split.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)

    def as_rows(self, x: Tensor) -> Tensor:
        """Back from `as_heads`."""
        num_blocks, width, num_kv_heads, shared, head_dim = self._shape
        split = x.reshape(num_kv_heads, num_blocks * width, shared, head_dim)
        return split.transpose(0, 1).reshape(num_blocks * width, -1, head_dim)

    def scores(self, context_keys: Tensor) -> Tensor:
        """Products with the context's and the block's keys, "H A*B*G S+B"."""
        in_block = self.against(self.queries, self.keys)
        return torch.cat((self.queries @ context_keys.mT, in_block), dim=-1)

    def hide(self, scores: Tensor) -> None:
        """Set scores of what is not seen to minus infinity."""
        num_blocks, width, num_kv_heads, shared, _ = self._shape
        by_row = scores.view(num_kv_heads, num_blocks, width, shared, -1)
        for first, last, mask in self._chunk.hidden:
            by_row[..., first:last].masked_fill_(mask[None, :, :, None], -torch.inf)
        if self._chunk.hidden_block is not None:
            mask = self._chunk.hidden_block[None, :, :, None]
            by_row[..., -width:].masked_fill_(mask, -torch.inf)

    def against(self, x: Tensor, rows: Tensor) -> Tensor:
        """Products of "H A*B*G head_dim" with their own block's rows, "H A*B*G B"."""
        return (self._split(x) @ rows.mT).flatten(1, 2)

    def within(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Sums of the own block's rows under "H A*B*G B", "H A*B*G head_dim"."""
        return (self._split(weights) @ rows).flatten(1, 2)

    def gathered(self, weights: Tensor, x: Tensor) -> Tensor:
        """What each row of a block gets from its block's queries, "A*B H head_dim"."""
        summed = self._split(weights).mT @ self._split(x)
        return summed.permute(1, 2, 0, 3).flatten(0, 1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self._shape[0], -1))  # type: ignore[no-untyped-call]
