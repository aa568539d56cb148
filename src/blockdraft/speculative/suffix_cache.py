"""Earlier answers that a suffix drafter looks into, kept in a file.

Token ids of one vocabulary, no text and no sequences that still run. Everything drafted with one
cache can show by its speed what the cache holds, so there is one for each user, never one for all.

File, little-endian: magic, version, size of the vocabulary, number of answers, number of tokens,
CRC-32 of all else; SHA-256 of the vocabulary; uint32 lengths; int32 token ids, oldest first.
"""

import logging
import os
import struct
import zlib
from collections import deque
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.weights.replacing import replacing

__all__ = ["DEPTH", "FORMAT_VERSION", "MAX_CACHE_TOKENS", "SuffixCache", "Vocabulary"]

DEPTH = 16
"""Tokens of a context at most; 32 or 64 draft nothing better."""

MAX_CACHE_TOKENS = 1 << 16
"""Tokens that a cache holds: a file of 256 KiB, read in some 16 milliseconds."""

FORMAT_VERSION = 1
"""Version of the file."""

_MAGIC = b"BDSUFFIX"
_HEADER = struct.Struct("<8sIIII")
_CHECKSUM = struct.Struct("<I")
_DIGEST_SIZE = 32

_logger = logging.getLogger(__name__)


class Vocabulary(NamedTuple):
    """What token ids mean.

    Attributes:
        size: Ids are below it.
        sha256: Of its tokens, in hex.
    """

    size: int
    sha256: str

    def check(self, path: Path, found: "Vocabulary") -> None:
        """Refuse a file of answers in another vocabulary than this one, the model's.

        Raises:
            ConfigError: It is another one.
        """
        if found != self:
            raise ConfigError(
                f"{path}: has answers in a vocabulary of {found.size} tokens ({found.sha256[:8]});"
                f" the model's has {self.size} ({self.sha256[:8]})"
            )


class SuffixCache:
    """The latest answers, at most `MAX_CACHE_TOKENS` tokens; older ones are dropped whole.

    Use `open`. Two programs with one file do not see each other: the last one to save wins.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        """An empty cache."""
        self._path = path
        self._vocabulary = vocabulary
        self._answers: deque[NDArray[np.int32]] = deque()
        self._num_tokens = 0
        # Its rotation forgets half of them at once; with twice the room it has all that are kept.
        self._text = _native.RecentText(DEPTH, 2 * MAX_CACHE_TOKENS)
        self._has_warned = False

    @classmethod
    def open(cls, path: Path, vocabulary: Vocabulary) -> Self:
        """The cache in the file ``path``; empty where there is no file yet.

        Raises:
            ConfigError: It cannot be read, its folder does not exist, or its answers are of
                another vocabulary.
            FileFormatError: It is damaged, or of another version.
        """
        cache = cls(path, vocabulary)
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: the folder {path.parent} does not exist")
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(_max_file_size() + 1)
        except FileNotFoundError:
            return cache
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise FileFormatError(
                f"{path}: has {size} bytes; a suffix cache has at most {_max_file_size()}"
            )
        for answer in _parse(path, data, vocabulary):
            cache.add(answer)
        return cache

    @property
    def automaton(self) -> _native.SuffixAutomaton:
        """All that is known; another object once in a while."""
        return self._text.automaton

    @property
    def answers(self) -> tuple[NDArray[np.int32], ...]:
        """What is kept, oldest first, int32 [tokens] each."""
        return tuple(self._answers)

    def add(self, token_ids: NDArray[np.int32]) -> None:
        """Keep an answer, or the end of one that is longer than the cache."""
        answer = token_ids[-MAX_CACHE_TOKENS:].astype(np.int32)
        if not len(answer):
            return
        self._answers.append(answer)
        self._num_tokens += len(answer)
        while self._num_tokens > MAX_CACHE_TOKENS:
            self._num_tokens -= len(self._answers.popleft())
        self._text.extend(answer)
        self._text.separate()

    def save(self) -> None:
        """Write the file, readable by its owner alone; if that fails the log says so, once."""
        lengths = np.array([len(answer) for answer in self._answers], "<u4")
        tokens = np.concatenate([*self._answers, np.empty(0, np.int32)]).astype("<i4")
        size, sha256 = self._vocabulary
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, size, len(lengths), len(tokens))
        body = bytes.fromhex(sha256) + lengths.tobytes() + tokens.tobytes()
        try:
            with replacing(self._path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(header + _CHECKSUM.pack(zlib.crc32(header + body)) + body)
        except OSError as error:
            if not self._has_warned:
                _logger.warning("%s: the answers could not be kept: %s", self._path, error)
            self._has_warned = True


def _max_file_size() -> int:
    # At most one answer for each token.
    return _HEADER.size + _CHECKSUM.size + _DIGEST_SIZE + 8 * MAX_CACHE_TOKENS


def _parse(path: Path, data: bytes, vocabulary: Vocabulary) -> list[NDArray[np.int32]]:
    """The answers in a file's bytes."""
    first = _HEADER.size + _CHECKSUM.size
    if data[: len(_MAGIC)] != _MAGIC:
        raise FileFormatError(f"{path}: is no suffix cache; it starts with {data[:8]!r}")
    if len(data) < first + _DIGEST_SIZE:
        raise FileFormatError(f"{path}: is cut short: it has {len(data)} bytes")
    _, version, size, num_answers, num_tokens = _HEADER.unpack_from(data)
    if version != FORMAT_VERSION:
        raise FileFormatError(f"{path}: has version {version}; this program reads {FORMAT_VERSION}")
    expected = first + _DIGEST_SIZE + 4 * (num_answers + num_tokens)
    if len(data) != expected:
        raise FileFormatError(f"{path}: has {len(data)} bytes; its header says {expected}")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    found = zlib.crc32(data[first:], zlib.crc32(data[: _HEADER.size]))
    if found != checksum:
        raise FileFormatError(f"{path}: is damaged: its checksum is {found}, not {checksum}")
    sha256 = data[first : first + _DIGEST_SIZE].hex()
    vocabulary.check(path, Vocabulary(size, sha256))
    lengths = np.frombuffer(data, "<u4", num_answers, first + _DIGEST_SIZE).astype(np.int64)
    tokens = np.frombuffer(data, "<i4", num_tokens, len(data) - 4 * num_tokens).astype(np.int32)
    if lengths.sum() != num_tokens or not np.all((tokens >= 0) & (tokens < size)):
        raise FileFormatError(f"{path}: its lengths or token ids are out of range")
    return np.split(tokens, np.cumsum(lengths)[:-1]) if num_answers else []
