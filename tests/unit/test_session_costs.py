"""Costs of passes are measured once and kept."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft.models.target import TargetModel, load_target
from blockdraft.session.costs import cpu_name, load_costs
from blockdraft.speculative.costs import CostModel

TinyModel = Callable[..., Path]


@pytest.fixture
def path(tiny_model: TinyModel, tmp_path: Path) -> Path:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(tiny_model("llama", "Q4_0").read_bytes())
    return copy


def load(path: Path, num_threads: int = 1) -> tuple[TargetModel, CostModel]:
    target = load_target(path, num_threads=num_threads, max_rows=32)
    return target, load_costs(target, None, [path], cache_dir=path.parent / "models")


def kept(path: Path) -> list[Path]:
    return sorted((path.parent / "costs").iterdir())


def test_what_was_measured_is_used_again(path: Path) -> None:
    _, first = load(path)
    (file,) = kept(path)
    costs = first.to_json()
    costs["verify"] = [[1, 1e-9], [16, 2e-9]]  # nothing is that fast
    file.write_text(json.dumps(costs))
    assert load(path)[1].to_json() == costs


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_what_a_busy_machine_measured_is_measured_anew(path: Path, rows: int) -> None:
    """Other work may have met passes of one size only."""
    _, first = load(path)
    (file,) = kept(path)
    costs = first.to_json()
    costs["verify"] = [[1, 1e-9], [rows, 30.0]] if rows > 1 else [[1, 30.0]]
    file.write_text(json.dumps(costs))
    _, again = load(path)
    assert again.verify.seconds(rows) < 30
    assert CostModel.from_json(json.loads(file.read_text())).to_json() == again.to_json()


def test_another_number_of_threads_is_measured_anew(path: Path) -> None:
    load(path)
    load(path, num_threads=2)
    assert len(kept(path)) == 2


def test_another_file_of_the_name_is_measured_anew(path: Path) -> None:
    load(path)
    os.utime(path, ns=(1, 1))
    load(path)
    assert len(kept(path)) == 2


def test_damaged_costs_are_measured_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(path)
    (file,) = kept(path)
    file.write_text('{"verify": [[1')
    with caplog.at_level(logging.WARNING):
        load(path)
    assert "measuring costs again" in caplog.text
    CostModel.from_json(json.loads(file.read_text()))


def test_a_folder_that_cannot_be_written_is_no_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path.parent / "costs").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        load(path)
    assert "costs are not kept" in caplog.text


def test_the_processor_has_a_name() -> None:
    assert cpu_name()
