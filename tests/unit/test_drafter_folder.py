import json
from pathlib import Path
from typing import Any

import pytest

from blockdraft.config import Activation, DrafterConfig
from blockdraft.errors import BlockdraftError, FileFormatError, UnsupportedError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_folder import default_target_layer_ids
from tests.tiny_drafter import TinyDrafter

MISSING = None


def read(path: Path, shape: TinyDrafter, layout: str = "new") -> DrafterConfig:
    with DrafterFile.open(shape.write_folder(path / "folder", layout)) as file:
        return file.config


def refusal(
    kind: type[BlockdraftError], path: Path, shape: TinyDrafter, layout: str = "new"
) -> str:
    with pytest.raises(kind) as caught:
        read(path, shape, layout)
    assert type(caught.value) is kind
    return str(caught.value).removeprefix(f"{path / 'folder' / 'config.json'}: ")


@pytest.mark.parametrize(
    ("num_target_layers", "num_layers", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (28, 5, (1, 7, 13, 19, 25)),
        (24, 5, (1, 6, 11, 16, 21)),
        (24, 1, (12,)),
    ],
)
def test_default_feature_layers_of_published_drafters(
    num_target_layers: int, num_layers: int, ids: tuple[int, ...]
) -> None:
    assert default_target_layer_ids(num_target_layers, num_layers) == ids


def test_facts_of_a_plain_drafter(tmp_path: Path) -> None:
    config = read(tmp_path, TinyDrafter())
    assert config.name == "folder"
    assert (config.block_size, config.mask_token_id) == (4, 130)
    assert (config.target_layer_ids, config.num_target_layers) == ((0, 2, 3), 5)
    assert (config.window, config.causal_layers) == (None, (False, False))
    assert config.activation is Activation.SILU
    assert config.feature_size == 3 * 64
    assert (config.conv, config.selector) == (None, None)
    assert (config.own_embedding, config.own_head, config.mask_embedding) == (False,) * 3


@pytest.mark.parametrize("layout", ["old", "new"])
def test_keys_have_two_places(tmp_path: Path, layout: str) -> None:
    config = read(
        tmp_path,
        TinyDrafter(
            config={"output_multiplier": 0.5, "input_embedding_scale": 2},
            inner={"final_logit_softcapping": 20},
        ),
        layout,
    )
    assert (config.logit_scale, config.embedding_scale, config.logit_softcap) == (0.5, 2.0, 20.0)


def test_places_that_disagree_are_refused(tmp_path: Path) -> None:
    shape = TinyDrafter(config={"block_size": 8})
    message = refusal(FileFormatError, tmp_path, shape)
    assert message == "dflash_config.block_size is 4, but block_size is 8"
    shape = TinyDrafter(is_causal=True, inner={"causal": False})
    message = refusal(FileFormatError, tmp_path, shape)
    assert message == "is_causal is True, but dflash_config.causal is False"
    shape = TinyDrafter(config={"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}})
    message = refusal(FileFormatError, tmp_path, shape)
    assert message == "rope_parameters.rope_theta is 5.0, but rope_theta is 10000.0"


# --- windows and masks


@pytest.mark.parametrize(
    ("shape", "windowed", "causal"),
    [
        (TinyDrafter(kinds=("full", "sliding")), (False, True), (False, True)),
        (TinyDrafter(kinds=("full", "sliding"), is_causal=False), (False, True), (False, False)),
        (TinyDrafter(kinds=("full", "sliding"), is_causal=True), (False, True), (True, True)),
        (TinyDrafter(kinds=("sliding",), inner={"causal": False}), (True,), (False,)),
        (TinyDrafter(inner={"causal": True}), (False, False), (True, True)),
        (
            TinyDrafter(
                config={
                    "layer_types": MISSING,
                    "use_sliding_window": True,
                    "max_window_layers": 1,
                    "sliding_window": 6,
                }
            ),
            (False, True),
            (False, True),
        ),
        (
            TinyDrafter(
                config={"layer_types": MISSING}, inner={"use_swa": True, "swa_window_size": 6}
            ),
            (True, True),
            (False, False),
        ),
    ],
    ids=["default", "not causal", "causal", "inner key", "full", "max_window_layers", "use_swa"],
)
def test_windows_and_masks(
    tmp_path: Path, shape: TinyDrafter, windowed: tuple[bool, ...], causal: tuple[bool, ...]
) -> None:
    config = read(tmp_path, shape)
    assert config.windowed_layers == windowed
    assert config.causal_layers == causal
    assert config.window == (6 if any(windowed) else None)


def test_speculators_full_layers_are_never_causal(tmp_path: Path) -> None:
    shape = TinyDrafter(kinds=("full", "sliding"))
    assert read(tmp_path, shape, "speculators").causal_layers == (False, True)
    shape = TinyDrafter(kinds=("full", "sliding"), is_causal=False)
    assert read(tmp_path, shape, "speculators").causal_layers == (False, False)
    keys = {"sliding_window_non_causal": MISSING}
    shape = TinyDrafter(kinds=("sliding",), is_dflash2=True, config=keys)
    assert read(tmp_path, shape, "speculators").causal_layers == (False,)


# --- rotary embedding


def test_rope_places(tmp_path: Path) -> None:
    new = {"rope_theta": MISSING, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert read(tmp_path, TinyDrafter(config=new)).rope.theta == 5e5
    old = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = read(tmp_path, TinyDrafter(config=old)).rope
    assert (rope.theta, rope.scaling, rope.factor, rope.dims) == (1e4, "linear", 2.0, 32)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_scaling.rope_type is 'dynamic'"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}, "rope_scaling.mscale is 1.0"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": False}, "rope_scaling.truncate is False"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_unsupported_ropes(tmp_path: Path, rope: dict[str, Any], message: str) -> None:
    shape = TinyDrafter(config={"rope_scaling": rope})
    assert message in refusal(UnsupportedError, tmp_path, shape)


# --- refusals


@pytest.mark.parametrize(
    ("config", "inner", "message"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, {}, "architectures are ['Qwen3ForCausalLM']"),
        ({"architectures": MISSING}, {}, "architectures are []; supported are DFlashDraftModel"),
        ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu'; supported are silu, gelu_pytorch"),
        ({}, {"attention_sink_bias": True}, "dflash_config.attention_sink_bias is True"),
        ({}, {"attention_value_scale": 0.612}, "dflash_config.attention_value_scale is 0.612"),
        ({}, {"sample_from_anchor": True}, "dflash_config.sample_from_anchor is True"),
        ({}, {"markov_rank": 256}, "dflash_config.markov_rank is 256, a key that is not supported"),
        ({"layer_types": ["full_attention", "linear"]}, {}, "layer_types has 'linear'; supported"),
        ({"target_hidden_size": 128}, {}, "target_hidden_size is 128, hidden_size 64"),
        ({"hidden_size": 60}, {}, "hidden_size is 60; only multiples of 32 are supported"),
        ({"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor is 0.5"),
    ],
)
def test_unsupported_values(
    tmp_path: Path, config: dict[str, Any], inner: dict[str, Any], message: str
) -> None:
    shape = TinyDrafter(config=config, inner=inner)
    assert message in refusal(UnsupportedError, tmp_path, shape)


@pytest.mark.parametrize(
    ("config", "inner", "message"),
    [
        ({"head_dim": MISSING}, {}, "has no key head_dim"),
        ({"head_dim": "32"}, {}, "head_dim is '32'; it must be an integer in [1, 1024]"),
        ({"head_dim": True}, {}, "head_dim is True; it must be an integer"),
        ({"hidden_size": 10**12}, {}, "hidden_size is 1000000000000; it must be an integer in"),
        ({"num_hidden_layers": 10**9}, {}, "num_hidden_layers is 1000000000; it must be"),
        ({"num_attention_heads": 3}, {}, "num_attention_heads is 3; it must be a multiple of 2"),
        ({"rms_norm_eps": "small"}, {}, "rms_norm_eps is 'small'; it must be a number in"),
        ({"attention_bias": 1}, {}, "attention_bias is 1; it must be true or false"),
        ({"layer_types": "full"}, {}, "layer_types is 'full'; it must be a list of strings"),
        ({"layer_types": ["full_attention"]}, {}, "layer_types has 1 entries for 2 layers"),
        ({"dflash_config": 3}, {}, "dflash_config is 3; it must be an object"),
        ({"rope_theta": MISSING}, {}, "has no key rope_parameters.rope_theta"),
        ({}, {"target_layer_ids": []}, "target_layer_ids is []; it must be a list of integers"),
        ({}, {"target_layer_ids": [0, -1]}, "is [0, -1]; it must be a list of integers in [0,"),
        ({}, {"mask_token_id": MISSING}, "has no key dflash_config.mask_token_id"),
        ({}, {"block_size": 1}, "dflash_config.block_size is 1; it must be an integer in [2,"),
        (
            {"num_target_layers": MISSING},
            {"target_layer_ids": MISSING},
            "has neither target_layer_ids nor num_target_layers",
        ),
        (
            {"num_target_layers": 1},
            {"target_layer_ids": MISSING},
            "1 target layers are too few for 2 features",
        ),
        ({"draft_vocab_size": 100}, {}, "draft_vocab_size is 100 of 131, and there is no tensor"),
        (
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6},
            {},
            "layer_types has sliding_attention, but use_sliding_window is not true",
        ),
        (
            {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True},
            {},
            "has no key sliding_window",
        ),
        ({}, {"use_swa": True}, "has no key dflash_config.swa_window_size"),
        ({}, {"conv_kernel_size": 2}, "has no key dflash_config.conv_group_size"),
        ({"architectures": ["DFlash2DraftModel"]}, {}, "has no key dflash_config.conv_kernel"),
    ],
)
def test_wrong_values(
    tmp_path: Path, config: dict[str, Any], inner: dict[str, Any], message: str
) -> None:
    shape = TinyDrafter(config=config, inner=inner)
    assert message in refusal(FileFormatError, tmp_path, shape)


def test_speculators_refusals(tmp_path: Path) -> None:
    shape = TinyDrafter(config={"speculators_model_type": "eagle3"})
    message = refusal(UnsupportedError, tmp_path, shape, "speculators")
    assert message == "speculators_model_type is 'eagle3'; supported are dflash, dflash2"
    shape = TinyDrafter(config={"aux_hidden_state_layer_ids": MISSING})
    message = refusal(FileFormatError, tmp_path, shape, "speculators")
    assert message == "has no key aux_hidden_state_layer_ids"
    shape = TinyDrafter(draft_ids=(1, 2), config={"draft_vocab_size": 3})
    message = refusal(FileFormatError, tmp_path, shape, "speculators")
    assert message == "draft_vocab_size is 3, d2t has 2 values"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ('{"hidden_size": NaN, "architectures": ["DFlashDraftModel"]}', "has no key"),
    ],
)
def test_damaged_json(tmp_path: Path, text: str, message: str) -> None:
    folder = TinyDrafter().write_folder(tmp_path / "folder")
    (folder / "config.json").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        DrafterFile.open(folder)


def test_unknown_notes_are_harmless(tmp_path: Path) -> None:
    inner = {"num_anchors": 4096, "loss_decay_gamma": 7.0, "mask_token": "<|MASK|>"}
    assert json.dumps(read(tmp_path, TinyDrafter(inner=inner)).target_layer_ids) == "[0, 2, 3]"
