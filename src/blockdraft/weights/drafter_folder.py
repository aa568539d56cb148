"""A drafter's ``config.json`` to a `DrafterConfig`: z-lab's layouts and the speculators library's.

Reads old and new places of a key. A key under ``dflash_config`` that we do not know is refused.
Knows no tensor values.

Source: z-lab's `dflash` package and checkpoints; speculators' ``DFlashSpeculatorConfig``, whose
feature ids count the embedding as 0; transformers' ``Qwen3Config``; vLLM for ``causal`` and
``use_swa``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.config import Activation, ConvConfig, DrafterConfig, RopeConfig, SelectorConfig
from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.drafter_names import MASK_EMBEDDING, VOCAB_MAP
from blockdraft.weights.header import TensorInfo
from blockdraft.weights.json_keys import JsonKeys
from blockdraft.weights.keys import MAX_CONTEXT, MAX_HEAD_DIM, MAX_SIZE
from blockdraft.weights.tensors import EMBEDDING, HEAD

__all__ = ["default_target_layer_ids", "read_folder_drafter"]

_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel", "DFlashSpeculator")
_SPECULATORS = ("dflash", "dflash2")
_BLOCK_SIZE = 16  # z-lab's where the key is missing
_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
_KINDS = {"full_attention": False, "sliding_attention": True}
_DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# Under dflash_config: what we read, and notes on the training that change nothing.
_READ = {
    *("block_size", "mask_token_id", "target_layer_ids", "causal", "use_swa", "swa_window_size"),
    *("input_embedding_scale", "output_multiplier", "final_logit_softcapping"),
    *("head_token_ids", "accepted_by_position"),
    *_DFLASH2_KEYS,
}
_NOTES = {"mask_token", "num_anchors", "loss_decay_gamma"}
_NEUTRAL = (False, 1, 0, "")
_ROPES = {
    "default": "none",
    "none": "none",
    "linear": "linear",
    "yarn": "yarn",
    "llama3": "llama3",
}


def default_target_layer_ids(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """Feature layers of a checkpoint that lists none: evenly from the second to the third last.

    Source: z-lab's ``build_target_layer_ids``, with its rounding to even.
    """
    if num_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_layers - 1)) for i in range(num_layers))


def read_folder_drafter(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> DrafterConfig:
    """Configuration in a ``config.json``, before tensors are checked.

    Args:
        path: The file, for messages.
        config: Its content.
        tensors: The folder's tensors under our names.

    Raises:
        FileFormatError: A key is missing, of the wrong type, out of range or contradictory.
        UnsupportedError: The model or a key's value is not ours.
    """
    return _Reader(path, config, tensors).read()


@dataclass(frozen=True, slots=True)
class _Attention:
    """Which layers have a window, which are causal."""

    window: int | None
    windowed: tuple[bool, ...]
    causal: tuple[bool, ...]


class _Reader:
    """Reads one file; every method raises what `read_folder_drafter` documents."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
    ) -> None:
        """Tell z-lab's layout from the speculators library's."""
        self.path = path
        self.tensors = tensors
        top = JsonKeys(path, ("", config))
        self.is_speculators = top.find("speculators_model_type")[1] is not None
        if self.is_speculators:
            layers = top.inner("transformer_layer_config")
            self.body = JsonKeys(path, ("transformer_layer_config.", layers))
            self.keys = top
        else:
            inner = top.inner("dflash_config")
            _check_known(path, inner)
            self.body = top
            self.keys = JsonKeys(path, ("dflash_config.", inner), ("", config))
        self.top = top

    def read(self) -> DrafterConfig:
        """The configuration."""
        self._check_supported()
        body, keys = self.body, self.keys
        num_layers = body.integer("num_hidden_layers", 1, len(self.tensors))
        num_heads = body.integer("num_attention_heads", 1, MAX_SIZE)
        num_kv_heads = body.integer("num_key_value_heads", 1, MAX_SIZE)
        head_dim = self._head_dim(num_heads, num_kv_heads)
        context_length = body.integer("max_position_embeddings", 1, MAX_CONTEXT)
        vocab_size = body.integer("vocab_size", 1, MAX_SIZE)
        attention = self._attention(num_layers)
        num_target_layers = self.top.optional_integer("num_target_layers", 1, MAX_SIZE)
        return DrafterConfig(
            name=self.path.parent.name,
            num_layers=num_layers,
            hidden_size=self._hidden_size(),
            ffn_size=body.integer("intermediate_size", 1, MAX_SIZE, multiple=32),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            context_length=context_length,
            norm_eps=body.number("rms_norm_eps", 1e-12, 1.0),
            rope=self._rope(head_dim, context_length),
            window=attention.window,
            windowed_layers=attention.windowed,
            causal_layers=attention.causal,
            activation=body.choice("hidden_act", _ACTIVATIONS, default="silu"),
            attention_bias=body.flag("attention_bias") or False,
            block_size=keys.integer("block_size", 2, MAX_SIZE, default=_BLOCK_SIZE),
            mask_token_id=keys.integer("mask_token_id", 0, MAX_SIZE),
            target_layer_ids=self._target_layer_ids(num_layers, num_target_layers),
            num_target_layers=num_target_layers,
            embedding_scale=keys.number("input_embedding_scale", 1e-6, 1e6, default=1.0),
            logit_scale=keys.number("output_multiplier", 1e-6, 1e6, default=1.0),
            logit_softcap=self._softcap(),
            draft_vocab_size=self._draft_vocab_size(vocab_size),
            own_embedding=EMBEDDING in self.tensors,
            own_head=HEAD in self.tensors,
            mask_embedding=MASK_EMBEDDING in self.tensors,
            head_token_ids=keys.integers("head_token_ids", 0, MAX_SIZE),
            accepted=keys.numbers("accepted_by_position", 0.0, 1.0),
            **self._dflash2(),
        )

    def _check_supported(self) -> None:
        kind = self.top.find("speculators_model_type")[1]
        architectures = self.top.strings("architectures") or ()
        if self.is_speculators:
            if kind not in _SPECULATORS:
                raise UnsupportedError(
                    f"{self.path}: speculators_model_type is {kind!r}; supported are"
                    f" {', '.join(_SPECULATORS)}"
                )
        elif not set(architectures) & set(_ARCHITECTURES):
            raise UnsupportedError(
                f"{self.path}: architectures are {list(architectures)}; supported are"
                f" {', '.join(_ARCHITECTURES)}"
            )
        self.keys.refuse(("sample_from_anchor", "attention_sink_bias"))
        self.keys.refuse(("attention_value_scale",), (1, 1.0))
        self.body.refuse(("partial_rotary_factor",), (1, 1.0))

    def _hidden_size(self) -> int:
        size = self.body.integer("hidden_size", 1, MAX_SIZE, multiple=32)
        of_target = self.keys.optional_integer("target_hidden_size", 1, MAX_SIZE)
        if of_target not in (None, size):
            raise UnsupportedError(
                f"{self.path}: target_hidden_size is {of_target}, hidden_size {size}; only equal"
                " ones are supported"
            )
        return size

    def _head_dim(self, num_heads: int, num_kv_heads: int) -> int:
        if num_heads % num_kv_heads:
            raise self.body.wrong(
                "num_attention_heads", num_heads, f"a multiple of {num_kv_heads} KV heads"
            )
        head_dim = self.body.integer("head_dim", 1, MAX_HEAD_DIM, multiple=16)
        if num_heads * head_dim % 32:
            raise UnsupportedError(
                f"{self.path}: {num_heads} heads of {head_dim} are no multiple of 32 wide"
            )
        return head_dim

    # --- windows and masks

    def _attention(self, num_layers: int) -> _Attention:
        if self.keys.flag("use_swa"):
            causal = self._is_causal() or False
            return _Attention(
                self.keys.integer("swa_window_size", 1, MAX_CONTEXT),
                windowed=(True,) * num_layers,
                causal=(causal,) * num_layers,
            )
        sliding = self._sliding_layers(num_layers)
        causal_layers = self._causal_layers(sliding)
        if not any(sliding):
            return _Attention(None, sliding, causal_layers)
        window = self.body.integer("sliding_window", 1, MAX_CONTEXT)
        return _Attention(window, sliding, causal_layers)

    def _sliding_layers(self, num_layers: int) -> tuple[bool, ...]:
        kinds = self.body.strings("layer_types")
        uses_windows = self.body.flag("use_sliding_window") or False
        if kinds is None:
            first = self.body.integer("max_window_layers", 0, MAX_SIZE, default=28)
            return tuple(uses_windows and i >= first for i in range(num_layers))
        if len(kinds) != num_layers:
            raise FileFormatError(
                f"{self.path}: layer_types has {len(kinds)} entries for {num_layers} layers"
            )
        for kind in kinds:
            if kind not in _KINDS:
                raise UnsupportedError(
                    f"{self.path}: layer_types has {kind!r}; supported are {', '.join(_KINDS)}"
                )
        sliding = tuple(_KINDS[kind] for kind in kinds)
        # Of such a file transformers sees no window, vLLM one.
        if any(sliding) and not uses_windows:
            raise FileFormatError(
                f"{self.path}: layer_types has sliding_attention, but use_sliding_window is not"
                " true"
            )
        return sliding

    def _causal_layers(self, sliding: tuple[bool, ...]) -> tuple[bool, ...]:
        if self.is_speculators:
            bidirectional = self.keys.flag("sliding_window_non_causal")
            if bidirectional is None:
                bidirectional = self.top.find("speculators_model_type")[1] == "dflash2"
            return tuple(flag and not bidirectional for flag in sliding)
        causal = self._is_causal()
        return sliding if causal is None else (causal,) * len(sliding)

    def _is_causal(self) -> bool | None:
        outer, inner = self.top.flag("is_causal"), self.keys.flag("causal")
        if None not in (outer, inner) and outer != inner:
            raise FileFormatError(
                f"{self.path}: is_causal is {outer}, but dflash_config.causal is {inner}"
            )
        return inner if outer is None else outer

    # --- the rest

    def _target_layer_ids(self, num_layers: int, num_target_layers: int | None) -> tuple[int, ...]:
        if self.is_speculators:
            taps = self.keys.integers("aux_hidden_state_layer_ids", 1, MAX_SIZE)
            if taps is None:
                raise FileFormatError(f"{self.path}: has no key aux_hidden_state_layer_ids")
            return tuple(tap - 1 for tap in taps)
        listed = self.keys.integers("target_layer_ids", 0, MAX_SIZE)
        if listed is not None:
            return listed
        if num_target_layers is None:
            raise FileFormatError(
                f"{self.path}: has neither target_layer_ids nor num_target_layers"
            )
        ids = default_target_layer_ids(num_target_layers, num_layers)
        if not all(0 <= each < num_target_layers for each in ids):
            raise FileFormatError(
                f"{self.path}: has no target_layer_ids, and {num_target_layers} target layers are"
                f" too few for {num_layers} features"
            )
        return ids

    def _draft_vocab_size(self, vocab_size: int) -> int | None:
        stated = self.top.optional_integer("draft_vocab_size", 1, MAX_SIZE)
        if VOCAB_MAP not in self.tensors:
            if stated not in (None, vocab_size):
                raise FileFormatError(
                    f"{self.path}: draft_vocab_size is {stated} of {vocab_size}, and there is no"
                    f" tensor {VOCAB_MAP}"
                )
            return None
        rows = self.tensors[VOCAB_MAP].cols
        if stated not in (None, rows):
            raise FileFormatError(
                f"{self.path}: draft_vocab_size is {stated}, {VOCAB_MAP} has {rows} values"
            )
        return rows

    def _softcap(self) -> float | None:
        cap = self.keys.number("final_logit_softcapping", 0.0, 1e6, default=0.0)
        if 0 < cap < 1e-3:
            raise self.keys.wrong("final_logit_softcapping", cap, "0 (none) or at least 0.001")
        return cap or None

    def _dflash2(self) -> dict[str, Any]:
        found = [name for name in _DFLASH2_KEYS if self.keys.find(name)[1] is not None]
        is_dflash2 = "DFlash2DraftModel" in (self.top.strings("architectures") or ())
        if not found and not is_dflash2:
            return {}
        kernel_size, group_size, rank, top_k = (
            self.keys.integer(name, 1, MAX_SIZE) for name in _DFLASH2_KEYS
        )
        return {
            "conv": ConvConfig(kernel_size, group_size),
            "selector": SelectorConfig(rank, top_k),
        }

    def _rope(self, head_dim: int, context_length: int) -> RopeConfig:
        old = self.body.inner("rope_scaling")
        keys = JsonKeys(
            self.path,
            ("rope_parameters.", self.body.inner("rope_parameters")),
            ("rope_scaling.", old),
            ("", {"rope_theta": self.body.find("rope_theta")[1], "rope_type": old.get("type")}),
        )
        keys.refuse(("partial_rotary_factor",), (1, 1.0))
        keys.refuse(("mscale", "mscale_all_dim", "short_factor", "long_factor"))
        keys.refuse(("truncate",), (True,))
        scaling = keys.choice("rope_type", _ROPES, default="default")
        theta = keys.number("rope_theta", 1.001, 1e12)
        if scaling == "none":
            return RopeConfig(theta=theta, dims=head_dim)
        factor = keys.number("factor", 1.0, 65_536.0)
        own = 0.1 * math.log(factor) + 1  # yarn's, which `ops.rope` multiplies by
        attention_factor = keys.number("attention_factor", 1e-3, 1e3, default=own) / own
        return RopeConfig(
            theta=theta,
            dims=head_dim,
            scaling=scaling,
            factor=factor,
            original_context=keys.integer(
                "original_max_position_embeddings", 1, MAX_CONTEXT, default=context_length
            ),
            attention_factor=attention_factor if scaling == "yarn" else 1.0,
            beta_fast=keys.number("beta_fast", 1e-3, 1e6, default=32.0),
            beta_slow=keys.number("beta_slow", 1e-3, 1e6, default=1.0),
            low_freq_factor=keys.number("low_freq_factor", 1e-3, 1e3, default=1.0),
            high_freq_factor=keys.number("high_freq_factor", 1e-3, 1e3, default=4.0),
        )


def _check_known(path: Path, inner: Mapping[str, Any]) -> None:
    known = _READ | _NOTES | {"attention_sink_bias", "attention_value_scale", "sample_from_anchor"}
    for name, value in inner.items():
        if name not in known and value is not None and value not in _NEUTRAL:
            raise UnsupportedError(
                f"{path}: dflash_config.{name} is {value!r}, a key that is not supported"
            )
