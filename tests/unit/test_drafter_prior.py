"""What a drafter's file says of its acceptance: written, read, checked, added afterwards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import FileFormatError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_prior import add_accepted
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.drafter_writer import write_drafter_folder, write_drafter_gguf
from blockdraft.weights.gguf import GGUFFile
from tests.native_dflash import network

SHARES = (0.5, 0.25, 0.125)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return network().write_folder(tmp_path / "drafter")


def write(kind: str, source: Path, tiny_model: Callable[..., Path], output: Path) -> Path:
    """The drafter once more, in one of both formats, without figures."""
    with DrafterFile.open(source) as file:
        values = DrafterValues(file)
        if kind == "folder":
            write_drafter_folder(output, file.config, values)
        else:
            with GGUFFile.open(tiny_model("llama", "Q8_0", layers=5)) as target:
                write_drafter_gguf(output, file.config, values, type_name="q8_0", target=target)
    return output


def accepted(path: Path) -> tuple[float, ...]:
    with DrafterFile.open(path) as file:
        return file.config.accepted


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_figures_are_added_and_nothing_else_changes(
    kind: str, folder: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(kind, folder, tiny_model, tmp_path / f"new.{kind}")
    assert accepted(path) == ()
    with DrafterFile.open(path) as file:
        config, before = file.config, {name: file.read(name).tobytes() for name in file.tensors}
    for shares in ((0.4, 0.4), (0.5, 0.25, 0.3)):
        add_accepted(path, shares)
    with DrafterFile.open(path) as file:
        assert file.config == replace(config, accepted=(0.5, 0.25, 0.25))
        assert {name: file.read(name).tobytes() for name in file.tensors} == before


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_copy_keeps_them(
    kind: str, folder: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    add_accepted(folder, SHARES)
    assert accepted(write(kind, folder, tiny_model, tmp_path / f"new.{kind}")) == SHARES


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([0.5, 0.6], "it must be at most 3 shares from 1 down to 0"),
        ([0.5, 0.4, 0.3, 0.2], "it must be at most 3 shares"),
        ([1.5], r"it must be a list of numbers in \[0, 1\]"),
        (["a"], "it must be a list of numbers"),
        (0.5, "it must be a list of numbers"),
    ],
)
def test_what_cannot_be_is_refused(shares: Any, message: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["accepted_by_position"] = shares
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileFormatError, match=f"accepted_by_position is .*{message}"):
        DrafterFile.open(folder)
