"""What goes into one pass of a decoder over many sequences, and what comes out.

A pass is ragged: each sequence brings any number of rows (one while it decodes, a chunk of its
prompt, an anchor with its drafts). Rows of a sequence are contiguous. Knows no requests, no text
and no network; the cache appears only as page addresses.

Notation: M rows, S sequences, P pages per sequence (the longest of the batch), R rows with logits.
A row's *ordinal* counts from 0 inside its sequence; row with ordinal i is stored in slot
``base_length + i`` and stands at position ``base_length + depth``, depth being its distance from
the committed tokens. In a chain depth and ordinal are equal; in a tree siblings share a depth.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Candidates", "PassResult"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged pass. All arrays are C-contiguous and may be reused after the pass.

    Attributes:
        token_ids: int32 [M].
        positions: int32 [M], absolute, from 0.
        parents: int32 [M]: row index in this batch of the row's predecessor, -1 where the
            predecessor is the last committed token (or there is none).
        row_starts: int32 [S + 1]: rows of sequence s are ``row_starts[s]:row_starts[s + 1]``.
        base_lengths: int32 [S]: committed positions of each sequence before the pass.
        full_pages: uint64 [S, P]: page addresses of full-attention layers, 0 where there is none.
        window_pages: uint64 [S, P]: the same of windowed layers; 0 also where a page was freed.
        logit_rows: int32 [R]: rows whose logits are wanted, ascending.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    parents: NDArray[np.int32]
    row_starts: NDArray[np.int32]
    base_lengths: NDArray[np.int32]
    full_pages: NDArray[np.uint64]
    window_pages: NDArray[np.uint64]
    logit_rows: NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        """M."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.base_lengths)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass computed; both arrays are views that the next pass overwrites.

    Attributes:
        logits: float32 [R, vocab], one row per entry of ``Batch.logit_rows``.
        features: float32 [M, taps * hidden], tapped hidden states; None without taps.
    """

    logits: NDArray[np.float32]
    features: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a drafting pass computed; all arrays are views that the next pass overwrites.

    Notation: k candidates of each of R rows, by logit, then by lower id.

    Attributes:
        token_ids: int32 [R, k].
        logits: float32 [R, k].
        probs: float32 [R, k], softmax over the whole vocabulary; a row on its own, so they are
            marginals and not conditioned on other rows' choices.
        scores: float32 [R, k, k], of each candidate after each candidate of the row before; None
            for a network without a selector.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    probs: NDArray[np.float32]
    scores: NDArray[np.float32] | None
