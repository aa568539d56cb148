"""Servers under load: levels, ratios, report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from blockdraft.bench import throughput
from blockdraft.bench.limits import describe_machine
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.throughput import (
    Level,
    ServePlan,
    ServeReport,
    measure_levels,
)

PROMPTS = [SpeedPrompt("1", "a", "one"), SpeedPrompt("2", "a", "two")]
RATES = {
    "plain": [10.0, 10.0],
    "drafted": [20.0, 20.0],
    "llama.cpp plain": [5.0, 5.0],
    "llama.cpp drafted": [10.0, 10.0],
}


class FakeServer:
    """Answers with 4 tokens and keeps the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(body["messages"][0]["content"])
        return {"usage": {"completion_tokens": 4}, "path": path}


class TestLevels:
    def test_every_server_gets_the_same_questions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(throughput, "_PAUSE_S", 0)
        servers = {name: FakeServer() for name in RATES}
        plan = ServePlan((1, 2), num_requests=2, repeats=2)
        levels = measure_levels(
            {name: server.ask for name, server in servers.items()}, PROMPTS, plan, lambda _: None
        )
        asked = [sorted(server.asked) for server in servers.values()]
        assert asked == [asked[0]] * 4
        assert len(asked[0]) == 1 + 2 * (2 + 4)
        assert [level.streams for level in levels] == [1, 2]
        assert all(len(rates) == 2 for level in levels for rates in level.rates.values())

    def test_like_is_compared_with_like(self) -> None:
        ratios = Level(4, RATES).ratios
        assert ratios["plain"].ratio == pytest.approx(2)
        assert ratios["drafted"].ratio == pytest.approx(2)
        assert ratios["drafts_gain"].ratio == pytest.approx(2)

    def test_ahead_is_ahead_plain_and_drafted(self) -> None:
        assert Level(4, RATES).is_ahead
        assert not Level(4, RATES | {"plain": [4.9, 4.9]}).is_ahead
        assert not Level(4, RATES | {"drafted": [9.0, 9.0]}).is_ahead

    def test_without_drafts_of_the_peer_plain_alone_counts(self) -> None:
        rates = {name: each for name, each in RATES.items() if name != "llama.cpp drafted"}
        level = Level(4, rates | {"drafted": [1.0, 1.0]})
        assert set(level.ratios) == {"plain", "drafts_gain"}
        assert level.is_ahead


class TestReport:
    REPORT = ServeReport(
        machine=describe_machine(),
        model="tiny",
        threads=1,
        isa="scalar",
        peer="llama.cpp",
        peer_system="none",
        peer_type="ngram-simple",
        plan=ServePlan((4,), repeats=2),
        levels=(Level(4, RATES),),
    )

    def test_json_keys_are_stable(self) -> None:
        found = self.REPORT.to_json()
        assert {"levels", "passed", "machine", "peer", "peer_type", "requests"} <= set(found)
        level = found["levels"][0]
        assert level["tokens_per_s"]["drafted"] == 20.0
        assert set(level["ratios"]) == {"plain", "drafted", "drafts_gain"}
        assert set(level) == {"streams", "tokens_per_s", "loads", "ratios", "ahead"}

    def test_a_level_behind_is_shown_and_fails(self) -> None:
        assert self.REPORT.is_met
        assert "ahead" in self.REPORT.to_text()
        behind = replace(self.REPORT, levels=(Level(4, RATES | {"plain": [1.0, 1.0]}),))
        assert not behind.is_met
        assert "BEHIND" in behind.to_text()
