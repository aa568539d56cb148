"""`Ops` and `DrafterOps` on torch tensors, for one pass.

Knows no architecture and no file.

Notation: M rows of all sequences of the pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from blockdraft.config import Activation, RopeConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.protocol import (
    AttentionSpec,
    Convolution,
    Linear,
    Mixing,
    Norm,
    Selection,
    Selector,
)
from blockdraft.ops.torch.arithmetic import (
    convolve,
    rms_norm,
    silu_gated,
    soft_cap,
    split,
    through_f16,
    through_int8,
)
from blockdraft.ops.torch.attention import Attention
from blockdraft.ops.torch.batch import TorchPass
from blockdraft.ops.torch.selection import select_candidates, transition_scores
from blockdraft.ops.torch.weights import TorchMatrix

__all__ = ["Rows", "TorchOps"]

TorchLinear: TypeAlias = "Linear[TorchMatrix, Tensor]"
TorchNorm: TypeAlias = Norm[Tensor]
TorchConvolution: TypeAlias = "Convolution[TorchMatrix, Tensor]"
TorchMixing: TypeAlias = "Mixing[Rows, TorchMatrix, Tensor]"
TorchSelector: TypeAlias = "Selector[TorchMatrix, Tensor]"


@dataclass(slots=True, eq=False)
class Rows:
    """Handle of an activation matrix; an update replaces ``values``, "rows width"."""

    values: Tensor


class TorchOps:
    """`Ops` on torch tensors, for one pass.

    Attributes:
        features: Tapped rows, "M width" each, in call order.
    """

    _norm = staticmethod(rms_norm)
    _mix = staticmethod(convolve)
    _silu_gated = staticmethod(silu_gated)

    def __init__(
        self,
        batch: TorchPass,
        *,
        quantize_activations: bool = False,
        store_f16: bool = False,
        head_tokens: Tensor | None = None,
    ) -> None:
        """Start a pass.

        Args:
            batch: The rows of the pass.
            quantize_activations: Round inputs of quantized matrices to int8 per group of 32, as
                the native core does (no useful gradient).
            head_tokens: Token of each row of the head; None where it has all in order.
            store_f16: Round keys and values to f16, as the native core's pages do.
        """
        self.features: list[Tensor] = []
        self._batch = batch
        self._quantize_activations = quantize_activations
        self._store_f16 = store_f16
        self._head_tokens = head_tokens
        self._attention = Attention(batch)

    def embed(self, table: TorchMatrix, *, scale: float) -> Rows:
        """See `Ops.embed`."""
        return Rows(table.values[self._batch.token_ids] * scale)

    def project(
        self, x: Rows, linears: Sequence[TorchLinear], norm: TorchNorm | None
    ) -> list[Rows]:
        """See `Ops.project`."""
        values = x.values if norm is None else self._norm(x.values, norm)
        return [Rows(each) for each in self._linears(values, linears)]

    def attend(self, q: Rows, k: Rows, v: Rows, spec: AttentionSpec[Tensor]) -> Rows:
        """See `Ops.attend`."""
        queries = self._heads(q.values, spec.num_heads, spec.q_norm, spec.rope) * spec.scale
        keys, values = self._stored(k, v, spec)
        return Rows(self._attention.attend(queries, keys, values, spec).flatten(1))

    def project_add(
        self, x: Rows, linear: TorchLinear, residual: Rows, post_norm: TorchNorm | None
    ) -> None:
        """See `Ops.project_add`."""
        y = self._linear(x.values, linear)
        residual.values = residual.values + (y if post_norm is None else self._norm(y, post_norm))

    def gated_project_add(
        self,
        gate: Rows,
        up: Rows,
        activation: Activation,
        linear: TorchLinear,
        residual: Rows,
        post_norm: TorchNorm | None,
    ) -> None:
        """See `Ops.gated_project_add`."""
        self.project_add(self._gated(gate, up, activation), linear, residual, post_norm)

    def tap(self, x: Rows) -> None:
        """See `Ops.tap`."""
        self.features.append(x.values)

    def logits(
        self, x: Rows, norm: TorchNorm, head: TorchLinear, *, scale: float, softcap: float | None
    ) -> Rows:
        """See `Ops.logits`."""
        hidden = self._norm(self._wanted(x), norm)
        return Rows(soft_cap(self._linear(hidden, head) * scale, softcap))

    # --- a drafter's

    def target_features(self, size: int) -> Rows:
        """See `DrafterOps.target_features`.

        Raises:
            ConfigError: The pass has none, or of another size.
        """
        features = self._batch.features
        if features is None or features.shape[1] != size:
            found = "none" if features is None else str(features.shape[1])
            raise ConfigError(f"a drafter takes features of {size} columns, the pass has {found}")
        return Rows(features)

    def store(self, k: Rows, v: Rows, spec: AttentionSpec[Tensor]) -> None:
        """See `DrafterOps.store`."""
        assert self._batch.places is not None, "only a context can be injected into"
        keys, values = self._stored(k, v, spec)
        for place, (start, end) in zip(self._batch.places, self._batch.spans, strict=True):
            place.context.append(spec.layer_idx, keys[start:end], values[start:end])

    def embed_masked(
        self, table: TorchMatrix, *, scale: float, mask_token_id: int, mask: Tensor
    ) -> Rows:
        """See `DrafterOps.embed_masked`."""
        token_ids = self._batch.token_ids
        rows = torch.where((token_ids == mask_token_id)[:, None], mask, table.values[token_ids])
        return Rows(rows * scale)

    def prepare(
        self,
        x: Rows,
        linears: Sequence[TorchLinear],
        norm: TorchNorm,
        conv: TorchConvolution,
    ) -> tuple[list[Rows], TorchMixing]:
        """See `DrafterOps.prepare`."""
        normed = self._norm(x.values, norm)
        mixing = Mixing(conv, Rows(self._linear(normed, conv.projection)))
        mixed = self._convolve(normed, mixing, side=0)
        return [Rows(each) for each in self._linears(mixed, linears)], mixing

    def finish(self, x: Rows, linear: TorchLinear, residual: Rows, mixing: TorchMixing) -> None:
        """See `DrafterOps.finish`."""
        y = self._linear(x.values, linear)
        residual.values = residual.values + self._convolve(y, mixing, side=1)

    def gated_finish(
        self,
        gate: Rows,
        up: Rows,
        activation: Activation,
        linear: TorchLinear,
        residual: Rows,
        mixing: TorchMixing,
    ) -> None:
        """See `DrafterOps.gated_finish`."""
        self.finish(self._gated(gate, up, activation), linear, residual, mixing)

    def select(
        self, x: Rows, norm: TorchNorm, logits: Rows, selector: TorchSelector
    ) -> Selection[Rows]:
        """See `DrafterOps.select`.

        Raises:
            ConfigError: A row with logits is the first of its sequence: nothing precedes it.
        """
        gates = self._linear(self._norm(self._wanted(x), norm), selector.projection)
        candidates = select_candidates(logits.values, selector.top_k)
        unary = logits.values.gather(1, candidates)
        if self._head_tokens is not None:
            candidates = self._head_tokens[candidates]
        predecessors = self._predecessors(candidates)
        scores = transition_scores(selector, gates, predecessors, candidates)
        return Selection(Rows(candidates), Rows((unary[:, None] + scores).flatten(1)))

    def _gated(self, gate: Rows, up: Rows, activation: Activation) -> Rows:
        if activation is Activation.SILU:
            return Rows(self._silu_gated(gate.values, up.values))
        return Rows(torch.nn.functional.gelu(gate.values, approximate="tanh") * up.values)

    def _wanted(self, x: Rows) -> Tensor:
        """Rows whose logits the pass wants."""
        rows = self._batch.logit_rows
        return x.values if rows is None else x.values[rows]

    def _predecessors(self, candidates: Tensor) -> Tensor:
        """Tokens that may stand before each wanted row, "rows top_k"."""
        batch = self._batch
        rows = batch.logit_rows
        if rows is None:
            rows = torch.arange(len(batch.token_ids), device=batch.device)
        if (batch.ordinals[rows] == 0).any():
            raise ConfigError("the first row of a block has no predecessor to select by")
        follows = torch.cat((rows.new_zeros(1, dtype=torch.bool), rows[1:] == rows[:-1] + 1))
        before = torch.cat((candidates[:1], candidates[:-1]))
        tokens = batch.token_ids[rows - 1][:, None].expand_as(candidates)
        return torch.where(follows[:, None], before, tokens)

    def _convolve(self, x: Tensor, mixing: TorchMixing, side: int) -> Tensor:
        conv = mixing.conv
        width = x.shape[1]
        kernels = mixing.kernels.values.reshape(len(x), 2, conv.taps, width // conv.group_size)
        base = conv.base.reshape(2, conv.taps, width).to(x.dtype)
        return self._mix(x, kernels[:, side], base[side], self._batch.ordinals)

    def _stored(self, k: Rows, v: Rows, spec: AttentionSpec[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values as the cache holds them, "M kv_heads head_dim"."""
        keys = self._heads(k.values, spec.num_kv_heads, spec.k_norm, spec.rope)
        values = split(v.values, spec.num_kv_heads)
        return (through_f16(keys), through_f16(values)) if self._store_f16 else (keys, values)

    def _linear(self, x: Tensor, linear: TorchLinear) -> Tensor:
        return self._linears(x, [linear])[0]

    def _linears(self, x: Tensor, linears: Sequence[TorchLinear]) -> list[Tensor]:
        return [self._multiplied(x, linear) for linear in linears]

    def _multiplied(self, x: Tensor, linear: TorchLinear) -> Tensor:
        if self._quantize_activations and linear.weight.is_quantized:
            x = through_int8(x)
        return torch.nn.functional.linear(x, linear.weight.values, linear.bias)

    def _heads(self, x: Tensor, num_heads: int, norm: TorchNorm | None, rope: RopeConfig) -> Tensor:
        """Normed and rotated heads, "M heads head_dim"."""
        heads = split(x, num_heads)
        return self._attention.rotate(heads if norm is None else self._norm(heads, norm), rope)
