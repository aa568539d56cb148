"""Fixtures shared by all tests: tiny random models and the real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.hub import resolve
from tests.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function (arch, tensor_type, **options of `Tiny`) -> path; each file is written once."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def build(arch: str = "llama", tensor_type: str = "Q4_0", **options: Any) -> Path:
        key = repr((arch, tensor_type, sorted(options.items())))
        if key not in written:
            path = folder / f"{len(written)}-{arch}-{tensor_type}.gguf"
            written[key] = write_tiny(path, arch, tensor_type, **options)
        return written[key]

    return build


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """A function from a model's name to its path; for tests marked ``model``."""
    return resolve
