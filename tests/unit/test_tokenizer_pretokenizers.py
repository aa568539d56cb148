import pytest
import tokenizers

from blockdraft.errors import UnsupportedError
from blockdraft.tokenizer.pretokenizers import find_pretokenizer, pretokenizer_names


def cut(name: str, text: str) -> list[str]:
    steps = [
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        for pattern in find_pretokenizer(name).patterns
    ]
    rule = tokenizers.pre_tokenizers.Sequence(steps)
    return [piece for piece, _ in rule.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", pretokenizer_names())
def test_every_row_cuts_without_losing_anything(name: str) -> None:
    text = "He'd paid  $1234.50,\r\n\tnaïve  日本語 x1\u0301\n\n "
    assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll go  now 1234!", ["I", "'ll", " go", " ", " now", " 1234", "!"]),
        ("smollm", "x 12", ["x", " ", "1", "2"]),
        ("qwen2", "x'S 12\n\n", ["x", "'S", " ", "1", "2", "\n\n"]),
        ("llama-bpe", "12345 (a)", ["123", "45", " (", "a", ")"]),
        ("gpt-4o", "helloWorld's", ["hello", "World's"]),
        ("tekken", "HTTPServer12", ["HTTPServer", "1", "2"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("deepseek-v3", "ab12345漢字", ["ab", "123", "45", "漢字"]),
        ("deepseek-llm", "ab 123\n漢", ["ab", " ", "123", "\n", "漢"]),
    ],
)
def test_words(name: str, text: str, words: list[str]) -> None:
    assert cut(name, text) == words


def test_refuses_an_unknown_name() -> None:
    with pytest.raises(UnsupportedError, match="pre-tokenizer 'nope' is not supported"):
        find_pretokenizer("nope")
