"""A real server and the official ``openai`` client, on a tiny model that drafts with n-grams."""

import asyncio
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pydantic
import pytest

from blockdraft.config import DraftConfig
from blockdraft.engine import TokenEvent
from blockdraft.session import Session
from tests.serving import async_openai_client, live, openai_client, plain_http

if TYPE_CHECKING:
    import openai

TinyModel = Callable[..., Path]
MESSAGES: Any = [{"role": "user", "content": "the rain in the rain"}]


@pytest.fixture(scope="module")
def session(tiny_model: TinyModel) -> Session:
    return Session.load(tiny_model(), num_threads=1, drafting=DraftConfig("ngram"))


@pytest.fixture(scope="module")
def url(session: Session) -> Iterator[str]:
    with live(session, max_running=16, max_waiting=200, api_key="secret") as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator["openai.OpenAI"]:
    with openai_client(f"{url}/v1", "secret") as client:
        yield client


@pytest.fixture
def raw(url: str) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer secret"}
    with plain_http.client(base_url=url, headers=headers, timeout=20) as client:
        yield client


def ask(client: "openai.OpenAI", **fields: Any) -> Any:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "seed": 7} | fields
    return client.chat.completions.create(**options)


def test_a_chat(client: "openai.OpenAI", session: Session) -> None:
    found = ask(client)
    choice = found.choices[0]
    assert found.usage.completion_tokens == 24
    assert choice.finish_reason == "length"
    assert found.timings["draft_n"] >= found.timings["draft_n_accepted"]
    assert found.timings["tau"] >= 1
    with_seed = ask(client)
    assert with_seed.choices[0].message.content == choice.message.content
    assert found.seed == 7


def test_a_stream(client: "openai.OpenAI") -> None:
    whole = ask(client).choices[0].message.content
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole
    assert chunks[-1].usage.completion_tokens == 24


def test_choices_differ_and_come_again(client: "openai.OpenAI") -> None:
    texts = [[c.message.content for c in ask(client, n=3, temperature=2.0).choices] for _ in "ab"]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    one = ask(client, temperature=2.0).choices[0].message.content
    assert one == texts[0][0]


def test_stop_and_bias(client: "openai.OpenAI", raw: httpx2.Client) -> None:
    letter = raw.post("/tokenize", json={"content": "q"}).json()["tokens"][0]
    found = ask(client, logit_bias={str(letter): 100}, max_tokens=5)
    assert found.choices[0].message.content == "qqqqq"
    stopped = ask(client, logit_bias={str(letter): 100}, stop=["qqq"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("", "stop")


def test_logprobs(client: "openai.OpenAI") -> None:
    content = ask(client, logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(content) == 4
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in content)


def test_completions(client: "openai.OpenAI") -> None:
    found = client.completions.create(model="tiny", prompt=["the", "in"], max_tokens=3, seed=1)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.usage is not None
    assert found.usage.completion_tokens == 6


class Flag(pydantic.BaseModel):
    """What an answer is parsed into."""

    is_set: bool


def test_structured_output(client: "openai.OpenAI") -> None:
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    found = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Flag, seed=4, max_tokens=200
    )
    assert isinstance(found.choices[0].message.parsed, Flag)


def test_models(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "blockdraft"


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"max_tokens": -1}, "BadRequestError", "max_tokens"),
        ({"model": "other"}, "NotFoundError", "there is no model 'other'"),
        ({"max_tokens": 5000}, "BadRequestError", "exceed the context of 2048"),
        ({"extra_body": {"spec": 1}}, "BadRequestError", "the field spec is not supported"),
        ({"messages": []}, "BadRequestError", "messages"),
    ],
)
def test_errors_are_the_clients_own(
    client: "openai.OpenAI", fields: dict[str, Any], kind: str, message: str
) -> None:
    import openai

    with pytest.raises(getattr(openai, kind), match=message) as caught:
        ask(client, **fields)
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.body


def test_half_a_character_is_refused(client: "openai.OpenAI") -> None:
    import openai

    with pytest.raises((openai.BadRequestError, UnicodeEncodeError), match="surrogate"):
        ask(client, messages=[{"role": "user", "content": "\ud800"}])


def test_a_wrong_key_is_refused(url: str) -> None:
    import openai

    with (
        openai_client(f"{url}/v1", "wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        ask(client)


@pytest.mark.parametrize("off", [False, "off", {"type": "none"}])
def test_drafts_can_be_declined_and_change_nothing(client: "openai.OpenAI", off: Any) -> None:
    plain = ask(client, extra_body={"speculative": off})
    assert "draft_n" not in plain.timings
    for speculative in (True, {"n_max": 2}, {"type": "ngram", "n_max": 7}):
        found = ask(client, extra_body={"speculative": speculative})
        assert found.choices[0].message.content == plain.choices[0].message.content


def test_drafts_can_be_marked(raw: httpx2.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20, "stream": True, "mark_drafts": True}
    lines = raw.post("/v1/chat/completions", json=body).text
    assert '"is_drafted":' in lines


def mixed(number: int) -> dict[str, Any]:
    """Parameters that differ from client to client."""
    draw = random.Random(number)
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "the in on " * draw.randint(1, 30)}],
        "max_tokens": draw.randint(1, 30),
        "seed": number,
        "temperature": draw.choice([0, 0.7, 1.5]),
        "top_p": draw.choice([0.5, 1.0]),
        "presence_penalty": draw.choice([0.0, 0.8]),
        "n": draw.choice([1, 1, 2]),
        "extra_body": {"top_k": draw.choice([0, 5, 40])},
    }
    if draw.random() < 0.3:
        fields["stop"] = ["e", "t"]
    if draw.random() < 0.3:
        fields |= {"logprobs": True, "top_logprobs": 2}
    if draw.random() < 0.3:
        fields["logit_bias"] = {"70": 5}
    if draw.random() < 0.2:
        fields["response_format"] = {"type": "json_object"}
    if draw.random() < 0.3:
        fields["extra_body"]["speculative"] = draw.choice([False, {"n_max": 2}])
    return fields


def logged(choice: Any) -> list[str]:
    """Tokens whose log-probabilities are told."""
    return [entry.token for entry in choice.logprobs.content or ()] if choice.logprobs else []


def outcome(found: Any) -> list[tuple[Any, ...]]:
    return [(c.message.content, c.finish_reason, logged(c)) for c in found.choices]


async def streamed(chunks: Any) -> list[tuple[Any, ...]]:
    """What `outcome` says of the answers of a stream."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    tokens: dict[int, list[str]] = {}
    async for chunk in chunks:
        for choice in chunk.choices:
            i = choice.index
            texts[i] = texts.get(i, "") + (choice.delta.content or "")
            reasons[i] = choice.finish_reason or reasons.get(i, "")
            tokens[i] = tokens.get(i, []) + logged(choice)
    return [(texts[i], reasons[i], tokens[i]) for i in sorted(texts)]


@pytest.mark.parametrize("count", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_every_answer_under_load_is_the_one_alone(
    url: str, client: "openai.OpenAI", count: int
) -> None:
    alone = [outcome(ask(client, **mixed(number))) for number in range(count)]

    async def one(many: "openai.AsyncOpenAI", number: int) -> list[tuple[Any, ...]]:
        fields: Any = {"model": "tiny", **mixed(number)}
        if number % 2:
            return await streamed(await many.chat.completions.create(**fields, stream=True))
        return outcome(await many.chat.completions.create(**fields))

    async def together() -> list[Any]:
        async with async_openai_client(f"{url}/v1", "secret") as many:
            return await asyncio.gather(*(one(many, number) for number in range(count)))

    assert asyncio.run(together()) == alone


def test_async_streams(url: str) -> None:
    async def run() -> str:
        async with async_openai_client(f"{url}/v1", "secret") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=9, seed=3, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(run()) == asyncio.run(run())


def wait_idle(raw: httpx2.Client) -> None:
    deadline = time.monotonic() + 10
    while (found := raw.get("/health").json()) != {"status": "ok", "running": 0, "waiting": 0}:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_memory(
    url: str,
    raw: httpx2.Client,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stream: bool,
) -> None:
    # Slow passes, so that all four are seen running on a busy machine too.
    step = session.engine.step

    def slow_step() -> list[TokenEvent]:
        time.sleep(0.01)
        return step()

    monkeypatch.setattr(session.engine, "step", slow_step)
    body = {"messages": MESSAGES, "stream": stream, "logit_bias": {"2": -100}, "n": 4}
    address = httpx2.URL(url)
    request = raw.build_request("POST", "/v1/chat/completions", json=body)
    head = f"POST {request.url.path} HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in request.headers.items()
    )
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head.encode() + b"\r\n" + request.read())
        deadline = time.monotonic() + 10
        while session.engine.num_running < 4:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    wait_idle(raw)
    assert session.engine.used_cache_bytes == 0


def test_half_sent_requests_hold_nothing(url: str, raw: httpx2.Client) -> None:
    address = httpx2.URL(url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        assert raw.get("/health").status_code == 200
    wait_idle(raw)


def test_nothing_of_a_request_is_logged(
    raw: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    body = {"messages": [{"role": "user", "content": "my secret"}], "max_tokens": 2}
    assert raw.post("/v1/chat/completions", json=body).status_code == 200
    assert raw.post("/v1/chat/completions", json=body | {"my secret": 1}).status_code == 400
    assert "my secret" not in caplog.text
