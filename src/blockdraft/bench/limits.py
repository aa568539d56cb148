"""What this machine can do at most, and how much work one pass of a model is.

The two limits are measured, not looked up: bytes read per second from memory, and multiply-
accumulates of 8-bit integers per second in registers. Knows no pass and no clock of its own.
"""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from blockdraft import _native
from blockdraft.session.costs import cpu_name
from blockdraft.weights.gguf import GGUFFile

__all__ = ["Limits", "Machine", "Work", "describe_machine", "measure_limits", "read_work"]

_BUFFER_BYTES = 512 << 20  # well beyond the last cache of one user's machine

_EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured limits of this machine.

    Attributes:
        read_gb_per_s: 1e9 bytes per second read from memory by all threads.
        int8_gmac_per_s: 1e9 multiply-accumulates of 8-bit integers per second by all threads.
    """

    read_gb_per_s: float
    int8_gmac_per_s: float

    def or_better(self, other: "Limits") -> "Limits":
        """The higher of both: a busy neighbour can hide a limit, nothing can raise it."""
        return Limits(
            max(self.read_gb_per_s, other.read_gb_per_s),
            max(self.int8_gmac_per_s, other.int8_gmac_per_s),
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Where numbers come from.

    Attributes:
        cpu: Name of the processor.
        cores: Logical cores that this process may use.
        isa: Instruction sets of the kernels that run here, the best last.
        system: Operating system and its release.
        blockdraft: Our version.
    """

    cpu: str
    cores: int
    isa: tuple[str, ...]
    system: str
    blockdraft: str


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass must do, from the sizes of the file's matrices.

    Attention is left out: it grows with the context and reads K/V, not weights.

    Attributes:
        weight_bytes: Bytes of every matrix that a pass with logits reads, as in the file.
        body_macs: Multiply-accumulates per row, without the head.
        head_macs: Multiply-accumulates of the head per row with logits.
    """

    weight_bytes: int
    body_macs: int
    head_macs: int

    def macs(self, num_rows: int, num_logits: int) -> int:
        """Multiply-accumulates of a pass over ``num_rows`` rows."""
        return num_rows * self.body_macs + num_logits * self.head_macs


def measure_limits(num_threads: int) -> Limits:
    """The limits for ``num_threads`` threads; takes about a second."""
    return Limits(
        read_gb_per_s=_native.measure_read_bandwidth(num_threads, _BUFFER_BYTES),
        int8_gmac_per_s=_native.measure_int8_peak(num_threads),
    )


def describe_machine() -> Machine:
    """Processor, cores and versions of this machine."""
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        isa=tuple(_native.isa_names()),
        system=f"{platform.system()} {platform.release()}",
        blockdraft=version("blockdraft"),
    )


def read_work(path: Path) -> Work:
    """The work of a pass of the model in ``path``.

    Raises:
        FileFormatError: The file is damaged.
    """
    with GGUFFile.open(path) as file:
        matrices = {name: info for name, info in file.tensors.items() if len(info.shape) == 2}
    head = matrices.pop(_HEAD, None)
    table = matrices.pop(_EMBEDDING, None)
    head = table if head is None else head  # a tied head; an untied table is read row by row
    body_macs = sum(info.rows * info.cols for info in matrices.values())
    weight_bytes = sum(info.nbytes for info in matrices.values())
    if head is None:
        return Work(weight_bytes, body_macs, 0)
    return Work(weight_bytes + head.nbytes, body_macs, head.rows * head.cols)
