"""Grammars that an answer must follow: JSON, JSON schemas, and texts with JSON in them.

The only door to ``llguidance``, an extra. A grammar becomes a token rule: before each token it says
which ones may come. Knows no requests and no logits. Schemas come from strangers: their size is
limited before they are compiled, and the compiler by its own counters.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.rules import TokenRule
from blockdraft.errors import CapacityError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["MAX_SCHEMA_BYTES", "MAX_SCHEMA_DEPTH", "MAX_SCHEMA_VALUES", "Grammars", "Vocabulary"]

MAX_SCHEMA_BYTES = 1 << 16
"""Of a schema as JSON."""

MAX_SCHEMA_VALUES = 4096
"""Objects, list items and scalars of a schema: the time to compile grows with their square."""

MAX_SCHEMA_DEPTH = 32
"""Objects and lists inside each other."""

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_MAX_CACHED = 32
# Between tokens of JSON; without a limit a model may write blanks for ever.
_BLANKS = r"[ \n]{0,16}"


class Vocabulary(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end generation."""
        ...

    def token_bytes(self, token_id: int, /) -> bytes:
        """The bytes that a token stands for."""
        ...

    def is_special(self, token_id: int, /) -> bool:
        """Whether a token steers and is no part of the text."""
        ...

    def encode(self, text: str, /, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``."""
        ...


class Grammars:
    """Compiles grammars for one model; safe to use from several threads.

    Args:
        vocabulary: The model's tokens.
        num_logits: Rows of the model's head; those beyond the vocabulary are never allowed.
    """

    def __init__(self, vocabulary: Vocabulary, num_logits: int) -> None:
        self._vocabulary = vocabulary
        self._num_logits = num_logits
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def json(self, schema: Mapping[str, Any] | None = None) -> TokenRule:
        """A rule for one answer: one JSON value by ``schema``; None is any object.

        Raises:
            CapacityError: The schema is too large.
            ConfigError: It is no valid schema.
            UnsupportedError: It has a keyword that cannot be honoured, or there is no llguidance.
        """
        return self._rule(f"start: %json {_schema_text(schema or {'type': 'object'})}")

    def wrapped_json(
        self, schema: Mapping[str, Any], *, before: str, after: str, repeats: bool
    ) -> TokenRule:
        """A rule for one answer: a JSON value between two texts.

        Args:
            schema: Schema of the value.
            before: Text before it.
            after: Text after it.
            repeats: Whether more such values may follow, each on a line of its own.

        Raises:
            BlockdraftError: As in `json`.
        """
        more = r' ("\n" one)*' if repeats else ""
        one = f"{json.dumps(before)} value {json.dumps(after)}"
        text = f"start: one{more}\none: {one}\nvalue: %json {_schema_text(schema)}"
        return self._rule(text)

    def _rule(self, lark: str) -> TokenRule:
        with self._lock:
            matcher = self._compiled.pop(lark, None)
            if matcher is None:
                matcher = self._compile(lark)
            self._compiled[lark] = matcher
            if len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
            return _MatcherRule(matcher.deep_copy(), self._num_logits)

    def _compile(self, lark: str) -> "LLMatcher":
        try:
            from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise UnsupportedError(
                "structured output needs the package llguidance: pip install 'blockdraft[serve]'"
            ) from error
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                TokenizerWrapper(_Tokens(self._vocabulary, self._num_logits)),
                n_vocab=self._num_logits,
                eos_token=sorted(self._vocabulary.eos_ids),
            )
        limits = LLParserLimits(
            max_grammar_size=50_000,
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_lexer_states=50_000,
            verbose_errors=False,
        )
        grammar = LLMatcher.grammar_from_lark(lark)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return matcher


class _MatcherRule:
    """A token rule for one answer."""

    def __init__(self, matcher: "LLMatcher", num_logits: int) -> None:
        self._matcher = matcher
        self._num_words = -(-num_logits // 32)
        self._num_seen = 0

    def __call__(self, output: NDArray[np.int32]) -> NDArray[np.uint32]:
        for token_id in output[self._num_seen :].tolist():
            if not self._matcher.consume_token(token_id):
                raise ConfigError(f"the grammar cannot go on: {_first_line(self._matcher)}")
        self._num_seen = len(output)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._num_words]
        if self._matcher.is_error():
            raise ConfigError(f"the grammar cannot go on: {_first_line(self._matcher)}")
        return mask


class _Tokens:
    """A vocabulary as llguidance asks for it; rows that pad the head have no bytes."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, num_logits: int) -> None:
        ids = range(vocabulary.vocab_size)
        self.eos_token_id = min(vocabulary.eos_ids)
        self.tokens = [vocabulary.token_bytes(token_id) for token_id in ids]
        self.tokens += [b""] * (num_logits - len(ids))
        self.special_token_ids = [token_id for token_id in ids if vocabulary.is_special(token_id)]
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode(text, add_special=False, parse_special=False)


def _schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as JSON, with our options, if it is small enough.

    Raises:
        CapacityError: It is not.
        ConfigError: It is no JSON.
    """
    values = _count(schema, 0)
    if values > MAX_SCHEMA_VALUES:
        raise CapacityError(f"the JSON schema has {values} values; at most {MAX_SCHEMA_VALUES}")
    options = {"whitespace_pattern": _BLANKS}
    try:
        text = json.dumps({**schema, "x-guidance": options}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the JSON schema is no JSON: {error}") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise CapacityError(f"the JSON schema has {len(text)} bytes; at most {MAX_SCHEMA_BYTES}")
    return text


def _count(value: object, depth: int) -> int:
    if depth > MAX_SCHEMA_DEPTH:
        raise CapacityError(f"the JSON schema is nested deeper than {MAX_SCHEMA_DEPTH}")
    if isinstance(value, Mapping):
        return 1 + sum(_count(each, depth + 1) for each in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(_count(each, depth + 1) for each in value)
    return 1


def _refusal(message: str) -> Exception:
    """An error for what llguidance says of a grammar; it may quote the grammar over many lines."""
    line = _PLACE.sub("", message.strip().partition("\n")[0])[:300]
    if "nimplemented" in line or "not supported" in line:
        return UnsupportedError(f"the JSON schema cannot be honoured: {line}")
    if "too big" in line or "too large" in line or "fuel" in line:
        return CapacityError(f"the JSON schema is too complex: {line}")
    return ConfigError(f"the JSON schema is not valid: {line}")


def _first_line(matcher: "LLMatcher") -> str:
    return matcher.get_error().partition("\n")[0][:200] or matcher.stop_reason()
