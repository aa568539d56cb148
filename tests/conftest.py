"""Fixtures shared by all tests: tiny random models, the real ones, a cache of our own."""

import gc
import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blockdraft.hub import default_cache_dir, resolve
from tests.tiny import write_tiny


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep all that is collected, half a million objects, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def real_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's folder of models; whatever else is cached goes to a folder of the test run."""
    folder = default_cache_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("BLOCKDRAFT_CACHE", raising=False)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def torch_logs_to_the_root() -> None:
    """Let the loggers of torch propagate: pytest visits dozens that do not, six times a test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.startswith(("torch", "strobelight")):
            logger.propagate = True


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
def model_path(real_models: Path) -> Callable[[str], Path]:
    """A function from a model's name to its path; for tests marked ``model``."""
    return partial(resolve, cache_dir=real_models)
