"""Frozen configuration: what a decoder and a drafter look like and how a token is picked.

Made once at the edge, passed whole, never edited. Knows no files, tensors or text.
"""

import math
from dataclasses import dataclass, field
from enum import Enum

from blockdraft.errors import ConfigError

__all__ = [
    "DRAFT_TYPES",
    "Activation",
    "ConvConfig",
    "DraftConfig",
    "DrafterConfig",
    "ModelConfig",
    "RopeConfig",
    "SamplingParams",
    "SelectorConfig",
]

DRAFT_TYPES = ("none", "ngram", "dflash")
"""Ways to draft; "none" decodes plainly."""

_MAX_DRAFT_TOKENS = 63


class Activation(Enum):
    """Gate activation of the feed-forward block."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of one kind of layer.

    Attributes:
        theta: Base of the frequencies.
        dims: Leading dimensions of each head that rotate (even).
        interleaved: True pairs dimensions (2i, 2i+1), False pairs (i, i + dims/2).
        scaling: "none", "linear", "yarn" or "llama3".
        factor: Position stretch of linear, yarn and llama3 scaling.
        original_context: Context length before stretching, in tokens.
        attention_factor: Factor on cos and sin (yarn); 1 otherwise.
        beta_fast: Yarn's upper rotation count.
        beta_slow: Yarn's lower rotation count.
        low_freq_factor: Llama 3's lower wavelength bound.
        high_freq_factor: Llama 3's upper wavelength bound.
        freq_factors: Divisors of the frequencies read from the file (``rope_freqs.weight``), or ().
    """

    theta: float
    dims: int
    interleaved: bool = False
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and flags of one dense decoder.

    Attributes:
        architecture: GGUF name: llama, qwen2, qwen3 or gemma3.
        name: Human name from the file, or "".
        num_layers: Blocks.
        hidden_size: Width of the residual stream.
        ffn_size: Width of the feed-forward block.
        num_heads: Query heads.
        num_kv_heads: Key/value heads; divides ``num_heads``.
        head_dim: Width of one head.
        vocab_size: Rows of the embedding table.
        context_length: Positions the model was trained for.
        norm_eps: Epsilon of every RMS norm.
        rope: Rotary embedding of full-attention layers.
        local_rope: Rotary embedding of windowed layers; None when no layer is windowed.
        window: Tokens a windowed layer sees, its own included; None when no layer is windowed.
        windowed_layers: One flag per layer: True where the layer is windowed.
        activation: Gate activation.
        embedding_scale: Factor on looked-up embeddings.
        attention_scale: Factor on q.k.
        attention_softcap: cap * tanh(score / cap), or None.
        logit_softcap: The same on logits, or None.
        logit_scale: Factor on logits before the cap.
        qk_norm: RMS norm on every query and key head.
        attention_bias: Whether q, k and v carry a bias.
        post_norms: RMS norms on the outputs of attention and feed-forward (Gemma 3).
        tied_head: The head is the embedding table.
    """

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None
    window: int | None
    windowed_layers: tuple[bool, ...]
    activation: Activation
    embedding_scale: float
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    logit_scale: float
    qk_norm: bool
    attention_bias: bool
    post_norms: bool
    tied_head: bool


@dataclass(frozen=True, slots=True)
class ConvConfig:
    """Grouped dynamic causal convolution around every sublayer (DFlash 2).

    Attributes:
        kernel_size: Taps: the row itself and its predecessors in the block.
        group_size: Channels that share a dynamic kernel; divides the hidden size.
    """

    kernel_size: int
    group_size: int


@dataclass(frozen=True, slots=True)
class SelectorConfig:
    """Candidate selector (DFlash 2).

    Attributes:
        rank: Width of a codebook row.
        top_k: Candidates per drafted row.
    """

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Shape and flags of a DFlash or DFlash 2 drafter.

    Attributes:
        name: Human name from the file, or "".
        num_layers: Blocks.
        hidden_size: Width of the residual stream; the target's too.
        ffn_size: Width of the feed-forward block.
        num_heads: Query heads.
        num_kv_heads: Key/value heads; divides ``num_heads``.
        head_dim: Width of one head.
        vocab_size: Tokens of the target.
        context_length: Positions the drafter was trained for.
        norm_eps: Epsilon of every RMS norm.
        rope: Rotary embedding of all layers.
        window: Tokens a windowed layer sees, its own included; None when no layer is windowed.
        windowed_layers: One flag per layer: True where the layer is windowed.
        causal_layers: One flag per layer: True where a row of the block does not see later ones.
        activation: Gate activation.
        attention_bias: Whether q, k, v and the attention output carry a bias.
        block_size: Rows of a block, the anchor included.
        mask_token_id: Token of the rows after the anchor.
        target_layer_ids: Target blocks (from 0) after which the residual stream is a feature, in
            the order of concatenation.
        num_target_layers: Blocks of the target it was trained for, or None where not stated.
        embedding_scale: Factor on looked-up embeddings.
        logit_scale: Factor on logits before the cap.
        logit_softcap: cap * tanh(logit / cap), or None.
        draft_vocab_size: Rows of the head where they are fewer than the target's tokens (a
            reduced vocabulary), or None.
        own_embedding: The file has an embedding table; otherwise the target's is used.
        own_head: The file has a head; otherwise the target's is used.
        mask_embedding: The file has a vector that takes the place of the mask token's embedding.
        conv: Convolutions of DFlash 2, or None.
        selector: Candidate selector of DFlash 2, or None.
        head_token_ids: Tokens whose rows of the target's head are used, ascending; a drafter that
            learned few tokens is faster so and no worse. None uses all. Other programs that read
            the drafter ignore it.
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    window: int | None
    windowed_layers: tuple[bool, ...]
    causal_layers: tuple[bool, ...]
    activation: Activation
    attention_bias: bool
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    draft_vocab_size: int | None = None
    own_embedding: bool = False
    own_head: bool = False
    mask_embedding: bool = False
    conv: ConvConfig | None = None
    selector: SelectorConfig | None = None
    head_token_ids: tuple[int, ...] | None = None

    @property
    def feature_size(self) -> int:
        """Columns of the concatenated target features of one token."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def head_size(self) -> int:
        """Rows of the head."""
        if self.head_token_ids is not None:
            return len(self.head_token_ids)
        return self.draft_vocab_size or self.vocab_size


def _check(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {value}; it must be {rule}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request picks its tokens; names, defaults and order are llama.cpp's.

    Order: penalties and bias, top-k, top-p, min-p, temperature last.

    Attributes:
        temperature: 0 is greedy.
        top_k: Keep the k most probable; 0 keeps all.
        top_p: Keep the smallest set with this probability mass; 1 keeps all.
        min_p: Drop what is less probable than this share of the best; 0 keeps all.
        repeat_penalty: Divides positive and multiplies negative logits of recent tokens; 1 is off.
        presence_penalty: Subtracted once from logits of recent tokens.
        frequency_penalty: Subtracted per occurrence from logits of recent tokens.
        repeat_last_n: How many recent tokens the penalties see; 0 none, -1 the whole context.
        seed: 64-bit seed of the position-keyed noise; None lets the session draw and report one.
        logit_bias: (token id, added value) pairs.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = field(default=())

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ConfigError: A parameter is out of range; the message names it.
        """
        finite = math.isfinite
        _check(0 <= self.temperature <= 100, "temperature", self.temperature, "in [0, 100]")
        _check(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 (off) or positive")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        penalty = self.repeat_penalty
        _check(finite(penalty) and penalty > 0, "repeat_penalty", penalty, "positive")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(finite(getattr(self, name)), name, getattr(self, name), "a finite number")
        _check(-1 <= self.repeat_last_n < 2**31, "repeat_last_n", self.repeat_last_n, "-1 or more")
        _check(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "in [0, 2^64)")
        for token_id, bias in self.logit_bias:
            _check(
                token_id >= 0 and not math.isnan(bias), "logit_bias", (token_id, bias), "a number"
            )


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How a session drafts; names are those of the flags. None of it changes a token.

    Attributes:
        spec_type: One of `DRAFT_TYPES`; None is what ``drafter`` is, or "ngram" without one.
        drafter: A drafter's file or folder; None for none.
        draft_n_max: K, the most draft tokens of a round; None is what the drafter's block has
            room for, and 7 for "ngram".
        draft_p_min: A draft less probable than this ends a proposal; 0 is off.
    """

    spec_type: str | None = None
    drafter: str | None = None
    draft_n_max: int | None = None
    draft_p_min: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting, and that they do not contradict each other.

        Raises:
            ConfigError: A setting is out of range; the message names it.
        """
        known = self.spec_type is None or self.spec_type in DRAFT_TYPES
        _check(known, "spec_type", self.spec_type, f"one of {', '.join(DRAFT_TYPES)}")
        rule = f"in [1, {_MAX_DRAFT_TOKENS}]"
        wanted = self.draft_n_max
        in_range = wanted is None or 1 <= wanted <= _MAX_DRAFT_TOKENS
        _check(in_range, "draft_n_max", wanted, rule)
        _check(0 <= self.draft_p_min <= 1, "draft_p_min", self.draft_p_min, "in [0, 1]")
        if self.spec_type == "dflash" and self.drafter is None:
            raise ConfigError("spec_type is dflash, but no drafter is given")
        if self.spec_type == "ngram" and self.drafter is not None:
            raise ConfigError(f"spec_type is ngram, which does not use the drafter {self.drafter}")
        if self.kind == "ngram" and self.draft_p_min > 0:
            raise ConfigError(
                f"draft_p_min is {self.draft_p_min}, but drafts of ngram have no probability"
            )

    @property
    def kind(self) -> str:
        """The one of `DRAFT_TYPES` that these settings come to."""
        if self.spec_type is not None:
            return self.spec_type
        return "ngram" if self.drafter is None else "dflash"
