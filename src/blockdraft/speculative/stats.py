"""What speculation gained: counts over rounds, and where their time went.

Knows proposals and verdicts, no models and no text. Conventions: a round is a pass of a sequence
that decodes, also when it drafted nothing; tau is all tokens over all rounds; the acceptance rate
is accepted over drafted; position k counts, among the proposals at least k deep, those whose
first k drafts were accepted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blockdraft.speculative.types import Proposal

__all__ = ["RoundCounter", "SpeculationStats"]


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Rounds of one answer.

    Attributes:
        type_name: The drafter's name.
        block_size: B, the anchor and the most drafts of a round.
        num_rounds: Rounds.
        num_tokens: Tokens gained by them; the first token of an answer belongs to its prompt.
        num_drafted: Drafts proposed.
        num_accepted: Drafts kept.
        proposed_by_position: Proposals at least 1, 2, ... deep.
        kept_by_position: Of them, those whose first 1, 2, ... drafts were all accepted.
        draft_s: Time in the drafter.
        verify_s: Time in the target's passes.
        other_s: The rest, from the first token to the end.
        choices: Rounds by (drafter, drafts verified); ("", 0) drafted nothing.
    """

    type_name: str
    block_size: int
    num_rounds: int
    num_tokens: int
    num_drafted: int
    num_accepted: int
    proposed_by_position: tuple[int, ...]
    kept_by_position: tuple[int, ...]
    draft_s: float
    verify_s: float
    other_s: float
    choices: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def mean_acceptance_length(self) -> float:
        """Tau: tokens per round; 1 without a round."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted; 0 when nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def accepted_by_position(self) -> tuple[float, ...]:
        """Share of the proposals at least k deep whose first k drafts were accepted, from k = 1."""
        pairs = zip(self.kept_by_position, self.proposed_by_position, strict=True)
        return tuple(kept / proposed for kept, proposed in pairs)

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``speculation`` in ``blockdraft run --json``."""
        return {
            "type": self.type_name,
            "tau": self.mean_acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "rounds": self.num_rounds,
            "accepted_by_position": list(self.accepted_by_position),
            "block_size": self.block_size,
        }


class RoundCounter:
    """Counts the rounds of one sequence.

    Args:
        type_name: The drafter's name.
        block_size: B.
    """

    def __init__(self, type_name: str, block_size: int) -> None:
        self._type_name = type_name
        self._block_size = block_size
        self._num_rounds = 0
        self._num_tokens = 0
        self._num_drafted = 0
        # By depth of the proposal and by drafts kept, from 0: sums are made when asked for.
        self._depths = [0] * block_size
        self._kept = [0] * block_size
        self._choices: Counter[tuple[str, int]] = Counter()
        self._draft_s = 0.0
        self._verify_s = 0.0

    def add_round(self, proposal: Proposal, *, num_accepted: int, num_tokens: int) -> None:
        """Count a round.

        Args:
            proposal: What was drafted.
            num_accepted: Drafts kept.
            num_tokens: Tokens gained; at most ``num_accepted + 1``, fewer where the answer ended.
        """
        self._num_rounds += 1
        self._num_tokens += num_tokens
        self._num_drafted += len(proposal)
        self._depths[proposal.depth] += 1
        self._kept[num_accepted] += 1
        drafter = proposal.drafter or self._type_name if len(proposal) else ""
        self._choices[drafter, len(proposal)] += 1

    def add_time(self, draft_s: float, verify_s: float) -> None:
        """Count the time of a round."""
        self._draft_s += draft_s
        self._verify_s += verify_s

    def stats(self, predicted_s: float) -> SpeculationStats:
        """The rounds so far, ``predicted_s`` after the first token."""
        proposed = tuple(sum(self._depths[k:]) for k in range(1, self._block_size))
        deepest = sum(1 for count in proposed if count)
        return SpeculationStats(
            type_name=self._type_name,
            block_size=self._block_size,
            num_rounds=self._num_rounds,
            num_tokens=self._num_tokens,
            num_drafted=self._num_drafted,
            num_accepted=sum(kept * rounds for kept, rounds in enumerate(self._kept)),
            proposed_by_position=proposed[:deepest],
            kept_by_position=tuple(sum(self._kept[k:]) for k in range(1, deepest + 1)),
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            other_s=max(predicted_s - self._draft_s - self._verify_s, 0.0),
            choices=dict(self._choices),
        )
