"""A controller in a world with known costs: drafters that always propose the same, and a clock."""

from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np

from blockdraft.config import SamplingParams
from blockdraft.kv_cache import KVLayout
from blockdraft.speculative import NO_DRAFTS, CommittedRows, DraftTask, Proposal
from blockdraft.speculative.controller import Controller
from blockdraft.speculative.costs import CostCurve, CostModel

__all__ = ["FLAT", "Clock", "Fixed", "Small", "Tree", "World", "committed", "task"]

PARAMS = SamplingParams(temperature=0.0)

FLAT = {1: 1.0, 64: 1.001}


class Clock:
    """Goes on by what the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fixed:
    """Proposes the same chain always, which takes ``seconds``; counts how often."""

    def __init__(
        self,
        name: str,
        chain: Sequence[int],
        prob: float,
        *,
        costs_kv: bool,
        seconds: float = 0.0,
    ) -> None:
        self.type_name = name
        self.block_size = len(chain) + 1
        self.cache_layout = KVLayout(1, 16, (0,)) if costs_kv else None
        self.num_proposals = 0
        self.depths: list[int | None] = []
        self.seen: list[int] = []
        self.open_ids: set[int] = set()
        self.clock = Clock()
        self.chain = tuple(chain)
        self._seconds = seconds
        self._prob = prob

    def start(self, sequence_id: int) -> None:
        self.open_ids.add(sequence_id)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        self.num_proposals += 1
        self.depths += [task.max_depth for task in tasks]
        self.clock.now += self._seconds
        proposal = Proposal.chain(self.chain, (self._prob,) * len(self.chain))
        return [proposal for _ in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        self.seen += [len(part.token_ids) for part in rows]

    def end(self, sequence_id: int) -> None:
        self.open_ids.remove(sequence_id)


class Tree(Fixed):
    """Its blocks have room for a tree, its chains for three drafts."""

    depth = 3


class Small(Fixed):
    """A smaller model, which has made four passes."""

    num_steps = 4


def task(sequence_id: int = 0, max_drafts: int = 7) -> DraftTask:
    return DraftTask(sequence_id, np.arange(5, dtype=np.int32), max_drafts, PARAMS, 0)


def committed(
    accepted: Sequence[int], sequence_id: int = 0, start: int = 4, pass_rows: int = 0
) -> CommittedRows:
    token_ids = np.array([0, *accepted], np.int32)
    features = np.zeros((len(token_ids), 1), np.float32)
    return CommittedRows(sequence_id, start, token_ids, features, pass_rows=pass_rows)


class World:
    """Drafters and a target with known costs."""

    def __init__(
        self,
        drafters: Sequence[Fixed],
        verify: dict[int, float],
        trace: TextIO | None = None,
        *,
        accepted: Sequence[float] = (),
        known: Mapping[str, float] | None = None,
    ) -> None:
        self.clock = Clock()
        for drafter in drafters:
            drafter.clock = self.clock
        self.stall_every, self.stall_s = 0, 0.0  # in rounds with drafts
        self._true = CostCurve(verify)
        draft = {name: CostCurve({1: s, 64: s + 0.001}) for name, s in (known or {}).items()}
        costs = CostModel(CostCurve(verify), draft)
        self.controller = Controller(
            drafters, costs, accepted=accepted, trace=trace, clock=self.clock
        )

    def run(self, num_rounds: int, num_accepted: int) -> list[int]:
        """Sizes of the proposals of one sequence of whose drafts at most so many are accepted."""
        self.controller.start(0)
        sizes, position = [], 4
        for _ in range(num_rounds):
            rests = self.controller.rests()
            proposal = NO_DRAFTS if rests else self.controller.propose([task()])[0]
            self.clock.now += self._true.seconds(1 + len(proposal))
            sizes.append(len(proposal))
            num_drafted = sum(size > 0 for size in sizes)
            if proposal and self.stall_every and num_drafted % self.stall_every == 0:
                self.clock.now += self.stall_s
            accepted = proposal.token_ids[:num_accepted]
            rows = committed(accepted, start=position, pass_rows=1 + len(proposal))
            if not rests or self.controller.cache_layout is not None:
                self.controller.observe([rows])
            position += len(rows.token_ids)
        self.controller.end(0)
        return sizes
