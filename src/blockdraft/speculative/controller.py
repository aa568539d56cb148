"""Several drafters as one that drafts only what pays.

Before every round it compares plain decoding, the drafts at hand and a pass of the network by
expected tokens per second, from measured costs and measured acceptance. Knows no text and no
requests; what it decides never changes a token.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TextIO

from blockdraft.kv_cache import KVLayout
from blockdraft.speculative.backlog import Backlog
from blockdraft.speculative.choice import NOTHING, Choice, better_of
from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.drafter import Branching, CommittedRows, Drafter, DraftTask, Stepwise
from blockdraft.speculative.habit import Habits, Promise
from blockdraft.speculative.policy import (
    Network,
    Prospect,
    Switch,
    choose_nodes,
    gain_of,
    least_chance,
    next_switch,
    rest_rounds,
)
from blockdraft.speculative.tree import nodes_kept
from blockdraft.speculative.types import NO_DRAFTS, Proposal
from blockdraft.speculative.value import Calibration

__all__ = ["Controller"]

_PLAIN_FIRST, _PLAIN_EVERY = 8, 32
"""Rounds with drafts before a plain one, which tells what plain decoding costs now: before the
first, and after some."""

_COSTS_EVERY = 8
"""Rounds without drafts before one whose time is taken."""

_ASK_EVERY = 8
"""Rounds before a network that is off is thought of again: nothing is learned of it meanwhile."""

_DRAFT_EVERY, _FEW_DRAFTS = 64, 3
"""Rounds in which no draft at hand was worth its row before a few are verified all the same: what
rows cost may have been measured while the machine was busy."""

_FIRST_GAIN, _HOPE = 0.5, 0.06
"""What drafts are expected to add to the speed at first, and at least when an answer begins and no
other one is being written."""

_GAIN_RATE, _SEARCH_RATE = 1 / 32, 1 / 16
"""How fast the means of what drafts add, and of what looking for them takes, follow."""


class Controller:
    """Drafts with whatever drafter pays, or not at all.

    Args:
        drafters: Those that cost nothing, then at most one network (one with a K/V cache).
        costs: What passes cost; kept up to date.
        accepted: What the network's file says of it: the share of rounds whose first 1, 2, ...
            drafts were all accepted; empty where it says nothing.
        trace: Gets a JSON line for every decision; None writes none.
        clock: Seconds.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostModel,
        *,
        accepted: Sequence[float] = (),
        trace: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        networks = [drafter for drafter in drafters if drafter.cache_layout is not None]
        assert len(networks) <= 1, "one network at a time"
        self.type_name = "+".join(drafter.type_name for drafter in drafters)
        self.block_size = max(drafter.block_size for drafter in drafters)
        self._network = networks[0] if networks else None
        self._backlog = None if self._network is None else Backlog(self._network)
        self._shape = Network(
            "" if self._network is None else self._network.type_name,
            is_stepwise=isinstance(self._network, Stepwise),
        )
        self._free = [drafter for drafter in drafters if drafter.cache_layout is None]
        self._drafters = tuple(drafters)
        self._costs = costs
        self._trace = trace
        self._clock = clock
        self._switch = Switch()
        self._rest = 0  # rounds to go in which no drafts are looked for
        self._since_search = self._since_asked = 0
        self._asks_now = True  # a new sequence may be another kind of text
        self._gain = _FIRST_GAIN
        self._search_s = 0.0  # for each sequence, outside the passes of networks
        self._sunk_s = 0.0
        self._started_s = 0.0
        self._promise = Promise()
        self._habits = Habits(_depth(self._network), accepted)
        self._pending: dict[int, Choice] = {}
        self._calibrations: dict[tuple[str, bool], Calibration] = {}
        self._depths: dict[int, int] = {}  # of the network's drafts in this round
        self._context = 0.0
        self._proposed_s = 0.0
        self._since_plain, self._plain_every = 0, _PLAIN_FIRST
        self._since_cost = self._since_drafts = 0

    @property
    def cache_layout(self) -> KVLayout | None:
        """K/V of the network, if there is one."""
        return None if self._network is None else self._network.cache_layout

    def keeps(self, sequence_id: int) -> bool:
        """Whether a new sequence gets the network's K/V."""
        return self._habits.admit(sequence_id, is_hopeless=self._switch.is_hopeless)

    def start(self, sequence_id: int) -> None:
        """A sequence begins; the network is expected to do what it usually does."""
        self._rest = 0
        self._asks_now = True
        if self._free and not self._habits.num_sequences:
            self._gain = max(self._gain, _HOPE)
        for drafter in self._drafters:
            drafter.start(sequence_id)
        self._habits.start(sequence_id)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence."""
        for drafter in self._drafters:
            drafter.end(sequence_id)
        if self._backlog is not None:
            self._backlog.forget(sequence_id)
        self._habits.end(sequence_id)
        self._pending.pop(sequence_id, None)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """The proposals that give the most tokens per second together."""
        start_s = self._started_s = self._clock()
        self._depths.clear()
        self._context = sum(len(task.token_ids) for task in tasks) / max(len(tasks), 1)
        self._count_round()
        if self._since_plain >= self._plain_every:
            self._plain_every = min(2 * self._plain_every, _PLAIN_EVERY)
            return self._proposed([NOTHING] * len(tasks), tasks)
        if self._rest:
            self._rest -= 1
            return self._proposed([NOTHING] * len(tasks), tasks)
        choices, sunk_s = self._choices(tasks)
        proposals = self._proposed(self._worth_verifying(choices, sunk_s), tasks)
        self._learn_search_cost(self._proposed_s - start_s - sunk_s, len(tasks))
        self._sunk_s = sunk_s
        self._since_search = 0
        return proposals

    def rests(self) -> bool:
        """Whether the next round is left alone; see `Resting`."""
        if not self._rest or self._since_plain or self._since_cost >= _COSTS_EVERY:
            return False
        self._rest -= 1
        self._count_round()
        return True

    def _count_round(self) -> None:
        self._since_search += 1
        self._since_asked += 1
        self._since_cost += 1

    def _choices(self, tasks: Sequence[DraftTask]) -> tuple[list[Choice], float]:
        """What there is to verify, and the seconds that a network took for it."""
        choices = self._at_hand(tasks)
        sunk_s = 0.0
        awake = [i for i, task in enumerate(tasks) if self._habits.is_awake(task.sequence_id)]
        if self._network is not None and awake and self._wants_network(tasks, choices):
            start_s = self._clock()
            own = [tasks[i] for i in awake]
            found = self._with_network(self._network, own, [choices[i] for i in awake])
            for i, choice in zip(awake, found, strict=True):
                choices[i] = choice
            sunk_s = self._clock() - start_s
            self._learn_draft_cost(self._network, own, sunk_s)
        return choices, sunk_s

    def _worth_verifying(self, choices: Sequence[Choice], sunk_s: float) -> list[Choice]:
        """The choices with the drafts that pay."""
        chances = [choice.chances for choice in choices]
        if not any(chances) and not sunk_s:
            return list(choices)
        least = _FEW_DRAFTS if self._since_drafts >= _DRAFT_EVERY else 0
        nodes = choose_nodes(
            chances, self._costs, sunk_s=sunk_s, context=self._context, least=least
        )
        known = {"chances": chances, "sunk_s": sunk_s, "context": self._context, "least": least}
        self._write_trace("nodes", known, nodes)
        if any(chances):
            self._since_drafts = 0 if any(nodes) else self._since_drafts + self._since_search
        return [
            choice
            if len(kept) == len(choice.proposal)
            else replace(choice, proposal=nodes_kept(choice.proposal, kept))
            for choice, kept in zip(choices, nodes, strict=True)
        ]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Learn from the round, and let the drafters see it."""
        if self._pending:
            self._learn_round(rows)
            for part in rows:
                choice = self._pending.get(part.sequence_id, NOTHING)
                if choice is not NOTHING:
                    self._learn(part.sequence_id, choice, part.token_ids[1:].tolist())
            self._pending.clear()
        for drafter in self._free:
            drafter.observe(rows)
        if self._backlog is not None:
            self._backlog.add([part for part in rows if self._habits.is_awake(part.sequence_id)])

    def _learn_round(self, rows: Sequence[CommittedRows]) -> None:
        """What the round cost and brought, and how long to rest after it."""
        num_rows = sum(1 + len(choice.proposal) for choice in self._pending.values())
        # Else what an answer that ended was given is not known, or other rows were in the pass.
        is_alone = self._pending.keys() == {part.sequence_id for part in rows}
        is_alone = is_alone and rows[0].pass_rows == num_rows
        is_plain = not self._since_plain
        if is_alone and not (is_plain and self._since_cost < _COSTS_EVERY):
            self._learn_cost(num_rows)
            self._since_cost = 0 if is_plain else self._since_cost
        if self._since_search:
            return
        num_tokens = sum(len(part.token_ids) for part in rows)
        if is_alone and self._sunk_s:
            switch = self._switch
            seconds = self._clock() - self._started_s - switch.read_s
            self._promise.learn(num_tokens, switch.promise * seconds, is_trial=not switch.is_on)
        elif is_alone:
            self._learn_gain(num_tokens, num_rows)
        # While the network drafts, a look for something better is free.
        is_drafting = self._network is not None and self._switch.is_on
        self._rest = 0 if is_drafting else self._rest_rounds(len(self._pending))

    def _learn_gain(self, num_tokens: int, num_rows: int) -> None:
        """What the round brought, against a plain one: drafts that were accepted, not chances."""
        gain = gain_of(
            num_tokens,
            num_rows,
            self._costs,
            num_sequences=len(self._pending),
            context=self._context,
        )
        self._gain += _GAIN_RATE * (gain - self._gain)

    def _rest_rounds(self, num_sequences: int) -> int:
        plain_s = self._costs.verify_seconds(num_sequences, num_sequences, self._context)
        known = {"gain": self._gain, "price": self._search_s * num_sequences / plain_s}
        rest = rest_rounds(**known)
        self._write_trace("rest", known, rest)
        return rest

    def _learn_search_cost(self, seconds: float, num_sequences: int) -> None:
        each_s = max(seconds, 0.0) / num_sequences
        if self._search_s:
            each_s = min(each_s, 2 * self._search_s)
            self._search_s += _SEARCH_RATE * (each_s - self._search_s)
        else:
            self._search_s = each_s

    def _proposed(self, choices: Sequence[Choice], tasks: Sequence[DraftTask]) -> list[Proposal]:
        self._pending = {
            task.sequence_id: choice for task, choice in zip(tasks, choices, strict=True)
        }
        is_plain = not any(choice.proposal for choice in choices)
        self._since_plain = 0 if is_plain else self._since_plain + 1
        self._proposed_s = self._clock()
        return [
            replace(choice.proposal, drafter=choice.name) if choice.proposal else NO_DRAFTS
            for choice in choices
        ]

    def _at_hand(self, tasks: Sequence[DraftTask]) -> list[Choice]:
        """For each task the best of what costs nothing."""
        best = [NOTHING] * len(tasks)
        for drafter in self._free:
            for place, proposal in enumerate(drafter.propose(tasks)):
                if proposal.token_ids:
                    choice = self._choice(drafter.type_name, tasks[place], proposal)
                    best[place] = self._better(best[place], choice, len(tasks))
        return best

    def _wants_network(self, tasks: Sequence[DraftTask], choices: Sequence[Choice]) -> bool:
        if not (self._switch.is_on or self._asks_now or self._since_asked >= _ASK_EVERY):
            return False
        self._asks_now = False
        prospects = [
            Prospect(
                tuple(choice.chances),
                self._habits.prefix_shares(task.sequence_id, task.max_drafts),
                _lag(task),
                task.tokens_left,
            )
            for task, choice in zip(tasks, choices, strict=True)
        ]
        before, shape, rounds = self._switch, self._shape, self._since_asked
        kept = self._promise.kept
        self._switch = next_switch(
            prospects, self._costs, shape, before, context=self._context, rounds=rounds, kept=kept
        )
        self._since_asked = 0
        known = {
            "prospects": prospects,
            "network": shape,
            "switch": before,
            "context": self._context,
            "rounds": rounds,
            "kept": kept,
        }
        self._write_trace("network", known, self._switch)
        return self._switch.runs

    def _with_network(
        self, network: Drafter, tasks: Sequence[DraftTask], choices: Sequence[Choice]
    ) -> list[Choice]:
        """The network's drafts, except where those at hand are worth more."""
        assert self._backlog is not None
        self._backlog.tell(task.sequence_id for task in tasks)
        depth, least = self._switch.depth, 0.0
        if self._shape.is_stepwise:  # how far it goes is seen on the way
            depth = _depth(network)
            least = least_chance(self._costs, self._shape, len(tasks), context=self._context)
        self._depths = {task.sequence_id: min(depth, task.max_drafts) for task in tasks}
        proposals = network.propose(
            [replace(task, max_depth=depth, least_chance=least) for task in tasks]
        )
        return [
            self._better(choice, self._choice(network.type_name, task, proposal), len(tasks))
            for task, proposal, choice in zip(tasks, proposals, choices, strict=True)
        ]

    def _better(self, one: Choice, other: Choice, num_sequences: int) -> Choice:
        return better_of(
            one, other, self._costs, num_sequences=num_sequences, context=self._context
        )

    def _choice(self, name: str, task: DraftTask, proposal: Proposal) -> Choice:
        calibration = self._calibration(name, task)
        return Choice(name, proposal, calibration, calibration.prefix_chances(proposal))

    def _calibration(self, name: str, task: DraftTask) -> Calibration:
        key = (name, task.params.temperature > 0)
        if key not in self._calibrations:
            self._calibrations[key] = Calibration()
        return self._calibrations[key]

    def _learn(self, sequence_id: int, choice: Choice, accepted: list[int]) -> None:
        choice.calibration.learn(choice.proposal, accepted)
        depth = self._depths.get(sequence_id)
        if self._network is not None and choice.name == self._network.type_name and depth:
            self._habits.learn(sequence_id, len(accepted), depth)

    def _learn_draft_cost(
        self, network: Drafter, tasks: Sequence[DraftTask], seconds: float
    ) -> None:
        if isinstance(network, Stepwise):
            # What it had to read first says nothing of a step.
            if network.num_steps and self._switch.read_s < seconds / 2:
                each_s = (seconds - self._switch.read_s) / network.num_steps
                self._costs.add_draft(network.type_name, len(tasks), each_s)
        else:
            num_rows = len(tasks) * (1 + self._switch.depth)
            self._costs.add_draft(network.type_name, num_rows, seconds)

    def _learn_cost(self, num_rows: int) -> None:
        """The time since the proposals is the pass's, where nothing else was in it."""
        self._costs.add_verify(
            num_rows,
            self._clock() - self._proposed_s,
            num_sequences=len(self._pending),
            context=self._context,
        )

    def _write_trace(self, what: str, known: object, decision: object) -> None:
        if self._trace is not None:
            line = {"what": what, "costs": self._costs.to_json(), "known": known}
            print(json.dumps(line | {"decision": decision}, default=asdict), file=self._trace)


def _depth(network: Drafter | None) -> int:
    """The most drafts one after another."""
    if network is None:
        return 0
    return network.depth if isinstance(network, Branching) else network.block_size - 1


def _lag(task: DraftTask) -> int:
    """Tokens before the anchor that the network has not read."""
    return 0 if task.cache is None else max(0, len(task.token_ids) - 1 - task.cache.length)
