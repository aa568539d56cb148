"""``client.responses`` of the official ``openai`` client, against a real server."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from blockdraft.session import Session
from tests.calling import ADD, CALL, ToldSession, tool_session
from tests.serving import async_openai_client, live, openai_client

if TYPE_CHECKING:
    import openai

TinyModel = Callable[..., Path]
TOOL: Any = {"type": "function", "strict": True, **ADD["function"]}
LONG = {"logit_bias": {"2": -100}}  # no token ends the answer


class Flag(pydantic.BaseModel):
    """What an answer is parsed into."""

    is_set: bool


@pytest.fixture(scope="module")
def session(tiny_model: TinyModel) -> Session:
    return tool_session(tiny_model)


@pytest.fixture(scope="module")
def url(session: Session) -> Iterator[str]:
    with live(session) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator["openai.OpenAI"]:
    with openai_client(url) as client:
        yield client


@pytest.fixture(scope="module")
def told(session: Session) -> Iterator[tuple[ToldSession, "openai.OpenAI"]]:
    """A model that writes what it is told to, and a client of it."""
    told = ToldSession(session)
    with (
        live(told) as url,
        openai_client(f"{url}/v1") as client,
    ):
        yield told, client


def ask(client: "openai.OpenAI", **fields: Any) -> Any:
    body: dict[str, Any] = {"model": "tiny", "input": "the rain", "max_output_tokens": 12} | fields
    body["extra_body"] = {"seed": 7, **LONG, **fields.get("extra_body", {})}
    return client.responses.create(**body)


def test_a_response(client: "openai.OpenAI") -> None:
    found = ask(client, instructions="be brief", temperature=0.5, top_p=0.9, metadata={"a": "b"})
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.temperature, found.top_p, found.instructions) == (0.5, 0.9, "be brief")
    assert found.output[0].content[0].text == found.output_text != ""
    assert found.usage.output_tokens == 12
    assert found.usage.input_tokens > ask(client).usage.input_tokens
    assert (found.metadata, found.seed) == ({"a": "b"}, 7)


def test_the_answer_is_that_of_a_chat(client: "openai.OpenAI") -> None:
    chat: Any = {"messages": [{"role": "user", "content": "the rain"}], "max_tokens": 12}
    found = client.chat.completions.create(model="tiny", seed=7, extra_body=LONG, **chat)
    assert ask(client).output_text == found.choices[0].message.content
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "the rain"}]}]
    assert ask(client, input=parts).output_text == found.choices[0].message.content


def test_a_stream_has_the_named_events(client: "openai.OpenAI") -> None:
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    text = [kind for kind in kinds if kind == "response.output_text.delta"]
    assert kinds == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.content_part.added", *text, "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done", "response.incomplete"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    whole = ask(client)
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage


def test_the_clients_own_stream_helper(told: tuple[ToldSession, "openai.OpenAI"]) -> None:
    session, client = told
    session.tell(f"Sure.\n{CALL}")
    with client.responses.stream(model="tiny", input="1+1", tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    text, call = found.output
    assert found.status == "completed"
    assert found.output_text == "Sure.\n"
    assert text.type == "message"
    assert call.type == "function_call"
    assert call.parsed_arguments == {"a": 1}


def test_items_of_a_response_are_input_again(told: tuple[ToldSession, "openai.OpenAI"]) -> None:
    session, client = told
    session.tell(f"Sure.\n{CALL}")
    items: list[Any] = [{"role": "user", "content": "1+1"}]
    first = client.responses.create(model="tiny", input=items, tools=[TOOL])
    items += first.output
    call = first.output[1]
    assert call.type == "function_call"
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "2"})
    session.tell("two")
    second = client.responses.create(model="tiny", input=items, tools=[TOOL])
    assert second.output_text == "two"
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_structured_output(client: "openai.OpenAI") -> None:
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    found = client.responses.parse(
        model="tiny", input="yes?", text_format=Flag, max_output_tokens=200, temperature=1
    )
    assert isinstance(found.output_parsed, Flag)


def test_a_forced_call(client: "openai.OpenAI") -> None:
    pytest.importorskip("llguidance", reason="forced calls need llguidance")
    choice = {"type": "function", "name": "add"}
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    found = ask(client, **fields, max_output_tokens=300, extra_body={"logit_bias": {}})
    assert [item.type for item in found.output] == ["function_call"]
    assert found.output[0].name == "add"


def test_logprobs(client: "openai.OpenAI") -> None:
    include: Any = ["message.output_text.logprobs"]
    found = ask(client, include=include, top_logprobs=2)
    entries = found.output[0].content[0].logprobs
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 12
    streamed = [
        entry.token
        for event in ask(client, include=include, top_logprobs=2, stream=True)
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert streamed == [entry.token for entry in entries]


def test_async_streams(url: str) -> None:
    async def run() -> str:
        async with async_openai_client(url) as client:
            stream = await client.responses.create(
                model="tiny", input="a", max_output_tokens=9, stream=True, extra_body={"seed": 3}
            )
            return "".join(
                [e.delta async for e in stream if e.type == "response.output_text.delta"]
            )

    assert asyncio.run(run()) == asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"previous_response_id": "resp_1"}, "the field previous_response_id is not supported"),
        ({"reasoning": {"effort": "low"}}, "the field reasoning is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"store": True}, "store"),
        ({"max_output_tokens": 5000}, "exceed the context"),
    ],
)
def test_what_is_not_supported_is_named(
    client: "openai.OpenAI", fields: dict[str, Any], message: str
) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match=message):
        ask(client, **fields)
