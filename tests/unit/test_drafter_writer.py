"""Drafters written as folders and as GGUF, and read back by our readers and the oracles'."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray

from blockdraft.config import DrafterConfig, RopeConfig, SelectorConfig
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_names import VOCAB_MAP
from blockdraft.weights.drafter_types import FILE_TYPES
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.drafter_writer import (
    FOLDER_DTYPES,
    write_drafter_folder,
    write_drafter_gguf,
)
from blockdraft.weights.gguf import GGUFFile
from tests.tiny_drafter import TinyDrafter

Tensors = dict[str, NDArray[Any]]

SHAPES = {
    "dflash": TinyDrafter(is_causal=False),
    "windows": TinyDrafter(kinds=("sliding", "full"), is_causal=False),
    "causal": TinyDrafter(is_causal=True),
    "dflash2": TinyDrafter(is_dflash2=True, is_causal=False, rank=32, hidden=256),
    "reduced": TinyDrafter(draft_ids=(1, 5, 9, 100, 130), is_causal=False),
    "own tables": TinyDrafter(
        is_causal=False,
        extra={
            name: np.random.default_rng(1).standard_normal((131, 64)).astype(np.float32)
            for name in ("embed_tokens.weight", "lm_head.weight")
        },
    ),
    "scales": TinyDrafter(
        is_causal=False,
        inner={
            "input_embedding_scale": 8.0,
            "output_multiplier": 0.4,
            "final_logit_softcapping": 2.5,
        },
        config={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "yarn": TinyDrafter(
        is_causal=False,
        config={
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "linear": TinyDrafter(
        is_causal=False, config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    ),
    "biases": TinyDrafter(attention_bias=True, is_causal=False),
}
FOLDER_ONLY = {
    "mixed causality": TinyDrafter(kinds=("sliding", "full")),
    "mask": TinyDrafter(is_causal=False, extra={"mask_embedding": np.ones(64, np.float32)}),
    "llama3": TinyDrafter(
        is_causal=False, config={"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    ),
    "yarn with a factor": TinyDrafter(
        is_causal=False,
        config={"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9}},
    ),
}
PLAIN = SHAPES["dflash"]


def read(path: Path) -> tuple[DrafterConfig, Tensors]:
    with DrafterFile.open(path) as file:
        return file.config, dict(DrafterValues(file))


def source(folder: Path, shape: TinyDrafter = PLAIN) -> tuple[DrafterConfig, Tensors]:
    return read(shape.write_folder(folder / "source"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[GGUFFile]:
    """A file with a tokenizer of 131 tokens."""
    with GGUFFile.open(PLAIN.write_gguf(tmp_path / "target.gguf")) as file:
        yield file


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


# --- folders


@pytest.mark.parametrize("name", [*SHAPES, *FOLDER_ONLY])
def test_a_folder_comes_back_exactly(tmp_path: Path, name: str) -> None:
    config, tensors = source(tmp_path, {**SHAPES, **FOLDER_ONLY}[name])
    write_drafter_folder(tmp_path / "written", config, tensors, dtype="f32")
    again, values = read(tmp_path / "written")
    assert again == replace(config, name="written")
    assert same(values, tensors)


@pytest.mark.parametrize("dtype", FOLDER_DTYPES)
def test_types_of_a_folder(tmp_path: Path, dtype: str) -> None:
    config, tensors = source(tmp_path, SHAPES["reduced"])
    write_drafter_folder(tmp_path / "written", config, tensors, dtype=dtype)
    with safetensors.safe_open(tmp_path / "written" / "model.safetensors", "numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds.pop("d2t") == "I64"
    assert set(kinds.values()) == {dtype.upper()}
    assert set(kinds) == set(SHAPES["reduced"].tensors()) - {"d2t"}
    values = read(tmp_path / "written")[1]
    write_drafter_folder(tmp_path / "again", config, values, dtype=dtype)
    assert same(read(tmp_path / "again")[1], values)
    limit = {"f32": 0, "f16": 2**-11, "bf16": 2**-8}[dtype]
    assert np.array_equal(values[VOCAB_MAP], tensors[VOCAB_MAP])
    np.testing.assert_allclose(values["fc.weight"], tensors["fc.weight"], limit, 1e-7)


def test_keys_have_their_old_and_new_places(tmp_path: Path) -> None:
    config, tensors = source(tmp_path, SHAPES["dflash2"])
    write_drafter_folder(tmp_path / "written", config, tensors)
    content = json.loads((tmp_path / "written" / "config.json").read_text())
    inner = content["dflash_config"]
    assert content["architectures"] == ["DFlash2DraftModel"]
    assert content["model_type"] == "qwen3"
    assert content["dtype"] == "bfloat16"
    assert content["block_size"] == inner["block_size"] == 4
    assert content["is_causal"] is inner["causal"] is False
    assert content["num_target_layers"] == 5
    assert (inner["mask_token_id"], inner["target_layer_ids"]) == (130, [0, 2, 3])
    assert content["rope_theta"] == content["rope_parameters"]["rope_theta"] == 10000.0
    assert content["layer_types"] == ["full_attention", "full_attention"]


def test_a_mask_embedding_has_its_own_file(tmp_path: Path) -> None:
    config, tensors = source(tmp_path, FOLDER_ONLY["mask"])
    folder = tmp_path / "written"
    write_drafter_folder(folder, config, tensors)
    names = {"config.json", "model.safetensors", "mask_embedding.safetensors"}
    assert {each.name for each in folder.iterdir()} == names
    config, tensors = source(tmp_path / "other")
    write_drafter_folder(folder, config, tensors)
    assert {each.name for each in folder.iterdir()} == names - {"mask_embedding.safetensors"}


def test_numbers_of_gguf_get_short_again(tmp_path: Path, target: GGUFFile) -> None:
    config, tensors = source(tmp_path)
    path = tmp_path / "d.gguf"
    write_drafter_gguf(path, config, tensors, type_name="f16", target=target)
    write_drafter_folder(tmp_path / "written", *read(path))
    content = json.loads((tmp_path / "written" / "config.json").read_text())
    assert content["rms_norm_eps"] == 1e-6
    assert "num_target_layers" not in content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal_layers": (True, False)}, "causal layers are [True, False]; a Hugging Face"),
        ({"rope": RopeConfig(1e4, 16)}, "has rotated dimensions 16; a Hugging Face folder has"),
        ({"rope": RopeConfig(1e4, 32, interleaved=True)}, "interleaved pairs True"),
        ({"rope": RopeConfig(1e4, 32, freq_factors=(1.0,))}, "frequency factors (1.0,)"),
        ({"rope": RopeConfig(1e4, 32, attention_factor=0.5)}, "attention factor 0.5 under none"),
        ({"selector": SelectorConfig(8, 4)}, "only one of convolutions and candidate selector"),
    ],
)
def test_what_a_folder_cannot_say(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config, tensors = source(tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        write_drafter_folder(tmp_path / "written", replace(config, **change), tensors)
    assert message in str(caught.value)
    assert not (tmp_path / "written").exists()


# --- GGUF


@pytest.mark.parametrize(
    ("name", "type_name"),
    [
        *((name, "q8_0") for name in SHAPES if name not in ("dflash", "dflash2")),
        *product(("dflash", "dflash2"), FILE_TYPES),
    ],
)
def test_a_file_comes_back_within_its_type(
    tmp_path: Path, target: GGUFFile, name: str, type_name: str
) -> None:
    config, tensors = source(tmp_path, SHAPES[name])
    path = tmp_path / "d.gguf"
    write_drafter_gguf(path, config, tensors, type_name=type_name, target=target)
    again, values = read(path)
    write_drafter_folder(
        tmp_path / "written", replace(again, num_target_layers=5), values, dtype="f32"
    )
    folder_config, exported = read(tmp_path / "written")
    assert folder_config == replace(config, name="written")
    assert same(exported, values)
    limit = {"f16": 1e-3, "q8_0": 0.01, "q5_0": 0.06, "q4_0": 0.12, "q4_k_m": 0.12}[type_name]
    for tensor, expected in tensors.items():
        if expected.ndim != 2:
            assert np.array_equal(values[tensor], expected), tensor
        else:
            error = np.linalg.norm(values[tensor] - expected) / np.linalg.norm(expected)
            assert 0 < error < limit, tensor


def test_the_gguf_package_reads_a_drafter(tmp_path: Path, target: GGUFFile) -> None:
    config, tensors = source(tmp_path, replace(SHAPES["windows"], mask_token_id=7))
    path = tmp_path / "d.gguf"
    write_drafter_gguf(path, config, tensors, type_name="q8_0", target=target)
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "dflash"
    assert fields["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    assert fields["dflash.target_layers"] == [1, 3, 4]
    assert fields["dflash.block_size"] == 4
    assert fields["dflash.attention.causal"] is False
    assert fields["dflash.attention.sliding_window"] == 6
    assert fields["dflash.attention.sliding_window_pattern"] == [True, False]
    assert fields["tokenizer.ggml.tokens"] == [f"t{i}" for i in range(131)]
    assert fields["tokenizer.ggml.mask_token_id"] == 7  # the target's own is 130
    for tensor in reader.tensors:
        decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expected = tensors[tensor.name]
        np.testing.assert_allclose(decoded.reshape(expected.shape), expected, rtol=0, atol=0.03)


def test_quantized_drafters_are_values_of_their_codes(tmp_path: Path, target: GGUFFile) -> None:
    config, tensors = source(tmp_path, SHAPES["dflash2"])
    for type_name in ("q4_0", "q4_k_m"):
        path = tmp_path / f"{type_name}.gguf"
        write_drafter_gguf(path, config, tensors, type_name=type_name, target=target)
        values = read(path)[1]
        for tensor in gguf.GGUFReader(path).tensors:
            decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(decoded.reshape(values[tensor.name].shape), values[tensor.name])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (FOLDER_ONLY["mixed causality"], "causal layers are [True, False]; llama.cpp's"),
        (FOLDER_ONLY["mask"], "the drafter has a mask embedding; llama.cpp's"),
        (FOLDER_ONLY["llama3"], "has llama3 scaling; llama.cpp's"),
    ],
)
def test_what_a_file_cannot_say(
    tmp_path: Path, target: GGUFFile, shape: TinyDrafter, message: str
) -> None:
    config, tensors = source(tmp_path, shape)
    with pytest.raises(UnsupportedError) as caught:
        write_drafter_gguf(tmp_path / "d.gguf", config, tensors, type_name="f16", target=target)
    assert message in str(caught.value)
    assert not (tmp_path / "d.gguf").exists()


def test_the_tokenizer_has_to_be_the_targets(tmp_path: Path, target: GGUFFile) -> None:
    config, tensors = source(tmp_path, TinyDrafter(vocab_size=140, is_causal=False))
    with pytest.raises(ConfigError, match="its tokenizer has 131 tokens, the drafter 140"):
        write_drafter_gguf(tmp_path / "d.gguf", config, tensors, type_name="f16", target=target)


# --- both


def test_each_tensor_is_read_once(
    tmp_path: Path, target: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows = DrafterFile.read_rows
    names: list[str] = []

    def watched(self: DrafterFile, name: str, *args: Any, **options: Any) -> NDArray[np.uint8]:
        names.append(name)
        return read_rows(self, name, *args, **options)

    monkeypatch.setattr(DrafterFile, "read_rows", watched)
    with DrafterFile.open(PLAIN.write_folder(tmp_path / "source")) as file:
        values = DrafterValues(file)
        write_drafter_folder(tmp_path / "written", file.config, values)
        assert sorted(names) == sorted(file.tensors)
        names.clear()
        path = tmp_path / "d.gguf"
        write_drafter_gguf(path, file.config, values, type_name="q8_0", target=target)
        assert sorted(names) == sorted(file.tensors)


WRITERS: dict[str, Callable[[Path, DrafterConfig, Tensors, GGUFFile], None]] = {
    "folder": lambda path, config, tensors, _: write_drafter_folder(
        path, config, tensors, dtype="f16"
    ),
    "file": lambda path, config, tensors, target: write_drafter_gguf(
        path, config, tensors, type_name="q8_0", target=target
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "has no tensor fc.weight, which its configuration needs"),
        ({"extra": np.zeros(3)}, "has a tensor extra, for which its configuration has no use"),
        ({"fc.weight": np.zeros((64, 8))}, "fc.weight is 64 x 8; 3 target features of width 64"),
        ({"output_norm.weight": np.full(64, math.nan)}, "output_norm.weight has the value nan"),
        ({"output_norm.weight": np.full(64, -math.inf)}, "has the value -inf at index 0"),
        ({"blk.1.ffn_up.weight": np.full((96, 64), 7e4)}, "largest that its type holds is 65504"),
    ],
)
def test_wrong_tensors_are_refused_and_nothing_is_left(
    tmp_path: Path, target: GGUFFile, kind: str, change: dict[str, Any], message: str
) -> None:
    config, tensors = source(tmp_path)
    tensors = {k: v for k, v in {**tensors, **change}.items() if v is not None}
    write = WRITERS[kind]
    with pytest.raises(ConfigError) as caught:
        write(tmp_path / "written", config, tensors, target)
    assert message in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {"source", "target.gguf"}


def test_unknown_types_are_refused(tmp_path: Path, target: GGUFFile) -> None:
    config, tensors = source(tmp_path)
    with pytest.raises(ConfigError, match="dtype is 'q8_0'; it must be one of bf16, f16, f32"):
        write_drafter_folder(tmp_path / "written", config, tensors, dtype="q8_0")
    with pytest.raises(ConfigError, match="type is 'q3_k'; it must be one of f16"):
        write_drafter_gguf(tmp_path / "d.gguf", config, tensors, type_name="q3_k", target=target)


def test_a_failed_folder_leaves_the_earlier_one(tmp_path: Path) -> None:
    config, tensors = source(tmp_path)
    write_drafter_folder(tmp_path / "written", config, tensors, dtype="f32")
    before = {each: each.read_bytes() for each in (tmp_path / "written").iterdir()}
    tensors["blk.1.ffn_down.weight"] = np.full_like(tensors["blk.1.ffn_down.weight"], math.nan)
    with pytest.raises(ConfigError):
        write_drafter_folder(tmp_path / "written", config, tensors, dtype="f32")
    assert {each: each.read_bytes() for each in (tmp_path / "written").iterdir()} == before
