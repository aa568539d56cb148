"""Real models: K/V that were kept are those that would be computed, byte for byte.

Of Gemma 3 most layers have a window of 512 tokens.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockdraft.config import SamplingParams
from blockdraft.engine import Request
from blockdraft.models.target import load_target
from blockdraft.speculative import NgramDrafter
from tests.rounds import Memory, assert_identical, histories

PARAMS = SamplingParams(temperature=0.8, seed=2)
KEPT = Memory(prefix_bytes=128 << 20, max_running=1)


def requests_of(vocab_size: int, shared: int) -> list[Request]:
    """Three prompts with ``shared`` tokens in common, and one that goes on after half of them."""
    random = np.random.default_rng(1)
    common = random.integers(300, vocab_size - 300, shared).tolist()
    prompts = [(*common, *random.integers(300, 5000, size).tolist()) for size in (9, 40, 70)]
    prompts.append((*common[: shared // 2], 300, 301))
    return [Request(prompt, PARAMS, 12) for prompt in prompts]


@pytest.mark.model
@pytest.mark.parametrize(("name", "shared"), [("smollm2-135m", 150), ("gemma3-270m", 700)])
def test_real_models(model_path: Callable[[str], Path], name: str, shared: int) -> None:
    target = load_target(model_path(name))
    requests = requests_of(target.config.vocab_size, shared)
    found = histories(target, requests, NgramDrafter(7), memory=KEPT)
    for history, request in zip(found, requests, strict=True):
        assert_identical(history, histories(target, [request])[0])
    cached = [one.last.stats.cached_tokens for one in found if one.last and one.last.stats]
    page = shared // 64 * 64
    assert cached == [0, page, page, shared // 2 // 64 * 64]
