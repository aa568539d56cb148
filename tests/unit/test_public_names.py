import subprocess
import sys
from importlib.metadata import version

import pytest

import blockdraft

HEAVY = ("numpy", "tokenizers", "jinja2", "huggingface_hub", "importlib.metadata")


def test_import_brings_nothing_heavy() -> None:
    code = f"import blockdraft, sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in blockdraft.__all__ if name != "__version__"])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(blockdraft, name).__name__ == name
    assert name in dir(blockdraft)


def test_public_names_are_sorted() -> None:
    assert list(blockdraft.__all__) == sorted(blockdraft.__all__)


def test_version_is_that_of_the_distribution() -> None:
    assert blockdraft.__version__ == version("blockdraft")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = blockdraft.sesion
