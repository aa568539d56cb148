"""The processes of a run: one, or as many as ``torchrun`` has started.

Each learns from its share of a step's sequences; gradients are summed, so that the step is the one
that a single process would make. Knows no network.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Processes"]

T = TypeVar("T")


class Processes:
    """A group of processes; of one where nothing else was asked for.

    Attributes:
        rank: This process's number.
        size: How many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | str = "cpu") -> None:
        """Name this process; use `from_environment` to join a group.

        Args:
            rank: Its number.
            size: How many there are.
            device: Of what they exchange.
        """
        self.rank = rank
        self.size = size
        self._device = torch.device(device)

    @classmethod
    def from_environment(cls, device: torch.device | str) -> "Processes":
        """Join the group that ``torchrun`` describes in the environment, if it does."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if str(device) == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # a device of its own for each
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        dist.init_process_group(backend)
        return cls(dist.get_rank(), size, device)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0

    def share_of(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a step."""
        return items[self.rank :: self.size]

    def sum(self, value: float) -> float:
        """Sum over all processes."""
        if self.size == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(found)
        return float(found)

    def agree(self, flag: bool) -> bool:
        """What the first process says; clocks differ."""
        return bool(self.first_value(float(flag)))

    def first_value(self, value: float) -> float:
        """The first process's value."""
        if self.size == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.broadcast(found, src=0)
        return float(found)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over all processes, in one exchange."""
        if self.size == 1:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([each.flatten() for each in grads])
        dist.all_reduce(flat)
        for each, part in zip(
            parameters, torch.split(flat, [g.numel() for g in grads]), strict=True
        ):
            each.grad = part.view_as(each)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()
