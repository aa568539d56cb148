"""Tiny corpora: answers that count in steps, which a drafter can learn in a few optimizer steps."""

import hashlib
from pathlib import Path

import numpy as np

from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.shards import CorpusSequence

__all__ = ["counting_sequence", "write_counting_corpus"]

FIRST, LAST = 40, 47  # ordinary tokens of the tiny vocabularies


def counting_sequence(index: int, *, prompt: int = 5, answer: int = 30) -> CorpusSequence:
    """A sequence that counts up by one or two and begins anew at the end."""
    step, start = 1 + index % 2, 7 * index
    token_ids = FIRST + (start + step * np.arange(prompt + answer)) % (LAST - FIRST)
    return CorpusSequence(token_ids.astype(np.int32), prompt, f"step{step}", f"prompt{index}")


def write_counting_corpus(folder: Path, target: Path, *, count: int = 24) -> Path:
    """Write a corpus that claims to be ``target``'s, or add to one; returns its folder."""
    sha256 = hashlib.sha256(target.read_bytes()).hexdigest()
    header = {"target": {"sha256": sha256, "vocab_size": 299}}
    with CorpusWriter(folder, header, shard_answers=100) as writer:
        for index in range(len(writer.resumed), count):
            writer.add(counting_sequence(index, answer=20 + index))
    return folder
