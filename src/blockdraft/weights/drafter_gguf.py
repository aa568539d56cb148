"""Metadata keys of llama.cpp's architecture ``dflash`` to a `DrafterConfig`.

Knows no tensor values. ``target_layers`` counts inputs of layers, hence ids plus one.

Source: llama.cpp's model ``dflash`` and its converter.
"""

import math

from blockdraft.config import Activation, ConvConfig, DrafterConfig, RopeConfig, SelectorConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.drafter_names import VOCAB_MAP
from blockdraft.weights.gguf import GGUFFile, StringArray
from blockdraft.weights.keys import MAX_CONTEXT, MAX_SIZE, KeyReader
from blockdraft.weights.tensors import EMBEDDING, HEAD, layer_tensor

__all__ = ["ACCEPTED", "HEAD_TOKENS", "read_gguf_drafter"]

HEAD_TOKENS = "blockdraft.head_token_ids"
ACCEPTED = "blockdraft.accepted_by_position"
"""Our own keys; llama.cpp does not look at them."""

_BLOCK_SIZE = 16  # llama.cpp's where the key is missing
_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
# Keys that change the arithmetic or the use of a block, with the values under which they do not;
# the confidence and Markov heads and the anchor's own draft are DSpark's.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "sample_from_anchor": (False,),
    "has_confidence_head": (False,),
    "markov_rank": (0,),
    "confidence_head": (False,),
    "hyper_connection_count": (0,),
    "expert_count": (0,),
    "attention.value_scale": (1.0,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}


def read_gguf_drafter(file: GGUFFile) -> DrafterConfig:
    """Configuration of the drafter in ``file``, before tensors are checked.

    Raises:
        FileFormatError: A key is missing, of the wrong type or out of range.
        UnsupportedError: The architecture or a key's value is not ours.
    """
    return _Reader(file).read()


class _Reader(KeyReader):
    """Reads keys of one file; every method raises what `read_gguf_drafter` documents."""

    def read(self) -> DrafterConfig:
        """The configuration."""
        self._check_supported()
        num_layers = self.num_layers()
        hidden_size = self.size("embedding_length", multiple=32)
        num_heads, num_kv_heads, head_dim = self.heads(hidden_size)
        context_length = self.integer("context_length", 1, MAX_CONTEXT)
        windowed_layers, window = self._windows(num_layers)
        causal = self.file.get_bool(f"{self.arch}.attention.causal", None)
        self._check_attention_scale(head_dim)
        tensors = self.file.tensors
        return DrafterConfig(
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
            rope=self._rope(head_dim, context_length),
            window=window,
            windowed_layers=windowed_layers,
            causal_layers=(bool(causal),) * num_layers,
            activation=self._activation(),
            attention_bias=layer_tensor(0, "attn_q", "bias") in tensors,
            block_size=self.integer("block_size", 2, MAX_SIZE, default=_BLOCK_SIZE),
            mask_token_id=self.file.get_int("tokenizer.ggml.mask_token_id"),
            target_layer_ids=self._target_layer_ids(),
            num_target_layers=None,
            embedding_scale=self._scale("embedding_scale"),
            logit_scale=self._scale("logit_scale"),
            logit_softcap=self.softcap("final_logit_softcapping"),
            draft_vocab_size=tensors[VOCAB_MAP].cols if VOCAB_MAP in tensors else None,
            own_embedding=EMBEDDING in tensors,
            own_head=HEAD in tensors,
            conv=self._conv(),
            selector=self._selector(),
            head_token_ids=self._head_token_ids(),
            accepted=tuple(self.file.get_list(ACCEPTED, [], of=float)),
        )

    def _check_supported(self) -> None:
        if self.arch == "dflash-draft":
            raise UnsupportedError(
                f"{self.file.path}: the architecture is 'dflash-draft', an older layout that only"
                " buun-llama-cpp reads; give the Hugging Face folder that it was made from, or"
                " convert that with llama.cpp: python convert_hf_to_gguf.py FOLDER"
                " --target-model-dir TARGET_FOLDER --outfile DRAFTER.gguf"
            )
        if self.arch != "dflash":
            raise UnsupportedError(
                f"{self.file.path}: the architecture is {self.arch!r}; drafters are 'dflash'"
            )
        self.check_neutral(_NEUTRAL)

    def _check_attention_scale(self, head_dim: int) -> None:
        scale = head_dim**-0.5
        stated = self.file.get_float(f"{self.arch}.attention.scale", scale)
        if not math.isclose(stated, scale, rel_tol=1e-6):
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.attention.scale is {stated}; only {scale:g} is"
                " supported"
            )

    def _windows(self, num_layers: int) -> tuple[tuple[bool, ...], int | None]:
        window = self.integer("attention.sliding_window", 0, MAX_CONTEXT, default=0)
        if not window:
            return (False,) * num_layers, None
        flags = self.layer_flags("attention.sliding_window_pattern", num_layers)
        return flags, window if any(flags) else None

    def _rope(self, head_dim: int, context_length: int) -> RopeConfig:
        rope = self.rope(head_dim, context_length, theta=None, interleaved=False)
        sections = self.file.get_list(f"{self.arch}.rope.dimension_sections", None, of=int)
        # All pairs in the first section turn by the text position, as without sections.
        if sections and (sections[0] != rope.dims // 2 or any(sections[1:])):
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.rope.dimension_sections is {sections}; only"
                f" [{rope.dims // 2}, 0, 0, 0] is supported"
            )
        return rope

    def _vocab_size(self) -> int:
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, StringArray):
            return self.size("vocab_size")
        size = self.size("vocab_size", default=len(tokens))
        if size != len(tokens):
            raise self.wrong("vocab_size", size, f"the {len(tokens)} of tokenizer.ggml.tokens")
        return size

    def _activation(self) -> Activation:
        name = self.file.get_str(f"{self.arch}.hidden_activation", "silu")
        if name not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{self.file.path}: {self.arch}.hidden_activation is {name!r}; supported are"
                f" {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def _target_layer_ids(self) -> tuple[int, ...]:
        key = f"{self.arch}.target_layers"
        inputs = self.file.get_list(key, of=int)
        if not inputs or not all(1 <= layer <= MAX_SIZE for layer in inputs):
            raise FileFormatError(
                f"{self.file.path}: {key} is {inputs}; it must list inputs of target layers, each"
                " at least 1"
            )
        return tuple(layer - 1 for layer in inputs)

    def _head_token_ids(self) -> tuple[int, ...] | None:
        token_ids = self.file.get_list(HEAD_TOKENS, None, of=int)
        return None if token_ids is None else tuple(token_ids)

    def _scale(self, suffix: str) -> float:
        # llama.cpp takes 0 for a missing scale.
        return self.number(suffix, 0.0, 1e6, default=1.0) or 1.0

    def _conv(self) -> ConvConfig | None:
        if f"{self.arch}.conv_kernel_size" not in self.file.metadata:
            return None
        return ConvConfig(
            kernel_size=self.size("conv_kernel_size"), group_size=self.size("conv_group_size")
        )

    def _selector(self) -> SelectorConfig | None:
        if f"{self.arch}.selector_rank" not in self.file.metadata:
            return None
        return SelectorConfig(rank=self.size("selector_rank"), top_k=self.size("selector_top_k"))
