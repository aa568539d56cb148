"""What a step costs, against the products that torch counts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from blockdraft.train.anchors import Blocks
from blockdraft.train.cost import StepCost
from blockdraft.train.head import FrozenHead
from blockdraft.train.loss import BlockLoss
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.selector import SelectorLoss
from blockdraft.train.settings import Objective
from blockdraft.train.shape import DrafterShape, drafter_config
from blockdraft.train.soft_labels import SoftLabels
from blockdraft.train.warm_start import cold_start, selector_start
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from tests.tiny_corpus import counting_sequence

SHAPE = DrafterShape(num_layers=2, taps=(0, 2), block_size=5, window=9, selector_rank=8)


@pytest.mark.parametrize("has_teacher", [False, True], ids=["hard", "soft"])
def test_every_product_of_a_step_is_counted(
    tiny_model: Callable[..., Path], has_teacher: bool
) -> None:
    with GGUFFile.open(tiny_model("llama", "Q8_0", layers=4)) as file:
        config = drafter_config(SHAPE, read_model_config(file), 298)
    embedding = torch.randn(config.vocab_size, config.hidden_size)
    tensors = {**cold_start(config, 0), **selector_start(config, 0)}
    drafter = TrainableDrafter(config, tensors, embedding=embedding)
    assert drafter.selector is not None
    head = FrozenHead(embedding, torch.arange(config.vocab_size))
    loss = BlockLoss(head, Objective(soft=0.5), SelectorLoss(drafter.selector, 4))
    blocks = Blocks(counting_sequence(1), np.arange(5, 30), 5)
    soft = SoftLabels(torch.randn(29, config.hidden_size), torch.arange(100).reshape(25, 4) % 29)
    labels = torch.zeros(25, 4, dtype=torch.int64)
    counter = FlopCounterMode(display=False)
    with counter:
        (hidden,) = drafter.hidden([torch.randn(34, config.feature_size)], [blocks])
        grad, _ = loss.gradient(hidden, labels, labels, 1.0, soft=soft if has_teacher else None)
        hidden.backward(grad)  # type: ignore[no-untyped-call]
    cost = StepCost(config, config.vocab_size, has_teacher=has_teacher)
    expected = cost.flops(
        rows=blocks.num_rows,
        label_rows=100,
        context_rows=blocks.num_features,
        target_rows=blocks.num_targets,
    )
    assert blocks.num_targets == 29
    assert counter.get_flop_counts()["Global"][torch.ops.aten.mm] == expected
