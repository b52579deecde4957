"""Barron's rate and constants by quadrature and by networks that are built; polynomial activations by rank and by Chebyshev."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog

from oplens.theory import barron, barron_cosines, barron_gaussian, barron_units, polynomial_span


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_constant_of_a_gaussian_by_radial_quadrature(n, scale):
    """C = int norm(w) N(w; 0, I/s^2) dw over shells of radius rho."""
    area = 2 * math.pi ** (n / 2) / math.gamma(n / 2)

    def shell(rho):
        return area * rho**n * (scale / math.sqrt(2 * math.pi)) ** n * math.exp(-((rho * scale) ** 2) / 2)

    assert barron_gaussian(n, scale).value == pytest.approx(
        quad(shell, 0, 40 / scale, epsabs=0, epsrel=1e-11, limit=300)[0], rel=1e-9
    )


def test_constant_of_a_gaussian_in_one_dimension_from_its_transform():
    """F(w) = (1/2 pi) int f exp(-i w x) dx, both integrals by quadrature, f alone given."""
    x = np.linspace(-12, 12, 241)
    nodes, weights = np.polynomial.legendre.leggauss(80)
    w = 5 * (nodes + 1)
    transform = (np.exp(-(x**2) / 2) * np.cos(w[:, None] * x)).sum(1) * (x[1] - x[0]) / (2 * math.pi)
    moment = 2 * 5 * (weights * w * np.abs(transform)).sum()
    assert barron_gaussian(1, 1.0).value == pytest.approx(moment, rel=1e-9)


def test_large_dimensions_neither_overflow_nor_lose_digits():
    assert barron_gaussian(10**6, 1.0).value == pytest.approx(math.sqrt(10**6 - 0.5), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 9)), min_size=1, max_size=6), st.integers(0, 10**6))
def test_constant_of_cosines_bounds_the_slope_and_is_attained(terms, seed):
    a, w = [x for x, _ in terms], [y for _, y in terms]
    C = barron_cosines(a, w).value
    assert pytest.approx(sum(abs(x) * y for x, y in terms), rel=1e-12) == C
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, len(terms))
    x = np.linspace(-3, 3, 400)
    slope = -sum(p * q * np.sin(q * x + b) for (p, q), b in zip(terms, phases, strict=True))
    assert np.abs(slope).max() <= C * (1 + 1e-12)
    aligned = [math.pi / 2 * (1 if p < 0 else -1) for p in a]  # all slopes at their largest at x = 0
    assert -sum(p * q * math.sin(b) for p, q, b in zip(a, w, aligned, strict=True)) == pytest.approx(
        C, rel=1e-12, abs=1e-300
    )


def greedy_steps(x, f, units):
    """Root-mean-square errors of m steps and a constant f(0), chosen one by one and refitted: an upper bound of the best."""
    steps = (x[:, None] > (x[:-1] + x[1:])[None] / 2).astype(float)
    residual, chosen, errors = f.copy(), [], []
    for _ in range(units):
        best = (
            np.abs((steps - steps.mean(0)).T @ residual).argmax() if not chosen else np.abs(steps.T @ residual).argmax()
        )
        chosen.append(int(best))
        basis = steps[:, chosen]
        residual = f - basis @ np.linalg.lstsq(basis, f, rcond=None)[0]
        errors.append(np.sqrt((residual**2).mean()))
    return errors


@pytest.mark.parametrize(
    ("name", "function", "constant"),
    [
        ("gaussian", lambda x: np.exp(-(x**2) / 2), barron_gaussian(1, 1.0).value),
        ("narrow gaussian", lambda x: np.exp(-(x**2) / 0.02), barron_gaussian(1, 0.1).value),
        ("cosine", lambda x: np.cos(7 * x), barron_cosines([1.0], [7.0]).value),
        ("cosines", lambda x: np.cos(3 * x + 1) - 0.5 * np.cos(11 * x), barron_cosines([1.0, -0.5], [3.0, 11.0]).value),
    ],
)
def test_networks_that_are_built_are_within_the_rate(name, function, constant):
    x = np.linspace(-1, 1, 301)
    f = function(x) - function(np.zeros(1))[0]
    errors = greedy_steps(x, f, 24)
    for m, error in enumerate(errors, start=1):
        bound = barron(constant, 1.0, m)
        assert error <= bound.value, (name, m)
        assert bound["relu_units"] == 2 * m
    assert errors[0] > 0.02  # the targets are not trivial


def test_the_mean_over_random_networks_is_the_proof_itself():
    """cos(w.x) - 1 in two dimensions as a mean of 2 r C times random signed steps: m of them err by 2 r C/sqrt(m) at most, in mean square."""
    rng, r, m, trials = np.random.default_rng(0), 1.0, 16, 400
    w = np.array([3.0, -2.0])
    C = barron_cosines([1.0], [float(np.linalg.norm(w))]).value
    x = rng.standard_normal((200, 2))
    x *= (r * rng.uniform(0, 1, (200, 1)) ** 0.5) / np.linalg.norm(x, axis=1, keepdims=True)
    u, top = x @ w, float(np.linalg.norm(w)) * r
    f = np.cos(u) - 1
    t = rng.uniform(0, top, (trials, m))  # cos(u) - 1 = -int_0^top sin(t) ([u > t] + [-u > t]) dt
    side = rng.choice([-1.0, 1.0], (trials, m))
    values = -np.sin(t) * 2 * top
    networks = (values[..., None] * (side[..., None] * u > t[..., None])).mean(1)
    squared = ((networks - f) ** 2).mean(1)
    assert squared.mean() + 4 * squared.std() / math.sqrt(trials) <= barron(C, r, m).value ** 2
    assert abs((networks.mean(0) - f).mean()) < 4 * np.sqrt(squared.mean() / trials)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_units_and_error_invert_each_other(C, r, eps):
    m = barron_units(C, r, eps).value
    assert barron(C, r, m).value <= eps * (1 + 1e-12)
    assert m == 1 or barron(C, r, m - 1).value > eps * (1 - 1e-12)
    assert barron_units(C, r, eps)["relu_units"] == 2 * m


def test_a_bounded_derivative_does_not_bound_the_constant():
    """Triangle waves have slope 1; the constants of their Fourier sums, 4/(pi odd), grow without end."""
    constants = []
    for terms in (10, 100, 1000):
        odd = np.arange(1, 2 * terms, 2)
        constants.append(barron_cosines((4 / (math.pi * odd**2)).tolist(), odd.astype(float).tolist()).value)
    assert constants[0] == pytest.approx(4 / math.pi * sum(1 / k for k in range(1, 20, 2)))
    assert np.diff(constants) == pytest.approx(2 / math.pi * math.log(10), rel=1e-2)


@pytest.mark.parametrize(
    ("n", "degree", "depth"), [(1, 2, 1), (1, 3, 1), (2, 2, 1), (2, 3, 1), (3, 2, 1), (1, 2, 2), (2, 2, 2)]
)
def test_wide_polynomial_networks_span_no_more_than_claimed(n, degree, depth):
    """Rank of the outputs of 200 random units on 200 points: exactly the dimension claimed, at any width above it."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (200, n))
    hidden = x
    for _ in range(depth):
        units = rng.standard_normal((hidden.shape[1], 200)) / math.sqrt(hidden.shape[1])
        hidden = (hidden @ units + rng.standard_normal(200)) ** degree
        hidden = hidden / np.abs(hidden).max(0)
    bound = polynomial_span(n, degree, depth)
    assert np.linalg.matrix_rank(hidden, tol=1e-9) == bound.value == math.comb(n + degree**depth, n)


@pytest.mark.parametrize(("degree", "depth"), [(1, 1), (2, 1), (3, 1), (2, 2), (5, 1)])
def test_the_target_that_is_missed_by_linear_programming(degree, depth):
    """Best sup approximation of x^(K+1) by polynomials of degree K on Chebyshev points, which hold the extremes."""
    bound = polynomial_span(1, degree, depth)
    K = bound["degree"]
    x = np.cos(np.pi * np.arange(4 * (K + 1) + 1) / (4 * (K + 1)))
    basis = np.polynomial.chebyshev.chebvander(x, K)
    one, y = np.ones((len(x), 1)), x ** (K + 1)
    A, b = np.block([[basis, -one], [-basis, -one]]), np.concatenate([y, -y])
    found = linprog(np.r_[np.zeros(K + 1), 1.0], A_ub=A, b_ub=b, bounds=[(None, None)] * (K + 1) + [(0, None)])
    assert found.fun == pytest.approx(bound["distance"], rel=1e-7)


@pytest.mark.parametrize("degree", [1, 2, 4, 9])
def test_relus_leave_every_such_space_and_powers_do_not(degree):
    x = np.linspace(-1, 1, 60)
    shifts = x[1::3]
    relus = np.maximum(x[:, None] - shifts, 0)
    powers = (x[:, None] - shifts) ** degree
    dimension = polynomial_span(1, degree).value
    assert np.linalg.matrix_rank(powers, tol=1e-9) == dimension < np.linalg.matrix_rank(relus) == 20
