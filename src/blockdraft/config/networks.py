"""Shapes and flags of decoders and drafters, as their files state them."""

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Activation",
    "ConvConfig",
    "DrafterConfig",
    "ModelConfig",
    "RopeConfig",
    "SelectorConfig",
]


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
        accepted: Share of rounds whose first 1, 2, ... drafts were all accepted, as it was
            evaluated; () where that is not known. What to expect before a draft was verified.
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
    accepted: tuple[float, ...] = ()

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
