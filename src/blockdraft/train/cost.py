"""What training costs in matrix products, and how fast torch multiplies here.

Counts the linear layers alone: attention, norms and the loss are overhead by this measure. Knows
no weights.
"""

from time import perf_counter

import torch
from torch.nn import functional

from blockdraft.config import DrafterConfig

__all__ = ["StepCost", "measure_gemm_rate"]

_ROWS = 1024
_FORWARD_AND_BACKWARD = 3  # output, gradient of the input, gradient of the weight
_FROZEN = 2  # no gradient of the weight, or none of the input


class StepCost:
    """Floating-point operations of a training step's matrix products."""

    def __init__(self, config: DrafterConfig, head_rows: int, *, has_teacher: bool = False) -> None:
        """Count the weights.

        Args:
            config: The drafter.
            head_rows: Rows of the training head.
            has_teacher: Whether the target's rows are multiplied with it too, for soft labels.
        """
        hidden = config.hidden_size
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        layer = hidden * (2 * queries + 2 * keys + 3 * config.ffn_size)
        if config.conv is not None:
            groups = hidden // config.conv.group_size
            layer += 2 * hidden * 2 * config.conv.kernel_size * groups
        self._row = _FORWARD_AND_BACKWARD * config.num_layers * layer
        self._label = _FROZEN * hidden * head_rows
        if config.selector is not None:
            self._label += 8 * hidden * config.selector.rank
        self._teacher = hidden * head_rows if has_teacher else 0
        self._context = _FROZEN * hidden * config.feature_size
        self._context += _FORWARD_AND_BACKWARD * config.num_layers * 2 * hidden * keys

    def flops(
        self, *, rows: int, label_rows: int, context_rows: int, target_rows: int = 0
    ) -> float:
        """Operations for so many rows of blocks, rows with logits, features, and target's rows."""
        macs = rows * self._row + label_rows * self._label + context_rows * self._context
        return 2.0 * (macs + target_rows * self._teacher)


def measure_gemm_rate(
    config: DrafterConfig, head_rows: int, *, device: torch.device | str, dtype: torch.dtype
) -> float:
    """Operations per second of torch's products in the shapes of a drafter, all together."""
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    shapes = [(queries, hidden), (hidden, queries)] * config.num_layers
    shapes += [(config.ffn_size, hidden)] * 2 * config.num_layers
    shapes += [(hidden, config.ffn_size)] * config.num_layers
    seconds, flops = 0.0, 0.0
    for out_size, in_size in set(shapes):
        count = shapes.count((out_size, in_size))
        seconds += count * _time_products(out_size, in_size, device, dtype)
        flops += count * 2 * _FORWARD_AND_BACKWARD * _ROWS * out_size * in_size
    seconds += _time_products(head_rows, hidden, device, dtype, passes=_FROZEN)
    flops += 2 * _FROZEN * _ROWS * head_rows * hidden
    return flops / seconds


def _time_products(
    out_size: int,
    in_size: int,
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    passes: int = _FORWARD_AND_BACKWARD,
) -> float:
    """Best time of forward, input gradient and weight gradient, in seconds."""
    x = torch.ones(_ROWS, in_size, device=device, dtype=dtype)
    weight = torch.ones(out_size, in_size, device=device, dtype=dtype)
    grad = torch.ones(_ROWS, out_size, device=device, dtype=dtype)
    times: list[float] = []
    for _ in range(3):
        _wait(device)
        start = perf_counter()
        functional.linear(x, weight)
        _ = grad @ weight
        if passes == _FORWARD_AND_BACKWARD:
            _ = grad.T @ x
        _wait(device)
        times.append(perf_counter() - start)
    return min(times)


def _wait(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
