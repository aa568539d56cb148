"""What is measured: a model file with the settings it runs under."""

from dataclasses import dataclass
from pathlib import Path

from blockdraft.models.target import TargetModel, load_target

__all__ = ["Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and how to run it.

    Attributes:
        path: The model file.
        name: Its name in reports.
        num_threads: Threads of a pass.
        isa: Instruction set of the kernels; None is the best that runs here.
    """

    path: Path
    name: str
    num_threads: int
    isa: str | None = None

    def load(self, *, max_rows: int) -> TargetModel:
        """The model, ready for passes of ``max_rows`` rows.

        Raises:
            BlockdraftError: The file or a setting cannot be honoured.
        """
        return load_target(self.path, num_threads=self.num_threads, isa=self.isa, max_rows=max_rows)
