"""Power series against mpmath's numerical derivatives, repeated automatic differentiation and closed forms."""

import math

import mpmath
import numpy as np
import pytest
import torch

from oplens.errors import ArgumentError
from oplens.operators import jets

ORDER = 10
INNER = ([0.7, -1.1, 0.4, 0.25, -0.3], [-2.2, 0.9, 1.3, -0.6, 0.1], [1.4, 2.0, -0.5, 0.0, 0.8])

FUNCTIONS = {
    "exp": (jets.exp, mpmath.exp),
    "sigmoid": (jets.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x))),
    "standard_normal": (jets.standard_normal, lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
    "gelu": (jets.gelu, lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
}
POSITIVE = {
    "reciprocal": (jets.reciprocal, lambda x: 1 / x),
    "sqrt": (jets.sqrt, mpmath.sqrt),
    "rsqrt": (jets.rsqrt, lambda x: 1 / mpmath.sqrt(x)),
}


def padded(coefficients):
    """Series (ORDER + 1, cases) of the given polynomials."""
    out = torch.zeros(ORDER + 1, len(coefficients), dtype=torch.float64)
    for i, row in enumerate(coefficients):
        out[: len(row), i] = torch.tensor(row, dtype=torch.float64)
    return out


def derivatives(outer, row, digits=60):
    """Taylor coefficients of outer(polynomial) at 0 by mpmath."""
    with mpmath.workdps(digits):
        exact = [mpmath.mpf(float(c)) for c in row]
        return [float(c) for c in mpmath.taylor(lambda e: outer(mpmath.polyval(exact[::-1], e)), 0, ORDER)]


def check(found, outer, rows, tolerance=1e-13):
    for i, row in enumerate(rows):
        expected = np.array(derivatives(outer, row))
        # Relative to the coefficient, or to the size of its neighbours where it happens to be near 0.
        scale = np.maximum(np.abs(expected), 1e-3 * np.abs(expected).max())
        assert (np.abs(found[:, i].numpy() - expected) / scale).max() < tolerance


@pytest.mark.parametrize("name", FUNCTIONS)
def test_composites_equal_numerical_derivatives(name):
    ours, outer = FUNCTIONS[name]
    check(ours(padded(INNER)), outer, INNER)


@pytest.mark.parametrize("name", POSITIVE)
def test_powers_equal_numerical_derivatives(name):
    ours, outer = POSITIVE[name]
    rows = [[abs(row[0]) + 0.5, *row[1:]] for row in INNER]
    check(ours(padded(rows)), outer, rows)


@pytest.mark.parametrize("start", [-12.0, 12.0])
@pytest.mark.parametrize("name", ["sigmoid", "standard_normal", "gelu"])
def test_tails_keep_their_digits(name, start):
    ours, outer = FUNCTIONS[name]
    row = [start, 0.3, -0.1]
    found = ours(padded([row]))[:, 0].numpy()
    expected = np.array(derivatives(outer, row, digits=70))
    # Above, the value is 1 or z to the last bit; the higher coefficients are the tail's own.
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=0)


def test_a_composition_equals_repeated_automatic_differentiation():
    def composed(e):
        x = 0.4 + 1.3 * e - 0.7 * e**2
        gate = torch.sigmoid(2 * x - 0.5)
        active = x * torch.special.ndtr(x) * gate
        return active / torch.sqrt(0.3 + active**2)

    e = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, expected = composed(e), []
    for k in range(6):
        expected.append(float(value.detach()) / math.factorial(k))
        (value,) = torch.autograd.grad(value, e, create_graph=True)
    x = torch.zeros(6, dtype=torch.float64)
    x[:3] = torch.tensor([0.4, 1.3, -0.7], dtype=torch.float64)
    inner = 2 * x
    inner[0] -= 0.5
    active = jets.product(jets.gelu(x), jets.sigmoid(inner))
    square = jets.product(active, active)
    square[0] += 0.3
    found = jets.product(active, jets.rsqrt(square))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_identities_hold_at_high_order():
    """sqrt(a)^2 = a, a (1/a) = 1, rsqrt(a) sqrt(a) = 1, exp(a) exp(-a) = 1 and sigmoid(a) + sigmoid(-a) = 1 to 40 orders."""
    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.normal(size=(41, 6, 5)) * 0.5 ** np.arange(41)[:, None, None])
    positive = a.clone()
    positive[0] = 2 + a[0] ** 2
    one = torch.zeros_like(a)
    one[0] = 1

    def close(found, expected):
        assert (found - expected).abs().max() < 1e-13

    root = jets.sqrt(positive)
    close(jets.product(root, root), positive)
    close(jets.product(positive, jets.reciprocal(positive)), one)
    close(jets.product(root, jets.rsqrt(positive)), one)
    close(jets.product(jets.exp(a), jets.exp(-a)), one)
    close(jets.sigmoid(a) + jets.sigmoid(-a), one)
    close(jets.standard_normal(a) + jets.standard_normal(-a), one)


def test_products_broadcast_and_lines_are_lines():
    a = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3, 1)))
    b = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 1, 2)))
    found = jets.product(a, b)
    for n in range(4):
        expected = sum(np.multiply.outer(a[k, :, 0], b[n - k, 0, :]) for k in range(n + 1))
        np.testing.assert_allclose(found[n], expected, rtol=1e-13)
    start, end = torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.5])
    series = jets.line(start, end, 3)
    for eps in (0.0, 0.25, 1.0):
        assert torch.equal(sum(c * eps**k for k, c in enumerate(series)), start + eps * (end - start))
    with pytest.raises(ArgumentError, match=r"line\(order=0\)"):
        jets.line(start, end, 0)


@pytest.mark.parametrize("group", [1, 32])
def test_nearest_zero_is_that_of_all_polynomials(group, monkeypatch):
    monkeypatch.setattr(jets, "GROUP", group)
    rng = np.random.default_rng(3)
    coefficients = rng.normal(size=(13, 200)) * np.exp(rng.normal(size=(1, 200)))
    moduli = [np.abs(np.roots(column[::-1])).min() for column in coefficients.T]
    found = jets.nearest_zero(torch.from_numpy(coefficients))
    assert found == pytest.approx(min(moduli), rel=1e-10)
    far = np.argsort(moduli)[100:]
    assert jets.nearest_zero(torch.from_numpy(coefficients[:, far])) == pytest.approx(moduli[far[0]], rel=1e-10)
    assert jets.nearest_zero(torch.from_numpy(coefficients), within=1e-6) == 1e-6
    shifted = coefficients.astype(complex)
    shifted[0] += 1.5j
    moduli = [np.abs(np.roots(column[::-1])).min() for column in shifted.T]
    assert jets.nearest_zero(torch.from_numpy(shifted)) == pytest.approx(min(moduli), rel=1e-10)


def test_nearest_zero_without_zeros_or_without_numbers():
    constant = torch.zeros(5, 3, dtype=torch.float64)
    constant[0] = 2
    assert jets.nearest_zero(constant) == math.inf
    assert jets.nearest_zero(constant, within=3.0) == 3.0
    constant[4, 1] = math.inf
    assert jets.nearest_zero(constant) == 0.0


def test_nearest_zero_of_a_function_given_by_its_series():
    """exp(a) = -1 where a = i pi: the pole of the sigmoid, at eps = i pi / 3 for a = 3 eps."""
    series = torch.zeros(33, 1, dtype=torch.float64)
    series[1] = 3
    denominator = jets.exp(-series)
    denominator[0] += 1
    assert jets.nearest_zero(denominator) == pytest.approx(math.pi / 3, rel=1e-9)
