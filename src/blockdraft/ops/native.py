"""Records a network as a plan of the native core: each call adds an operation, nothing is computed.

Buffers are handed out by width and taken back when their only reader has been recorded, so that a
deep network uses few. Knows no architecture; shapes are checked by the core while recording.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import Activation, RopeConfig
from blockdraft.ops.batch import Batch, PassResult
from blockdraft.ops.protocol import AttentionSpec, Linear, Norm
from blockdraft.ops.rope import attention_factor, inverse_frequencies

__all__ = ["Matrix", "NativeOps", "NativePlan", "Vector", "run_plan"]

Vector = NDArray[np.float32]
Matrix = _native.Matrix


def run_plan(plan: _native.Plan, pool: _native.Pool, batch: Batch) -> None:
    """One pass over ``batch``.

    Raises:
        ValueError: The batch does not fit the plan or its pages; a bug of the caller.
    """
    plan.run(
        pool,
        batch.token_ids,
        batch.positions,
        batch.parents,
        batch.row_starts,
        batch.base_lengths,
        batch.full_pages,
        batch.window_pages,
        batch.logit_rows,
    )


class NativePlan:
    """A recorded pass, ready to run any number of times; not for two threads at once."""

    def __init__(
        self, plan: _native.Plan, pool: _native.Pool, logits: int, features: int | None
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._logits = plan.view(logits)
        self._features = None if features is None else plan.view(features)

    @property
    def isa(self) -> str:
        """Instruction set path of the kernels."""
        return self._plan.isa

    def run(self, batch: Batch) -> PassResult:
        """One pass; the result's arrays are overwritten by the next.

        Raises:
            ValueError: The batch does not fit the plan or its pages; a bug of the caller.
        """
        run_plan(self._plan, self._pool, batch)
        features = None if self._features is None else self._features[: batch.num_rows]
        return PassResult(self._logits[: len(batch.logit_rows)], features)


class NativeOps:
    """`Ops` of the native core: handles are buffer numbers.

    Args:
        max_rows: Most rows of a pass.
        windowed_layers: One flag per layer: its K/V lie in windowed pages.
        isa: Instruction set path, None for the best.
        feature_size: Columns of all taps together; 0 without taps.
    """

    def __init__(
        self,
        max_rows: int,
        windowed_layers: Sequence[bool],
        *,
        isa: str | None = None,
        feature_size: int = 0,
    ) -> None:
        self._plan = _native.Plan(max_rows, isa)
        self._windowed = tuple(windowed_layers)
        self._free: dict[int, list[int]] = defaultdict(list)
        self._cols: dict[int, int] = {}
        self._ropes: dict[RopeConfig, int] = {}
        self._features = self._plan.buffer(feature_size) if feature_size else None
        self._tapped_cols = 0
        self._selected: dict[int, int] = {}  # rows with logits of a buffer

    def finish_pass(self, pool: _native.Pool, logits: int) -> NativePlan:
        """The recorded plan, run by ``pool``; ``logits`` is what `logits` returned."""
        return NativePlan(self._plan, pool, logits, self._features)

    def embed(self, table: Matrix, *, scale: float) -> int:
        """See `Ops.embed`."""
        out = self._take(table.cols)
        self._plan.embed(table, out, scale)
        return out

    def project(
        self, x: int, linears: Sequence[Linear[Matrix, Vector]], norm: Norm[Vector] | None
    ) -> list[int]:
        """See `Ops.project`."""
        outs = [self._take(linear.weight.rows) for linear in linears]
        self._record(x, linears, outs, norm=norm)
        return outs

    def attend(self, q: int, k: int, v: int, spec: AttentionSpec[Vector]) -> int:
        """See `Ops.attend`."""
        out = self._take(spec.num_heads * spec.head_dim)
        norm_eps = spec.q_norm.eps if spec.q_norm else 0.0
        self._plan.attend(
            q=q,
            k=k,
            v=v,
            out=out,
            layer=self._ordinal(spec),
            windowed_pages=self._windowed[spec.layer_idx],
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            rope=self._rope(spec.rope),
            window=spec.window or 0,
            causal=spec.causal,
            q_norm=spec.q_norm.weight if spec.q_norm else None,
            k_norm=spec.k_norm.weight if spec.k_norm else None,
            norm_eps=norm_eps,
        )
        self._release(q, k, v)
        return out

    def project_add(
        self,
        x: int,
        linear: Linear[Matrix, Vector],
        residual: int,
        post_norm: Norm[Vector] | None,
    ) -> None:
        """See `Ops.project_add`."""
        self._add(x, None, None, linear, residual, post_norm)
        self._release(x)

    def gated_project_add(
        self,
        gate: int,
        up: int,
        activation: Activation,
        linear: Linear[Matrix, Vector],
        residual: int,
        post_norm: Norm[Vector] | None,
    ) -> None:
        """See `Ops.gated_project_add`."""
        self._add(gate, up, activation, linear, residual, post_norm)
        self._release(gate, up)

    def tap(self, x: int) -> None:
        """See `Ops.tap`."""
        assert self._features is not None, "taps need a feature_size"
        self._plan.copy(x, self._features, self._tapped_cols)
        self._tapped_cols += self._cols[x]

    def logits(
        self,
        x: int,
        norm: Norm[Vector],
        head: Linear[Matrix, Vector],
        *,
        scale: float,
        softcap: float | None,
    ) -> int:
        """See `Ops.logits`."""
        rows = self._selected[x] = self._take(self._cols[x])
        self._plan.select(x, rows)
        out = self._take(head.weight.rows)
        self._record(rows, [head], [out], norm=norm)
        if scale != 1.0 or softcap is not None:
            self._plan.scale_cap(out, scale, softcap or 0.0)
        return out

    def _add(
        self,
        x: int,
        up: int | None,
        activation: Activation | None,
        linear: Linear[Matrix, Vector],
        residual: int,
        post_norm: Norm[Vector] | None,
    ) -> None:
        if post_norm is None:
            self._record(x, [linear], [residual], up=up, activation=activation, accumulate=True)
            return
        y = self._take(linear.weight.rows)
        self._record(x, [linear], [y], up=up, activation=activation)
        self._plan.norm_add(y, post_norm.weight, post_norm.eps, residual)
        self._release(y)

    def _record(
        self,
        x: int,
        linears: Sequence[Linear[Matrix, Vector]],
        outs: list[int],
        *,
        norm: Norm[Vector] | None = None,
        up: int | None = None,
        activation: Activation | None = None,
        accumulate: bool = False,
    ) -> None:
        self._plan.project(
            x=x,
            weights=[linear.weight for linear in linears],
            outs=outs,
            biases=[linear.bias for linear in linears],
            norm=norm.weight if norm else None,
            eps=norm.eps if norm else 0.0,
            up=-1 if up is None else up,
            gate=(activation or Activation.SILU).value,
            accumulate=accumulate,
        )

    def _take(self, cols: int) -> int:
        if self._free[cols]:
            return self._free[cols].pop()
        buffer = self._plan.buffer(cols)
        self._cols[buffer] = cols
        return buffer

    def _release(self, *buffers: int) -> None:
        for buffer in buffers:
            self._free[self._cols[buffer]].append(buffer)

    def _ordinal(self, spec: AttentionSpec[Vector]) -> int:
        """Place of a layer among those of its page class."""
        windowed = self._windowed[spec.layer_idx]
        return sum(flag == windowed for flag in self._windowed[: spec.layer_idx])

    def _rope(self, rope: RopeConfig) -> int:
        if rope not in self._ropes:
            self._ropes[rope] = self._plan.rope(
                list(inverse_frequencies(rope)), attention_factor(rope), rope.interleaved
            )
        return self._ropes[rope]
