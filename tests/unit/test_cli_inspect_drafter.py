"""``blockdraft inspect TARGET -md DRAFTER``: what a drafter adds, without loading either."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.cli import main
from blockdraft.cli.inspect import describe
from blockdraft.config import DraftConfig
from blockdraft.kv_cache import KVLayout
from blockdraft.models.target import MAX_ROWS
from blockdraft.ops.native import NativeOps
from blockdraft.session import Session
from blockdraft.weights.drafter import DrafterFile
from tests.native_dflash import HIDDEN, NETWORKS, VOCAB_SIZE, load_network, load_tapped, network
from tests.tiny import bpe_vocabulary
from tests.tiny_drafter import TinyDrafter

Output = pytest.CaptureFixture[str]
TOKENS = {"tokenizer.ggml.tokens": bpe_vocabulary(VOCAB_SIZE)["tokenizer.ggml.tokens"]}


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


def drafter_of(shape: TinyDrafter, folder: Path, target: Path, ctx_size: int | None = None) -> Any:
    path = shape.write_folder(folder)
    return describe(target, ctx_size, str(path))["drafter"]


def test_the_network_is_described(target: Path, tmp_path: Path) -> None:
    shape = network(is_dflash2=True, kinds=("sliding", "full", "sliding"), window=30)
    info = drafter_of(shape, tmp_path / "x", target)
    memory = info.pop("memory")
    parameters = sum(values.size for values in shape.tensors().values())
    assert info == {
        "file": str(tmp_path / "x"),
        "type": "dflash2",
        "name": "x",
        "parameters": parameters,
        "layers": 3,
        "block_size": 4,
        "target_layers": [0, 2, 3],
        "window": 30,
        "windowed_layers": 2,
        "own_embedding": False,
        "own_head": False,
    }
    assert list(memory) == [
        "weight_bytes",
        "kv_bytes_per_token",
        "context",
        "kv_bytes",
        "workspace_bytes",
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_what_loading_packs(name: str, target: Path, tmp_path: Path) -> None:
    shape = NETWORKS[name]
    said = drafter_of(shape, tmp_path / "said", target)["memory"]["weight_bytes"]
    loaded = load_network(shape, tmp_path / "loaded", load_tapped(target))
    vectors = sum(v.size for v in shape.tensors().values() if v.ndim != 2)
    assert said == loaded.weight_bytes + 4 * vectors


def test_the_targets_tables_are_not_counted(target: Path, tmp_path: Path) -> None:
    table = np.zeros((VOCAB_SIZE, HIDDEN), np.float32)
    info = drafter_of(network(), tmp_path / "a", target)
    for own in (["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]):
        extra = {f"{name}.weight": table for name in own}
        shape = replace(network(), extra=extra)
        other = drafter_of(shape, tmp_path / "_".join(own), target)
        assert (other["own_embedding"], other["own_head"]) == (
            "embed_tokens" in own,
            "lm_head" in own,
        )
        more = other["memory"]["weight_bytes"] - info["memory"]["weight_bytes"]
        assert len(own) * table.nbytes <= more <= 1.1 * len(own) * table.nbytes


@pytest.mark.parametrize("name", NETWORKS)
def test_cache_is_what_the_engine_promises(name: str, target: Path, tmp_path: Path) -> None:
    folder = NETWORKS[name].write_folder(tmp_path / "x")
    with DrafterFile.open(folder) as file:
        layout = KVLayout.from_config(file.config)
    memory = describe(target, 700, str(folder))["drafter"]["memory"]
    assert memory["context"] == 700
    assert memory["kv_bytes_per_token"] == layout.bytes_per_token
    # The default policy's tree has 15 drafts, more than the block.
    assert memory["kv_bytes"] == layout.max_bytes(715, rows_per_pass=MAX_ROWS)
    session = Session.load(target, num_threads=1, drafting=DraftConfig(drafter=str(folder)))
    plain = Session.load(target, num_threads=1, drafting=DraftConfig("none"))
    added = [s.engine._scheduler.bytes_needed(700, has_drafts=True) for s in (session, plain)]
    assert memory["kv_bytes"] == added[0] - added[1]


def test_a_windowed_drafter_keeps_only_its_window(target: Path, tmp_path: Path) -> None:
    kv_bytes = {
        (name, context): drafter_of(NETWORKS[name], tmp_path / name, target, context)["memory"][
            "kv_bytes"
        ]
        for name in ("dflash", "dflash, window")
        for context in (1000, 2000)
    }
    assert kv_bytes["dflash", 2000] > 1.9 * kv_bytes["dflash", 1000]
    assert kv_bytes["dflash, window", 2000] == kv_bytes["dflash, window", 1000]
    assert kv_bytes["dflash, window", 2000] < kv_bytes["dflash", 2000] / 3


@pytest.mark.parametrize("name", NETWORKS)
def test_workspace_is_about_that_of_both_passes(
    name: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[int] = []
    original = NativeOps._take

    def take(self: NativeOps, cols: int) -> int:
        before = len(self._cols)
        buffer = original(self, cols)
        if len(self._cols) > before and cols != VOCAB_SIZE:  # few rows have logits
            columns.append(cols)
        return buffer

    tapped = load_tapped(target, max_rows=MAX_ROWS)
    monkeypatch.setattr(NativeOps, "_take", take)
    load_network(NETWORKS[name], tmp_path / "loaded", tapped)
    said = drafter_of(NETWORKS[name], tmp_path / "said", target)["memory"]["workspace_bytes"]
    features = 3 * HIDDEN  # the target's buffer of them
    assert said == pytest.approx(4 * MAX_ROWS * (sum(columns) + features), rel=0.1)


def test_json_and_text_say_the_same(target: Path, tmp_path: Path, capsys: Output) -> None:
    shape = replace(NETWORKS["dflash, window"], config=TOKENS)
    path = shape.write_gguf(tmp_path / "d.gguf")
    line = ["inspect", str(target), "-md", str(path), "-c", "512"]
    assert main([*line, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info == describe(target, 512, str(path))
    assert main(line) == 0
    shown = capsys.readouterr().out
    memory = info["drafter"]["memory"]
    for text in (
        f"drafter        {path} (tiny drafter)\n",
        "  network      dflash, 0.1 million parameters, 2 layers\n",
        "  block        4, that is up to 3 drafts\n",
        "  reads        the outputs of target layers 0, 2, 3\n",
        f"  weights      {memory['weight_bytes'] / 1e6:.1f} MB packed, embedding and head are the"
        " target's\n",
        f"  K/V          {memory['kv_bytes_per_token'] / 1024:.1f} KiB per token, a window of 9 in"
        f" 2 layers, {memory['kv_bytes'] / 1e6:.1f} MB at 512 tokens\n",
        f"  workspace    about {memory['workspace_bytes'] / 1e6:.1f} MB\n",
    ):
        assert text in shown


def test_own_tables_are_named(target: Path, tmp_path: Path, capsys: Output) -> None:
    path = network(has_coin_head=True).write_folder(tmp_path / "coins")
    assert main(["inspect", str(target), "-md", str(path)]) == 0
    assert " packed, with its own head\n" in capsys.readouterr().out


def test_without_a_drafter_nothing_is_said_of_one(target: Path, capsys: Output) -> None:
    assert main(["inspect", str(target), "--json"]) == 0
    assert "drafter" not in json.loads(capsys.readouterr().out)


def test_a_drafter_of_another_target_is_refused(
    target: Path, tmp_path: Path, capsys: Output
) -> None:
    path = network(hidden=96).write_folder(tmp_path / "wide")
    assert main(["inspect", str(target), "-md", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "its width is 96, the target's is 64" in shown.err
    assert main(["inspect", str(target), "-md", str(tmp_path / "no.gguf")]) == 2
    assert "there is no file" in capsys.readouterr().err
