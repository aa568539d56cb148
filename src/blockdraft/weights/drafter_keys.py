"""A `DrafterConfig` to the metadata keys of llama.cpp's architecture ``dflash``.

The inverse of `weights.drafter_gguf`. Knows no tensor. ``target_layers`` counts inputs of layers,
hence ids plus one. Biases of attention, which llama.cpp's drafters lack, need no key: targets that
have them are none that llama.cpp can draft for.

Source: llama.cpp's model ``dflash`` and its converter.
"""

import numpy as np

from blockdraft.config import Activation, DrafterConfig, RopeConfig
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.weights.drafter_gguf import ACCEPTED, HEAD_TOKENS
from blockdraft.weights.drafter_types import FILE_TYPES
from blockdraft.weights.gguf import GGUFFile, StringArray
from blockdraft.weights.gguf_writer import NewValue, RawEntry

__all__ = ["gguf_keys"]

_ARCHITECTURE = "dflash"
_QUANTIZATION_VERSION = 2
_MASK = "tokenizer.ggml.mask_token_id"


def gguf_keys(config: DrafterConfig, *, type_name: str, target: GGUFFile) -> dict[str, NewValue]:
    """All metadata of a drafter's file.

    Args:
        config: The drafter.
        type_name: One of `weights.drafter_types.FILE_TYPES`.
        target: A file with the tokenizer of the target, which llama.cpp compares with the target's.

    Raises:
        ConfigError: The tokenizer has another number of tokens.
        UnsupportedError: The architecture has no key for something in ``config``.
    """
    _check_supported(config)
    _check_tokenizer(config, target)
    keys: dict[str, NewValue] = {
        "general.architecture": _ARCHITECTURE,
        "general.type": "model",
        "general.name": config.name,
        "general.file_type": FILE_TYPES[type_name],
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    own = _shape_keys(config) | _dflash_keys(config) | _rope_keys(config.rope)
    keys |= {f"{_ARCHITECTURE}.{name}": value for name, value in own.items()}
    for key in target.metadata:
        if key.startswith("tokenizer.") and key != _MASK:
            keys[key] = RawEntry(target.raw_entry(key))
    keys[_MASK] = config.mask_token_id
    if config.head_token_ids is not None:
        keys[HEAD_TOKENS] = np.array(config.head_token_ids, np.int32)
    if config.accepted:
        keys[ACCEPTED] = np.array(config.accepted, np.float32)
    return keys


def _check_supported(config: DrafterConfig) -> None:
    lacks = "llama.cpp's architecture dflash has"
    if config.mask_embedding:
        raise UnsupportedError(f"the drafter has a mask embedding; {lacks} none")
    if len(set(config.causal_layers)) > 1:
        raise UnsupportedError(
            f"the drafter's causal layers are {list(config.causal_layers)}; {lacks} one flag for"
            " all"
        )
    if config.rope.scaling == "llama3" or config.rope.freq_factors or config.rope.interleaved:
        raise UnsupportedError(
            f"the drafter's rotary embedding has {config.rope.scaling} scaling; {lacks} only none,"
            " linear and yarn, without factors and interleaving"
        )


def _check_tokenizer(config: DrafterConfig, target: GGUFFile) -> None:
    tokens = target.metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, StringArray) else 0
    if count != config.vocab_size:
        raise ConfigError(
            f"{target.path}: its tokenizer has {count} tokens, the drafter {config.vocab_size}"
        )


def _shape_keys(config: DrafterConfig) -> dict[str, NewValue]:
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.ffn_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }


def _dflash_keys(config: DrafterConfig) -> dict[str, NewValue]:
    keys: dict[str, NewValue] = {
        "block_size": config.block_size,
        "target_layers": np.array(config.target_layer_ids, np.int32) + np.int32(1),
        "attention.causal": config.causal_layers[0],
    }
    if config.window is not None:
        keys["attention.sliding_window"] = config.window
        keys["attention.sliding_window_pattern"] = np.array(config.windowed_layers, np.bool_)
    if config.activation is Activation.GELU_TANH:
        keys["hidden_activation"] = "gelu_pytorch_tanh"
    if config.logit_softcap is not None:
        keys["final_logit_softcapping"] = config.logit_softcap
    for name, scale in (
        ("embedding_scale", config.embedding_scale),
        ("logit_scale", config.logit_scale),
    ):
        if scale != 1.0:
            keys[name] = scale
    if config.conv is not None:
        keys["conv_kernel_size"] = config.conv.kernel_size
        keys["conv_group_size"] = config.conv.group_size
    if config.selector is not None:
        keys["selector_rank"] = config.selector.rank
        keys["selector_top_k"] = config.selector.top_k
    return keys


def _rope_keys(rope: RopeConfig) -> dict[str, NewValue]:
    keys: dict[str, NewValue] = {
        "rope.freq_base": rope.theta,
        "rope.dimension_count": rope.dims,
    }
    if rope.attention_factor != 1.0:
        keys["rope.scaling.attn_factor"] = rope.attention_factor
    if rope.scaling == "none":
        return keys
    keys["rope.scaling.type"] = rope.scaling
    keys["rope.scaling.factor"] = rope.factor
    keys["rope.scaling.original_context_length"] = rope.original_context
    if rope.scaling == "yarn":
        keys["rope.scaling.yarn_beta_fast"] = rope.beta_fast
        keys["rope.scaling.yarn_beta_slow"] = rope.beta_slow
    return keys
