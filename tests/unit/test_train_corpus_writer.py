import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.shards import Corpus, CorpusSequence

HEADER: dict[str, Any] = {
    "target": {"sha256": "ab", "vocab_size": 50},
    "answers": {"temperature": 0.8, "mix": [("code", 1.0)]},
}


def sequence(number: int) -> CorpusSequence:
    return CorpusSequence(np.array([1, number, 2], np.int32), 1, "code", f"p{number}")


def open_writer(folder: Path, *, shard_answers: int = 2, **change: Any) -> CorpusWriter:
    return CorpusWriter(folder, HEADER | change, shard_answers=shard_answers)


def names(folder: Path) -> list[str]:
    return [one.prompt_id for one in Corpus.open(folder)]


def shards(folder: Path) -> int:
    return len(list(folder.glob("shard-*.npz")))


def test_shards_are_written_when_they_are_full(tmp_path: Path) -> None:
    with open_writer(tmp_path / "c") as writer:
        assert len(Corpus.open(tmp_path / "c")) == 0
        writer.add(sequence(0))
        assert shards(tmp_path / "c") == 0
        writer.drop("loop")
        assert shards(tmp_path / "c") == 1
        writer.add(sequence(1))
        assert names(tmp_path / "c") == ["p0"]
    assert names(tmp_path / "c") == ["p0", "p1"]


def test_counts_are_in_the_manifest(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for number in range(3):
            writer.add(sequence(number))
        writer.drop("loop")
        writer.drop("loop")
    wanted = {"kept": 3, "tokens": 9, "answer_tokens": 6, "loop": 2}
    assert writer.counts == Corpus.open(tmp_path).manifest["counts"] == wanted
    assert Corpus.open(tmp_path).manifest["num_shards"] == 3


def test_an_exception_keeps_what_was_added(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, shard_answers=9)
    writer.add(sequence(0))
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert names(tmp_path) == ["p0"]


def test_a_corpus_is_continued(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.add(sequence(0))
        writer.drop("loop")
        writer.drop("loop")
    with open_writer(tmp_path, shard_answers=5) as writer:
        assert writer.num_answered == 3
        assert [one.prompt_id for one in writer.resumed] == ["p0"]
        writer.add(sequence(1))
        assert writer.num_answered == 4
        assert writer.counts == {"kept": 2, "tokens": 6, "answer_tokens": 4, "loop": 2}
    assert names(tmp_path) == ["p0", "p1"]


def test_a_shard_that_the_manifest_does_not_know_counts(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        before = (tmp_path / "manifest.json").read_bytes()
        writer.add(sequence(0))
    (tmp_path / "manifest.json").write_bytes(before)
    with open_writer(tmp_path) as writer:
        assert writer.num_answered == 1
        writer.add(sequence(1))
    assert names(tmp_path) == ["p0", "p1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"answers": HEADER["answers"] | {"temperature": 1.0}},
            "answers was begun with temperature 0.8, not 1.0; take another folder or the same",
        ),
        ({"answers": {"temperature": 0.8}}, r'with mix \[\["code", 1.0\]\], not null'),
        ({"answers": HEADER["answers"] | {"top_k": 4}}, "begun with top_k null, not 4"),
        ({"more": 1}, "begun with more null, not 1"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    open_writer(tmp_path).__exit__(None, None, None)
    with pytest.raises(ConfigError, match=message):
        open_writer(tmp_path, **change)
    with open_writer(tmp_path):  # the refusal gave the folder free
        pass


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path), pytest.raises(ConfigError, match="another process writes"):
        open_writer(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"has no corpus, but other files: thesis\.tex"):
        open_writer(tmp_path)


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.add(sequence(0))
    (tmp_path / "shard-00000.npz").write_bytes(b"PK")
    with pytest.raises(FileFormatError, match="damaged"):
        open_writer(tmp_path)


def test_ctrl_c_after_a_shard_writes_no_answer_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with open_writer(tmp_path) as writer:
        monkeypatch.setattr("blockdraft.train.corpus_writer.write_manifest", interrupt)
        writer.add(sequence(0))
        with pytest.raises(KeyboardInterrupt):
            writer.add(sequence(1))
    assert names(tmp_path) == ["p0", "p1"]
    assert json.loads((tmp_path / "manifest.json").read_text())["num_shards"] == 0
