"""The speed report's tables.

Knows figures and how people read them, nothing of their measuring.
"""

from collections.abc import Mapping, Sequence

from blockdraft.bench.choices import NOBODY, Choices, average_choices
from blockdraft.bench.depth import Depth
from blockdraft.bench.gains import Summary
from blockdraft.bench.gate import FLOOR, Gate
from blockdraft.bench.report import Table
from blockdraft.bench.sweep import Regret, mean_regret
from blockdraft.bench.together import Together

__all__ = [
    "choice_table",
    "depth_table",
    "gain_table",
    "gate_table",
    "regret_table",
    "together_table",
]

_ALL = "all"


def gain_table(categories: Mapping[str, Summary], overall: Summary) -> Table:
    """What drafting gains."""
    header = ["category", "plain tok/s", "drafted", "speed-up", "95 %", "tau", "accepted"]
    header += ["identical", "loops"]
    every = (*categories.items(), (_ALL, overall))
    return Table(header, [_gain_row(name, one) for name, one in every])


def choice_table(choices: Mapping[str, Choices]) -> Table:
    """Who drafted how much."""
    every = {**choices, _ALL: average_choices(list(choices.values()))}
    drafters = [name for name in every[_ALL].by_drafter if name != NOBODY]
    sizes = [size for size in every[_ALL].by_size if size]
    header = ["rounds", NOBODY, *drafters, *(f"{size}" for size in sizes), "mean nodes"]
    rows = [
        [
            name,
            *(f"{one.by_drafter.get(each, 0):.0%}" for each in (NOBODY, *drafters)),
            *(f"{one.by_size.get(size, 0):.0%}" for size in sizes),
            f"{one.mean_nodes:.2f}",
        ]
        for name, one in every.items()
    ]
    return Table(header, rows)


def gate_table(gates: Mapping[str, Gate]) -> Table:
    """Whether drafting loses."""
    header = ["no loss", "pairs", "plain / drafted s", "low", "floor", ""]
    rows = [
        [
            name,
            f"{gate.num_pairs}",
            f"{gate.ratio:.3f}",
            f"{gate.ratio_low:.3f}",
            f"{FLOOR:.2f}",
            "pass" if gate.is_met else "FAIL",
        ]
        for name, gate in gates.items()
    ]
    return Table(header, rows)


def regret_table(regrets: Mapping[str, Regret]) -> Table:
    """The policy against the best fixed setting."""
    header = ["sweep", "best fixed", "tok/s", "policy", "regret"]
    rows = [
        [
            name,
            one.best,
            f"{one.tokens_per_s[one.best]:.1f}",
            f"{one.auto_tokens_per_s:.1f}",
            f"{one.regret:+.1%}",
        ]
        for name, one in regrets.items()
    ]
    return Table(header, [*rows, [_ALL, "", "", "", f"{mean_regret(regrets.values()):+.1%}"]])


def together_table(together: Mapping[str, Together]) -> Table:
    """All drafters against each alone."""
    drafters = list(next(iter(together.values())).speedups)
    rows = [
        [
            name,
            *(f"{one.speedups[each]:.2f}" for each in drafters),
            f"{one.speedup:.2f}",
            one.best,
            one.over_best.to_text(),
        ]
        for name, one in together.items()
    ]
    return Table(["over plain", *drafters, "together", "best alone", "together / best"], rows)


def depth_table(depths: Sequence[Depth]) -> Table:
    """Speed-ups of each category by depth."""
    header = ["depth", "prompt", "plain tok/s", "drafted", *depths[0].categories, _ALL]
    rows = []
    for depth in depths:
        categories, overall = depth.categories, depth.overall
        speedups = [
            f"{categories[name].speedup:.2f}" if name in categories else "-"
            for name in depths[0].categories
        ]
        rows.append(
            [
                f"{depth.tokens}",
                f"{depth.prompt_tokens:.0f}",
                f"{overall.plain_tokens_per_s:.1f}",
                f"{overall.drafted_tokens_per_s:.1f}",
                *speedups,
                f"{overall.speedup:.2f}",
            ]
        )
    return Table(header, rows)


def _gain_row(name: str, one: Summary) -> list[str]:
    return [
        name,
        f"{one.plain_tokens_per_s:.1f}",
        f"{one.drafted_tokens_per_s:.1f}",
        f"{one.speedup:.2f}",
        f"{one.speedup_low:.2f}-{one.speedup_high:.2f}",
        *one.acceptance.cells(),
        f"{one.num_identical}/{one.num_prompts}",
        f"{one.num_loops}",
    ]
