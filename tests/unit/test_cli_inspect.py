"""``blockdraft inspect``: a description without loading weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.cli.inspect import describe
from blockdraft.kv_cache import KVLayout
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from tests.tiny import ARCHITECTURES, VOCAB_SIZE, Tiny

Output = pytest.CaptureFixture[str]
Model = Callable[..., Path]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sizes_are_the_files(arch: str, tiny_model: Model) -> None:
    path = tiny_model(arch)
    tiny = Tiny(arch)
    info = describe(path, None)
    assert info["architecture"] == arch
    assert (info["layers"], info["hidden_size"]) == (tiny.num_layers, tiny.hidden_size)
    assert info["parameters"] == sum(r * c for r, c in tiny.matrices().values()) + sum(
        tiny.vectors().values()
    )
    assert info["file_bytes"] == path.stat().st_size


def test_shares_of_the_mix_add_up(tiny_model: Model) -> None:
    mix = describe(tiny_model("llama", "Q4_0"), None)["tensors"]
    assert {kind["type"] for kind in mix} == {"Q4_0", "F32"}
    assert sum(kind["share"] for kind in mix) == pytest.approx(1)
    assert sum(kind["tensors"] for kind in mix) == len(Tiny().matrices()) + len(Tiny().vectors())


def test_memory_follows_the_context(tiny_model: Model) -> None:
    path = tiny_model("gemma3")
    with GGUFFile.open(path) as file:
        layout = KVLayout.from_config(read_model_config(file))
    small, large = (describe(path, size)["memory"] for size in (64, 2048))
    assert small["kv_bytes_per_token"] == layout.bytes_per_token
    assert small["kv_bytes"] < large["kv_bytes"] < 2048 * layout.bytes_per_token
    assert small["weight_bytes"] == large["weight_bytes"] > 0


def test_tokenizer_is_described(tiny_model: Model) -> None:
    assert describe(tiny_model("llama"), None)["tokenizer"] == {
        "kind": "gpt2",
        "pre": "smollm",
        "vocab_size": VOCAB_SIZE,
        "special_ids": {"bos": 1, "eos": 2},
        "chat_template": True,
    }


def test_json_is_the_description(tiny_model: Model, capsys: Output) -> None:
    path = tiny_model()
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(path, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"arch": "gemma3"}, ["window         8 tokens in 5 layers", "chat template  no"]),
        ({"arch": "qwen2"}, ["head           its own matrix", "pre-tokenizer qwen2"]),
        ({"arch": "llama"}, ["head           the embedding table", "chat template  yes"]),
    ],
    ids=["gemma3", "qwen2", "llama"],
)
def test_text_says_it_too(
    options: dict[str, Any], expected: list[str], tiny_model: Model, capsys: Output
) -> None:
    assert main(["inspect", str(tiny_model(**options))]) == 0
    shown = capsys.readouterr().out
    for line in expected:
        assert line in shown


def test_context_beyond_the_models_is_refused(tiny_model: Model, capsys: Output) -> None:
    assert main(["inspect", str(tiny_model()), "-c", "4096"]) == 2
    assert "--ctx-size is 4096" in capsys.readouterr().err


def test_other_files_are_refused(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK" * 50)
    assert main(["inspect", str(tmp_path / "x.gguf")]) == 2
    assert "is not a GGUF file" in capsys.readouterr().err
