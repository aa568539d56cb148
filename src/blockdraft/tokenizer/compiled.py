"""A vocabulary in the form that loads fastest: flat tables and JSON.

The JSON is for models of the ``tokenizers`` library. There are two: one of the tokens made of
ASCII alone, half as big, and one of all. Merging ASCII text meets no other token, so the small one
gives the same result, and most prompts never load the big one. A model's ids follow the sorted
order of its token texts, which the library loads almost twice as fast as ids in another order; a
table leads back to the vocabulary's ids.

Knows no files and no metadata.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blockdraft.errors import FileFormatError
from blockdraft.tokenizer.alphabet import BYTE_TO_CHAR
from blockdraft.tokenizer.merges import Merge, checked_merges, derived_merges
from blockdraft.tokenizer.pretokenizers import PreTokenizer
from blockdraft.tokenizer.vocabulary import Family, TokenType, Vocabulary

__all__ = ["SPACE", "CompiledModel", "CompiledVocabulary", "TokenizerInfo", "compile_vocabulary"]

# Stands for a space in SentencePiece vocabularies.
SPACE = "\u2581"
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_SPECIAL = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The small facts; everything in it is JSON.

    Attributes:
        family: Value of `Family`.
        bos_id: Token a text starts with, or None.
        eos_id: Token a text ends with, or None.
        unknown_id: Token of what cannot be written, or None.
        padding_id: Padding token, or None.
        end_ids: Every token that ends a generation, ascending.
        add_bos: Whether a text starts with ``bos_id``.
        add_eos: Whether a text ends with ``eos_id``.
        add_space_prefix: Whether a space goes before text that follows a special token.
        special_ids: Tokens that are looked for in text before merging, ascending.
        chat_template: Jinja source, or None.
    """

    family: str
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: Sequence[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    special_ids: Sequence[int]
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """One model of the ``tokenizers`` library.

    Attributes:
        document: Its JSON.
        ids: The vocabulary's id of each of its ids: uint32 in machine order.
        spelled: The vocabulary's ids of those of its ids that stand for several. They are
            characters that are no tokens, only parts of some, and else written in bytes.
    """

    document: bytes | memoryview
    ids: bytes | memoryview
    spelled: Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class CompiledVocabulary:
    """Everything a tokenizer needs at run time.

    Attributes:
        info: The small facts.
        texts: UTF-8 of all token texts, one after the other.
        offsets: Where each text starts, and the end of the last: uint32 in machine order.
        types: One `TokenType` value per token.
        ascii_model: Model for text that is ASCII.
        full_model: Model for any text.
    """

    info: TokenizerInfo
    texts: bytes | memoryview
    offsets: bytes | memoryview
    types: bytes | memoryview
    ascii_model: CompiledModel
    full_model: CompiledModel


def compile_vocabulary(vocabulary: Vocabulary) -> CompiledVocabulary:
    """The run-time form of ``vocabulary``; takes seconds for a big SentencePiece one.

    Raises:
        FileFormatError: The merges do not fit the tokens, or a byte token is missing.
    """
    encoded = [text.encode() for text in vocabulary.texts]
    offsets = np.zeros(len(encoded) + 1, np.uint32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    special_ids = [idx for idx, kind in enumerate(vocabulary.types) if kind in _SPECIAL]
    ids = {text: idx for idx, text in enumerate(vocabulary.texts) if text}
    merges, base = _rules(vocabulary, ids)
    return CompiledVocabulary(
        info=TokenizerInfo(
            family=vocabulary.family.value,
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            unknown_id=vocabulary.unknown_id,
            padding_id=vocabulary.padding_id,
            end_ids=sorted(vocabulary.end_ids),
            add_bos=vocabulary.add_bos,
            add_eos=vocabulary.add_eos,
            add_space_prefix=vocabulary.add_space_prefix,
            special_ids=special_ids,
            chat_template=vocabulary.chat_template,
        ),
        texts=b"".join(encoded),
        offsets=offsets.tobytes(),
        types=vocabulary.types,
        ascii_model=_model(*_ascii_part(merges, base), ids, vocabulary.pretokenizer),
        full_model=_model(merges, base, ids, vocabulary.pretokenizer),
    )


def _rules(vocabulary: Vocabulary, ids: Mapping[str, int]) -> tuple[list[Merge], list[str]]:
    """The merges, and the tokens that are there without a merge."""
    if vocabulary.family is Family.BYTE_LEVEL:
        merges = checked_merges(vocabulary.merges, frozenset(ids))
        whole = vocabulary.pretokenizer is not None and vocabulary.pretokenizer.ignore_merges
        return merges, list(ids) if whole else [text for text in ids if len(text) == 1]
    for text in _BYTE_TOKENS:
        if text not in ids:
            raise FileFormatError(f"the vocabulary has no byte token {text}")
    # Spaces are written as SPACE before merging: a token with a real one is never made.
    scores = {text: vocabulary.scores[idx] for text, idx in ids.items() if " " not in text}
    chars = {text for text in scores if len(text) == 1}
    merges = derived_merges(scores)
    chars.update(part for merge in merges for part in merge if len(part) == 1)
    return merges, [*_BYTE_TOKENS, *chars]


def _ascii_part(merges: list[Merge], base: list[str]) -> tuple[list[Merge], list[str]]:
    """The rules and tokens that ASCII text can meet, in either family's way of writing it."""
    ascii_chars = frozenset([SPACE, *map(chr, range(128)), *BYTE_TO_CHAR[:128]])
    part = [merge for merge in merges if ascii_chars.issuperset(merge[0] + merge[1])]
    return part, [text for text in base if ascii_chars.issuperset(text)]


def _model(
    merges: Sequence[Merge],
    base: Iterable[str],
    ids: Mapping[str, int],
    pretokenizer: PreTokenizer | None,
) -> CompiledModel:
    texts = sorted({*base, *(left + right for left, right in merges)})
    document: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None if pretokenizer is None else _split_rules(pretokenizer),
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": pretokenizer is None,
            "ignore_merges": pretokenizer is not None and pretokenizer.ignore_merges,
            "vocab": {text: idx for idx, text in enumerate(texts)},
            "merges": _written(merges),
        },
    }
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    # What is spelled is looked up there first: its 0 is never read.
    table = np.array([ids.get(text, 0) for text in texts], np.uint32)
    spelled = {
        idx: [ids[_BYTE_TOKENS[byte]] for byte in text.encode()]
        for idx, text in enumerate(texts)
        if text not in ids
    }
    return CompiledModel(written, table.tobytes(), spelled)


def _written(merges: Sequence[Merge]) -> list[str] | list[Merge]:
    """Merges as lines, which load in half the memory, unless the library would misread one."""
    lines = [f"{left} {right}" for left, right in merges]
    if any(line.startswith("#version") for line in lines):
        return list(merges)
    return lines


def _split_rules(pretokenizer: PreTokenizer) -> dict[str, object]:
    steps: list[dict[str, object]] = [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        for pattern in pretokenizer.patterns
    ]
    steps.append(
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    )
    return {"type": "Sequence", "pretokenizers": steps}
