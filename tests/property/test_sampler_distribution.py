from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams
from tests.sampler_reference import Row, native_tokens, reference_probabilities, reference_token

# Fixed seeds, so a test passes always or never; a sound sampler fails one in a thousand seeds.
ALPHA = 1e-3
NUM_DRAWS = 6_000

CASES = {
    "plain": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "hot": SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=2),
    "cold": SamplingParams(temperature=0.4, top_k=0, top_p=1.0, min_p=0.0, seed=3),
    "default": SamplingParams(seed=4),
    "top-k": SamplingParams(temperature=1.0, top_k=12, top_p=1.0, min_p=0.0, seed=5),
    "top-p": SamplingParams(temperature=1.2, top_k=0, top_p=0.7, min_p=0.0, seed=6),
    "min-p": SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.1, seed=7),
    "penalties": SamplingParams(
        temperature=1.0, repeat_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.3, seed=8
    ),
    "bias": SamplingParams(temperature=1.0, logit_bias=((5, 3.0), (64, -2.0)), seed=9),
}


def chi_square(tokens: list[int], probabilities: NDArray[np.float64]) -> float:
    from scipy import stats

    counts = np.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    expected = probabilities * len(tokens)
    rare = expected < 10
    pooled = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(counts[~rare], counts[rare].sum())
    keep = pooled > 0
    return float(stats.chisquare(observed[keep], pooled[keep]).pvalue)


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("vocab", [20, 300])
def test_tokens_are_distributed_as_the_processed_logits(params: SamplingParams, vocab: int) -> None:
    logits = (np.random.default_rng(vocab).standard_normal(vocab) * 2).astype(np.float32)
    recent = (1, 1, 2, 3, 11) if params.repeat_penalty != 1 else ()
    biases = tuple(pair for pair in params.logit_bias if pair[0] < vocab)
    row = Row(logits, replace(params, logit_bias=biases), recent=recent)
    rows = [replace(row, position=i) for i in range(NUM_DRAWS)]
    assert chi_square(native_tokens(rows), reference_probabilities(row)) > ALPHA


@pytest.mark.parametrize("key", ["seed", "choice", "token_id"])
def test_tokens_are_distributed_over_seeds_and_choices(key: str) -> None:
    """Equal logits: the arg-max of noise is uniform, whatever part of the key varies."""
    from scipy import stats

    noise = noise_over(key, 16 * 1_000).reshape(1_000, 16)
    counts = np.bincount(noise.argmax(axis=1), minlength=16)
    assert stats.chisquare(counts).pvalue > ALPHA


def noise_over(key: str, count: int, **fixed: int) -> NDArray[np.float64]:
    base = {"seed": 9, "choice": 0, "position": 7, "token_id": 100} | fixed
    return np.array([_native.gumbel(**(base | {key: i})) for i in range(count)])


@pytest.mark.parametrize("key", ["seed", "choice", "position", "token_id"])
def test_noise_is_gumbel_along_every_key(key: str) -> None:
    from scipy import stats

    noise = noise_over(key, NUM_DRAWS)
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > ALPHA
    uniform = np.exp(-np.exp(-noise))
    for lag in (1, 2, 63, 64, 65):
        r = np.corrcoef(uniform[:-lag], uniform[lag:])[0, 1]
        assert abs(r) < 3.5 / np.sqrt(NUM_DRAWS - lag)


@pytest.mark.parametrize("key", ["seed", "choice", "position"])
def test_noise_of_neighbouring_keys_is_independent(key: str) -> None:
    from scipy import stats

    one = np.exp(-np.exp(-noise_over("token_id", NUM_DRAWS, **{key: 3})))
    two = np.exp(-np.exp(-noise_over("token_id", NUM_DRAWS, **{key: 4})))
    assert abs(np.corrcoef(one, two)[0, 1]) < 3.5 / np.sqrt(NUM_DRAWS)
    cells = np.histogram2d(one, two, bins=8, range=((0, 1), (0, 1)))[0]
    assert stats.chisquare(cells.ravel()).pvalue > ALPHA


def test_noise_within_a_block_is_independent() -> None:
    """The order statistics of 64 exponentials: spacings are exponential with rates 64, 63, ..."""
    from scipy import stats

    exponentials = np.exp(-noise_over("token_id", 64 * 1_000)).reshape(1_000, 64)
    spacings = np.diff(np.sort(exponentials, axis=1), axis=1, prepend=0)
    for rank in (0, 1, 2, 31, 63):
        assert stats.kstest(spacings[:, rank] * (64 - rank), stats.expon.cdf).pvalue > ALPHA
    for rank in (0, 1, 2):
        order = np.argsort(exponentials, axis=1)[:, rank]
        assert stats.chisquare(np.bincount(order, minlength=64)).pvalue > ALPHA
    assert abs(np.corrcoef(spacings[:, 0], spacings[:, 1])[0, 1]) < 3.5 / np.sqrt(600)


def test_noise_does_not_tie() -> None:
    noise = np.concatenate([noise_over("token_id", NUM_DRAWS, position=i) for i in range(3)])
    assert len(np.unique(noise)) == len(noise)


probability = st.floats(0.0009765625, 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.01, 5)),
    top_k=st.integers(0, 150),
    top_p=st.one_of(st.just(1.0), probability),
    min_p=st.one_of(st.just(0.0), probability),
    repeat_penalty=st.floats(0.5, 2, width=32),
    presence_penalty=st.floats(-1, 1, width=32),
    frequency_penalty=st.floats(-1, 1, width=32),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.lists(
        st.tuples(st.integers(0, 129), st.floats(width=32, allow_nan=False)), max_size=4
    ).map(tuple),
)
LOGITS = st.one_of(
    arrays(np.float32, 130, elements=st.floats(-20, 20, width=32), fill=st.nothing()),
    arrays(np.float32, 130, elements=st.floats(width=32)),
    arrays(np.float32, 130, elements=st.sampled_from([-1.0, 0.0, 2.0, np.nan, -np.inf])),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    LOGITS,
    PARAMS,
    st.integers(0, 2**62),
    st.lists(st.integers(0, 129), max_size=20).map(tuple),
    st.one_of(st.none(), arrays(np.bool_, 130).filter(lambda allowed: bool(allowed.any()))),
)
def test_any_row_gives_the_reference_token(
    logits: NDArray[np.float32],
    params: SamplingParams,
    position: int,
    recent: tuple[int, ...],
    allowed: NDArray[np.bool_] | None,
) -> None:
    row = Row(logits, params, position=position, recent=recent, allowed=allowed)
    assert {native_tokens([row], isa)[0] for isa in _native.isa_names()} == {reference_token(row)}
