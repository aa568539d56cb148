"""A package index without a network: wheels in a folder and a stand-in for pip's process."""

import shutil
import sys
import threading
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONTENT = bytes(range(256)) * 40
HALVES = (CONTENT[:5000], CONTENT[5000:])
PARTS = (("tiny-part1==1.0", "tiny_part1/data/a.bin"), ("tiny-part2==1.0", "tiny_part2/data/b.bin"))


def write_wheels(folder: Path, halves: Sequence[bytes] = HALVES) -> None:
    """Wheels of two packages, each holding one half."""
    folder.mkdir(exist_ok=True)
    for (requirement, member), data in zip(PARTS, halves, strict=True):
        name = requirement.partition("==")[0].replace("-", "_")
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, data)
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")


class Index:
    """Stands for pip and the index behind it: `subprocess.Popen` of the module under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.missing: set[str] = set()
        self.lock = threading.Lock()

    def __call__(
        self, command: Sequence[str], **options: Any
    ) -> AbstractContextManager[SimpleNamespace]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        requirement = command[-1]
        with self.lock:
            self.asked.append(requirement)
        output, code = b"", 0
        if requirement in self.missing:
            output, code = b"WARNING: slow\nERROR: No matching distribution found\n", 1
        else:
            name = requirement.partition("==")[0].replace("-", "_")
            destination = command[command.index("--dest") + 1]
            shutil.copy(self.folder / f"{name}-1.0-py3-none-any.whl", destination)
        process = SimpleNamespace(
            communicate=lambda timeout: (output, None), terminate=lambda: None, returncode=code
        )
        return nullcontext(process)


class Recorder:
    """Keeps what a pull reports."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.updates: list[tuple[str, int, int]] = []

    def notice(self, message: str) -> None:
        self.notices.append(message)

    def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
        self.updates.append((step, done_bytes, total_bytes))
