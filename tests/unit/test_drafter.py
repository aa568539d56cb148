"""Drafters on disk: two formats, one set of names, checks against the target."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from blockdraft.errors import BlockdraftError, ConfigError, FileFormatError, UnsupportedError
from blockdraft.ops.torch import Place, TorchContext
from blockdraft.weights.drafter import DrafterFile, check_fits
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights, PackedWeights
from tests.drafting import TorchDrafter
from tests.tiny_drafter import LAYOUTS, TinyDrafter

SHAPES = {
    "dflash": TinyDrafter(kinds=("sliding", "full"), is_causal=False),
    "dflash2": TinyDrafter(is_dflash2=True, is_causal=False, attention_bias=True),
    "reduced": TinyDrafter(draft_ids=(1, 5, 9, 100, 130), is_causal=False),
    "own tables": TinyDrafter(
        is_causal=False,
        extra={
            name: np.random.default_rng(1).standard_normal((131, 64)).astype(np.float32)
            for name in ("embed_tokens.weight", "lm_head.weight")
        },
    ),
}


def refusal(kind: type[BlockdraftError], path: Path) -> str:
    with pytest.raises(kind) as caught:
        DrafterFile.open(path)
    assert type(caught.value) is kind
    return str(caught.value).removeprefix(f"{path}").removeprefix(": ")


def folder_refusal(
    kind: type[BlockdraftError], path: Path, shape: TinyDrafter, layout: str = "new"
) -> str:
    return refusal(kind, shape.write_folder(path, layout))


# --- two formats


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHAPES)
def test_both_formats_hold_the_same_drafter(tmp_path: Path, name: str, layout: str) -> None:
    shape = SHAPES[name]
    folder_path = shape.write_folder(tmp_path / "folder", layout)
    with (
        DrafterFile.open(folder_path) as folder,
        DrafterFile.open(shape.write_gguf(tmp_path / "file.gguf")) as file,
    ):
        config = folder.config
        assert file.config == replace(
            config,
            name="tiny drafter",
            num_target_layers=None,
            norm_eps=file.config.norm_eps,
            rope=file.config.rope,
        )
        assert file.config.norm_eps == pytest.approx(config.norm_eps)
        assert file.config.rope.theta == config.rope.theta
        assert folder.tensors.keys() == file.tensors.keys()
        for tensor in set(folder.tensors) - {"d2t"}:
            assert folder.tensor(tensor).shape == file.tensor(tensor).shape
            assert np.array_equal(folder.read(tensor), file.read(tensor))
        if shape.draft_ids is not None:
            for each in (folder, file):
                ids = each.vocab_map()
                assert ids is not None
                assert ids.tolist() == list(shape.draft_ids)
        else:
            assert folder.vocab_map() is None


def test_llama_cpps_writer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "drafter.gguf"
    shape = TinyDrafter(kinds=("sliding", "full"))
    writer = gguf.GGUFWriter(path, "dflash")
    for key, value in shape.keys().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    with DrafterFile.open(shape.write_gguf(tmp_path / "ours.gguf")) as ours:
        for name, info in ours.tensors.items():
            writer.add_tensor(name, ours.read(name).view("<f4").reshape(info.shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with DrafterFile.open(path) as theirs:
            assert theirs.config == ours.config
            assert all(np.array_equal(theirs.read(n), ours.read(n)) for n in ours.tensors)


def test_both_formats_draft_the_same(tmp_path: Path) -> None:
    shape = SHAPES["dflash2"]
    embedding, head = torch.randn(2, 131, 64, generator=torch.Generator().manual_seed(0))
    paths = shape.write_folder(tmp_path / "folder"), shape.write_gguf(tmp_path / "file.gguf")
    logits = []
    for path in paths:
        drafter, context = TorchDrafter(path, embedding, head), TorchContext()
        drafter.inject([context], [torch.ones(5, drafter.config.feature_size)])
        (drafted,) = drafter.draft([Place(context, 5)], [1])
        logits.append(drafted.logits)
    torch.testing.assert_close(*logits)


def test_the_native_core_packs_both(tmp_path: Path) -> None:
    shape = SHAPES["dflash2"]
    paths = shape.write_folder(tmp_path / "folder"), shape.write_gguf(tmp_path / "file.gguf")
    for path in paths:
        with DrafterFile.open(path) as file:
            packed, floats = PackedWeights(file), FloatWeights(file)
            matrix = packed.matrix("fc.weight")
            assert np.array_equal(matrix.dequantize(0, 64), floats.matrix("fc.weight"))
            assert floats.vector("blk.1.attn_conv_base").shape == (2 * 2 * 64,)


# --- the target


def test_a_drafter_of_the_target_fits(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    with GGUFFile.open(tiny_model("qwen3", layers=4)) as file:
        target = read_model_config(file)
    shape = TinyDrafter(vocab_size=299, num_target_layers=4)
    config = DrafterFile.open(shape.write_folder(tmp_path / "folder")).config
    check_fits(config, target)
    for change, message in (
        ({"hidden_size": 96}, "its width is 96, the target's is 64"),
        ({"vocab_size": 300}, "its number of tokens is 300, the target's is 299"),
        ({"num_target_layers": 5}, "its number of target layers is 5, the target's is 4"),
        ({"target_layer_ids": (1, 4)}, "it reads layer 4, the target's last is 3"),
    ):
        with pytest.raises(ConfigError, match="does not fit the target") as caught:
            check_fits(replace(config, **change), target)
        assert str(caught.value).endswith(message)
    check_fits(replace(config, num_target_layers=None), target)


# --- what neither format's reader sees alone


def test_contradictions_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    cases: list[tuple[TinyDrafter, str]] = [
        (TinyDrafter(mask_token_id=131), "the mask token is 131 of 131 tokens"),
        (TinyDrafter(is_dflash2=True, hidden=96, group_size=20), "width 96 have no groups of 20"),
        (TinyDrafter(is_dflash2=True, top_k=132), "132 candidates of 131 tokens"),
        (
            TinyDrafter(inner={"target_layer_ids": [0, 1]}),
            "tensor fc.weight is 64 x 192; 2 target features of width 64 need 64 x 128",
        ),
        (
            TinyDrafter(config={"num_hidden_layers": 3, "layer_types": None}),
            "has no tensor 'layers.2.input_layernorm.weight'",
        ),
        (
            TinyDrafter(config={"num_key_value_heads": 4}),
            "tensor layers.0.self_attn.k_proj.weight is 64 x 64; 4 KV heads of 32 need 128 x 64",
        ),
        (TinyDrafter(config={"attention_bias": True}), "has no tensor 'layers.0.self_attn.q_proj"),
    ]
    for shape, message in cases:
        assert message in folder_refusal(FileFormatError, folder, shape)


def test_unsupported_drafters_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    sinks = {"layers.0.self_attn.sinks": np.zeros(4, np.float32)}
    cases: list[tuple[TinyDrafter, str]] = [
        (TinyDrafter(target_layer_ids=(2, 1)), "reads target layers [2, 1]; only ascending ones"),
        (
            TinyDrafter(is_dflash2=True, draft_ids=(1, 2, 3)),
            "a candidate selector and a reduced vocabulary of 3",
        ),
        (
            TinyDrafter(kinds=("sliding",), window=3),
            "the window of 3 is smaller than the block of 4",
        ),
        (
            TinyDrafter(extra=sinks),
            "tensor layers.0.self_attn.sinks has no place in a drafter of 2 layers",
        ),
    ]
    for shape, message in cases:
        assert message in folder_refusal(UnsupportedError, folder, shape)


@pytest.mark.parametrize(
    ("draft_ids", "message"),
    [
        ((1, 131), "row 1 of d2t gives token 131 of 131"),
        ((-1, 3), "row 0 of d2t gives token -1 of 131"),
        ((4, 4), "d2t gives a token twice"),
    ],
)
def test_vocabulary_maps_are_checked(
    tmp_path: Path, draft_ids: tuple[int, ...], message: str
) -> None:
    shape = TinyDrafter(draft_ids=draft_ids)
    for path in (shape.write_folder(tmp_path / "folder"), shape.write_gguf(tmp_path / "f.gguf")):
        with DrafterFile.open(path) as file, pytest.raises(FileFormatError) as caught:
            file.vocab_map()
        assert str(caught.value).endswith(message)


def test_maps_must_be_integers_and_have_a_head(tmp_path: Path) -> None:
    shape = TinyDrafter(extra={"d2t": np.zeros(3, np.float32)})
    folder = shape.write_folder(tmp_path / "folder")
    assert refusal(FileFormatError, folder) == "has no tensor 'lm_head.weight'"
    head = np.zeros((3, 64), np.float32)
    shape = TinyDrafter(extra={"d2t": np.zeros(3, np.float32), "lm_head.weight": head})
    with (
        DrafterFile.open(shape.write_folder(folder)) as file,
        pytest.raises(FileFormatError, match="d2t has type F32; it must be I32 or I64"),
    ):
        file.vocab_map()


# --- folders


def test_training_leftovers_are_ignored(tmp_path: Path) -> None:
    extra = {"t2d": np.ones(131, bool), "verifier_norm.weight": np.ones(64, np.float32)}
    shape = replace(SHAPES["reduced"], extra=extra)
    with DrafterFile.open(shape.write_folder(tmp_path / "folder", "speculators")) as file:
        assert "t2d" not in file.tensors


def test_names_may_have_a_prefix_or_a_suffix(tmp_path: Path) -> None:
    shape = SHAPES["dflash2"]
    folder = shape.write_folder(tmp_path / "folder")
    renamed = {
        f"model.{name}" + (".weight" if name.endswith("codebook") else ""): values
        for name, values in shape.tensors().items()
    }
    with DrafterFile.open(folder) as plain:
        save_file(renamed, folder / "model.safetensors")
        with DrafterFile.open(folder) as file:
            assert file.tensors.keys() == plain.tensors.keys()
    renamed["fc.weight"] = renamed["model.fc.weight"]
    save_file(renamed, folder / "model.safetensors")
    assert "are one tensor" in refusal(FileFormatError, folder)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = TinyDrafter().write_folder(tmp_path / "folder")
    (folder / "mask_embedding.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedError, match=r"mask_embedding.pt: is a pickle"):
        DrafterFile.open(folder)
    save_file({"mask_embedding": np.ones(64, np.float32)}, folder / "mask_embedding.safetensors")
    with DrafterFile.open(folder) as file:
        assert file.config.mask_embedding
        assert FloatWeights(file).vector("mask_embedding").tolist() == [1.0] * 64


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(FileFormatError, tmp_path / "none.gguf")
    with pytest.raises(FileFormatError, match=r"config.json: cannot be read: No such file"):
        DrafterFile.open(tmp_path)


def test_a_closed_drafter_keeps_its_configuration(tmp_path: Path) -> None:
    file = DrafterFile.open(TinyDrafter().write_folder(tmp_path / "folder"))
    file.close()
    file.close()
    assert file.config.hidden_size == 64
    with pytest.raises(FileFormatError, match=r"has no tensor 'layers.7.mlp.up_proj.weight'"):
        file.read("blk.7.ffn_up.weight")
