"""Names and shapes of the tensors of a decoder, and where tensors come from.

Checked against the configuration before a byte of a weight is read. Knows no metadata key and no
tensor value.

Source: the GGUF specification, section on tensor names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import ModelConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.header import TensorInfo

__all__ = [
    "EMBEDDING",
    "HEAD",
    "OUTPUT_NORM",
    "ROPE_FACTORS",
    "ExpectedTensor",
    "TensorFile",
    "check_expected",
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


class TensorFile(Protocol):
    """An open file, or several, with tensors in it; errors are those of `GGUFFile`."""

    @property
    def path(self) -> Path:
        """Where it was opened."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Entries by name."""
        ...

    def tensor(self, name: str) -> TensorInfo:
        """Entry of ``name``."""
        ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """All bytes of a tensor."""
        ...

    def read_rows(
        self, name: str, row_start: int, count: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Bytes of some rows of a tensor, in ``out`` if given; several threads may ask at once."""
        ...


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that the configuration needs, and the fact that gives its shape."""

    name: str
    shape: tuple[int, ...]
    because: str


def check_tensors(file: TensorFile, config: ModelConfig) -> None:
    """Compare every tensor of ``file`` with what ``config`` needs.

    Raises:
        FileFormatError: A tensor is missing or has another shape.
        UnsupportedError: A tensor has no place in this decoder.
    """
    layers = (_layer_tensors(config, i) for i in range(config.num_layers))
    check_expected(
        file,
        chain(_outer_tensors(config), *layers),
        home=f"a {config.architecture} decoder of {config.num_layers} layers",
        optional={ROPE_FACTORS} if config.architecture == "llama" else set(),
    )


def check_expected(
    file: TensorFile,
    expected: Iterable[ExpectedTensor],
    *,
    home: str,
    optional: Collection[str] = (),
    label: Callable[[str], str] = str,
) -> None:
    """Compare every tensor of ``file`` with what is expected.

    Args:
        file: The file.
        expected: What has to be there.
        home: The network, as messages call it.
        optional: Names that may be there and are checked elsewhere.
        label: Gives the name under which users know a tensor.

    Raises:
        FileFormatError: A tensor is missing or has another shape.
        UnsupportedError: A tensor has no place in ``home``.
    """
    known = set(optional)
    for each in expected:
        shape = file.tensor(each.name).shape
        if shape != each.shape:
            raise FileFormatError(
                f"{file.path}: tensor {label(each.name)} is {format_shape(shape)};"
                f" {each.because} need {format_shape(each.shape)}"
            )
        known.add(each.name)
    for name in file.tensors:
        if name not in known:
            raise UnsupportedError(f"{file.path}: tensor {label(name)} has no place in {home}")


def _outer_tensors(config: ModelConfig) -> Iterator[ExpectedTensor]:
    vocab, hidden = config.vocab_size, config.hidden_size
    yield ExpectedTensor(EMBEDDING, (vocab, hidden), f"{vocab} tokens of width {hidden}")
    yield ExpectedTensor(OUTPUT_NORM, (hidden,), f"rows of width {hidden}")
    if not config.tied_head:
        yield ExpectedTensor(HEAD, (vocab, hidden), f"{vocab} tokens of width {hidden}")


def _layer_tensors(config: ModelConfig, layer_idx: int) -> Iterator[ExpectedTensor]:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = f"rows of width {hidden}"
    heads = f"{config.num_heads} heads of {config.head_dim}"
    kv_heads = f"{config.num_kv_heads} KV heads of {config.head_dim}"
    ffn_units = f"{ffn} feed-forward units"

    def expect(part: str, shape: tuple[int, ...], because: str) -> ExpectedTensor:
        return ExpectedTensor(layer_tensor(layer_idx, part), shape, because)

    yield expect("attn_norm", (hidden,), rows)
    for part, size, because in (
        ("attn_q", q_size, heads),
        ("attn_k", kv_size, kv_heads),
        ("attn_v", kv_size, kv_heads),
    ):
        yield expect(part, (size, hidden), because)
        if config.attention_bias:
            yield ExpectedTensor(layer_tensor(layer_idx, part, "bias"), (size,), because)
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
