"""A load on a server that counts tokens."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from blockdraft.bench.load import drive, questions
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.errors import ConfigError

PROMPTS = [SpeedPrompt("1", "a", "one"), SpeedPrompt("2", "a", "two")]


class FakeServer:
    """Answers with 4 tokens; knows how many asked at once."""

    def __init__(self, expected: int) -> None:
        self.asked: list[str] = []
        self.together = threading.Barrier(expected)

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.together.wait(20)
        self.asked.append(body["messages"][0]["content"])
        return {"usage": {"completion_tokens": 4}, "path": path}


class TestDrive:
    def test_all_streams_ask_at_once(self) -> None:
        server = FakeServer(expected=4)  # fewer at once would wait for ever
        assert drive(server.ask, questions(PROMPTS, 8, 16, salt="s"), 4) > 0
        assert len(server.asked) == 8

    def test_answers_without_a_token_have_no_speed(self) -> None:
        def ask(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"usage": {"completion_tokens": 0}}

        with pytest.raises(ConfigError, match="no answer has a token"):
            drive(ask, questions(PROMPTS, 1, 16, salt="s"), 1)

    def test_no_two_questions_begin_alike(self) -> None:
        bodies = questions(PROMPTS, 3, 16, salt="4.0")
        texts = [body["messages"][0]["content"] for body in bodies]
        assert texts == ["(4.0.0) one", "(4.0.1) two", "(4.0.2) one"]
        assert (bodies[0]["temperature"], bodies[0]["max_tokens"]) == (0, 16)

    def test_categories_come_in_turn(self) -> None:
        prompts = [*PROMPTS, SpeedPrompt("3", "b", "three")]
        texts = [one["messages"][0]["content"] for one in questions(prompts, 4, 16, salt="s")]
        assert [text.split()[-1] for text in texts] == ["one", "three", "two", "one"]
