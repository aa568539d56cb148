"""Our drafting against llama.cpp's, with sides that take the time they are told."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from blockdraft.bench import peers_speculation
from blockdraft.bench.limits import describe_machine
from blockdraft.bench.llama_server import LlamaSpec
from blockdraft.bench.peers_speculation import SpeculationPlan, take_turns
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.sides import Answer
from blockdraft.bench.speculation_report import SpeculationReport
from blockdraft.errors import ConfigError

PROMPTS = [
    (SpeedPrompt("a1", "a", "x"), [1, 2]),
    (SpeedPrompt("a2", "a", "y"), [1, 2, 3]),
    (SpeedPrompt("b1", "b", "z"), [4]),
]
PLAN = SpeculationPlan((LlamaSpec("ngram-mod"),), max_tokens=8, repeats=2)


@dataclass
class FakeSide:
    """Writes 10 tokens in ``seconds``."""

    name: str
    seconds: float
    num_tokens: int = 10
    drafts: tuple[int, int] = (0, 0)
    order: list[str] = field(default_factory=list)

    def answer(self, token_ids: Sequence[int], max_tokens: int) -> Answer:
        self.order.append(self.name)
        return Answer(self.num_tokens, self.seconds, *self.drafts)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_speculation, "_PAUSE_S", 0)


def sides_of(order: list[str] | None = None) -> list[FakeSide]:
    kept: list[str] = [] if order is None else order
    return [
        FakeSide("blockdraft plain", 2.0, order=kept),
        FakeSide("blockdraft", 1.0, drafts=(8, 4), order=kept),
        FakeSide("llama.cpp plain", 4.0, order=kept),
        FakeSide("ngram-mod", 2.5, order=kept),
    ]


def report_of(sides: Sequence[FakeSide]) -> SpeculationReport:
    return SpeculationReport(
        machine=describe_machine(),
        model="tiny",
        threads=1,
        isa="scalar",
        drafting="ngram",
        peer="llama.cpp",
        peer_system="none",
        max_tokens=8,
        repeats=2,
        answers=take_turns(sides, PROMPTS, PLAN, lambda _: None),
    )


class TestTurns:
    def test_who_begins_goes_round(self) -> None:
        order: list[str] = []
        take_turns(sides_of(order), PROMPTS, PLAN, lambda _: None)
        turns = order[4:]  # after the first answer of each, which is not counted
        assert len(turns) == 3 * 2 * 4
        begins = [turns[place] for place in range(0, len(turns), 4)]
        names = [side.name for side in sides_of()]
        assert begins == [names[i] for i in (0, 1, 1, 2, 2, 3)]

    def test_turns_of_a_prompt_are_added(self) -> None:
        found = take_turns(sides_of(), PROMPTS, PLAN, lambda _: None)
        assert found["a"]["blockdraft"] == [Answer(20, 2.0, 16, 8)] * 2
        assert len(found["b"]["ngram-mod"]) == 1

    def test_answers_without_a_second_token_are_left_out(self) -> None:
        sides = [*sides_of(), FakeSide("other", 1.0, num_tokens=0)]
        with pytest.raises(ConfigError, match="no answer has two tokens"):
            take_turns(sides, PROMPTS, PLAN, lambda _: None)


class TestReport:
    def test_speedups_are_over_the_same_programs_plain(self) -> None:
        gains = report_of(sides_of()).gains["a"]
        assert gains["blockdraft"].speedup == pytest.approx(2.0)
        assert gains["ngram-mod"].speedup == pytest.approx(4 / 2.5)
        assert gains["blockdraft"].acceptance_rate == pytest.approx(0.5)
        assert gains["ngram-mod"].acceptance_rate is None

    def test_the_lead_is_over_the_best_peer(self) -> None:
        best, lead = report_of(sides_of()).leads["a"]
        assert best == "ngram-mod"
        assert lead.ratio == pytest.approx(2.5)
        assert lead.low == pytest.approx(2.5)

    def test_drafts_of_llama_cpp_that_lose_are_not_its_best(self) -> None:
        sides = sides_of()
        sides[3].seconds = 5.0
        assert report_of(sides).leads["b"][0] == "llama.cpp plain"

    def test_json_keys_are_stable(self) -> None:
        found = report_of(sides_of()).to_json()
        assert found["overall"]["blockdraft"] == pytest.approx(10.0)
        assert set(found["categories"]) == {"a", "b"}
        assert set(found["categories"]["a"]) == {"sides", "best_peer", "over_best_peer"}
        one = found["categories"]["a"]["sides"]["ngram-mod"]
        assert set(one) == {"tokens_per_s", "speedup", "acceptance_rate"}
        assert {"machine", "model", "peer", "peer_system", "type", "repeats"} <= set(found)

    def test_text_has_both_tables(self) -> None:
        text = report_of(sides_of()).to_text()
        assert "blockdraft / best peer" in text
        assert "2.00 (50%)" in text
