from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.tokenizer import Tokenizer
from blockdraft.tokenizer.alphabet import BYTE_TO_CHAR
from blockdraft.tokenizer.compiled import compile_vocabulary
from blockdraft.tokenizer.vocabulary import read_vocabulary

Make = Callable[[], dict[str, object]]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(**changes: object) -> dict[str, object]:
    """The 256 bytes, then h-e-l-l-o with its merges, then special tokens."""
    merged = ["he", "ll", "hell", "hello", "\u0120hello", "\u00c3\u00a9"]
    special = ["<bos>", "<|im_end|>", "<tool>", "<pad5>", "<unk>"]
    tokens = [*BYTE_TO_CHAR, *merged, *special]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": np.array([1] * (256 + len(merged)) + [3, 3, 4, 5, 2], np.int32),
        "merges": ["h e", "l l", "he ll", "hell o", "\u0120 hello", "\u00c3 \u00a9"],
        "bos_token_id": tokens.index("<bos>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def pieces(**changes: object) -> dict[str, object]:
    """A SentencePiece vocabulary of a few pieces over all byte tokens."""
    special = ["<unk>", "<s>", "</s>", "\n\n", "<h1>"]
    normal = ["\u2581", "h", "i", "hi", "\u2581hi", "\u2581\u2581", "a", "aa", "\u00e9"]
    tokens = [*special, *BYTES, *normal]
    scores = [0.0] * (len(special) + 256) + [-float(rank) for rank in range(len(normal))]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array(scores, np.float32),
        "token_type": np.array([2, 3, 3, 4, 4] + [6] * 256 + [1] * len(normal), np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def build(metadata: Mapping[str, object]) -> Tokenizer:
    return Tokenizer(compile_vocabulary(read_vocabulary(metadata)), name="tiny")


def texts_of(tokenizer: Tokenizer, text: str, *, special: bool = False) -> list[str]:
    ids = tokenizer.encode(text, add_special=special, parse_special=special)
    return [tokenizer.token_text(idx) for idx in ids]


def test_byte_level_merges() -> None:
    assert texts_of(build(byte_level()), "hello hello hey") == [
        *("hello", "\u0120hello", "\u0120", "he", "y"),
    ]


def test_byte_level_writes_any_character_in_bytes() -> None:
    assert texts_of(build(byte_level()), "é日") == ["\u00c3\u00a9", "\u00e6", "\u0139", "\u00a5"]


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = build(pieces(add_space_prefix=False))
    assert texts_of(tokenizer, "hi hi aaa日") == [
        *("hi", "\u2581hi", "\u2581", "aa", "a", "<0xE6>", "<0x97>", "<0xA5>"),
    ]


def test_a_character_that_is_only_part_of_tokens_is_written_in_bytes() -> None:
    tokenizer = build(pieces(add_space_prefix=False))
    assert texts_of(tokenizer, "\nhi") == ["<0x0A>", "hi"]
    # The special token "\n\n" is found first, though its halves would join, too.
    assert texts_of(tokenizer, "\n\n\n") == ["\n\n", "<0x0A>"]


def test_sentencepiece_puts_a_space_before_text_and_after_special_tokens() -> None:
    tokenizer = build(pieces())
    assert texts_of(tokenizer, "hi<s>hi", special=True) == ["<s>", "\u2581hi", "<s>", "\u2581hi"]


def test_control_tokens_in_text_are_text_unless_asked() -> None:
    tokenizer = build(byte_level())
    text = "h<|im_end|><tool><unk>"
    ends = tokenizer.encode(text, add_special=False, parse_special=True)
    assert [tokenizer.token_text(idx) for idx in ends] == ["h", "<|im_end|>", "<tool>", "<unk>"]
    plain = texts_of(tokenizer, text)
    assert "<|im_end|>" not in plain
    assert "<unk>" not in plain
    assert "<tool>" in plain


def test_adds_bos_and_eos_as_the_file_says() -> None:
    tokenizer = build(byte_level(add_bos_token=True, add_eos_token=True))
    assert texts_of(tokenizer, "h", special=True) == ["<bos>", "h", "<|im_end|>"]
    assert texts_of(tokenizer, "h") == ["h"]
    assert tokenizer.encode("", add_special=True, parse_special=False) == [
        *(tokenizer.bos_id, tokenizer.eos_id),
    ]


def test_ignored_merges_take_a_whole_word() -> None:
    changes = {"pre": "llama-bpe", "merges": ["h e"], "add_bos_token": False}
    tokenizer = build(byte_level(**changes))
    assert texts_of(tokenizer, "hello hellox") == [
        *("hello", "\u0120", "he", "l", "l", "o", "x"),
    ]


def test_facts() -> None:
    tokenizer = build(byte_level(padding_token_id=0))
    assert tokenizer.vocab_size == 256 + 6 + 5
    assert tokenizer.eos_ids == {tokenizer.eos_id}
    assert tokenizer.padding_id == 0
    assert tokenizer.chat_template is None


def test_the_template_knows_the_texts_of_special_tokens() -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}"
    tokenizer = build({**byte_level(), "tokenizer.chat_template": source})
    assert tokenizer.chat_template is not None
    rendered = tokenizer.chat_template.render([{"content": "x"}], add_generation_prompt=False)
    assert rendered == "<bos>|<|im_end|>||x"


def test_decoding_leaves_control_tokens_out_unless_asked() -> None:
    tokenizer = build(byte_level())
    ids = tokenizer.encode("hello<|im_end|><tool>", add_special=False, parse_special=True)
    assert tokenizer.decode(ids) == "hello<tool>"
    assert tokenizer.decode(ids, skip_special=False) == "hello<|im_end|><tool>"


@pytest.mark.parametrize(
    ("make", "text", "data"),
    [
        (byte_level, "\u0120hello", b" hello"),
        (byte_level, "\u00c3", b"\xc3"),
        (byte_level, "<pad5>", b""),
        (byte_level, "<bos>", b"<bos>"),
        (pieces, "\u2581hi", b" hi"),
        (pieces, "<0xE6>", b"\xe6"),
        (pieces, "<h1>", b"<h1>"),
    ],
)
def test_token_bytes(make: Make, text: str, data: bytes) -> None:
    tokenizer = build(make())
    token_id = next(idx for idx in range(tokenizer.vocab_size) if tokenizer.token_text(idx) == text)
    assert tokenizer.token_bytes(token_id) == data


@pytest.mark.parametrize("token_id", [-1, 267])
def test_refuses_a_token_that_does_not_exist(token_id: int) -> None:
    tokenizer = build(byte_level())
    with pytest.raises(ConfigError, match=f"token {token_id}: the vocabulary has 267"):
        tokenizer.decode([token_id])


def test_refuses_a_surrogate() -> None:
    with pytest.raises(ConfigError, match=r"U\+D800 at 1"):
        build(byte_level()).encode("a\ud800", add_special=False, parse_special=False)


def test_refuses_a_sentencepiece_vocabulary_without_a_byte() -> None:
    metadata = pieces()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index("<0x7F>")] = "<other>"
    with pytest.raises(FileFormatError, match="no byte token <0x7F>"):
        build(metadata)


def test_a_merge_that_looks_like_a_comment_is_a_merge() -> None:
    tokens = [
        *BYTE_TO_CHAR,
        "#v",
        "#ve",
        "#ver",
        "#vers",
        "#versi",
        "#versio",
        "#version",
        "#version1",
    ]
    tokens.append("<e>")
    merges = [f"#{'version'[:idx]} {'version'[idx]}" for idx in range(7)] + ["#version 1"]
    changes = {"tokens": tokens, "merges": merges, "pre": "bloom", "token_type": [1] * len(tokens)}
    tokenizer = build(byte_level(**changes, bos_token_id=0, eos_token_id=0))
    assert texts_of(tokenizer, "#version1") == ["#version1"]


@pytest.mark.parametrize("make", [byte_level, pieces])
@given(text=st.text(max_size=40))
def test_decoding_gives_the_text_back(make: Make, text: str) -> None:
    tokenizer = build(make())
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    prefix = " " if make is pieces and not text.startswith("\n\n") and text else ""
    expected = text.replace("\u2581", " ") if make is pieces else text
    if "\n\n" not in text and "<h1>" not in text:
        assert tokenizer.decode(ids) == prefix + expected


@pytest.mark.parametrize("make", [byte_level, pieces])
@given(text=st.text("hello ia\n<>1'\t\x00\x7f", max_size=40))
def test_the_ascii_model_agrees_with_the_full_one(make: Make, text: str) -> None:
    small, full = build(make()), build(make())
    full.encode("é", add_special=False, parse_special=False)
    for parse_special in (False, True):
        found = [
            tokenizer.encode(text, add_special=True, parse_special=parse_special)
            for tokenizer in (small, full)
        ]
        assert found[0] == found[1]


class _File:
    """Stands for an open model file."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata

    def metadata_digest(self) -> str:
        return "abc123"


def test_the_second_time_comes_from_the_cache(tmp_path: Path) -> None:
    first = Tokenizer.from_gguf(_File(byte_level()), cache_dir=tmp_path)
    second = Tokenizer.from_gguf(_File({}), cache_dir=tmp_path)
    text = "hello é<|im_end|>"
    for tokenizer in (first, second):
        assert (
            tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text
        )
    assert first.eos_ids == second.eos_ids


def test_refuses_a_digest_that_could_leave_the_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./x'"):
        Tokenizer.from_metadata(byte_level(), "../x", cache_dir=tmp_path)
