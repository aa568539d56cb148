"""Row operations with gradients written by hand: fewer passes over memory than autograd's.

Beside their plain forms in `arithmetic` and `attention`, which they must equal. Knows no weights
file, no pass and no network.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.ops.protocol import Norm

__all__ = ["fused_convolve", "fused_gated", "fused_rms_norm", "rotate_halves", "rounded_linears"]

_CACHED = 1 << 16
"""Numbers of a part that stays in a CPU's cache between operations."""


def fused_rms_norm(x: Tensor, norm: Norm[Tensor]) -> Tensor:
    """RMS norm of each row, in the dtype of ``x``; statistics in float32 at least."""
    return _RmsNorm.apply(x, norm.weight, norm.eps)  # type: ignore[no-untyped-call]


def rotate_halves(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads "M heads dims" whose halves turn against each other.

    Args:
        heads: What to turn.
        cos: "M 1 dims/2".
        sin: "M 1 dims/2".
    """
    return _Rotation.apply(heads, cos, sin)  # type: ignore[no-untyped-call]


def fused_convolve(x: Tensor, kernels: Tensor, base: Tensor, ordinals: Tensor) -> Tensor:
    """Rows mixed with their predecessors in the sequence; arguments as of `convolve`."""
    return _Convolution.apply(x, kernels, base, ordinals)  # type: ignore[no-untyped-call]


def fused_gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, "M width"."""
    return _Gated.apply(gate, up)  # type: ignore[no-untyped-call]


def rounded_linears(
    x: Tensor, weights: Sequence[Tensor], rounded: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Rows times matrices "out in", in the dtype of ``rounded``; results have that of ``x``.

    Args:
        x: "M in".
        weights: What the gradients are for.
        rounded: Their copies in fewer bits.
    """
    return _RoundedLinears.apply(x, *weights, *rounded)  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """Keeps its inputs; takes rows in parts, whose intermediate values never leave the cache."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(up)
        for rows in _parts(gate):
            torch.mul(torch.nn.functional.silu(gate[rows]), up[rows], out=out[rows])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        for rows in _parts(gate):
            g, through = gate[rows], grad[rows]
            share = g.sigmoid()
            active = g * share
            torch.mul(through, active, out=of_up[rows])
            # silu'(g) = sigmoid(g) (1 + g - silu(g)).
            slope = share.mul_(active.neg_().add_(g).add_(1))
            torch.mul(slope.mul_(up[rows]), through, out=of_gate[rows])
        return of_gate, of_up


def _parts(x: Tensor) -> Iterator[slice]:
    """Rows of "M width" in parts; on a GPU all at once."""
    step = max(1, _CACHED // x.shape[1]) if x.device.type == "cpu" else len(x)
    for start in range(0, len(x), step):
        yield slice(start, start + step)


class _RoundedLinears(torch.autograd.Function):
    """Keeps the rounded rows, once for all matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
        count = len(matrices) // 2
        rounded = matrices[count:]
        rows = x.to(rounded[0].dtype)
        ctx.save_for_backward(rows, *rounded)
        ctx.dtypes = x.dtype, matrices[0].dtype
        return tuple((rows @ each.T).to(x.dtype) for each in rounded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *rounded = ctx.saved_tensors
        of_x, of_weights = ctx.dtypes
        low = [each.to(rows.dtype) for each in grads]
        back = None
        if ctx.needs_input_grad[0]:
            back = low[0] @ rounded[0]
            for each, matrix in zip(low[1:], rounded[1:], strict=True):
                back.addmm_(each, matrix)
            back = back.to(of_x)
        slopes = [(each.T @ rows).to(of_weights) for each in low]
        return back, *slopes, *[None] * len(rounded)


class _RmsNorm(torch.autograd.Function):
    """Keeps the input and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        factor = (norms.square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, weight, factor)
        return (wide * factor).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, factor = ctx.saved_tensors
        wide, width = factor.dtype, x.shape[-1]
        grad = grad.to(wide)
        normed = x.to(wide) * factor
        products = grad * normed
        of_weight = products.reshape(-1, width).sum(0)
        along = (products @ weight.to(wide) / width).unsqueeze(-1)
        of_x = (grad * weight).sub_(normed.mul_(along)).mul_(factor)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None


class _Rotation(torch.autograd.Function):
    """Its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(heads, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, sin, -1), None, None


def _turn(heads: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    a, b = heads.chunk(2, dim=-1)
    turned = torch.empty_like(heads)
    first, second = turned.chunk(2, dim=-1)
    torch.mul(a, cos, out=first)
    first.addcmul_(b, sin, value=-direction)
    torch.mul(b, cos, out=second)
    second.addcmul_(a, sin, value=direction)
    return turned


class _Convolution(torch.autograd.Function):
    """Keeps its inputs; kernels of both directions are made anew."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor, base: Tensor, ordinals: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernels, base, ordinals)
        by_group = x.reshape(len(x), kernels.shape[2], -1)
        out = _tap_kernel(kernels, base, ordinals, 0).mul_(by_group)
        for tap in range(1, min(len(base), len(x))):
            kernel = _tap_kernel(kernels, base, ordinals, tap)
            out[tap:].addcmul_(kernel[tap:], by_group[:-tap])
        return out.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, kernels, base, ordinals = ctx.saved_tensors
        by_group = x.reshape(len(x), kernels.shape[2], -1)
        g = grad.reshape(by_group.shape)
        of_x = _tap_kernel(kernels, base, ordinals, 0).mul_(g)
        of_kernels, of_base = torch.zeros_like(kernels), torch.zeros_like(base)
        for tap in range(min(len(base), len(x))):
            inputs = by_group if tap == 0 else by_group[:-tap]
            products = g[tap:] * inputs
            if tap:
                kernel = _tap_kernel(kernels, base, ordinals, tap)
                of_x[:-tap].addcmul_(kernel[tap:], g[tap:])
                _clear_first(products, ordinals[tap:], tap)
            torch.sum(products, -1, out=of_kernels[tap:, tap])
            of_base[tap] = products.sum(0).flatten()
        return of_x.flatten(1), of_kernels, of_base, None


def _tap_kernel(kernels: Tensor, base: Tensor, ordinals: Tensor, tap: int) -> Tensor:
    """Weights of one tap, "M groups group_size"; zero where it reaches before the sequence."""
    kernel = base[tap].reshape(kernels.shape[2], -1) + kernels[:, tap, :, None]
    if tap:
        _clear_first(kernel, ordinals, tap)
    return kernel


def _clear_first(x: Tensor, ordinals: Tensor, count: int) -> None:
    """Set the first ``count`` rows of every sequence to zero; they alone are written."""
    x.index_fill_(0, (ordinals < count).nonzero().squeeze(1), 0)
