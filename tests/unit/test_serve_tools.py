"""Calls of functions: parsing what a model writes, and chats that offer functions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from blockdraft.config import DraftConfig
from blockdraft.engine import Engine
from blockdraft.errors import UnsupportedError
from blockdraft.serve.tools import CallParser, ToolCallDelta, check_template
from blockdraft.session import Session
from tests.serving import ScriptSampler, client_of

TinyModel = Callable[..., Path]
CHAT = "/v1/chat/completions"
# As in Qwen's: tools before the turns, calls of earlier turns as JSON.
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
SUB = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def parsed(pieces: list[str]) -> list[Any]:
    parser = CallParser()
    found: list[str | ToolCallDelta] = []
    for piece in pieces:
        found += parser.feed(piece)
    found += parser.flush()
    joined: list[Any] = []
    for each in found:
        if isinstance(each, ToolCallDelta):
            joined.append((each.index, each.name, json.loads(each.arguments)))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += each
        else:
            joined.append(each)
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", ["just text"]),
        (CALL, [(0, "add", {"a": 1})]),
        (f"I add.\n{CALL}", ["I add.\n", (0, "add", {"a": 1})]),
        (f"{CALL}\n{CALL}", [(0, "add", {"a": 1}), (1, "add", {"a": 1})]),
        (CALL.removesuffix("</tool_call>"), [(0, "add", {"a": 1})]),
        ("<tool_call>\nnot json\n</tool_call>", ["<tool_call>\nnot json\n</tool_call>"]),
        ('<tool_call>{"name": 3}</tool_call>', ['<tool_call>{"name": 3}</tool_call>']),
        ('<tool_call>{"name": "f", "arguments": []}</tool_call>',
         ['<tool_call>{"name": "f", "arguments": []}</tool_call>']),
        ('<tool_call>{"name": "f"}</tool_call>', [(0, "f", {})]),
        ("a < b and <tool", ["a < b and <tool"]),
        ("<tool_call>" + "[" * 9999, ["<tool_call>" + "[" * 9999]),
    ],
    ids=[
        *("text", "call", "text-and-call", "two", "unclosed", "no-json", "no-name", "no-object"),
        *("no-arguments", "begun", "deep"),
    ],
)  # fmt: skip
def test_calls_in_text(text: str, expected: list[Any], size: int) -> None:
    if len(text) > 1000 and size == 1:
        size = 100
    assert parsed([text[i : i + size] for i in range(0, len(text), size)]) == expected


@pytest.mark.parametrize("source", [None, "{{ messages }}", "{{ tools }} [TOOL_CALLS]"])
def test_other_templates_are_refused(source: str | None) -> None:
    with pytest.raises(UnsupportedError, match="tools: the chat template of this model does not"):
        check_template(source)


class Writes(ScriptSampler):
    """Writes a text after whatever prompt, once its length is known."""

    def __init__(self) -> None:
        super().__init__([], num_prompt=0)

    def set(self, token_ids: list[int]) -> None:
        self._token_ids, self._num_prompt = token_ids, -1

    def pick(self, logits: Any, rows: Any) -> list[int]:
        if self._num_prompt < 0:
            self._num_prompt = rows[0].position
        return super().pick(logits, rows)


@pytest.fixture(scope="module")
def session(tiny_model: TinyModel) -> Session:
    path = tiny_model(metadata={"tokenizer.chat_template": TEMPLATE})
    return Session.load(path, num_threads=1, drafting=DraftConfig("none"))


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[TestClient]:
    """A model that picks its own tokens, which are noise."""
    with client_of(session) as client:
        yield client


@pytest.fixture(scope="module")
def scripted(session: Session) -> Iterator[Callable[[str], TestClient]]:
    """A function from a text to a client of a model that writes it."""
    sampler = Writes()
    engine = Engine(session.engine.target, max_cache_bytes=1 << 24, sampler=sampler)
    with client_of(Session(engine, session.tokenizer)) as client:

        def writing(text: str) -> TestClient:
            ids = session.tokenizer.encode(text, add_special=False, parse_special=False)
            sampler.set([*ids, min(session.tokenizer.eos_ids)])
            return client

        yield writing


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "1+1"}], "tools": [ADD, SUB], **fields}


def test_a_call_is_found(scripted: Callable[[str], TestClient]) -> None:
    found = scripted(f"Sure.\n{CALL}").post(CHAT, json=body()).json()["choices"][0]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] == "Sure.\n"
    (call,) = found["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call["id"].startswith("call_")


def test_a_call_is_streamed(scripted: Callable[[str], TestClient]) -> None:
    text = scripted(f"{CALL}\n{CALL}").post(CHAT, json=body(stream=True)).text
    choices = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
    calls = [call for each in choices for call in each["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert "".join(each["delta"].get("content") or "" for each in choices) == ""


def test_one_call_where_calls_may_not_be_parallel(scripted: Callable[[str], TestClient]) -> None:
    fields = body(parallel_tool_calls=False)
    found = scripted(f"{CALL}\n{CALL}").post(CHAT, json=fields).json()["choices"][0]
    assert len(found["message"]["tool_calls"]) == 1


def test_text_that_looks_like_a_call_is_text_without_tools(
    scripted: Callable[[str], TestClient],
) -> None:
    for fields in (body(tool_choice="none"), {"messages": body()["messages"]}):
        found = scripted(CALL).post(CHAT, json=fields).json()["choices"][0]
        assert (found["message"]["content"], found["finish_reason"]) == (CALL, "stop")


def test_the_template_shows_tools_and_earlier_calls(session: Session) -> None:
    with client_of(session) as client:
        turns = [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "add", "arguments": '{"a": 1}'}}]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ]  # fmt: skip
        fields = body(messages=turns, max_tokens=1)
        found = client.post(CHAT, json=fields).json()
        fewer = client.post(CHAT, json=fields | {"tools": [ADD]}).json()
    assert found["usage"]["prompt_tokens"] > fewer["usage"]["prompt_tokens"]
    rendered = session.encode(
        [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "add", "arguments": {"a": 1}}}]}]
    )  # fmt: skip
    assert '{"name": "add", "arguments": {"a": 1}}' in session.tokenizer.decode(rendered)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"add", "sub"}),
        ({"type": "function", "function": {"name": "add"}}, {"add"}),
    ],
)
def test_a_model_of_noise_must_call(client: TestClient, choice: Any, names: set[str]) -> None:
    pytest.importorskip("llguidance", reason="forced calls need llguidance")
    fields = body(tool_choice=choice, parallel_tool_calls=False, max_tokens=400, seed=1)
    found = client.post(CHAT, json=fields).json()["choices"][0]
    if found["finish_reason"] == "tool_calls":
        (call,) = found["message"]["tool_calls"]
        assert call["function"]["name"] in names
        json.loads(call["function"]["arguments"])
    else:  # noise may fill an argument for ever
        assert found["finish_reason"] == "length"
        assert found["message"]["content"].startswith("<tool_call>\n{")


def test_a_model_of_noise_writes_json(client: TestClient) -> None:
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    schema = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "flag", "schema": schema}}
    fields = {"messages": body()["messages"], "response_format": wanted, "n": 3, "seed": 5}
    found = client.post(CHAT, json=fields).json()
    for choice in found["choices"]:
        assert choice["finish_reason"] == "stop"
        assert isinstance(json.loads(choice["message"]["content"])["b"], bool)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [ADD, ADD]}, "'add' is malformed or given twice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "malformed"),
        ({"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "names 'mul'"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"response_format": {"type": "json_object"}}, "cannot follow response_format and call"),
        ({"tools": [], "response_format": {"type": "json_schema"}}, "needs a json_schema"),
        ({"tools": [], "response_format": {"type": "xml"}}, "response_format"),
        ({"tools": [], "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "frob"}}}}, "Invalid type: frob"),
    ],
)  # fmt: skip
def test_impossible_requests_are_named(
    client: TestClient, fields: dict[str, Any], message: str
) -> None:
    response = client.post(CHAT, json=body(**fields))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "fails"),
        (None, "the model has no chat template"),
    ],
)
def test_a_template_that_fails_fails_its_request(
    tiny_model: TinyModel, template: str | None, message: str
) -> None:
    path = tiny_model(metadata={"tokenizer.chat_template": template})
    session = Session.load(path, num_threads=1, drafting=DraftConfig("none"))
    with client_of(session) as client:
        response = client.post(CHAT, json={"messages": body()["messages"]})
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
        completion = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert completion.status_code == 200
