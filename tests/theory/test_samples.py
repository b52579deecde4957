"""Sample complexity against exact probabilities: every sample of a small problem enumerated."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import binom

from oplens.theory import generalisation_gap, sample_complexity, sampled_maximum, vc_sample_complexity


def samples_and_probabilities(N, p):
    """All counts of N draws from the cells of distribution p, and their multinomial probabilities."""
    k = len(p)
    bars = np.array(list(itertools.combinations(range(N + k - 1), k - 1)))
    edges = np.hstack([-np.ones((len(bars), 1), int), bars, np.full((len(bars), 1), N + k - 1)])
    counts = np.diff(edges, axis=1) - 1
    log = gammaln(N + 1) - gammaln(counts + 1).sum(1) + (counts * np.log(p)).sum(1)
    return counts, np.exp(log)


def failing(losses, N, p, error):
    """Exact probability that some model's training and true error differ by more than `error`."""
    counts, probability = samples_and_probabilities(N, p)
    gap = np.abs(counts @ losses.T / N - losses @ p).max(1)
    assert probability.sum() == pytest.approx(1)
    return probability[gap > error + 1e-12].sum()


@pytest.mark.parametrize(("error", "failure"), [(0.25, 0.1), (0.3, 0.05), (0.4, 0.5)])
@pytest.mark.parametrize("p", [(0.25, 0.25, 0.25, 0.25), (0.5, 0.3, 0.15, 0.05)])
def test_the_samples_suffice_for_every_table_on_four_inputs(error, failure, p):
    losses = np.array(list(itertools.product((0.0, 1.0), repeat=4)))  # 2^4 models, the label 0: a family of 4 bits
    N = sample_complexity(error, failure, bits=4).value
    assert failing(losses, N, np.array(p), error) <= failure
    few = max(1, N // 12)
    assert failing(losses, few, np.array(p), error) > failure  # the number is not slack without end
    assert generalisation_gap(N, failure, bits=4).value <= error
    assert generalisation_gap(N - 1, failure, bits=4).value > error * (1 - 1e-9)


@pytest.mark.parametrize(("error", "failure"), [(0.2, 0.1), (0.3, 0.01)])
def test_models_that_fit_the_samples_are_good_in_the_realisable_case(error, failure):
    losses = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    p = np.array([0.4, 0.3, 0.2, 0.1])
    N = sample_complexity(error, failure, bits=4, realisable=True).value
    counts, probability = samples_and_probabilities(N, p)
    bad = losses[losses @ p > error]
    deceived = (counts @ bad.T == 0).any(1)
    assert 0 < probability[deceived].sum() <= failure
    assert sample_complexity(error, failure, bits=4).value > N


def test_one_model_is_the_binomial_tail():
    for error, failure in ((0.1, 0.05), (0.05, 0.3)):
        N = sample_complexity(error, failure, bits=0).value
        for q in (0.5, 0.2, 0.01):
            tail = binom.sf(math.floor(N * (q + error) + 1e-9), N, q) + binom.cdf(
                math.ceil(N * (q - error) - 1e-9) - 1, N, q
            )
            assert tail <= failure


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 0.999), st.floats(1e-6, 0.999), st.integers(0, 10**6))
def test_sample_complexity_is_the_least_number_that_hoeffding_and_the_union_allow(error, failure, bits):
    def log_failure(N):
        return math.log(2) * (bits + 1) - 2 * N * error**2

    N = sample_complexity(error, failure, bits).value
    assert log_failure(N) <= math.log(failure) + 1e-6
    assert log_failure(N - 1.001) > math.log(failure) - 1e-6
    R = sample_complexity(error, failure, bits, realisable=True).value
    assert bits * math.log(2) - R * error <= math.log(failure) + 1e-6
    assert bits * math.log(2) - (R - 1.001) * error > math.log(failure) - 1e-6


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 0.9), st.floats(1e-6, 0.9), st.integers(1, 1000))
def test_vc_sample_complexity_holds_from_its_number_on_and_not_just_before(error, failure, D):
    def log_bound(N):
        return math.log(4) + D * math.log(2 * math.e * N / D) - error**2 * N / 8

    N = vc_sample_complexity(error, failure, D).value
    assert all(log_bound(M) <= math.log(failure) + 1e-9 for M in (N, N + 1, 2 * N, 100 * N))
    assert log_bound(N - 1) > math.log(failure) - 1e-9


def test_thresholds_on_a_line_agree_long_before_their_vc_bound():
    """VC dimension 1, uniform inputs on 200 cells, label 0: the gap is Kolmogorov's statistic, simulated."""
    error, failure = 0.3, 0.1
    N = vc_sample_complexity(error, failure, 1).value
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (300, N))
    empirical = (x[:, :, None] <= np.arange(0, 200, 10)).mean(1)
    gap = np.abs(empirical - (np.arange(0, 200, 10) + 1) / 200).max(1)
    assert (gap > error).mean() <= failure
    # the growth function behind it, counted: N points have N + 1 threshold labellings, Sauer's bound for D = 1
    for points in (1, 2, 5, 9):
        labellings = {tuple(np.arange(points) < t) for t in range(points + 1)}
        assert len(labellings) == points + 1 <= 2 * math.e * points


@pytest.mark.parametrize("failure", [0.05, 0.5])
@pytest.mark.parametrize("N", [1, 7, 100])
def test_a_sampled_maximum_is_exceeded_on_that_fraction(N, failure):
    """Errors uniform on [0, 1]: the fraction above the largest of N is 1 - max, exactly Beta(1, N)."""
    fraction = sampled_maximum(N, failure).value
    assert (1 - fraction) ** N == pytest.approx(failure, rel=1e-12)
    above = 1 - np.random.default_rng(1).uniform(size=(20_000, N)).max(1)
    rate = (above > fraction).mean()
    assert abs(rate - failure) < 4 * math.sqrt(failure * (1 - failure) / 20_000)


def test_a_finite_table_sampled_with_ties_fails_no_more_often():
    """Ten inputs with errors 0..9, seven draws: probability that more than the fraction lies above the maximum, counted."""
    for failure in (0.05, 0.3):
        fraction = sampled_maximum(7, failure).value
        failing_chance = sum(
            ((m + 1) / 10) ** 7 - (m / 10) ** 7 for m in range(10) if (9 - m) / 10 > fraction
        )  # the maximum is m
        assert failing_chance <= failure
