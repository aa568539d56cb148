"""The shape of a new drafter for a target, and its mask token.

Everything that is not given follows the target, so that its layers can be copied. Knows no tensor
but the embedding's row lengths.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import ConvConfig, DrafterConfig, ModelConfig, SelectorConfig
from blockdraft.errors import ConfigError

__all__ = ["DrafterShape", "choose_mask_token", "default_taps", "drafter_config"]

# Reserved for data formats that chats do not use; trained, so that their rows are not noise.
_MASK_TOKENS = ("<|mask|>", "<mask>", "<|MASK|>", "<|fim_pad|>", "<file_sep>", "<unused0>")
_RESERVED_TYPES = (3, 4, 5)  # control, user-defined, unused
_SMALLEST_ROW = 0.5


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What may be chosen of a drafter; None takes what the target has.

    Attributes:
        num_layers: Blocks.
        ffn_size: Width of the feed-forward block.
        num_heads: Query heads.
        num_kv_heads: Key/value heads.
        head_dim: Width of a head.
        taps: Target layers whose outputs it reads, ascending; None spreads ``num_taps``.
        num_taps: How many, where they are not listed.
        block_size: Largest block, the anchor included.
        window: Tokens that attention sees; None is all.
        conv: With convolutions around every sublayer (DFlash 2).
        selector_rank: Rank of the candidate selector (DFlash 2); None leaves it out.
        selector_top_k: Its candidates.
        conv_group_size: Channels that share a dynamic kernel.
    """

    num_layers: int = 3
    ffn_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    taps: tuple[int, ...] | None = None
    num_taps: int = 4
    block_size: int = 8
    window: int | None = 512
    conv: bool = True
    selector_rank: int | None = 256
    selector_top_k: int = 16
    conv_group_size: int = 16

    def __post_init__(self) -> None:
        """Check what the target need not be known for.

        Raises:
            ConfigError: A size is out of range, or DFlash 2 is asked for by half.
        """
        for name in ("num_layers", "num_taps", "selector_top_k", "conv_group_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.block_size < 2:
            raise ConfigError(f"block_size is {self.block_size}; it must be 2 or more")
        if self.window is not None and self.window < self.block_size:
            raise ConfigError(
                f"the window of {self.window} is smaller than the block of {self.block_size}"
            )
        if self.conv != (self.selector_rank is not None):
            raise ConfigError(
                "convolutions and the candidate selector come together: checkpoints of DFlash 2"
                " have both, of DFlash neither"
            )


def default_taps(num_target_layers: int, count: int) -> tuple[int, ...]:
    """Target layers evenly from a seventh of the depth to the last but one.

    Raises:
        ConfigError: The target has too few layers for so many.
    """
    last = max(num_target_layers - 2, 0)
    first = min(round(num_target_layers / 7), last)
    steps = max(count - 1, 1)
    taps = sorted({round(last - i * (last - first) / steps) for i in range(count)})
    if len(taps) != count:
        raise ConfigError(f"{num_target_layers} target layers are too few for {count} taps")
    return tuple(taps)


def drafter_config(shape: DrafterShape, target: ModelConfig, mask_token_id: int) -> DrafterConfig:
    """Configuration of a drafter of ``shape`` for ``target``; names, ranges and all.

    Raises:
        ConfigError: They do not fit together.
    """
    taps = shape.taps or default_taps(target.num_layers, shape.num_taps)
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] < target.num_layers:
        raise ConfigError(
            f"taps are {list(taps)}; they must be ascending layers in [0, {target.num_layers - 1}]"
        )
    if shape.conv and target.hidden_size % shape.conv_group_size:
        raise ConfigError(
            f"rows of width {target.hidden_size} have no groups of {shape.conv_group_size}"
        )
    num_heads = shape.num_heads or target.num_heads
    num_kv_heads = shape.num_kv_heads or target.num_kv_heads
    if num_heads % num_kv_heads:
        raise ConfigError(f"{num_heads} heads are no multiple of {num_kv_heads} KV heads")
    head_dim = shape.head_dim or target.head_dim
    layers = shape.num_layers
    rank = shape.selector_rank
    return DrafterConfig(
        name="",
        num_layers=layers,
        hidden_size=target.hidden_size,
        ffn_size=shape.ffn_size or target.ffn_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        norm_eps=target.norm_eps,
        # Checkpoints of drafters pair (i, i + dims/2); rows are rearranged when they are copied.
        rope=replace(target.rope, dims=head_dim, interleaved=False, freq_factors=()),
        window=shape.window,
        windowed_layers=(shape.window is not None,) * layers,
        causal_layers=(False,) * layers,
        activation=target.activation,
        attention_bias=target.attention_bias,
        block_size=shape.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=taps,
        num_target_layers=target.num_layers,
        embedding_scale=target.embedding_scale,
        logit_scale=target.logit_scale,
        logit_softcap=target.logit_softcap,
        conv=ConvConfig(2, shape.conv_group_size) if shape.conv else None,
        selector=None if rank is None else SelectorConfig(rank, shape.selector_top_k),
    )


def choose_mask_token(
    tokens: Sequence[str],
    types: Sequence[int],
    embedding: NDArray[np.float32],
    used: Collection[int],
    *,
    name: str | None = None,
) -> int:
    """A token that stands for "not drafted yet": reserved, never in the corpus, with a real row.

    Args:
        tokens: The target's vocabulary.
        types: Kind of each token, as GGUF numbers them.
        embedding: The target's table; masked rows all start from this token's row, and a row near
            zero would leave them without direction.
        used: Tokens that may not be taken: what the corpus and the chat template contain.
        name: Take this one.

    Raises:
        ConfigError: There is no such token, or it is used.
    """
    lengths = np.linalg.norm(embedding, axis=1)
    smallest = _SMALLEST_ROW * float(np.median(lengths))
    place = {token: i for i, token in enumerate(tokens)}
    if name is not None:
        if name not in place:
            raise ConfigError(f"the target has no token {name!r} for the mask")
        if place[name] in used:
            raise ConfigError(f"token {name!r} cannot be the mask: the corpus contains it")
        return place[name]
    reserved = [i for i, kind in enumerate(types) if kind in _RESERVED_TYPES]
    preferred = [place[token] for token in _MASK_TOKENS if token in place]
    for token_id in [*preferred, *reversed(reserved)]:
        if token_id not in used and lengths[token_id] >= smallest:
            return int(token_id)
    raise ConfigError(
        "the target has no reserved token that the corpus does not use; name one for the mask"
    )
