import math

import pytest

from blockdraft.config import RopeConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.rope import attention_factor, inverse_frequencies


def test_plain_frequencies_are_a_geometric_series() -> None:
    assert inverse_frequencies(RopeConfig(theta=10_000.0, dims=8)) == pytest.approx(
        (1.0, 0.1, 0.01, 0.001), rel=1e-14
    )


def test_freq_factors_divide() -> None:
    rope = RopeConfig(theta=10_000.0, dims=4, freq_factors=(2.0, 5.0))
    assert inverse_frequencies(rope) == pytest.approx((0.5, 0.002), rel=1e-14)


def test_linear_stretches_every_pair() -> None:
    rope = RopeConfig(theta=10_000.0, dims=4, scaling="linear", factor=4.0)
    assert inverse_frequencies(rope) == pytest.approx((0.25, 0.0025), rel=1e-14)
    assert attention_factor(rope) == 1.0


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    rope = RopeConfig(theta=10_000.0, dims=64, scaling="yarn", factor=4.0, original_context=2048)
    plain = inverse_frequencies(RopeConfig(theta=10_000.0, dims=64))
    ratios = [a / b for a, b in zip(inverse_frequencies(rope), plain, strict=True)]
    # Pairs that turn 32 and 1 times in 2,048 positions: 8.06 and 20.1, rounded outwards.
    assert ratios[:9] == [1.0] * 9
    assert ratios[8] > ratios[9] > ratios[20] > ratios[21]
    assert ratios[21:] == pytest.approx([0.25] * 11, rel=1e-14)


def test_yarn_attention_factor_multiplies_the_configured_one() -> None:
    rope = RopeConfig(
        theta=10_000.0,
        dims=64,
        scaling="yarn",
        factor=4.0,
        original_context=2048,
        attention_factor=0.5,
    )
    assert attention_factor(rope) == pytest.approx(0.5 * (0.1 * math.log(4) + 1))


def test_llama3_blends_between_wavelengths() -> None:
    rope = RopeConfig(
        theta=500_000.0, dims=128, scaling="llama3", factor=8.0, original_context=8192
    )
    plain = inverse_frequencies(RopeConfig(theta=500_000.0, dims=128))
    scaled = inverse_frequencies(rope)
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before


def test_unknown_scaling_is_refused() -> None:
    with pytest.raises(ConfigError, match="rope scaling is 'longrope'"):
        inverse_frequencies(RopeConfig(theta=10_000.0, dims=8, scaling="longrope"))


def test_wrong_number_of_factors_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 frequency factors; 8 rotated dimensions need 4"):
        inverse_frequencies(RopeConfig(theta=10_000.0, dims=8, freq_factors=(1.0,) * 3))
