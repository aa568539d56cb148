from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockdraft.errors import ConfigError
from tests.oracle import FloatModel


@pytest.mark.parametrize("taps", [(2,), (-1,), (1, 0), (0, 0)])
def test_taps_have_to_be_ascending_layers(
    tiny_model: Callable[..., Path], taps: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"must be ascending layers in \[0, 1\]"):
        FloatModel(tiny_model("llama")).forward([1, 2], taps=taps)


def test_only_windowed_layers_use_the_window_and_the_local_rope(
    tiny_model: Callable[..., Path],
) -> None:
    model = FloatModel(tiny_model("gemma3"))
    specs = [layer.attention for layer in model.decoder.weights.layers]
    assert [spec.layer_idx for spec in specs] == list(range(6))
    assert [spec.window for spec in specs] == [8] * 5 + [None]
    assert [spec.rope for spec in specs] == [model.config.local_rope] * 5 + [model.config.rope]


def test_a_tied_head_is_the_embedding(tiny_model: Callable[..., Path]) -> None:
    tied = FloatModel(tiny_model("llama", tied_head=True)).decoder.weights
    untied = FloatModel(tiny_model("llama", tied_head=False)).decoder.weights
    assert tied.head.weight is tied.embedding
    assert not torch.equal(untied.head.weight.values, untied.embedding.values)
