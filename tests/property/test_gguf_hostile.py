"""No damage to a file makes reading, configuring or packing end in anything but our own errors."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.errors import BlockdraftError
from blockdraft.weights.gguf import GGUFFile, StringArray
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import PackedWeights
from tests.mutate import Original, mutate
from tests.tiny import Tiny

ORIGINALS = {
    "llama-Q4_1": Original.of(Tiny("llama", "Q4_1", rope_freqs=True).to_bytes()),
    "qwen2-F16": Original.of(Tiny("qwen2", "F16").to_bytes()),
    "gemma3-MXFP4": Original.of(Tiny("gemma3", "MXFP4", layers=1).to_bytes()),
    "qwen3-Q6_K": Original.of(Tiny("qwen3", "Q6_K", layers=1).to_bytes()),
}


def use_everything(path: Path) -> None:
    """Decode all metadata, read the configuration and pack all tensors."""
    with GGUFFile.open(path) as file:
        for value in file.metadata.values():
            if isinstance(value, StringArray):
                value.to_list()
        file.metadata_digest()
        read_model_config(file)
        weights = PackedWeights(file)
        weights.load_all(name for name, info in file.tensors.items() if len(info.shape) == 2)
        for name, info in file.tensors.items():
            if len(info.shape) == 1:
                assert np.isfinite(weights.vector(name)).all()


def failure(path: Path) -> str | None:
    """What our error says, None where there is none; other errors pass through."""
    try:
        use_everything(path)
    except BlockdraftError as error:
        return str(error)
    return None


@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
def test_originals_are_sound(tmp_path: Path, original: Original) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(original.raw)
    assert failure(path) is None


@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_damage_ends_in_success_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, original: Original, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(mutate(original, Random(seed)))
    message = failure(path)
    assert message is None or message.startswith(f"{path}: ")
