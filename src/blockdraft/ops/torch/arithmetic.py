"""Arithmetic on rows: norms, caps, convolutions and the roundings of the native core.

Knows no weights file, no sequence but its ordinals, no cache.
"""

import torch
from torch import Tensor

from blockdraft.ops.protocol import Norm

__all__ = ["convolve", "rms_norm", "silu_gated", "soft_cap", "split", "through_f16", "through_int8"]

_GROUP = 32
_F16_MAX = 65504.0
_TINY = 2.0**-100


def split(x: Tensor, parts: int) -> Tensor:
    """Rows cut into equal parts, "n parts width"."""
    return x.reshape(len(x), parts, -1)


def rms_norm(x: Tensor, norm: Norm[Tensor]) -> Tensor:
    """RMS norm of each row, in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm.eps)
    return (normed * norm.weight).to(x.dtype)


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Values capped softly, or as they are."""
    return x if cap is None else cap * torch.tanh(x / cap)


def silu_gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``."""
    return torch.nn.functional.silu(gate) * up


def through_int8(x: Tensor) -> Tensor:
    """Values that int8 activations stand for (docs/numerics.md, section 2)."""
    groups = split(x, x.shape[-1] // _GROUP)
    peak = groups.abs().amax(dim=-1, keepdim=True)
    codes = torch.round(groups * (127 / peak))
    values = torch.where(peak < _TINY, torch.zeros_like(groups), codes * (peak / 127))
    return torch.where(peak.isfinite(), values, torch.nan).flatten(-2)


def through_f16(x: Tensor) -> Tensor:
    """Values that f16 pages hold: saturated, NaN as 0 (docs/numerics.md, section 6)."""
    return x.nan_to_num(nan=0.0).clamp(-_F16_MAX, _F16_MAX).to(torch.float16).to(x.dtype)


def convolve(x: Tensor, kernels: Tensor, base: Tensor, ordinals: Tensor) -> Tensor:
    """Rows mixed with their predecessors in the sequence, "M width".

    Args:
        x: "M width".
        kernels: Dynamic part of one side, "M taps groups".
        base: Static part of that side, "taps width".
        ordinals: Place of each row in its sequence, [M].
    """
    by_group = (len(x), kernels.shape[2], -1)
    out = torch.zeros_like(x)
    for tap in range(len(base)):
        shifted = torch.cat((torch.zeros_like(x[:tap]), x[: len(x) - tap]))[: len(x)]
        shifted = torch.where((ordinals >= tap)[:, None], shifted, torch.zeros_like(x))
        weights = base[tap].reshape(by_group[1:]) + kernels[:, tap, :, None]
        out = out + (weights * shifted.reshape(by_group)).flatten(1)
    return out
