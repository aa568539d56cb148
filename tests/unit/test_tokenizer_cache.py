import logging
import os
from pathlib import Path

import pytest

from blockdraft.tokenizer.cache import default_cache_dir, load_compiled, save_compiled
from blockdraft.tokenizer.compiled import CompiledModel, CompiledVocabulary, TokenizerInfo

COMPILED = CompiledVocabulary(
    info=TokenizerInfo(
        family="gpt2",
        bos_id=1,
        eos_id=None,
        unknown_id=None,
        padding_id=0,
        end_ids=[1, 2],
        add_bos=True,
        add_eos=False,
        add_space_prefix=False,
        special_ids=[],
        chat_template="{{ x }}",
    ),
    texts=b"abc",
    offsets=bytes(16),
    types=b"\x01\x01\x01",
    ascii_model=CompiledModel(b"{}", b"", {}),
    full_model=CompiledModel(b"{1}", bytes(4), {3: [1, 2]}),
)


def test_loads_what_was_saved_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_compiled(tmp_path / "new", "d1", COMPILED)
    assert load_compiled(tmp_path / "new", "d1") == COMPILED
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["d1.tokenizer"]


def test_a_file_that_is_not_there_is_no_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_compiled(tmp_path, "d1") is None
    assert not caplog.records


@pytest.mark.parametrize("position", [0, 9, 13, 20, -1])
def test_a_changed_byte_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    save_compiled(tmp_path, "d1", COMPILED)
    path = tmp_path / "d1.tokenizer"
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert load_compiled(tmp_path, "d1") is None
    assert "damaged" in caplog.text


@pytest.mark.parametrize("size", [0, 5, 16, 60])
def test_a_short_file_is_found(tmp_path: Path, size: int) -> None:
    save_compiled(tmp_path, "d1", COMPILED)
    path = tmp_path / "d1.tokenizer"
    path.write_bytes(path.read_bytes()[:size])
    assert load_compiled(tmp_path, "d1") is None


def test_saving_replaces_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "d1.tokenizer").write_bytes(b"junk")
    assert load_compiled(tmp_path, "d1") is None
    save_compiled(tmp_path, "d1", COMPILED)
    assert load_compiled(tmp_path, "d1") == COMPILED


def test_a_place_that_cannot_be_written_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    save_compiled(blocker, "d1", COMPILED)
    assert "could not cache" in caplog.text


def test_a_failed_rename_leaves_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "d1.tokenizer").mkdir()
    save_compiled(tmp_path, "d1", COMPILED)
    assert "could not cache" in caplog.text
    assert os.listdir(tmp_path) == ["d1.tokenizer"]  # noqa: PTH208 - names are enough


@pytest.mark.parametrize(
    ("base", "expected"),
    [("/somewhere", Path("/somewhere")), ("here", Path.home() / ".cache")],
    ids=["absolute", "relative is ignored"],
)
def test_the_default_place_follows_xdg(
    monkeypatch: pytest.MonkeyPatch, base: str, expected: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert default_cache_dir() == expected / "blockdraft/tokenizers"
