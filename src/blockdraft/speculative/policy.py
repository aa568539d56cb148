"""Which drafts pay: pure functions from what is known before a round to a decision.

The best round gives the most tokens per second. Nothing here can change a token, only how many
drafts are made and verified. Knows no models, no clocks and keeps nothing between calls.

Source: the budget rule of CaDDTree (arXiv:2606.01813) over the sequences of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockdraft.speculative.costs import CostModel

__all__ = ["Prospect", "Switch", "choose_nodes", "next_switch"]

_MARGIN = 1.02
"""What the other way must promise before a running one is left."""

_FIRST_PATIENCE, _MOST_PATIENCE = 8, 128


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a network would do for one sequence, and what is at hand without it.

    Attributes:
        ready: Of each draft at hand the chance that it and its path are accepted.
        gain: Drafts of the network that are likely accepted.
        nodes: Drafts of the network that would be verified for that.
    """

    ready: tuple[float, ...]
    gain: float
    nodes: float


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether the network runs.

    Attributes:
        runs: It drafts in this round.
        is_on: For its own sake; otherwise it is only tried.
        rounds_off: Rounds since it ran.
        patience: Rounds after which it is tried again while it is off.
    """

    runs: bool = True
    is_on: bool = True
    rounds_off: int = 0
    patience: int = _FIRST_PATIENCE


def next_switch(
    prospects: Sequence[Prospect], costs: CostModel, name: str, switch: Switch
) -> Switch:
    """Whether a pass of the network is likely worth its time, or due to be tried.

    Args:
        prospects: One per sequence that may draft.
        costs: Of the target and the network.
        name: The network's name in ``costs``.
        switch: Of the round before.
    """
    num_sequences = len(prospects)
    without = max(rate for rate, _ in _rates([p.ready for p in prospects], costs, sunk_s=0.0))
    gain = sum(prospect.gain for prospect in prospects)
    nodes = sum(prospect.nodes for prospect in prospects)
    seconds = costs.draft_seconds(name, num_sequences)
    seconds += costs.verify.seconds(max(1, round(num_sequences + nodes)))
    with_it = (num_sequences + gain) / seconds
    if with_it * (_MARGIN if switch.is_on else 1 / _MARGIN) >= without:
        return Switch()
    if switch.rounds_off >= switch.patience:
        patience = min(2 * switch.patience, _MOST_PATIENCE)
        return Switch(runs=True, is_on=False, patience=patience)
    return replace(switch, runs=False, is_on=False, rounds_off=switch.rounds_off + 1)


def choose_nodes(
    chances: Sequence[Sequence[float]], costs: CostModel, *, sunk_s: float = 0.0
) -> list[list[int]]:
    """Which drafts of each sequence to verify, ascending: always the likeliest.

    Args:
        chances: Of each node of each sequence, that it and its path are accepted; a node comes
            after its parent and is no likelier.
        costs: Of the target.
        sunk_s: Seconds that the round has cost already.
    """
    _, size = max(_rates(chances, costs, sunk_s=sunk_s), key=lambda each: (each[0], -each[1]))
    chosen: list[list[int]] = [[] for _ in chances]
    for _, sequence_idx, node in _by_chance(chances)[:size]:
        chosen[sequence_idx].append(node)
    return [sorted(nodes) for nodes in chosen]


def _rates(
    chances: Sequence[Sequence[float]], costs: CostModel, *, sunk_s: float
) -> list[tuple[float, int]]:
    """(tokens per second, drafts in all) with the best 0, 1, 2, ... drafts."""
    tokens = float(len(chances))
    rates = [(tokens / (sunk_s + costs.verify.seconds(len(chances))), 0)]
    for size, (chance, _, _) in enumerate(_by_chance(chances), 1):
        tokens += chance
        seconds = sunk_s + costs.verify.seconds(len(chances) + size)
        rates.append((tokens / seconds, size))
    return rates


def _by_chance(chances: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """(chance, sequence, node) of all drafts, the likeliest first; of equals parents first."""
    nodes = [
        (chance, i, node) for i, each in enumerate(chances) for node, chance in enumerate(each)
    ]
    return sorted(nodes, key=lambda node: (-node[0], node[2]))
