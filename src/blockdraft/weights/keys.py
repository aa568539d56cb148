"""Typed metadata keys of a GGUF file, with ranges: what every architecture reads alike.

Each error names the file, the key, what it holds and what it has to hold. Knows no tensor value
and no architecture's special facts.

Source: the GGUF specification.
"""

from collections.abc import Mapping

from blockdraft.config import RopeConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile

__all__ = ["MAX_CONTEXT", "MAX_HEAD_DIM", "MAX_SIZE", "KeyReader"]

MAX_SIZE = 1 << 24
"""Far above any real model; keeps every later product of two sizes in 64 bits."""

MAX_CONTEXT = 1 << 30

MAX_HEAD_DIM = 1024
"""Widest head of the native core."""


class KeyReader:
    """Reads the keys of one file's architecture.

    Every method raises FileFormatError for what is missing, of another type or out of range, and
    UnsupportedError for what we do not compute.

    Attributes:
        file: The open file.
        arch: Its architecture, the prefix of its keys.
    """

    def __init__(self, file: GGUFFile) -> None:
        """Read the name of the architecture."""
        self.file = file
        self.arch = file.get_str("general.architecture")

    # --- typed keys with ranges

    def integer(self, suffix: str, low: int, high: int, *, default: int | None = None) -> int:
        """Integer in ``[low, high]``; required where there is no default."""
        key = f"{self.arch}.{suffix}"
        value = self.file.get_int(key) if default is None else self.file.get_int(key, default)
        if not low <= value <= high:
            raise self.wrong(suffix, value, f"in [{low}, {high}]")
        return value

    def size(self, suffix: str, *, multiple: int = 1, default: int | None = None) -> int:
        """Positive integer, a multiple of ``multiple``."""
        value = self.integer(suffix, 1, MAX_SIZE, default=default)
        return self.whole(suffix, value, multiple)

    def whole(self, suffix: str, value: int, multiple: int) -> int:
        """The value, which has to be a multiple."""
        if value % multiple:
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.{suffix} gives {value}; only multiples of"
                f" {multiple} are supported"
            )
        return value

    def number(
        self, suffix: str, low: float, high: float, *, default: float | None = None
    ) -> float:
        """Number in ``[low, high]``; required where there is no default."""
        key = f"{self.arch}.{suffix}"
        value = self.file.get_float(key) if default is None else self.file.get_float(key, default)
        if not low <= value <= high:
            raise self.wrong(suffix, value, f"in [{low:g}, {high:g}]")
        return value

    def softcap(self, suffix: str) -> float | None:
        """A soft cap; missing or 0 is none."""
        cap = self.number(suffix, 0.0, 1e6, default=0.0)
        if 0 < cap < 1e-3:
            raise self.wrong(suffix, cap, "0 (none) or at least 0.001")
        return cap or None

    def check_neutral(self, neutral: Mapping[str, tuple[float, ...]]) -> None:
        """Refuse keys that change the arithmetic, unless they have a value under which they do not.

        Args:
            neutral: Suffix of each such key to those values.
        """
        for suffix, values in neutral.items():
            key = f"{self.arch}.{suffix}"
            value = self.file.metadata.get(key)
            if value is not None and not (
                isinstance(value, bool | int | float) and value in values
            ):
                raise UnsupportedError(
                    f"{self.file.path}: {key} is {value}, which {self.arch} models here do not use"
                )

    def wrong(self, suffix: str, value: object, rule: str) -> FileFormatError:
        """The error of a key that breaks ``rule``."""
        return FileFormatError(
            f"{self.file.path}: {self.arch}.{suffix} is {value}; it must be {rule}"
        )

    # --- shapes

    def num_layers(self) -> int:
        """Blocks."""
        count = self.integer("block_count", 1, MAX_SIZE)
        # Before anything as long as the count is made.
        if count > len(self.file.tensors):
            raise self.wrong(
                "block_count", count, f"at most the {len(self.file.tensors)} tensors of the file"
            )
        return count

    def heads(self, hidden_size: int) -> tuple[int, int, int]:
        """Query heads, K/V heads and the width of a head."""
        num_heads = self.size("attention.head_count")
        num_kv_heads = self.size("attention.head_count_kv", default=num_heads)
        if num_heads % num_kv_heads:
            raise self.wrong(
                "attention.head_count", num_heads, f"a multiple of {num_kv_heads} KV heads"
            )
        head_dim = self._head_dim(hidden_size, num_heads)
        if num_heads * head_dim % 32:
            raise UnsupportedError(
                f"{self.file.path}: {num_heads} heads of {head_dim} are no multiple of 32 wide"
            )
        return num_heads, num_kv_heads, head_dim

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        if f"{self.arch}.attention.key_length" not in self.file.metadata:
            if hidden_size % num_heads:
                raise self.wrong("embedding_length", hidden_size, f"a multiple of {num_heads}")
            head_dim = self.whole("attention.head_count", hidden_size // num_heads, 16)
        else:
            head_dim = self.size("attention.key_length", multiple=16)
        if head_dim > MAX_HEAD_DIM:
            raise UnsupportedError(
                f"{self.file.path}: heads are {head_dim} wide; at most {MAX_HEAD_DIM} is supported"
            )
        for suffix in ("attention.value_length", "attention.key_length_swa"):
            length = self.size(suffix, default=head_dim)
            if length != head_dim:
                raise UnsupportedError(
                    f"{self.file.path}: {self.arch}.{suffix} is {length} where keys have"
                    f" {head_dim}; only equal lengths are supported"
                )
        return head_dim

    def layer_flags(self, suffix: str, num_layers: int) -> tuple[bool, ...]:
        """One flag per layer."""
        key = f"{self.arch}.{suffix}"
        flags = self.file.get_list(key, of=bool)
        if len(flags) != num_layers:
            raise FileFormatError(
                f"{self.file.path}: {key} has {len(flags)} flags for {num_layers} layers"
            )
        return tuple(flags)

    def rope(
        self, head_dim: int, context_length: int, *, theta: float | None, interleaved: bool
    ) -> RopeConfig:
        """Rotary embedding, without factors that a tensor holds.

        Args:
            head_dim: Width of a head.
            context_length: Positions of the model, where the file states no original ones.
            theta: Base where the file states none; None requires one.
            interleaved: Pairing of the architecture.
        """
        dims = self.integer("rope.dimension_count", 2, head_dim, default=head_dim)
        dims = self.whole("rope.dimension_count", dims, 16)
        local_dims = self.integer("rope.dimension_count_swa", 2, head_dim, default=dims)
        if local_dims != dims:
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.rope.dimension_count_swa is {local_dims}; only"
                f" {dims}, the full layers' count, is supported"
            )
        # Files without a type mean linear, often with a factor of 1.
        scaling = self.file.get_str(f"{self.arch}.rope.scaling.type", "linear")
        if scaling not in ("none", "linear", "yarn"):
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.rope.scaling.type is {scaling!r}; supported are"
                " none, linear, yarn"
            )
        legacy = self.number("rope.scale_linear", 1.0, 65_536.0, default=1.0)
        factor = self.number("rope.scaling.factor", 1.0, 65_536.0, default=legacy)
        if scaling == "linear" and factor == 1.0:
            scaling = "none"
        return RopeConfig(
            theta=self.number("rope.freq_base", 1.001, 1e12, default=theta),
            dims=dims,
            interleaved=interleaved,
            scaling=scaling,
            factor=1.0 if scaling == "none" else factor,
            original_context=self.integer(
                "rope.scaling.original_context_length", 1, MAX_CONTEXT, default=context_length
            ),
            attention_factor=self.number("rope.scaling.attn_factor", 1e-3, 1e3, default=1.0),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, default=32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, default=1.0),
        )
