import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams
from tests.sampler_reference import Row, native_tokens, python_gumbel, reference_token

ISAS = _native.isa_names()
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
GREEDY = replace(PLAIN, temperature=0.0)

PARAMS = {
    "default": SamplingParams(),
    "greedy": GREEDY,
    "plain": PLAIN,
    "cold": replace(PLAIN, temperature=0.05),
    "freezing": replace(PLAIN, temperature=1e-300),
    "hot": replace(PLAIN, temperature=10.0),
    "top-k": replace(PLAIN, top_k=7),
    "top-1": replace(PLAIN, top_k=1),
    "large-top-k": replace(PLAIN, top_k=900),
    "top-p": replace(PLAIN, top_p=0.8),
    "tiny-top-p": replace(PLAIN, top_p=1e-6),
    "large-top-p": replace(PLAIN, top_p=0.9999),
    "min-p": replace(PLAIN, min_p=0.02),
    "only-best": replace(PLAIN, min_p=1.0),
    "all": replace(PLAIN, temperature=1.5, top_k=30, top_p=0.9, min_p=0.01, seed=2**64 - 1),
}


def normal(seed: int, vocab: int, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def one_token(logits: list[float], params: SamplingParams = GREEDY, **options: Any) -> int:
    row = replace(Row(np.array(logits, np.float32), params), **options)
    return native_tokens([row])[0]


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 1000, 5003])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_matches_reference(params: SamplingParams, vocab: int) -> None:
    rows = [Row(normal(i, vocab), params, position=i, choice=i % 3) for i in range(8)]
    assert native_tokens(rows) == [reference_token(row) for row in rows]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_matches_reference_on_ties(params: SamplingParams, scale: float) -> None:
    rows = [Row(np.round(normal(i, 700, scale)), params, position=i) for i in range(8)]
    assert native_tokens(rows) == [reference_token(row) for row in rows]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_matches_reference_with_everything_on(params: SamplingParams) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for position in range(8):
        everything = replace(
            params,
            repeat_penalty=1.3,
            presence_penalty=0.4,
            frequency_penalty=-0.25,
            logit_bias=((3, 2.5), (3, 0.5), (64, -np.inf), (199, 4.0)),
        )
        recent = tuple(int(i) for i in rng.integers(0, 200, 64))
        allowed = rng.random(200) < 0.7
        logits = normal(position, 200)
        logits[rng.integers(0, 200, 9)] = np.nan
        rows.append(Row(logits, everything, position=position, recent=recent, allowed=allowed))
    assert native_tokens(rows) == [reference_token(row) for row in rows]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_every_instruction_set_picks_the_same(params: SamplingParams) -> None:
    rows = [Row(normal(i, 20011, 1 + i), params, position=i) for i in range(12)]
    tokens = {isa: native_tokens(rows, isa) for isa in ISAS}
    assert all(tokens[isa] == tokens["scalar"] for isa in ISAS)


def test_neighbours_do_not_matter() -> None:
    rows = [Row(normal(i, 999), PARAMS["all"], position=i) for i in range(9)]
    assert native_tokens(rows) == [native_tokens([row])[0] for row in rows]


@pytest.mark.parametrize(
    "change", [{"position": 1}, {"choice": 1}, {"params": replace(PLAIN, seed=6)}]
)
def test_seed_choice_and_position_key_the_noise(change: dict[str, Any]) -> None:
    row = Row(np.zeros(1000, np.float32), PLAIN)
    assert native_tokens([row]) != native_tokens([replace(row, **change)])


@pytest.mark.parametrize(
    ("logits", "token"),
    [
        ([1, 3, 3, 2], 1),
        ([np.nan, -5, np.nan], 1),
        ([np.nan, np.nan], 0),
        ([-np.inf, -np.inf], 0),
        ([np.nan, -np.inf, -3e38], 2),
        ([1, np.inf, np.inf], 1),
        ([-0.0, 0.0], 0),
    ],
)
@pytest.mark.parametrize("params", [GREEDY, PARAMS["top-1"]], ids=["greedy", "top-1"])
def test_hostile_logits_have_a_defined_token(
    logits: list[float], token: int, params: SamplingParams
) -> None:
    assert one_token(logits, params) == token


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_infinity_beats_noise(params: SamplingParams) -> None:
    assert one_token([5, np.nan, np.inf, 3e38, np.inf], params) == 2


def test_nothing_finite_gives_the_lowest_allowed_token() -> None:
    allowed = np.zeros(100, np.bool_)
    allowed[[70, 90]] = True
    assert one_token([math.nan] * 100, PLAIN, allowed=allowed) == 70


@pytest.mark.parametrize(
    ("penalties", "token"),
    [
        ({"repeat_penalty": 1.0}, 0),
        ({"repeat_penalty": 1.2}, 1),
        ({"presence_penalty": 0.4}, 0),
        ({"presence_penalty": 0.6}, 1),
        ({"frequency_penalty": 0.15}, 0),
        ({"frequency_penalty": 0.2}, 1),
    ],
)
def test_penalties_lower_recent_tokens(penalties: dict[str, Any], token: int) -> None:
    params = replace(GREEDY, **penalties)
    assert one_token([3.0, 2.51], params, recent=(0, 0, 0)) == token


def test_repeat_penalty_pushes_negative_logits_down() -> None:
    assert one_token([-1.0, -1.5], replace(GREEDY, repeat_penalty=2.0), recent=(0,)) == 1


def test_bias_comes_before_penalties() -> None:
    params = replace(GREEDY, repeat_penalty=2.0, logit_bias=((0, 4.0),))
    assert one_token([-1.0, 1.6], params, recent=(0,)) == 1


@pytest.mark.parametrize(("top_p", "survivors"), [(0.5, {0}), (0.51, {0, 1}), (0.76, {0, 1, 2})])
def test_top_p_keeps_the_smallest_set(top_p: float, survivors: set[int]) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    rows = [Row(logits, replace(PLAIN, top_p=top_p), position=i) for i in range(300)]
    assert set(native_tokens(rows)) == survivors


def test_top_p_stops_when_the_share_is_reached_exactly() -> None:
    rows = [Row(np.ones(4, np.float32), replace(PLAIN, top_p=0.5), position=i) for i in range(99)]
    assert set(native_tokens(rows)) == {0, 1}


@pytest.mark.parametrize("min_p", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
def test_min_p_bound_is_exact(min_p: float) -> None:
    least = math.log(min_p)
    nearest = np.float32(least)
    inside = nearest if float(nearest) >= least else np.nextafter(nearest, np.float32(0))
    outside = np.nextafter(inside, np.float32(-9))
    params = replace(PLAIN, min_p=min_p)
    logits = np.array([0, outside, inside], np.float32)
    rows = [Row(logits, params, position=i) for i in range(200)]
    assert set(native_tokens(rows)) == {0, 2}


def test_top_k_keeps_the_lowest_of_equal_ids() -> None:
    rows = [Row(np.ones(500, np.float32), replace(PLAIN, top_k=3), position=i) for i in range(99)]
    assert set(native_tokens(rows)) == {0, 1, 2}


def test_logits_are_left_alone_and_may_be_rows_of_a_wider_array() -> None:
    wide = np.stack([normal(i, 96) for i in range(4)])
    before = wide.copy()
    params = _native.SamplerParams(1.0, 5, 0.9, 0.1, 1.2, 0.1, 0.1, 3)
    recent = [np.array([1, 2], np.int32)] * 4
    arguments = ([params] * 4, [0] * 4, [0] * 4, recent, [None] * 4, ISAS[-1])
    wide.flags.writeable = False
    tokens = _native.sample(wide[:, :70], *arguments)
    assert tokens == _native.sample(before[:, :70].copy(), *arguments)
    assert (wide == before).all()


def test_noise_is_its_definition() -> None:
    rng = np.random.default_rng(2)
    for _ in range(1000):
        seed, position = int(rng.integers(0, 2**63)) * 2, int(rng.integers(0, 2**40))
        choice, token_id = int(rng.integers(0, 2**32)), int(rng.integers(0, 2**22))
        expected = python_gumbel(seed, choice, position, token_id)
        actual = _native.gumbel(seed, choice, position, token_id)
        assert actual == pytest.approx(expected, rel=1e-14, abs=1e-15)


def sample_two_rows(**changes: Any) -> list[int]:
    nothing = np.zeros(0, np.int32)
    arguments: dict[str, Any] = {
        "logits": np.zeros((2, 40), np.float32),
        "params": [_native.SamplerParams(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0)] * 2,
        "choices": [0, 0],
        "positions": [0, 1],
        "penalty_tokens": [nothing, nothing],
        "biases": [None, None],
        "isa": "scalar",
    }
    return _native.sample(**(arguments | changes))


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": np.zeros((2, 0), np.float32)}, "vocabulary of 0 "),
        ({"logits": np.zeros((2, 40), np.float32)[:, ::2]}, "2 floats apart"),
        ({"params": []}, "2 rows of logits, but 0 params"),
        ({"choices": [0]}, "2 rows of logits, but 1 choices"),
        ({"positions": [0] * 3}, "2 rows of logits, but 3 positions"),
        ({"penalty_tokens": []}, "2 rows of logits, but 0 penalty_tokens"),
        ({"biases": [None]}, "2 rows of logits, but 1 biases"),
        ({"masks": [None]}, "2 rows of logits, but 1 masks"),
        ({"penalty_tokens": [ids(40), ids()]}, "penalty token 40 is outside a vocabulary of 40"),
        ({"penalty_tokens": [ids(-1), ids()]}, "penalty token -1 "),
        ({"biases": [(ids(40), np.ones(1, np.float32)), None]}, "bias id 40 "),
        ({"biases": [(ids(1), np.ones(3, np.float32)), None]}, "1 bias ids, but 3 bias values"),
        ({"masks": [np.ones(1, np.uint32), None]}, "mask of 2 words, not 1"),
        ({"masks": [np.zeros(2, np.uint32), None]}, "allows no token"),
        ({"masks": [np.array([0, 2**8], np.uint32), None]}, "allows no token"),
        ({"isa": "abacus"}, "abacus"),
    ],
)
def test_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_two_rows(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("min_p", 1.5),
        ("repeat_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: float) -> None:
    good: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
    }
    good |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0}
    with pytest.raises(ValueError, match=name):
        _native.SamplerParams(**(good | {name: value}))
