from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdraft.config import Activation, RopeConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.protocol import AttentionSpec, Linear, Norm
from blockdraft.ops.torch import Rows, TorchMatrix, TorchOps, TorchPass, TorchWeights

SPEC: AttentionSpec[Tensor] = AttentionSpec(
    layer_idx=0,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    scale=0.25,
    rope=RopeConfig(theta=100.0, dims=16),
)


def random_qkv(rows: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, width, generator=generator, dtype=torch.float64) for width in (64, 32, 32)
    ]


def attend(
    batch: TorchPass, qkv: list[Tensor], spec: AttentionSpec[Tensor] = SPEC, *, f16: bool = False
) -> Tensor:
    q, k, v = (Rows(values) for values in qkv)
    return TorchOps(batch, store_f16=f16).attend(q, k, v, spec).values


def chain(*lengths: int) -> TorchPass:
    return TorchPass([[0] * length for length in lengths], dtype=torch.float64)


def reference(qkv: list[Tensor], window: int | None = None) -> Tensor:
    """Row by row and head by head, with the rotation as a complex product."""

    def rotated(x: Tensor, position: int) -> Tensor:
        turn = torch.polar(torch.ones(8), position * 100.0 ** (-torch.arange(8) / 8)).to(
            torch.complex128
        )
        turned = torch.complex(x[:8], x[8:]) * turn
        return torch.cat((turned.real, turned.imag))

    q, k, v = (each.reshape(len(each), -1, 16) for each in qkv)
    rows = []
    for position in range(len(q)):
        seen = range(0 if window is None else max(0, position - window + 1), position + 1)
        for head in range(4):
            query = rotated(q[position, head], position) * 0.25
            scores = torch.stack([query @ rotated(k[j, head // 2], j) for j in seen])
            rows.append(scores.softmax(0) @ v[list(seen), head // 2])
    return torch.stack(rows).reshape(len(q), 64)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_attention_equals_row_by_row(window: int | None) -> None:
    qkv = random_qkv(7)
    torch.testing.assert_close(
        attend(chain(7), qkv, replace(SPEC, window=window)),
        reference(qkv, window),
        rtol=1e-6,
        atol=1e-6,
    )


def test_sequences_do_not_see_each_other() -> None:
    qkv = random_qkv(9)
    together = attend(chain(4, 5), qkv)
    torch.testing.assert_close(together[:4], attend(chain(4), [each[:4] for each in qkv]))
    torch.testing.assert_close(together[4:], attend(chain(5), [each[4:] for each in qkv]))


@pytest.mark.parametrize("window", [None, 2])
def test_every_path_of_a_tree_equals_its_chain(window: int | None) -> None:
    parents = [-1, 0, 1, 1, 0, 3, 4]
    spec = replace(SPEC, window=window)
    qkv = random_qkv(7)
    tree = attend(TorchPass([[0] * 7], dtype=torch.float64, parents=[parents]), qkv, spec)
    for leaf in (2, 5, 6):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        expected = attend(chain(len(path)), [each[path] for each in qkv], spec)
        torch.testing.assert_close(tree[path], expected)


def test_a_block_that_is_not_causal_sees_its_end() -> None:
    spec = replace(SPEC, causal=False)
    qkv = random_qkv(5)
    changed = [*qkv[:2], torch.cat((qkv[2][:4], qkv[2][4:] + 1))]
    difference = attend(chain(5), changed, spec) - attend(chain(5), qkv, spec)
    assert (difference.abs().amax(1) > 1e-3).all()


def test_dimensions_beyond_the_rotated_ones_stay() -> None:
    spec = replace(SPEC, rope=RopeConfig(theta=100.0, dims=8), scale=1.0)
    q = torch.zeros(2, 64, dtype=torch.float64)
    k = torch.zeros(2, 32, dtype=torch.float64)
    q[:, 8], k[:, 8] = 1.0, torch.tensor([0.0, 1.0])
    v = torch.tensor([[0.0], [1.0]]).expand(2, 32).double()
    out = attend(chain(2), [q, k, v], spec)
    assert out[1, 0].item() == pytest.approx(torch.tensor([0.0, 1.0]).softmax(0)[1].item())


def test_stored_keys_and_values_are_finite_halves() -> None:
    q, k, v = random_qkv(1)
    v = torch.tensor([1e6, -torch.inf, torch.nan, 1 / 3]).double().repeat(8)[None]
    out = attend(chain(1), [q, k, v], f16=True)
    expected = [65504.0, -65504.0, 0.0, float(np.float16(1 / 3))]
    assert out[0, :4].tolist() == expected


def test_int8_activations_only_enter_quantized_matrices() -> None:
    x = torch.cat((torch.linspace(-127, 127, 32), torch.zeros(32)))[None] * 0.3
    x[0, 1] += 0.01
    ops = TorchOps(chain(1), quantize_activations=True)
    eye = torch.eye(64)
    exact, rounded = ops.project(
        Rows(x), [Linear(TorchMatrix(eye)), Linear(TorchMatrix(eye, is_quantized=True))], None
    )
    assert torch.equal(exact.values, x)
    scale = x.abs().max() / 127
    torch.testing.assert_close(rounded.values, torch.round(x / scale) * scale)
    assert not torch.equal(rounded.values, x)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_row_that_is_not_finite_becomes_nan(value: float) -> None:
    x = torch.ones(2, 64)
    x[0, 3] = value
    ops = TorchOps(chain(2), quantize_activations=True)
    weight = TorchMatrix(torch.eye(64), is_quantized=True)
    (out,) = ops.project(Rows(x), [Linear(weight)], None)
    assert out.values[0].isnan().all()
    torch.testing.assert_close(out.values[1], x[1])


def test_everything_has_a_gradient() -> None:
    weight = torch.randn(64, 64, dtype=torch.float64, requires_grad=True)
    matrix, norm = TorchMatrix(weight), Norm(torch.ones(64, dtype=torch.float64), 1e-6)
    ops = TorchOps(chain(3))
    h = ops.embed(matrix, scale=1.0)
    q, k, v = ops.project(h, [Linear(matrix)] * 3, norm)
    spec = replace(SPEC, num_kv_heads=4)
    ops.project_add(ops.attend(q, k, v, spec), Linear(matrix), h, norm)
    gate, up = ops.project(h, [Linear(matrix)] * 2, norm)
    ops.gated_project_add(gate, up, Activation.GELU_TANH, Linear(matrix), h, None)
    ops.tap(h)
    ops.logits(h, norm, Linear(matrix), scale=1.0, softcap=3.0).values.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    assert (weight.grad.abs().sum(1) > 0).all()


def test_logit_rows_pick_rows_of_the_pass() -> None:
    table = TorchMatrix(torch.eye(8))
    norm = Norm(torch.ones(8), 1e-6)
    picked = TorchPass([[1, 2], [3, 4, 5]], logit_rows=[1, 4])
    logits = [
        TorchOps(batch).logits(
            TorchOps(batch).embed(table, scale=1.0), norm, Linear(table), scale=1.0, softcap=None
        )
        for batch in (picked, TorchPass([[1, 2], [3, 4, 5]]))
    ]
    assert torch.equal(logits[0].values, logits[1].values[[1, 4]])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([[-1, 0]], "2 parents for 3 rows"),
        ([[-1, 2, 0]], "row 1 has parent 2"),
        ([None, None], "2 lists of parents for 1 sequences"),
    ],
)
def test_parents_have_to_fit(parents: list[list[int] | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchPass([[0, 0, 0]], parents=parents)


class Arrays:
    def matrix(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.full((2, 2), len(name), np.float32)

    vector = matrix

    def has(self, name: str) -> bool:
        return name == "a"


def test_weights_convert_once_and_know_what_is_quantized() -> None:
    weights = TorchWeights(Arrays(), dtype=torch.bfloat16, is_quantized=lambda name: name == "a")
    assert weights.matrix("a") is weights.matrix("a")
    assert weights.matrix("a").values.dtype == torch.bfloat16
    assert (weights.matrix("a").is_quantized, weights.matrix("b").is_quantized) == (True, False)
    assert (weights.has("a"), weights.has("b")) == (True, False)
