"""The dense decoder behind llama, qwen2, qwen3 and gemma3: one definition, flags not copies.

Written once against `Ops`: with torch ops it computes, with native ops the same calls record a
plan. Knows no file format, cache or token text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from blockdraft.config import ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.protocol import AttentionSpec, Linear, Norm, Ops
from blockdraft.weights.tensors import EMBEDDING, HEAD, OUTPUT_NORM, layer_tensor

__all__ = ["Decoder", "DecoderWeights", "LayerWeights", "WeightSource", "build_decoder"]

X = TypeVar("X")
W = TypeVar("W")
V = TypeVar("V")
W_co = TypeVar("W_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class WeightSource(Protocol[W_co, V_co]):
    """Weights by GGUF tensor name; the same name gives the same handle."""

    def matrix(self, name: str, /) -> W_co:
        """The matrix "out in" called ``name``."""
        ...

    def vector(self, name: str, /) -> V_co:
        """The vector called ``name``."""
        ...

    def has(self, name: str, /) -> bool:
        """Whether there is a tensor called ``name``."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W, V]):
    """Weights of one block, in the order in which they are used; post-norms may be None."""

    attn_norm: Norm[V]
    qkv: tuple[Linear[W, V], ...]
    attention: AttentionSpec[V]
    attn_output: Linear[W, V]
    post_attn_norm: Norm[V] | None
    ffn_norm: Norm[V]
    gate_up: tuple[Linear[W, V], ...]
    down: Linear[W, V]
    post_ffn_norm: Norm[V] | None


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[W, V]):
    """Weights of a decoder."""

    embedding: W
    layers: tuple[LayerWeights[W, V], ...]
    output_norm: Norm[V]
    head: Linear[W, V]


class Decoder(Generic[W, V]):
    """A decoder: configuration and weights. Holds no state; `forward` may be called at any time."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights[W, V]) -> None:
        """Bind ``weights`` to ``config``; `build_decoder` makes both fit."""
        self.config = config
        self.weights = weights

    def forward(self, ops: Ops[X, W, V], taps: Sequence[int] = ()) -> X:
        """Run the pass that ``ops`` holds; returns the logits handle.

        Args:
            ops: Backend, made for one pass.
            taps: Layers whose output becomes a feature of the pass, ascending.

        Raises:
            ConfigError: A tap is no layer, or the taps do not ascend.
        """
        config, weights = self.config, self.weights
        _check_taps(taps, config.num_layers)
        h = ops.embed(weights.embedding, scale=config.embedding_scale)
        for layer_idx, layer in enumerate(weights.layers):
            q, k, v = ops.project(h, layer.qkv, layer.attn_norm)
            attended = ops.attend(q, k, v, layer.attention)
            ops.project_add(attended, layer.attn_output, h, layer.post_attn_norm)
            gate, up = ops.project(h, layer.gate_up, layer.ffn_norm)
            ops.gated_project_add(gate, up, config.activation, layer.down, h, layer.post_ffn_norm)
            if layer_idx in taps:
                ops.tap(h)
        return ops.logits(
            h,
            weights.output_norm,
            weights.head,
            scale=config.logit_scale,
            softcap=config.logit_softcap,
        )


def build_decoder(config: ModelConfig, source: WeightSource[W, V]) -> Decoder[W, V]:
    """Decoder of ``config`` with the weights of ``source``."""
    embedding = source.matrix(EMBEDDING)
    weights = DecoderWeights(
        embedding=embedding,
        layers=tuple(_build_layer(config, source, i) for i in range(config.num_layers)),
        output_norm=Norm(source.vector(OUTPUT_NORM), config.norm_eps),
        head=Linear(embedding if config.tied_head else source.matrix(HEAD)),
    )
    return Decoder(config, weights)


def _build_layer(
    config: ModelConfig, source: WeightSource[W, V], layer_idx: int
) -> LayerWeights[W, V]:
    def norm(part: str) -> Norm[V]:
        return Norm(source.vector(layer_tensor(layer_idx, part)), config.norm_eps)

    def linear(part: str, *, has_bias: bool = False) -> Linear[W, V]:
        weight = source.matrix(layer_tensor(layer_idx, part))
        bias = source.vector(layer_tensor(layer_idx, part, "bias")) if has_bias else None
        return Linear(weight, bias)

    windowed = config.windowed_layers[layer_idx]
    rope = config.rope if not windowed or config.local_rope is None else config.local_rope
    attention = AttentionSpec(
        layer_idx=layer_idx,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        rope=rope,
        window=config.window if windowed else None,
        softcap=config.attention_softcap,
        q_norm=norm("attn_q_norm") if config.qk_norm else None,
        k_norm=norm("attn_k_norm") if config.qk_norm else None,
    )
    qkv_parts = ("attn_q", "attn_k", "attn_v")
    return LayerWeights(
        attn_norm=norm("attn_norm"),
        qkv=tuple(linear(part, has_bias=config.attention_bias) for part in qkv_parts),
        attention=attention,
        attn_output=linear("attn_output"),
        post_attn_norm=norm("post_attention_norm") if config.post_norms else None,
        ffn_norm=norm("ffn_norm"),
        gate_up=(linear("ffn_gate"), linear("ffn_up")),
        down=linear("ffn_down"),
        post_ffn_norm=norm("post_ffw_norm") if config.post_norms else None,
    )


def _check_taps(taps: Sequence[int], num_layers: int) -> None:
    in_range = all(0 <= tap < num_layers for tap in taps)
    if not in_range or any(a >= b for a, b in pairwise(taps)):
        raise ConfigError(
            f"taps are {list(taps)}; they must be ascending layers in [0, {num_layers - 1}]"
        )
