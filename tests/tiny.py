"""Tiny random GGUF models: every architecture and tensor type, valid down to the tokenizer.

Quantized tensors are random block bytes with small scales, so that all bit patterns occur; a
weight has a standard deviation near 1/sqrt(columns). The same arguments give the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.weights.ggml_types import SUPPORTED_TYPES, ggml_type_number
from tests.raw_gguf import build, tensor, value_entry

__all__ = ["ARCHITECTURES", "TENSOR_TYPES", "Tiny", "random_blocks", "write_tiny"]

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK32_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
BLOCK256_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
TENSOR_TYPES = FLOAT_TYPES + BLOCK32_TYPES + BLOCK256_TYPES
VOCAB_SIZE = 299  # no multiple of 16: the last tile of the head is padded


@dataclass(frozen=True)
class _Scale:
    """Where a block keeps its f16 scale and minimum, and how far its integers spread.

    With scale d and minimum ``sign * ratio * d`` the values have mean 0 and deviation
    ``spread * d``.
    """

    offset: int
    spread: float
    min_offset: int | None = None
    min_ratio: float = 0.0


_SCALES = {
    "Q4_0": _Scale(0, 4.6),
    "Q4_1": _Scale(0, 4.6, 2, -7.5),
    "Q5_0": _Scale(0, 9.2),
    "Q5_1": _Scale(0, 9.2, 2, -15.5),
    "Q8_0": _Scale(0, 74),
    "Q2_K": _Scale(80, 13.9, 82, 1.5),
    "Q3_K": _Scale(108, 43),
    "Q4_K": _Scale(0, 258, 2, 7.5),
    "Q5_K": _Scale(0, 527, 2, 15.5),
    "Q6_K": _Scale(208, 1370),
    "IQ4_NL": _Scale(0, 70),
    "IQ4_XS": _Scale(0, 1295),
}


def is_superblock(tensor_type: str) -> bool:
    """Whether rows of the type come in blocks of 256 columns."""
    return tensor_type in BLOCK256_TYPES


def random_blocks(
    rng: np.random.Generator, tensor_type: str, rows: int, cols: int
) -> NDArray[np.uint8]:
    """Random rows of a tensor type in file layout, "rows bytes"."""
    sigma = cols**-0.5
    if tensor_type in FLOAT_TYPES:
        values = (rng.standard_normal((rows, cols)) * sigma).astype(np.float32)
        if tensor_type == "F16":
            return values.astype(np.float16).view(np.uint8)
        if tensor_type == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
    info = SUPPORTED_TYPES[ggml_type_number(tensor_type)]
    blocks = rng.integers(0, 256, (rows * cols // info.block_size, info.block_bytes), np.uint8)
    if tensor_type == "MXFP4":  # exponent byte; the table of doubled values spreads over 5.85
        exponent = 128 + round(np.log2(sigma / 5.85))
        blocks[:, 0] = exponent + rng.integers(-1, 2, len(blocks))
    else:
        layout = _SCALES[tensor_type]
        size = rng.uniform(0.5, 1.5, len(blocks)) * sigma / layout.spread
        scale = size * rng.choice([-1, 1], len(blocks))
        _put_half(blocks, layout.offset, scale)
        if layout.min_offset is not None:
            _put_half(blocks, layout.min_offset, scale * layout.min_ratio)
    return blocks.reshape(rows, -1)


def _put_half(blocks: NDArray[np.uint8], offset: int, values: NDArray[np.float64]) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


@dataclass(frozen=True)
class Tiny:
    """What to write; sizes left at None follow from architecture and tensor type.

    Attributes:
        tensor_type: Type of every matrix.
        tensor_types: Exceptions by tensor name.
        metadata: Keys to add or replace; None as value leaves the key out.
        rope_freqs: Write ``rope_freqs.weight``.
    """

    arch: str = "llama"
    tensor_type: str = "Q4_0"
    seed: int = 0
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int = 2
    head_dim: int | None = None
    vocab_size: int = VOCAB_SIZE
    window: int = 8
    tied_head: bool | None = None
    rope_freqs: bool = False
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Layers; six for gemma3, whose sixth is the first that is not windowed."""
        return self.layers or (6 if self.arch == "gemma3" else 2)

    @property
    def hidden_size(self) -> int:
        return self.hidden or (256 if is_superblock(self.tensor_type) else 64)

    @property
    def ffn_size(self) -> int:
        return self.ffn or (512 if is_superblock(self.tensor_type) else 96)

    @property
    def num_heads(self) -> int:
        return self.heads or (8 if is_superblock(self.tensor_type) else 4)

    @property
    def head_size(self) -> int:
        """Head width; 16 is the smallest for llama's rotation, 32 for the others'."""
        narrow = self.arch == "llama" and not is_superblock(self.tensor_type)
        return self.head_dim or (16 if narrow else 32)

    @property
    def is_tied(self) -> bool:
        return self.arch in ("llama", "gemma3") if self.tied_head is None else self.tied_head

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of every matrix by tensor name."""
        hidden, ffn = self.hidden_size, self.ffn_size
        queries, keys = self.num_heads * self.head_size, self.kv_heads * self.head_size
        shapes = {"token_embd.weight": (self.vocab_size, hidden)}
        if not self.is_tied:
            shapes["output.weight"] = (self.vocab_size, hidden)
        for layer in range(self.num_layers):
            for name, shape in {
                "attn_q": (queries, hidden),
                "attn_k": (keys, hidden),
                "attn_v": (keys, hidden),
                "attn_output": (hidden, queries),
                "ffn_gate": (ffn, hidden),
                "ffn_up": (ffn, hidden),
                "ffn_down": (hidden, ffn),
            }.items():
                shapes[f"blk.{layer}.{name}.weight"] = shape
        return shapes

    def vectors(self) -> dict[str, int]:
        """Length of every vector by tensor name."""
        hidden, head = self.hidden_size, self.head_size
        sizes = {"output_norm.weight": hidden}
        if self.rope_freqs:
            sizes["rope_freqs.weight"] = head // 2
        per_layer = {"attn_norm.weight": hidden, "ffn_norm.weight": hidden}
        if self.arch == "qwen2":
            per_layer["attn_q.bias"] = self.num_heads * head
            per_layer["attn_k.bias"] = self.kv_heads * head
            per_layer["attn_v.bias"] = self.kv_heads * head
        if self.arch in ("qwen3", "gemma3"):
            per_layer |= {"attn_q_norm.weight": head, "attn_k_norm.weight": head}
        if self.arch == "gemma3":
            per_layer |= {"post_attention_norm.weight": hidden, "post_ffw_norm.weight": hidden}
        for layer in range(self.num_layers):
            sizes |= {f"blk.{layer}.{name}": size for name, size in per_layer.items()}
        return sizes

    def keys(self) -> dict[str, Any]:
        """All metadata but the architecture's name, in order."""
        tokenizer = spm_vocabulary if self.arch == "gemma3" else bpe_vocabulary
        keys: dict[str, Any] = {
            "general.name": f"tiny {self.arch} {self.tensor_type}",
            f"{self.arch}.block_count": self.num_layers,
            f"{self.arch}.context_length": 2048,
            f"{self.arch}.embedding_length": self.hidden_size,
            f"{self.arch}.feed_forward_length": self.ffn_size,
            f"{self.arch}.attention.head_count": self.num_heads,
            f"{self.arch}.attention.head_count_kv": self.kv_heads,
            f"{self.arch}.attention.key_length": self.head_size,
            f"{self.arch}.attention.value_length": self.head_size,
            f"{self.arch}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{self.arch}.rope.freq_base": 10000.0,
        }
        if self.arch == "llama":
            keys["llama.vocab_size"] = self.vocab_size
            keys["llama.rope.dimension_count"] = self.head_size
        if self.arch == "gemma3":
            keys["gemma3.attention.sliding_window"] = self.window
        if self.arch in ("qwen2", "qwen3"):
            keys["tokenizer.ggml.pre"] = "qwen2"
        return {**tokenizer(self.vocab_size), **keys, **self.metadata}

    def to_bytes(self) -> bytes:
        """The whole file."""
        rng = np.random.default_rng(self.seed)
        keys = {"general.architecture": self.arch, **self.keys()}
        tensors: list[bytes] = []
        parts: list[bytes] = []
        offset = 0
        for name, (rows, cols) in self.matrices().items():
            tensor_type = self.tensor_types.get(name, self.tensor_type)
            tensors.append(tensor(name, (cols, rows), ggml_type_number(tensor_type), offset))
            parts.append(_aligned(random_blocks(rng, tensor_type, rows, cols)))
            offset += len(parts[-1])
        for name, size in self.vectors().items():
            vector = 0.1 * rng.standard_normal(size) + (not name.endswith("bias"))
            tensors.append(tensor(name, (size,), ggml_type_number("F32"), offset))
            parts.append(_aligned(vector.astype("<f4")))
            offset += len(parts[-1])
        entries = [value_entry(key, value) for key, value in keys.items() if value is not None]
        return build(entries, tensors, data=b"".join(parts))

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.to_bytes())
        return path


def _aligned(values: NDArray[Any]) -> bytes:
    raw = values.tobytes()
    return raw + bytes(-len(raw) % 32)


def write_tiny(path: Path, arch: str = "llama", tensor_type: str = "Q4_0", **options: Any) -> Path:
    """Write a tiny model; ``options`` are the fields of `Tiny`."""
    return Tiny(arch, tensor_type, **options).write(path)


# --- vocabularies

_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 1, 2, 3, 5, 6
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE vocabularies."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters


def _padded(tokens: list[str], types: list[int], vocab_size: int) -> None:
    assert len(tokens) <= vocab_size, f"the tiny vocabulary needs {len(tokens)} entries"
    for index in range(vocab_size - len(tokens)):
        tokens.append(f"[PAD{index}]")
        types.append(_UNUSED)


def bpe_vocabulary(vocab_size: int) -> dict[str, Any]:
    """Metadata of a byte-level BPE tokenizer: three control tokens, 256 bytes, some merges."""
    merges = ["Ġ t", "h e", "i n", "r e", "o n", "Ġt he", "Ġ a", "e r", "a n", "Ġ i", "Ġi n", "Ġ Ġ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_letters()]
    tokens += [merge.replace(" ", "") for merge in merges]
    types = [_CONTROL] * 3 + [_NORMAL] * (len(tokens) - 3)
    _padded(tokens, types, vocab_size)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHATML,
    }


def spm_vocabulary(vocab_size: int) -> dict[str, Any]:
    """Metadata of a SentencePiece-style tokenizer with byte fallback."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [_CONTROL] * 3 + [_UNKNOWN] + [_BYTE] * 256
    pieces = ["▁t", "he", "▁the", "in", "er", "▁a", "▁", *"etaoinshrdlu"]
    scores = [-1000.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))]
    tokens += pieces
    types += [_NORMAL] * len(pieces)
    _padded(tokens, types, vocab_size)
    scores += [-1000.0] * (vocab_size - len(scores))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
