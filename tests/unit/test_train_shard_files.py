import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.train.shard_files import (
    CorpusSequence,
    Shard,
    read_manifest,
    read_shard,
    shard_path,
    shard_paths,
    token_dtype,
    write_manifest,
    write_shard,
)

VOCAB_SIZE = 100
FACTS = {"target": {"sha256": "ab", "vocab_size": VOCAB_SIZE}, "num_shards": 1}


def sequence(name: str = "p", *, ids: tuple[int, ...] = (1, 2, 3), prompt: int = 2) -> Any:
    return CorpusSequence(np.array(ids, np.int32), prompt, "code", name)


def shard(*sequences: CorpusSequence) -> Shard:
    return Shard(sequences, {"kept": len(sequences), "loop": 1}, len(sequences) + 1)


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_a_shard_comes_back(vocab_size: int, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    wanted = [sequence("ü", ids=(1, 65_535, 7), prompt=1), sequence("b")]
    write_shard(path, shard(*wanted), vocab_size)
    found = read_shard(path, vocab_size)
    assert [one.token_ids.tolist() for one in found.sequences] == [[1, 65_535, 7], [1, 2, 3]]
    assert {one.token_ids.dtype for one in found.sequences} == {np.dtype(np.int32)}
    assert [one.prompt_length for one in found.sequences] == [1, 2]
    assert [one.prompt_id for one in found.sequences] == ["ü", "b"]
    assert [one.category for one in found.sequences] == ["code", "code"]
    assert found.sequences[0].answer_ids.tolist() == [65_535, 7]
    assert found.counts == {"kept": 2, "loop": 1}
    assert found.num_answers == 3
    with np.load(path) as arrays:
        assert arrays["token_ids"].dtype == token_dtype(vocab_size)
    assert [file.name for file in tmp_path.iterdir()] == ["s.npz"]


def test_ids_beyond_16_bits_are_kept(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.npz", shard(sequence(ids=(1, 99_999), prompt=1)), 100_000)
    assert read_shard(tmp_path / "s.npz", 100_000).sequences[0].token_ids.tolist() == [1, 99_999]


def test_a_shard_may_have_no_sequence(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.npz", shard(), VOCAB_SIZE)
    found = read_shard(tmp_path / "s.npz", VOCAB_SIZE)
    assert list(found.sequences) == []
    assert found.num_answers == 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_truncated_shard_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_shard(path, shard(sequence()), VOCAB_SIZE)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(FileFormatError, match=r"s\.npz is damaged"):
        read_shard(path, VOCAB_SIZE)


def test_a_changed_byte_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_shard(path, shard(sequence()), VOCAB_SIZE)
    data = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for place in random.choice(len(data), 150, replace=False):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            found = read_shard(path, VOCAB_SIZE)
        except FileFormatError:
            refused += 1
        else:
            assert found.sequences[0].token_ids.tolist() == [1, 2, 3]
    assert refused > 50


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (sequence(ids=(1, 2, VOCAB_SIZE)), "a token that is not in the vocabulary of 100"),
        (sequence(prompt=0), "p: 0 of 3 tokens are its prompt"),
        (sequence(prompt=3), "p: 3 of 3 tokens are its prompt"),
    ],
)
def test_impossible_sequences_are_refused(
    one: CorpusSequence, message: str, tmp_path: Path
) -> None:
    write_shard(tmp_path / "s.npz", shard(one), VOCAB_SIZE)
    with pytest.raises(FileFormatError, match=message):
        read_shard(tmp_path / "s.npz", VOCAB_SIZE)


@pytest.mark.parametrize("lengths", [[2], [4], [3, 1]])
def test_lengths_that_do_not_add_up_are_refused(lengths: list[int], tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_shard(path, shard(sequence()), VOCAB_SIZE)
    with np.load(path) as arrays:
        changed = dict(arrays) | {"lengths": np.array(lengths, "<u4")}
    np.savez(path, **changed)
    with pytest.raises(FileFormatError, match=r"3 tokens, its lengths say|is damaged"):
        read_shard(path, VOCAB_SIZE)


class TestManifest:
    def test_it_comes_back(self, tmp_path: Path) -> None:
        write_manifest(tmp_path, FACTS)
        assert FACTS.items() <= read_manifest(tmp_path).items()

    def test_a_folder_without_one_is_no_corpus(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"has no corpus: there is no manifest\.json"):
            read_manifest(tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format_version": 2}, "is blockdraft corpus version 2, not blockdraft corpus ver"),
            ({"format": "other"}, "is other version 1, not blockdraft corpus version 1"),
            ({"target": {"sha256": "x"}}, "is damaged: KeyError"),
            ({"target": 3}, "is damaged: TypeError"),
            ({"num_shards": "1"}, "is damaged: shards, vocabulary, target are"),
        ],
    )
    def test_wrong_ones_are_refused(
        self, change: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        write_manifest(tmp_path, FACTS | change)
        with pytest.raises(FileFormatError, match=message):
            read_manifest(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", json.dumps("x"), "\xff"])
    def test_damaged_ones_are_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "manifest.json").write_text(text, "latin-1")
        with pytest.raises(FileFormatError, match=r"manifest\.json is damaged"):
            read_manifest(tmp_path)


class TestShardPaths:
    def test_in_order_also_those_the_manifest_does_not_know(self, tmp_path: Path) -> None:
        for number in (2, 0, 1):
            shard_path(tmp_path, number).touch()
        found = shard_paths(tmp_path, {"num_shards": 1})
        assert found == [shard_path(tmp_path, number) for number in range(3)]

    @pytest.mark.parametrize(
        ("numbers", "missing"), [((0, 2), 1), ((0,), 1), ((), 0)], ids=["gap", "last", "all"]
    )
    def test_a_missing_one_is_named(
        self, numbers: tuple[int, ...], missing: int, tmp_path: Path
    ) -> None:
        for number in numbers:
            shard_path(tmp_path, number).touch()
        with pytest.raises(FileFormatError, match=f"shard-0000{missing}.npz is missing"):
            shard_paths(tmp_path, {"num_shards": 2})
