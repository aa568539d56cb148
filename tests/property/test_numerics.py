"""The native core against its specification in numpy, bit for bit.

What the other tests of identity cannot see: a change that all paths and all passes share, such
as a split of k everywhere.
"""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blockdraft import _native
from blockdraft.models.target import load_target
from tests.passes import Replay, token_stream
from tests.spec import fma
from tests.spec_ops import spec_forward

f32 = np.float32
NUM_TOKENS = 130  # three chunks of attention, the last one broken
CASES: dict[str, dict[str, Any]] = {
    "llama-Q4_1": {"arch": "llama", "tensor_type": "Q4_1"},
    "qwen2-Q6_K": {"arch": "qwen2", "tensor_type": "Q6_K", "layers": 1},
    "qwen3-Q2_K": {"arch": "qwen3", "tensor_type": "Q2_K", "layers": 1},
    "llama-F16": {"arch": "llama", "tensor_type": "F16"},
    # Windowed layers and a full one, post-norms, gelu, embedding scale, both soft caps.
    "gemma3-Q8_0": {
        "arch": "gemma3",
        "tensor_type": "Q8_0",
        "window": 70,
        "metadata": {
            "gemma3.attn_logit_softcapping": 3.0,
            "gemma3.final_logit_softcapping": 2.0,
        },
    },
}

floats = st.floats(width=32, min_value=-(2.0**50), max_value=2.0**50)


@settings(max_examples=300, deadline=None)
@given(a=floats, b=floats, c=floats)
@example(a=1 + 2**-23, b=1 + 2**-23, c=2**-60)  # two roundings would lose the last term
@example(a=1 + 2**-12, b=1 - 2**-12, c=2**-55)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    ours = f32(fma(a, b, c))
    gap = abs(Fraction(float(ours)) - exact)
    for near in (np.nextafter(ours, f32(np.inf)), np.nextafter(ours, f32(-np.inf))):
        assert gap <= abs(Fraction(float(near)) - exact)


@pytest.mark.parametrize("case", CASES)
def test_the_core_is_its_specification(tiny_model: Callable[..., Path], case: str) -> None:
    path = tiny_model(**CASES[case])
    token_ids = token_stream(4, NUM_TOKENS, 299)
    expected = spec_forward(path, token_ids.tolist())
    for isa in _native.isa_names():
        replay = Replay(load_target(path, num_threads=1, isa=isa), token_ids)
        trace = replay.run(50)
        for position, logits in sorted(trace.logits.items()):
            ours = np.frombuffer(logits, "f4")
            assert np.array_equal(ours, expected[position]), f"{isa}, position {position}"
