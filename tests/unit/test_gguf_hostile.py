"""The GGUF reader on hostile files: one clear error that names what disagrees."""

import os
import struct
from pathlib import Path

import pytest

from blockdraft.errors import BlockdraftError, FileFormatError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile
from tests.raw_gguf import (
    ARRAY,
    BOOL,
    HUGE,
    STRING,
    U8,
    U32,
    U64,
    array,
    build,
    entry,
    tensor,
    text,
)


def save(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return path


# --- hostile files

ONE = tensor("t")
HOSTILE: dict[str, tuple[bytes, type[BlockdraftError], str]] = {
    "empty": (b"", FileFormatError, "the magic ends at byte 4, the file has 0"),
    "magic": (build(start=b"GGML\3\0\0\0"), FileFormatError, "starts with b'GGML', not b'GGUF'"),
    "big-endian": (build(start=b"GGUF\0\0\0\3"), UnsupportedError, "is big-endian GGUF"),
    "version-1": (build(start=b"GGUF\1\0\0\0"), UnsupportedError, "is GGUF version 1"),
    "version-0": (build(start=b"GGUF\0\0\0\0"), UnsupportedError, "is GGUF version 0"),
    "version-4": (build(start=b"GGUF\4\0\0\0"), UnsupportedError, "reads versions 2 and 3"),
    "no-counts": (b"GGUF\3\0\0\0" + bytes(7), FileFormatError, "tensor count ends at byte 16"),
    "tensor-count": (build(counts=(HUGE, 0)), FileFormatError, "the tensor count is 18446744073"),
    "key-count": (build(counts=(0, 1 << 40)), FileFormatError, "the key count is 1099511627776"),
    "tensor-count-off-by-some": (
        build((), (ONE,), counts=(9, 0), data=128),
        FileFormatError,
        "tensor count is 9, a file of 192 bytes has at most 5",
    ),
    "key-utf8": (build((entry(b"a\xff", U8, b"\0"),)), FileFormatError, "key 0 is not valid UTF-8"),
    "key-length": (
        build((text(b"", HUGE),), counts=(0, 1)),
        FileFormatError,
        "key 0 has 18446744073709551615 bytes, at most 65535",
    ),
    "key-twice": (build((entry("k", U8, b"\0"),) * 2), FileFormatError, "key 'k' occurs twice"),
    "value-type": (build((entry("k", 13, b""),)), FileFormatError, "k has type number 13"),
    "bool": (build((entry("k", BOOL, b"\2"),)), FileFormatError, "k is the byte 2, a bool is 0 or"),
    "bools": (build((array("k", BOOL, 2, b"\1\7"),)), FileFormatError, "k holds a byte 7"),
    "string-length": (
        build((entry("k", STRING, text(b"", 1 << 20)),)),
        FileFormatError,
        "k ends at byte 1048621, the file has 320",
    ),
    "string-huge": (
        build((entry("k", STRING, text(b"", 1 << 60)),)),
        FileFormatError,
        "k has 1152921504606846976 bytes, at most 16777216",
    ),
    "string-utf8": (
        build((entry("k", STRING, text(b"ab\xc3(")),)),
        FileFormatError,
        "k is not valid UTF-8: invalid continuation byte at its byte 2",
    ),
    "array-of-arrays": (
        build((array("k", ARRAY, 1, struct.pack("<IQ", U8, 0)),)),
        FileFormatError,
        "k is an array of an array",
    ),
    "array-type": (build((array("k", 99, 1, b""),)), FileFormatError, "an array of type number 99"),
    "array-count": (
        build((array("k", U64, HUGE, b""),)),
        FileFormatError,
        "k has 18446744073709551615 elements, at most 16777216",
    ),
    "array-past-end": (
        build((array("k", U64, 1000, b""),)),
        FileFormatError,
        "k of 1000 elements ends at byte 8049, the file has 320",
    ),
    "strings-past-end": (
        build((array("k", STRING, 1000, b""),)),
        FileFormatError,
        "k of 1000 strings ends at byte 8049, the file has 320",
    ),
    "strings-length": (
        build((array("k", STRING, 2, text(b"", 1 << 40) + text("b")),)),
        FileFormatError,
        r"the length of k\[1\] ends at byte 1099511627841, the file has 352",
    ),
    "strings-length-max": (
        build((array("k", STRING, 2, text("a") + text(b"", HUGE)),)),
        FileFormatError,
        r"k\[1\] ends at byte",
    ),
    "alignment-power": (
        build((entry("general.alignment", U32, struct.pack("<I", 48)),)),
        FileFormatError,
        "general.alignment is 48, it must be a power of two",
    ),
    "alignment-zero": (
        build((entry("general.alignment", U32, bytes(4)),)),
        FileFormatError,
        "general.alignment is 0",
    ),
    "alignment-absurd": (
        build((entry("general.alignment", U32, struct.pack("<I", 1 << 31)),)),
        FileFormatError,
        "general.alignment is 2147483648",
    ),
    "alignment-type": (
        build((entry("general.alignment", BOOL, b"\1"),)),
        FileFormatError,
        "general.alignment is True",
    ),
    "name-utf8": (build((), (tensor(b"\x80"),)), FileFormatError, "tensor 0 is not valid UTF-8"),
    "name-length": (
        build((), (tensor("n" * 128),)),
        FileFormatError,
        "the name of tensor 0 has 128 bytes, at most 127",
    ),
    "name-twice": (
        build((), (ONE, tensor("t", offset=128))),
        FileFormatError,
        "tensor 't' occurs twice",
    ),
    "dims-0": (build((), (tensor("t", ()),)), FileFormatError, "'t' has 0 dimensions, 1 to 4"),
    "dims-5": (build((), (tensor("t", (1,) * 5),)), FileFormatError, "'t' has 5 dimensions"),
    "dims-huge": (
        build((), (text("t") + struct.pack("<I", 2**32 - 1),), counts=(1, 0)),
        FileFormatError,
        "'t' has 4294967295 dimensions",
    ),
    "size-0": (build((), (tensor("t", (32, 0)),)), FileFormatError, "a dimension of size 0"),
    "product": (
        build((), (tensor("t", (1 << 63, 1 << 63, 4, 1)),)),
        FileFormatError,
        "tensor 't' ends at byte 1361129467683753853853498429727072845920, the file has",
    ),
    "columns": (
        build((), (tensor("t", (48,), kind=2),)),
        FileFormatError,
        "'t' has 48 columns, Q4_0 needs a multiple of 32",
    ),
    "columns-super": (
        build((), (tensor("t", (128,), kind=12),)),
        FileFormatError,
        "'t' has 128 columns, Q4_K needs a multiple of 256",
    ),
    "type": (
        build((), (tensor("blk.0.ffn_up.weight", (256,), kind=16),)),
        UnsupportedError,
        "tensor blk.0.ffn_up.weight has type IQ2_XXS, which blockdraft does not support",
    ),
    "type-unknown": (build((), (tensor("t", kind=77),)), UnsupportedError, "has type number 77"),
    "offset-misaligned": (
        build((), (tensor("t", offset=16),)),
        FileFormatError,
        "'t' is misaligned: offset 16, alignment 32",
    ),
    "offset-past-end": (
        build((), (tensor("t", offset=160),)),
        FileFormatError,
        "tensor 't' ends at byte 352, the file has 320",
    ),
    "offset-huge": (
        build((), (tensor("t", offset=HUGE - 31),)),
        FileFormatError,
        "tensor 't' ends at byte 18446744073709551776, the file has 320",
    ),
    "overlap": (
        build((), (ONE, tensor("u", offset=96))),
        FileFormatError,
        "tensors 't' and 'u' overlap: the first ends at byte 224, the second starts at 192",
    ),
    "same-place": (build((), (ONE, tensor("u"))), FileFormatError, "'t' and 'u' overlap"),
    "data-missing": (build((), (ONE,), data=100), FileFormatError, "ends at byte 192, the file"),
}


@pytest.mark.parametrize(("raw", "error", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_gives_one_clear_error(
    tmp_path: Path, raw: bytes, error: type[BlockdraftError], message: str
) -> None:
    path = save(tmp_path, raw)
    with pytest.raises(error, match=message) as caught:
        GGUFFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_bad_utf8_in_an_array_is_found_when_it_is_read(tmp_path: Path) -> None:
    raw = build((array("words", STRING, 2, text("ok") + text(b"a\xe7\x8c")),))
    with (
        GGUFFile.open(save(tmp_path, raw)) as file,
        pytest.raises(FileFormatError, match=r"words\[1\] is not valid UTF-8: .* at its byte 1"),
    ):
        file.get_list("words")


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    keys = (entry("k", STRING, text("value")), array("w", STRING, 2, text("a") + text("b")))
    raw = build((*keys, array("n", U32, 2, bytes(8))), (ONE,), data=128)
    for length in range(len(raw)):
        with pytest.raises(FileFormatError, match=r"ends at byte|at most"):
            GGUFFile.open(save(tmp_path, raw[:length]))


def test_a_file_that_shrinks_after_opening_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path, build((), (ONE,)))
    with GGUFFile.open(path) as file:
        os.truncate(path, 100)
        with pytest.raises(FileFormatError, match="shrank while it was read: t needs byte 192"):
            file.read("t")


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    message = "cannot be read: No such file" if kind == "missing" else "is not a regular file"
    with pytest.raises(FileFormatError, match=message):
        GGUFFile.open(path)
