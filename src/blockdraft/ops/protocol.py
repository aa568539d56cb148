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

__all__ = [
    "AttentionSpec",
    "Convolution",
    "DrafterOps",
    "Linear",
    "Mixing",
    "Norm",
    "Ops",
    "Selection",
    "Selector",
]

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


@dataclass(frozen=True, slots=True)
class Convolution(Generic[W, V]):
    """Grouped dynamic causal convolution around a sublayer.

    Row t of a sequence becomes ``sum over o < taps of (base[o] + delta[t, o]) * x[t - o]``; rows
    before the sequence's first of the pass are zero. Side 0 is the sublayer's input, side 1 its
    output; ``delta`` of both sides comes from the normed input.

    Attributes:
        base: Kernels by side, tap and channel, flat: "2*taps*width".
        projection: Normed input to dynamic kernels by side, tap and group: "2*taps*groups width".
        taps: Rows that enter one row.
        group_size: Neighbouring channels that share a dynamic kernel; divides the width.
    """

    base: V
    projection: Linear[W, V]
    taps: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Mixing(Generic[X, W, V]):
    """A convolution on its way from a sublayer's input to its output.

    Attributes:
        conv: The convolution.
        kernels: Dynamic kernels of every row, "rows 2*taps*groups".
    """

    conv: Convolution[W, V]
    kernels: X


@dataclass(frozen=True, slots=True)
class Selector(Generic[W, V]):
    """Scores the candidates of a row given the token before it.

    The score of b after a is ``logit(b) + sum(predecessors[a] * gate * successors[b])`` with
    ``gate`` the projection of the row's normed hidden state.

    Attributes:
        predecessors: "vocab rank".
        successors: "vocab rank".
        projection: "rank width".
        top_k: Candidates per row.
    """

    predecessors: W
    successors: W
    projection: Linear[W, V]
    top_k: int


@dataclass(frozen=True, slots=True)
class Selection(Generic[X]):
    """Candidates of each row with logits, and their scores.

    Attributes:
        candidates: Token ids, "rows top_k": by logit, then by lower id.
        scores: "rows top_k*top_k", predecessor-major. The predecessors are the candidates of the
            row before; where that row has no logits its token, in every line.
    """

    candidates: X
    scores: X


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


class DrafterOps(Ops[X, W, V], Protocol[X, W, V]):
    """What a drafter may do besides: two kinds of pass over one cache.

    A pass *injects*: its rows are target features of committed tokens, and their keys and values
    are stored. Or it *drafts*: its rows are blocks, an anchor and masked rows, that see all
    committed positions before the anchor and themselves, and are never committed.
    """

    def target_features(self, size: int) -> X:
        """The pass's target features, "rows size"."""
        ...

    def store(self, k: X, v: X, spec: AttentionSpec[V]) -> None:
        """Norm and rotate keys and store them with their values, as `attend` does."""
        ...

    def embed_masked(self, table: W, *, scale: float, mask_token_id: int, mask: V) -> X:
        """`embed` with ``mask`` in place of one row of ``table``."""
        ...

    def prepare(
        self, x: X, linears: Sequence[Linear[W, V]], norm: Norm[V], conv: Convolution[W, V]
    ) -> tuple[list[X], Mixing[X, W, V]]:
        """`project` of the normed rows convolved on side 0; the mixing is for the output."""
        ...

    def finish(self, x: X, linear: Linear[W, V], residual: X, mixing: Mixing[X, W, V]) -> None:
        """Update ``residual += convolve(linear(x))`` on side 1."""
        ...

    def gated_finish(
        self,
        gate: X,
        up: X,
        activation: Activation,
        linear: Linear[W, V],
        residual: X,
        mixing: Mixing[X, W, V],
    ) -> None:
        """Update ``residual += convolve(linear(activation(gate) * up))`` on side 1."""
        ...

    def select(self, x: X, norm: Norm[V], logits: X, selector: Selector[W, V]) -> Selection[X]:
        """Candidates of the rows of ``logits``, whose hidden states are in ``x``."""
        ...
