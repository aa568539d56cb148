"""Grammars as token rules, and answers that follow them, with drafts and without."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine.rules import TokenRule
from blockdraft.errors import BlockdraftError, CapacityError, ConfigError, UnsupportedError
from blockdraft.session import AnswerSettings, Session

pytest.importorskip("llguidance", reason="structured output needs llguidance")

TinyModel = Callable[..., Path]
POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["x", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def session(tiny_model: TinyModel) -> Session:
    return Session.load(tiny_model(), num_threads=1, drafting=DraftConfig("ngram"))


def accepts(session: Session, rule: TokenRule, text: str) -> bool:
    """Whether the rule lets exactly ``text`` be written."""
    tokens = session.tokenizer.encode(text, add_special=False, parse_special=False)
    for place, token_id in enumerate([*tokens, min(session.tokenizer.eos_ids)]):
        mask = rule(np.array(tokens[:place], np.int32))
        if not mask[token_id // 32] >> (token_id % 32) & 1:
            return False
    return True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"x": 12, "kind": "b"}', True),
        ('{"x":12,"kind":"b"}', True),
        ('{\n  "x": 12,\n  "kind": "b"\n}', True),
        ('{"x": "12", "kind": "b"}', False),
        ('{"x": 12, "kind": "c"}', False),
        ('{"x": 12}', False),
        ('{"x": 12, "kind": "b"} and', False),
        ('{"x": 12, "kind": "b"', False),
        ("", False),
    ],
)
def test_a_schema_is_followed(session: Session, text: str, expected: bool) -> None:
    assert accepts(session, session.grammars.json(POINT), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a": [1, {"b": null}]}', True), ("[1]", False), ("{", False)]
)
def test_any_object(session: Session, text: str, expected: bool) -> None:
    assert accepts(session, session.grammars.json(), text) == expected


@pytest.mark.parametrize(
    ("text", "once", "repeated"),
    [
        ("<c>\n1\n</c>", True, True),
        ("<c>\n1\n</c>\n<c>\n2\n</c>", False, True),
        ("<c>\nx\n</c>", False, False),
        ("1", False, False),
    ],
)
def test_values_between_texts(session: Session, text: str, once: bool, repeated: bool) -> None:
    for repeats, expected in ((False, once), (True, repeated)):
        rule = session.grammars.wrapped_json(
            {"type": "integer"}, before="<c>\n", after="\n</c>", repeats=repeats
        )
        assert accepts(session, rule, text) == expected


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _level in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "kind", "message"),
    [
        ({"type": "frob"}, ConfigError, "Invalid type: frob"),
        ({"not": {}}, UnsupportedError, r"Unimplemented keys: \[\"not\"\]"),
        ({"not": {}, "x-guidance": {"lenient": True}}, UnsupportedError, "Unimplemented"),
        ({"$ref": "http://example.org/x"}, ConfigError, "Resource 'http://example.org/x' is not"),
        ({"type": "string", "pattern": "(?=a)b"}, ConfigError, "regex parse error"),
        ({"enum": []}, ConfigError, "anyOf is empty"),
        ({"default": float("nan")}, ConfigError, "no JSON"),
        (nested(40), CapacityError, "nested deeper than 32"),
        ({"enum": [str(i) for i in range(5000)]}, CapacityError, "5002 values; at most 4096"),
        ({"const": "x" * 70_000}, CapacityError, "bytes; at most 65536"),
        (
            {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(6)]}
                       for i in range(8)]},
            CapacityError, "schema too large",
        ),
    ],
    ids=[
        *("type", "not", "lenient", "remote", "lookahead", "empty", "nan", "deep", "many", "long"),
        "product",
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_honoured(
    session: Session, schema: dict[str, Any], kind: type[BlockdraftError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        session.grammars.json(schema)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("schema", [None, POINT], ids=["object", "schema"])
def test_answers_are_json_and_the_same_with_drafts(
    session: Session, schema: dict[str, Any] | None, temperature: float
) -> None:
    prompt = session.tokenizer.encode(
        '{"x": 1, "kind": "a"} {"x": 1, "kind": "a"}', add_special=True, parse_special=False
    )
    found = []
    for draft in (False, True):
        settings = AnswerSettings(
            SamplingParams(temperature=temperature, seed=3),
            max_tokens=300,
            draft=draft,
            token_rule=session.grammars.json(schema),
        )
        stream = session.start(prompt, settings)
        list(stream)
        found.append(stream.result)
    plain, drafted = found
    assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)
    if plain.finish_reason == "stop":
        assert isinstance(json.loads(plain.text), dict)
    if schema is not None:
        value = json.loads(plain.text)
        assert set(value) == {"x", "kind"}
        assert value["kind"] in ("a", "b")
        assert drafted.stats is not None


def test_a_rule_is_of_one_answer(session: Session) -> None:
    first, second = session.grammars.json(POINT), session.grammars.json(POINT)
    text = '{"x": 12, "kind": "b"}'
    assert accepts(session, first, text)
    assert accepts(session, second, text)
