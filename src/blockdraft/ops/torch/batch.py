"""What one pass computes on: rows of sequences, and what they see of earlier passes.

A pass starts each sequence at its first token. Or its sequences have places behind contexts: the
rows of a drafter, which no later pass sees. Or it injects features into contexts. Knows no
network.

Notation: M rows of all sequences of the pass; n rows of one sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from blockdraft.errors import ConfigError

__all__ = ["BlockGroup", "Place", "TorchContext", "TorchPass"]


class TorchContext:
    """Keys and values of committed positions of one sequence, by layer; grows by injection.

    Attributes:
        first: Position of the first row, for a context that starts late.
    """

    def __init__(self, first: int = 0) -> None:
        """Start empty."""
        self.first = first
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """One past the last position."""
        return self.first + max((len(keys) for keys, _ in self._layers.values()), default=0)

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values of a layer, each "rows kv_heads head_dim"; None before the first."""
        return self._layers.get(layer_idx)

    def append(self, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        """Add rows to a layer."""
        if layer_idx in self._layers:
            old_keys, old_values = self._layers[layer_idx]
            keys, values = torch.cat((old_keys, keys)), torch.cat((old_values, values))
        self._layers[layer_idx] = (keys, values)

    def rollback(self, length: int) -> None:
        """Forget positions at or after ``length``.

        Raises:
            ConfigError: The context is shorter, or starts after that.
        """
        if not self.first <= length <= self.length:
            raise ConfigError(f"a context of [{self.first}, {self.length}) has no length {length}")
        rows = length - self.first
        self._layers = {i: (k[:rows], v[:rows]) for i, (k, v) in self._layers.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a block stands.

    Attributes:
        context: What it sees, of the positions before its own.
        position: Of its first row.
    """

    context: TorchContext
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockGroup:
    """Neighbouring blocks of one width behind one context; they are attended together.

    Attributes:
        context: What they see.
        start: First row in the pass.
        positions: int64 "blocks width".
    """

    context: TorchContext
    start: int
    positions: Tensor


class TorchPass:
    """Sequences of one pass and what the pass computes with.

    Attributes:
        token_ids: int64 [M].
        positions: int64 [M].
        ordinals: int64 [M], place of each row in its sequence.
        logit_rows: int64 [R], or None for all rows.
        spans: (first row, one past the last row) of each sequence.
        parents: Per sequence the predecessor's ordinal of each row, -1 for none; or None where
            the sequence is a chain.
        places: Where each sequence stands; None where all start at their first token.
        features: "M size", of an injecting pass; its rows have no tokens (0).
        dtype: Of all arithmetic.
        device: Of all tensors.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[int] | Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        parents: Sequence[Sequence[int] | None] | None = None,
        logit_rows: Sequence[int] | None = None,
        places: Sequence[Place] | None = None,
    ) -> None:
        """Lay the sequences out one after the other.

        Args:
            sequences: Token ids of each sequence.
            dtype: Of all arithmetic.
            device: Of all tensors.
            parents: Per sequence the predecessor's ordinal of each row, -1 for a first token, or
                None for a chain. A row's position is its distance from a first token.
            logit_rows: Rows, counted over the whole pass, whose logits are wanted; None is all.
            places: Where each sequence stands, chains then; None starts all at their first token.

        Raises:
            ConfigError: Parents or places do not fit the sequences.
        """
        rows = [torch.as_tensor(ids, dtype=torch.int64, device=device) for ids in sequences]
        trees = list(parents) if parents is not None else [None] * len(rows)
        if len(trees) != len(rows):
            raise ConfigError(f"{len(trees)} lists of parents for {len(rows)} sequences")
        self.dtype = dtype
        self.device = torch.device(device)
        self.parents = tuple(None if tree is None else tuple(tree) for tree in trees)
        self.places = None if places is None else tuple(places)
        starts = _starts(len(rows), self.places, has_trees=any(trees))
        depths = [_depths(len(r), tree) for r, tree in zip(rows, self.parents, strict=True)]
        self.token_ids = torch.cat(rows)
        self.positions = torch.tensor(
            [start + depth for start, each in zip(starts, depths, strict=True) for depth in each],
            dtype=torch.int64,
            device=device,
        )
        self.ordinals = torch.cat([torch.arange(len(r), device=device) for r in rows])
        self.spans = tuple(pairwise(accumulate((len(r) for r in rows), initial=0)))
        self.logit_rows = None if logit_rows is None else torch.tensor(logit_rows, device=device)
        self.features: Tensor | None = None

    @classmethod
    def inject(
        cls, features: Sequence[Tensor], contexts: Sequence[TorchContext], *, dtype: torch.dtype
    ) -> "TorchPass":
        """A pass that adds rows to contexts.

        Args:
            features: Target features of the next positions of each context, "n size".
            contexts: One per sequence.
            dtype: Of all arithmetic.
        """
        device = features[0].device
        places = [Place(context, context.length) for context in contexts]
        tokens = [torch.zeros(len(each), dtype=torch.int64, device=device) for each in features]
        batch = cls(tokens, dtype=dtype, device=device, places=places)
        batch.features = torch.cat(list(features)).to(dtype)
        return batch

    def groups(self) -> Iterator[BlockGroup]:
        """Blocks that can be attended together, in row order; only of a pass with places."""
        assert self.places is not None
        blocks = zip(self.places, self.spans, strict=True)
        for _, found in groupby(blocks, lambda b: (id(b[0].context), b[1][1] - b[1][0])):
            group = list(found)
            (start, first_end), (_, end) = group[0][1], group[-1][1]
            positions = self.positions[start:end].reshape(-1, first_end - start)
            yield BlockGroup(group[0][0].context, start, positions)


def _starts(num_sequences: int, places: tuple[Place, ...] | None, *, has_trees: bool) -> list[int]:
    """Position of the first row of each sequence."""
    if places is None:
        return [0] * num_sequences
    if len(places) != num_sequences:
        raise ConfigError(f"{len(places)} places for {num_sequences} sequences")
    if has_trees:
        raise ConfigError("a sequence behind a context is a chain; it has no parents")
    return [place.position for place in places]


def _depths(num_rows: int, parents: tuple[int, ...] | None) -> Iterator[int]:
    if parents is None:
        yield from range(num_rows)
        return
    if len(parents) != num_rows:
        raise ConfigError(f"{len(parents)} parents for {num_rows} rows")
    depths: list[int] = []
    for ordinal, parent in enumerate(parents):
        if not -1 <= parent < ordinal:
            raise ConfigError(f"row {ordinal} has parent {parent}; it must be an earlier row or -1")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    yield from depths
