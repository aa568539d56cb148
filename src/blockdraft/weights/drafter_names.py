"""Names and shapes of a drafter's tensors, in GGUF and in Hugging Face folders.

The names of llama.cpp's architecture ``dflash`` are the ones used everywhere else. Knows no
metadata key and no tensor value.

Source: the checkpoints of z-lab and of the speculators library; llama.cpp's model ``dflash``.
"""

import re
from collections.abc import Iterator
from itertools import chain

from blockdraft.config import DrafterConfig
from blockdraft.weights.tensors import (
    EMBEDDING,
    HEAD,
    OUTPUT_NORM,
    ExpectedTensor,
    layer_tensor,
)

__all__ = [
    "FEATURE_NORM",
    "FEATURE_PROJECTION",
    "MASK_EMBEDDING",
    "SELECTOR_PREDECESSOR",
    "SELECTOR_PROJECTION",
    "SELECTOR_SUCCESSOR",
    "VOCAB_MAP",
    "conv_base",
    "conv_projection",
    "expected_tensors",
    "folder_name",
    "our_name",
]

FEATURE_PROJECTION = "fc.weight"
FEATURE_NORM = "enc.output_norm.weight"
MASK_EMBEDDING = "mask_embedding"
VOCAB_MAP = "d2t"
SELECTOR_PREDECESSOR = "selector_predecessor.weight"
SELECTOR_SUCCESSOR = "selector_successor.weight"
SELECTOR_PROJECTION = "selector_hidden.weight"

_FOLDER_NAMES = {
    FEATURE_PROJECTION: "fc.weight",
    FEATURE_NORM: "hidden_norm.weight",
    OUTPUT_NORM: "norm.weight",
    EMBEDDING: "embed_tokens.weight",
    HEAD: "lm_head.weight",
    VOCAB_MAP: "d2t",
    MASK_EMBEDDING: "mask_embedding",
    SELECTOR_PREDECESSOR: "candidate_selector.predecessor_codebook",
    SELECTOR_SUCCESSOR: "candidate_selector.successor_codebook",
    SELECTOR_PROJECTION: "candidate_selector.hidden_projection.weight",
}
_FOLDER_PARTS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
# Some writers treat the codebooks as embeddings, whose tensors end in ".weight".
_OUTER = {theirs: ours for ours, theirs in _FOLDER_NAMES.items()} | {
    f"{_FOLDER_NAMES[ours]}.weight": ours for ours in (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR)
}
_PARTS = {theirs: ours for ours, theirs in _FOLDER_PARTS.items()}
_FOLDER_LAYER = re.compile(r"layers\.(0|[1-9][0-9]{0,6})\.(.+)", re.ASCII)
_OUR_LAYER = re.compile(r"blk\.([0-9]+)\.(.+)", re.ASCII)


def conv_base(layer_idx: int, sublayer: str) -> str:
    """Name of the static kernels around ``attn`` or ``ffn``; they end in no ``.weight``."""
    return f"blk.{layer_idx}.{sublayer}_conv_base"


def conv_projection(layer_idx: int, sublayer: str) -> str:
    """Name of the matrix that gives the dynamic kernels around ``attn`` or ``ffn``."""
    return layer_tensor(layer_idx, f"{sublayer}_conv_proj")


def folder_name(name: str) -> str:
    """Name of a tensor in Hugging Face folders; a name that is not ours stays."""
    layer = _OUR_LAYER.fullmatch(name)
    if layer and layer[2] in _FOLDER_PARTS:
        return f"layers.{layer[1]}.{_FOLDER_PARTS[layer[2]]}"
    return _FOLDER_NAMES.get(name, name)


def our_name(name: str) -> str:
    """Our name of a tensor of a Hugging Face folder; one that we do not know stays."""
    layer = _FOLDER_LAYER.fullmatch(name)
    if layer and layer[2] in _PARTS:
        return f"blk.{layer[1]}.{_PARTS[layer[2]]}"
    return _OUTER.get(name, name)


def expected_tensors(config: DrafterConfig) -> Iterator[ExpectedTensor]:
    """Every tensor that ``config`` needs."""
    return chain(
        _outer(config),
        _selector(config),
        *(_layer(config, i) for i in range(config.num_layers)),
    )


def _outer(config: DrafterConfig) -> Iterator[ExpectedTensor]:
    hidden, vocab = config.hidden_size, config.vocab_size
    rows = f"rows of width {hidden}"
    yield ExpectedTensor(
        FEATURE_PROJECTION,
        (hidden, config.feature_size),
        f"{len(config.target_layer_ids)} target features of width {hidden}",
    )
    yield ExpectedTensor(FEATURE_NORM, (hidden,), rows)
    yield ExpectedTensor(OUTPUT_NORM, (hidden,), rows)
    if config.own_embedding:
        yield ExpectedTensor(EMBEDDING, (vocab, hidden), f"{vocab} tokens of width {hidden}")
    if config.own_head or config.draft_vocab_size is not None:
        size = config.head_size
        yield ExpectedTensor(HEAD, (size, hidden), f"{size} draft tokens of width {hidden}")
    if config.draft_vocab_size is not None:
        size = config.draft_vocab_size
        yield ExpectedTensor(VOCAB_MAP, (size,), f"{size} draft tokens")
    if config.mask_embedding:
        yield ExpectedTensor(MASK_EMBEDDING, (hidden,), rows)


def _selector(config: DrafterConfig) -> Iterator[ExpectedTensor]:
    if config.selector is None:
        return
    vocab, rank = config.vocab_size, config.selector.rank
    because = f"{vocab} tokens of rank {rank}"
    yield ExpectedTensor(SELECTOR_PREDECESSOR, (vocab, rank), because)
    yield ExpectedTensor(SELECTOR_SUCCESSOR, (vocab, rank), because)
    yield ExpectedTensor(
        SELECTOR_PROJECTION,
        (rank, config.hidden_size),
        f"rank {rank} and rows of width {config.hidden_size}",
    )


def _layer(config: DrafterConfig, layer_idx: int) -> Iterator[ExpectedTensor]:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = f"rows of width {hidden}"
    heads = f"{config.num_heads} heads of {config.head_dim}"
    kv_heads = f"{config.num_kv_heads} KV heads of {config.head_dim}"
    units = f"{ffn} feed-forward units"

    def expect(part: str, shape: tuple[int, ...], because: str) -> ExpectedTensor:
        return ExpectedTensor(layer_tensor(layer_idx, part), shape, because)

    yield expect("attn_norm", (hidden,), rows)
    for part, shape, because in (
        ("attn_q", (q_size, hidden), heads),
        ("attn_k", (kv_size, hidden), kv_heads),
        ("attn_v", (kv_size, hidden), kv_heads),
        ("attn_output", (hidden, q_size), heads),
    ):
        yield expect(part, shape, because)
        if config.attention_bias:
            yield ExpectedTensor(layer_tensor(layer_idx, part, "bias"), shape[:1], because)
    yield expect("attn_q_norm", (config.head_dim,), heads)
    yield expect("attn_k_norm", (config.head_dim,), kv_heads)
    yield expect("ffn_norm", (hidden,), rows)
    yield expect("ffn_gate", (ffn, hidden), units)
    yield expect("ffn_up", (ffn, hidden), units)
    yield expect("ffn_down", (hidden, ffn), units)
    if config.conv is not None:
        taps, groups = config.conv.kernel_size, hidden // config.conv.group_size
        because = f"{taps} taps and {groups} groups"
        for sublayer in ("attn", "ffn"):
            base, projection = conv_base(layer_idx, sublayer), conv_projection(layer_idx, sublayer)
            yield ExpectedTensor(base, (2, taps, hidden), because)
            yield ExpectedTensor(projection, (2 * taps * groups, hidden), because)
