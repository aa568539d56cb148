"""Bodies with very many faults are refused for one of them: each error takes half a kilobyte."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from blockdraft.serve.chat import ChatRequest
from blockdraft.serve.completions import CompletionRequest
from blockdraft.serve.messages import MAX_TURNS
from blockdraft.serve.plain import DetokenizeRequest
from blockdraft.serve.responses import ResponsesRequest

MANY = 2000
TURN = {"role": "user", "content": "a"}
KEYS = {f"k{i}": 0 for i in range(MANY)}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": [TURN], **KEYS}),
        (ChatRequest, {"messages": [{**TURN, **KEYS}]}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (ChatRequest, {"messages": [TURN], "tools": [{}] * MANY}),
        (ChatRequest, {"messages": [TURN], "stop": [0] * MANY}),
        (ChatRequest, {"messages": [TURN], "logit_bias": dict.fromkeys(KEYS, "x")}),
        (ChatRequest, {"messages": [{**TURN, "tool_calls": [{}] * MANY}]}),
        (CompletionRequest, {"prompt": [{}] * MANY}),
        (CompletionRequest, {"prompt": [["a"] * MANY] * 9}),
        (ResponsesRequest, {"input": [{}] * MANY}),
        (ResponsesRequest, {"input": [{**TURN, **KEYS}]}),
        (ResponsesRequest, {"input": "a", "tools": [{}] * MANY}),
        (ResponsesRequest, {"input": "a", "include": ["x"] * MANY}),
        (DetokenizeRequest, {"tokens": ["x"] * MANY}),
    ],
)
def test_one_fault_is_enough(kind: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() < 10


def test_conversations_have_a_limit() -> None:
    with pytest.raises(ValidationError, match=f"at most {MAX_TURNS} items"):
        ChatRequest.model_validate({"messages": [TURN] * (MAX_TURNS + 1)})


def test_nulls_are_dropped_and_unknown_keys_are_not() -> None:
    found = ChatRequest.model_validate({"messages": [TURN], "seed": None})
    assert found.model_fields_set == {"messages"}
    with pytest.raises(ValidationError, match="spec"):
        ChatRequest.model_validate({"messages": [TURN], "spec": None})
