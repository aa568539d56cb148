r"""Which regular expressions split text into words before byte-level merges, by GGUF name.

One row per published pre-tokenizer; names that share a row are models that share the rule. Every
expression cuts the pieces left by the one before it, and matches as well as gaps stay as pieces.
Written for Oniguruma, the engine of the ``tokenizers`` library.

Source: the ``pre_tokenizer`` of each model's published tokenizer file; ``tokenizer.ggml.pre``
names as llama.cpp assigns them. Contractions are spelled ``[sS]`` and not ``(?i:s)``: the latter
also matches U+017F.
"""

from dataclasses import dataclass

from blockdraft.errors import UnsupportedError

__all__ = ["PreTokenizer", "find_pretokenizer", "pretokenizer_names"]

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED_CODER = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}{_CASED_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{_CONTRACTION})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{_CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}{_CASED_TAIL}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
# Cased letters, as DeepSeek's tokenizer lists them: no class of Oniguruma's is the same set.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+\z",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of models cuts text into words.

    Attributes:
        patterns: Regular expressions, applied in turn.
        ignore_merges: A word that is a token as a whole is taken without running merges.
        add_bos: Whether text starts with the BOS token when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2_ROW = PreTokenizer((_GPT2,))
_DIGITS_ROW = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_ROW = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED_ROW = PreTokenizer((_LLAMA3,))
_QWEN2_ROW = PreTokenizer((_QWEN2,))
_GPT4O_ROW = PreTokenizer((_GPT4O,))
_DEEPSEEK3_ROW = PreTokenizer(_DEEPSEEK3)
_BLOOM_ROW = PreTokenizer((_BLOOM,))

_ROWS: dict[str, PreTokenizer] = {
    "a.x-4.0": _GPT2_ROW,
    "bloom": _BLOOM_ROW,
    "chatglm-bpe": _LLAMA3_MERGED_ROW,
    "codeshell": _DIGITS_ROW,
    "command-r": _DIGITS_ROW,
    "dbrx": _LLAMA3_MERGED_ROW,
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-r1-qwen": _QWEN2_ROW,
    "deepseek-v3": _DEEPSEEK3_ROW,
    "default": PreTokenizer(_DEFAULT),
    "exaone": _DIGITS_ROW,
    "exaone4": _GPT2_ROW,
    "falcon": PreTokenizer(_FALCON),
    "falcon-h1": _LLAMA3_ROW,
    "falcon3": _LLAMA3_ROW,
    "gigachat": _GPT2_ROW,
    "glm4": _LLAMA3_MERGED_ROW,
    "gpt-2": _GPT2_ROW,
    "gpt-4o": _GPT4O_ROW,
    "gpt3-finnish": _BLOOM_ROW,
    "granite-docling": _GPT2_ROW,
    "grok-2": _QWEN2_ROW,
    "hunyuan": _QWEN2_ROW,
    "hunyuan-dense": _DEEPSEEK3_ROW,
    "jais": _GPT2_ROW,
    "lfm2": _LLAMA3_ROW,
    "llama-bpe": _LLAMA3_ROW,
    "llama-v3": _LLAMA3_ROW,
    "llama3": _LLAMA3_ROW,
    "llama4": _GPT4O_ROW,
    "megrez": _QWEN2_ROW,
    "mellum": _GPT2_ROW,
    "minerva-7b": _DIGITS_ROW,
    "mpt": _GPT2_ROW,
    "olmo": _GPT2_ROW,
    "phi-2": _GPT2_ROW,
    "pixtral": _LLAMA3_ROW,
    "poro-chat": _BLOOM_ROW,
    "qwen2": _QWEN2_ROW,
    "qwen35": PreTokenizer((_QWEN35,)),
    "refact": _DIGITS_ROW,
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "smaug-bpe": _LLAMA3_MERGED_ROW,
    "smollm": _DIGITS_ROW,
    "stablelm2": _QWEN2_ROW,
    "starcoder": _DIGITS_ROW,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "trillion": _GPT2_ROW,
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The row of a ``tokenizer.ggml.pre`` name.

    Raises:
        UnsupportedError: There is no such row.
    """
    if name not in _ROWS:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} is not supported; supported: {', '.join(sorted(_ROWS))}"
        )
    return _ROWS[name]


def pretokenizer_names() -> tuple[str, ...]:
    """Every supported ``tokenizer.ggml.pre`` name, sorted."""
    return tuple(sorted(_ROWS))
