"""A corpus in memory: what the trainer reads of a folder of shards.

Knows no model and no text; how the files look is ``shard_files``' matter.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from blockdraft.errors import ConfigError
from blockdraft.train.shard_files import (
    CorpusSequence,
    file_sha256,
    read_manifest,
    read_shard,
    shard_paths,
)

__all__ = ["Corpus", "CorpusSequence", "check_target"]

_HASH_LEVELS = 2**32


class Corpus(Sequence[CorpusSequence]):
    """The sequences of a corpus, or some of them.

    Attributes:
        manifest: Where they come from and how they were made.
    """

    def __init__(self, manifest: Mapping[str, Any], sequences: Sequence[CorpusSequence]) -> None:
        """Hold sequences that are in memory; `open` reads a folder."""
        self.manifest = manifest
        self._sequences = sequences

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The corpus in the folder ``path``, complete or still growing.

        Raises:
            ConfigError: There is no corpus.
            FileFormatError: A file is damaged or missing, or of another version.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        vocab_size = manifest["target"]["vocab_size"]
        shards = [read_shard(file, vocab_size) for file in shard_paths(folder, manifest)]
        return cls(manifest, [sequence for shard in shards for sequence in shard.sequences])

    @property
    def target_sha256(self) -> str:
        """Checksum of the model file that wrote the answers."""
        return str(self.manifest["target"]["sha256"])

    @property
    def num_tokens(self) -> int:
        """Tokens of prompts and answers."""
        return sum(len(sequence.token_ids) for sequence in self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @overload
    def __getitem__(self, index: int) -> CorpusSequence: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CorpusSequence]: ...

    def __getitem__(self, index: int | slice) -> CorpusSequence | Sequence[CorpusSequence]:
        """The sequence of that number, in the order in which they were written."""
        return self._sequences[index]

    def split(self, held_out_share: float) -> tuple["Corpus", "Corpus"]:
        """What to train on and what to hold out, by a hash of the prompt's id.

        A prompt stays on its side while the corpus grows, and all answers to it are on one side.

        Raises:
            ConfigError: The share is not in [0, 1).
        """
        if not 0 <= held_out_share < 1:
            raise ConfigError(f"the held-out share is {held_out_share}; it must be in [0, 1)")
        sides: tuple[list[CorpusSequence], list[CorpusSequence]] = ([], [])
        for sequence in self._sequences:
            sides[_hash_level(sequence.prompt_id) < held_out_share * _HASH_LEVELS].append(sequence)
        return Corpus(self.manifest, sides[0]), Corpus(self.manifest, sides[1])


def _hash_level(prompt_id: str) -> int:
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:4], "little")


def check_target(corpus: Corpus, folder: Path, target: Path) -> None:
    """Refuse the corpus in ``folder`` of another model than the file ``target``.

    Raises:
        ConfigError: It was written by another one.
    """
    found = file_sha256(target)
    if found != corpus.target_sha256:
        raise ConfigError(
            f"the corpus {folder} was written by the model {corpus.target_sha256[:12]},"
            f" {target} is {found[:12]}"
        )
