"""The ratio estimator's error against its textbook formula, and its coverage for cases of unequal size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from oplens.measurement.ratios import RatioTotals


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 4)), max_size=5), min_size=1, max_size=5))
def test_parts_add_up(parts):
    flat = [pair for part in parts for pair in part]
    s, n = (np.array([pair[k] for pair in flat], float) for k in (0, 1))
    s = np.where(n > 0, s, 0)
    joined = sum(
        (RatioTotals.of([p[0] if p[1] else 0.0 for p in part], [p[1] for p in part]) for part in parts),
        RatioTotals.of([], []),
    )
    cases = (n > 0).sum()
    if not cases:
        assert np.isnan(joined.mean)
        return
    r = s.sum() / n.sum()
    np.testing.assert_allclose(joined.mean, r, rtol=1e-12, atol=1e-12)
    if cases < 2:
        assert np.isnan(joined.error)
        return
    K = n.sum() ** 2 / (n**2).sum()
    error = np.sqrt(K / (K - 1) * ((s - r * n) ** 2).sum()) / n.sum()
    np.testing.assert_allclose(joined.effective_cases, K, rtol=1e-12)
    half = t.ppf(0.975, K - 1) * error
    np.testing.assert_allclose(joined.interval(0.95), [r - half, r + half], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(joined.error, error, rtol=1e-8, atol=1e-12)


def test_cases_of_one_size_have_the_textbooks_error():
    s = np.array([3.0, 1.0, 7.0, 4.0, 2.0])
    found = RatioTotals.of(s, np.full(5, 4))
    assert found.effective_cases == 5
    np.testing.assert_allclose(found.error, s.std(ddof=1) / 4 / np.sqrt(5), rtol=1e-12)
    half = t.ppf(0.9, 4) * s.std(ddof=1) / 4 / np.sqrt(5)
    np.testing.assert_allclose(found.interval(0.8), s.mean() / 4 + half * np.array([-1, 1]), rtol=1e-12)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_intervals_cover_where_some_cases_are_much_longer(level):
    """Lengths spread by e^1.5, rows of a case independent or sharing a level; as many degrees of freedom as cases would cover 85 % and 75 %."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(500):
        n = np.maximum(1, 20 * np.exp(1.5 * rng.standard_normal(12))).round()
        s = level * n * rng.standard_normal(12) + np.sqrt(n) * rng.standard_normal(12)
        low, high = RatioTotals.of(s, n).interval(0.95)
        hits += low <= 0 <= high
    assert 0.92 < hits / 500 < 0.99


def test_one_case_beside_dust_has_hardly_any_interval():
    low, high = RatioTotals.of([5.0, 0.0], [1e9, 1e-9]).interval(0.95)
    assert np.isfinite([low, high]).all()
    one = RatioTotals.of([5.0], [7.0])
    assert np.isnan([one.error, *one.interval(0.9)]).all()


def test_intervals_cover_with_cases_of_unequal_size():
    """Rows of one case share a level of spread 1: counting rows as independent would cover far less."""
    rng, hits, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        n = rng.integers(1, 20, 25)
        s = n * rng.standard_normal(25) + np.sqrt(n) * rng.standard_normal(25)
        low, high = RatioTotals.of(s, n).interval(0.9)
        hits += low <= 0 <= high
        naive += abs(s.sum() / n.sum()) < 1.645 * np.sqrt(2 / n.sum())
    assert abs(hits / 400 - 0.9) < 0.06
    assert naive / 400 < 0.6
