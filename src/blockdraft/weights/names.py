"""Metadata keys of a GGUF file to a checked `ModelConfig`.

Everything is checked before a byte of a weight is read: keys, their ranges, every tensor's shape.
A key or tensor that would change the result and that we do not compute is refused. Knows no
tensor values except the rotary factors of ``rope_freqs.weight``.

Source: the GGUF specification; facts that its files leave out (Gemma 3's window pattern and local
rotary base, the attention scale of its 27B) are the published model's.
"""

import math
from dataclasses import replace

import numpy as np

from blockdraft.config import Activation, ModelConfig, RopeConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile, StringArray, ggml_type_name
from blockdraft.weights.keys import MAX_CONTEXT, MAX_SIZE, KeyReader
from blockdraft.weights.tensors import (
    EMBEDDING,
    HEAD,
    ROPE_FACTORS,
    check_tensors,
    format_shape,
    layer_tensor,
)

__all__ = ["SUPPORTED_ARCHITECTURES", "read_model_config"]

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

_GEMMA3_LOCAL_THETA = 10_000.0
_GEMMA3_PATTERN = 6
_GEMMA3_27B_LAYERS = 62

# Keys that change the arithmetic, with the values under which they do not. The scales are
# Granite's, clamping and ALiBi MPT's, the temperature Llama 4's, shared K/V Gemma 3n's.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "rescale_every_n_layers": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attention.shared_kv_layers": (0,),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}


def read_model_config(file: GGUFFile) -> ModelConfig:
    """Configuration of the decoder in ``file``, whose tensors all have the shapes it needs.

    Raises:
        FileFormatError: A key is missing, of the wrong type or out of range, or a tensor is
            missing or has another shape.
        UnsupportedError: The architecture, a key's value, a size or a tensor asks for
            arithmetic that we do not have.
    """
    config = _Reader(file).read()
    check_tensors(file, config)
    return config


class _Reader(KeyReader):
    """Reads keys of one file; every method raises what `read_model_config` documents."""

    def read(self) -> ModelConfig:
        """The configuration, before tensors are checked."""
        self._check_supported()
        num_layers = self.num_layers()
        hidden_size = self.size("embedding_length", multiple=32)
        num_heads, num_kv_heads, head_dim = self.heads(hidden_size)
        is_gemma = self.arch == "gemma3"
        context_length = self.integer("context_length", 1, MAX_CONTEXT)
        window = self._window(context_length)
        windowed_layers = self._windowed_layers(num_layers, window)
        rope = self.rope(
            head_dim,
            context_length,
            theta=None if is_gemma else 10_000.0,
            interleaved=self.arch == "llama",
        )
        rope = replace(rope, freq_factors=self._freq_factors(rope.dims))
        local_theta = self.number("rope.freq_base_swa", 1.001, 1e12, default=_GEMMA3_LOCAL_THETA)
        attention_scale = self._attention_scale(num_layers, hidden_size // num_heads, head_dim)
        has_window = any(windowed_layers)
        return ModelConfig(
            architecture=self.arch,
            name=self.file.get_str("general.name", ""),
            num_layers=num_layers,
            hidden_size=hidden_size,
            ffn_size=self.size("feed_forward_length", multiple=32),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            vocab_size=self._vocab_size(),
            context_length=context_length,
            norm_eps=self.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
            rope=rope,
            local_rope=RopeConfig(theta=local_theta, dims=rope.dims) if has_window else None,
            window=window if has_window else None,
            windowed_layers=windowed_layers,
            activation=Activation.GELU_TANH if is_gemma else Activation.SILU,
            embedding_scale=math.sqrt(hidden_size) if is_gemma else 1.0,
            attention_scale=attention_scale,
            attention_softcap=self.softcap("attn_logit_softcapping"),
            logit_softcap=self.softcap("final_logit_softcapping"),
            logit_scale=1.0,
            qk_norm=self.arch in ("qwen3", "gemma3"),
            attention_bias=self.arch == "qwen2"
            or layer_tensor(0, "attn_q", "bias") in self.file.tensors,
            post_norms=is_gemma,
            tied_head=HEAD not in self.file.tensors,
        )

    def _check_supported(self) -> None:
        if self.arch not in SUPPORTED_ARCHITECTURES:
            supported = ", ".join(SUPPORTED_ARCHITECTURES)
            raise UnsupportedError(
                f"{self.file.path}: the architecture is {self.arch!r}; supported are {supported}"
            )
        self.check_neutral(_NEUTRAL)

    def _attention_scale(self, num_layers: int, hidden_per_head: int, head_dim: int) -> float:
        is_27b = self.arch == "gemma3" and num_layers == _GEMMA3_27B_LAYERS
        scale = (hidden_per_head if is_27b else head_dim) ** -0.5
        stated = self.file.get_float(f"{self.arch}.attention.scale", scale)
        if not math.isclose(stated, scale, rel_tol=1e-6):
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.attention.scale is {stated}; only {scale:g} is"
                f" supported for {self.arch}"
            )
        return scale

    def _vocab_size(self) -> int:
        shape = self.file.tensor(EMBEDDING).shape
        if len(shape) != 2:
            raise FileFormatError(
                f"{self.file.path}: tensor {EMBEDDING} is {format_shape(shape)}; it must have"
                " one row per token"
            )
        rows = shape[0]
        if f"{self.arch}.vocab_size" in self.file.metadata:
            stated = self.size("vocab_size")
            if stated != rows:
                raise self.wrong("vocab_size", stated, f"the {rows} rows of {EMBEDDING}")
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, StringArray) and len(tokens) != rows:
            raise FileFormatError(
                f"{self.file.path}: tokenizer.ggml.tokens has {len(tokens)} tokens; {EMBEDDING}"
                f" has {rows} rows"
            )
        return rows

    # --- windows

    def _window(self, context_length: int) -> int | None:
        if self.arch == "gemma3":
            return self.integer("attention.sliding_window", 1, MAX_CONTEXT)
        window = self.integer("attention.sliding_window", 0, MAX_CONTEXT, default=0)
        if 0 < window < context_length:
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.attention.sliding_window is {window}; windows are"
                " supported for gemma3 only"
            )
        return None

    def _windowed_layers(self, num_layers: int, window: int | None) -> tuple[bool, ...]:
        if window is None:
            return (False,) * num_layers
        key = f"{self.arch}.attention.sliding_window_pattern"
        if isinstance(self.file.metadata.get(key, _GEMMA3_PATTERN), int):
            period = self.integer(
                "attention.sliding_window_pattern", 0, MAX_SIZE, default=_GEMMA3_PATTERN
            )
            return tuple(period == 0 or (i + 1) % period != 0 for i in range(num_layers))
        return self.layer_flags("attention.sliding_window_pattern", num_layers)

    # --- rotary embedding

    def _freq_factors(self, dims: int) -> tuple[float, ...]:
        if self.arch != "llama" or ROPE_FACTORS not in self.file.tensors:
            return ()
        info = self.file.tensor(ROPE_FACTORS)
        if info.shape != (dims // 2,) or info.ggml_type != 0:
            raise FileFormatError(
                f"{self.file.path}: tensor {ROPE_FACTORS} is {format_shape(info.shape)} of"
                f" {ggml_type_name(info.ggml_type)}; {dims} rotated dimensions need"
                f" {dims // 2} of F32"
            )
        factors = self.file.read(ROPE_FACTORS).view("<f4").astype(np.float64)
        if not ((factors >= 1e-3) & (factors <= 1e6)).all():  # false for NaN too
            raise FileFormatError(
                f"{self.file.path}: tensor {ROPE_FACTORS} holds {factors.min()} to"
                f" {factors.max()}; factors must be in [0.001, 1e6]"
            )
        return tuple(factors.tolist())
