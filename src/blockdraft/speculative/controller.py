"""Several drafters as one that drafts only what pays.

Before every round it compares plain decoding, the drafts at hand and a pass of the network by
expected tokens per second, from measured costs and measured acceptance. Knows no text and no
requests; what it decides never changes a token.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TextIO

from blockdraft.kv_cache import KVLayout
from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.drafter import CommittedRows, Drafter, DraftTask
from blockdraft.speculative.policy import Prospect, Switch, choose_nodes, next_switch
from blockdraft.speculative.tree import nodes_kept
from blockdraft.speculative.types import NO_DRAFTS, Proposal
from blockdraft.speculative.value import Calibration

__all__ = ["Controller"]

_FIRST_GAIN, _FIRST_NODES = 1.0, 3.0
"""What a network is expected to do before it has been seen: accepted drafts, verified ones."""

_PLAIN_EVERY = 32
"""Rounds with drafts before a plain one, which tells what plain decoding costs now."""

_MEMORY = 0.85
"""What a sequence's mean gain keeps of itself at each round with the network."""

_PRIOR_ROUNDS = 3
"""Rounds that the expectation at the beginning counts for."""

_LEAST_DEPTH = 3

_LONG_MEMORY = 0.98
"""The same for the mean over sequences, with which a new one begins."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is drafted for one sequence in this round."""

    name: str
    proposal: Proposal
    calibration: Calibration

    @property
    def chances(self) -> list[float]:
        return self.calibration.prefix_chances(self.proposal)

    @property
    def value(self) -> float:
        """Drafts that are likely accepted if all are verified."""
        return sum(self.chances)


@dataclass(slots=True)
class _Habit:
    """How the network does: means over its last rounds.

    Attributes:
        gain: Drafts that were accepted.
        nodes: Drafts that were verified.
        num_rounds: Rounds seen; the first ones count for more.
    """

    gain: float
    nodes: float
    num_rounds: int = 0

    @property
    def depth(self) -> int:
        """Drafts in a row that are worth making: a pass over fewer rows costs less."""
        return max(_LEAST_DEPTH, math.ceil(2 * self.gain + 1))

    def learn(self, num_accepted: int, num_nodes: int, memory: float) -> None:
        rate = max(1 - memory, 1 / (self.num_rounds + _PRIOR_ROUNDS))
        self.gain += rate * (num_accepted - self.gain)
        self.nodes += rate * (num_nodes - self.nodes)
        self.num_rounds += 1


class Controller:
    """Drafts with whatever drafter pays, or not at all.

    Args:
        drafters: Those that cost nothing, then at most one network (one with a K/V cache).
        costs: What passes cost; kept up to date.
        trace: Gets a JSON line for every decision; None writes none.
        clock: Seconds.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostModel,
        *,
        trace: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        networks = [drafter for drafter in drafters if drafter.cache_layout is not None]
        assert len(networks) <= 1, "one network at a time"
        self.type_name = "+".join(drafter.type_name for drafter in drafters)
        self.block_size = max(drafter.block_size for drafter in drafters)
        self._network = networks[0] if networks else None
        self._free = [drafter for drafter in drafters if drafter.cache_layout is None]
        self._drafters = tuple(drafters)
        self._costs = costs
        self._trace = trace
        self._clock = clock
        self._switch = Switch()
        self._usual = _Habit(_FIRST_GAIN, _FIRST_NODES)
        self._habits: dict[int, _Habit] = {}
        self._pending: dict[int, _Choice] = {}
        self._calibrations: dict[tuple[str, bool], Calibration] = {}
        self._proposed_s = 0.0
        self._since_plain = 0

    @property
    def cache_layout(self) -> KVLayout | None:
        """K/V of the network, if there is one."""
        return None if self._network is None else self._network.cache_layout

    def start(self, sequence_id: int) -> None:
        """A sequence begins; the network is expected to do what it usually does."""
        for drafter in self._drafters:
            drafter.start(sequence_id)
        self._habits[sequence_id] = _Habit(self._usual.gain, self._usual.nodes)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence."""
        for drafter in self._drafters:
            drafter.end(sequence_id)
        self._habits.pop(sequence_id, None)
        self._pending.pop(sequence_id, None)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """The proposals that give the most tokens per second together."""
        if self._since_plain >= _PLAIN_EVERY:
            return self._proposed([_Choice("", NO_DRAFTS, Calibration()) for _ in tasks], tasks)
        choices = self._at_hand(tasks)
        sunk_s = 0.0
        if self._network is not None and self._wants_network(self._network, tasks, choices):
            start_s = self._clock()
            choices = self._with_network(self._network, tasks, choices)
            sunk_s = self._clock() - start_s
            self._costs.add_draft(self._network.type_name, len(tasks), sunk_s)
        chances = [choice.chances for choice in choices]
        nodes = choose_nodes(chances, self._costs, sunk_s=sunk_s)
        self._write_trace("nodes", {"chances": chances, "sunk_s": sunk_s}, nodes)
        kept = [
            replace(choice, proposal=nodes_kept(choice.proposal, kept))
            for choice, kept in zip(choices, nodes, strict=True)
        ]
        return self._proposed(kept, tasks)

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Learn from the round, and let the drafters see it."""
        self._learn_cost(rows)
        for part in rows:
            choice = self._pending.pop(part.sequence_id, None)
            if choice is not None:
                self._learn(part.sequence_id, choice, part.token_ids[1:].tolist())
        self._pending.clear()
        for drafter in self._drafters:
            drafter.observe(rows)

    def _proposed(self, choices: Sequence[_Choice], tasks: Sequence[DraftTask]) -> list[Proposal]:
        self._pending = {
            task.sequence_id: choice for task, choice in zip(tasks, choices, strict=True)
        }
        is_plain = not any(choice.proposal for choice in choices)
        self._since_plain = 0 if is_plain else self._since_plain + 1
        self._proposed_s = self._clock()
        return [choice.proposal for choice in choices]

    def _at_hand(self, tasks: Sequence[DraftTask]) -> list[_Choice]:
        """For each task the best of what costs nothing."""
        offers = [(drafter.type_name, drafter.propose(tasks)) for drafter in self._free]
        return [
            max(
                [
                    _Choice("", NO_DRAFTS, self._calibration("", task)),
                    *(self._choice(name, task, each[place]) for name, each in offers),
                ],
                key=lambda choice: choice.value,
            )
            for place, task in enumerate(tasks)
        ]

    def _wants_network(
        self, network: Drafter, tasks: Sequence[DraftTask], choices: Sequence[_Choice]
    ) -> bool:
        prospects = []
        for task, choice in zip(tasks, choices, strict=True):
            habit, room = self._habits[task.sequence_id], float(task.max_drafts)
            ready = tuple(choice.chances)
            prospects.append(Prospect(ready, min(habit.gain, room), min(habit.nodes, room)))
        before = self._switch
        self._switch = next_switch(prospects, self._costs, network.type_name, before)
        known = {
            "prospects": [asdict(prospect) for prospect in prospects],
            "name": network.type_name,
            "switch": asdict(before),
        }
        self._write_trace("network", known, asdict(self._switch))
        return self._switch.runs

    def _with_network(
        self, network: Drafter, tasks: Sequence[DraftTask], choices: Sequence[_Choice]
    ) -> list[_Choice]:
        """The network's drafts, except where those at hand are worth more."""
        proposals = network.propose(
            [replace(task, max_depth=self._habits[task.sequence_id].depth) for task in tasks]
        )
        return [
            max(self._choice(network.type_name, task, proposal), choice, key=lambda one: one.value)
            for task, proposal, choice in zip(tasks, proposals, choices, strict=True)
        ]

    def _choice(self, name: str, task: DraftTask, proposal: Proposal) -> _Choice:
        return _Choice(name, proposal, self._calibration(name, task))

    def _calibration(self, name: str, task: DraftTask) -> Calibration:
        key = (name, task.params.temperature > 0)
        if key not in self._calibrations:
            self._calibrations[key] = Calibration()
        return self._calibrations[key]

    def _learn(self, sequence_id: int, choice: _Choice, accepted: list[int]) -> None:
        choice.calibration.learn(choice.proposal, accepted)
        if self._network is not None and choice.name == self._network.type_name:
            num_nodes = len(choice.proposal)
            self._habits[sequence_id].learn(len(accepted), num_nodes, _MEMORY)
            self._usual.learn(len(accepted), num_nodes, _LONG_MEMORY)

    def _learn_cost(self, rows: Sequence[CommittedRows]) -> None:
        """The time since the proposals is the pass's, where nothing else was in it."""
        if self._pending and self._pending.keys() == {part.sequence_id for part in rows}:
            num_rows = sum(1 + len(choice.proposal) for choice in self._pending.values())
            self._costs.verify.add(num_rows, self._clock() - self._proposed_s)

    def _write_trace(self, what: str, known: object, decision: object) -> None:
        if self._trace is not None:
            line = {"what": what, "costs": self._costs.to_json(), "known": known}
            print(json.dumps(line | {"decision": decision}), file=self._trace)
