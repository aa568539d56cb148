"""What `bench.peers_speculation` measured, for people and for programs.

Knows counts and seconds of sides, no models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft.bench.limits import Machine
from blockdraft.bench.ratios import Ratio, rate_ratio
from blockdraft.bench.report import Table
from blockdraft.bench.sides import Answer

__all__ = ["OURS", "OURS_PLAIN", "PEER_PLAIN", "SideGain", "SpeculationReport", "sum_of"]

OURS, OURS_PLAIN = "blockdraft", "blockdraft plain"
PEER_PLAIN = "llama.cpp plain"
"""Names of sides that every comparison has."""

_ALL = "all"


@dataclass(frozen=True, slots=True)
class SideGain:
    """One side in one category.

    Attributes:
        tokens_per_s: All tokens over all seconds.
        speedup: Over the same program's plain decoding.
        acceptance_rate: Accepted over drafted; None where nothing was drafted.
    """

    tokens_per_s: float
    speedup: float
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """What `bench_speculation` measured.

    Attributes:
        machine: Where.
        model: Its name.
        threads: Of a pass.
        isa: Instruction set of our kernels.
        drafting: Our drafters.
        peer: Program and version.
        peer_system: What it was built for.
        max_tokens: The most tokens of an answer.
        repeats: Turns of every side with every prompt.
        answers: Of each category each side's answers, by prompt.
    """

    machine: Machine
    model: str
    threads: int
    isa: str
    drafting: str
    peer: str
    peer_system: str
    max_tokens: int
    repeats: int
    answers: Mapping[str, Mapping[str, Sequence[Answer]]]

    @property
    def sides(self) -> list[str]:
        """Names of the sides."""
        return list(next(iter(self.answers.values())))

    @property
    def gains(self) -> dict[str, dict[str, SideGain]]:
        """Each side in each category."""
        return {name: _gains(by_side) for name, by_side in self.answers.items()}

    @property
    def leads(self) -> dict[str, tuple[str, Ratio]]:
        """Of each category llama.cpp's fastest side, and our drafted rate over its rate."""
        found = {}
        for name, gains in self.gains.items():
            theirs = [side for side in gains if side not in (OURS, OURS_PLAIN)]
            best = max(theirs, key=lambda side: gains[side].tokens_per_s)
            sides = self.answers[name]
            found[name] = (best, rate_ratio(*(_sums(sides[side]) for side in (OURS, best))))
        return found

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        gains, leads = self.gains, self.leads
        return {
            "sides": self.sides,
            "categories": {
                name: {
                    "sides": {side: asdict(one) for side, one in gains[name].items()},
                    "best_peer": leads[name][0],
                    "over_best_peer": leads[name][1].to_json(),
                }
                for name in gains
            },
            "overall": {side: _mean_rate(gains, side) for side in self.sides},
            "machine": asdict(self.machine),
            "model": self.model,
            "threads": self.threads,
            "isa": self.isa,
            "type": self.drafting,
            "peer": self.peer,
            "peer_system": self.peer_system,
            "max_tokens": self.max_tokens,
            "repeats": self.repeats,
        }

    def to_text(self) -> str:
        """The report for people."""
        gains, leads, sides = self.gains, self.leads, self.sides
        rates = [
            [
                name,
                *(f"{one[side].tokens_per_s:.1f}" for side in sides),
                leads[name][0],
                leads[name][1].to_text(),
            ]
            for name, one in gains.items()
        ]
        means = [f"{_mean_rate(gains, side):.1f}" for side in sides]
        rates.append([_ALL, *means, "", ""])
        speedups = [
            [name, *(_speedup_text(one[side]) for side in sides)] for name, one in gains.items()
        ]
        header = ["tokens/s", *sides, "best peer", f"{OURS} / best peer"]
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu};"
            f" {self.drafting} against {self.peer}\n"
            f"its build: {self.peer_system}\n"
            f"{self.max_tokens} tokens at most, {self.repeats} alternating turns\n"
            f"{Table(header, rates).to_text()}\n\n"
            f"{Table(['over own plain (accepted)', *sides], speedups).to_text()}"
        )


def sum_of(answers: Sequence[Answer]) -> Answer:
    """Several answers as one."""
    return Answer(
        sum(one.num_tokens for one in answers),
        sum(one.seconds for one in answers),
        sum(one.num_drafted for one in answers),
        sum(one.num_accepted for one in answers),
    )


def _sums(answers: Sequence[Answer]) -> list[tuple[int, float]]:
    return [(one.num_tokens, one.seconds) for one in answers]


def _gains(by_side: Mapping[str, Sequence[Answer]]) -> dict[str, SideGain]:
    sums = {side: sum_of(answers) for side, answers in by_side.items()}
    rates = {side: one.num_tokens / one.seconds for side, one in sums.items()}
    found = {}
    for side, one in sums.items():
        plain = OURS_PLAIN if side in (OURS, OURS_PLAIN) else PEER_PLAIN
        rate = one.num_accepted / one.num_drafted if one.num_drafted else None
        found[side] = SideGain(rates[side], rates[side] / rates[plain], rate)
    return found


def _mean_rate(gains: Mapping[str, Mapping[str, SideGain]], side: str) -> float:
    return sum(one[side].tokens_per_s for one in gains.values()) / len(gains)


def _speedup_text(gain: SideGain) -> str:
    accepted = "" if gain.acceptance_rate is None else f" ({gain.acceptance_rate:.0%})"
    return f"{gain.speedup:.2f}{accepted}"
