"""The files of a corpus folder: a manifest, and shards of token ids.

``manifest.json`` says where the answers come from, how they were made, and how many there are.
``shard-00000.npz``, ``shard-00001.npz``, ... hold n sequences each:

* ``token_ids``: prompt and answer of every sequence, one after the other; uint16, or uint32 for
  vocabularies beyond 65,536 tokens.
* ``lengths``, ``prompt_lengths``: uint32 [n].
* ``labels``: UTF-8 bytes of a JSON object with the lists ``prompt_ids`` and ``categories`` [n],
  the object ``counts`` and the number ``num_answers``, the dropped ones included.

A shard is whole or absent, since it gets its name when it is complete. The shards are the truth;
the counts of the manifest follow them. Knows no model and no text.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.weights.replacing import replacing

__all__ = [
    "FORMAT_VERSION",
    "CorpusSequence",
    "Shard",
    "file_sha256",
    "has_manifest",
    "read_manifest",
    "read_shard",
    "shard_path",
    "shard_paths",
    "token_dtype",
    "write_manifest",
    "write_shard",
]

FORMAT_VERSION = 1
"""Version of the folder's layout."""

_FORMAT = "blockdraft corpus"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class CorpusSequence:
    """One prompt with the target's answer.

    Attributes:
        token_ids: Prompt and answer, the token that ended it included; int32 [tokens].
        prompt_length: Tokens of the prompt; the answer begins there.
        category: What kind of prompt it is.
        prompt_id: Its name.
    """

    token_ids: NDArray[np.int32]
    prompt_length: int
    category: str
    prompt_id: str

    @property
    def answer_ids(self) -> NDArray[np.int32]:
        """The answer alone, a view."""
        return self.token_ids[self.prompt_length :]


@dataclass(frozen=True, slots=True)
class Shard:
    """What one shard holds.

    Attributes:
        sequences: In the order in which they were written.
        counts: Answers by what became of them, and their tokens.
        num_answers: Answers, the dropped ones included.
    """

    sequences: Sequence[CorpusSequence]
    counts: Mapping[str, int]
    num_answers: int


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """What the ids of a vocabulary are stored as."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def has_manifest(folder: Path) -> bool:
    """Whether a corpus was begun in the folder."""
    return (folder / _MANIFEST).exists()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a corpus.

    Raises:
        ConfigError: There is no corpus.
        FileFormatError: The manifest is damaged or of another version.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} has no corpus: there is no {_MANIFEST}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        kind = f"{manifest['format']} version {manifest['format_version']}"
        target = manifest["target"]
        facts = (manifest["num_shards"], target["vocab_size"], target["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is damaged: {error!r}") from error
    wanted = f"{_FORMAT} version {FORMAT_VERSION}"
    if kind != wanted:
        raise FileFormatError(f"{path} is {kind}, not {wanted}")
    if [type(fact) for fact in facts] != [int, int, str]:
        raise FileFormatError(f"{path} is damaged: shards, vocabulary, target are {facts}")
    return manifest


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write or replace the manifest."""
    document = {"format": _FORMAT, "format_version": FORMAT_VERSION, **facts}
    with replacing(folder / _MANIFEST) as file:
        file.write(json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")


def shard_path(folder: Path, number: int) -> Path:
    """Where the shard of that number lies."""
    return folder / f"shard-{number:05d}.npz"


def shard_paths(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Every shard in order; the manifest may be older than the last of them.

    Raises:
        FileFormatError: One is missing.
    """
    found = set(folder.glob("shard-*.npz"))
    number = max(len(found), manifest["num_shards"])
    paths = [shard_path(folder, i) for i in range(number)]
    for path in paths:
        if path not in found:
            raise FileFormatError(f"{path} is missing: the corpus has {number} shards")
    return paths


def write_shard(path: Path, shard: Shard, vocab_size: int) -> None:
    """Write a shard, whole or not at all."""
    dtype = token_dtype(vocab_size)
    sequences = shard.sequences
    labels = {
        "prompt_ids": [sequence.prompt_id for sequence in sequences],
        "categories": [sequence.category for sequence in sequences],
        "counts": dict(shard.counts),
        "num_answers": shard.num_answers,
    }
    token_ids = [sequence.token_ids.astype(dtype) for sequence in sequences]
    with replacing(path) as file:
        np.savez_compressed(
            file,
            token_ids=np.concatenate([np.empty(0, dtype), *token_ids]),
            lengths=np.array([len(ids) for ids in token_ids], "<u4"),
            prompt_lengths=np.array([one.prompt_length for one in sequences], "<u4"),
            labels=np.frombuffer(json.dumps(labels, ensure_ascii=False).encode(), np.uint8),
        )


def read_shard(path: Path, vocab_size: int) -> Shard:
    """The content of a shard.

    Raises:
        FileFormatError: It is damaged, or has tokens that the vocabulary has not.
    """
    try:
        # numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            token_ids = arrays["token_ids"].astype(np.int32)
            lengths = arrays["lengths"].astype(np.int64)
            prompt_lengths = arrays["prompt_lengths"].tolist()
            labels = json.loads(arrays["labels"].tobytes())
        pieces = np.split(token_ids, np.cumsum(lengths)[:-1]) if len(lengths) else []
        columns = (prompt_lengths, labels["categories"], labels["prompt_ids"])
        sequences = [CorpusSequence(*row) for row in zip(pieces, *columns, strict=True)]
        shard = Shard(sequences, labels["counts"], labels["num_answers"])
    # What numpy's reader raises for a damaged file depends on where the damage is.
    except (
        OSError,
        EOFError,
        LookupError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    if len(token_ids) != lengths.sum():
        about = f"{len(token_ids)} tokens, its lengths say {lengths.sum()}"
        raise FileFormatError(f"{path} has {about}")
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        raise FileFormatError(f"{path} has a token that is not in the vocabulary of {vocab_size}")
    for sequence in sequences:
        if not 0 < sequence.prompt_length < len(sequence.token_ids):
            about = f"{sequence.prompt_length} of {len(sequence.token_ids)} tokens are its prompt"
            raise FileFormatError(f"{path}, {sequence.prompt_id}: {about}")
    return shard


def file_sha256(path: Path) -> str:
    """Checksum of a file, as a manifest has its target's."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
