"""What a GGUF file says about its tokenizer, checked and typed.

Knows the metadata keys and llama.cpp's conventions about them, such as which tokens end a
generation; knows nothing of merging, caching or decoding.

Source: the GGUF specification's ``tokenizer.ggml`` keys; for special tokens recognised by their
text, llama.cpp's ``llama-vocab``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from blockdraft.errors import FileFormatError, UnsupportedError
from blockdraft.tokenizer.pretokenizers import PreTokenizer, find_pretokenizer

__all__ = ["Family", "TokenType", "Vocabulary", "read_vocabulary"]

_PREFIX = "tokenizer.ggml."
# The longest token of a published vocabulary has 128 characters; deriving merges is quadratic.
_MAX_TOKEN_CHARS = 1024

_END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    }
)
_FILL_TEXTS = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "\u2581<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "\u2581<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "\u2581<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
# A model that fills in the middle starts the next file with one of these: the text is over.
_ENDING_FILLS = ("fim_pad", "fim_rep", "fim_sep")


class Family(Enum):
    """How text becomes tokens."""

    BYTE_LEVEL = "gpt2"
    SENTENCEPIECE = "llama"


class TokenType(IntEnum):
    """Token types of the GGUF specification."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """One tokenizer as its file describes it.

    Attributes:
        family: How text becomes tokens.
        texts: Text of every token as stored (byte-level text is in the GPT-2 alphabet).
        types: One `TokenType` value per token.
        scores: One per token; empty for byte-level vocabularies.
        merges: ``"left right"`` by falling priority; empty for SentencePiece vocabularies.
        pretokenizer: How text is cut into words; None for SentencePiece vocabularies.
        bos_id: Token a text starts with, or None.
        eos_id: Token a text ends with, or None.
        unknown_id: Token of what cannot be written, or None.
        padding_id: Padding token, or None.
        end_ids: Every token that ends a generation, ``eos_id`` included.
        add_bos: Whether a text starts with ``bos_id``.
        add_eos: Whether a text ends with ``eos_id``.
        add_space_prefix: Whether a space goes before text that follows a special token.
        chat_template: Jinja source, or None.
    """

    family: Family
    texts: Sequence[str]
    types: bytes
    scores: Sequence[float]
    merges: Sequence[str]
    pretokenizer: PreTokenizer | None
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """The tokenizer described by a file's metadata.

    Args:
        metadata: Values by GGUF key; arrays may be any sequence, or one-dimensional numpy arrays.

    Raises:
        FileFormatError: A key is missing, has the wrong type or contradicts another.
        UnsupportedError: The tokenizer or its pre-tokenizer is of a kind we do not have.
    """
    keys = _Keys(metadata)
    family = _family(keys.text("model"))
    texts = keys.texts("tokens")
    ids = _index(texts)
    types = _types(keys, len(texts))
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    pretokenizer = None
    if family is Family.BYTE_LEVEL:
        pretokenizer = find_pretokenizer(keys.text("pre", "default"))
        merges = keys.texts("merges")
    else:
        scores = keys.numbers("scores", len(texts)).astype(np.float64).tolist()
    is_piece = family is Family.SENTENCEPIECE
    vocabulary = Vocabulary(
        family=family,
        texts=texts,
        types=bytes(_mark_controls(types, ids)),
        scores=scores,
        merges=merges,
        pretokenizer=pretokenizer,
        bos_id=keys.token("bos_token_id", len(texts)),
        eos_id=keys.token("eos_token_id", len(texts)),
        unknown_id=keys.token("unknown_token_id", len(texts)),
        padding_id=keys.token("padding_token_id", len(texts)),
        end_ids=_end_ids(keys, ids, len(texts)),
        add_bos=keys.flag("add_bos_token", pretokenizer.add_bos if pretokenizer else True),
        add_eos=keys.flag("add_eos_token", False),
        add_space_prefix=is_piece and keys.flag("add_space_prefix", True),
        chat_template=keys.template(),
    )
    _check_added(vocabulary)
    return vocabulary


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to ``tokenizer.ggml`` keys; errors name the key and what it holds."""

    metadata: Mapping[str, object]
    prefix: str = field(default=_PREFIX)

    def _find(self, key: str) -> object:
        if self.prefix + key not in self.metadata:
            raise FileFormatError(f"the file has no metadata key {self.prefix + key}")
        return self.metadata[self.prefix + key]

    def _has(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def _wrong(self, key: str, expected: str) -> FileFormatError:
        kind = type(self.metadata[self.prefix + key]).__name__
        return FileFormatError(f"{self.prefix + key} must be {expected}, it is of type {kind}")

    def text(self, key: str, default: str | None = None) -> str:
        value = default if default is not None and not self._has(key) else self._find(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._find(key) if self._has(key) else default
        if not isinstance(value, bool):
            raise self._wrong(key, "a bool")
        return value

    def token(self, key: str, num_tokens: int) -> int | None:
        if not self._has(key):
            return None
        value = self._find(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer")
        if not 0 <= value < num_tokens:
            raise FileFormatError(
                f"{self.prefix + key} is {value}, the vocabulary has {num_tokens} tokens"
            )
        return value

    def texts(self, key: str) -> list[str]:
        value = self._find(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._wrong(key, "an array of strings")
        texts = list(value)
        if not all(isinstance(text, str) for text in texts):
            raise self._wrong(key, "an array of strings")
        return texts

    def numbers(self, key: str, count: int) -> np.ndarray:
        value = self._find(key)
        if not isinstance(value, np.ndarray | Sequence) or isinstance(value, str):
            raise self._wrong(key, "an array of numbers")
        numbers = np.asarray(value)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
            raise self._wrong(key, "an array of numbers")
        if len(numbers) != count:
            raise FileFormatError(
                f"{self.prefix + key} has {len(numbers)} entries, the vocabulary {count} tokens"
            )
        return numbers

    def types(self, count: int) -> np.ndarray | None:
        return self.numbers("token_type", count) if self._has("token_type") else None

    def template(self) -> str | None:
        value = self.metadata.get("tokenizer.chat_template")
        if value is not None and not isinstance(value, str):
            raise FileFormatError(
                f"tokenizer.chat_template must be a string, it is of type {type(value).__name__}"
            )
        return value


def _family(model: str) -> Family:
    try:
        return Family(model)
    except ValueError:
        names = ", ".join(family.value for family in Family)
        raise UnsupportedError(
            f"tokenizer model {model!r} is not supported; supported: {names}"
        ) from None


def _index(texts: Sequence[str]) -> dict[str, int]:
    """Ids by text, of texts that are not empty."""
    if not texts:
        raise FileFormatError("tokenizer.ggml.tokens is empty")
    longest = max(range(len(texts)), key=lambda idx: len(texts[idx]))
    if len(texts[longest]) > _MAX_TOKEN_CHARS:
        raise FileFormatError(
            f"token {longest} has {len(texts[longest])} characters, at most"
            f" {_MAX_TOKEN_CHARS} are allowed"
        )
    ids = {text: idx for idx, text in enumerate(texts) if text}
    if len(ids) != len(texts) - texts.count(""):
        first = next(idx for idx, text in enumerate(texts) if text and ids[text] != idx)
        raise FileFormatError(
            f"tokens {first} and {ids[texts[first]]} have the same text {texts[first]!r}"
        )
    return ids


def _types(keys: _Keys, count: int) -> bytearray:
    numbers = keys.types(count)
    if numbers is None:
        return bytearray([TokenType.NORMAL]) * count
    known = (numbers >= min(TokenType)) & (numbers <= max(TokenType))
    return bytearray(np.where(known, numbers, TokenType.UNDEFINED).astype(np.uint8).tobytes())


def _mark_controls(types: bytearray, ids: Mapping[str, int]) -> bytearray:
    """Types in which tokens whose text says they steer are control tokens, as in llama.cpp."""
    for text in _END_TEXTS.union(*_FILL_TEXTS.values()):
        if text in ids:
            types[ids[text]] = TokenType.CONTROL
    return types


def _end_ids(keys: _Keys, ids: Mapping[str, int], count: int) -> frozenset[int]:
    found = {keys.token(f"{name}_token_id", count) for name in ("eos", "eot", "eom")}
    for name in _ENDING_FILLS:
        declared = keys.token(f"{name}_token_id", count)
        by_text = sorted(ids[text] for text in _FILL_TEXTS[name] if text in ids)
        found.add(declared if declared is not None else next(iter(by_text), None))
    found.update(ids[text] for text in _END_TEXTS if text in ids)
    return frozenset(idx for idx in found if idx is not None)


def _check_added(vocabulary: Vocabulary) -> None:
    if vocabulary.add_bos and vocabulary.bos_id is None:
        raise FileFormatError("the file wants a BOS token added but names none")
    if vocabulary.add_eos and vocabulary.eos_id is None:
        raise FileFormatError("the file wants an EOS token added but names none")
