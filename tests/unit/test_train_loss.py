"""The chunked loss against formulas written out naively and differentiated by torch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from blockdraft.train import loss as loss_module
from blockdraft.train.head import FrozenHead
from blockdraft.train.loss import BlockLoss, loss_normalizer
from blockdraft.train.selector import SelectorLoss, SelectorMaps, SelectorTables
from blockdraft.train.settings import Objective
from blockdraft.train.soft_labels import SoftLabels

BLOCKS, DRAFTS, WIDTH, ROWS, TOKENS, RANK, TOP_K = 9, 4, 16, 23, 40, 6, 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Case:
    """Random rows, labels and a head; some rows have no label."""

    def __init__(self, *, scale: float = 1.0, softcap: float | None = None) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.hidden = random(BLOCKS, DRAFTS, WIDTH)
        self.head = FrozenHead(
            random(ROWS, WIDTH), torch.randperm(TOKENS, generator=generator)[:ROWS], scale, softcap
        )
        self.labels = torch.randint(0, ROWS, (BLOCKS, DRAFTS), generator=generator)
        self.labels[2, 2:] = -1
        self.labels[5, 1] = -1
        self.previous = torch.randint(0, TOKENS, (BLOCKS, DRAFTS), generator=generator)
        self.embedding = random(TOKENS, WIDTH)
        self.soft = SoftLabels(
            random(7, WIDTH), torch.randint(0, 7, (BLOCKS, DRAFTS), generator=generator)
        )
        self.maps = [random(RANK, WIDTH).mul_(0.3).requires_grad_() for _ in range(3)]

    def selector_maps(self) -> SelectorMaps:
        before, after, gate = self.maps
        return SelectorMaps(before, after, gate, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = hidden @ self.head.weight.T * self.head.scale
        cap = self.head.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def naive(self, hidden: Tensor, objective: Objective) -> Tensor:
        """The unary loss, row by row."""
        log_probs = self.logits(hidden).log_softmax(-1)
        targets = self.logits(self.soft.rows)[self.soft.places].softmax(-1)
        divergence = (targets * (targets.log() - log_probs)).sum(-1)
        total = torch.zeros(())
        for block, labels in enumerate(self.labels.tolist()):
            weights = naive_weights(objective, labels, log_probs[block].detach().exp())
            for k, (label, weight) in enumerate(zip(labels, weights, strict=True)):
                if label >= 0:
                    hard = -log_probs[block, k, label] * (1 - objective.soft)
                    total = total + weight * (hard + objective.soft * divergence[block, k])
        return total

    def naive_selector(self, hidden: Tensor, objective: Objective, *, inject: bool) -> Tensor:
        """The selector's loss, row by row, with tables as an export writes them."""
        predecessor, successor, projection = self.maps
        before, after = self.embedding @ predecessor.T, self.embedding @ successor.T
        logits = self.logits(hidden)
        total = torch.zeros(())
        for block, labels in enumerate(self.labels.tolist()):
            weights = naive_weights(objective, labels, logits[block].detach().softmax(-1))
            for k, label in enumerate(labels):
                candidates = logits[block, k].topk(TOP_K).indices.tolist()
                if label < 0 or (label not in candidates and not inject):
                    continue
                if label not in candidates:
                    candidates[-1] = label
                tokens = self.head.token_ids[candidates]
                gate = projection @ hidden[block, k]
                gain = after[tokens] @ (before[self.previous[block, k]] * gate)
                scores = logits[block, k, candidates] + gain
                place = torch.tensor(candidates.index(label))
                total = total + weights[k] * functional.cross_entropy(scores, place)
        return total * objective.selector


def naive_weights(objective: Objective, labels: list[int], probs: Tensor) -> list[float]:
    if objective.weighting == "decay":
        decay = torch.exp(torch.tensor(-1 / objective.gamma)).item()
        return [decay**k for k in range(len(labels))]
    alive, products = 1.0, []
    for k, label in enumerate(labels):
        q = float(probs[k, label]) if label >= 0 else 0.0
        alive *= ((1 - objective.alpha) * q + objective.alpha) if label >= 0 else 0.0
        products.append(alive)
    return [sum(products[k:]) for k in range(len(labels))]


OBJECTIVES = {
    "decay": Objective("decay", gamma=2.5),
    "dpace": Objective("dpace", alpha=0.3),
    "soft": Objective("decay", soft=1.0),
    "half soft": Objective("dpace", soft=0.4),
}
HEADS = {"plain": Case(), "scaled and capped": Case(scale=0.7, softcap=3.0)}


@pytest.mark.parametrize("chunk_rows", [4, 12, 512])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_and_sum_are_those_of_the_formula(
    name: str, head: str, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_ROWS", chunk_rows)
    monkeypatch.setattr(loss_module, "_CACHED", 5 * ROWS)
    case, objective = HEADS[head], OBJECTIVES[name]
    hidden = case.hidden.clone().requires_grad_()
    expected = case.naive(hidden, objective)
    (slope,) = torch.autograd.grad(expected, hidden)
    grad, stats = BlockLoss(case.head, objective).gradient(
        case.hidden, case.labels, case.previous, 0.25, soft=case.soft if objective.soft else None
    )
    torch.testing.assert_close(grad, 0.25 * slope, rtol=1e-4, atol=1e-6)
    assert stats.weighted_loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("inject", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_the_selector_learns_by_its_formula(head: str, inject: bool) -> None:
    case, objective = HEADS[head], Objective("dpace", selector=0.6)
    selector = SelectorLoss(case.selector_maps(), TOP_K, inject_truth=inject)
    loss = BlockLoss(case.head, objective, selector)
    hidden = case.hidden.clone().requires_grad_()
    expected = case.naive(hidden, objective)
    expected = expected + case.naive_selector(hidden, objective, inject=inject)
    slopes = torch.autograd.grad(expected, [hidden, *case.maps])
    for each in case.maps:
        each.grad = None
    grad, stats = loss.gradient(case.hidden, case.labels, case.previous, 2.0)
    assert stats.weighted_loss == pytest.approx(expected.item(), rel=1e-5)
    for found, slope in zip((grad, *(each.grad for each in case.maps)), slopes, strict=True):
        assert found is not None
        torch.testing.assert_close(found, 2 * slope, rtol=1e-3, atol=1e-5)


def test_free_tables_learn_by_the_formula() -> None:
    case, objective = Case(), Objective("decay")
    generator = torch.Generator().manual_seed(2)
    row_of = torch.full((TOKENS,), -1)
    row_of[case.head.token_ids] = torch.arange(ROWS)
    tables = [torch.randn(ROWS, RANK, generator=generator).requires_grad_() for _ in range(2)]
    weights = SelectorTables(tables[0], tables[1], case.maps[2], row_of)
    # Tables written out are maps of a one-hot embedding.
    before, after = (each.detach().T.clone().requires_grad_() for each in weights.tables())
    maps = SelectorMaps(before, after, case.maps[2], torch.eye(TOKENS))
    found = []
    for each, leaves in ((weights, tables), (maps, [before, after])):
        loss = BlockLoss(case.head, objective, SelectorLoss(each, TOP_K))
        grad, stats = loss.gradient(case.hidden, case.labels, case.previous, 1.0)
        found.append((grad, stats.weighted_loss, [leaf.grad for leaf in leaves]))
    (grad, total, slopes), (expected, expected_total, wide) = found
    assert total == pytest.approx(expected_total, rel=1e-5)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)
    for slope, full in zip(slopes, wide, strict=True):
        assert full is not None
        torch.testing.assert_close(slope, full.T[case.head.token_ids], rtol=1e-4, atol=1e-5)


def test_statistics_count_what_greedy_drafting_would_accept() -> None:
    case = Case()
    best = case.logits(case.hidden).argmax(-1)
    labels = torch.where(torch.arange(BLOCKS * DRAFTS).reshape(BLOCKS, DRAFTS) % 3 > 0, best, 0)
    labels[0, 1:] = -1
    stats = BlockLoss(case.head, Objective()).evaluate(case.hidden, labels, case.previous)
    right = (labels == best).tolist()
    lengths = [next((k for k, ok in enumerate(row) if not ok), DRAFTS) for row in right]
    assert stats.mean_acceptance_length == pytest.approx(1 + sum(lengths) / BLOCKS)
    assert stats.right.tolist() == [sum(row[k] for row in right) for k in range(DRAFTS)]
    assert stats.labels.tolist() == [BLOCKS, BLOCKS - 1, BLOCKS - 1, BLOCKS - 1]


def test_ties_of_rounded_logits_do_not_count_as_right() -> None:
    # Two rows that bfloat16 cannot tell apart; the true one is the smaller.
    head = FrozenHead(torch.tensor([[1.0, 0.001], [1.0, 0.0]]).bfloat16(), torch.arange(2))
    hidden, labels = torch.tensor([[[4.0, 1.0]]]), torch.tensor([[1]])
    loss, previous = BlockLoss(head, Objective()), torch.zeros(1, 1, dtype=torch.int64)
    assert loss.gradient(hidden, labels, previous, 1.0)[1].right.sum() == 1
    assert loss.evaluate(hidden, labels, previous).right.sum() == 0


def test_recall_counts_candidates_and_not_injected_truths() -> None:
    case = Case()
    selector = SelectorLoss(case.selector_maps(), TOP_K)
    stats = BlockLoss(case.head, Objective(), selector).evaluate(
        case.hidden, case.labels, case.previous
    )
    candidates = case.logits(case.hidden).topk(TOP_K).indices
    found = (candidates == case.labels[..., None]).any(-1)
    assert stats.recalled.tolist() == found.sum(0).tolist()
    assert (stats.right <= stats.recalled).all()
    assert 0 < stats.recalled.sum() < stats.labels.sum()


def test_losses_are_divided_by_weights_or_labels() -> None:
    case = Case()
    decay = Objective("decay", gamma=2.0)
    weights = torch.exp(-torch.arange(DRAFTS) / 2.0)
    expected = ((case.labels >= 0) * weights).sum()
    assert loss_normalizer(decay, case.labels) == pytest.approx(expected.item(), rel=1e-6)
    assert loss_normalizer(Objective("dpace"), case.labels) == 33
