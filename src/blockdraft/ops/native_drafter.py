"""Records a drafter's two passes as plans of the native core.

Knows no architecture and no cache; what each pass means is said in `DrafterOps`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import Activation
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.ops.native import Matrix, NativeOps, Vector, run_plan
from blockdraft.ops.protocol import (
    AttentionSpec,
    Convolution,
    Linear,
    Mixing,
    Norm,
    Selection,
    Selector,
)

__all__ = ["NativeDraft", "NativeDrafterOps", "NativeInjection"]


class NativeInjection:
    """A recorded pass that stores keys and values of target features.

    Attributes:
        features: float32 [max_rows, size], a view: the input of the next run.
    """

    def __init__(self, plan: _native.Plan, pool: _native.Pool, features: int) -> None:
        self.features: NDArray[np.float32] = plan.view(features)
        self._plan = plan
        self._pool = pool

    def run(self, batch: Batch) -> None:
        """Store the rows of ``batch``, whose tokens are not looked at.

        Raises:
            ValueError: The batch does not fit the plan or its pages; a bug of the caller.
        """
        run_plan(self._plan, self._pool, batch)


class NativeDraft:
    """A recorded pass over blocks."""

    def __init__(
        self,
        plan: _native.Plan,
        pool: _native.Pool,
        candidates: tuple[int, int, int],
        scores: int | None,
    ) -> None:
        ids, logits, probs = candidates
        self._token_ids: NDArray[np.int32] = plan.view(ids).view(np.int32)
        self._logits = plan.view(logits)
        self._probs = plan.view(probs)
        self._scores = None if scores is None else plan.view(scores)
        self._plan = plan
        self._pool = pool

    def run(self, batch: Batch) -> Candidates:
        """One pass; the result's arrays are overwritten by the next.

        Raises:
            ValueError: The batch does not fit the plan or its pages; a bug of the caller.
        """
        run_plan(self._plan, self._pool, batch)
        rows = len(batch.logit_rows)
        token_ids = self._token_ids[:rows]
        scores = None
        if self._scores is not None:
            scores = self._scores[:rows].reshape(rows, token_ids.shape[1], -1)
        return Candidates(token_ids, self._logits[:rows], self._probs[:rows], scores)


class NativeDrafterOps(NativeOps):
    """`DrafterOps` of the native core: handles are buffer numbers."""

    def __init__(
        self,
        max_rows: int,
        windowed_layers: Sequence[bool],
        *,
        isa: str | None = None,
        head_tokens: NDArray[np.int32] | None = None,
    ) -> None:
        """Start recording.

        Args:
            max_rows: As `NativeOps` has it.
            windowed_layers: The same.
            isa: The same.
            head_tokens: Token of each row of the head; None where it has all in order.
        """
        super().__init__(max_rows, windowed_layers, isa=isa)
        self._head_tokens = head_tokens
        self._inputs: int | None = None
        self._candidates: tuple[int, int, int] | None = None

    def finish_injection(self, pool: _native.Pool) -> NativeInjection:
        """The recorded pass over target features, run by ``pool``."""
        assert self._inputs is not None, "an injection reads target features"
        return NativeInjection(self._plan, pool, self._inputs)

    def finish_draft(
        self, pool: _native.Pool, logits: int, selection: Selection[int] | None, top_k: int
    ) -> NativeDraft:
        """The recorded pass over blocks, run by ``pool``.

        Args:
            pool: Its threads.
            logits: What `logits` returned.
            selection: What `select` returned; None ranks ``top_k`` candidates of each row.
            top_k: Candidates of a row without a selection.
        """
        if selection is None:
            self.rank(logits, top_k)
        assert self._candidates is not None
        scores = None if selection is None else selection.scores
        return NativeDraft(self._plan, pool, self._candidates, scores)

    def view(self, buffer: int) -> NDArray[np.float32]:
        """What a buffer holds after a pass, float32 [max_rows, columns]."""
        return self._plan.view(buffer)

    def target_features(self, size: int) -> int:
        """See `DrafterOps.target_features`."""
        self._inputs = self._take(size)
        return self._inputs

    def store(self, k: int, v: int, spec: AttentionSpec[Vector]) -> None:
        """See `DrafterOps.store`."""
        self._plan.store(
            k=k,
            v=v,
            layer=self._ordinal(spec),
            windowed_pages=self._windowed[spec.layer_idx],
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            rope=self._rope(spec.rope),
            # What is only stored sees nothing before it: pages that a window skipped may lack.
            window=0 if spec.window is None else 1,
            k_norm=spec.k_norm.weight if spec.k_norm else None,
            norm_eps=spec.k_norm.eps if spec.k_norm else 0.0,
        )
        self._release(k, v)

    def embed_masked(self, table: Matrix, *, scale: float, mask_token_id: int, mask: Vector) -> int:
        """See `DrafterOps.embed_masked`."""
        out = self._take(table.cols)
        self._plan.embed(table, out, scale, mask_token_id, mask)
        return out

    def prepare(
        self,
        x: int,
        linears: Sequence[Linear[Matrix, Vector]],
        norm: Norm[Vector],
        conv: Convolution[Matrix, Vector],
    ) -> tuple[list[int], Mixing[int, Matrix, Vector]]:
        """See `DrafterOps.prepare`."""
        normed = self._take(self._cols[x])
        self._plan.norm(x, norm.weight, norm.eps, normed)
        (kernels,) = self.project(normed, [conv.projection], None)
        mixing = Mixing(conv, kernels)
        mixed = self._take(self._cols[x])
        self._convolve(normed, mixing, mixed, side=0)
        self._release(normed)
        outs = self.project(mixed, linears, None)
        self._release(mixed)
        return outs, mixing

    def finish(
        self,
        x: int,
        linear: Linear[Matrix, Vector],
        residual: int,
        mixing: Mixing[int, Matrix, Vector],
    ) -> None:
        """See `DrafterOps.finish`."""
        (y,) = self.project(x, [linear], None)
        self._release(x)
        self._mix_into(residual, y, mixing)

    def gated_finish(
        self,
        gate: int,
        up: int,
        activation: Activation,
        linear: Linear[Matrix, Vector],
        residual: int,
        mixing: Mixing[int, Matrix, Vector],
    ) -> None:
        """See `DrafterOps.gated_finish`."""
        y = self._take(linear.weight.rows)
        self._record(gate, [linear], [y], up=up, activation=activation)
        self._release(gate, up)
        self._mix_into(residual, y, mixing)

    def rank(self, logits: int, top_k: int) -> tuple[int, int, int]:
        """Candidates of each row with logits: buffers of ids (int32), logits, probabilities."""
        ids, values, probs = (self._plan.buffer(top_k) for _ in range(3))
        self._plan.rank(logits, ids, values, probs, top_k, self._head_tokens)
        self._candidates = (ids, values, probs)
        return self._candidates

    def select(
        self, x: int, norm: Norm[Vector], logits: int, selector: Selector[Matrix, Vector]
    ) -> Selection[int]:
        """See `DrafterOps.select`."""
        (gates,) = self.project(self._selected[x], [selector.projection], norm)
        top_k = selector.top_k
        ids, values, _ = self.rank(logits, top_k)
        scores = self._plan.buffer(top_k * top_k)
        self._plan.transitions(
            gates, ids, values, scores, selector.predecessors, selector.successors, top_k
        )
        return Selection(ids, scores)

    def _convolve(
        self, x: int, mixing: Mixing[int, Matrix, Vector], out: int, *, side: int
    ) -> None:
        conv = mixing.conv
        self._plan.convolve(
            x=x,
            kernels=mixing.kernels,
            out=out,
            base=conv.base,
            taps=conv.taps,
            side=side,
            group_size=conv.group_size,
            accumulate=side == 1,
        )

    def _mix_into(self, residual: int, y: int, mixing: Mixing[int, Matrix, Vector]) -> None:
        self._convolve(y, mixing, residual, side=1)
        self._release(y, mixing.kernels)
