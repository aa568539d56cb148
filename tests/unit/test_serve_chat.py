"""Chat and text completions through the application in this process."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.serving import client_of, script_session

CHAT = {"messages": [{"role": "user", "content": "a"}]}
# "^<user>a<model>"
NUM_PROMPT = 15


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(script_session("hello there$", num_prompt=NUM_PROMPT)) as client:
        yield client


@pytest.fixture(scope="module")
def raw_client() -> Iterator[TestClient]:
    """For prompts of two tokens: the first token and "a"."""
    with client_of(script_session("hello there$")) as client:
        yield client


def chat(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def stream(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a stream, which must end as it should."""
    response = client.post(path, json=body | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_an_answer(client: TestClient) -> None:
    found = chat(client)
    assert found["object"] == "chat.completion"
    assert found["model"] == "tiny"
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello there", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert found["usage"] == {
        "prompt_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": 11,
        "total_tokens": 26,
    }


def test_timings_have_the_keys_of_llama_cpp(client: TestClient) -> None:
    timings = chat(client)["timings"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (15, 11)
    assert {"prompt_ms", "predicted_ms", "predicted_per_second", "ttft_ms"} <= timings.keys()
    assert "draft_n" not in timings  # nothing drafts


def test_a_prompt_that_is_known_is_told() -> None:
    session = script_session(num_prompt=100)
    session.engine.keep_prefixes(1 << 22)
    body = {"prompt": [3] * 100, "max_tokens": 2, "n": 2}
    with client_of(session) as client:
        first, second = (client.post("/v1/completions", json=body).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}  # by one answer of two
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
    assert (second["timings"]["cache_n"], second["timings"]["prompt_n"]) == (128, 72)


def test_a_stream_joins_to_the_answer(client: TestClient) -> None:
    events = stream(client, "/v1/chat/completions", CHAT)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "hello there"
    assert deltas[-1] == {}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert events[-1]["timings"]["predicted_n"] == 11


def test_usage_is_the_last_chunk_when_asked_for(client: TestClient) -> None:
    body = CHAT | {"stream_options": {"include_usage": True}}
    last = stream(client, "/v1/chat/completions", body)[-1]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 26


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_cuts(client: TestClient, name: str) -> None:
    choice = chat(client, **{name: 4})["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hell", "length")


@pytest.mark.parametrize("stop", ["o t", ["zz", "o t"]])
def test_stop_strings_cut(client: TestClient, stop: Any) -> None:
    choice = chat(client, stop=stop)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hell", "stop")


def test_several_choices(client: TestClient) -> None:
    choices = chat(client, n=3)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    events = stream(client, "/v1/chat/completions", CHAT | {"n": 2})
    for index in (0, 1):
        deltas = [event["choices"][0] for event in events]
        texts = [each["delta"].get("content", "") for each in deltas if each["index"] == index]
        assert "".join(texts) == "hello there"


def test_parts_and_developers_are_understood(client: TestClient) -> None:
    # <system>b<user>a<model>: nine characters more
    messages = [
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ]
    response = client.post("/tokenize", json={"content": "<system>b", "add_special": False})
    more = len(response.json()["tokens"])
    with client_of(script_session("hi$", num_prompt=NUM_PROMPT + more)) as other:
        found = chat(other, messages=messages)
    assert found["choices"][0]["message"]["content"] == "hi"


def test_logprobs_are_of_every_token(client: TestClient) -> None:
    found = chat(client, logprobs=True, top_logprobs=2, max_tokens=3)
    content = found["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == list("hel")
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    assert all(each["logprob"] <= each["top_logprobs"][0]["logprob"] <= 0 for each in content)
    body = CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    events = stream(client, "/v1/chat/completions", body)
    streamed = [
        entry
        for event in events
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_text_completions(raw_client: TestClient) -> None:
    response = raw_client.post("/v1/completions", json={"prompt": "a", "logprobs": 1})
    found = response.json()
    assert found["object"] == "text_completion"
    choice = found["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hello there", "stop")
    assert choice["logprobs"]["tokens"] == list("hello there")
    assert choice["logprobs"]["text_offset"] == list(range(11))
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1] * 11
    events = stream(raw_client, "/v1/completions", {"prompt": "a", "stop": "th"})
    assert "".join(event["choices"][0]["text"] for event in events) == "hello "


@pytest.mark.parametrize("prompt", [["a", "b"], [[0, 5], [0, 6]]])
def test_several_prompts_have_choices_in_order(raw_client: TestClient, prompt: Any) -> None:
    body = {"prompt": prompt, "n": 2, "max_tokens": 2}
    found = raw_client.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"] == {
        "prompt_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": 8,
        "total_tokens": 12,
    }


def test_ids_are_a_prompt(raw_client: TestClient) -> None:
    found = raw_client.post("/v1/completions", json={"prompt": [0, 3]}).json()
    assert found["choices"][0]["text"] == "hello there"


def test_completions_stop_after_sixteen_tokens() -> None:
    with client_of(script_session("x" * 60)) as client:
        found = client.post("/v1/completions", json={"prompt": "a"}).json()
    assert found["usage"]["completion_tokens"] == 16


def test_a_seed_is_drawn_and_reported(client: TestClient) -> None:
    seeds = {chat(client, seed=seed)["seed"] for seed in (None, -1)}
    assert len(seeds) == 2
    assert chat(client, seed=7)["seed"] == 7


def test_tokens_and_back(raw_client: TestClient) -> None:
    tokens = raw_client.post("/tokenize", json={"content": "ab", "with_pieces": True}).json()
    assert tokens == {"tokens": [{"id": 3, "piece": "a"}, {"id": 4, "piece": "b"}]}
    found = raw_client.post("/detokenize", json={"tokens": [3, 4]}).json()
    assert found == {"content": "ab"}


def test_the_model_is_listed(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json() == listed["data"][0]
    assert listed["data"][0]["meta"]["n_ctx"] == 512
    assert client.get("/v1/models/other").status_code == 404


def test_health_and_metrics_count(client: TestClient) -> None:
    before = chat(client)["usage"]["completion_tokens"]
    assert client.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}
    text = client.get("/metrics").text
    line = next(line for line in text.splitlines() if line.startswith("blockdraft_predicted_tok"))
    assert float(line.split()[1]) >= before
    assert 'endpoint="/v1/chat/completions",status="200"' in text


def test_the_page_of_the_interface_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "POST /v1/chat/completions" in page
    assert "max_completion_tokens" in page
    assert "<script" not in page
    assert "://" not in page
