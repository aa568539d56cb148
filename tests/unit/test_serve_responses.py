"""``/v1/responses`` through the application in this process: items, refusals, faults."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from blockdraft.serve.calls import ToolCallDelta
from blockdraft.serve.messages import as_turns
from blockdraft.serve.responses.items import InputItem, as_messages
from blockdraft.serve.responses.output import Output
from tests.fake_codec import ALPHABET
from tests.serving import Failing, client_of, script_session

PATH = "/v1/responses"
CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(script_session("hello there$", num_prompt=15)) as client:
        yield client


def events_of(text: str) -> list[dict[str, Any]]:
    """The objects of a stream, whose names are their types."""
    found: list[dict[str, Any]] = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_finished_answer_is_complete(client: TestClient) -> None:
    found = client.post(PATH, json={"input": "a"}).json()
    assert (found["object"], found["status"], found["error"]) == ("response", "completed", None)
    (item,) = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in item["content"]] == ["hello there"]
    assert found["usage"]["total_tokens"] == 26


def test_a_stream_ends_as_the_response(client: TestClient) -> None:
    whole = client.post(PATH, json={"input": "a", "max_output_tokens": 4}).json()
    body = {"input": "a", "max_output_tokens": 4, "stream": True}
    *_, done, last = events_of(client.post(PATH, json=body).text)
    assert done["item"] == last["response"]["output"][0]
    assert last["type"] == "response.incomplete"
    for found in (whole, last["response"]):
        assert found["status"] == "incomplete"
        assert found["output"][0]["content"][0]["text"] == "hell"


def test_a_fault_in_the_middle_of_a_stream_is_its_end() -> None:
    sampler = Failing([ALPHABET.index(letter) for letter in "hel"], num_prompt=15)
    with client_of(script_session(sampler=sampler)) as client:
        text = client.post(PATH, json={"input": "a", "stream": True}).text
        assert client.post(PATH, json={"input": "a"}).status_code == 500
    last = events_of(text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"
    assert "secret" not in text


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": 5}, "input", "input: input should be a valid string"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [3]}, "input[0]", "valid dictionary"),
        ({"input": [{"type": "reasoning"}]}, "input[0]", "this server reads message, function_c"),
        ({"input": [{"role": "user"}]}, "input[0].content", "content is missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type", "input_image; this server reads text only"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "no JSON object"),
        ({"conversation": "c"}, "conversation", "conversation is not supported"),
        ({"max_tokens": 3}, "max_tokens", "not supported"),
        ({"n": 2}, "n", "n is not supported"),
        ({"store": True}, "store", "False"),
        ({"background": True}, "background", "False"),
        ({"truncation": "auto"}, "truncation", "'disabled'"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]", "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs", "needs include"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "needs a schema"),
        ({"text": {"format": {"type": "json_object"}},
          "tools": [{"type": "function", "name": "f"}]}, "text.format", "cannot follow"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type", "'function'"),
        ({"max_output_token": 1}, "max_output_token", "did you mean max_output_tokens?"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(
    client: TestClient, fields: dict[str, Any], param: str, message: str
) -> None:
    response = client.post(PATH, json={"input": "a", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error


def test_items_are_turns() -> None:
    items = TypeAdapter(list[InputItem]).validate_python(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "1+1"}]},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "Sure", "annotations": []}]},
            CALL,
            CALL | {"call_id": "d"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
            CALL,
        ]
    )  # fmt: skip
    turns: list[Any] = as_turns(as_messages(items, "be brief"))
    roles = [turn["role"] for turn in turns]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert [turn["content"] for turn in turns] == ["be brief", "1+1", "Sure", "2", ""]
    assert [call["id"] for call in turns[2]["tool_calls"]] == ["c", "d"]
    assert turns[3]["tool_call_id"] == "c"


def test_text_between_calls_is_an_item_of_its_own() -> None:
    output = Output()
    call = ToolCallDelta(0, "c", "add", "{}")
    steps = [output.text("a"), output.text("b"), output.call(call), output.text("c")]
    events = [event for step in [*steps, output.end("completed")] for event in step]
    assert [item["type"] for item in output.items] == ["message", "function_call", "message"]
    texts = [item["content"][0]["text"] for item in output.items[::2]]
    assert texts == ["ab", "c"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert [event["item"] for event in done] == output.items


def test_an_empty_answer_is_an_empty_message() -> None:
    output = Output()
    list(output.end("completed"))
    assert output.items[0]["content"][0]["text"] == ""
