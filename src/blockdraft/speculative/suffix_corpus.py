"""Many answers of a model, made once and looked into by every suffix drafter.

Where a suffix cache grows with the answers of one user, a corpus is the model's answers to prompts
that anybody may know, and stays as it is. Its suffixes lie in order in the file, which is mapped:
nothing is built at load, and memory is shared. Knows token ids of one vocabulary, no text.

File, little-endian: magic, version, size of the vocabulary, number of tokens, CRC-32 of all else;
SHA-256 of the vocabulary; int32 token ids, answer after answer, -1 after each; int32 places of the
tokens, ascending by the `DEPTH` + 1 tokens from there on.
"""

import mmap
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.speculative.suffix_cache import DEPTH, Vocabulary
from blockdraft.weights.replacing import replacing

__all__ = ["CORPUS_VERSION", "MAX_CORPUS_TOKENS", "open_suffix_corpus", "write_suffix_corpus"]

CORPUS_VERSION = 1
"""Version of the file."""

MAX_CORPUS_TOKENS = 1 << 26
"""Tokens that a corpus has at most: a file of 512 MiB."""

_MAGIC = b"BDCORPUS"
_HEADER = struct.Struct("<8sIIII")
_DIGEST_SIZE = 32
_MARK = -1
_FIRST = _HEADER.size + _DIGEST_SIZE


def write_suffix_corpus(
    path: Path, answers: Iterable[NDArray[np.int32]], vocabulary: Vocabulary
) -> int:
    """Write the file; returns the number of its tokens, the marks between answers included.

    Args:
        path: Written under another name first.
        answers: Token ids, int32 [tokens] each.
        vocabulary: What they mean.

    Raises:
        ConfigError: There are no answers, or more than `MAX_CORPUS_TOKENS`.
    """
    mark = np.array([_MARK], np.int32)
    parts = [part for answer in answers if len(answer) for part in (answer, mark)]
    if not parts:
        raise ConfigError(f"{path}: there are no answers to look drafts up in")
    token_ids = np.concatenate(parts).astype("<i4")
    if len(token_ids) > MAX_CORPUS_TOKENS:
        raise ConfigError(
            f"{path}: {len(token_ids)} tokens; a suffix corpus has at most {MAX_CORPUS_TOKENS}"
        )
    body = bytes.fromhex(vocabulary.sha256) + token_ids.tobytes()
    body += _in_order(token_ids).astype("<i4").tobytes()
    size = len(token_ids)
    header = _HEADER.pack(_MAGIC, CORPUS_VERSION, vocabulary.size, size, zlib.crc32(body))
    with replacing(path) as file:
        file.write(header + body)
    return size


def open_suffix_corpus(path: Path, vocabulary: Vocabulary) -> _native.OrderedText:
    """The corpus in the file ``path``.

    Raises:
        ConfigError: It cannot be read, or is of another vocabulary.
        FileFormatError: It is damaged, or of another version.
    """
    data = _mapped(path)
    num_tokens = _check(path, data, vocabulary)
    token_ids = np.frombuffer(data, "<i4", num_tokens, _FIRST)
    places = np.frombuffer(data, "<i4", num_tokens, _FIRST + 4 * num_tokens)
    if num_tokens and int(token_ids.max()) >= vocabulary.size:
        raise FileFormatError(f"{path}: token {token_ids.max()} is not below {vocabulary.size}")
    try:
        return _native.OrderedText(token_ids, places, DEPTH)
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: is empty") from error


def _check(path: Path, data: mmap.mmap, vocabulary: Vocabulary) -> int:
    """Refuse a file that is not whole or of another vocabulary; returns its number of tokens."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise FileFormatError(f"{path}: is no suffix corpus; it starts with {data[:8]!r}")
    if len(data) < _FIRST:
        raise FileFormatError(f"{path}: is cut short: it has {len(data)} bytes")
    _, version, vocab_size, num_tokens, checksum = _HEADER.unpack_from(data)
    if version != CORPUS_VERSION:
        raise FileFormatError(f"{path}: has version {version}; this program reads {CORPUS_VERSION}")
    expected = _FIRST + 8 * num_tokens
    if len(data) != expected:
        raise FileFormatError(f"{path}: has {len(data)} bytes; its header says {expected}")
    found = zlib.crc32(memoryview(data)[_HEADER.size :])
    if found != checksum:
        raise FileFormatError(f"{path}: is damaged: its checksum is {found}, not {checksum}")
    sha256 = data[_HEADER.size : _FIRST].hex()
    vocabulary.check(path, Vocabulary(vocab_size, sha256))
    return int(num_tokens)


def _in_order(token_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Places ascending by the `DEPTH` + 1 tokens from there on, by doubling."""
    ranks = np.unique(token_ids, return_inverse=True)[1].astype(np.int64)
    span = 1
    while span <= DEPTH:
        # What begins alike for `span` tokens is told apart by the next `span`; the end comes first.
        following = np.zeros_like(ranks)
        following[:-span] = ranks[span:] + 1
        keys = ranks * (len(ranks) + 1) + following
        ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        span *= 2
    return np.argsort(ranks, kind="stable")
