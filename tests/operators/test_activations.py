"""Readouts, their series, quotients and singularities against mpmath."""

import math

import mpmath
import pytest
import torch

from oplens.errors import ArgumentError
from oplens.operators.polynomial import ACTIVATIONS, Expansion, activation
from readout_oracles import CUBIC, READOUTS, SMOOTH

POINTS = [0.0, 1e-9, 0.3, -0.3, 1.0, -2.0, 5.0, -9.0, 12.0, -30.0, 30.0, -300.0, 300.0]


def one(x):
    return torch.tensor([x], dtype=torch.float64)


def test_the_table_holds_what_the_oracles_do():
    assert list(ACTIVATIONS) == list(READOUTS)
    assert all(name == g.name for name, g in ACTIVATIONS.items())


@pytest.mark.parametrize("name", READOUTS)
def test_values_are_relatively_accurate_in_both_tails(name):
    got = activation(name).value(torch.tensor(POINTS, dtype=torch.float64)).tolist()
    with mpmath.workdps(60):
        for z, value in zip(POINTS, got, strict=True):
            expected = READOUTS[name](mpmath.mpf(z))
            assert abs(value - expected) <= 1e-13 * max(1, z * z / 300) * abs(expected) + 1e-300, z


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("point", [0.0, 0.3, -2.0, 5.0, -9.0, 30.0])
def test_series_about_any_point(name, point):
    g = activation(name)
    got = g.taylor(one(point), 20)[0].tolist()
    radius = min(g.radius(one(point)).item(), 3.0 + abs(point))
    with mpmath.workdps(80):
        expected = mpmath.taylor(READOUTS[name], mpmath.mpf(point), 20)
        # Coefficients near a sign change hold what rounding leaves of the largest, radius^k taken out.
        largest = max(abs(e) * mpmath.mpf(radius) ** k for k, e in enumerate(expected) if k)
        for k, (value, exact) in enumerate(zip(got, expected, strict=True)):
            assert abs(value - exact) <= 1e-13 * abs(exact) + 2e-14 * largest / mpmath.mpf(radius) ** k * (k > 0), k


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_carry_the_factorial(name):
    z = torch.tensor([[0.4, -1.2], [2.0, 0.0]], dtype=torch.float64)
    for k in (0, 1, 2, 5):
        got = activation(name).derivative(z, k)
        assert got.shape == z.shape
        with mpmath.workdps(40):
            expected = [float(mpmath.diff(READOUTS[name], mpmath.mpf(x), k)) for x in z.reshape(-1).tolist()]
        assert (got.reshape(-1) - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-12


@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.parametrize("m", [0.0, 0.4, -1.3, 3.0, -3.0, 8.0, -20.0, 60.0])
def test_quotients_near_and_far(name, m):
    steps = [0.0, *(10.0**e * sign for e in range(-17, 2) for sign in (1, -1)), 0.999, -1.001, 2.7, -2.7, 6.0, -6.0]
    z = torch.tensor([m + step for step in steps], dtype=torch.float64)
    got = activation(name).quotient(z, one(m)).tolist()
    with mpmath.workdps(80):
        g, c = READOUTS[name], mpmath.mpf(m)
        for x, value in zip(z.tolist(), got, strict=True):
            if name == "relu" and x == m == 0:
                assert value == 0.5
                continue
            point = mpmath.mpf(x)
            expected = (g(point) - g(c)) / (point - c) if x != m else mpmath.diff(g, c)
            # SiLU and both GELUs are a sum of sigma(z) and m times another, which cancel to 1/m^2 far in the left tail.
            gate = abs(g(point) / point) if name in ("gelu", "gelu_tanh", "silu") and x else 0
            assert abs(value - expected) <= 1e-12 * max(1, m * m / 20) * (abs(expected) + gate) + 1e-300, (x, value)


@pytest.mark.parametrize("m", [0.0, 0.5, -1.7, 4.0, -12.0])
def test_poles_of_tanh_gelu_by_roots_of_the_cubic(m):
    with mpmath.workdps(30):
        distances = []
        for k in range(150):
            y = (2 * k + 1) * mpmath.pi / 2 / mpmath.sqrt(2 / mpmath.pi)
            roots = mpmath.polyroots([mpmath.mpf(CUBIC), 0, 1, -1j * y], maxsteps=200, extraprec=60)
            distances += [abs(root - m) for root in roots]  # y < 0: the conjugates
        expected = float(min(distances))
    assert abs(activation("gelu_tanh").radius(one(m)).item() - expected) < 1e-12 * expected


def test_radii_and_strips():
    assert [round(activation(n).radius(one(0.0)).item(), 2) for n in READOUTS] == [
        math.inf,
        2.83,
        3.14,
        0.0,
        3.14,
        1.57,
    ]
    assert abs(activation("silu").radius(one(-4.0)).item() - abs(complex(4, math.pi))) < 1e-15
    assert abs(activation("tanh").radius(one(1.0)).item() - abs(complex(1, math.pi / 2))) < 1e-15
    for name in SMOOTH:
        points = torch.linspace(-30, 30, 301, dtype=torch.float64)
        assert (activation(name).radius(points) >= activation(name).strip).all()


def test_the_taylor_series_diverges_just_where_the_radius_says():
    for name in ("gelu_tanh", "silu", "sigmoid", "tanh"):
        radius = Expansion.fit("taylor", 2, one(0.0), one(0.0), name).convergence_radius.item()
        series = activation(name).taylor(one(0.0), 200)[0]
        k = torch.arange(201, dtype=torch.float64)
        for at, grows in ((0.97 * radius, False), (1.03 * radius, True)):
            terms = series.abs() * at**k
            assert (terms[180:].max() > terms[80:100].max()) == grows, name


def test_expansions_of_other_families_have_no_radius():
    assert Expansion.fit("hermite", 2, one(0.0), one(1.0), "tanh").convergence_radius.tolist() == [math.inf]
    assert Expansion.taylor(2, one(2.0), "relu").convergence_radius.tolist() == [2.0]


def test_unknown_names_are_refused():
    with pytest.raises(ArgumentError, match="gelu, gelu_tanh, silu, relu, sigmoid, tanh"):
        activation("swish")
    with pytest.raises(ArgumentError, match="unknown"):
        Expansion.fit("hermite", 2, one(0.0), one(1.0), "mish")


def test_relu_has_no_series_where_it_bends():
    with pytest.raises(ArgumentError, match="bends"):
        Expansion.fit("taylor", 2, one(0.0), one(0.0), "relu")
    with pytest.raises(ArgumentError, match="always 0"):
        Expansion.fit("hermite", 2, one(0.0), one(0.0), "relu")
