"""What drawing drafts with the target's own noise costs against rejection sampling.

Rejection sampling accepts a draft from q with probability 1 - TV(p, q), and no rule accepts more;
but then which tokens a seed gives depends on the drafter. With one noise for both, the target's
token is p's alone, and a draft from q equals it with probability

    sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i) >= (1 - TV) / (1 + TV).

``python -m tests.property.test_coupled_acceptance`` prints the table of the documentation.

Source: arXiv:2408.07978 (drafter-invariant speculative decoding).
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.engine.sampling import NativeSampler, SampleRow, prepare_sampling
from tests.native_dflash import filled, scripted, task_of

Row = NDArray[np.float64]
Rows = dict[str, tuple[Row, Row]]

VOCAB = 300
BLOCK = 63  # drafts of a proposal: as many draws
NO_TOKENS: NDArray[np.int32] = np.zeros(0, np.int32)


def random_rows(seed: int = 0) -> Rows:
    """Pairs of log-probabilities, p and q, by how they differ."""
    rng = np.random.default_rng(seed)
    logits = 2.5 * rng.standard_normal(VOCAB)
    sharp = 6.0 * rng.standard_normal(VOCAB)
    noise = rng.standard_normal(VOCAB)
    best = np.argsort(-(logits + noise))[:16]
    sparse = np.full(VOCAB, -np.inf)
    sparse[best] = (logits + noise)[best]
    pairs = {
        "the same": (logits, logits),
        "logits with noise 0.3": (logits, logits + 0.3 * noise),
        "logits with noise 1": (logits, logits + noise),
        "noise 1, 16 candidates": (logits, sparse),
        "logits with noise 2.5": (logits, logits + 2.5 * noise),
        "sharp, noise 2.5": (sharp, sharp + 2.5 * noise),
        "twice as hot": (logits, logits / 2),
        "unrelated": (logits, 2.5 * rng.standard_normal(VOCAB)),
    }
    return {name: (_normal(p), _normal(q)) for name, (p, q) in pairs.items()}


def _normal(logits: Row) -> Row:
    shifted = logits - logits.max()
    found: Row = shifted - np.log(np.exp(shifted).sum())
    return found


def total_variation(log_p: Row, log_q: Row) -> float:
    return float(0.5 * np.abs(np.exp(log_p) - np.exp(log_q)).sum())


def coupled_exactly(log_p: Row, log_q: Row) -> float:
    """Probability that one noise picks the same token from both."""
    both = np.flatnonzero(np.isfinite(log_q))
    ratios = np.maximum(
        log_p[None, :] - log_p[both, None],
        log_q[None, :] - log_q[both, None],
    )
    return float((1 / np.exp(ratios).sum(axis=1)).sum())


def coupled_measured(log_p: Row, log_q: Row, num_blocks: int) -> float:
    """Share of drafts that the target's sampler picks, too; the drafter's walk draws them."""
    order = np.argsort(-log_q, kind="stable")[: np.isfinite(log_q).sum()].astype(np.int32)
    scores = np.tile(log_q[order].astype(np.float32), (BLOCK, len(order), 1))
    drafter, _ = scripted(np.tile(order, (BLOCK, 1)), scores)
    logits = np.tile(log_p.astype(np.float32), (BLOCK, 1))
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    cache = filled(drafter, 0)
    num_equal = 0
    for choice in range(num_blocks):
        task = task_of(cache, num_tokens=50, params=params, choice=choice)
        (proposal,) = drafter.propose([task])
        sampling = prepare_sampling(params, choice)
        rows = [SampleRow(sampling, 50 + place, NO_TOKENS) for place in range(BLOCK)]
        num_equal += int(np.sum(np.array(proposal.token_ids) == NativeSampler().pick(logits, rows)))
    return num_equal / (BLOCK * num_blocks)


@pytest.mark.parametrize("name", random_rows())
def test_acceptance_is_the_couplings(name: str) -> None:
    log_p, log_q = random_rows()[name]
    distance = total_variation(log_p, log_q)
    exact = coupled_exactly(log_p, log_q)
    assert (1 - distance) / (1 + distance) - 1e-9 <= exact <= 1 - distance + 1e-9
    num_blocks = 12
    measured = coupled_measured(log_p, log_q, num_blocks)
    error = np.sqrt(exact * max(1 - exact, 0) / (BLOCK * num_blocks))
    assert measured == pytest.approx(exact, abs=4 * error + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_no_row_falls_below_the_bound(seed: int) -> None:
    for log_p, log_q in random_rows(seed).values():
        distance = total_variation(log_p, log_q)
        assert coupled_exactly(log_p, log_q) >= (1 - distance) / (1 + distance) - 1e-9


def table(num_blocks: int = 400) -> str:
    """Acceptance by kind of rows, in Markdown."""
    lines = [
        "| drafter's rows | rejection sampling, 1 - TV | one noise, measured | one noise, exact |"
        " at least, (1 - TV) / (1 + TV) | most probable token |",
        "|---|---|---|---|---|---|",
    ]
    for name, (log_p, log_q) in random_rows().items():
        distance = total_variation(log_p, log_q)
        figures = (
            1 - distance,
            coupled_measured(log_p, log_q, num_blocks),
            coupled_exactly(log_p, log_q),
            (1 - distance) / (1 + distance),
            float(np.exp(log_p[log_q.argmax()])),
        )
        lines.append(f"| {name} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
