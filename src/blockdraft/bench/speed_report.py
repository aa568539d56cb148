"""What `bench.speed` measured, for people and for programs.

Knows figures, no models and no clocks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from blockdraft.bench.choices import Choices, average_choices, choices_of
from blockdraft.bench.depth import Depth
from blockdraft.bench.gains import PromptRun, Summary, by_category
from blockdraft.bench.gate import Gate, judge
from blockdraft.bench.limits import Machine
from blockdraft.bench.report import Table
from blockdraft.bench.speed_tables import (
    choice_table,
    depth_table,
    gain_table,
    gate_table,
    regret_table,
    together_table,
)
from blockdraft.bench.sweep import Regret, mean_regret, regret_of
from blockdraft.bench.together import Together, together_of

__all__ = ["SpeedReport"]


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What `bench_speed` measured.

    Attributes:
        machine: Where.
        model: Its name.
        threads: Of a pass.
        isa: Instruction set of the kernels.
        spec_type: The drafters.
        block_size: The anchor and the most drafts of a round.
        max_tokens: The most tokens of an answer.
        repeats: Runs of each prompt each way; with ``is_gate`` the least.
        depths: The runs by depth of context; figures without a depth are of the first.
        verify_ms: Milliseconds of a target pass by its rows, all with logits.
        is_gate: Whether the report judges if drafting loses.
    """

    machine: Machine
    model: str
    threads: int
    isa: str
    spec_type: str
    block_size: int
    max_tokens: int
    repeats: int
    depths: tuple[Depth, ...]
    verify_ms: Mapping[int, float] = field(default_factory=dict)
    is_gate: bool = False

    @property
    def runs(self) -> tuple[PromptRun, ...]:
        """Every prompt both ways, at the first depth."""
        return self.depths[0].runs

    @property
    def overall(self) -> Summary:
        """The mean over categories."""
        return self.depths[0].overall

    @property
    def categories(self) -> dict[str, Summary]:
        """The gains of each category."""
        return self.depths[0].categories

    @property
    def choices(self) -> dict[str, Choices]:
        """What was drafted in each category."""
        groups = by_category(self.runs).items()
        return {name: choices_of([run.stats for run in runs]) for name, runs in groups}

    @property
    def gates(self) -> dict[str, Gate]:
        """Whether drafting loses, by category; empty unless that is asked."""
        if not self.is_gate:
            return {}
        groups = by_category(self.runs).items()
        return {name: judge([pair for run in runs for pair in run.pairs]) for name, runs in groups}

    @property
    def regrets(self) -> dict[str, Regret]:
        """The policy against fixed settings, by category; empty without a sweep."""
        groups = by_category(self.runs)
        if not self.runs[0].fixed_s:
            return {}
        return {name: regret_of(runs) for name, runs in groups.items()}

    @property
    def together(self) -> dict[str, Together]:
        """All drafters against each alone, by category; empty unless that is measured."""
        if not self.runs[0].lone_s:
            return {}
        return {name: together_of(runs) for name, runs in by_category(self.runs).items()}

    @property
    def is_identical(self) -> bool:
        """Whether no prompt gave other tokens at any depth."""
        return all(run.is_identical for depth in self.depths for run in depth.runs)

    @property
    def is_met(self) -> bool:
        """Whether every gate was passed."""
        return all(gate.is_met for gate in self.gates.values())

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        choices, gates, regrets = self.choices, self.gates, self.regrets
        together = self.together
        categories = {
            name: {
                **one.to_json(),
                "choices": choices[name].to_json(),
                **({"gate": gates[name].to_json()} if gates else {}),
                **({"sweep": regrets[name].to_json()} if regrets else {}),
                **({"alone": together[name].to_json()} if together else {}),
            }
            for name, one in self.categories.items()
        }
        return {
            "overall": {
                **self.overall.to_json(),
                "choices": average_choices(list(choices.values())).to_json(),
                **({"regret": mean_regret(regrets.values())} if regrets else {}),
            },
            "categories": categories,
            "depths": [depth.to_json() for depth in self.depths],
            "prompts": [run.to_json() for run in self.runs],
            "verify_ms": {f"{rows}": ms for rows, ms in self.verify_ms.items()},
            "machine": asdict(self.machine),
            "model": self.model,
            "threads": self.threads,
            "isa": self.isa,
            "type": self.spec_type,
            "block_size": self.block_size,
            "max_tokens": self.max_tokens,
            "repeats": self.repeats,
            "passed": self.is_met,
        }

    @property
    def title(self) -> str:
        """What was measured, in two lines."""
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}\n"
            f"{self.spec_type}, B {self.block_size}, K {self.block_size - 1}, "
            f"{self.max_tokens} tokens at most, {self.repeats} repeats"
        )

    @property
    def notes(self) -> list[str]:
        """What the tables do not say."""
        shares = " ".join(f"{share:.0%}" for share in self.overall.acceptance.by_position)
        ms = self.overall.round_ms
        return [
            f"accepted by position: {shares or 'nothing was drafted'}",
            f"a round: draft {ms['draft']:.3f} ms, verify {ms['verify']:.2f} ms, "
            f"other {ms['other']:.3f} ms",
        ]

    def tables(self) -> list[Table]:
        """Every table that there is something for."""
        found = [gain_table(self.categories, self.overall), choice_table(self.choices)]
        if self.gates:
            found.append(gate_table(self.gates))
        if self.regrets:
            found.append(regret_table(self.regrets))
        if self.together:
            found.append(together_table(self.together))
        if len(self.depths) > 1:
            found.append(depth_table(self.depths))
        return found

    def to_text(self) -> str:
        """The report for people."""
        gains, *others = (table.to_text() for table in self.tables())
        notes = "\n".join(self.notes)
        return "\n\n".join([f"{self.title}\n{gains}\n{notes}", *others])
