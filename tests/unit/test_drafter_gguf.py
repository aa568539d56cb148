from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft.config import Activation, DrafterConfig
from blockdraft.errors import BlockdraftError, FileFormatError, UnsupportedError
from blockdraft.weights.drafter import DrafterFile
from tests.tiny_drafter import TinyDrafter

PLAIN = TinyDrafter()


def read(path: Path, shape: TinyDrafter = PLAIN, **keys: Any) -> DrafterConfig:
    changes = {name.replace("__", "."): value for name, value in keys.items()}
    with DrafterFile.open(replace(shape, config=changes).write_gguf(path / "d.gguf")) as file:
        return file.config


def refusal(
    kind: type[BlockdraftError], path: Path, shape: TinyDrafter = PLAIN, **keys: Any
) -> str:
    with pytest.raises(kind) as caught:
        read(path, shape, **keys)
    assert type(caught.value) is kind
    return str(caught.value).removeprefix(f"{path / 'd.gguf'}: ")


def test_target_layers_are_ids_plus_one(tmp_path: Path) -> None:
    config = read(tmp_path, dflash__target_layers=[1, 4, 5])
    assert config.target_layer_ids == (0, 3, 4)
    assert config.num_target_layers is None


def test_defaults_are_llama_cpps(tmp_path: Path) -> None:
    config = read(tmp_path, dflash__block_size=None, dflash__attention__causal=None)
    assert config.block_size == 16
    assert config.causal_layers == (False, False)
    assert (config.embedding_scale, config.logit_scale, config.logit_softcap) == (1.0, 1.0, None)
    assert config.activation is Activation.SILU
    assert config.draft_vocab_size is None


def test_optional_keys(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        dflash__attention__causal=True,
        dflash__embedding_scale=8.0,
        dflash__logit_scale=0.25,
        dflash__final_logit_softcapping=20.0,
        dflash__hidden_activation="gelu_pytorch_tanh",
        dflash__attention__scale=32**-0.5,
        dflash__rope__dimension_sections=[16, 0, 0, 0],
        dflash__rope__scaling__type="yarn",
        dflash__rope__scaling__factor=4.0,
        tokenizer__ggml__tokens=None,
        dflash__vocab_size=131,
    )
    assert config.causal_layers == (True, True)
    assert (config.embedding_scale, config.logit_scale, config.logit_softcap) == (8.0, 0.25, 20.0)
    assert config.activation is Activation.GELU_TANH
    assert (config.rope.scaling, config.rope.factor, config.rope.interleaved) == ("yarn", 4, False)
    assert config.vocab_size == 131


def test_buuns_layout_says_how_to_convert(tmp_path: Path) -> None:
    message = refusal(UnsupportedError, tmp_path, general__architecture="dflash-draft")
    assert message.startswith("the architecture is 'dflash-draft', an older layout")
    assert "convert_hf_to_gguf.py FOLDER --target-model-dir TARGET_FOLDER" in message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"general__architecture": "qwen3"}, "the architecture is 'qwen3'; drafters are 'dflash'"),
        ({"dflash__attention__scale": 1.0}, "dflash.attention.scale is 1.0; only 0.176777"),
        ({"dflash__hidden_activation": "gelu"}, "hidden_activation is 'gelu'; supported are silu"),
        ({"dflash__rope__dimension_sections": [8, 8, 0, 0]}, "is [8, 8, 0, 0]; only [16, 0, 0, 0]"),
        ({"dflash__sample_from_anchor": True}, "dflash.sample_from_anchor is True"),
        ({"dflash__attention__value_scale": 0.5}, "dflash.attention.value_scale is 0.5"),
        ({"dflash__markov_rank": 256}, "dflash.markov_rank is 256"),
        ({"dflash__rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'"),
    ],
)
def test_unsupported_values(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    assert message in refusal(UnsupportedError, tmp_path, **keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dflash__target_layers": None}, "has no metadata key dflash.target_layers"),
        ({"dflash__target_layers": [0, 2, 3]}, "target_layers is [0, 2, 3]; it must list inputs"),
        ({"dflash__target_layers": 3}, "is an integer, it must be an array of integers"),
        ({"tokenizer__ggml__mask_token_id": None}, "no metadata key tokenizer.ggml.mask_token_id"),
        ({"tokenizer__ggml__mask_token_id": 500}, "the mask token is 500 of 131 tokens"),
        ({"dflash__block_size": 1}, "dflash.block_size is 1; it must be in [2,"),
        ({"dflash__rope__freq_base": None}, "has no metadata key dflash.rope.freq_base"),
        ({"dflash__vocab_size": 7}, "vocab_size is 7; it must be the 131 of tokenizer.ggml.tokens"),
        ({"tokenizer__ggml__tokens": None}, "has no metadata key dflash.vocab_size"),
        ({"dflash__block_count": 10**9}, "block_count is 1000000000; it must be in [1,"),
        ({"dflash__final_logit_softcapping": 1e-4}, "it must be 0 (none) or at least 0.001"),
    ],
)
def test_wrong_values(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    assert message in refusal(FileFormatError, tmp_path, **keys)


def test_windows_need_a_flag_per_layer(tmp_path: Path) -> None:
    shape = TinyDrafter(kinds=("sliding", "full"))
    config = read(tmp_path, shape)
    assert (config.window, config.windowed_layers) == (6, (True, False))
    keys = {"dflash__attention__sliding_window_pattern": [True]}
    assert "has 1 flags for 2 layers" in refusal(FileFormatError, tmp_path, shape, **keys)
    config = read(tmp_path, shape, dflash__attention__sliding_window_pattern=[False, False])
    assert (config.window, config.windowed_layers) == (None, (False, False))


@pytest.mark.parametrize("missing", ["conv_group_size", "selector_top_k"])
def test_dflash2_keys_come_in_pairs(tmp_path: Path, missing: str) -> None:
    shape = TinyDrafter(is_dflash2=True)
    message = refusal(FileFormatError, tmp_path, shape, **{f"dflash__{missing}": None})
    assert message == f"has no metadata key dflash.{missing}"
