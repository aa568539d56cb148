"""Near-duplicate answers, found by MinHash over runs of token ids.

Knows ids only. Two answers are near duplicates when the runs of tokens that both have are a large
share of those that either has (their Jaccard index); the index is estimated from signatures, so
that memory per answer is small and constant.

Source: Broder, On the resemblance and containment of documents, 1997.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["NearDuplicates"]

_RUN_TOKENS = 5
_BANDS = 16
_BAND_ROWS = 4
_HASHES = _BANDS * _BAND_ROWS
_FNV_PRIME = np.uint64(0x100000001B3)


class NearDuplicates:
    """Answers seen so far.

    Args:
        threshold: Jaccard index from which answers count as near duplicates. The bands find a
            pair at 0.8 with probability 0.9998, so that a lower threshold would miss pairs.
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = threshold
        random = np.random.default_rng(0)
        self._factors = random.integers(0, 2**64, (_HASHES, 1), np.uint64) | np.uint64(1)
        self._offsets = random.integers(0, 2**64, (_HASHES, 1), np.uint64)
        self._signatures: list[NDArray[np.uint32]] = []
        self._by_band: list[dict[bytes, list[int]]] = [{} for _ in range(_BANDS)]

    def __len__(self) -> int:
        """Answers kept."""
        return len(self._signatures)

    def add(self, token_ids: Sequence[int] | NDArray[np.int32]) -> bool:
        """Keep an answer unless one like it is kept already; returns whether it is new."""
        signature = self._sign(np.asarray(token_ids, np.int64))
        bands = [band.tobytes() for band in signature.reshape(_BANDS, _BAND_ROWS)]
        near = {
            idx
            for known, key in zip(self._by_band, bands, strict=True)
            for idx in known.get(key, ())
        }
        for idx in near:
            if np.mean(self._signatures[idx] == signature) >= self._threshold:
                return False
        for known, key in zip(self._by_band, bands, strict=True):
            known.setdefault(key, []).append(len(self._signatures))
        self._signatures.append(signature)
        return True

    def _sign(self, token_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The least of every hash over all runs of tokens; a short answer is one run."""
        size = min(_RUN_TOKENS, len(token_ids))
        runs = np.full(len(token_ids) - size + 1, 0xCBF29CE484222325, np.uint64)
        for start in range(size):
            column = token_ids[start : start + len(runs)].astype(np.uint64)
            runs = (runs ^ column) * _FNV_PRIME
        mixed = runs[None, :] * self._factors + self._offsets
        return (mixed >> np.uint64(32)).min(axis=1).astype(np.uint32)
