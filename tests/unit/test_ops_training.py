"""The fast operations of training against the plain ones: values and gradients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdraft.ops.protocol import Norm
from blockdraft.ops.torch import (
    Place,
    TorchContext,
    TorchOps,
    TorchPass,
    TrainingOps,
    block_attention,
    fused,
)
from blockdraft.ops.torch.arithmetic import rms_norm
from blockdraft.ops.torch.fused import fused_rms_norm, rounded_linears
from tests.drafting import TorchDrafter
from tests.tiny_drafter import TinyDrafter

SHAPES = {
    "full": TinyDrafter(is_causal=False),
    "causal": TinyDrafter(is_causal=True),
    "windows": TinyDrafter(kinds=("sliding", "full"), window=6, is_causal=False),
    "narrow causal window": TinyDrafter(kinds=("sliding",) * 2, window=4, is_causal=True),
    "three taps": TinyDrafter(is_dflash2=True, taps=3, is_causal=False),
    "dflash2": TinyDrafter(is_dflash2=True, kinds=("sliding", "full"), is_causal=False),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def weights(drafter: TorchDrafter) -> list[Tensor]:
    network = drafter.network.weights
    found = [network.feature_projection.weight.values, network.feature_norm.weight]
    for layer in network.layers:
        parts = (*layer.qkv, layer.attn_output, *layer.gate_up, layer.down)
        found += [part.weight.values for part in parts]
        assert layer.attention.q_norm is not None
        assert layer.attention.k_norm is not None
        found += [layer.attn_norm.weight, layer.attention.q_norm.weight]
        found += [layer.attention.k_norm.weight]
        for conv in (layer.attn_conv, layer.ffn_conv):
            if conv is not None:
                found += [conv.base, conv.projection.weight.values]
    return [*found, network.output_norm.weight]


def run(drafter: TorchDrafter, ops: type[TorchOps]) -> tuple[Tensor, list[Tensor]]:
    """Logits of blocks of two sequences, two widths, and the gradient of every weight."""
    generator = torch.Generator().manual_seed(3)
    size = drafter.config.feature_size
    features = [torch.randn(n, size, generator=generator, dtype=torch.float64) for n in (17, 9)]
    contexts = [TorchContext(), TorchContext(5)]
    inputs = weights(drafter)
    for each in inputs:
        each.requires_grad_().grad = None
    batch = TorchPass.inject(features, contexts, dtype=torch.float64)
    drafter.network.inject(ops(batch))
    blocks = [(0, 3, 4), (0, 5, 4), (0, 5, 4), (0, 17, 4), (0, 16, 3), (1, 14, 4), (1, 8, 4)]
    batch = TorchPass(
        [[7 + i, *[130] * (width - 1)] for i, (_, _, width) in enumerate(blocks)],
        dtype=torch.float64,
        places=[Place(contexts[i], position) for i, position, _ in blocks],
        logit_rows=[row for row in range(27) if row not in (0, 4, 8, 12, 16, 19, 23)],
    )
    passed = ops(batch)
    drafter.network.weights.head.weight.values.requires_grad_(False)
    logits = drafter.network.draft(passed).logits.values
    if isinstance(passed, TrainingOps):
        before = passed.before_head
        assert before.hidden is not None
        logits = before.hidden @ before.head.weight.values.T
    probe = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    (logits * probe).sum().backward()  # type: ignore[no-untyped-call]
    grads = []
    for each in inputs:
        assert each.grad is not None
        grads.append(each.grad.clone())
    return logits.detach(), grads


@pytest.mark.parametrize("rows_per_chunk", [4, 12, 192])
@pytest.mark.parametrize("name", SHAPES)
def test_training_computes_what_inference_computes(
    name: str, rows_per_chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_attention, "_CHUNK_ROWS", rows_per_chunk)
    monkeypatch.setattr(fused, "_CACHED", 64 * rows_per_chunk)
    generator = torch.Generator().manual_seed(1)
    embedding, head = (torch.randn(131, 64, generator=generator) for _ in range(2))
    folder = SHAPES[name].write_folder(tmp_path / "drafter")
    drafter = TorchDrafter(folder, embedding, head, dtype=torch.float64)
    object.__setattr__(drafter.network.weights, "selector", None)
    plain, plain_grads = run(drafter, TorchOps)
    fast, fast_grads = run(drafter, TrainingOps)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)
    for a, b in zip(fast_grads, plain_grads, strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm_equals_the_plain_one(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 32, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(32, generator=generator, dtype=dtype).requires_grad_()
    probe = torch.randn(3, 5, 32, generator=generator, dtype=dtype)
    results = []
    for norm in (rms_norm, fused_rms_norm):
        out = norm(x, Norm(weight, 1e-5))
        grads = torch.autograd.grad((out * probe).sum(), (x, weight))
        results.append((out, *grads))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    for plain, fast in zip(*results, strict=True):
        assert fast.dtype == dtype
        torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance)


def test_rounded_products_give_the_unrounded_matrices_their_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 32, generator=generator).requires_grad_()
    weights = [torch.randn(n, 32, generator=generator).requires_grad_() for n in (5, 3)]
    probes = [torch.randn(7, n, generator=generator) for n in (5, 3)]
    rounded = [each.detach().to(torch.bfloat16) for each in weights]
    results = []
    for found in (
        rounded_linears(x, weights, rounded),
        [torch.nn.functional.linear(x, each) for each in weights],
    ):
        total = sum((y * probe).sum() for y, probe in zip(found, probes, strict=True))
        assert isinstance(total, Tensor)
        results.append((*found, *torch.autograd.grad(total, (x, *weights))))
    for a, b in zip(*results, strict=True):
        assert a.dtype == torch.float32
        assert torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.999
        assert not torch.equal(a, b)
