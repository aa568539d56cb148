"""Ratios of paired measurements."""

import pytest

from blockdraft.bench.ratios import paired_ratio, rate_ratio


class TestPairedRatio:
    def test_is_the_geometric_mean_of_the_pairs(self) -> None:
        found = paired_ratio([2.0, 8.0], [1.0, 1.0])
        assert found.ratio == pytest.approx(4.0)

    def test_one_pair_has_no_interval(self) -> None:
        found = paired_ratio([3.0], [2.0])
        assert found.ratio == pytest.approx(1.5)
        assert found.low is found.high is None
        assert found.to_text() == "1.50"

    def test_the_interval_is_students(self) -> None:
        # logarithms 0 and ln 4: mean ln 2, standard error ln 2, t 12.71
        found = paired_ratio([1.0, 4.0], [1.0, 1.0])
        assert found.low == pytest.approx(2.0 ** (1 - 12.71))
        assert found.high == pytest.approx(2.0 ** (1 + 12.71))

    def test_pairs_that_agree_leave_no_doubt(self) -> None:
        found = paired_ratio([2.0] * 5, [1.0] * 5)
        assert found.to_text() == "2.00 (2.00-2.00)"


class TestRateRatio:
    def test_is_of_all_tokens_over_all_seconds(self) -> None:
        found = rate_ratio([(10, 1.0), (30, 1.0)], [(10, 2.0), (10, 2.0)])
        assert found.ratio == pytest.approx((40 / 2) / (20 / 4))
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.ratio <= found.high

    def test_one_prompt_has_no_interval(self) -> None:
        assert rate_ratio([(4, 1.0)], [(2, 1.0)]).to_json() == {
            "ratio": 2.0,
            "low": None,
            "high": None,
        }
