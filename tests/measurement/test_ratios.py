"""The ratio estimator's error against its textbook formula, and its coverage for cases of unequal size."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

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
    error = np.sqrt(cases / (cases - 1) * ((s - r * n) ** 2).sum()) / n.sum()
    np.testing.assert_allclose(joined.error, error, rtol=1e-8, atol=1e-12)


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
