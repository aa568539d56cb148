"""Earlier answers in a file: the same when read again, bounded, refused when damaged."""

import logging
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.speculative import SuffixCache, Vocabulary
from blockdraft.speculative import suffix_cache as caching

VOCABULARY = Vocabulary(300, "5a" * 32)


def tokens(*token_ids: int) -> NDArray[np.int32]:
    return np.array(token_ids, np.int32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two answers."""
    path = tmp_path / "cache"
    cache = SuffixCache.open(path, VOCABULARY)
    cache.add(tokens(1, 2, 3))
    cache.add(tokens(299, 0))
    cache.save()
    return path


def kept(path: Path) -> list[list[int]]:
    return [answer.tolist() for answer in SuffixCache.open(path, VOCABULARY).answers]


def test_answers_come_back(path: Path) -> None:
    cache = SuffixCache.open(path, VOCABULARY)
    assert kept(path) == [[1, 2, 3], [299, 0]]
    assert cache.automaton.count(tokens(1, 2, 3)) == 1
    assert cache.automaton.count(tokens(3, 299)) == 0
    before = path.read_bytes()
    cache.save()
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_only_the_owner_may_read_them(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_cache_comes_back(tmp_path: Path) -> None:
    cache = SuffixCache.open(tmp_path / "cache", VOCABULARY)
    cache.add(tokens())
    cache.save()
    assert kept(tmp_path / "cache") == []


def test_every_damaged_byte_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(FileFormatError, match=f"^{path}: "):
            SuffixCache.open(path, VOCABULARY)


@pytest.mark.parametrize("size", [0, 3, 8, 20, 60, 70])
def test_a_file_cut_short_is_refused(path: Path, size: int) -> None:
    data = path.read_bytes()
    assert len(data) > size
    path.write_bytes(data[:size])
    with pytest.raises(FileFormatError, match=f"^{path}: "):
        SuffixCache.open(path, VOCABULARY)
    path.write_bytes(data + b"\0")
    with pytest.raises(FileFormatError, match=f"has {len(data) + 1} bytes; its header says"):
        SuffixCache.open(path, VOCABULARY)


def test_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "FORMAT_VERSION", 2)
    with pytest.raises(FileFormatError, match="has version 1; this program reads 2"):
        SuffixCache.open(path, VOCABULARY)


@pytest.mark.parametrize("other", [Vocabulary(301, "5a" * 32), Vocabulary(300, "5b" * 32)])
def test_another_vocabulary_is_refused(path: Path, other: Vocabulary) -> None:
    with pytest.raises(
        ConfigError, match=r"has answers in a vocabulary of 300 tokens \(5a5a5a5a\)"
    ):
        SuffixCache.open(path, other)


def test_ids_out_of_the_vocabulary_are_refused(path: Path) -> None:
    cache = SuffixCache.open(path, VOCABULARY)
    cache.add(tokens(300))
    cache.save()
    with pytest.raises(FileFormatError, match="token ids are out of range"):
        SuffixCache.open(path, VOCABULARY)


def test_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the folder .*none does not exist"):
        SuffixCache.open(tmp_path / "none" / "cache", VOCABULARY)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        SuffixCache.open(tmp_path, VOCABULARY)


def test_the_oldest_answers_are_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "MAX_CACHE_TOKENS", 6)
    cache = SuffixCache.open(path, VOCABULARY)
    cache.add(tokens(7, 8))
    cache.save()
    assert kept(path) == [[299, 0], [7, 8]]
    cache.add(tokens(*range(10, 20)))
    cache.save()
    assert kept(path) == [[*range(14, 20)]]


def test_a_file_beyond_the_limit_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = path.stat().st_size
    monkeypatch.setattr(caching, "MAX_CACHE_TOKENS", 2)
    with pytest.raises(FileFormatError, match=f"has {size} bytes; a suffix cache has at most"):
        SuffixCache.open(path, VOCABULARY)


def test_a_full_disk_is_said_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = SuffixCache.open(path, VOCABULARY)
    path.unlink()
    path.parent.rmdir()
    with caplog.at_level(logging.WARNING):
        cache.save()
        cache.save()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [str(path)]
