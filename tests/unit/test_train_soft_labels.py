"""Soft labels are what the target finds likely at each place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from blockdraft.train.anchors import Blocks
from blockdraft.train.features import FeatureExtractor
from blockdraft.train.head import FrozenHead
from blockdraft.train.soft_labels import SoftLabels, Teacher, taps_with_teacher
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.tensors import EMBEDDING, HEAD, OUTPUT_NORM
from tests.oracle import float_forward
from tests.tiny_corpus import counting_sequence

SEQUENCE = counting_sequence(1, prompt=6, answer=20)
BLOCKS = Blocks(SEQUENCE, np.array([8, 12, 24]), 5)


def soft_labels(target: Path, taps: tuple[int, ...]) -> tuple[SoftLabels, FrozenHead]:
    (features,) = FeatureExtractor(target, taps, num_threads=1).extract([SEQUENCE.token_ids[:-1]])
    with GGUFFile.open(target) as file:
        config, source = read_model_config(file), FloatWeights(file)
        head = torch.tensor(source.matrix(EMBEDDING if config.tied_head else HEAD))
        norm = torch.tensor(source.vector(OUTPUT_NORM))
    teacher = Teacher(norm, config.norm_eps)
    return teacher.of(features, BLOCKS), FrozenHead(head, torch.arange(len(head)))


def test_they_are_the_targets_distributions(tiny_model: Callable[..., Path]) -> None:
    target = tiny_model("llama", "F32", layers=3)
    labels, head = soft_labels(target, taps_with_teacher((0, 1), 3))
    logits, _ = float_forward(target, SEQUENCE.token_ids.tolist())
    log_probs = logits.log_softmax(-1)
    found = labels.distributions(head)
    probs, entropy = found.of(slice(None)), found.entropy[found.places]
    row = 0
    for position in BLOCKS.positions.tolist():
        for k in range(1, BLOCKS.width):
            if position + k < len(SEQUENCE.token_ids):  # the last block has one label
                expected = log_probs[position + k - 1]
                torch.testing.assert_close(probs[row].log(), expected, rtol=0.02, atol=0.02)
                own = -(probs[row] * probs[row].log()).sum()
                torch.testing.assert_close(entropy[row], own, rtol=1e-4, atol=1e-4)
            row += 1


def test_parts_of_the_blocks_have_the_same(tiny_model: Callable[..., Path]) -> None:
    labels, head = soft_labels(tiny_model("llama", "F32", layers=3), (0, 1, 2))
    whole, rows = labels.distributions(head), slice(BLOCKS.width - 1, None)
    second = labels.of(slice(1, 3)).distributions(head)
    torch.testing.assert_close(second.of(slice(None)), whole.of(rows))
    assert len(whole.probs) < len(whole.places)  # each of the target's rows once


def test_the_last_layer_is_tapped_once() -> None:
    assert taps_with_teacher((1, 4), 6) == (1, 4, 5)
    assert taps_with_teacher((1, 5), 6) == (1, 5)
