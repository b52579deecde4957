"""Coefficients of every readout in every family, series evaluation and powers, against mpmath and least squares."""

import math

import mpmath
import numpy as np
import pytest
import torch

from oplens.errors import ArgumentError
from oplens.operators.polynomial import Expansion, Series, activation, gelu_chebyshev, relu_coefficients
from readout_oracles import READOUTS, SMOOTH, hermite, polynomial

GAUSSIANS = [(0.0, 0.05), (-2.0, 0.45), (0.7, 0.52), (0.4, 1.01), (-1.5, 2.0), (3.0, 6.0)]


def one(*x):
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("m", "s"), GAUSSIANS)
def test_hermite_coefficients_to_order_20(name, m, s):
    variance = s * s
    got = Expansion.fit("hermite", 20, one(m), one(variance), name).coefficients[0].tolist()
    radius = min(activation(name).radius(one(m)).item(), 3.0)
    with mpmath.workdps(45):
        deviation = mpmath.sqrt(mpmath.mpf(variance))
        expected = hermite(name, mpmath.mpf(m), deviation, 20)
        largest = max(abs(e) * radius**k for k, e in enumerate(expected) if k)
        for k, (value, exact) in enumerate(zip(got, expected, strict=True)):
            # the standard deviation of the k-th term, or its size at the radius of convergence: whichever asks for less
            term = 1e-14 * max(1, abs(m) + s) / (deviation**k * mpmath.sqrt(mpmath.factorial(k)))
            assert abs(value - exact) <= 1e-13 * abs(exact) + min(term, 2e-14 * largest / radius**k), k


@pytest.mark.parametrize("name", SMOOTH)
def test_the_oracle_of_hermite_coefficients_by_quadrature(name):
    with mpmath.workdps(30):
        m, s = mpmath.mpf("-0.7"), mpmath.mpf("1.3")
        expected = hermite(name, m, s, 4)
        for k, he in ((1, lambda x: x), (4, lambda x: x**4 - 6 * x**2 + 3)):
            value = mpmath.quad(
                lambda x, he=he: READOUTS[name](m + s * x) * he(x) * mpmath.npdf(x), mpmath.linspace(-12, 12, 13)
            )
            assert abs(value / mpmath.factorial(k) / s**k - expected[k]) < mpmath.mpf(10) ** -20


@pytest.mark.parametrize("name", SMOOTH)
def test_hermite_without_variance_is_taylor_and_depends_on_it_continuously(name):
    m = one(0.0, -1.0, 4.0)
    taylor = Expansion.taylor(8, m, name).coefficients
    assert torch.equal(Expansion.fit("hermite", 8, m, 0 * m, name).coefficients, taylor)
    near = Expansion.fit("hermite", 8, m, 0 * m + 1e-16, name).coefficients
    assert (near - taylor).abs().max() < 1e-13
    border = (
        activation(name).strip / math.pi if name != "gelu" else 1.0
    ) ** 2  # where one quadrature takes over from the other
    below, above = (
        Expansion.fit("hermite", 20, m, 0 * m + border * f, name).coefficients for f in (1 - 1e-13, 1 + 1e-13)
    )
    assert (below - above).abs().max() < 1e-11 * below.abs().max()


@pytest.mark.parametrize(
    ("m", "s"), [(0.0, 1.0), (0.5, 0.2), (-2.0, 1.5), (3.0, 0.5), (0.0, 1e-6), (1.0, 0.01), (-5.0, 20.0)]
)
def test_hermite_coefficients_of_relu(m, s):
    variance = s * s
    got = relu_coefficients(one(m), one(variance), 20)[0].tolist()
    with mpmath.workdps(60):
        m, s = mpmath.mpf(m), mpmath.sqrt(mpmath.mpf(variance))

        def smoothed(x):
            return x * mpmath.ncdf(x / s) + s * mpmath.npdf(x / s)

        expected = [t / s**k for k, t in enumerate(mpmath.taylor(lambda y: smoothed(m + s * y), 0, 20))]
        q = abs(m / s)
        for k, (value, exact) in enumerate(zip(got, expected, strict=True)):
            small = mpmath.npdf(q) * s ** (1 - k) / mpmath.sqrt(mpmath.factorial(k)) * max(1, q) ** k
            assert abs(value - exact) <= 1e-13 * max(1, q * q / 100) * abs(exact) + 1e-15 * small, k


def test_relu_far_from_its_kink_is_a_line():
    for m, s in ((5.0, 1e-3), (5.0, 1e-150), (-5.0, 1e-150), (5.0, 0.0)):
        got = relu_coefficients(one(m), one(s * s), 70)[0]
        assert got[:2].tolist() == [max(m, 0.0), float(m > 0)]
        assert not got[2:].any()


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("lo", "hi"), [(-0.5, 0.5), (-8.0, 8.0), (-2.0, 4.0), (-12.0, 3.0), (15.0, 25.0)])
def test_chebyshev_coefficients(name, lo, hi):
    got = Expansion.chebyshev(20, one(lo), one(hi), name)
    c, r = (lo + hi) / 2, (hi - lo) / 2
    assert (got.centre.item(), got.series.scale.item()) == (c, r)
    with mpmath.workdps(25):
        n = 60 + int(90 * r)  # error below exp(-2 n r^-1 1.5): 25 digits
        theta = [mpmath.pi * (2 * j + 1) / (2 * n) for j in range(n)]
        values = [READOUTS[name](c + r * mpmath.cos(t)) for t in theta]
        expected = [
            mpmath.fsum(v * mpmath.cos(k * t) for v, t in zip(values, theta, strict=True)) * (2 if k else 1) / n
            for k in (0, 1, 2, 5, 12, 20)
        ]
    errors = [
        abs(got.series.coefficients[0, k].item() - float(e))
        for k, e in zip((0, 1, 2, 5, 12, 20), expected, strict=True)
    ]
    assert max(errors) <= 4e-15 * max(abs(float(e)) for e in expected)


@pytest.mark.parametrize("radius", [1e-3, 0.5, 2.0, 8.0, 40.0])
def test_chebyshev_coefficients_of_gelu_are_relatively_accurate(radius):
    got = gelu_chebyshev(one(radius), 31)[0].tolist()
    with mpmath.workdps(60):
        q = mpmath.mpf(radius) ** 2 / 4

        def odd(n):  # of erf(radius x / sqrt 2)
            k = (n - 1) // 2
            bessel = mpmath.besseli(k, q) + mpmath.besseli(k + 1, q)
            return radius * mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-q) * (-1) ** k * bessel / n

        for k in range(0, 32, 2):
            exact = mpmath.mpf(radius) / 4 * (odd(k + 1) + (odd(k - 1) if k else 0))
            assert abs(got[k] - exact) <= 1e-13 * abs(exact) + 1e-300, k
    assert got[1] == radius / 2
    assert not any(got[3::2])


@pytest.mark.parametrize(("lo", "hi"), [(-1.0, 1.0), (-3.0, 1.0), (-0.01, 8.0), (2.0, 5.0), (-5.0, -2.0)])
def test_chebyshev_coefficients_of_relu_by_integration(lo, hi):
    got = Expansion.chebyshev(9, one(lo), one(hi), "relu").series.coefficients[0].tolist()
    c, r = (lo + hi) / 2, (hi - lo) / 2
    with mpmath.workdps(25):
        end = mpmath.acos(max(-1, min(1, mpmath.mpf(-c) / r)))
        for k, value in enumerate(got):
            integral = (
                mpmath.quad(lambda t, k=k: (c + r * mpmath.cos(t)) * mpmath.cos(k * t), mpmath.linspace(0, end, 5))
                if end
                else 0
            )
            assert abs(value - integral * (2 if k else 1) / mpmath.pi) < 1e-14 * r * max(1, abs(c))


def test_chebyshev_fits_features_apart_and_refuses_what_cannot_be():
    lo, hi = one(-3.0, -1.0, 2.0), one(3.0, 4.0, 2.0)
    whole = Expansion.chebyshev(6, lo, hi, "silu")
    for h in range(2):
        single = Expansion.chebyshev(6, lo[h : h + 1], hi[h : h + 1], "silu")
        assert (whole.coefficients[h] - single.coefficients[0]).abs().max() < 1e-14
    # the third never moves: its polynomial is that of a narrow interval about it
    near = one(2.0, 2.0, 2.0 + 1e-6)[None, :, None]
    assert abs((whole.evaluate(near) - whole.activation.value(near))[0, 2]) < 1e-14
    with pytest.raises(ArgumentError, match=r"\[3, -3\].*empty"):
        Expansion.chebyshev(6, hi, lo)
    with pytest.raises(ArgumentError, match="finite"):
        Expansion.chebyshev(6, -one(math.inf), one(1.0))
    with pytest.raises(ArgumentError, match="rescale"):
        Expansion.chebyshev(6, one(-1e7), one(1e7), "tanh")
    with pytest.raises(ArgumentError, match="at least 1"):
        Expansion.chebyshev(0, -one(1.0), one(1.0))


def _samples(seed=0, skew=False):
    generator = torch.Generator().manual_seed(seed)
    z = (
        torch.randn(6, 3, 400, dtype=torch.float64, generator=generator) * one(0.5, 1.5, 3.0)[:, None]
        + one(0.0, -2.0, 40.0)[:, None]
    )
    if skew:
        z = z + torch.rand(6, 3, 400, dtype=torch.float64, generator=generator) ** 8 * 20
    weight = torch.rand(6, 400, dtype=torch.float64, generator=generator)
    weight[:, 300:] *= (torch.arange(6) > 2)[:, None]  # padding of half the cases
    return z, weight


@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.parametrize("skew", [False, True])
def test_empirical_expansions_are_weighted_least_squares_at_every_order(name, skew):
    z, weight = _samples(skew=skew)
    expansion = Expansion.empirical(9, lambda: zip(z.split(2), weight.split(2), strict=True), name)
    for h in range(3):
        points = z[:, h].reshape(-1).numpy()
        root = np.sqrt(weight.reshape(-1).numpy())
        u = (points - points.mean()) / np.abs(points - points.mean()).max()
        g = activation(name).value(z[:, h].reshape(-1)).numpy()
        for k in (1, 2, 5, 9):
            vander = np.polynomial.chebyshev.chebvander(u, k)
            solution = np.linalg.lstsq(vander * root[:, None], g * root, rcond=None)[0]
            got = expansion.truncated(k).evaluate(z)[:, h].reshape(-1).numpy()
            assert np.abs(got - vander @ solution).max() < 1e-10 * np.abs(g).max(), k
            assert h == 2 or np.abs(root * (got - g)).max() > 1e-9


def test_empirical_expansions_of_few_values_stop_where_data_do():
    values = one(-1.0, 0.5, 2.0)
    z = torch.stack([values.repeat(20), torch.full((60,), 1.7, dtype=torch.float64)])[None]
    weight = torch.full((1, 60), 0.25, dtype=torch.float64)
    expansion = Expansion.empirical(6, lambda: [(z, weight)], "silu")
    assert (expansion.evaluate(z) - activation("silu").value(z)).abs().max() < 1e-14
    assert not expansion.coefficients[0, 3:].any()
    assert expansion.coefficients[0, 2] != 0
    assert not expansion.coefficients[1, 1:].any()


def test_empirical_expansions_take_a_constants_rounding_for_what_it_is():
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(3, 50, dtype=torch.float64, generator=generator)
    constants = torch.rand(20, dtype=torch.float64, generator=generator)
    z = constants[:, None].expand(3, 20, 50)
    mean = torch.einsum("bl,bhl->h", weight, z) / weight.sum()
    assert (mean != constants).any()  # or there is no rounding to take
    expansion = Expansion.empirical(24, lambda: [(z, weight)], "sigmoid")
    assert (expansion.coefficients[:, 0] - torch.sigmoid(constants)).abs().max() < 1e-15
    assert not expansion.coefficients[:, 1:].any()
    assert (expansion.series.scale == 1).all()


def test_empirical_refusals():
    z, weight = _samples()
    with pytest.raises(ArgumentError, match="no sample"):
        Expansion.empirical(2, list)
    with pytest.raises(ArgumentError, match="no sample"):
        Expansion.empirical(2, lambda: [(z, 0 * weight)])
    with pytest.raises(ArgumentError, match="negative"):
        Expansion.empirical(2, lambda: [(z, -weight)])
    with pytest.raises(ArgumentError, match="finite"):
        Expansion.empirical(2, lambda: [(z / 0, weight)])
    with pytest.raises(ArgumentError, match="at least 1"):
        Expansion.empirical(0, lambda: [(z, weight)])


def _expansions(order, name="gelu"):
    z, weight = _samples(3)
    yield Expansion.empirical(order, lambda: [(z, weight)], name)
    yield Expansion.chebyshev(order, one(-4.0, -1.0, 30.0), one(4.0, 7.0, 45.0), name)
    yield Expansion.fit("hermite", order, one(0.0, -2.0, 3.0), one(0.3, 2.0, 9.0), name)
    yield Expansion.taylor(order, one(0.0, -2.0, 3.0), name)


@pytest.mark.parametrize("order", [1, 2, 7, 16])
def test_evaluation_its_error_bound_and_its_powers(order):
    for expansion in _expansions(order):
        w = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64) * torch.tensor([[2.0], [3.0], [9.0]], dtype=torch.float64)
        z = expansion.centre[:, None] + w
        plain = expansion.evaluate(z[None])[0]
        value, bound = expansion.recurrence().evaluate_bounded(z)
        basis = expansion.basis(z - expansion.centre[:, None], order)
        by_powers = sum(expansion.coefficients[:, k, None] * b for k, b in enumerate(basis))
        terms = sum((expansion.coefficients[:, k, None] * b).abs() for k, b in enumerate(basis))
        with mpmath.workdps(50):
            exact = [[polynomial(expansion, h)(mpmath.mpf(x)) for x in z[h].tolist()] for h in range(3)]
            errors = torch.tensor(
                [
                    [float(abs(v - e)) for v, e in zip(*rows, strict=True)]
                    for rows in zip(value.tolist(), exact, strict=True)
                ]
            )
        exact = torch.tensor([[float(e) for e in row] for row in exact], dtype=torch.float64)
        assert (errors <= bound).all()
        assert (bound <= 1e-12 * (1 + terms)).all()
        assert ((plain - exact).abs() <= 2 * bound + 1e-16 * exact.abs()).all()
        # the account by powers pays rounding in proportion to its own terms, which the interval's polynomial does not
        growth = 1.0 if expansion.series is None else (1 + math.sqrt(2)) ** order
        assert (
            (by_powers - exact).abs()
            <= 1e-15 * order * (terms + growth * expansion.recurrence().coefficients.abs().amax(-1, keepdim=True))
        ).all()


def test_a_rounding_bound_covers_operands_chosen_to_cancel():
    generator = torch.Generator().manual_seed(5)
    n, order = 40, 12
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    series = Series(
        draw(n) * 100, draw(n).abs() + 0.1, draw(n, order), draw(n, order) * 3, draw(n, order), draw(n, order + 1)
    )
    z = series.centre[:, None] * (1 + draw(n, 25) * 10.0 ** torch.linspace(-17, 0, 25, dtype=torch.float64))
    value, bound = series.evaluate_bounded(z)
    tight = 0
    with mpmath.workdps(60):
        for i in range(n):
            row = [
                [mpmath.mpf(x) for x in getattr(series, f)[i].reshape(-1).tolist()]
                for f in ("centre", "scale", "slope", "shift", "back", "coefficients")
            ]
            (centre,), (scale,), slope, shift, back, c = row
            for x, v, b in zip(z[i].tolist(), value[i].tolist(), bound[i].tolist(), strict=True):
                u = (mpmath.mpf(x) - centre) / scale
                p = [mpmath.mpf(0), mpmath.mpf(1)]
                for k in range(order):
                    p.append(slope[k] * (u - shift[k]) * p[-1] - back[k] * p[-2])
                error = abs(v - mpmath.fsum(a * y for a, y in zip(c, p[1:], strict=True)))
                assert error <= b
                tight += error > b / 30
    assert tight > 0.1 * n * 25


def test_interval_polynomials_are_evaluated_without_the_cancellation_of_their_powers():
    expansion = Expansion.chebyshev(24, one(-8.0), one(8.0))
    z = torch.linspace(-8, 8, 41, dtype=torch.float64)
    with mpmath.workdps(40):
        exact = torch.tensor([float(polynomial(expansion)(mpmath.mpf(x))) for x in z.tolist()], dtype=torch.float64)
    size = expansion.series.coefficients.abs().sum()
    assert (expansion.evaluate(z[None, None])[0, 0] - exact).abs().max() < 2e-15 * size
    by_powers = np.polynomial.polynomial.polyval(z.numpy(), expansion.coefficients[0].numpy())
    assert np.abs(by_powers - exact.numpy()).max() > 1e-12 * size


def _series(scale, slope, shift, back, coefficients):
    return Series(
        one(0.1), one(scale), one(*slope)[None], one(*shift)[None], one(*back)[None], one(*coefficients)[None]
    )


def test_a_rounding_bound_counts_the_argument_and_both_earlier_members():
    z = one(0.83)[None]
    u = ((z - 0.1) / 7).item()
    with mpmath.workdps(40):
        miss = (mpmath.mpf(0.83) - mpmath.mpf(0.1)) / 7 - mpmath.mpf(u)  # what rounding took from the argument
    assert miss != 0
    # P_1 = u - shift vanishes in floats; P_3 = -5 P_1 has no other error than P_1's
    value, bound = _series(7.0, [1.0], [u], [0.0], [0.0, 1.0]).evaluate_bounded(z)
    assert value.item() == 0
    assert abs(miss) <= bound.item() <= 1e-14
    value, bound = _series(7.0, [1.0, 1.0, 0.0], [u, 0.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 1.0]).evaluate_bounded(
        z
    )
    assert value.item() == 0
    assert 5 * abs(miss) <= bound.item() <= 1e-14


def test_a_rounding_bound_counts_every_product():
    """P_{k+2} = -back P_k, twenty-four times, each factor the one of many whose product is rounded most in one direction."""
    generator = torch.Generator().manual_seed(0)
    z = one(0.83)[None]
    computed = ((z - 0.1) / 7).item()
    slope, shift, back = [1.0], [0.0], [0.0]
    with mpmath.workdps(60):
        exact = (mpmath.mpf(0.83) - mpmath.mpf(0.1)) / 7
        for _ in range(24):
            candidates = (1 + torch.rand(200, dtype=torch.float64, generator=generator)).tolist()
            factor = max(candidates, key=lambda f: mpmath.mpf(f * abs(computed)) / (mpmath.mpf(f) * abs(computed)))
            computed, exact = -factor * computed, -mpmath.mpf(factor) * exact
            slope, shift, back = [*slope, 0.0, 0.0], [*shift, 0.0, 0.0], [*back, 0.0, factor]
        coefficients = [0.0] * len(slope) + [1.0]
        value, bound = _series(7.0, slope, shift, back, coefficients).evaluate_bounded(z)
        assert value.item() == computed
        assert abs(value.item() - exact) <= bound.item()
        assert abs(value.item() - exact) > 8e-16 * abs(exact)


def test_truncations_are_what_a_lower_order_would_have_given():
    for high, low in zip(_expansions(9, "silu"), _expansions(3, "silu"), strict=True):
        cut = high.truncated(3)
        z = high.centre[:, None] + torch.linspace(-3, 3, 9, dtype=torch.float64)[None]
        assert (cut.family, cut.readout, cut.order) == (low.family, low.readout, 3)
        assert (cut.coefficients - low.coefficients).abs().max() < 1e-13 * low.coefficients.abs().max()
        assert (cut.evaluate(z) - low.evaluate(z)).abs().max() < 1e-12 * low.evaluate(z).abs().max()
        # own coefficients per order: for families without blocks in powers they differ from the higher order's first ones
        same = torch.equal(cut.coefficients, high.coefficients[:, :4])
        assert same == (high.series is None)
        with pytest.raises(ArgumentError, match="fitted to order 9"):
            high.truncated(10)
