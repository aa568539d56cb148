"""The float oracle on tiny files of every architecture: the base of all native parity tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.oracle import FloatModel, float_forward
from tests.tiny import ARCHITECTURES, TENSOR_TYPES

TinyModel = Callable[..., Path]
# Longer than two windows of the tiny gemma3.
TOKEN_IDS = [token_id * 7 % 299 for token_id in range(20)]


def relative_distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float32_is_near_float64(tiny_model: TinyModel, arch: str) -> None:
    path = tiny_model(arch)
    logits, features = float_forward(path, TOKEN_IDS, taps=(0, 1))
    exact, exact_features = float_forward(path, TOKEN_IDS, dtype=torch.float64, taps=(0, 1))
    assert logits.shape == (20, 299)
    assert features.shape == (20, 128)
    assert logits.std() > 0.1
    assert relative_distance(logits.double(), exact) < 1e-5
    assert relative_distance(features.double(), exact_features) < 1e-5


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_every_tensor_type_runs(tiny_model: TinyModel, tensor_type: str) -> None:
    logits, features = float_forward(tiny_model("llama", tensor_type), TOKEN_IDS)
    assert logits.isfinite().all()
    assert logits.std() > 0.1
    assert features.shape == (20, 0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_native_roundings_move_logits_a_little(tiny_model: TinyModel, arch: str) -> None:
    model = FloatModel(tiny_model(arch))
    plain, _ = model.forward(TOKEN_IDS)
    halves, _ = model.forward(TOKEN_IDS, store_f16=True)
    rounded, _ = model.forward(TOKEN_IDS, quantize_activations=True, store_f16=True)
    assert 0 < relative_distance(halves, plain) < 3e-3
    assert relative_distance(halves, plain) < relative_distance(rounded, plain) < 0.1


def test_float_matrices_take_unrounded_activations(tiny_model: TinyModel) -> None:
    model = FloatModel(tiny_model("llama", "F16"))
    plain, _ = model.forward(TOKEN_IDS)
    rounded, _ = model.forward(TOKEN_IDS, quantize_activations=True)
    assert torch.equal(plain, rounded)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_later_tokens_do_not_change_earlier_logits(tiny_model: TinyModel, arch: str) -> None:
    model = FloatModel(tiny_model(arch))
    whole, _ = model.forward(TOKEN_IDS)
    prefix, _ = model.forward(TOKEN_IDS[:13])
    torch.testing.assert_close(whole[:13], prefix, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tree_path_equals_its_chain(tiny_model: TinyModel, arch: str) -> None:
    """Rows 0-9 are a chain, then two branches leave row 9."""
    model = FloatModel(tiny_model(arch))
    parents = [*range(-1, 9), 9, 10, 9, 12]
    tree, _ = model.forward(TOKEN_IDS[:14], parents=parents)
    path = [*range(10), 12, 13]
    chain, _ = model.forward([TOKEN_IDS[row] for row in path])
    torch.testing.assert_close(tree[path], chain, rtol=1e-4, atol=1e-5)
