"""What the engine needs of a target: passes over ragged batches, and K/V memory."""

from typing import Protocol

from blockdraft.config import ModelConfig
from blockdraft.kv_cache import KVPool
from blockdraft.ops.batch import Batch, PassResult

__all__ = ["Target"]


class Target(Protocol):
    """A loaded network that writes and reads K/V pages."""

    @property
    def config(self) -> ModelConfig:
        """Shape of the network."""
        ...

    @property
    def max_rows(self) -> int:
        """The most rows of one pass."""
        ...

    def new_cache_pool(self, max_bytes: int) -> KVPool:
        """K/V memory for this network."""
        ...

    def forward(self, batch: Batch) -> PassResult:
        """Store K/V of every row and compute the logits asked for."""
        ...
