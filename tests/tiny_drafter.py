"""Tiny random drafters: a Hugging Face folder and a GGUF file with the same tensors.

The same arguments give the same bytes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.raw_gguf import build, tensor, value_entry

__all__ = ["LAYOUTS", "TinyDrafter"]

LAYOUTS = ("old", "new", "speculators")
Array = NDArray[Any]

# Ours, as a second opinion on the tables of the reader.
GGUF_PARTS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
GGUF_OUTER = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}


def gguf_name(name: str) -> str:
    """GGUF name of a tensor of a folder."""
    if not name.startswith("layers."):
        return GGUF_OUTER.get(name, name)
    _, layer, part = name.split(".", 2)
    stem, _, kind = part.rpartition(".")
    ours = GGUF_PARTS.get(part) or f"{GGUF_PARTS[stem]}.{kind}"
    return f"blk.{layer}.{ours}"


@dataclass(frozen=True)
class TinyDrafter:
    """What to write.

    Attributes:
        kinds: "full" or "sliding" per layer.
        is_causal: As in the configuration; None leaves it out.
        is_dflash2: With convolutions and selector.
        draft_ids: Target tokens of a reduced vocabulary; with an own head then.
        config: Keys to add or replace at the top level; None as value leaves the key out.
        inner: The same under ``dflash_config``.
        extra: Tensors to add, by their names in a folder.
    """

    kinds: tuple[str, ...] = ("full", "full")
    window: int = 6
    is_causal: bool | None = None
    is_dflash2: bool = False
    hidden: int = 64
    ffn: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 131
    block_size: int = 4
    mask_token_id: int = 130
    target_layer_ids: tuple[int, ...] = (0, 2, 3)
    num_target_layers: int | None = 5
    attention_bias: bool = False
    taps: int = 2
    group_size: int = 16
    rank: int = 8
    top_k: int = 5
    draft_ids: tuple[int, ...] | None = None
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    inner: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Array] = field(default_factory=dict)

    def tensors(self) -> dict[str, Array]:
        """Every tensor by its name in a folder."""
        rng = np.random.default_rng(self.seed)

        def random(*shape: int, mean: float = 0.0, scale: float = 1.0) -> Array:
            return (mean + scale * rng.standard_normal(shape)).astype(np.float32)

        hidden = self.hidden
        tensors = {
            "fc.weight": random(hidden, len(self.target_layer_ids) * hidden, scale=0.08),
            "hidden_norm.weight": random(hidden, mean=1, scale=0.2),
            "norm.weight": random(hidden, mean=1, scale=0.2),
        }
        for layer_idx in range(len(self.kinds)):
            part = self._dflash_layer(random) | (self._convs(random) if self.is_dflash2 else {})
            tensors |= {f"layers.{layer_idx}.{name}": values for name, values in part.items()}
        if self.is_dflash2:
            selector = "candidate_selector."
            tensors[f"{selector}predecessor_codebook"] = random(self.vocab_size, self.rank)
            tensors[f"{selector}successor_codebook"] = random(self.vocab_size, self.rank)
            tensors[f"{selector}hidden_projection.weight"] = random(
                self.rank, hidden, scale=hidden**-0.5
            )
        if self.draft_ids is not None:
            rows = len(self.draft_ids)
            tensors["lm_head.weight"] = random(rows, hidden, scale=hidden**-0.5)
            tensors["d2t"] = np.array(self.draft_ids, np.int64) - np.arange(rows)
        return {**tensors, **self.extra}

    def _dflash_layer(self, random: Callable[..., Array]) -> dict[str, Array]:
        hidden, heads = self.hidden, self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        tensors = {
            "input_layernorm.weight": random(hidden, mean=1, scale=0.2),
            "post_attention_layernorm.weight": random(hidden, mean=1, scale=0.2),
            "self_attn.q_norm.weight": random(self.head_dim, mean=1.5, scale=0.3),
            "self_attn.k_norm.weight": random(self.head_dim, mean=1.5, scale=0.3),
        }
        for name, (rows, cols) in {
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, heads),
            "mlp.gate_proj": (self.ffn, hidden),
            "mlp.up_proj": (self.ffn, hidden),
            "mlp.down_proj": (hidden, self.ffn),
        }.items():
            tensors[f"{name}.weight"] = random(rows, cols, scale=1.5 * cols**-0.5)
            if self.attention_bias and "attn" in name:
                tensors[f"{name}.bias"] = random(rows, scale=0.3)
        return tensors

    def _convs(self, random: Callable[..., Array]) -> dict[str, Array]:
        kernels = 2 * self.taps * (self.hidden // self.group_size)
        tensors = {}
        for conv in ("attention_conv", "mlp_conv"):
            tensors[f"{conv}.base_kernel"] = random(2, self.taps, self.hidden, scale=0.5)
            tensors[f"{conv}.kernel_projection.weight"] = random(kernels, self.hidden, scale=0.05)
        return tensors

    # --- Hugging Face folder

    def body(self) -> dict[str, Any]:
        """Keys of the transformer."""
        windowed = "sliding" in self.kinds
        return {
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": len(self.kinds),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": self.attention_bias,
            "rope_theta": 10000.0,
            "layer_types": [f"{kind}_attention" for kind in self.kinds],
            "sliding_window": self.window if windowed else None,
            "use_sliding_window": windowed,
            "tie_word_embeddings": False,
        }

    def dflash2_keys(self) -> dict[str, int]:
        """Keys of convolutions and selector; none for DFlash 1."""
        if not self.is_dflash2:
            return {}
        return {
            "conv_kernel_size": self.taps,
            "conv_group_size": self.group_size,
            "selector_rank": self.rank,
            "selector_top_k": self.top_k,
        }

    def to_config(self, layout: str = "new") -> dict[str, Any]:
        """Content of ``config.json``."""
        kind = "DFlash2DraftModel" if self.is_dflash2 else "DFlashDraftModel"
        if layout == "speculators":
            config: dict[str, Any] = {
                "architectures": [kind],
                "speculators_model_type": "dflash2" if self.is_dflash2 else "dflash",
                "transformer_layer_config": self.body(),
                "draft_vocab_size": len(self.draft_ids or range(self.vocab_size)),
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "aux_hidden_state_layer_ids": [i + 1 for i in self.target_layer_ids],
                "sliding_window_non_causal": self.is_causal is False,
                **self.dflash2_keys(),
            }
        else:
            inner = {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
                **self.dflash2_keys(),
                **self.inner,
            }
            inner = {k: v for k, v in inner.items() if v is not None}
            config = {
                "architectures": [kind],
                **self.body(),
                "num_target_layers": self.num_target_layers,
                "dflash_config": inner,
            }
            (config if layout == "old" else inner).setdefault("block_size", self.block_size)
            if self.is_causal is not None:
                config["is_causal"] = self.is_causal
        return {k: v for k, v in {**config, **self.config}.items() if v is not None}

    def write_folder(self, folder: Path, layout: str = "new") -> Path:
        """Write the folder and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.to_config(layout)))
        save_file(self.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    # --- GGUF

    def keys(self) -> dict[str, Any]:
        """Metadata of the GGUF file."""
        keys: dict[str, Any] = {
            "general.architecture": "dflash",
            "general.name": "tiny drafter",
            "dflash.block_count": len(self.kinds),
            "dflash.context_length": 4096,
            "dflash.embedding_length": self.hidden,
            "dflash.feed_forward_length": self.ffn,
            "dflash.attention.head_count": self.heads,
            "dflash.attention.head_count_kv": self.kv_heads,
            "dflash.attention.key_length": self.head_dim,
            "dflash.attention.value_length": self.head_dim,
            "dflash.attention.layer_norm_rms_epsilon": 1e-6,
            "dflash.rope.freq_base": 10000.0,
            "dflash.target_layers": [i + 1 for i in self.target_layer_ids],
            "dflash.block_size": self.block_size,
            "dflash.attention.causal": bool(self.is_causal),
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(self.vocab_size)],
            "tokenizer.ggml.mask_token_id": self.mask_token_id,
            **{f"dflash.{name}": value for name, value in self.dflash2_keys().items()},
        }
        if "sliding" in self.kinds:
            keys["dflash.attention.sliding_window"] = self.window
            keys["dflash.attention.sliding_window_pattern"] = [k == "sliding" for k in self.kinds]
        return {**keys, **self.config}

    def write_gguf(self, path: Path) -> Path:
        """Write the file and return its path."""
        entries: list[bytes] = []
        data = b""
        for name, values in self.tensors().items():
            if name == "d2t":
                values = values + np.arange(len(values))
            kind = 27 if values.dtype == np.int64 else 0
            entries.append(tensor(gguf_name(name), values.shape[::-1], kind, len(data)))
            raw = values.tobytes()
            data += raw + bytes(-len(raw) % 32)
        keys = [value_entry(k, v) for k, v in self.keys().items() if v is not None]
        path.write_bytes(build(keys, entries, data=data))
        return path
