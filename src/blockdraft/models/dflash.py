"""The drafter network of DFlash and DFlash 2: target features in, logits of a whole block out.

Written once against `DrafterOps`: trained with torch ops, served by the same calls recorded as two
plans. Knows no file format, cache, acceptance rule or token text.

Notation: F target features per token; H = norm(fc(features)) is the context, the same for every
layer, which turns it into keys and values with the block's own projections. A context row never
asks a question. Row 0 of a block is the anchor; row k proposes the token *at* its own position.

Source: arXiv:2602.06036 (DFlash); inco.ai/blog/dflash2 (convolutions and selector).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import DrafterConfig
from blockdraft.models.decoder import WeightSource
from blockdraft.ops.protocol import (
    AttentionSpec,
    Convolution,
    DrafterOps,
    Linear,
    Norm,
    Selection,
    Selector,
)
from blockdraft.weights.drafter_names import (
    FEATURE_NORM,
    FEATURE_PROJECTION,
    MASK_EMBEDDING,
    SELECTOR_PREDECESSOR,
    SELECTOR_PROJECTION,
    SELECTOR_SUCCESSOR,
    conv_base,
    conv_projection,
)
from blockdraft.weights.tensors import EMBEDDING, HEAD, OUTPUT_NORM, layer_tensor

__all__ = ["BlockOutput", "DFlash", "DFlashLayer", "DFlashWeights", "build_dflash", "walk"]

X = TypeVar("X")
W = TypeVar("W")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DFlashLayer(Generic[W, V]):
    """Weights of one block, in the order in which they are used; DFlash 1 has no convolutions."""

    attn_norm: Norm[V]
    attn_conv: Convolution[W, V] | None
    qkv: tuple[Linear[W, V], ...]
    attention: AttentionSpec[V]
    attn_output: Linear[W, V]
    ffn_norm: Norm[V]
    ffn_conv: Convolution[W, V] | None
    gate_up: tuple[Linear[W, V], ...]
    down: Linear[W, V]


@dataclass(frozen=True, slots=True)
class DFlashWeights(Generic[W, V]):
    """Weights of a drafter; embedding and head are usually the target's own."""

    feature_projection: Linear[W, V]
    feature_norm: Norm[V]
    embedding: W
    mask_embedding: V | None
    layers: tuple[DFlashLayer[W, V], ...]
    output_norm: Norm[V]
    head: Linear[W, V]
    selector: Selector[W, V] | None


@dataclass(frozen=True, slots=True)
class BlockOutput(Generic[X]):
    """What a drafting pass computes.

    Attributes:
        logits: "rows head_size", of the rows for which the pass wants logits.
        selection: Candidates of the same rows; None for DFlash 1.
    """

    logits: X
    selection: Selection[X] | None


class DFlash(Generic[W, V]):
    """A drafter: configuration and weights. Holds no state."""

    def __init__(self, config: DrafterConfig, weights: DFlashWeights[W, V]) -> None:
        """Bind ``weights`` to ``config``; `build_dflash` makes both fit."""
        self.config = config
        self.weights = weights

    def inject(self, ops: DrafterOps[X, W, V]) -> None:
        """Store keys and values of the target features that ``ops`` holds, in every layer."""
        weights = self.weights
        features = ops.target_features(self.config.feature_size)
        (fused,) = ops.project(features, [weights.feature_projection], None)
        key_values = [linear for layer in weights.layers for linear in layer.qkv[1:]]
        stored = ops.project(fused, key_values, weights.feature_norm)
        for layer, k, v in zip(weights.layers, stored[::2], stored[1::2], strict=True):
            ops.store(k, v, layer.attention)

    def draft(self, ops: DrafterOps[X, W, V]) -> BlockOutput[X]:
        """Run the blocks that ``ops`` holds over what was injected before their anchors."""
        config, weights = self.config, self.weights
        h = self._embed(ops)
        for layer in weights.layers:
            self._attention(ops, h, layer)
            self._feed_forward(ops, h, layer)
        logits = ops.logits(
            h,
            weights.output_norm,
            weights.head,
            scale=config.logit_scale,
            softcap=config.logit_softcap,
        )
        selection = None
        if weights.selector is not None:
            selection = ops.select(h, weights.output_norm, logits, weights.selector)
        return BlockOutput(logits, selection)

    def _embed(self, ops: DrafterOps[X, W, V]) -> X:
        config, weights = self.config, self.weights
        if weights.mask_embedding is None:
            return ops.embed(weights.embedding, scale=config.embedding_scale)
        return ops.embed_masked(
            weights.embedding,
            scale=config.embedding_scale,
            mask_token_id=config.mask_token_id,
            mask=weights.mask_embedding,
        )

    def _attention(self, ops: DrafterOps[X, W, V], h: X, layer: DFlashLayer[W, V]) -> None:
        if layer.attn_conv is None:
            q, k, v = ops.project(h, layer.qkv, layer.attn_norm)
            attended = ops.attend(q, k, v, layer.attention)
            ops.project_add(attended, layer.attn_output, h, None)
            return
        (q, k, v), mixing = ops.prepare(h, layer.qkv, layer.attn_norm, layer.attn_conv)
        attended = ops.attend(q, k, v, layer.attention)
        ops.finish(attended, layer.attn_output, h, mixing)

    def _feed_forward(self, ops: DrafterOps[X, W, V], h: X, layer: DFlashLayer[W, V]) -> None:
        activation = self.config.activation
        if layer.ffn_conv is None:
            gate, up = ops.project(h, layer.gate_up, layer.ffn_norm)
            ops.gated_project_add(gate, up, activation, layer.down, h, None)
            return
        (gate, up), mixing = ops.prepare(h, layer.gate_up, layer.ffn_norm, layer.ffn_conv)
        ops.gated_finish(gate, up, activation, layer.down, h, mixing)


def build_dflash(
    config: DrafterConfig, source: WeightSource[W, V], *, embedding: W, head: Linear[W, V]
) -> DFlash[W, V]:
    """Drafter of ``config`` with the weights of ``source``.

    Args:
        config: Shape and flags.
        source: The drafter's tensors.
        embedding: The target's table, used unless the drafter has its own.
        head: The target's head, used unless the drafter has its own.
    """
    weights = DFlashWeights(
        feature_projection=Linear(source.matrix(FEATURE_PROJECTION)),
        feature_norm=Norm(source.vector(FEATURE_NORM), config.norm_eps),
        embedding=source.matrix(EMBEDDING) if config.own_embedding else embedding,
        mask_embedding=source.vector(MASK_EMBEDDING) if config.mask_embedding else None,
        layers=tuple(_build_layer(config, source, i) for i in range(config.num_layers)),
        output_norm=Norm(source.vector(OUTPUT_NORM), config.norm_eps),
        head=Linear(source.matrix(HEAD)) if config.own_head else head,
        selector=_build_selector(config, source),
    )
    return DFlash(config, weights)


def walk(
    candidates: NDArray[np.integer],
    scores: NDArray[np.floating],
    pick: Callable[[int, NDArray[np.floating]], int] = lambda _, row: int(row.argmax()),
) -> list[int]:
    """Draft tokens of one block: left to right, each row's choice given the choice before.

    Args:
        candidates: "drafts top_k", as in `Selection`.
        scores: "drafts top_k top_k".
        pick: Index of the chosen candidate given the draft's index and its scores; the default
            takes the best, of equals the first.
    """
    path, chosen = [], 0
    for draft_idx, (row, table) in enumerate(zip(candidates, scores, strict=True)):
        chosen = pick(draft_idx, table[chosen])
        path.append(int(row[chosen]))
    return path


def _build_layer(
    config: DrafterConfig, source: WeightSource[W, V], layer_idx: int
) -> DFlashLayer[W, V]:
    def norm(part: str) -> Norm[V]:
        return Norm(source.vector(layer_tensor(layer_idx, part)), config.norm_eps)

    def linears(*parts: str, has_bias: bool = False) -> tuple[Linear[W, V], ...]:
        return tuple(
            Linear(
                source.matrix(layer_tensor(layer_idx, part)),
                source.vector(layer_tensor(layer_idx, part, "bias")) if has_bias else None,
            )
            for part in parts
        )

    has_bias = config.attention_bias
    (attn_output,) = linears("attn_output", has_bias=has_bias)
    (down,) = linears("ffn_down")
    attention = AttentionSpec(
        layer_idx=layer_idx,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        rope=config.rope,
        window=config.window if config.windowed_layers[layer_idx] else None,
        q_norm=norm("attn_q_norm"),
        k_norm=norm("attn_k_norm"),
        causal=config.causal_layers[layer_idx],
    )
    return DFlashLayer(
        attn_norm=norm("attn_norm"),
        attn_conv=_build_conv(config, source, layer_idx, "attn"),
        qkv=linears("attn_q", "attn_k", "attn_v", has_bias=has_bias),
        attention=attention,
        attn_output=attn_output,
        ffn_norm=norm("ffn_norm"),
        ffn_conv=_build_conv(config, source, layer_idx, "ffn"),
        gate_up=linears("ffn_gate", "ffn_up"),
        down=down,
    )


def _build_conv(
    config: DrafterConfig, source: WeightSource[W, V], layer_idx: int, sublayer: str
) -> Convolution[W, V] | None:
    if config.conv is None:
        return None
    return Convolution(
        base=source.vector(conv_base(layer_idx, sublayer)),
        projection=Linear(source.matrix(conv_projection(layer_idx, sublayer))),
        taps=config.conv.kernel_size,
        group_size=config.conv.group_size,
    )


def _build_selector(config: DrafterConfig, source: WeightSource[W, V]) -> Selector[W, V] | None:
    if config.selector is None:
        return None
    return Selector(
        predecessors=source.matrix(SELECTOR_PREDECESSOR),
        successors=source.matrix(SELECTOR_SUCCESSOR),
        projection=Linear(source.matrix(SELECTOR_PROJECTION)),
        top_k=config.selector.top_k,
    )
