import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.safetensors import SafetensorsFolder

INDEX = "model.safetensors.index.json"


def arrays() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((5, 32)).astype(np.float32),
        "half": rng.standard_normal((3, 32)).astype(np.float16),
        "map": np.arange(7),
        "flags": np.array([True, False, True]),
    }


def write(folder: Path, **changes: Any) -> Path:
    save_file({**arrays(), **changes}, folder / "model.safetensors")
    return folder


def test_values_come_back(tmp_path: Path) -> None:
    with SafetensorsFolder.open(write(tmp_path)) as file:
        assert {name: info.shape for name, info in file.tensors.items()} == {
            name: values.shape for name, values in arrays().items()
        }
        for name, values in arrays().items():
            assert file.read(name).tobytes() == values.tobytes()
        rows = np.zeros(500, np.uint8)
        part = file.read_rows("w", 1, 3, out=rows)
        assert part.tobytes() == arrays()["w"][1:4].tobytes()
        assert np.shares_memory(part, rows)


def test_bfloat16_needs_no_torch_to_read(tmp_path: Path) -> None:
    values = torch.randn(4, 32).bfloat16()
    safetensors.torch.save_file(
        {"w": values, "v": values[0].clone()}, tmp_path / "model.safetensors"
    )
    with SafetensorsFolder.open(tmp_path) as file:
        weights = FloatWeights(file)
        assert np.array_equal(weights.matrix("w"), values.float().numpy())
        assert np.array_equal(weights.vector("v"), values[0].float().numpy())


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    bad = arrays()["w"]
    bad[2, 3] = np.nan
    with SafetensorsFolder.open(write(tmp_path, w=bad, v=bad[2])) as file:
        for read in (FloatWeights(file).matrix, FloatWeights(file).vector):
            name = "w" if "matrix" in read.__name__ else "v"
            with pytest.raises(FileFormatError, match=f"tensor {name}"):
                read(name)


def shards(folder: Path) -> dict[str, str]:
    values = arrays()
    save_file({"w": values["w"]}, folder / "a.safetensors")
    save_file({"half": values["half"]}, folder / "b.safetensors")
    return {"w": "a.safetensors", "half": "b.safetensors"}


def index(folder: Path, weight_map: Any) -> Path:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards(tmp_path: Path) -> None:
    with SafetensorsFolder.open(index(tmp_path, shards(tmp_path))) as file:
        assert set(file.tensors) == {"w", "half"}
        assert file.read("half").tobytes() == arrays()["half"].tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": "b.safetensors"}, r"b.safetensors: has no tensor 'w'"),
        ({"w": "c.safetensors"}, r"c.safetensors: cannot be read: No such file"),
        ({"w": "../a.safetensors"}, r"w is in '../a.safetensors', which is no file name"),
        ({"w": 3}, "w is in 3, which is no file name"),
        ({"more": "a.safetensors"}, r"a.safetensors: has no tensor 'more'"),
    ],
)
def test_wrong_indexes(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = index(tmp_path, {**shards(tmp_path), **change})
    with pytest.raises(FileFormatError, match=message):
        SafetensorsFolder.open(folder)


def test_indexes_need_a_map(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="has no weight_map"):
        SafetensorsFolder.open(index(tmp_path, []))


def test_a_tensor_has_one_home(tmp_path: Path) -> None:
    weight_map = shards(tmp_path)
    save_file({"w": arrays()["w"], "half": arrays()["half"]}, tmp_path / "b.safetensors")
    with pytest.raises(FileFormatError, match=r"w is both in a.safetensors and in b.safetensors"):
        SafetensorsFolder.open(index(tmp_path, weight_map))


@pytest.mark.parametrize("cut", [1, 100, -4, -1000], ids=["1", "100", "all but 4", "no data"])
def test_truncated_files(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FileFormatError, match=r"model.safetensors: (is damaged|shrank)"):
        SafetensorsFolder.open(tmp_path)


def header(folder: Path, entries: dict[str, Any], data: bytes = bytes(64)) -> Path:
    text = json.dumps(entries).encode()
    raw = len(text).to_bytes(8, "little") + text + data
    (folder / "model.safetensors").write_bytes(raw)
    return folder


def entry(
    start: int, end: int, dtype: str = "F32", shape: tuple[int, ...] = (8,)
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": entry(0, 32), "b": entry(16, 48)},
        {"a": entry(0, 32)},
        {"a": entry(0, 32), "b": entry(40, 72)},
        {"a": entry(0, 64)},
        {"a": entry(0, 64, shape=(2**40, 2**40))},
        {"a": entry(0, 64, dtype="Q4")},
        {"a": 3},
    ],
    ids=["overlap", "rest", "hole", "size", "overflow", "type", "entry"],
)
def test_lying_headers(tmp_path: Path, entries: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match="is damaged"):
        SafetensorsFolder.open(header(tmp_path, entries))


def test_types_and_shapes_that_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="tensor a has type F64; supported are F32"):
        SafetensorsFolder.open(header(tmp_path, {"a": entry(0, 64, "F64")}))
    scalar = {"a": entry(0, 4, shape=())}
    with pytest.raises(FileFormatError, match=r"tensor a has shape \[\] without values"):
        SafetensorsFolder.open(header(tmp_path, scalar, bytes(4)))


def test_other_kinds_of_files(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"model.safetensors: cannot be read: No such file"):
        SafetensorsFolder.open(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="is not a regular file"):
        SafetensorsFolder.open(tmp_path)


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    with SafetensorsFolder.open(write(tmp_path)) as file:
        os.truncate(tmp_path / "model.safetensors", 300)
        with pytest.raises(FileFormatError, match="shrank while it was read"):
            [file.read(name) for name in file.tensors]
