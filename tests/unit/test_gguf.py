"""The GGUF reader on valid files: equal to the gguf package's."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from blockdraft.errors import FileFormatError
from blockdraft.weights.ggml_types import (
    INDEX_TYPES,
    SUPPORTED_TYPES,
    ggml_type_name,
    ggml_type_number,
)
from blockdraft.weights.gguf import GGUFFile, StringArray
from tests.raw_gguf import (
    BOOL,
    F32,
    STRING,
    U8,
    U32,
    array,
    build,
    entry,
    tensor,
    text,
)
from tests.tiny import ARCHITECTURES, TENSOR_TYPES, write_tiny


def save(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return path


# --- valid files


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_reads_what_the_gguf_package_reads(
    tiny_model: Callable[..., Path], tensor_type: str
) -> None:
    path = tiny_model("llama", tensor_type)
    expected = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in expected.tensors]
        for theirs in expected.tensors:
            ours = file.tensors[theirs.name]
            assert ours.shape == tuple(reversed(theirs.shape.tolist()))
            assert (ours.ggml_type, ours.nbytes) == (theirs.tensor_type, theirs.n_bytes)
            assert ours.offset == theirs.data_offset
            assert file.read(theirs.name).tobytes() == theirs.data.tobytes()
        assert file.tensor_bytes == sum(int(theirs.n_bytes) for theirs in expected.tensors)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_metadata_equals_the_gguf_package(tiny_model: Callable[..., Path], arch: str) -> None:
    path = tiny_model(arch)
    fields = gguf.GGUFReader(path).fields
    with GGUFFile.open(path) as file:
        assert list(file.metadata) == [key for key in fields if not key.startswith("GGUF.")]
        for key, value in file.metadata.items():
            found = list(value) if isinstance(value, StringArray | np.ndarray) else value
            assert found == fields[key].contents()


@pytest.mark.parametrize("version", [2, 3])
def test_every_metadata_type(tmp_path: Path, version: int) -> None:
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    keys = [entry(f"s{kind}", kind, struct.pack("<" + c, 7)) for kind, c in numbers.items()]
    keys += [array(f"a{kind}", kind, 2, struct.pack("<2" + c, 1, 2)) for kind, c in numbers.items()]
    keys += [entry("yes", BOOL, b"\1"), entry("name", STRING, text("größe"))]
    keys += [array("flags", BOOL, 3, b"\1\0\1"), array("none", STRING, 0, b"")]
    keys += [array("words", STRING, 3, text("") + text("ab") + text("猫"))]
    raw = build(tuple(keys), start=b"GGUF" + struct.pack("<I", version))
    with GGUFFile.open(save(tmp_path, raw)) as file:
        assert all(file.metadata[f"s{kind}"] == 7 for kind in numbers)
        assert all(file.get_list(f"a{kind}") == [1, 2] for kind in numbers)
        assert file.get_bool("yes") is True
        assert file.get_str("name") == "größe"
        assert file.get_list("flags", of=bool) == [True, False, True]
        assert file.get_list("none", of=str) == []
        assert file.get_list("words", of=str) == ["", "ab", "猫"]


def test_string_array_is_a_sequence(tmp_path: Path) -> None:
    raw = build((array("words", STRING, 3, text("a") + text("b") + text("c")),))
    with GGUFFile.open(save(tmp_path, raw)) as file:
        words = file.metadata["words"]
    assert isinstance(words, StringArray)
    assert (len(words), words[1], words[-1], words[1:]) == (3, "b", "c", ["b", "c"])
    assert "b" in words
    assert words.to_list() is words.to_list()


def test_header_longer_than_the_first_window(tmp_path: Path) -> None:
    words = [f"{i:060d}" for i in range(40_000)]
    keys = (
        array("words", STRING, len(words), b"".join(map(text, words))),
        array("numbers", U32, 600_000, bytes(4 * 600_000)),
        entry("last", U8, b"\5"),
    )
    with GGUFFile.open(save(tmp_path, build(keys, (tensor("t"),)))) as file:
        assert file.get_list("words", of=str) == words
        assert file.get_int("last") == 5
        assert file.read("t").size == 128


def test_read_rows_reads_a_range_into_a_given_buffer(tiny_model: Callable[..., Path]) -> None:
    name = "blk.0.ffn_down.weight"
    with GGUFFile.open(tiny_model()) as file:
        whole = file.read(name).reshape(file.tensor(name).rows, -1)
        out = np.empty(1000, np.uint8)
        rows = file.read_rows(name, 3, 5, out=out)
        assert np.shares_memory(rows, out)
        assert rows.tobytes() == whole[3:8].tobytes()
        assert file.read_rows(name, 8, 0).size == 0


def test_metadata_digest_sees_the_tokenizer_and_nothing_else(tmp_path: Path) -> None:
    def digest(**options: Any) -> str:
        with GGUFFile.open(write_tiny(tmp_path / "tiny.gguf", **options)) as file:
            return file.metadata_digest()

    plain = digest()
    assert digest(seed=1, metadata={"general.name": "other"}) == plain
    assert digest(metadata={"tokenizer.ggml.eos_token_id": 1}) != plain


def test_gaps_and_any_order_of_tensors_are_allowed(tmp_path: Path) -> None:
    raw = build((), (tensor("b", offset=128), tensor("a", (4,), offset=32), tensor("c", (2,))))
    with GGUFFile.open(save(tmp_path, raw)) as file:
        assert list(file.tensors) == ["b", "a", "c"]


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    keys = (entry("general.alignment", U32, struct.pack("<I", 1024)),)
    raw = build(keys, (tensor("t", (2,)),), data=0)
    raw = raw.ljust(1024, b"\0") + struct.pack("<2f", 1, 2)
    with GGUFFile.open(save(tmp_path, raw)) as file:
        assert file.read("t").view("<f4").tolist() == [1, 2]


# --- typed getters


GETTER_CASES: dict[str, tuple[Callable[[GGUFFile], object], str]] = {
    "missing": (lambda f: f.get_int("no"), "has no metadata key no"),
    "int-is-bool": (lambda f: f.get_int("flag"), "flag is a bool, it must be an integer"),
    "int-is-float": (lambda f: f.get_int("nan"), "nan is a float"),
    "float-is-int": (lambda f: f.get_float("int"), "int is an integer, it must be a float"),
    "float-is-nan": (lambda f: f.get_float("nan"), "nan is nan, it must be finite"),
    "bool-is-int": (lambda f: f.get_bool("int"), "it must be a bool"),
    "str-is-array": (lambda f: f.get_str("words"), "words is an array of strings"),
    "list-is-int": (lambda f: f.get_list("int"), "int is an integer, it must be an array"),
    "list-of-str": (lambda f: f.get_list("words", of=int), "it must be an array of integers"),
    "list-of-int": (lambda f: f.get_list("ids", of=str), "ids is an array of integers"),
}


@pytest.mark.parametrize(("get", "message"), GETTER_CASES.values(), ids=GETTER_CASES)
def test_getter_names_key_and_types(
    tmp_path: Path, get: Callable[[GGUFFile], object], message: str
) -> None:
    keys = (
        entry("flag", BOOL, b"\1"),
        entry("int", U8, b"\1"),
        entry("nan", F32, struct.pack("<f", float("nan"))),
        array("words", STRING, 1, text("a")),
        array("ids", U32, 1, bytes(4)),
    )
    with (
        GGUFFile.open(save(tmp_path, build(keys))) as file,
        pytest.raises(FileFormatError, match=message),
    ):
        get(file)


def test_getter_defaults_are_used_only_for_missing_keys(tmp_path: Path) -> None:
    with GGUFFile.open(save(tmp_path, build((entry("n", U8, b"\5"),)))) as file:
        assert (file.get_int("n", 1), file.get_int("m", 1), file.get_str("m", None)) == (5, 1, None)
        assert (file.get_list("m", None), file.get_list("m", [])) == (None, [])
        with pytest.raises(FileFormatError, match="n is an integer, it must be a string"):
            file.get_str("n", None)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    with (
        GGUFFile.open(save(tmp_path, build())) as file,
        pytest.raises(FileFormatError, match="has no tensor 'none'"),
    ):
        file.read("none")


# --- types


def test_type_table_equals_the_gguf_package() -> None:
    for theirs in gguf.GGMLQuantizationType:
        assert ggml_type_name(theirs.value) == theirs.name
        if theirs.value in INDEX_TYPES:
            info = INDEX_TYPES[theirs.value]
            assert (info.block_size, info.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]
        if theirs.value in SUPPORTED_TYPES:
            info = SUPPORTED_TYPES[theirs.value]
            assert (info.block_size, info.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]
            assert ggml_type_number(theirs.name) == theirs.value
    assert {info.name for info in SUPPORTED_TYPES.values()} == set(TENSOR_TYPES)
    with pytest.raises(KeyError):
        ggml_type_number("IQ2_XXS")
