"""What a server refuses, and that it names what it is about."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from blockdraft.speculative import NgramDrafter
from tests.serving import client_of, script_session

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    session = script_session(num_prompt=15, context_length=64, drafter=NgramDrafter(3))
    with client_of(session) as client:
        yield client


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    return dict(error)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "'system'"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages[0].contents", "not supp"),
        ({"max_token": 5}, "max_token", "max_token is not supported; did you mean max_tokens?"),
        ({"functions": []}, "functions", "the field functions is not supported"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens", "one limit"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"seed": 2**64}, "seed", "less than or equal"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 items"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "keys are token ids"),
        ({"logit_bias": {"48": 1}}, None, "logit_bias names token 48 of 48"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"store": True}, "store", "False"),
        ({"stream_options": {"include_use": True}}, "stream_options.include_use", "not supported"),
        ({"speculative": {"type": "eagle"}}, "speculative.type", "this server drafts with ngram"),
        ({"speculative": {"n_max": 0}}, "n_max", "greater than or equal to 1"),
        ({"tool_choice": "auto"}, "tool_choice", "tool_choice needs tools"),
        ({"tools": [TOOL]}, None, "the chat template of this model does not show any"),
        ({"max_tokens": 60}, None, "15 prompt tokens and 60 more exceed the context of 64"),
        ({"messages": [{"role": "user", "content": "a" * 90}]}, None, "leave no room"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]},
         "messages[0].tool_calls", "a turn of user makes no calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "[1]"}}]}]},
         "messages[0].tool_calls[0].function.arguments", "no JSON object"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].type", "image_url; this server reads text only"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(
    client: TestClient, fields: dict[str, Any], param: str | None, message: str
) -> None:
    error = error_of(client.post(CHAT, json={"messages": MESSAGES, **fields}))
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert param is None or param in error["param"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"messages": [', "invalid_json"),
        (b"", "missing_field"),
        (b"[]", "invalid_value"),
        (b'"text"', "invalid_value"),
        (b"{}", "missing_field"),
        (b"[" * 100_000, None),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", None),
        (b"\xff\xfe", None),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "a"}], "top_p": 1e999}', "invalid_value"),
    ],
    ids=[
        *("cut", "empty", "list", "string", "object", "deep", "huge-number", "bytes"),
        *("nan", "infinity"),
    ],
)
def test_malformed_bodies(client: TestClient, body: bytes, code: str | None) -> None:
    headers = {"content-type": "application/json"}
    error = error_of(client.post(CHAT, content=body, headers=headers))
    assert code is None or error["code"] == code


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [999]}, "token id 999 is not in the vocabulary of 48"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of is 3 and n is 1"),
        ({"prompt": "a", "suffix": "b"}, "the field suffix is not supported"),
    ],
)
def test_bad_completions(client: TestClient, fields: dict[str, Any], message: str) -> None:
    response = client.post("/v1/completions", json={"max_tokens": 1, **fields})
    assert message in error_of(response)["message"]


def test_null_fields_are_as_if_absent(client: TestClient) -> None:
    body = {"messages": MESSAGES, "stream": None, "temperature": None, "seed": None}
    assert client.post(CHAT, json=body).status_code == 200
    error_of(client.post(CHAT, json=body | {"functions": None}))


def test_other_models_are_not_found(client: TestClient) -> None:
    error = error_of(client.post(CHAT, json={"messages": MESSAGES, "model": "gpt-4"}), 404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"]


def test_unknown_paths_and_methods(client: TestClient) -> None:
    assert "there is no GET /v2" in error_of(client.get("/v2"), 404)["message"]
    assert "does not take GET" in error_of(client.get(CHAT), 405)["message"]
