"""First weights of a drafter: the target's own last layers, or small random numbers.

Queries and keys of a drafter are normed where most targets' are not. Their norms begin at the
RMS that the copied layer's queries and keys have, so that scores keep their size. Knows no corpus.

Notation: L drafter layers, N target layers; layer i of the drafter is the target's N - L + i.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from blockdraft.config import DrafterConfig, ModelConfig
from blockdraft.ops.torch.weights import ArraySource
from blockdraft.weights.drafter_names import (
    FEATURE_NORM,
    FEATURE_PROJECTION,
    SELECTOR_PREDECESSOR,
    SELECTOR_PROJECTION,
    SELECTOR_SUCCESSOR,
    expected_tensors,
)
from blockdraft.weights.tensors import OUTPUT_NORM, layer_tensor

__all__ = [
    "cold_start",
    "copied_layers",
    "selector_start",
    "warm_start",
    "why_not_copyable",
]

Array = NDArray[np.float32]

_STD = 0.02
_SELECTOR = (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR, SELECTOR_PROJECTION)
_MATRICES = (
    *("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"),
    *("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
)
_NORMS = ("attn_norm.weight", "ffn_norm.weight")
_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")


def copied_layers(config: DrafterConfig, target: ModelConfig) -> range:
    """Target layers that a warm start copies."""
    return range(target.num_layers - config.num_layers, target.num_layers)


def why_not_copyable(config: DrafterConfig, target: ModelConfig) -> str | None:
    """Why the target's layers cannot be copied; None where they can."""
    if config.num_layers >= target.num_layers:
        return f"{config.num_layers} layers are not fewer than the target's {target.num_layers}"
    if target.post_norms:
        return f"layers of {target.architecture} have norms that a drafter has no place for"
    for what, ours, theirs in (
        ("heads", config.num_heads, target.num_heads),
        ("KV heads", config.num_kv_heads, target.num_kv_heads),
        ("head width", config.head_dim, target.head_dim),
        ("feed-forward width", config.ffn_size, target.ffn_size),
    ):
        if ours != theirs:
            return f"the drafter's {what} is {ours}, the target's {theirs}"
    return None


def cold_start(config: DrafterConfig, seed: int) -> dict[str, Array]:
    """Random weights of everything but the selector; projections into the residual stream small.

    Args:
        config: Shape.
        seed: The same seed gives the same weights.
    """
    random = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for each in expected_tensors(config):
        if each.name in _SELECTOR:
            continue
        if each.name.endswith("_conv_base"):
            # Every channel is itself: tap 0 is one, the predecessor's tap nothing.
            tensors[each.name] = np.zeros(each.shape, np.float32)
            tensors[each.name][:, 0] = 1
        elif each.name.endswith(("_conv_proj.weight", ".bias")):
            tensors[each.name] = np.zeros(each.shape, np.float32)
        elif len(each.shape) == 1:
            tensors[each.name] = np.ones(each.shape, np.float32)
        else:
            into_stream = each.name.endswith(("attn_output.weight", "ffn_down.weight"))
            std = _STD / (2 * config.num_layers) ** 0.5 if into_stream else _STD
            tensors[each.name] = (std * random.standard_normal(each.shape)).astype(np.float32)
    return tensors


def warm_start(
    config: DrafterConfig,
    target: ModelConfig,
    source: ArraySource,
    features: Mapping[int, Array],
    seed: int,
) -> dict[str, Array]:
    """Weights that repeat the target's last layers on what its last tap gives.

    Args:
        config: Shape; `why_not_copyable` finds nothing.
        target: The target's.
        source: Its weights.
        features: Outputs of the layers before the copied ones on some text, "tokens width", by
            layer; for the size of queries and keys.
        seed: Of what cannot be copied.
    """
    tensors = cold_start(config, seed)
    hidden = config.hidden_size
    through = np.zeros((hidden, config.feature_size), np.float32)
    through[:, -hidden:] = np.eye(hidden, dtype=np.float32)
    tensors[FEATURE_PROJECTION] = through
    tensors[OUTPUT_NORM] = source.vector(OUTPUT_NORM).copy()
    layers = copied_layers(config, target)
    tensors[FEATURE_NORM] = source.vector(layer_tensor(layers[0], "attn_norm")).copy()
    for ours, theirs in enumerate(layers):
        tensors |= _copied(config, target, source, ours, theirs)
        tensors |= _head_norms(config, target, source, features[theirs - 1], (ours, theirs))
    return tensors


def selector_start(config: DrafterConfig, seed: int) -> dict[str, Array]:
    """Maps of a selector, "rank width" each: it begins without a voice.

    The successors' map is zero and the others are not, so that it learns from the first step.
    """
    if config.selector is None:
        return {}
    random = np.random.default_rng((seed, 1))
    shape = (config.selector.rank, config.hidden_size)
    maps = {
        name: (shape[1] ** -0.5 * random.standard_normal(shape)).astype(np.float32)
        for name in (SELECTOR_PREDECESSOR, SELECTOR_PROJECTION)
    }
    return maps | {SELECTOR_SUCCESSOR: np.zeros(shape, np.float32)}


def _copied(
    config: DrafterConfig, target: ModelConfig, source: ArraySource, ours: int, theirs: int
) -> dict[str, Array]:
    parts = {name: source.matrix(f"blk.{theirs}.{name}") for name in _MATRICES}
    parts |= {name: source.vector(f"blk.{theirs}.{name}") for name in _NORMS}
    if target.attention_bias:
        parts |= {name: source.vector(f"blk.{theirs}.{name}") for name in _BIASES}
    if target.rope.interleaved:
        for name in parts.keys() & {"attn_q.weight", "attn_k.weight", *_BIASES[:2]}:
            parts[name] = _halves(parts[name], config.head_dim)
    return {f"blk.{ours}.{name}": np.array(values) for name, values in parts.items()}


def _halves(rows: Array, head_dim: int) -> Array:
    """Rows of heads whose pairs (2i, 2i+1) become (i, i + dims/2)."""
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def _head_norms(
    config: DrafterConfig,
    target: ModelConfig,
    source: ArraySource,
    inputs: Array,
    layers: tuple[int, int],
) -> dict[str, Array]:
    """Norms of queries and keys: the target's own, or the RMS that ``inputs`` show."""
    ours, theirs = layers
    norms: dict[str, Array] = {}
    weight = torch.tensor(source.vector(layer_tensor(theirs, "attn_norm")))
    rows = functional.rms_norm(torch.from_numpy(inputs), weight.shape, weight, target.norm_eps)
    for part in ("attn_q", "attn_k"):
        name = layer_tensor(ours, f"{part}_norm")
        if target.qk_norm:
            norms[name] = source.vector(layer_tensor(theirs, f"{part}_norm")).copy()
            continue
        heads = _project(source, theirs, part, rows, has_bias=target.attention_bias)
        rms = heads.square().mean().sqrt().item()
        norms[name] = np.full(config.head_dim, rms, np.float32)
    return norms


def _project(
    source: ArraySource, layer_idx: int, part: str, rows: Tensor, *, has_bias: bool
) -> Tensor:
    weight = torch.tensor(source.matrix(layer_tensor(layer_idx, part)))
    bias = torch.tensor(source.vector(layer_tensor(layer_idx, part, "bias"))) if has_bias else None
    return functional.linear(rows, weight, bias)
