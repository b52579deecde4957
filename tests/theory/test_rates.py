"""Rates of the constructions: the operators themselves, run on the functions that are hardest for them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.theory import fourier_rate, piecewise_linear_rate


def fejer_korovkin_mean(f, D, theta, nodes=4000):
    """Convolution of f(abs(t)/pi) with 1 + 2 sum rho_k cos(k t), coefficients by midpoint sums."""
    k = np.arange(D + 1)
    a = math.pi / (D + 2)
    rho = ((D + 2 - k) * np.cos(k * a) + np.sin(k * a) / np.tan(a)) / (D + 2)
    t = (np.arange(nodes) + 0.5) * math.pi / nodes
    coefficients = (f(t / math.pi) * np.cos(k[:, None] * t)).mean(1)
    weights = np.where(k == 0, 1, 2) * rho * coefficients
    return weights @ np.cos(k[:, None] * theta)


@pytest.mark.parametrize("D", [1, 2, 6, 20, 60])
def test_the_fejer_korovkin_mean_is_inside_its_rate(D):
    theta = np.linspace(0, math.pi, 501)
    x = theta / math.pi
    hard = {
        "abs": lambda x: np.abs(x - 0.5),
        "ramp": lambda x: x,
        "sawtooth": lambda x: np.abs((x * 2 * D) % 2 - 1) / (2 * D),
        "steps to both ends": lambda x: np.minimum(x, 1 - x) - 0.3 * np.minimum(x, 0.2),
    }
    bound = fourier_rate(1, 1.0, D).value
    worst = max(np.abs(f(x) - fejer_korovkin_mean(f, D, theta)).max() for f in hard.values())
    assert bound / 8 < worst <= bound
    assert bound <= math.pi / (2 * (D + 2))


def test_the_rate_in_two_dimensions_by_tensor_means():
    D = 5
    theta = np.linspace(0, math.pi, 41)
    a = math.pi / (D + 2)
    k = np.arange(D + 1)
    rho = ((D + 2 - k) * np.cos(k * a) + np.sin(k * a) / np.tan(a)) / (D + 2)
    t = (np.arange(300) + 0.5) * math.pi / 300
    kernel = np.where(k == 0, 1, 2) * rho * np.cos(theta[:, None] * k) @ np.cos(k[:, None] * t) / 300
    assert kernel.min() > 0  # a positive operator
    assert np.allclose(kernel.sum(1), 1)
    u, v = np.meshgrid(t / math.pi, t / math.pi, indexing="ij")
    p, q = np.meshgrid(theta / math.pi, theta / math.pi, indexing="ij")
    for f, norm in (
        (lambda x, y: np.abs(x - y), "l1"),
        (lambda x, y: np.hypot(x - 0.5, y - 0.5), "l2"),
        (np.maximum, "max"),
    ):
        error = np.abs(kernel @ f(u, v) @ kernel.T - f(p, q)).max()
        bound = fourier_rate(2, 1.0, D, norm)
        assert bound.value / 6 < error <= bound.value
    assert fourier_rate(2, 1.0, D)["waves"] == (11**2 + 1) // 2
    ridge = {min(kappa, tuple(-c for c in kappa)) for kappa in itertools.product(range(-D, D + 1), repeat=2)}
    assert len(ridge) == fourier_rate(2, 1.0, D)["waves"]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.floats(0, 1e3), st.integers(1, 500))
def test_fourier_rate_is_the_root_of_the_kernel_s_second_moment(n, L, D):
    root = math.sqrt((1 - math.cos(math.pi / (D + 2))) / 2)
    assert fourier_rate(n, L, D).value == pytest.approx(n * L * root, rel=1e-9)
    assert fourier_rate(n, L, D, "l2").value == pytest.approx(math.sqrt(n) * L * root, rel=1e-9)


def kuhn_interpolant(f, cells, x):
    """Linear interpolation on the Kuhn triangulation: walk from the cell's lower corner along coordinates in falling order."""
    corner = np.minimum(np.floor(x * cells), cells - 1)
    fraction = x * cells - corner
    order = np.argsort(-fraction, kind="stable")
    levels = [1.0, *fraction[order], 0.0]
    vertex, total = corner.copy(), 0.0
    for i in range(len(x) + 1):
        total += (levels[i] - levels[i + 1]) * f(vertex / cells)
        if i < len(x):
            vertex[order[i]] += 1
    return total


@pytest.mark.parametrize(("n", "reached"), [(1, 0.999), (2, 0.8), (3, 0.75), (4, 0.75), (6, 0.75)])
def test_interpolation_of_the_hardest_function_at_each_point_is_inside_its_rate(n, reached):
    """At x the hardest L-Lipschitz function is the distance from x itself, in the max norm."""
    rng, M, L = np.random.default_rng(n), 3, 2.0
    bound = piecewise_linear_rate(n, L, M)
    chains = rng.dirichlet(np.ones(n + 1), 1500)
    chains = np.vstack([chains, rng.dirichlet(np.full(n + 1, 5.0), 1500), np.full((1, n + 1), 1 / (n + 1))])
    worst = 0.0
    for weights in chains:
        inside = np.cumsum(weights[::-1])[::-1][
            1:
        ]  # coordinates of the point with these weights on the chain of vertices
        x = (inside + rng.integers(0, M, n)) / M
        error = kuhn_interpolant(lambda y, x=x: L * np.abs(y - x).max(), M, x)
        worst = max(worst, error)
        assert error <= bound.value * (1 + 1e-12)
    assert worst >= reached * bound.value
    assert bound.value <= L / M


@pytest.mark.parametrize(
    ("n", "f"),
    [(2, lambda x: abs(x[0] - x[1]) / 2), (3, max), (2, lambda x: math.sin(3 * x[0]) * math.sin(3 * x[1]) / 6), (1, lambda x: abs((8 * x[0]) % 2 - 1) / 8)],
)  # fmt: skip
def test_named_functions_of_lipschitz_constant_one(n, f):
    rng = np.random.default_rng(0)
    for M in (1, 3, 4, 7):
        worst = max(abs(kuhn_interpolant(f, M, x) - f(x)) for x in rng.uniform(0, 1, (400, n)))
        assert worst <= piecewise_linear_rate(n, 1.0, M).value + 1e-12


def test_the_sawtooth_attains_the_rate_in_one_dimension():
    """L-Lipschitz between nodes at 0: the interpolant is 0 and the error L/(2M), the bound itself."""
    M, L = 5, 3.0
    f = lambda x: L * abs(x[0] - round(x[0] * M) / M)  # noqa: E731
    middle = np.array([0.5 / M])
    assert f(middle) - kuhn_interpolant(f, M, middle) == pytest.approx(piecewise_linear_rate(1, L, M).value, rel=1e-12)


@pytest.mark.parametrize("n", range(1, 40))
def test_sizes(n):
    bound = piecewise_linear_rate(n, 1.0, 2)
    assert bound["nodes"] == 3**n
    assert 2 ** bound["extra_layers"] >= n + 1 > 2 ** (bound["extra_layers"] - 1)
