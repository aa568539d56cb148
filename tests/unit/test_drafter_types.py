"""Which type each tensor gets: llama.cpp's mixes and fallbacks, written down a second time."""

from typing import Any

import pytest

from blockdraft.config import Activation, DrafterConfig, RopeConfig, SelectorConfig
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter_types import choose_types
from blockdraft.weights.ggml_types import ggml_type_name


def config(**changes: Any) -> DrafterConfig:
    return DrafterConfig(
        **{
            "name": "",
            "num_layers": 8,
            "hidden_size": 512,
            "ffn_size": 1536,
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 64,
            "vocab_size": 1000,
            "context_length": 4096,
            "norm_eps": 1e-6,
            "rope": RopeConfig(1e4, 64),
            "window": None,
            "windowed_layers": (False,) * 8,
            "causal_layers": (False,) * 8,
            "activation": Activation.SILU,
            "attention_bias": False,
            "block_size": 8,
            "mask_token_id": 0,
            "target_layer_ids": (1, 2, 3),
            "num_target_layers": None,
            **changes,
        }
    )


def chosen(type_name: str, **changes: Any) -> dict[str, str]:
    types = choose_types(config(**changes), type_name)
    return {each.name: ggml_type_name(each.ggml_type) for each in types}


def test_six_bits_where_llama_cpp_has_them() -> None:
    types = chosen("q4_k_m", own_head=True, own_embedding=True)
    six_bits = {name for name, kind in types.items() if kind == "Q6_K"}
    layers = (0, 3, 6, 7)  # the first, the last, and every third between
    assert six_bits == {"output.weight"} | {
        f"blk.{i}.{part}.weight" for i in layers for part in ("attn_v", "ffn_down")
    }
    assert types["token_embd.weight"] == types["fc.weight"] == "Q4_K"
    assert types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "F32"


@pytest.mark.parametrize(("type_name", "kind"), [("q4_0", "Q4_0"), ("q8_0", "Q8_0")])
def test_simple_types_are_one_type(type_name: str, kind: str) -> None:
    types = chosen(type_name)
    assert set(types.values()) == {kind, "F32"}
    assert chosen(type_name, own_head=True)["output.weight"] == {"Q4_0": "Q6_K"}.get(kind, kind)
    assert chosen(type_name, own_embedding=True)["token_embd.weight"] != "F32"


def test_rows_without_whole_blocks_fall_back() -> None:
    types = chosen("q4_k_m", hidden_size=576, num_heads=9, num_kv_heads=3)
    assert types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["blk.0.attn_v.weight"] == "Q8_0"
    assert types["blk.0.ffn_down.weight"] == "Q6_K"
    reduced = chosen("q4_0", draft_vocab_size=100, hidden_size=576, num_heads=9, num_kv_heads=3)
    assert (reduced["output.weight"], reduced["d2t"]) == ("Q8_0", "I64")
    selector = chosen("q4_0", selector=SelectorConfig(16, 4))
    assert selector["selector_predecessor.weight"] == "F16"
    assert selector["selector_hidden.weight"] == "Q4_0"


def test_fallbacks_say_why() -> None:
    chosen_types = choose_types(config(hidden_size=576, num_heads=9, num_kv_heads=3), "q4_k_m")
    reasons = {each.name: each.fallback for each in chosen_types}
    assert reasons["blk.1.ffn_up.weight"] == (
        "rows of 576 are no multiple of 256: Q5_0 instead of Q4_K"
    )
    assert reasons["blk.1.ffn_down.weight"] is None
    assert reasons["blk.1.attn_norm.weight"] is None


def test_an_unknown_mix_is_refused() -> None:
    with pytest.raises(ConfigError, match="type is 'q2_k'; it must be one of f16, q4_0, q8_0"):
        chosen("q2_k")
