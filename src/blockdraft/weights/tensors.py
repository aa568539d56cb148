"""Names and shapes of the tensors of a decoder in a GGUF file.

Checked against the configuration before a byte of a weight is read. Knows no metadata key and no
tensor value.

Source: the GGUF specification, section on tensor names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from blockdraft.config import ModelConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile

__all__ = [
    "EMBEDDING",
    "HEAD",
    "OUTPUT_NORM",
    "ROPE_FACTORS",
    "check_tensors",
    "format_shape",
    "layer_tensor",
]

EMBEDDING = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"


def layer_tensor(layer_idx: int, part: str, kind: str = "weight") -> str:
    """Name of a tensor of one block, such as ``blk.3.attn_q.weight``."""
    return f"blk.{layer_idx}.{part}.{kind}"


def format_shape(shape: tuple[int, ...]) -> str:
    """Shape as users read it: ``576 x 192``."""
    return " x ".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class _Expected:
    """A tensor that the configuration needs, and the fact that gives its shape."""

    name: str
    shape: tuple[int, ...]
    because: str


def check_tensors(file: GGUFFile, config: ModelConfig) -> None:
    """Compare every tensor of ``file`` with what ``config`` needs.

    Raises:
        FileFormatError: A tensor is missing or has another shape.
        UnsupportedError: A tensor has no place in this decoder.
    """
    known = {ROPE_FACTORS} if config.architecture == "llama" else set()
    layers = (_layer_tensors(config, i) for i in range(config.num_layers))
    for expected in chain(_outer_tensors(config), *layers):
        shape = file.tensor(expected.name).shape
        if shape != expected.shape:
            raise FileFormatError(
                f"{file.path}: tensor {expected.name} is {format_shape(shape)};"
                f" {expected.because} need {format_shape(expected.shape)}"
            )
        known.add(expected.name)
    for name in file.tensors:
        if name not in known:
            raise UnsupportedError(
                f"{file.path}: tensor {name} has no place in a {config.architecture} decoder of"
                f" {config.num_layers} layers"
            )


def _outer_tensors(config: ModelConfig) -> Iterator[_Expected]:
    vocab, hidden = config.vocab_size, config.hidden_size
    yield _Expected(EMBEDDING, (vocab, hidden), f"{vocab} tokens of width {hidden}")
    yield _Expected(OUTPUT_NORM, (hidden,), f"rows of width {hidden}")
    if not config.tied_head:
        yield _Expected(HEAD, (vocab, hidden), f"{vocab} tokens of width {hidden}")


def _layer_tensors(config: ModelConfig, layer_idx: int) -> Iterator[_Expected]:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = f"rows of width {hidden}"
    heads = f"{config.num_heads} heads of {config.head_dim}"
    kv_heads = f"{config.num_kv_heads} KV heads of {config.head_dim}"
    ffn_units = f"{ffn} feed-forward units"

    def expect(part: str, shape: tuple[int, ...], because: str) -> _Expected:
        return _Expected(layer_tensor(layer_idx, part), shape, because)

    yield expect("attn_norm", (hidden,), rows)
    for part, size, because in (
        ("attn_q", q_size, heads),
        ("attn_k", kv_size, kv_heads),
        ("attn_v", kv_size, kv_heads),
    ):
        yield expect(part, (size, hidden), because)
        if config.attention_bias:
            yield _Expected(layer_tensor(layer_idx, part, "bias"), (size,), because)
    if config.qk_norm:
        yield expect("attn_q_norm", (config.head_dim,), heads)
        yield expect("attn_k_norm", (config.head_dim,), kv_heads)
    yield expect("attn_output", (hidden, q_size), heads)
    yield expect("ffn_norm", (hidden,), rows)
    yield expect("ffn_gate", (ffn, hidden), ffn_units)
    yield expect("ffn_up", (ffn, hidden), ffn_units)
    yield expect("ffn_down", (hidden, ffn), ffn_units)
    if config.post_norms:
        yield expect("post_attention_norm", (hidden,), rows)
        yield expect("post_ffw_norm", (hidden,), rows)
