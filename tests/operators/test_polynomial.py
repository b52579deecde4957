"""The readout's expansion against forty digits, numpy's Hermite polynomials and quadrature."""

import math

import mpmath
import numpy as np
import pytest
import torch
from numpy.polynomial import hermite_e

from oplens.errors import ArgumentError
from oplens.operators.polynomial import Expansion, gelu, gelu_coefficients, normal_cdf

CENTRES = [0.0, 0.3, -0.7, 1.5, -2.0, 5.0, -9.0, 12.0, -25.0]
VARIANCES = [0.0, 1e-12, 1e-4, 0.3, 1.0, 4.0, 400.0]


def gelu_derivative(x, k):
    """k-th derivative of x Phi(x) = x Phi^(k) + k Phi^(k-1), with Phi^(n) = (-1)^(n-1) He_(n-1) phi, at mpmath's precision."""

    def phi(n):
        if n == 0:
            return mpmath.ncdf(x)
        he = [mpmath.mpf(1), x]
        for i in range(1, n):
            he.append(x * he[i] - i * he[i - 1])
        return (-1) ** (n - 1) * he[n - 1] * mpmath.npdf(x)

    return x * phi(k) + (k * phi(k - 1) if k else 0)


def coefficient(m, v, k):
    """E[g^(k)(m + s X)] / k! by quadrature at 20 digits: no closed form, no Hermite polynomial of q."""
    m, s = mpmath.mpf(m), mpmath.sqrt(mpmath.mpf(v))
    if s == 0:
        return gelu_derivative(m, k) / mpmath.factorial(k)
    # In the variable y = m + s X the readout's structure sits at 0 and the Gaussian's at m; both are given as nodes.
    nodes = sorted({-40, -8, -3, 0, 3, 8, 40, *(m + s * i for i in (-40, -20, -8, -4, -2, 0, 2, 4, 8, 20, 40))})
    value = mpmath.quad(lambda y: gelu_derivative(y, k) * mpmath.npdf(y, m, s), nodes)
    return value / mpmath.factorial(k)


@pytest.mark.parametrize("m", CENTRES[:6])
@pytest.mark.parametrize("v", [0.0, 0.3, 4.0])
def test_coefficients_equal_the_mean_derivative_by_quadrature(m, v):
    got = gelu_coefficients(torch.tensor([m], dtype=torch.float64), torch.tensor([v], dtype=torch.float64), 6)[0]
    for k in (0, 1, 2, 3, 6):
        with mpmath.workdps(20):
            expected = float(coefficient(m, v, k))
        # Where a coefficient vanishes (z = -2 at order 3) only the rounding of what it is the difference of is left.
        assert abs(got[k].item() - expected) <= 1e-13 * abs(expected) + 1e-16 * math.exp(-m * m / 2 / (1 + v)), k


def closed_form(m, v, k):
    """E[g^(k)(m + s X)] / k!: g = y Phi(y) smoothed by a Gaussian is m Phi(q) + v phi(q) / u, differentiated k times in m."""
    m, v = mpmath.mpf(m), mpmath.mpf(v)
    u = mpmath.sqrt(1 + v)

    def smooth(x):
        return x * mpmath.ncdf(x / u) + v / u * mpmath.npdf(x / u)

    return mpmath.taylor(smooth, m, k)[k]


@pytest.mark.parametrize("m", CENTRES)
@pytest.mark.parametrize("v", VARIANCES)
def test_coefficients_to_order_20(m, v):
    got = gelu_coefficients(torch.tensor([m], dtype=torch.float64), torch.tensor([v], dtype=torch.float64), 20)[0]
    with mpmath.workdps(120):
        m_exact, v_exact = mpmath.mpf(m), mpmath.mpf(v)
        u = mpmath.sqrt(1 + v_exact)
        q = m_exact / u
        for k in range(21):
            # k-th derivative of the smoothed readout in m: u times a GELU of q with weight 1 on He and 1/u^2 on the rest
            expected = _smoothed_derivative(q, u, v_exact, k) / mpmath.factorial(k)
            scale = _largest_summand(q, u, v_exact, k) / mpmath.factorial(k)
            # exp(-q^2 / 2) turns the rounding of q into q^2 eps
            digits = 1e-13 * max(1.0, float(q * q) / 300)
            assert abs(got[k].item() - expected) <= digits * max(abs(expected), 0.03 * scale) + 1e-290, (k, expected)


def _summands(q, u, v, k):
    """The k-th derivative in m of m Phi(m/u) + (v/u) phi(m/u), by Leibniz, as a list to sum."""
    he = [mpmath.mpf(1), q]
    for i in range(1, k + 2):
        he.append(q * he[i] - i * he[i - 1])

    def cdf(n):  # n-th derivative in m of Phi(m/u)
        return mpmath.ncdf(q) if n == 0 else (-1) ** (n - 1) * he[n - 1] * mpmath.npdf(q) / u**n

    density = (-1) ** k * he[k] * mpmath.npdf(q) / u**k * v / u
    return [q * u * cdf(k), k * cdf(k - 1) if k else mpmath.mpf(0), density]


def _smoothed_derivative(q, u, v, k):
    return mpmath.fsum(_summands(q, u, v, k))


def _largest_summand(q, u, v, k):
    if k == 0:
        return max(abs(x) for x in _summands(q, u, v, 0))
    # The two terms that the closed form subtracts: He_(k-2) and He_k / u^2.
    he = [mpmath.mpf(1), q]
    for i in range(1, k + 1):
        he.append(q * he[i] - i * he[i - 1])
    if k == 1:
        return max(mpmath.ncdf(q), abs(q) * mpmath.npdf(q) / u**2)
    return mpmath.npdf(q) * u ** (1 - k) * max(abs(he[k - 2]), abs(he[k]) / u**2)


def test_the_oracle_of_order_20_equals_numerical_differentiation():
    with mpmath.workdps(60):
        for m, v, k in ((0.3, 0.3, 5), (-2.0, 4.0, 7), (1.5, 1e-4, 3)):
            u = mpmath.sqrt(1 + mpmath.mpf(v))
            exact = _smoothed_derivative(mpmath.mpf(m) / u, u, mpmath.mpf(v), k) / mpmath.factorial(k)
            assert abs(exact - closed_form(m, v, k)) < mpmath.mpf(10) ** -20 * abs(exact)


def test_hermite_with_vanishing_variance_is_taylor():
    m = torch.tensor(CENTRES, dtype=torch.float64)
    taylor = gelu_coefficients(m, torch.zeros_like(m), 8)
    near = gelu_coefficients(m, torch.full_like(m, 1e-18), 8)
    assert (taylor - near).abs().max() < 1e-17
    assert (gelu_coefficients(m, torch.full_like(m, 1e-3), 8) - taylor).abs().max() > 1e-5


@pytest.mark.parametrize("v", [0.0, 1e-8, 0.25, 1.0, 9.0])
def test_basis_equals_numpys_scaled_hermite_polynomials(v):
    s = math.sqrt(v)
    w = np.linspace(-6, 6, 41)
    expansion = Expansion("hermite", torch.zeros(1), torch.tensor([v], dtype=torch.float64), torch.zeros(1, 2))
    basis = expansion.basis(torch.from_numpy(w)[None, None], 12)
    assert len(basis) == 13
    for k, value in enumerate(basis):
        # s^k He_k(w / s), its coefficients scaled term by term so that s = 0 needs no division
        coefficients = hermite_e.herme2poly([0] * k + [1])
        terms = np.array([c * w**j * s ** (k - j) for j, c in enumerate(coefficients)])
        assert np.abs(value[0, 0].numpy() - terms.sum(0)).max() <= 1e-13 * np.abs(terms).sum(0).max()


def test_basis_of_low_orders_has_no_more_members_than_asked_for():
    expansion = Expansion("taylor", torch.zeros(1), torch.zeros(1), torch.zeros(1, 2))
    assert [len(expansion.basis(torch.ones(1, 1, 1), k)) for k in (0, 1, 2)] == [1, 2, 3]


def test_orthogonal_under_its_own_gaussian_and_least_squares():
    m, v, order = 0.7, 2.3, 6
    nodes, weights = hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    z = m + math.sqrt(v) * nodes
    one = torch.ones(1, dtype=torch.float64)
    expansion = Expansion.fit("hermite", order, m * one, v * one)
    basis = np.stack([b[0, 0].numpy() for b in expansion.basis(torch.from_numpy(z - m)[None, None], order)])
    gram = (basis * weights) @ basis.T
    expected = np.diag([math.factorial(k) * v**k for k in range(order + 1)])
    assert np.abs(gram - expected).max() < 1e-12 * expected.max()
    exact = np.array([float(mpmath.mpf(x) * mpmath.ncdf(x)) for x in z])
    remainder = exact - expansion.evaluate(torch.from_numpy(z)[None, None])[0, 0].numpy()
    # What is left is orthogonal to every order: that is what makes the truncation the best polynomial of its degree.
    scale = (np.abs(basis) * weights) @ np.abs(exact)
    assert (np.abs(basis * weights @ remainder) / scale).max() < 2e-9  # 40 nodes integrate GELU itself to that
    assert np.abs(remainder).max() > 1e-3


def test_evaluate_equals_the_polynomial_of_the_paper():
    z = np.linspace(-0.5, 0.5, 21)
    zero = torch.zeros(1, dtype=torch.float64)
    got = Expansion.fit("taylor", 4, zero, zero).evaluate(torch.from_numpy(z)[None, None])[0, 0].numpy()
    root = math.sqrt(2 * math.pi)
    assert np.abs(got - (z / 2 + z**2 / root - z**4 / (6 * root))).max() < 1e-16


@pytest.mark.parametrize("m", [0.0, 0.4, -1.3, 3.0, -3.0, 8.0, -8.0, 20.0])
def test_divided_difference_near_and_far_from_the_centre(m):
    steps = np.concatenate([10.0 ** np.arange(-17, 1.6, 0.25), [9.9e-4, 1.01e-3, 0.0]])
    z = np.concatenate([m + steps, m - steps])
    expansion = Expansion("hermite", torch.tensor([m], dtype=torch.float64), torch.zeros(1), torch.zeros(1, 2))
    got = expansion.divided_difference(torch.from_numpy(z)[None, None])[0, 0].numpy()
    with mpmath.workdps(60):
        for value, point in zip(got, z, strict=True):
            x, c = mpmath.mpf(point), mpmath.mpf(m)
            expected = (x * mpmath.ncdf(x) - c * mpmath.ncdf(c)) / (x - c) if x != c else gelu_derivative(c, 1)
            # of the summand Phi(z) and the sum; far in the left tail m times the other cancels to 1/m^2 of it
            scale = max(1.0, m * m / 20) * (mpmath.ncdf(x) + abs(expected))
            assert abs(value - expected) <= 1e-12 * scale, (point, value, expected)


def test_the_distribution_function_keeps_its_left_tail():
    x = np.array([-35.0, -12.0, -9.0, -6.0, -1.0, 0.0, 2.0, 9.0])
    got = normal_cdf(torch.from_numpy(x)).numpy()
    expected = np.array([float(mpmath.ncdf(v)) for v in x])
    assert (np.abs(got / expected - 1) < 1e-13).all()
    assert torch.equal(gelu(torch.from_numpy(x)), torch.from_numpy(x * got))


def test_gelu_equals_torchs():
    z = torch.linspace(-30, 30, 601, dtype=torch.float64)
    assert (gelu(z) - torch.nn.functional.gelu(z)).abs().max() < 1e-14


def test_features_do_not_mix():
    m, v = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 0.1, 3.0], dtype=torch.float64)
    whole = Expansion.fit("hermite", 5, m, v)
    z = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for h in range(3):
        single = Expansion.fit("hermite", 5, m[h : h + 1], v[h : h + 1])
        assert torch.equal(whole.coefficients[h], single.coefficients[0])
        assert torch.equal(whole.evaluate(z)[:, h], single.evaluate(z[:, h : h + 1])[:, 0])
        assert torch.equal(whole.divided_difference(z)[:, h], single.divided_difference(z[:, h : h + 1])[:, 0])


@pytest.mark.parametrize(
    ("order", "word"),
    [(0, "at least 1"), (-3, "at least 1"), (True, "whole number"), (2.0, "whole number"), ("2", "whole number")],
)
def test_orders_that_cannot_be(order, word):
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=word):
        gelu_coefficients(one, one, order)


def test_unknown_family_lists_the_known():
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="hermite, taylor"):
        Expansion.fit("chebyshov", 2, one, one)


def test_taylor_ignores_the_gaussian():
    one = torch.ones(2, dtype=torch.float64)
    expansion = Expansion.fit("taylor", 3, 5 * one, 2 * one)
    assert torch.equal(expansion.centre, 0 * one)
    assert torch.equal(expansion.variance, 0 * one)
