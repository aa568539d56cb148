from pathlib import Path

import numpy as np
import pytest

from blockdraft.errors import ConfigError
from blockdraft.train.shard_files import Shard, shard_path, write_manifest, write_shard
from blockdraft.train.shards import Corpus, CorpusSequence

MANIFEST = {"target": {"sha256": "ab" * 32, "vocab_size": 50}, "num_shards": 2}


def sequences(number: int, start: int = 0) -> list[CorpusSequence]:
    return [
        CorpusSequence(np.array([1, i % 50, 3], np.int32), 1, "code", f"p{i}")
        for i in range(start, start + number)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path, MANIFEST)
    for number, found in enumerate((sequences(3), sequences(2, start=3))):
        write_shard(shard_path(tmp_path, number), Shard(found, {}, len(found)), 50)
    return tmp_path


def test_a_folder_is_read_in_order(folder: Path) -> None:
    corpus = Corpus.open(folder)
    assert len(corpus) == 5
    assert [one.prompt_id for one in corpus] == ["p0", "p1", "p2", "p3", "p4"]
    assert corpus[4].token_ids.tolist() == [1, 4, 3]
    assert [one.prompt_id for one in corpus[1:3]] == ["p1", "p2"]
    assert corpus.num_tokens == 15
    assert corpus.target_sha256 == "ab" * 32


def test_split_is_whole_and_keeps_its_sides_while_the_corpus_grows() -> None:
    small, large = Corpus(MANIFEST, sequences(500)), Corpus(MANIFEST, sequences(1000))
    training, held_out = large.split(0.1)
    names = {one.prompt_id for one in held_out}
    assert len(training) + len(held_out) == 1000
    assert 70 <= len(held_out) <= 130
    assert not names & {one.prompt_id for one in training}
    assert {one.prompt_id for one in small.split(0.1)[1]} <= names
    assert held_out.target_sha256 == large.target_sha256


def test_a_larger_share_holds_out_more_of_the_same() -> None:
    corpus = Corpus(MANIFEST, sequences(300))
    few, many = (corpus.split(share)[1] for share in (0.05, 0.2))
    assert {one.prompt_id for one in few} < {one.prompt_id for one in many}
    assert len(corpus.split(0.0)[1]) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"it must be in \[0, 1\)"):
        Corpus(MANIFEST, []).split(share)
