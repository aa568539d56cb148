import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.config import Activation, ModelConfig
from blockdraft.errors import BlockdraftError, FileFormatError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

TinyModel = Callable[..., Path]


def read(path: Path) -> ModelConfig:
    with GGUFFile.open(path) as file:
        return read_model_config(file)


def refusal(kind: type[BlockdraftError], path: Path) -> str:
    with pytest.raises(kind) as caught:
        read(path)
    assert type(caught.value) is kind
    return str(caught.value).removeprefix(f"{path}: ")


# --- architectures


def test_llama(tiny_model: TinyModel) -> None:
    config = read(tiny_model("llama"))
    assert (config.num_layers, config.hidden_size, config.ffn_size) == (2, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.context_length) == (299, 2048)
    assert config.norm_eps == pytest.approx(1e-5)
    assert config.rope.interleaved
    assert (config.rope.theta, config.rope.dims, config.rope.scaling) == (10_000.0, 16, "none")
    assert config.attention_scale == 0.25
    assert config.activation is Activation.SILU
    assert config.tied_head
    assert (config.qk_norm, config.attention_bias, config.post_norms) == (False, False, False)
    assert (config.window, config.local_rope, config.windowed_layers) == (None, None, (False,) * 2)


def test_qwen2_has_biases(tiny_model: TinyModel) -> None:
    config = read(tiny_model("qwen2"))
    assert config.attention_bias
    assert (config.rope.interleaved, config.qk_norm, config.tied_head) == (False, False, False)


def test_qwen3_has_query_and_key_norms(tiny_model: TinyModel) -> None:
    config = read(tiny_model("qwen3"))
    assert config.qk_norm
    assert (config.rope.interleaved, config.attention_bias) == (False, False)
    assert config.head_dim == 32


def test_gemma3_facts_that_are_not_in_its_file(tiny_model: TinyModel) -> None:
    config = read(tiny_model("gemma3"))
    assert config.windowed_layers == (True,) * 5 + (False,)
    assert config.window == 8
    assert config.local_rope is not None
    assert config.local_rope.theta == 10_000.0
    assert config.embedding_scale == math.sqrt(64)
    assert config.attention_scale == 32**-0.5
    assert config.activation is Activation.GELU_TANH
    assert config.post_norms
    assert config.qk_norm
    assert (config.attention_softcap, config.logit_softcap) == (None, None)


def test_gemma3_27b_scales_by_hidden_size_per_head(tiny_model: TinyModel) -> None:
    assert read(tiny_model("gemma3", layers=62)).attention_scale == (64 // 4) ** -0.5


def test_gemma3_local_layers_ignore_scaling(tiny_model: TinyModel) -> None:
    keys = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    config = read(tiny_model("gemma3", metadata=keys))
    assert (config.rope.scaling, config.rope.factor) == ("linear", 8.0)
    assert config.local_rope is not None
    assert config.local_rope.scaling == "none"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (2, (True, False) * 3),
        (1, (False,) * 6),
        (0, (True,) * 6),
        ([False, True, True, False, True, True], (False, True, True, False, True, True)),
    ],
    ids=["alternate", "none", "all", "flags"],
)
def test_window_pattern(tiny_model: TinyModel, pattern: Any, expected: tuple[bool, ...]) -> None:
    keys = {"gemma3.attention.sliding_window_pattern": pattern}
    config = read(tiny_model("gemma3", metadata=keys))
    assert config.windowed_layers == expected
    assert (config.window is None) == (not any(expected))


def test_soft_caps_are_read(tiny_model: TinyModel) -> None:
    keys = {"gemma3.final_logit_softcapping": 30.0, "gemma3.attn_logit_softcapping": 50.0}
    config = read(tiny_model("gemma3", metadata=keys))
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)


def test_other_architectures_are_refused_by_name(tiny_model: TinyModel) -> None:
    assert refusal(UnsupportedError, tiny_model("phi3")) == (
        "the architecture is 'phi3'; supported are llama, qwen2, qwen3, gemma3"
    )


# --- rotary embedding


def test_yarn_keys(tiny_model: TinyModel) -> None:
    keys = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 512,
        "qwen3.rope.scaling.attn_factor": 0.5,
        "qwen3.rope.scaling.yarn_beta_fast": 16.0,
        "qwen3.rope.scaling.yarn_beta_slow": 2.0,
    }
    rope = read(tiny_model("qwen3", metadata=keys)).rope
    assert (rope.scaling, rope.factor, rope.original_context) == ("yarn", 4.0, 512)
    assert (rope.attention_factor, rope.beta_fast, rope.beta_slow) == (0.5, 16.0, 2.0)


@pytest.mark.parametrize("key", ["rope.scale_linear", "rope.scaling.factor"])
def test_a_factor_without_a_type_is_linear(tiny_model: TinyModel, key: str) -> None:
    rope = read(tiny_model("llama", metadata={f"llama.{key}": 2.0})).rope
    assert (rope.scaling, rope.factor) == ("linear", 2.0)


def test_type_none_ignores_the_factor(tiny_model: TinyModel) -> None:
    keys = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}
    rope = read(tiny_model("llama", metadata=keys)).rope
    assert (rope.scaling, rope.factor) == ("none", 1.0)


def test_rope_factors_are_read_from_their_tensor(tiny_model: TinyModel) -> None:
    factors = read(tiny_model("llama", rope_freqs=True)).rope.freq_factors
    assert len(factors) == 8
    assert all(0.5 < factor < 1.5 for factor in factors)
    assert len(set(factors)) == 8


# --- refusals


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(tiny_model: TinyModel, key: str) -> None:
    path = tiny_model("llama", metadata={f"llama.{key}": None})
    assert refusal(FileFormatError, path) == f"has no metadata key llama.{key}"


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.sliding_window"])
def test_gemma3_needs_more_keys(tiny_model: TinyModel, key: str) -> None:
    path = tiny_model("gemma3", metadata={f"gemma3.{key}": None})
    assert refusal(FileFormatError, path) == f"has no metadata key gemma3.{key}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", "two", "block_count is a string, it must be an integer"),
        ("block_count", 0, "block_count is 0; it must be in [1, 16777216]"),
        ("block_count", 100_000, "block_count is 100000; it must be at most the 20 tensors"),
        ("embedding_length", -64, "embedding_length is -64; it must be in [1, 16777216]"),
        ("attention.head_count_kv", 3, "head_count is 4; it must be a multiple of 3 KV heads"),
        ("attention.head_count", [4, 4], "head_count is an array of integers"),
        ("attention.layer_norm_rms_epsilon", math.nan, "layer_norm_rms_epsilon is nan"),
        ("attention.layer_norm_rms_epsilon", 0.0, "epsilon is 0.0; it must be in [1e-12, 1]"),
        ("rope.freq_base", 0.0, "rope.freq_base is 0.0; it must be in"),
        ("rope.dimension_count", 18, "rope.dimension_count is 18; it must be in [2, 16]"),
        ("rope.scaling.factor", 0.5, "rope.scaling.factor is 0.5; it must be in [1, 65536]"),
        ("vocab_size", 300, "vocab_size is 300; it must be the 299 rows of token_embd.weight"),
    ],
)
def test_impossible_values(tiny_model: TinyModel, key: str, value: Any, message: str) -> None:
    path = tiny_model("llama", metadata={f"llama.{key}": value})
    assert message in refusal(FileFormatError, path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_count", 8, "llama.expert_count is 8, which llama models here do not use"),
        ("logit_scale", 0.5, "llama.logit_scale is 0.5"),
        ("residual_scale", 0.5, "llama.residual_scale is 0.5"),
        ("embedding_scale", 12.0, "llama.embedding_scale is 12.0"),
        ("attention.scale", 1.0, "llama.attention.scale is 1.0"),
        ("attention.causal", False, "llama.attention.causal is False"),
        ("attention.sliding_window", 64, "sliding_window is 64; windows are supported for gemma3"),
        ("attention.value_length", 32, "value_length is 32 where keys have 16"),
        ("attention.key_length", 24, "key_length gives 24; only multiples of 16 are supported"),
        ("attention.key_length", 2048, "heads are 2048 wide; at most 1024 is supported"),
        ("rope.dimension_count", 8, "dimension_count gives 8; only multiples of 16 are supported"),
        ("embedding_length", 72, "embedding_length gives 72; only multiples of 32 are supported"),
        ("rope.scaling.type", "longrope", "'longrope'; supported are none, linear, yarn"),
        ("rope.dimension_count_swa", 8, "dimension_count_swa is 8; only 16"),
    ],
)
def test_unsupported_values(tiny_model: TinyModel, key: str, value: Any, message: str) -> None:
    path = tiny_model("llama", metadata={f"llama.{key}": value})
    assert message in refusal(UnsupportedError, path)


def test_neutral_values_of_such_keys_are_fine(tiny_model: TinyModel) -> None:
    keys = {
        "llama.expert_count": 0,
        "llama.logit_scale": 1.0,
        "llama.attention.causal": True,
        "llama.attention.scale": 0.25,
        "llama.attention.sliding_window": 2048,
    }
    assert read(tiny_model("llama", metadata=keys)) == read(tiny_model("llama"))


def test_head_size_follows_from_the_hidden_size(tiny_model: TinyModel) -> None:
    keys = {"llama.attention.key_length": None, "llama.attention.value_length": None}
    assert read(tiny_model("llama", metadata=keys)).head_dim == 16


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        (
            "llama",
            {"attention.head_count": 8},
            "tensor blk.0.attn_q.weight is 64 x 64; 8 heads of 16 need 128 x 64",
        ),
        (
            "qwen2",
            {"attention.head_count_kv": 4},
            "tensor blk.0.attn_k.weight is 64 x 64; 4 KV heads of 32 need 128 x 64",
        ),
        (
            "llama",
            {"feed_forward_length": 128},
            "tensor blk.0.ffn_gate.weight is 96 x 64; 128 feed-forward units need 128 x 64",
        ),
        (
            "gemma3",
            {"embedding_length": 96},
            "tensor token_embd.weight is 299 x 64; 299 tokens of width 96 need 299 x 96",
        ),
        ("qwen3", {"block_count": 3}, "has no tensor 'blk.2.attn_norm.weight'"),
    ],
)
def test_shapes_are_checked(
    tiny_model: TinyModel, arch: str, keys: dict[str, int], message: str
) -> None:
    path = tiny_model(arch, metadata={f"{arch}.{key}": value for key, value in keys.items()})
    assert refusal(FileFormatError, path) == message


def test_tensors_without_a_place_are_refused(tiny_model: TinyModel) -> None:
    assert refusal(UnsupportedError, tiny_model("llama", metadata={"llama.block_count": 1})) == (
        "tensor blk.1.attn_q.weight has no place in a llama decoder of 1 layers"
    )
    assert refusal(UnsupportedError, tiny_model("qwen2", rope_freqs=True)) == (
        "tensor rope_freqs.weight has no place in a qwen2 decoder of 2 layers"
    )


def test_tokens_without_a_row_are_refused(tiny_model: TinyModel) -> None:
    tokens = [str(i) for i in range(301)]
    path = tiny_model("llama", metadata={"tokenizer.ggml.tokens": tokens})
    assert refusal(FileFormatError, path) == (
        "tokenizer.ggml.tokens has 301 tokens; token_embd.weight has 299 rows"
    )


# --- real files


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("smollm2-135m", ("llama", 30, 576, 1536, 9, 3, 64, 49_152, 8192)),
        ("qwen2.5-coder-0.5b", ("qwen2", 24, 896, 4864, 14, 2, 64, 151_936, 32_768)),
        ("gemma3-270m", ("gemma3", 18, 640, 2048, 4, 1, 256, 262_144, 32_768)),
    ],
)
def test_real_files(
    model_path: Callable[[str], Path], name: str, sizes: tuple[str | int, ...]
) -> None:
    config = read(model_path(name))
    assert sizes == (
        config.architecture,
        config.num_layers,
        config.hidden_size,
        config.ffn_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.context_length,
    )
    assert config.tied_head == (name != "qwen2.5-coder-0.5b")
    assert sum(config.windowed_layers) == (15 if name == "gemma3-270m" else 0)
    assert config.rope.theta == (1e5 if name == "smollm2-135m" else 1e6)
