"""Appends answers to the folder of a corpus, so that it can be continued after any end.

Knows no model and no text; what decides the answers comes as a header that must not change.
"""

import fcntl
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from blockdraft.errors import ConfigError
from blockdraft.train.shard_files import (
    CorpusSequence,
    Shard,
    has_manifest,
    read_manifest,
    read_shard,
    shard_path,
    shard_paths,
    write_manifest,
    write_shard,
)

__all__ = ["CorpusWriter"]

_LOCK = ".lock"


class CorpusWriter:
    """Writes one corpus; no other process can meanwhile.

    Answers stay in memory until there are enough for a shard, or until `flush`. Leaving the
    ``with`` block flushes.

    Attributes:
        resumed: The sequences that the folder had when it was opened.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], *, shard_answers: int) -> None:
        """Begin a corpus, or go on with the one in ``folder``.

        Args:
            folder: Made when it does not exist.
            header: The manifest but for its counts: "target" with "sha256" and "vocab_size", and
                whatever decides the answers.
            shard_answers: Answers of a shard, the dropped ones included.

        Raises:
            ConfigError: The folder has a corpus with another header (the message names the first
                difference and both values), another process writes it, or it has other files.
            FileFormatError: A file of the corpus is damaged or missing.
        """
        self._folder = folder
        # As it comes back from a file: tuples are lists, keys are strings.
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self._vocab_size: int = self._header["target"]["vocab_size"]
        self._shard_answers = shard_answers
        self._pending: list[CorpusSequence | str] = []
        self._written: list[Shard] = []
        self._lock = _locked(folder)
        try:
            self._resume()
        except BaseException:
            self._lock.close()
            raise
        self.resumed = [one for shard in self._written for one in shard.sequences]

    @property
    def num_answered(self) -> int:
        """Answers kept and dropped, those in memory included."""
        return sum(shard.num_answers for shard in self._written) + len(self._pending)

    @property
    def counts(self) -> dict[str, int]:
        """Answers by what became of them, and tokens of those kept, those in memory included."""
        parts = [*(shard.counts for shard in self._written), _counts(self._pending)]
        return dict(sum(map(Counter, parts), Counter()))

    def add(self, sequence: CorpusSequence) -> None:
        """Append a sequence."""
        self._append(sequence)

    def drop(self, reason: str) -> None:
        """Count an answer that is not kept."""
        self._append(reason)

    def flush(self) -> None:
        """Write what is in memory as a shard, and the manifest."""
        if not self._pending:
            return
        sequences = [one for one in self._pending if isinstance(one, CorpusSequence)]
        shard = Shard(sequences, _counts(self._pending), len(self._pending))
        write_shard(shard_path(self._folder, len(self._written)), shard, self._vocab_size)
        # In this order a Ctrl-C in between cannot write an answer twice: the shard just written
        # counts when the folder is opened again.
        self._pending = []
        self._written.append(shard)
        self._write_manifest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.flush()
        finally:
            self._lock.close()

    def _append(self, answer: CorpusSequence | str) -> None:
        self._pending.append(answer)
        if len(self._pending) >= self._shard_answers:
            self.flush()

    def _resume(self) -> None:
        folder = self._folder
        if has_manifest(folder):
            manifest = read_manifest(folder)
            begun = {key: manifest.get(key) for key in self._header}
            _check_same(begun, self._header, str(folder))
            paths = shard_paths(folder, manifest)
            self._written = [read_shard(path, self._vocab_size) for path in paths]
            return
        others = sorted(path.name for path in folder.iterdir() if path.name != _LOCK)
        if others:
            raise ConfigError(f"{folder} has no corpus, but other files: {others[0]}")
        self._write_manifest()

    def _write_manifest(self) -> None:
        state = {"num_shards": len(self._written), "counts": self.counts}
        made_by = {"blockdraft_version": version("blockdraft")}
        write_manifest(self._folder, made_by | self._header | state)


def _counts(answers: Sequence[CorpusSequence | str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for answer in answers:
        if isinstance(answer, CorpusSequence):
            counts["kept"] += 1
            counts["tokens"] += len(answer.token_ids)
            counts["answer_tokens"] += len(answer.answer_ids)
        else:
            counts[answer] += 1
    return counts


def _locked(folder: Path) -> IO[str]:
    """Make the folder and hold its lock; the system frees it when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / _LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(f"another process writes the corpus {folder}") from error
    return file


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> None:
    """Refuse settings that differ from the manifest's, naming the first difference."""
    for key in sorted(found.keys() | wanted.keys()):
        here, value = found.get(key), wanted.get(key)
        if isinstance(here, dict) and isinstance(value, dict):
            _check_same(here, value, f"{place}, {key}")
        elif here != value:
            raise ConfigError(
                f"{place} was begun with {key} {json.dumps(here)}, not {json.dumps(value)}; "
                "take another folder or the same settings"
            )
