"""Written GGUF files, read back with the `gguf` package and with our reader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.weights.gguf import GGUFFile, StringArray
from blockdraft.weights.gguf_writer import NewTensor, NewValue, RawEntry, write_gguf

METADATA: dict[str, NewValue] = {
    "general.architecture": "dflash",
    "t.flag": True,
    "t.count": 7,
    "t.scale": 0.1,
    "t.text": "naïve",
    "t.negative": np.int32(-5),
    "t.byte": np.uint8(200),
    "t.large": np.uint64(2**63),
    "t.double": np.float64(0.1),
    "t.ids": np.array([1, -2, 3], np.int32),
    "t.flags": np.array([True, False]),
    "t.scores": np.array([0.5, -0.5], np.float32),
    "t.words": ["a", "", "ß" * 300],
}
TENSORS: dict[str, NDArray[Any]] = {
    "a.weight": np.arange(64, dtype=np.float32).reshape(2, 32),
    "b": np.arange(5, dtype=np.float32),
    "c": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "ids": np.array([3, 1, 2], np.int64),
}


def write(path: Path, metadata: dict[str, NewValue] | None = None) -> Path:
    entries = [
        NewTensor(name, each.shape, 27 if each.dtype == np.int64 else 0)
        for name, each in TENSORS.items()
    ]
    write_gguf(path, METADATA if metadata is None else metadata, entries, TENSORS.values())
    return path


def test_the_gguf_package_reads_every_value(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write(tmp_path / "a.gguf"))
    assert reader.fields["GGUF.version"].contents() == 3
    for key, value in METADATA.items():
        found = reader.fields[key].contents()
        expected = value.tolist() if isinstance(value, np.ndarray) else value
        assert found == (pytest.approx(0.1) if key == "t.scale" else expected), key
    kinds = gguf.GGUFValueType
    for key, kind in (
        ("t.count", kinds.UINT32),
        ("t.scale", kinds.FLOAT32),
        ("t.negative", kinds.INT32),
        ("t.double", kinds.FLOAT64),
    ):
        assert reader.fields[key].types == [kind]
    assert reader.fields["t.flags"].types == [kinds.ARRAY, kinds.BOOL]


def test_the_gguf_package_reads_every_tensor(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write(tmp_path / "a.gguf"))
    assert [tensor.name for tensor in reader.tensors] == list(TENSORS)
    for tensor in reader.tensors:
        expected = TENSORS[tensor.name]
        assert tensor.shape.tolist() == list(expected.shape[::-1])
        assert np.array_equal(tensor.data, expected)
        assert tensor.data_offset % 32 == 0


def test_our_reader_agrees(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path / "a.gguf")) as file:
        words = file.metadata["t.words"]
        assert isinstance(words, StringArray)
        assert list(words) == METADATA["t.words"]
        assert file.get_list("t.flags", of=bool) == [True, False]
        for name, values in TENSORS.items():
            assert file.tensor(name).shape == values.shape
            assert file.read(name).tobytes() == values.tobytes()


def test_entries_are_copied_byte_by_byte(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path / "a.gguf")) as first:
        copies: dict[str, NewValue] = {
            key: RawEntry(first.raw_entry(key)) for key in first.metadata
        }
        write(tmp_path / "b.gguf", copies)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "dflash"}, [], [])
    with GGUFFile.open(tmp_path / "a.gguf") as file:
        assert not file.tensors


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"earlier")

    def values() -> Iterator[NDArray[Any]]:
        yield np.zeros(4, np.float32)
        raise KeyboardInterrupt

    entries = [NewTensor(name, (4,), 0) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, METADATA, entries, values())
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_gguf(tmp_path / "missing" / "a.gguf", {}, [], [])
