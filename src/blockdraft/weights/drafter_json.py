"""A `DrafterConfig` to the ``config.json`` of z-lab's layout, which vLLM and SGLang read too.

Block size and causality are written at their old and at their new place. Knows no file and no
tensor.

Source: the configurations of z-lab's checkpoints; transformers' ``Qwen3Config``.
"""

from typing import Any

import numpy as np

from blockdraft.config import Activation, DrafterConfig, RopeConfig
from blockdraft.errors import UnsupportedError
from blockdraft.ops.rope import attention_factor

__all__ = ["folder_config"]

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_ACTIVATIONS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu_pytorch_tanh"}
_ROPES = {"none": "default", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}


def folder_config(config: DrafterConfig, dtype: str) -> dict[str, Any]:
    """Content of ``config.json``.

    Args:
        config: What `weights.drafter_folder` reads back from it, except the name.
        dtype: Type of the weights: bf16, f16 or f32.

    Raises:
        UnsupportedError: The layout has no key for something in ``config``.
    """
    kind = "DFlashDraftModel" if config.conv is None else "DFlash2DraftModel"
    windowed = any(config.windowed_layers)
    content = {
        "architectures": [kind],
        "model_type": "qwen3",
        "dtype": _DTYPES[dtype],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": _shortest(config.norm_eps),
        "hidden_act": _ACTIVATIONS[config.activation],
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "layer_types": [
            "sliding_attention" if flag else "full_attention" for flag in config.windowed_layers
        ],
        "sliding_window": config.window,
        "use_sliding_window": windowed,
        "max_window_layers": config.num_layers,
        **_rope(config),
        "is_causal": _causal(config),
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": _inner(config),
    }
    optional = {"draft_vocab_size", "is_causal", "num_target_layers"}
    return {k: v for k, v in content.items() if v is not None or k not in optional}


def _inner(config: DrafterConfig) -> dict[str, Any]:
    inner: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "causal": _causal(config),
        "final_logit_softcapping": config.logit_softcap and _shortest(config.logit_softcap),
    }
    for name, scale in (
        ("input_embedding_scale", config.embedding_scale),
        ("output_multiplier", config.logit_scale),
    ):
        if scale != 1.0:
            inner[name] = _shortest(scale)
    if config.head_token_ids is not None:
        inner["head_token_ids"] = list(config.head_token_ids)
    if config.accepted:
        inner["accepted_by_position"] = [_shortest(share) for share in config.accepted]
    if config.conv is not None and config.selector is not None:
        inner["conv_kernel_size"] = config.conv.kernel_size
        inner["conv_group_size"] = config.conv.group_size
        inner["selector_rank"] = config.selector.rank
        inner["selector_top_k"] = config.selector.top_k
    elif config.conv is not None or config.selector is not None:
        raise UnsupportedError(
            "the drafter has only one of convolutions and candidate selector; a Hugging Face"
            " folder has both or none"
        )
    return {k: v for k, v in inner.items() if v is not None}


def _causal(config: DrafterConfig) -> bool | None:
    """The one flag for all layers; None where exactly the windowed ones are causal."""
    flags = set(config.causal_layers)
    if len(flags) == 1:
        return flags.pop()
    if config.causal_layers == config.windowed_layers:
        return None
    raise UnsupportedError(
        f"the drafter's causal layers are {list(config.causal_layers)}; a Hugging Face folder has"
        f" one flag for all, or exactly the windowed ones, {list(config.windowed_layers)}"
    )


def _rope(config: DrafterConfig) -> dict[str, Any]:
    rope = config.rope
    _check_rope(config, rope)
    theta = _shortest(rope.theta)
    parameters: dict[str, Any] = {"rope_type": _ROPES[rope.scaling], "rope_theta": theta}
    if rope.scaling == "none":
        return {"rope_theta": theta, "rope_parameters": parameters}
    parameters["factor"] = _shortest(rope.factor)
    parameters["original_max_position_embeddings"] = rope.original_context
    if rope.scaling == "yarn":
        parameters["beta_fast"] = _shortest(rope.beta_fast)
        parameters["beta_slow"] = _shortest(rope.beta_slow)
        if rope.attention_factor != 1.0:
            parameters["attention_factor"] = attention_factor(rope)
    if rope.scaling == "llama3":
        parameters["low_freq_factor"] = rope.low_freq_factor
        parameters["high_freq_factor"] = rope.high_freq_factor
    # The second place is that of transformers before version 5.
    return {"rope_theta": theta, "rope_parameters": parameters, "rope_scaling": parameters}


def _check_rope(config: DrafterConfig, rope: RopeConfig) -> None:
    for what, value, only in (
        ("rotated dimensions", rope.dims, config.head_dim),
        ("interleaved pairs", rope.interleaved, False),
        ("frequency factors", rope.freq_factors, ()),
    ):
        if value != only:
            raise UnsupportedError(
                f"the drafter's rotary embedding has {what} {value}; a Hugging Face folder has"
                f" only {only}"
            )
    if rope.scaling != "yarn" and rope.attention_factor != 1.0:
        raise UnsupportedError(
            f"the drafter's rotary embedding has attention factor {rope.attention_factor} under"
            f" {rope.scaling} scaling; a Hugging Face folder has one only under yarn"
        )


def _shortest(value: float) -> float:
    """The shortest decimal of a number that GGUF keeps in 32 bits: 1e-6, not 9.99999997e-7."""
    return float(str(np.float32(value))) if float(np.float32(value)) == value else value
