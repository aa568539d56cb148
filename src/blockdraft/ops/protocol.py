"""The operations that networks are written against.

One network definition runs on two backends: `ops.native` records each call into a plan for the
native core, `ops.torch` computes at once on tensors. Knows no architecture, file or sequence.

`X` is a backend's handle of an activation matrix "rows width"; `W` its handle of a weight matrix
"out in"; `V` of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from blockdraft.config import Activation, RopeConfig

__all__ = ["AttentionSpec", "Linear", "Norm", "Ops"]

X = TypeVar("X")
W = TypeVar("W")
V = TypeVar("V")
X_co = TypeVar("X_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Norm(Generic[V]):
    """RMS norm: ``x / sqrt(mean(x^2) + eps) * weight``."""

    weight: V
    eps: float


@dataclass(frozen=True, slots=True)
class Linear(Generic[W, V]):
    """``x @ weight.T + bias``."""

    weight: W
    bias: V | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec(Generic[V]):
    """One attention layer: shapes, rotation, cache place.

    Attributes:
        layer_idx: Layer of the K/V cache it writes and reads.
        num_heads: Query heads.
        num_kv_heads: Key/value heads.
        head_dim: Width of a head; a multiple of 16.
        scale: Factor on rotated queries.
        rope: Rotation of queries and keys.
        window: Visible tokens, the row's own included; None is all.
        softcap: Soft cap of scores, or None.
        q_norm: RMS norm of each query head before rotation, or None.
        k_norm: RMS norm of each key head before rotation, or None.
        causal: False lets every row of a sequence see all rows of the pass.
    """

    layer_idx: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeConfig
    window: int | None = None
    softcap: float | None = None
    q_norm: Norm[V] | None = None
    k_norm: Norm[V] | None = None
    causal: bool = True


class Ops(Protocol[X, W, V]):
    """What a network may do. Every method returns a new handle or updates the one it names."""

    def embed(self, table: W, *, scale: float) -> X:
        """Rows of ``table`` for the pass's tokens, times ``scale``: the residual stream."""
        ...

    def project(self, x: X, linears: Sequence[Linear[W, V]], norm: Norm[V] | None) -> list[X]:
        """Several projections of the same (normed, if ``norm``) input."""
        ...

    def attend(self, q: X, k: X, v: X, spec: AttentionSpec[V]) -> X:
        """Norm and rotate heads, store K/V, attend; returns "rows num_heads*head_dim"."""
        ...

    def project_add(
        self, x: X, linear: Linear[W, V], residual: X, post_norm: Norm[V] | None
    ) -> None:
        """Update ``residual += post_norm(linear(x))`` (no norm where None)."""
        ...

    def gated_project_add(
        self,
        gate: X,
        up: X,
        activation: Activation,
        linear: Linear[W, V],
        residual: X,
        post_norm: Norm[V] | None,
    ) -> None:
        """Update ``residual += post_norm(linear(activation(gate) * up))``."""
        ...

    def tap(self, x: X) -> None:
        """Keep a copy of ``x`` as the pass's next feature (concatenated in call order)."""
        ...

    def logits(
        self, x: X, norm: Norm[V], head: Linear[W, V], *, scale: float, softcap: float | None
    ) -> X:
        """Final norm and head on the rows for which the pass wants logits."""
        ...
