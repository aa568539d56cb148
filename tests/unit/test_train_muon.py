"""Muon's steps, and who takes them."""

import pytest
import torch
from torch.nn import Parameter

from blockdraft.train.muon import Muon, orthogonalized
from blockdraft.train.optimizer import RunOptimizer
from blockdraft.train.settings import Optimization


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (12, 12)], ids=["wide", "tall", "square"])
def test_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = random(*shape) * torch.logspace(0, -1, shape[1])
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalized(matrix)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.3
    # Directions stay: only their sizes change.
    inside = u.T @ found @ v.T
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), rtol=0, atol=1e-3)


def test_steps_may_be_made_in_fewer_bits() -> None:
    def step(dtype: torch.dtype) -> torch.Tensor:
        parameter = Parameter(torch.zeros(8, 20))
        parameter.grad = random(8, 20)
        Muon({"a": parameter}, 1.0, momentum=0.9, weight_decay=0.0, dtype=dtype).step()
        return parameter.detach().flatten()

    exact, rounded = step(torch.float32), step(torch.bfloat16)
    assert not torch.equal(exact, rounded)
    assert torch.cosine_similarity(exact, rounded, 0) > 0.99


def test_a_zero_gradient_moves_nothing() -> None:
    assert torch.equal(orthogonalized(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_a_step_is_momentum_made_orthogonal_and_scaled() -> None:
    parameter = Parameter(random(4, 9))
    muon = Muon({"a": parameter}, 0.1, momentum=0.5, weight_decay=0.2)
    expected, average = parameter.detach().clone(), torch.zeros(4, 9)
    for seed in (1, 2):
        parameter.grad = random(4, 9, seed=seed)
        average = 0.5 * average + parameter.grad
        ahead = parameter.grad + 0.5 * average
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * 0.2 * 9**0.5 * orthogonalized(ahead)
        muon.step()
    torch.testing.assert_close(parameter.detach(), expected)


def test_matrices_are_muons_and_the_rest_is_adamws() -> None:
    parameters = {
        "a.weight": Parameter(random(4, 6)),
        "a_conv_base": Parameter(random(2, 8)),
        "a_norm.weight": Parameter(random(5)),
    }
    optimizer = RunOptimizer(parameters, Optimization(kind="muon"))
    for each in parameters.values():
        each.grad = torch.ones_like(each)
    before = {name: values.detach().clone() for name, values in parameters.items()}
    optimizer.step(0.01)
    state = optimizer.state_dict()
    assert list(state["muon"]) == ["a.weight"]
    assert all(each.grad is None for each in parameters.values())
    for name in ("a_conv_base", "a_norm.weight"):  # AdamW's first step is the rate
        torch.testing.assert_close(parameters[name].detach(), before[name] - 0.01)


def test_some_matrices_are_slower() -> None:
    names = ("fc.weight", "blk.0.attn_conv_proj.weight", "blk.0.attn_q.weight", "fc.bias")
    parameters = {name: Parameter(torch.zeros(2, 3)) for name in names}
    optimizer = RunOptimizer(parameters, Optimization(slow=0.25))
    for each in parameters.values():
        each.grad = torch.ones_like(each)
    optimizer.step(0.04)
    found = [-round(values[0, 0].item(), 6) for values in parameters.values()]
    assert found == [0.01, 0.01, 0.04, 0.04]  # AdamW's first step is the rate


def test_adamws_state_has_torchs_own_layout() -> None:
    parameters = {"a": Parameter(random(2, 3)), "b": Parameter(random(3))}
    optimizer = RunOptimizer(parameters, Optimization())
    state = optimizer.state_dict()
    assert state.keys() == {"state", "param_groups"}
    assert [group["params"] for group in state["param_groups"]] == [[0], [1]]
