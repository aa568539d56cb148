"""Which drafts pay: pure functions from what is known before a round to a decision.

The best round gives the most tokens per second. Nothing here can change a token, only how many
drafts are made and verified. Knows no models, no clocks and keeps nothing between calls.

Source: the budget rule of CaDDTree (arXiv:2606.01813) over the sequences of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from blockdraft.speculative.costs import CostModel

__all__ = [
    "Network",
    "Prospect",
    "Switch",
    "best_rate",
    "choose_nodes",
    "gain_of",
    "least_chance",
    "next_switch",
    "rest_rounds",
]

_STAYS, _STARTS = 1.04, 1.1
"""Speed, against going without it, at which a running network goes on, and at which one begins. A
plain pass between others takes up to a tenth longer than one among plain ones, so that drafting
looks better than it is."""

_FIRST_PATIENCE, _MOST_PATIENCE = 16, 256

_TRIAL_SHARE = 0.01
"""Share of the time that trials of a network that is off may take."""

_LOOK_SHARE = 0.005
"""Share of the time that looking for drafts may take where that did not pay lately."""

_MOST_ROUNDS_OFF = 32
"""Rounds in a row in which no drafts are looked for at most."""

_WORTH = 1.08
"""Speed, against a plain round, from which drafts are verified: what looks only a little better is
mostly misjudged."""

_AMORTIZED = 64
"""Rounds over which a network earns what it has to read first, unless the answer ends before."""

_MOST_ROUNDS_UNTRIED = 1024
"""Rounds after which a network is tried however dear that is: what it has to read first grows with
every round that it is off."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a network would do for one sequence, and what is at hand without it.

    Attributes:
        ready: Of each draft at hand the chance that it and its path are accepted.
        shares: Of the network's drafts at depth 1, 2, ... the chance that it and those before it
            are accepted, as deep as there is room.
        lag: Committed tokens that the network has not read.
        left: Tokens that the sequence may still get.
    """

    ready: tuple[float, ...]
    shares: tuple[float, ...]
    lag: int = 0
    left: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether the network runs.

    Attributes:
        runs: It drafts in this round.
        is_on: For its own sake; otherwise it is only tried.
        rounds_off: Rounds since it ran.
        patience: Rounds after which it is tried again while it is off.
        depth: Drafts in a row that are worth making.
        promise: Tokens per second that it is expected to give, what it has to read first aside.
        read_s: Seconds that reading that takes.
    """

    runs: bool = True
    is_on: bool = True
    rounds_off: int = 0
    patience: int = _FIRST_PATIENCE
    depth: int = 1
    promise: float = field(default=0.0, compare=False)
    read_s: float = field(default=0.0, compare=False)

    @property
    def is_hopeless(self) -> bool:
        """Whether it is off and was tried in vain as often as makes a difference."""
        return not self.is_on and self.patience >= _MOST_PATIENCE


@dataclass(frozen=True, slots=True)
class Network:
    """A network as the costs know it.

    Attributes:
        name: In the costs.
        is_stepwise: It needs a pass for each draft; else one over anchor and drafts.
    """

    name: str
    is_stepwise: bool = False


def rest_rounds(gain: float, price: float) -> int:
    """Rounds without drafts after one in which they were looked for.

    Args:
        gain: Share of the speed of plain decoding that drafts added lately.
        price: Share of the time of a plain round that looking for them takes.
    """
    return 0 if gain >= price else min(ceil(price / _LOOK_SHARE), _MOST_ROUNDS_OFF)


def next_switch(
    prospects: Sequence[Prospect],
    costs: CostModel,
    network: Network,
    switch: Switch,
    *,
    context: float = 0.0,
    rounds: int = 1,
    kept: float = 1.0,
) -> Switch:
    """Whether a pass of the network is likely worth its time, or due to be tried.

    Args:
        prospects: One per sequence that may draft.
        costs: Of the target and the network.
        network: The network.
        switch: Of the round before.
        context: Committed tokens of a sequence, the mean over them.
        rounds: Since the last decision.
        kept: Share of what the network promised that its rounds gave.
    """
    num_sequences = len(prospects)
    ready = [prospect.ready for prospect in prospects]
    without = max(rate for rate, _ in _rates(ready, costs, sunk_s=0.0, context=context))
    read_s = costs.read_seconds(network.name, sum(prospect.lag for prospect in prospects))
    depth, tokens, seconds = _best_depth(prospects, costs, network, context)
    rounds_left = sum(prospect.left for prospect in prospects) / max(tokens, 1.0)
    with_it = kept * tokens / (seconds + read_s / max(min(_AMORTIZED, rounds_left), 1))
    promise = tokens / seconds
    if with_it >= without * (_STAYS if switch.is_on else _STARTS):
        return Switch(depth=depth, promise=promise, read_s=read_s)
    lost_rounds = (seconds + read_s - tokens / without) * without / num_sequences
    wait = min(max(switch.patience, lost_rounds / _TRIAL_SHARE), _MOST_ROUNDS_UNTRIED)
    if switch.rounds_off >= wait:
        patience = min(2 * switch.patience, _MOST_PATIENCE)
        return Switch(True, False, patience=patience, depth=depth, promise=promise, read_s=read_s)
    rounds_off = switch.rounds_off + rounds
    return replace(switch, runs=False, is_on=False, rounds_off=rounds_off, depth=depth)


def _best_depth(
    prospects: Sequence[Prospect], costs: CostModel, network: Network, context: float
) -> tuple[int, float, float]:
    """The drafts in a row that give the most tokens per second, expected tokens and seconds."""
    num_rows = num_sequences = len(prospects)
    tokens = float(num_sequences)
    best = (0, 0.0, 1.0)
    for depth in range(1, max(len(prospect.shares) for prospect in prospects) + 1):
        shares = [p.shares[depth - 1] for p in prospects if len(p.shares) >= depth]
        tokens += sum(shares)
        num_rows += len(shares)
        if network.is_stepwise:
            seconds = depth * costs.draft_seconds(network.name, num_sequences)
        else:
            seconds = costs.draft_seconds(network.name, num_sequences * (1 + depth))
        seconds += costs.verify_seconds(num_rows, num_sequences, context)
        if tokens * best[2] > best[1] * seconds:
            best = (depth, tokens, seconds)
        elif depth > best[0] + 2:  # costs rise in steps; beyond one that does not pay none does
            break
    return best


def least_chance(
    costs: CostModel, network: Network, num_sequences: int, *, context: float = 0.0
) -> float:
    """How likely a further draft of a stepwise network must be to be worth its pass."""
    plain_s = costs.verify_seconds(num_sequences, num_sequences, context)
    few = 4 * num_sequences
    row_s = (costs.verify_seconds(num_sequences + few, num_sequences, context) - plain_s) / few
    step_s = costs.draft_seconds(network.name, num_sequences) / num_sequences
    return min(1.0, (step_s + row_s) * num_sequences / plain_s)


def choose_nodes(
    chances: Sequence[Sequence[float]],
    costs: CostModel,
    *,
    sunk_s: float = 0.0,
    context: float = 0.0,
    least: int = 0,
) -> list[list[int]]:
    """Which drafts of each sequence to verify, ascending: always the likeliest, or none at all.

    Args:
        chances: Of each node of each sequence, that it and its path are accepted; a node comes
            after its parent and is no likelier.
        costs: Of the target.
        sunk_s: Seconds that the round has cost already.
        context: Committed tokens of a sequence, the mean over them.
        least: Drafts to verify, as far as there are any, whether or not that pays.
    """
    if not least and sum(map(sum, chances)) < (_WORTH - 1) * len(chances):
        return [[] for _ in chances]  # not even if they cost nothing
    rates = _rates(chances, costs, sunk_s=sunk_s, context=context)
    rate, size = max(rates[min(least, len(rates) - 1) :], key=lambda each: (each[0], -each[1]))
    if size > least and rate < _WORTH * rates[0][0]:
        size = min(least, len(rates) - 1)
    chosen: list[list[int]] = [[] for _ in chances]
    for _, sequence_idx, node in _by_chance(chances)[:size]:
        chosen[sequence_idx].append(node)
    return [sorted(nodes) for nodes in chosen]


def best_rate(
    chances: Sequence[float], costs: CostModel, *, num_sequences: int = 1, context: float = 0.0
) -> float:
    """Tokens per second of a pass with as many of one sequence's drafts as are best.

    Args:
        chances: Of each draft that it and its path are accepted.
        costs: Of the target.
        num_sequences: In the pass; the others have no drafts.
        context: Committed tokens of a sequence, the mean over them.
    """
    nothing: list[Sequence[float]] = [()] * (num_sequences - 1)
    return max(rate for rate, _ in _rates([chances, *nothing], costs, sunk_s=0, context=context))


def gain_of(
    num_tokens: int,
    num_rows: int,
    costs: CostModel,
    *,
    num_sequences: int = 1,
    context: float = 0.0,
) -> float:
    """Share of the speed of plain rounds that a round added.

    Args:
        num_tokens: That it gave.
        num_rows: That it verified.
        costs: Of the target.
        num_sequences: In the round.
        context: Committed tokens of a sequence, the mean over them.
    """
    seconds = costs.verify_seconds(num_rows, num_sequences, context)
    plain_s = costs.verify_seconds(num_sequences, num_sequences, context)
    return num_tokens * plain_s / (num_sequences * seconds) - 1


def _rates(
    chances: Sequence[Sequence[float]], costs: CostModel, *, sunk_s: float, context: float
) -> list[tuple[float, int]]:
    """(tokens per second, drafts in all) with the best 0, 1, 2, ... drafts."""
    num_sequences = len(chances)
    tokens = float(num_sequences)
    rates = [(tokens / (sunk_s + costs.verify_seconds(num_sequences, num_sequences, context)), 0)]
    for size, (chance, _, _) in enumerate(_by_chance(chances), 1):
        tokens += chance
        seconds = sunk_s + costs.verify_seconds(num_sequences + size, num_sequences, context)
        rates.append((tokens / seconds, size))
    return rates


def _by_chance(chances: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """(chance, sequence, node) of all drafts, the likeliest first; of equals parents first."""
    nodes = [
        (chance, i, node) for i, each in enumerate(chances) for node, chance in enumerate(each)
    ]
    return sorted(nodes, key=lambda node: (-node[0], node[2]))
