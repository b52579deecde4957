"""Distributions of quadratic forms against closed forms and sampling, and the bounds against margins that attain them."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, norm

from oplens.explanation.prediction.margins import Decisions, QuadraticForm


def form(slopes, curvatures):
    return QuadraticForm(np.array(slopes, dtype=float), np.array(curvatures, dtype=float))


def test_a_form_of_order_one_is_gaussian():
    levels = np.array([-3.0, -0.4, 0.0, 1.7, 6.0])
    found, error = form([0.6, 0.8], [0.0, 0.0]).above(levels)
    np.testing.assert_allclose(found, norm.sf(levels), atol=1e-11)
    assert error < 1e-8
    found, _ = form([0.6, 0.8], [0.0, 0.0]).above(levels, extra=3.0)
    np.testing.assert_allclose(found, norm.sf(levels / 2), atol=1e-11)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_equal_curvatures_are_a_chi_squared(sign):
    """0.3 sum_j (n_j^2 - 1) over 20 modes is 0.3 (chi^2_20 - 20)."""
    levels = np.array([-4.0, -1.0, 0.5, 3.0, 8.0])
    found, error = form([0.0] * 20, [0.3 * sign] * 20).above(sign * levels)
    expected = chi2.sf(levels / 0.3 + 20, 20)
    np.testing.assert_allclose(found, expected if sign > 0 else 1 - expected, atol=1e-10)
    assert error < 1e-8


def test_a_form_that_is_slow_to_invert_does_not_claim_an_error():
    found, error = form([0.0], [0.5]).above(np.array([0.3]))
    assert error == math.inf
    assert found[0] == pytest.approx(chi2.sf(1.6, 1), abs=2e-3)


def test_a_general_form_is_distributed_as_sampled():
    rng = np.random.default_rng(0)
    x = form(rng.normal(size=6), rng.normal(size=6) * 0.4)
    n = rng.normal(size=(400_000, 6))
    values = n @ x.slopes + (n**2 - 1) @ x.curvatures + 0.5 * rng.normal(size=400_000)
    levels = np.array([-4.0, -1.0, 0.0, 1.0, 3.0])
    found, _ = x.above(levels, extra=0.25)
    counted = (values[:, None] > levels).mean(0)
    assert (abs(counted - found) < 4 * np.sqrt(found * (1 - found) / 400_000)).all()
    assert abs(values.var() - 0.25 - x.variance) < 4 * (values**2).std() / math.sqrt(400_000)


def decide(mean, variance, bound, x):
    found = Decisions.of(*(np.array([v]) for v in (mean, variance, bound)), (x,))
    return tuple(float(v[0]) for v in (found.gaussian, found.corrected, found.lower, found.upper))


def test_a_margin_of_two_orders_is_known_exactly():
    x = form([0.3] * 5, [0.1] * 5)
    gaussian, corrected, lower, upper = decide(0.9, x.variance, x.variance, x)
    rng = np.random.default_rng(1)
    n = rng.normal(size=(400_000, 5))
    counted = (0.9 + n @ x.slopes + (n**2 - 1) @ x.curvatures > 0).mean()
    error = math.sqrt(counted * (1 - counted) / 400_000)
    assert abs(corrected - counted) < 4 * error
    assert abs(gaussian - counted) > 8 * error
    assert lower < counted < upper


def test_a_small_rest_is_split_off_and_no_margin_breaks_the_bound():
    """Order 1 of standard deviation 0.2, and a rest that is -d with the largest probability its variance allows."""
    x = form([0.2], [0.0])
    for mean, r in ((1.0, 0.001), (-1.0, 0.001)):
        _, _, lower, upper = decide(mean, 0.04 + r, 0.04 + r, x)
        worst = 1 - lower if mean > 0 else upper
        rng = np.random.default_rng(0)
        reached = 0.0
        for d in np.linspace(0.2, 0.9, 8):
            p = r / (r + d * d)  # two points: -d with p, d p / (1 - p) else; mean 0, variance r
            rest = np.where(rng.random(200_000) < p, -d, d * p / (1 - p))
            reached = max(reached, (abs(mean) + 0.2 * rng.normal(size=200_000) + rest <= 0).mean())
        assert reached <= worst
        d = np.linspace(0.001, 0.999, 999)
        assert worst == pytest.approx((norm.cdf((d - 1) / 0.2) + r / (r + d * d)).min(), rel=0.01)
        assert worst < 0.3 * (0.041 / (0.041 + 1.0))  # better than Cantelli's inequality for the whole margin


@pytest.mark.parametrize("mean", [1.5, -1.5])
def test_a_skewed_form_is_bounded_on_its_own_side(mean):
    """0.3 (chi^2_20 - 20) reaches down to -6 and far up: which side of zero the mean lies on matters."""
    x = form([0.0] * 20, [0.3] * 20)
    _, corrected, lower, upper = decide(mean, x.variance, x.variance, x)
    true = chi2.sf(20 - mean / 0.3, 20)
    assert corrected == pytest.approx(true, abs=1e-9)
    nearer = chi2.sf(20 - 0.98 * mean / 0.3, 20)  # at the smallest d that is tried
    assert lower == pytest.approx(nearer if mean > 0 else 0.0, abs=1e-8)
    assert upper == pytest.approx(nearer if mean < 0 else 1.0, abs=1e-8)


def test_the_whole_bound_is_attained_by_the_worst_margin():
    """M = 0 with probability p, else m / (1 - p): mean m, variance m^2 p / (1 - p), positive with probability 1 - p."""
    none = form([0.0], [0.0])
    for m, p in ((2.0, 0.1), (0.3, 0.6)):
        variance = m**2 * p / (1 - p)
        _, _, lower, upper = decide(m, 0.9 * variance, variance, none)
        assert lower == pytest.approx(1 - p)
        assert upper == 1.0
        _, _, lower, upper = decide(-m, 0.9 * variance, variance, none)
        assert lower == 0.0
        assert upper == pytest.approx(p)


def test_without_noise_the_sign_decides_and_without_either_nothing_does():
    none = form([0.0], [0.0])
    assert decide(0.5, 0.0, 0.0, none) == (1.0, 1.0, 1.0, 1.0)
    assert decide(-0.5, 0.0, 0.0, none) == (0.0, 0.0, 0.0, 0.0)
    assert decide(0.0, 0.0, 0.0, none) == (0.5, 0.5, 0.0, 1.0)


def test_a_right_decision_is_a_positive_margin_or_its_opposite():
    found = Decisions(np.array([0.8, 0.8]), np.array([0.7, 0.7]), np.array([0.6, 0.6]), np.array([0.9, 0.9]))
    right = found.right(np.array([True, False]))
    np.testing.assert_allclose([right.gaussian, right.corrected], [[0.8, 0.2], [0.7, 0.3]])
    np.testing.assert_allclose([right.lower, right.upper], [[0.6, 0.1], [0.9, 0.4]])
