"""Text to token ids and back, as the model's own tokenizer does it.

Knows no models and no files: a tokenizer is made from a mapping of GGUF metadata, and kept
compiled in a cache directory under a digest of that metadata. Agrees with llama.cpp on the same
metadata.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Protocol, Self

import tokenizers

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.tokenizer.cache import default_cache_dir, load_compiled, save_compiled
from blockdraft.tokenizer.chat_template import ChatTemplate
from blockdraft.tokenizer.compiled import (
    SPACE,
    CompiledModel,
    CompiledVocabulary,
    compile_vocabulary,
)
from blockdraft.tokenizer.decoding import StreamDecoder, TokenTable, decode_all
from blockdraft.tokenizer.special import SpecialTokens
from blockdraft.tokenizer.vocabulary import Family, TokenType, read_vocabulary

__all__ = ["MetadataFile", "Tokenizer"]

_logger = logging.getLogger(__name__)


class MetadataFile(Protocol):
    """What `Tokenizer.from_gguf` needs of an open model file."""

    @property
    def metadata(self) -> Mapping[str, object]:
        """Values by GGUF key."""

    def metadata_digest(self) -> str:
        """A digest of every ``tokenizer.*`` key and its value."""


class Tokenizer:
    """One model's tokenizer.

    Safe to use from several threads. The models behind `encode` are loaded at the first text
    that needs them.

    Attributes:
        bos_id: Token a text starts with, or None.
        eos_id: Token a text ends with, or None.
        padding_id: Padding token, or None.
        eos_ids: Every token that ends a generation.
        adds_bos: Whether ``add_special`` puts ``bos_id`` first.
        adds_eos: Whether ``add_special`` puts ``eos_id`` last.
        chat_template: The file's chat template; None for a base model.
    """

    def __init__(self, compiled: CompiledVocabulary, *, name: str = "") -> None:
        """Use a compiled vocabulary; ``name`` is the model's, for messages."""
        info = compiled.info
        self.bos_id = info.bos_id
        self.eos_id = info.eos_id
        self.padding_id = info.padding_id
        self.eos_ids = frozenset(info.end_ids)
        self.adds_bos = info.add_bos
        self.adds_eos = info.add_eos
        self._table = TokenTable(compiled)
        self._is_piece = info.family == Family.SENTENCEPIECE.value
        self._space_prefix = info.add_space_prefix
        self._ascii = _Encoder(compiled.ascii_model)
        self._full = _Encoder(compiled.full_model)
        texts = {self._table.text(idx): idx for idx in info.special_ids}
        self._all_special = SpecialTokens(texts)
        self._user_special = SpecialTokens(
            {
                text: idx
                for text, idx in texts.items()
                if compiled.types[idx] == TokenType.USER_DEFINED
            }
        )
        self.chat_template = self._template(info.chat_template, info.unknown_id, name)

    @classmethod
    def from_gguf(cls, file: MetadataFile, *, cache_dir: Path | None = None) -> Self:
        """The tokenizer of an open model file; see `from_metadata`."""
        name = file.metadata.get("general.name")
        return cls.from_metadata(
            file.metadata,
            file.metadata_digest(),
            name=name if isinstance(name, str) else "",
            cache_dir=cache_dir,
        )

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, object],
        digest: str,
        *,
        name: str = "",
        cache_dir: Path | None = None,
    ) -> Self:
        """The tokenizer described by ``metadata``, from the cache when it is there.

        Args:
            metadata: Values by GGUF key; arrays may be any sequence, or numpy arrays. Not read
                when the cache has the tokenizer.
            digest: Letters and digits that change when a ``tokenizer.*`` value changes.
            name: The model's name, for messages.
            cache_dir: Where compiled tokenizers are kept; None is ``default_cache_dir()``.

        Raises:
            ConfigError: ``digest`` has other characters than letters and digits.
            FileFormatError: The metadata is damaged.
            UnsupportedError: The tokenizer is of a kind we do not have.
        """
        if not (digest.isascii() and digest.isalnum()):
            raise ConfigError(f"tokenizer digest {digest!r} must consist of letters and digits")
        directory = default_cache_dir() if cache_dir is None else cache_dir
        compiled = load_compiled(directory, digest)
        if compiled is None:
            _logger.info("compiling the tokenizer of %s", name or "the model")
            compiled = compile_vocabulary(read_vocabulary(metadata))
            save_compiled(directory, digest, compiled)
        return cls(compiled, name=name)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return len(self._table)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The token ids of ``text``.

        A byte that a byte-level vocabulary has no token for is left out, as in llama.cpp:
        SmolLM2's lacks six control characters and the first bytes of unassigned planes.

        Args:
            text: Any Unicode text without surrogates.
            add_special: Add the BOS and EOS tokens that the file asks for.
            parse_special: Control tokens written out in ``text`` become those tokens, as in a
                rendered chat template; otherwise they are text like any other.

        Raises:
            ConfigError: ``text`` has a surrogate, which no byte sequence stands for.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"text has the surrogate U+{ord(text[error.start]):04X} at {error.start}"
            ) from None
        token_ids: list[int] = []
        if add_special and self.adds_bos and self.bos_id is not None:
            token_ids.append(self.bos_id)
        special = self._all_special if parse_special else self._user_special
        after_special = True
        for piece in special.split(text):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += self._encode_plain(piece, after_special=after_special)
            after_special = isinstance(piece, int)
        if add_special and self.adds_eos and self.eos_id is not None:
            token_ids.append(self.eos_id)
        return token_ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ``token_ids``, with U+FFFD where bytes form no character.

        Args:
            token_ids: Any tokens; the text is that of their bytes, nothing is stripped.
            skip_special: Control tokens leave no trace in the text.

        Raises:
            ConfigError: There is no such token.
        """
        return decode_all(self._table, token_ids, skip_special=skip_special)

    def stream_decoder(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens as they arrive; see `decode`."""
        return StreamDecoder(self._table, skip_special=skip_special)

    def token_text(self, token_id: int) -> str:
        """The text of a token as its vocabulary stores it.

        Raises:
            ConfigError: There is no such token.
        """
        return self._table.text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; special tokens stand for their own text.

        Raises:
            ConfigError: There is no such token.
        """
        return self._table.data(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether a token steers and is no part of the text.

        Raises:
            ConfigError: There is no such token.
        """
        return self._table.is_silent(token_id)

    def _encode_plain(self, text: str, *, after_special: bool) -> list[int]:
        """The ids of text without special tokens."""
        if self._is_piece:
            prefix = " " if self._space_prefix and after_special else ""
            text = f"{prefix}{text}"
        is_ascii = text.isascii() and not self._full.is_loaded
        if self._is_piece:
            text = text.replace(" ", SPACE)
        if is_ascii:
            return self._ascii.encode(text)
        self._ascii.unload()
        return self._full.encode(text)

    def _template(
        self, source: str | None, unknown_id: int | None, name: str
    ) -> ChatTemplate | None:
        if source is None:
            return None
        ids = {
            "bos_token": self.bos_id,
            "eos_token": self.eos_id,
            "pad_token": self.padding_id,
            "unk_token": unknown_id,
        }
        texts = {key: self.token_text(idx) for key, idx in ids.items() if idx is not None}
        return ChatTemplate(source, name=name, token_texts=texts)


class _Encoder:
    """A model of the ``tokenizers`` library, loaded when first used."""

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._ids = memoryview(model.ids).cast("B").cast("I")
        self._tokenizer: tokenizers.Tokenizer | None = None

    @property
    def is_loaded(self) -> bool:
        return self._tokenizer is not None

    def unload(self) -> None:
        self._tokenizer = None

    def encode(self, text: str) -> list[int]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = self._load()
            self._tokenizer = tokenizer
        found = tokenizer.encode(text, add_special_tokens=False).ids
        ids, spelled = self._ids, self._model.spelled
        if spelled:
            parts = (spelled[idx] if idx in spelled else (ids[idx],) for idx in found)
            return list(chain.from_iterable(parts))
        return [ids[idx] for idx in found]

    def _load(self) -> tokenizers.Tokenizer:
        try:
            return tokenizers.Tokenizer.from_buffer(bytes(self._model.document))
        except Exception as error:  # The library raises Exception itself.
            raise FileFormatError(f"the tokenizer cannot be loaded: {error}") from error
