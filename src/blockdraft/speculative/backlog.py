"""Committed rows that a network has not been told of yet.

A pass over one row costs a network nearly as much as one over many, so while it does not draft it
is told of a page of rows at once. Knows no costs and no models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from blockdraft.kv_cache import PAGE_POSITIONS
from blockdraft.speculative.drafter import CommittedRows, Drafter

__all__ = ["Backlog"]


class Backlog:
    """What to tell a network when it drafts next, or when a page of its K/V is full.

    So its pages are full when the target's are, and features of at most a page and a pass are
    kept. A network that reads no features is told at once.

    Args:
        network: The network.
    """

    def __init__(self, network: Drafter) -> None:
        self._network = network
        self._parts: dict[int, list[CommittedRows]] = {}

    def add(self, rows: Sequence[CommittedRows]) -> None:
        """Keep what a pass made permanent, or pass it on."""
        ready: list[CommittedRows] = []
        for part in rows:
            kept = self._parts.pop(part.sequence_id, [])
            if kept and kept[-1].start + len(kept[-1].token_ids) != part.start:
                kept = []  # the sequence gave its memory back and is read again
            first, end = (kept[0] if kept else part).start, part.start + len(part.token_ids)
            if part.features is None or first // PAGE_POSITIONS != end // PAGE_POSITIONS:
                ready.append(_joined([*kept, part]))
            else:
                # The arrays are the engine's, and valid during the call.
                features, token_ids = part.features.copy(), part.token_ids.copy()
                kept.append(replace(part, token_ids=token_ids, features=features))
                self._parts[part.sequence_id] = kept
        if ready:
            self._network.observe(ready)

    def tell(self, sequence_ids: Iterable[int]) -> None:
        """Tell the network all that is kept of some sequences."""
        found = (self._parts.pop(sequence_id, None) for sequence_id in sequence_ids)
        rows = [_joined(parts) for parts in found if parts]
        if rows:
            self._network.observe(rows)

    def forget(self, sequence_id: int) -> None:
        """Drop what is kept of a sequence that has ended."""
        self._parts.pop(sequence_id, None)


def _joined(parts: list[CommittedRows]) -> CommittedRows:
    if len(parts) == 1:
        return parts[0]
    features = [part.features for part in parts if part.features is not None]
    return replace(
        parts[0],
        token_ids=np.concatenate([part.token_ids for part in parts]),
        features=np.concatenate(features),
    )
