"""`Decoder` with torch ops against transformers, on tiny random configurations in float32.

transformers takes seconds to import: only the tests themselves do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.config import Activation, ModelConfig, RopeConfig
from blockdraft.models.decoder import build_decoder
from blockdraft.ops.torch import TorchMatrix, TorchOps, TorchPass

# The reference takes seconds to import.
pytestmark = pytest.mark.slow


HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 16, 131
LENGTH = 40
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = HF_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Source:
    """Tensors of a transformers model under the names and in the row order of a GGUF file."""

    tensors: dict[str, Tensor]

    def matrix(self, name: str) -> TorchMatrix:
        return TorchMatrix(self.tensors[name])

    def vector(self, name: str) -> Tensor:
        return self.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.tensors


def interleave(rows: Tensor, num_heads: int) -> Tensor:
    """Row order of llama files: the halves of each head interleaved."""
    halves = rows.reshape(num_heads, 2, HEAD_DIM // 2, -1)
    return halves.transpose(1, 2).reshape(rows.shape)


def gguf_tensors(model: Any, config: ModelConfig) -> dict[str, Tensor]:
    state = model.state_dict()
    is_gemma = config.architecture == "gemma3"
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    if not config.tied_head:
        names["output"] = "lm_head"
    for layer in range(config.num_layers):
        for ours, theirs in (GEMMA_NAMES if is_gemma else HF_NAMES).items():
            names[f"blk.{layer}.{ours}"] = f"model.layers.{layer}.{theirs}"
    tensors = {}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            value = state.get(f"{theirs}.{kind}")
            if value is None:
                continue
            if config.rope.interleaved and ours.endswith(("attn_q", "attn_k")):
                value = interleave(value, HEADS if ours.endswith("q") else KV_HEADS)
            tensors[f"{ours}.{kind}"] = value + 1 if is_gemma and "norm" in ours else value
    return tensors


def make_config(architecture: str, num_layers: int, rope: RopeConfig) -> ModelConfig:
    return ModelConfig(
        architecture=architecture,
        name="tiny",
        num_layers=num_layers,
        hidden_size=HIDDEN,
        ffn_size=FFN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        context_length=256,
        norm_eps=1e-6,
        rope=rope,
        local_rope=None,
        window=None,
        windowed_layers=(False,) * num_layers,
        activation=Activation.SILU,
        embedding_scale=1.0,
        attention_scale=HEAD_DIM**-0.5,
        attention_softcap=None,
        logit_softcap=None,
        logit_scale=1.0,
        qk_norm=architecture in ("qwen3", "gemma3"),
        attention_bias=architecture == "qwen2",
        post_norms=architecture == "gemma3",
        tied_head=architecture == "gemma3",
    )


def build_transformers(
    config_class: Callable[..., Any], model_class: Callable[[Any], Any], **options: Any
) -> Any:
    """A transformers model whose norms and biases are random too."""
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
        **options,
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed_tokens" not in name and "lm_head" not in name:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model


def assert_equal(model: Any, config: ModelConfig, taps: Sequence[int]) -> None:
    ids = torch.arange(LENGTH) * 37 % VOCAB
    with torch.inference_mode():
        # Gemma 3 passes its score cap nowhere, its attention function takes one.
        extra = {"softcap": config.attention_softcap} if config.attention_softcap else {}
        expected = model(ids[None], output_hidden_states=True, **extra)
        ops = TorchOps(TorchPass([ids]))
        decoder = build_decoder(config, Source(gguf_tensors(model, config)))
        logits = decoder.forward(ops, taps).values
    torch.testing.assert_close(logits, expected.logits[0], rtol=1e-4, atol=1e-4)
    for tap, feature in zip(taps, ops.features, strict=True):
        hidden = expected.hidden_states[tap + 1][0]
        torch.testing.assert_close(feature, hidden, rtol=1e-4, atol=1e-4)


PLAIN = RopeConfig(theta=10_000.0, dims=HEAD_DIM, interleaved=True)
ROPES: dict[str, tuple[RopeConfig, dict[str, Any]]] = {
    "none": (PLAIN, {"rope_type": "default"}),
    "linear": (
        replace(PLAIN, scaling="linear", factor=4.0),
        {"rope_type": "linear", "factor": 4.0},
    ),
    "yarn": (
        replace(PLAIN, scaling="yarn", factor=4.0, original_context=64, beta_fast=8.0),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 8.0,
        },
    ),
    # The blend ends beyond the last pair.
    "yarn-long": (
        replace(PLAIN, scaling="yarn", factor=4.0, original_context=1 << 20, beta_fast=1000.0),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1 << 20,
            "beta_fast": 1000.0,
        },
    ),
    "llama3": (
        replace(PLAIN, scaling="llama3", factor=8.0, original_context=32, high_freq_factor=3.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 3.0,
            "original_max_position_embeddings": 32,
        },
    ),
}


@pytest.mark.parametrize("scaling", ROPES)
def test_llama(scaling: str) -> None:
    import transformers

    rope, parameters = ROPES[scaling]
    model = build_transformers(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        num_hidden_layers=3,
        rope_parameters={"rope_theta": 10_000.0, **parameters},
    )
    assert_equal(model, make_config("llama", 3, rope), taps=(0, 1))


def test_llama_with_attention_bias() -> None:
    import transformers

    model = build_transformers(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        num_hidden_layers=2,
        attention_bias=True,
    )
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    config = replace(make_config("llama", 2, PLAIN), attention_bias=True)
    assert_equal(model, config, taps=(0,))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen(architecture: str) -> None:
    import transformers

    name = architecture.capitalize()
    model = build_transformers(
        getattr(transformers, f"{name}Config"),
        getattr(transformers, f"{name}ForCausalLM"),
        num_hidden_layers=3,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
    )
    rope = RopeConfig(theta=1e6, dims=HEAD_DIM)
    assert_equal(model, make_config(architecture, 3, rope), taps=(0, 1))


@pytest.mark.parametrize("softcap", [None, 5.0], ids=["plain", "softcap"])
def test_gemma3(softcap: float | None) -> None:
    import transformers

    layer_types = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    model = build_transformers(
        transformers.Gemma3TextConfig,
        transformers.Gemma3ForCausalLM,
        num_hidden_layers=7,
        layer_types=layer_types,
        sliding_window=8,
        query_pre_attn_scalar=24,
        final_logit_softcapping=softcap,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )
    config = replace(
        make_config(
            "gemma3", 7, RopeConfig(theta=1e6, dims=HEAD_DIM, scaling="linear", factor=8.0)
        ),
        local_rope=RopeConfig(theta=10_000.0, dims=HEAD_DIM),
        window=8,
        windowed_layers=(True,) * 5 + (False, True),
        activation=Activation.GELU_TANH,
        embedding_scale=math.sqrt(HIDDEN),
        attention_scale=24**-0.5,
        attention_softcap=softcap,
        logit_softcap=softcap,
    )
    assert_equal(model, config, taps=(0, 4, 5))
