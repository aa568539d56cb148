"""The one protocol of everything that drafts: networks and rules alike.

Knows token ids and features, no text and no requests. The engine calls ``start`` once per
sequence, then in turn ``propose`` (before a pass) and ``observe`` (after it), and ``end`` once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.kv_cache import KVLayout, SequenceCache
from blockdraft.speculative.types import Proposal

__all__ = [
    "Branching",
    "CommittedRows",
    "DraftTask",
    "Drafter",
    "Resting",
    "Sleeping",
    "Stepwise",
]


@dataclass(frozen=True, slots=True)
class DraftTask:
    """One sequence that wants drafts.

    Attributes:
        sequence_id: Its number, as given to ``Drafter.start``.
        token_ids: int32 [tokens], prompt and output; the last one is the anchor. A view.
        max_drafts: The most nodes of the proposal, at least 1.
        params: How the target picks tokens; with ``choice`` what its noise is keyed by.
        choice: Index among several answers to one prompt.
        cache: The sequence's K/V for this drafter, up to the anchor as far as the drafter was told
            of it and has read it; None where it keeps none.
        tokens_left: The most tokens that the sequence may still get.
        max_depth: How far ahead drafts are likely of use; a drafter that pays for depth may stop
            there. None is as far as it can.
        least_chance: Where it is less probable that all drafts are right, another one is not worth
            its pass; for a drafter that needs one for each.
    """

    sequence_id: int
    token_ids: NDArray[np.int32]
    max_drafts: int
    params: SamplingParams
    choice: int
    cache: SequenceCache | None = None
    tokens_left: int = 1 << 30
    max_depth: int | None = None
    least_chance: float = 0.0


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Rows of one sequence that a pass made permanent: a piece of its prompt, or a round.

    Attributes:
        sequence_id: Number of the sequence.
        start: Position of the first row.
        token_ids: int32 [rows], tokens of the rows, without the next token.
        features: float32 [rows, taps * hidden], target features; None when the drafter asks for
            none, or where ``cache`` has these rows already. Valid during the call.
        cache: The sequence's K/V for this drafter, up to ``start``; None where it keeps none.
        prompt_length: Tokens of the prompt: nothing is drafted before they are all there.
        pass_rows: Rows of the whole pass, those of sequences included that are not told.
    """

    sequence_id: int
    start: int
    token_ids: NDArray[np.int32]
    features: NDArray[np.float32] | None
    cache: SequenceCache | None = None
    prompt_length: int = 0
    pass_rows: int = 0


class Drafter(Protocol):
    """Proposes tokens for any number of sequences.

    A draft can never change a token, only the time that it takes.
    """

    @property
    def type_name(self) -> str:
        """Its name in flags and reports."""
        ...

    @property
    def block_size(self) -> int:
        """B: the anchor and the most drafts of a round."""
        ...

    @property
    def cache_layout(self) -> KVLayout | None:
        """K/V that the engine keeps for it beside each sequence's own; None for none.

        The drafter commits what it observes; the engine makes and releases the caches.
        """
        ...

    def start(self, sequence_id: int) -> None:
        """A sequence begins; its prompt follows through ``observe``."""
        ...

    def propose(self, tasks: Sequence[DraftTask]) -> Sequence[Proposal]:
        """One proposal for each task, in order; an empty one where drafting is not worth it."""
        ...

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        """Take note of what became permanent; rejected rows are never seen here.

        A drafter without a K/V cache may not be told of every round: tasks bring all tokens.
        A sequence that had to give its memory back is told from its first row on once more.
        """
        ...

    def end(self, sequence_id: int) -> None:
        """Forget a sequence, however far it came."""
        ...


@runtime_checkable
class Branching(Protocol):
    """A drafter whose proposals may have more nodes than lie one after another."""

    @property
    def depth(self) -> int:
        """The most nodes one after another."""
        ...


@runtime_checkable
class Stepwise(Protocol):
    """A drafter that needs more passes for more drafts."""

    @property
    def num_steps(self) -> int:
        """Passes of the last ``propose``."""
        ...


@runtime_checkable
class Sleeping(Protocol):
    """A drafter that does without its K/V cache for some sequences."""

    def keeps(self, sequence_id: int) -> bool:
        """Whether a sequence that is about to begin gets a K/V cache; asked once for each."""
        ...


@runtime_checkable
class Resting(Protocol):
    """A drafter that does without some rounds."""

    def rests(self) -> bool:
        """Whether the next round goes on without ``propose``, and without ``observe`` too.

        To be asked once before each round: the answer counts it. Of sequences with a K/V cache, and
        where a prompt is being read, ``observe`` is told all the same.
        """
        ...
