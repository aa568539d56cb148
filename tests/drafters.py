"""Drafters for tests that know the answer, and give right, wrong or mixed drafts on purpose.

The answers are those of plain decoding; sequence n of an engine gets answer n.
"""

from collections.abc import Callable, Sequence
from random import Random

from blockdraft.speculative import NO_DRAFTS, CommittedRows, DraftTask, Proposal

__all__ = ["DRAFTERS", "ScriptedDrafter"]

Draw = Callable[[Random, Sequence[int], int, int], Proposal]
"""(random, coming tokens, most drafts, vocabulary) -> proposal; no token comes after the answer."""


class ScriptedDrafter:
    """Drafts by a rule that may look at the coming tokens.

    Attributes:
        observed: Committed tokens of each sequence, as the engine told them; -1 where it did not.
        open_ids: Sequences that have begun and not ended.
    """

    type_name = "scripted"
    cache_layout = None

    def __init__(
        self,
        draw: Draw,
        num_draft_tokens: int,
        answers: Sequence[Sequence[int]],
        *,
        vocab_size: int,
        seed: int = 0,
        may_rest: bool = False,
    ) -> None:
        self.block_size = num_draft_tokens + 1
        self.observed: dict[int, list[int]] = {}
        self.open_ids: set[int] = set()
        self._draw = draw
        self._answers = answers
        self._vocab_size = vocab_size
        self._random = Random(seed)
        self._may_rest = may_rest  # behind a controller

    def start(self, sequence_id: int) -> None:
        self.open_ids.add(sequence_id)
        self.observed[sequence_id] = []

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [self._propose(task) for task in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        for part in rows:
            known = self.observed[part.sequence_id]
            num_skipped = part.start - len(known)
            assert num_skipped >= 0 if self._may_rest else num_skipped == 0
            known += [-1] * num_skipped + part.token_ids.tolist()

    def end(self, sequence_id: int) -> None:
        self.open_ids.remove(sequence_id)

    def _propose(self, task: DraftTask) -> Proposal:
        known, committed = self.observed[task.sequence_id], task.token_ids[:-1].tolist()
        if self._may_rest:
            committed = [-1 if i < 0 else token for i, token in zip(known, committed, strict=False)]
        assert known == committed
        coming = self._answers[task.sequence_id][len(task.token_ids) :]
        return self._draw(self._random, coming, task.max_drafts, self._vocab_size)


def _wrong(random: Random, right: int | None, vocab_size: int) -> int:
    token_id = random.randrange(vocab_size)
    return (token_id + 1) % vocab_size if token_id == right else token_id


def oracle(random: Random, coming: Sequence[int], most: int, vocab_size: int) -> Proposal:
    """Always right."""
    return Proposal.chain(coming[:most])


def adversary(random: Random, coming: Sequence[int], most: int, vocab_size: int) -> Proposal:
    """Always wrong at once, and right afterwards."""
    first = _wrong(random, coming[0] if coming else None, vocab_size)
    return Proposal.chain([first, *coming[1:most]])


def mixture(random: Random, coming: Sequence[int], most: int, vocab_size: int) -> Proposal:
    """A right beginning of any length, something wrong after it, or nothing at all."""
    count = random.randint(0, most)
    right = random.randint(0, count)
    token_ids = list(coming[:right])
    for place in range(len(token_ids), count):
        token_ids.append(_wrong(random, coming[place] if place < len(coming) else None, vocab_size))
    return Proposal.chain(token_ids) if token_ids else NO_DRAFTS


def noise(random: Random, coming: Sequence[int], most: int, vocab_size: int) -> Proposal:
    """Any tokens."""
    return Proposal.chain([random.randrange(vocab_size) for _ in range(most)])


def random_tree(random: Random, coming: Sequence[int], most: int, vocab_size: int) -> Proposal:
    """Any shape; at each depth the right token or any other, twins included."""
    token_ids: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(random.randint(1, most)):
        parent = random.choice([-1, node - 1, random.randint(-1, node - 1)])
        depth = depths[parent] + 1 if parent >= 0 else 0
        right = coming[depth] if depth < len(coming) else 0
        token_ids.append(right if random.random() < 0.6 else random.randrange(vocab_size))
        parents.append(parent)
        depths.append(depth)
    return Proposal(tuple(token_ids), tuple(parents))


DRAFTERS: dict[str, Draw] = {
    "oracle": oracle,
    "adversary": adversary,
    "mixture": mixture,
    "noise": noise,
    "random-tree": random_tree,
}
