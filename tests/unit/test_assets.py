"""Shipped drafters: the index, how a target is recognised, what a session does with it."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft import hub
from blockdraft.assets import asset_folder, find_shipped, read_index
from blockdraft.cli import main
from blockdraft.config import NO_CORPUS, DraftConfig, SamplingParams
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.hub import NAMED_MODELS
from blockdraft.session import Session
from blockdraft.session.drafting import vocabulary_of
from blockdraft.speculative import write_suffix_corpus
from blockdraft.weights.gguf import GGUFFile
from tests.native_dflash import network
from tests.tiny import bpe_vocabulary

Output = pytest.CaptureFixture[str]
GREEDY = SamplingParams(temperature=0, seed=0)
TOKENS = {"tokenizer.ggml.tokens": bpe_vocabulary(299)["tokenizer.ggml.tokens"]}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def described(path: Path, command: str) -> dict[str, str]:
    return {"file": path.name, "sha256": sha256_of(path), "command": command}


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


@pytest.fixture
def shipped(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of assets for the tiny target, a drafter and a corpus; the drafter's path."""
    folder = tmp_path / "assets"
    folder.mkdir()
    drafter = replace(network(), config=TOKENS).write_gguf(folder / "tiny.gguf")
    corpus = folder / "tiny.suffixes"
    with GGUFFile.open(target) as file:
        write_suffix_corpus(corpus, [np.arange(20, dtype=np.int32)], vocabulary_of(file))
    entry = {
        "target": "tiny",
        "target_bytes": target.stat().st_size,
        "drafter": described(drafter, "blockdraft train -m tiny"),
        "suffix_corpus": described(corpus, "blockdraft train suffixes -m tiny"),
    }
    (folder / "index.json").write_text(json.dumps({sha256_of(target): entry}))
    monkeypatch.setattr("blockdraft.assets.index.asset_folder", lambda: folder)
    return drafter


def load(target: Path, *settings: Any, **options: Any) -> Session:
    drafting = DraftConfig(*settings, **options)
    return Session.load(target, num_threads=1, ctx_size=128, drafting=drafting)


def drafted_by(session: Session) -> tuple[str, int] | None:
    stats = session.generate("the rain", params=GREEDY, max_tokens=6).stats
    return None if stats is None else (stats.type_name, stats.block_size)


# --- what is really shipped


def test_every_shipped_file_is_what_the_index_says() -> None:
    named = {model.sha256: model for model in NAMED_MODELS.values()}
    for target_sha256, entry in read_index().items():
        assert entry.assets
        for asset in entry.assets:
            assert sha256_of(asset.path) == asset.sha256
            assert "blockdraft train" in asset.command
        model = named[target_sha256]
        assert (model.name, model.size_bytes) == (entry.target, entry.target_bytes)


def test_every_file_in_the_folder_is_in_the_index() -> None:
    listed = {asset.path for entry in read_index().values() for asset in entry.assets}
    found = {path for path in asset_folder().iterdir() if path.suffix in {".gguf", ".suffixes"}}
    assert found == listed


# --- the index


def test_a_target_is_known_by_its_checksum(shipped: Path, target: Path) -> None:
    entry = find_shipped(target)
    assert entry is not None
    assert entry.target == "tiny"
    assert [asset.path for asset in entry.assets] == [shipped, shipped.with_suffix(".suffixes")]
    assert entry == find_shipped(Path("not read"), sha256=sha256_of(target))
    assert find_shipped(target, sha256="0" * 64) is None


def test_a_file_of_another_size_is_not_read(shipped: Path, target: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(target.stat().st_size))
    assert find_shipped(other) is None
    other.write_bytes(b"short")
    other.chmod(0)
    assert find_shipped(other) is None


def test_a_missing_file_is_named(shipped: Path, target: Path) -> None:
    shipped.with_suffix(".suffixes").unlink()
    with pytest.raises(FileFormatError, match=r"tiny\.suffixes is missing"):
        load(target)
    shipped.unlink()
    with pytest.raises(FileFormatError, match=r"tiny\.gguf is missing"):
        load(target)


def test_what_is_not_drafted_with_need_not_be_there(shipped: Path, target: Path) -> None:
    shipped.unlink()
    assert drafted_by(load(target, "suffix")) == ("suffix", 8)
    shipped.with_suffix(".suffixes").unlink()
    assert drafted_by(load(target, "suffix", suffix_corpus=NO_CORPUS)) == ("suffix", 8)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"00": {}}',
        json.dumps({"0" * 64: {"target": "a", "target_bytes": "1"}}),
        json.dumps({"0" * 64: {"target": "a", "target_bytes": 1, "drafter": "b.gguf"}}),
    ],
    ids=["list", "no-json", "no-checksum", "no-number", "no-file"],
)
def test_a_damaged_index_is_named(shipped: Path, target: Path, text: str) -> None:
    (shipped.parent / "index.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"index\.json is damaged"):
        find_shipped(target)


# --- what the hub knows


def test_a_verified_download_need_not_be_read(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(target.read_bytes())
    assert hub.verified_sha256(path) is None
    status = path.stat()
    stamp = tmp_path / "model.gguf.verified"
    stamp.write_text(f"{'a' * 64} {status.st_size} {status.st_mtime_ns}\n")
    assert hub.verified_sha256(path) == "a" * 64
    path.write_bytes(b"changed")
    assert hub.verified_sha256(path) is None
    stamp.write_bytes(b"\xff")
    assert hub.verified_sha256(path) is None


# --- sessions


def test_a_session_finds_the_shipped_drafter(
    shipped: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="blockdraft"):
        assert drafted_by(load(target)) == ("ngram+suffix+dflash", 16)
    assert f"drafting with {shipped}, made for tiny" in caplog.text
    assert drafted_by(load(target, "dflash")) == ("dflash", 16)
    assert drafted_by(load(target, policy="fixed")) == ("dflash", 4)
    assert drafted_by(load(target, "dflash", policy="fixed", draft_n_max=2)) == ("dflash", 3)
    assert drafted_by(load(target, policy="fixed", draft_p_min=0.1)) == ("dflash", 4)


def test_it_is_left_out_where_something_else_is_asked_for(shipped: Path, target: Path) -> None:
    shipped.unlink()
    assert drafted_by(load(target, "ngram")) == ("ngram", 8)
    assert drafted_by(load(target, "none")) is None


def test_an_unknown_target_gets_ngrams(shipped: Path, tiny_model: Callable[..., Path]) -> None:
    other = tiny_model("llama", "Q8_0", layers=5, seed=1)
    assert drafted_by(load(other)) == ("ngram+suffix", 8)
    with pytest.raises(ConfigError, match="no drafter is given, and none comes with blockdraft"):
        load(other, "dflash")
    with pytest.raises(ConfigError, match="drafts of ngram have no probability"):
        load(other, draft_p_min=0.5, policy="fixed")


def test_another_drafter_takes_its_place(shipped: Path, target: Path, tmp_path: Path) -> None:
    other = network(block_size=6).write_folder(tmp_path / "other")
    shipped.unlink()
    assert drafted_by(load(target, None, str(other))) == ("ngram+suffix+dflash", 16)
    assert drafted_by(load(target, None, str(other), policy="fixed")) == ("dflash", 6)


# --- command lines


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "ngram+suffix+dflash"),
        (["-md", "auto"], "ngram+suffix+dflash"),
        (["--spec-policy", "fixed"], "dflash"),
        (["--spec-type", "suffix,dflash"], "suffix+dflash"),
        (["-md", "none"], "ngram+suffix"),
        (["-md", "none", "--spec-policy", "fixed"], "ngram"),
        (["--spec-type", "ngram"], "ngram"),
        (["--spec-type", "none"], None),
    ],
)
def test_flags_turn_it_on_and_off(
    flags: list[str], expected: str | None, shipped: Path, target: Path, capsys: Output
) -> None:
    line = ["run", "hi", "-m", str(target), "-t", "1", "-n", "4", "-c", "64", "--json"]
    assert main([*line, *flags]) == 0
    found = json.loads(capsys.readouterr().out)["speculation"]
    assert (found and found["type"]) == expected


def test_inspect_shows_it_when_asked(shipped: Path, target: Path, capsys: Output) -> None:
    for flags, expected in (([], None), (["-md", "none"], None), (["-md", "auto"], str(shipped))):
        assert main(["inspect", str(target), "--json", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.get("drafter", {}).get("file") == expected
