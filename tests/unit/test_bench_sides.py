"""Who takes part in a comparison of drafting."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from blockdraft.bench.sides import Answer, LlamaSide, OurSide
from blockdraft.config import DraftConfig
from blockdraft.session import Session

TinyModel = Callable[..., Path]


class TestOurs:
    def test_drafted_and_plain_write_as_many_tokens(self, tiny_model: TinyModel) -> None:
        session = Session.load(tiny_model(), num_threads=1, drafting=DraftConfig("ngram"))
        token_ids = session.encode("a b a b a b")
        plain, drafted = (
            OurSide("x", session, draft).answer(token_ids, 16) for draft in (False, True)
        )
        assert plain.num_tokens == drafted.num_tokens > 0
        assert plain.seconds > 0
        assert plain.num_drafted == plain.num_accepted == 0
        assert drafted.num_drafted >= drafted.num_accepted


class FakeServer:
    """Answers with its timings."""

    def __init__(self, timings: Mapping[str, Any]) -> None:
        self.timings = timings
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        return {"content": "x", "timings": dict(self.timings)}


def side_of(**timings: Any) -> tuple[LlamaSide, FakeServer]:
    server: Any = FakeServer(timings)
    return LlamaSide("x", server), server


class TestLlamaCpp:
    def test_its_own_seconds_count_after_the_first_token(self) -> None:
        side, server = side_of(predicted_n=11, predicted_ms=500.0, draft_n=8, draft_n_accepted=6)
        assert side.answer([4, 5], 16) == Answer(10, 0.5, 8, 6)
        ((path, body),) = server.asked
        assert path == "/completion"
        assert (body["prompt"], body["n_predict"], body["temperature"]) == ([4, 5], 16, 0)
        assert body["cache_prompt"] is False

    @pytest.mark.parametrize("predicted", [0, 1])
    def test_nothing_after_the_first_token(self, predicted: int) -> None:
        side, _ = side_of(predicted_n=predicted, predicted_ms=0.0)
        assert side.answer([4], 16) == Answer(0, 0.0)
