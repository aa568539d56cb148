"""Bytes of tokens, and text from them as they arrive.

A token may hold part of a character; text is handed out in whole characters only.
"""

import codecs
import re
from collections.abc import Iterable

from blockdraft.errors import ConfigError
from blockdraft.tokenizer.alphabet import from_alphabet
from blockdraft.tokenizer.compiled import SPACE, CompiledVocabulary
from blockdraft.tokenizer.vocabulary import Family, TokenType

__all__ = ["StreamDecoder", "TokenTable", "decode_all"]

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_SILENT = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})
_LITERAL = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})


class TokenTable:
    """Text and bytes of every token."""

    def __init__(self, compiled: CompiledVocabulary) -> None:
        self._texts = compiled.texts
        self._offsets = memoryview(compiled.offsets).cast("B").cast("I")
        self._types = compiled.types
        self._byte_level = compiled.info.family == Family.BYTE_LEVEL.value

    def __len__(self) -> int:
        return len(self._types)

    def text(self, token_id: int) -> str:
        """The text of a token as its vocabulary stores it.

        Raises:
            ConfigError: There is no such token.
        """
        self._check(token_id)
        start, end = self._offsets[token_id], self._offsets[token_id + 1]
        return bytes(self._texts[start:end]).decode()

    def is_silent(self, token_id: int) -> bool:
        """Whether a token steers and is no part of the text.

        Raises:
            ConfigError: There is no such token.
        """
        self._check(token_id)
        return self._types[token_id] in _SILENT

    def data(self, token_id: int) -> bytes:
        """The bytes that a token stands for; special tokens stand for their own text.

        Raises:
            ConfigError: There is no such token.
        """
        text = self.text(token_id)
        kind = self._types[token_id]
        if kind in _LITERAL:
            return text.encode()
        if kind == TokenType.BYTE:
            match = _BYTE_TOKEN.fullmatch(text)
            return bytes.fromhex(match[1]) if match else text.encode()
        if kind != TokenType.NORMAL:
            return b""
        return from_alphabet(text) if self._byte_level else text.replace(SPACE, " ").encode()

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._types):
            raise ConfigError(f"token {token_id}: the vocabulary has {len(self._types)} tokens")


class StreamDecoder:
    """Text from tokens as they arrive.

    All that `feed` and the final `flush` return, joined, is the text of all tokens at once.
    Bytes that form no character become U+FFFD, as soon as no later byte can complete them.
    """

    def __init__(self, table: TokenTable, *, skip_special: bool = True) -> None:
        """Start an empty text; with ``skip_special``, control tokens leave no trace in it."""
        self._table = table
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters that ``token_id`` completes; may be empty.

        Raises:
            ConfigError: There is no such token.
        """
        if self._skip_special and self._table.is_silent(token_id):
            return ""
        return self._decoder.decode(self._table.data(token_id))

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD; starts a new text."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def decode_all(table: TokenTable, token_ids: Iterable[int], *, skip_special: bool) -> str:
    """The text of ``token_ids``, with U+FFFD where bytes form no character.

    Raises:
        ConfigError: There is no such token.
    """
    kept = (idx for idx in token_ids if not (skip_special and table.is_silent(idx)))
    return b"".join(map(table.data, kept)).decode("utf-8", "replace")
