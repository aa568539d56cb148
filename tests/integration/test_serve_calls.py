"""Tools, formats and streams of chats with the official ``openai`` client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from tests.calling import ADD, CALL, ToldSession, tool_session
from tests.serving import live, openai_client

if TYPE_CHECKING:
    import openai

TinyModel = Callable[..., Path]
MESSAGES: Any = [{"role": "user", "content": "1+1"}]
TOOLS: Any = [ADD]
World = tuple[ToldSession, "openai.OpenAI"]


class Flag(pydantic.BaseModel):
    """What an answer is parsed into."""

    is_set: bool


class Add(pydantic.BaseModel):
    """Arguments as the client derives their schema."""

    a: int


@pytest.fixture(scope="module")
def world(tiny_model: TinyModel) -> Iterator[World]:
    """A model that writes what it is told to, and a client of it."""
    told = ToldSession(tool_session(tiny_model))
    with (
        live(told) as url,
        openai_client(f"{url}/v1") as client,
    ):
        yield told, client


def test_a_call_and_its_answer(world: World) -> None:
    told, client = world
    told.tell(f"Sure.\n{CALL}")
    first = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    answer = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    told.tell("two")
    turns: Any = [*MESSAGES, message, answer]
    second = client.chat.completions.create(model="tiny", messages=turns, tools=TOOLS)
    assert second.choices[0].message.content == "two"


def test_the_clients_own_stream_helper(world: World) -> None:
    import openai

    told, client = world
    told.tell(CALL.replace('"add"', '"Add"'))
    tools = [openai.pydantic_function_tool(Add)]
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=tools) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert found.choices[0].message.tool_calls is not None
    assert found.choices[0].message.tool_calls[0].function.parsed_arguments == Add(a=1)


def test_structured_output_in_a_stream(world: World) -> None:
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    told, client = world
    told.tell('{"is_set": true}')
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Flag
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Flag(is_set=True)


def test_text_completions_in_a_stream(world: World) -> None:
    told, client = world
    told.tell("a fine day")
    stream = client.completions.create(model="tiny", prompt="On", max_tokens=50, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a fine day"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stop_string_in_a_stream(world: World) -> None:
    told, client = world
    told.tell("one two three")
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stop=["two", "three"], stream=True
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one "
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"functions": []}, "the field functions is not supported"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, r"tools\[0\]"),
        ({"modalities": ["text", "audio"]}, "the field modalities is not supported"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction is not supported"),
        ({"store": True}, "store"),
    ],
)
def test_what_is_not_supported_is_named(world: World, fields: dict[str, Any], message: str) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match=message):
        world[1].chat.completions.create(model="tiny", messages=MESSAGES, **fields)
