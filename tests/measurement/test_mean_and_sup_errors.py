"""EAM and the largest error against loops, simulated coverage, and what a sample can and cannot say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import ErrorTotals, mean_error, sup_error


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 10**6))
def test_batches_with_padding_add_up(sizes, seed):
    rng = np.random.default_rng(seed)
    f, T = rng.standard_normal((2, sum(sizes) + 2, 3, 2))
    mask = rng.random(f.shape[:2]) < 0.7
    mask[:2, 0] = True
    f[~mask] = np.nan
    norms = [np.sqrt(((f[i, t] - T[i, t]) ** 2).sum()) for i, t in np.argwhere(mask)]
    total, start = ErrorTotals.of(f[:2], T[:2], mask[:2]), 2
    for size in sizes:
        total = ErrorTotals.of(*(v[start : start + size] for v in (f, T, mask))) + total
        start += size
    ds, whole = total.statistics(), mean_error(f, T, mask)
    assert float(ds.eam) == pytest.approx(np.mean(norms), rel=1e-12)
    assert float(ds.largest) == max(norms)
    for name in whole:
        assert float(ds[name]) == pytest.approx(float(whole[name]), rel=1e-10), name


def test_exhaustive_and_sampled_errors_say_which_they_are():
    f, T = np.arange(8.0), np.arange(8.0) + np.array([0, 0, 0.5, 0, 0, 0, -0.25, 0])
    ds = sup_error(f, T, exhaustive=True)
    assert float(ds.largest) == 0.5
    assert (ds.largest.claim, "exceedance" in ds, "all 8 inputs" in ds.largest.long_name) == ("exact", False, True)
    sampled = sup_error(f, T, exhaustive=False)
    assert (sampled.largest.claim, "lower bound" in sampled.largest.long_name) == ("bound", True)
    assert float(sampled.exceedance) == pytest.approx(1 - 0.05 ** (1 / 8), rel=1e-12)
    whole = ErrorTotals.of(f, T).statistics(exhaustive=True)
    assert (whole.eam.claim, "eam_low" in whole, float(whole.eam)) == ("exact", False, 0.09375)
    assert float(sampled.largest) >= float(mean_error(f, T).eam)


def test_the_share_above_the_largest_seen_is_covered():
    """Errors uniform in [0, 1]: the share above the largest of n is 1 - max, at most `exceedance` in 80 % of samples, exactly."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(2000):
        e = rng.random(6)
        ds_limit = 1 - 0.2 ** (1 / 6)
        hits += 1 - e.max() <= ds_limit
    assert float(sup_error(e, 0 * e, exhaustive=False, level=0.8).exceedance) == pytest.approx(ds_limit, rel=1e-12)
    assert abs(hits / 2000 - 0.8) < 4 * np.sqrt(0.16 / 2000)


@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
def test_intervals_cover(interval):
    rng, hits = np.random.default_rng(1), 0
    for k in range(200):
        x = rng.exponential(size=40)
        ds = mean_error(x, 0 * x, interval=interval, level=0.9, resamples=200, seed=k)
        hits += float(ds.eam_low) <= 1 <= float(ds.eam_high)
    assert abs(hits / 200 - 0.88) < 0.07  # skewed errors of 40 cases: a little below 0.9 for both


def test_the_bootstrap_resamples_cases_and_keeps_its_seed():
    rng = np.random.default_rng(2)
    level = rng.standard_normal((30, 1, 1))
    f = np.repeat(level, 50, axis=1)
    one, two = (mean_error(f, 0 * f, interval="bootstrap", seed=3) for _ in range(2))
    assert float(one.eam_low) == float(two.eam_low) != float(mean_error(f, 0 * f, interval="bootstrap", seed=4).eam_low)
    assert float(one.eam_error) == pytest.approx(abs(level).std(ddof=1) / np.sqrt(30), rel=0.1)
    assert (one.attrs["interval"], one.attrs["seed"]) == ("bootstrap", 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: mean_error([1.0, 2.0], [1.0]), ArgumentError, "not broadcast"),
        (lambda: mean_error([1.0, np.nan], [1.0, 1.0]), DataError, "NaN"),
        (lambda: mean_error([1.0, np.inf], [1.0, np.inf]), DataError, "infinite"),
        (lambda: mean_error([], []), DataError, "no errors"),
        (lambda: sup_error([], [], exhaustive=True), DataError, "no errors"),
        (lambda: sup_error([1.0], [1.0], exhaustive="all"), ArgumentError, "True"),
        (lambda: mean_error([1.0], [1.0], mask=[1]), ArgumentError, "positions"),
        (lambda: mean_error([1.0], [1.0], interval="t"), ArgumentError, "bootstrap"),
        (lambda: mean_error([1.0], [1.0], interval="bootstrap"), DataError, "two"),
        (lambda: mean_error([1.0], [1.0], level=0), ArgumentError, "between 0 and 1"),
        (lambda: mean_error([1.0, 2.0], [1.0, 1.0], interval="bootstrap", resamples=5), ArgumentError, "at least 100"),
        (lambda: mean_error(np.ones((2, 2, 2, 2)), np.ones((2, 2, 2, 2))), ArgumentError, "length"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
