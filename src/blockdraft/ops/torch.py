"""The operations on torch tensors: the oracle of the native core, and what training runs on.

Computes whole sequences at once, without a cache, in any float dtype, and differentiably: nothing
is written in place. Follows docs/numerics.md in exact arithmetic; the two roundings of the native
core that are larger than float32's, int8 activations and f16 keys and values, are options. Knows
no architecture and no file.

Notation: M rows of all sequences of the pass; n rows of one sequence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.config import Activation, RopeConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.protocol import AttentionSpec, Linear, Norm
from blockdraft.ops.rope import attention_factor, inverse_frequencies

__all__ = ["ArraySource", "Rows", "TorchMatrix", "TorchOps", "TorchPass", "TorchWeights"]

_GROUP = 32
_F16_MAX = 65504.0
_TINY = 2.0**-100

TorchLinear: TypeAlias = "Linear[TorchMatrix, Tensor]"
TorchNorm: TypeAlias = Norm[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class TorchMatrix:
    """A weight matrix.

    Attributes:
        values: "out in".
        is_quantized: The native core multiplies it with int8 activations.
    """

    values: Tensor
    is_quantized: bool = False


@dataclass(slots=True, eq=False)
class Rows:
    """Handle of an activation matrix; an update replaces ``values``, "rows width"."""

    values: Tensor


class ArraySource(Protocol):
    """Weights as float32 arrays by name."""

    def matrix(self, name: str, /) -> NDArray[np.float32]:
        """The matrix "out in" called ``name``."""
        ...

    def vector(self, name: str, /) -> NDArray[np.float32]:
        """The vector called ``name``."""
        ...

    def has(self, name: str, /) -> bool:
        """Whether there is a tensor called ``name``."""
        ...


class TorchWeights:
    """Tensors of an array source, converted once each; float32 on the CPU shares its memory."""

    def __init__(
        self,
        source: ArraySource,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        is_quantized: Callable[[str], bool] | None = None,
    ) -> None:
        """Wrap ``source``.

        Args:
            source: Where the arrays come from.
            dtype: Of every tensor.
            device: Of every tensor.
            is_quantized: Whether the native core holds the named matrix quantized; None means no.
        """
        self._source = source
        self._dtype = dtype
        self._device = device
        self._is_quantized = is_quantized
        self._matrices: dict[str, TorchMatrix] = {}

    def matrix(self, name: str) -> TorchMatrix:
        """The matrix called ``name``; the same object at every call."""
        if name not in self._matrices:
            values = self._tensor(self._source.matrix(name))
            quantized = self._is_quantized is not None and self._is_quantized(name)
            self._matrices[name] = TorchMatrix(values, quantized)
        return self._matrices[name]

    def vector(self, name: str) -> Tensor:
        """The vector called ``name``."""
        return self._tensor(self._source.vector(name))

    def has(self, name: str) -> bool:
        """Whether there is a tensor called ``name``."""
        return self._source.has(name)

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        # torch warns when it wraps read-only memory.
        array = array if array.flags.writeable else array.copy()
        return torch.from_numpy(array).to(self._device, self._dtype)


class TorchPass:
    """Sequences of one pass, each from its first token, and what the pass computes with.

    Attributes:
        token_ids: int64 [M].
        positions: int64 [M].
        logit_rows: int64 [R], or None for all rows.
        spans: (first row, one past the last row) of each sequence.
        parents: Per sequence the predecessor's ordinal of each row, -1 for none; or None where
            the sequence is a chain.
        dtype: Of all arithmetic.
        device: Of all tensors.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[int] | Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        parents: Sequence[Sequence[int] | None] | None = None,
        logit_rows: Sequence[int] | None = None,
    ) -> None:
        """Lay the sequences out one after the other.

        Args:
            sequences: Token ids of each sequence.
            dtype: Of all arithmetic.
            device: Of all tensors.
            parents: Per sequence the predecessor's ordinal of each row, -1 for a first token, or
                None for a chain. A row's position is its distance from a first token.
            logit_rows: Rows, counted over the whole pass, whose logits are wanted; None is all.

        Raises:
            ConfigError: Parents do not fit the sequences.
        """
        rows = [torch.as_tensor(ids, dtype=torch.int64, device=device) for ids in sequences]
        trees = list(parents) if parents is not None else [None] * len(rows)
        if len(trees) != len(rows):
            raise ConfigError(f"{len(trees)} lists of parents for {len(rows)} sequences")
        self.dtype = dtype
        self.device = torch.device(device)
        self.parents = tuple(None if tree is None else tuple(tree) for tree in trees)
        depths = [_depths(len(r), tree) for r, tree in zip(rows, self.parents, strict=True)]
        self.token_ids = torch.cat(rows)
        self.positions = torch.tensor(
            [depth for each in depths for depth in each], dtype=torch.int64, device=device
        )
        self.spans = tuple(pairwise(accumulate((len(r) for r in rows), initial=0)))
        self.logit_rows = None if logit_rows is None else torch.tensor(logit_rows, device=device)


class TorchOps:
    """`Ops` on torch tensors, for one pass.

    Attributes:
        features: Tapped rows, "M width" each, in call order.
    """

    def __init__(
        self, batch: TorchPass, *, quantize_activations: bool = False, store_f16: bool = False
    ) -> None:
        """Start a pass.

        Args:
            batch: The rows of the pass.
            quantize_activations: Round inputs of quantized matrices to int8 per group of 32, as
                the native core does (no useful gradient).
            store_f16: Round keys and values to f16, as the native core's pages do.
        """
        self.features: list[Tensor] = []
        self._batch = batch
        self._quantize_activations = quantize_activations
        self._store_f16 = store_f16
        self._rotations: dict[RopeConfig, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, bool, int | None], Tensor] = {}

    def embed(self, table: TorchMatrix, *, scale: float) -> Rows:
        """See `Ops.embed`."""
        return Rows(table.values[self._batch.token_ids] * scale)

    def project(
        self, x: Rows, linears: Sequence[TorchLinear], norm: TorchNorm | None
    ) -> list[Rows]:
        """See `Ops.project`."""
        values = x.values if norm is None else _rms_norm(x.values, norm)
        return [Rows(self._linear(values, linear)) for linear in linears]

    def attend(self, q: Rows, k: Rows, v: Rows, spec: AttentionSpec[Tensor]) -> Rows:
        """See `Ops.attend`."""
        queries = self._heads(q.values, spec.num_heads, spec.q_norm, spec.rope) * spec.scale
        keys = self._heads(k.values, spec.num_kv_heads, spec.k_norm, spec.rope)
        values = _split(v.values, spec.num_kv_heads)
        if self._store_f16:
            keys, values = _through_f16(keys), _through_f16(values)
        attended = []
        for sequence_idx, (start, end) in enumerate(self._batch.spans):
            visible = self._visible(sequence_idx, spec.causal, spec.window)
            attended.append(
                _attention(
                    queries[start:end], keys[start:end], values[start:end], visible, spec.softcap
                )
            )
        return Rows(torch.cat(attended).flatten(1))

    def project_add(
        self, x: Rows, linear: TorchLinear, residual: Rows, post_norm: TorchNorm | None
    ) -> None:
        """See `Ops.project_add`."""
        y = self._linear(x.values, linear)
        residual.values = residual.values + (y if post_norm is None else _rms_norm(y, post_norm))

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
        if activation is Activation.SILU:
            activated = torch.nn.functional.silu(gate.values)
        else:
            activated = torch.nn.functional.gelu(gate.values, approximate="tanh")
        self.project_add(Rows(activated * up.values), linear, residual, post_norm)

    def tap(self, x: Rows) -> None:
        """See `Ops.tap`."""
        self.features.append(x.values)

    def logits(
        self, x: Rows, norm: TorchNorm, head: TorchLinear, *, scale: float, softcap: float | None
    ) -> Rows:
        """See `Ops.logits`."""
        rows = self._batch.logit_rows
        values = x.values if rows is None else x.values[rows]
        return Rows(_soft_cap(self._linear(_rms_norm(values, norm), head) * scale, softcap))

    def _linear(self, x: Tensor, linear: TorchLinear) -> Tensor:
        if self._quantize_activations and linear.weight.is_quantized:
            x = _through_int8(x)
        return torch.nn.functional.linear(x, linear.weight.values, linear.bias)

    def _heads(self, x: Tensor, num_heads: int, norm: TorchNorm | None, rope: RopeConfig) -> Tensor:
        """Normed and rotated heads, "M heads head_dim"."""
        heads = _split(x, num_heads)
        return self._rotate(heads if norm is None else _rms_norm(heads, norm), rope)

    def _rotate(self, heads: Tensor, rope: RopeConfig) -> Tensor:
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
        cos, sin = self._rotations[rope]
        turning, still = heads[..., : rope.dims], heads[..., rope.dims :]
        if rope.interleaved:
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = turning.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned, still), dim=-1)

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


def _depths(num_rows: int, parents: tuple[int, ...] | None) -> Iterator[int]:
    if parents is None:
        yield from range(num_rows)
        return
    if len(parents) != num_rows:
        raise ConfigError(f"{len(parents)} parents for {num_rows} rows")
    depths: list[int] = []
    for ordinal, parent in enumerate(parents):
        if not -1 <= parent < ordinal:
            raise ConfigError(f"row {ordinal} has parent {parent}; it must be an earlier row or -1")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    yield from depths


def _ancestors(num_rows: int, parents: tuple[int, ...] | None) -> Tensor:
    mask = torch.ones(num_rows, num_rows, dtype=torch.bool).tril()
    if parents is not None:
        mask = torch.eye(num_rows, dtype=torch.bool)
        for ordinal, parent in enumerate(parents):
            if parent >= 0:
                mask[ordinal] |= mask[parent]
    return mask


def _split(x: Tensor, parts: int) -> Tensor:
    """Rows cut into equal parts, "n parts width"."""
    return x.reshape(len(x), parts, -1)


def _attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, softcap: float | None) -> Tensor:
    """Attended values of one sequence, "n heads head_dim"; softmax in float32 at least."""
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[2])
    scores = torch.einsum("nhgd,mhd->hgnm", grouped, k)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = _soft_cap(scores, softcap).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1).to(v.dtype)
    return torch.einsum("hgnm,mhd->nhgd", weights, v).flatten(1, 2)


def _rms_norm(x: Tensor, norm: TorchNorm) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm.eps)
    return (normed * norm.weight).to(x.dtype)


def _soft_cap(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _through_int8(x: Tensor) -> Tensor:
    """Values that int8 activations stand for (docs/numerics.md, section 2)."""
    groups = _split(x, x.shape[-1] // _GROUP)
    peak = groups.abs().amax(dim=-1, keepdim=True)
    codes = torch.round(groups * (127 / peak))
    values = torch.where(peak < _TINY, torch.zeros_like(groups), codes * (peak / 127))
    return torch.where(peak.isfinite(), values, torch.nan).flatten(-2)


def _through_f16(x: Tensor) -> Tensor:
    """Values that f16 pages hold: saturated, NaN as 0 (docs/numerics.md, section 6)."""
    return x.nan_to_num(nan=0.0).clamp(-_F16_MAX, _F16_MAX).to(torch.float16).to(x.dtype)
