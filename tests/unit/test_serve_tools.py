"""Chats that offer functions, and formats that answers must have."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from blockdraft.config import DraftConfig
from blockdraft.errors import UnsupportedError
from blockdraft.serve.tools import check_template
from blockdraft.session import Session
from tests.calling import ADD, CALL, SUB, ToldSession, tool_session
from tests.serving import client_of

TinyModel = Callable[..., Path]
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("source", [None, "{{ messages }}", "{{ tools }} [TOOL_CALLS]"])
def test_other_templates_are_refused(source: str | None) -> None:
    with pytest.raises(UnsupportedError, match="tools: the chat template of this model does not"):
        check_template(source)


@pytest.fixture(scope="module")
def session(tiny_model: TinyModel) -> Session:
    return tool_session(tiny_model)


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[TestClient]:
    """A model that picks its own tokens, which are noise."""
    with client_of(session) as client:
        yield client


@pytest.fixture(scope="module")
def scripted(session: Session) -> Iterator[Callable[[str], TestClient]]:
    """A function from a text to a client of a model that writes it."""
    told = ToldSession(session)
    with client_of(told) as client:

        def writing(text: str) -> TestClient:
            told.tell(text)
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


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (deep(40), "nested deeper than 32"),
        ({"enum": [str(i) for i in range(5000)]}, "values; at most 4096"),
        ({"const": "x" * 70_000}, "bytes; at most 65536"),
        ({"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(6)]}
                    for i in range(8)]}, "too complex"),
    ],
    ids=["deep", "many", "long", "product"],
)  # fmt: skip
def test_schemas_have_limits(client: TestClient, schema: dict[str, Any], message: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for fields in (
        {"messages": body()["messages"], "response_format": wanted},
        body(tools=[tool], tool_choice="required"),
    ):
        response = client.post(CHAT, json=fields)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "schema_too_complex"
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
