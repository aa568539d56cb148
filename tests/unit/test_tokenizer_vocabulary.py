from typing import Any

import numpy as np
import pytest

from blockdraft.errors import BlockdraftError, FileFormatError, UnsupportedError
from blockdraft.tokenizer.vocabulary import TokenType, read_vocabulary

PREFIX = "tokenizer.ggml."


def metadata(**changes: Any) -> dict[str, object]:
    keys: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<|im_end|>", "<|fim_pad|>", "<x>"],
        "token_type": np.array([1, 1, 1, 3, 1, 4], np.int32),
        "merges": ["a b"],
        "eos_token_id": 5,
        **changes,
    }
    return {PREFIX + key: value for key, value in keys.items() if value is not None}


def test_reads_a_byte_level_vocabulary() -> None:
    vocabulary = read_vocabulary(metadata(bos_token_id=3, add_bos_token=True))
    assert list(vocabulary.texts) == ["a", "b", "ab", "<|im_end|>", "<|fim_pad|>", "<x>"]
    assert vocabulary.bos_id == 3
    assert vocabulary.add_bos
    assert not vocabulary.add_eos
    assert vocabulary.padding_id is None
    assert vocabulary.chat_template is None


def test_ends_are_the_eos_and_tokens_known_by_their_text() -> None:
    assert read_vocabulary(metadata()).end_ids == {3, 4, 5}


def test_a_token_that_steers_by_its_text_is_a_control_token() -> None:
    assert read_vocabulary(metadata()).types[4] == TokenType.CONTROL


def test_types_default_to_normal() -> None:
    vocabulary = read_vocabulary(metadata(token_type=None))
    assert vocabulary.types[0] == TokenType.NORMAL


def test_llama_3_adds_its_bos_without_being_told() -> None:
    assert read_vocabulary(metadata(pre="llama-bpe", bos_token_id=3)).add_bos


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "bert"}, UnsupportedError, "'bert'"),
        ({"pre": "klingon"}, UnsupportedError, "'klingon'"),
        ({"tokens": None}, FileFormatError, "no metadata key tokenizer.ggml.tokens"),
        ({"tokens": []}, FileFormatError, "empty"),
        ({"tokens": 7}, FileFormatError, "tokens must be an array of strings"),
        ({"tokens": [1, 2]}, FileFormatError, "tokens must be an array of strings"),
        ({"tokens": ["a"]}, FileFormatError, "6 entries, the vocabulary 1 tokens"),
        ({"tokens": ["a", "b", "a", "c", "d", "e"]}, FileFormatError, "tokens 0 and 2"),
        ({"tokens": ["a" * 2000]}, FileFormatError, "2000 characters"),
        ({"merges": None}, FileFormatError, "merges"),
        ({"eos_token_id": 6}, FileFormatError, "eos_token_id is 6"),
        ({"eos_token_id": "x"}, FileFormatError, "eos_token_id must be an integer"),
        ({"add_bos_token": 1}, FileFormatError, "add_bos_token must be a bool"),
        ({"add_bos_token": True}, FileFormatError, "BOS"),
        ({"eos_token_id": None, "add_eos_token": True}, FileFormatError, "EOS"),
        ({"token_type": "x"}, FileFormatError, "token_type must be an array of numbers"),
        ({"token_type": ["x"] * 6}, FileFormatError, "token_type must be an array of numbers"),
        ({"model": "llama"}, FileFormatError, "scores"),
    ],
)
def test_refuses(changes: dict[str, object], error: type[BlockdraftError], words: str) -> None:
    with pytest.raises(error, match=words):
        read_vocabulary(metadata(**changes))


def test_refuses_a_template_that_is_no_string() -> None:
    with pytest.raises(FileFormatError, match="chat_template must be a string"):
        read_vocabulary({**metadata(), "tokenizer.chat_template": 7})
