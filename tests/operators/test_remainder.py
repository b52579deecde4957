"""Certified remainders: never below the true one, found by random points, by ascent and by forty digits, and close above it."""

import math

import flint
import mpmath
import numpy as np
import pytest
import torch
from flint import acb
from scipy.optimize import minimize_scalar

from oplens.errors import ArgumentError
from oplens.operators.polynomial import Expansion, RemainderTable, Series, activation, balls, certified_remainder
from oplens.operators.polynomial import remainder as cut
from oplens.operators.polynomial.balls import Cells, cells
from readout_oracles import READOUTS, SMOOTH, polynomial

FAMILIES = ("taylor", "hermite", "chebyshev", "empirical")
CLOSE = 1.03  # 1 / cos(pi / 16) = 1.0196, and what the degree of a cell's polynomial and rounding may add


def one(*x):
    return torch.tensor(x, dtype=torch.float64)


def expansion_of(family, order, name, n=1, seed=0):
    """n features with their own centres, spreads and intervals."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, dtype=torch.float64, generator=generator)
    deviation = 0.4 + 2 * torch.rand(n, dtype=torch.float64, generator=generator)
    if family == "taylor":
        return Expansion.taylor(order, mean if name == "relu" else 0 * mean, name)
    if family == "hermite":
        return Expansion.fit("hermite", order, mean, deviation**2, name)
    if family == "chebyshev":
        return Expansion.chebyshev(order, mean - 3 * deviation, mean + 3 * deviation, name)
    z = mean[:, None] + deviation[:, None] * torch.randn(2, n, 400, dtype=torch.float64, generator=generator)
    return Expansion.empirical(order, lambda: [(z, torch.ones(2, 400, dtype=torch.float64))], name)


def remainder(expansion, z):
    """abs(g - p) in float64 at z (d_model, n), and the size of its rounding."""
    p = expansion.recurrence()
    terms = sum((p.coefficients[:, k, None] * b).abs() for k, b in enumerate(p.basis(z)))
    return (expansion.activation.value(z) - expansion.evaluate(z[None])[0]).abs(), 1e-14 * (1 + z.abs() + terms)


def largest(expansion, feature, lo, hi, digits=40):
    """The true sup by ascent: a dense grid, the highest points climbed by scipy, everything evaluated by mpmath in the end."""
    g, p = READOUTS[expansion.readout], polynomial(expansion, feature)
    grid = lo + (hi - lo) * (1 - np.cos(np.linspace(0, math.pi, 801))) / 2
    single = Expansion(
        expansion.family,
        *(x[feature : feature + 1] for x in (expansion.centre, expansion.variance, expansion.coefficients)),
        expansion.readout,
        expansion.series and expansion.series.select(torch.tensor([feature])),
    )

    def height(x):
        return remainder(single, one(float(x))[None])[0].item()

    heights = remainder(single, torch.from_numpy(grid)[None])[0][0].numpy()
    tops = [i for i in range(801) if heights[i] >= max(heights[max(i - 1, 0)], heights[min(i + 1, 800)])]
    candidates = {lo, hi, min(max(0.0, lo), hi)}
    for i in sorted(tops, key=lambda i: -heights[i])[:4]:
        candidates.add(float(grid[i]))
        left, right = grid[max(i - 1, 0)], grid[min(i + 1, 800)]
        candidates.add(
            float(
                minimize_scalar(
                    lambda x: -height(x), bounds=(left, right), method="bounded", options={"xatol": 1e-10}
                ).x
            )
        )
    if heights.max() < 1e-10:  # rounding decides in float64
        candidates.update(grid[::4].tolist())
    with mpmath.workdps(digits):
        return max(abs(g(mpmath.mpf(x)) - p(mpmath.mpf(x))) for x in candidates if lo <= x <= hi)


def check(expansion, lo, hi):
    bound = certified_remainder(expansion, lo, hi)
    for h in range(len(lo)):
        a, b = lo[h].item(), hi[h].item()
        true = largest(expansion, h, a, b)
        assert true <= bound[h].item(), (h, a, b)
        if true >= 1e-10:
            assert bound[h].item() <= CLOSE * true, (h, a, b, float(true))


INTERVALS = [(-8.0, 8.0), (-8.0, 0.0), (-1.0, 1.0), (-0.3, 0.2), (0.5, 3.0), (-3.1, -2.9), (5.0, 8.0)]


@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", [1, 2, 8, 20])
def test_the_bound_meets_the_true_remainder(name, family, order):
    expansion = expansion_of(family, order, name, n=2, seed=order)
    for a, b in (INTERVALS[(order + i) % 7] for i in (0, 3)):
        check(expansion, one(a, a - 0.1), one(b, b))


@pytest.mark.slow
@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", range(1, 21))
def test_the_bound_meets_the_true_remainder_at_every_order(name, family, order):
    expansion = expansion_of(family, order, name, n=3, seed=100 + order)
    for a, b in INTERVALS:
        check(expansion, one(a, a - 0.013, a - 0.2), one(b, b + 0.007, b))


def random_evaluations(name, n_points, seed):
    generator = torch.Generator().manual_seed(seed)
    for family in FAMILIES:
        for order in (2, 7, 20):
            expansion = expansion_of(family, order, name, n=10, seed=seed)
            lo = -8 * torch.rand(10, dtype=torch.float64, generator=generator)
            hi = lo + (8 - lo) * torch.rand(10, dtype=torch.float64, generator=generator)
            z = lo[:, None] + (hi - lo)[:, None] * torch.rand(
                10, n_points // 120, dtype=torch.float64, generator=generator
            )
            height, rounding = remainder(expansion, z)
            yield height, rounding, certified_remainder(expansion, lo, hi)[:, None]


@pytest.mark.parametrize("name", READOUTS)
def test_no_random_point_exceeds_the_bound(name):
    for height, rounding, bound in random_evaluations(name, 200_000, seed=1):
        assert (height <= bound + rounding).all()
        reached = height.amax(-1) > 0.9 * bound[:, 0]
        assert reached.sum() >= 7  # the bounds are worth exceeding


@pytest.mark.slow
@pytest.mark.parametrize("name", READOUTS)
def test_none_of_a_million_random_points_of_each_case_exceeds_the_bound(name):
    for height, rounding, bound in random_evaluations(
        name, 120_000_000 // 10, seed=2
    ):  # 10 features of 10^5 points a case
        assert (height <= bound + rounding).all()


@pytest.mark.parametrize("radius", [1.0, 3.0, 8.0])
def test_gelu_cut_in_chebyshevs_series_leaves_exactly_its_tail(radius):
    order = 8
    expansion = Expansion.chebyshev(order, one(-radius), one(radius))
    long = Expansion.chebyshev(90, one(-radius), one(radius)).series.coefficients[0]
    tail = long[order + 1 :].abs().sum().item()  # all of one sign at the ends
    assert tail * (1 - 1e-9) - 1e-15 <= certified_remainder(expansion, one(-radius), one(radius)).item() <= CLOSE * tail


@pytest.mark.parametrize("name", READOUTS)
def test_cells_are_within_their_errors_and_meet(name):
    table = cells(name)
    assert table.edges[0] == -math.inf
    assert table.edges[-1] == math.inf
    assert (table.error <= 4e-15).all()
    with mpmath.workdps(40):
        for i in range(len(table.error)):
            lo, hi = max(table.edges[i].item(), -700.0), min(table.edges[i + 1].item(), 700.0)
            points = {lo, hi, *(lo + (hi - lo) * t for t in (0.01, 0.2, 0.37, 0.5, 0.71, 0.9, 0.99))}
            for x in points:
                t = (mpmath.mpf(x) - table.centre[i].item()) * table.stretch[i].item()
                q = mpmath.polyval([mpmath.mpf(c) for c in reversed(table.coefficients[i].tolist())], t)
                assert abs(READOUTS[name](mpmath.mpf(x)) - q) <= table.error[i].item(), (i, x)


def test_tails_are_in_the_bound_though_nothing_is_sampled_there():
    zero = torch.zeros(1, 2, dtype=torch.float64)
    for name, lo, hi, line in (
        ("sigmoid", -60.0, -40.5, 0.0),
        ("silu", -60.0, -43.0, 0.0),
        ("tanh", -30.0, -21.0, -1.0),
        ("gelu", -20.0, -10.0, 0.0),
    ):
        p = zero.clone()
        p[0, 0] = line
        bound = certified_remainder(Expansion("taylor", one(0.0), one(0.0), p, name), one(lo), one(hi)).item()
        with mpmath.workdps(60):
            true = abs(READOUTS[name](mpmath.mpf(hi)) - line)
        assert true <= bound < 1e-15


@pytest.mark.parametrize(("centre", "height"), [(0, 1.25), (1, 1.25), (-3, 1.25)])
def test_the_largest_value_on_an_ellipse(centre, height):
    got = float(balls._on_ellipse(lambda z: z.tanh(), height)(centre))
    a = math.sqrt(height**2 + 0.25)
    theta = np.linspace(0, 2 * math.pi, 20001)
    found = np.abs(np.tanh(centre + a * np.cos(theta) + 1j * height * np.sin(theta))).max()
    assert found <= got <= 1.5 * found
    assert float(balls._on_ellipse(lambda z: acb(1) + 0 * z, height)(centre)) == 1.0


@pytest.mark.parametrize("name", SMOOTH)
def test_interpolation_errors_are_counted(name, monkeypatch):
    """Cells of a degree so low that interpolation, not rounding, is what they leave out."""
    usual = cells(name).degree  # kept once built, so before the goal is lowered
    monkeypatch.setattr(balls, "GOAL", 1e-5)
    with flint.ctx.workprec(balls.PRECISION):
        table = balls._build(balls._table()[name])
    assert table.degree < usual - 5
    reached = 0.0
    for i in range(1, len(table.centre) - 1):
        z = table.centre[i] + torch.linspace(-0.5, 0.5, 101, dtype=torch.float64)
        t = (z - table.centre[i]) * 2
        q = sum(c * t**k for k, c in enumerate(table.coefficients[i]))
        found = (activation(name).value(z) - q).abs().max().item()
        assert found <= table.error[i] + 1e-14
        reached = max(reached, found / table.error[i].item())
    assert reached > 1e-3  # far from vacuous


def test_rounding_that_would_show_is_taken_in_balls():
    """Powers about a point far away: the terms cancel to 1e-12 of themselves, so float64 samples alone are worthless."""
    base = Expansion.chebyshev(12, one(-1.0), one(1.0))
    with mpmath.workdps(80):
        c = mpmath.taylor(polynomial(base), mpmath.mpf(9), 12)
    shifted = Expansion("taylor", one(9.0), one(0.0), torch.tensor([[float(x) for x in c]], dtype=torch.float64))
    _, bound = shifted.recurrence().evaluate_bounded(one(-1.0, 0.3, 1.0)[None])
    true = float(largest(shifted, 0, -1.0, 1.0))
    assert (bound > 0.2 * true).all()
    check(shifted, one(-1.0), one(1.0))


def test_intervals_that_are_points_or_nearly():
    expansion = expansion_of("hermite", 6, "gelu", n=5, seed=3)
    at = one(-1.0, 0.5, 0.5, 3.0, -7.9)
    bound = certified_remainder(expansion, at, at)
    height, _ = remainder(expansion, at[:, None])
    assert (bound >= height[:, 0]).all()
    assert (bound <= CLOSE * height[:, 0] + 1e-6).all()
    across = certified_remainder(expansion, at - 1e-12, at + 1e-12)
    assert (across >= remainder(expansion, at[:, None] + 1e-12 * one(-1.0, 0.0, 1.0))[0].amax(-1)).all()


def test_many_intervals_at_once_are_those_one_by_one():
    expansion = expansion_of("empirical", 5, "silu", n=4, seed=9)
    generator = torch.Generator().manual_seed(4)
    lo = -60 * torch.rand(3, 7, 4, dtype=torch.float64, generator=generator)
    hi = lo + 90 * torch.rand(3, 7, 4, dtype=torch.float64, generator=generator) ** 3
    whole = certified_remainder(expansion, lo, hi)
    for i in range(3):
        for j in range(7):
            assert torch.equal(whole[i, j], certified_remainder(expansion, lo[i, j], hi[i, j]))
    least = lo.amin((0, 1))
    assert torch.equal(certified_remainder(expansion, least, hi)[2, 5], certified_remainder(expansion, least, hi[2, 5]))


@pytest.mark.parametrize("name", READOUTS)
def test_wide_intervals_reach_into_the_lines(name):
    expansion = expansion_of("chebyshev", 3, name, n=2, seed=6)
    check(expansion, one(-200.0, -3.0), one(3.0, 1000.0))


def test_values_beyond_floats_are_bounded_by_infinity():
    expansion = Expansion.taylor(20, one(0.0))
    assert certified_remainder(expansion, one(-1e30), one(1.0)).tolist() == [math.inf]


def test_oversampling_tightens():
    expansion = expansion_of("hermite", 20, "gelu")
    sizes = [certified_remainder(expansion, one(-4.0), one(5.0), oversampling=m).item() for m in (2, 4, 8, 32)]
    true = float(largest(expansion, 0, -4.0, 5.0))
    for size, factor in zip(sizes, (1.42, 1.09, 1.03, 1.003), strict=True):
        assert true <= size <= factor * true


@pytest.mark.parametrize("name", READOUTS)
def test_a_table_bounds_every_interval_by_its_bins(name):
    n, n_bins = 3, 37
    expansion = expansion_of("hermite", 4, name, n=n, seed=8)
    start, end = one(-6.0, -2.0, 0.25), one(5.0, 7.0, 0.75)
    table = RemainderTable.of(expansion, start, end, n_bins=n_bins)
    generator = torch.Generator().manual_seed(0)
    lo = start[:, None] + (end - start)[:, None] * torch.rand(2, n, 50, dtype=torch.float64, generator=generator)
    hi = lo + (end[:, None] - lo) * torch.rand(2, n, 50, dtype=torch.float64, generator=generator) ** 3
    bound = table.bound(lo, hi)
    exact = certified_remainder(expansion, lo.transpose(1, 2), hi.transpose(1, 2)).transpose(1, 2)
    step = ((end - start) / n_bins)[:, None]
    left = start[:, None] + torch.floor((lo - start[:, None]) / step) * step
    right = start[:, None] + torch.ceil((hi - start[:, None]) / step) * step
    hull = certified_remainder(expansion, left.transpose(1, 2), right.transpose(1, 2)).transpose(1, 2)
    assert (bound * CLOSE >= exact).all()
    assert (bound <= 1.1 * hull).all()
    # against the remainder itself, which allows no factor
    z = lo[..., None] + (hi - lo)[..., None] * torch.linspace(0, 1, 101, dtype=torch.float64)
    height, _ = remainder(expansion, z.permute(1, 0, 2, 3).reshape(n, -1))
    assert (height.reshape(n, 2, 50, 101).amax(-1).permute(1, 0, 2) <= bound).all()


def test_a_table_at_its_edges():
    expansion = Expansion.taylor(3, one(0.0))
    table = RemainderTable.of(expansion, one(-4.0), one(4.0), n_bins=8)
    at = one(-4.0, 0.0, 1.0, 4.0)[None]
    exact = remainder(expansion, at)[0]
    assert (table.bound(at, at) >= exact).all()
    # on an edge both neighbours count: at 1 that is [0, 1] and [1, 2]
    assert table.bound(at, at)[0, 2] == table.bound(at, at + 0.5)[0, 2] == table.sup[0, 0, 5]
    assert table.bound(at - 0.5, at - 0.25)[0, 2] == table.sup[0, 0, 4]
    outside = table.bound(one(-4.1, -1.0, 5.0)[None], one(0.0, 4.0001, 6.0)[None])
    assert outside.tolist() == [[math.inf] * 3]
    constant = RemainderTable.of(expansion, one(2.0), one(2.0), n_bins=4)
    assert remainder(expansion, one(2.0)[None])[0] <= constant.bound(one(2.0)[None], one(2.0)[None])


def test_a_point_just_below_an_edge_belongs_to_the_bin_below():
    expansion = Expansion.taylor(2, one(0.0, 0.0))
    n_bins = 37
    lo, hi = one(0.3, -1.7), one(2.9, 1.1)
    table = RemainderTable.of(expansion, lo, hi, n_bins=n_bins)
    edges = lo[:, None] + (hi - lo)[:, None] * (torch.arange(1, n_bins, dtype=torch.float64) / n_bins)
    for toward, side in ((-math.inf, slice(0, n_bins - 1)), (math.inf, slice(1, n_bins))):
        point = torch.nextafter(edges, torch.full_like(edges, toward))
        assert (table.bound(point, point) >= table.sup[0][:, side]).all()


def test_refusals():
    expansion = Expansion.taylor(3, one(0.0, 0.0))
    with pytest.raises(ArgumentError, match=r"\[1, 0\].*empty"):
        certified_remainder(expansion, one(0.0, 1.0), one(1.0, 0.0))
    with pytest.raises(ArgumentError, match="finite"):
        certified_remainder(expansion, one(0.0, math.nan), one(1.0, 0.0))
    with pytest.raises(ArgumentError, match=r"\(\.\.\., 2\)"):
        certified_remainder(expansion, one(0.0), one(1.0))
    with pytest.raises(ArgumentError, match="at least 2"):
        certified_remainder(expansion, one(0.0, 0.0), one(1.0, 1.0), oversampling=1)
    with pytest.raises(ArgumentError, match="above 400"):
        certified_remainder(Expansion.taylor(401, one(0.0)), one(0.0), one(1.0))
    table = RemainderTable.of(expansion, one(-1.0, -1.0), one(1.0, 1.0), n_bins=4)
    with pytest.raises(ArgumentError, match="n_bins=0"):
        RemainderTable.of(expansion, one(-1.0, -1.0), one(1.0, 1.0), n_bins=0)
    with pytest.raises(ArgumentError, match="empty"):
        table.bound(one(0.5, 0.0)[:, None], one(0.0, 0.5)[:, None])
    with pytest.raises(ArgumentError, match=r"\(\.\.\., 2, n\)"):
        table.bound(one(0.5)[:, None], one(0.6)[:, None])


def test_samples_of_a_piece_hold_both_ends_and_leave_nothing_out():
    generator = torch.Generator().manual_seed(2)
    lo = (torch.rand(300, dtype=torch.float64, generator=generator) - 0.5) * 10.0 ** torch.linspace(
        -3, 3, 300, dtype=torch.float64
    )
    hi = lo + 10.0 ** (-20 * torch.rand(300, dtype=torch.float64, generator=generator))
    for name in ("gelu", "relu"):
        table = cells(name)
        pieces = cut._cut(table, lo, hi, d_model=3)
        width = cut.NARROW * torch.clamp(torch.maximum(pieces.lo.abs(), pieces.hi.abs()), min=1.0)
        assert (pieces.hi - pieces.lo >= 0.999 * width).all()
        assert (pieces.lo >= table.edges[pieces.cell]).all()
        assert (pieces.hi <= table.edges[pieces.cell + 1]).all()
        points = cut._points(pieces, 24)
        assert torch.equal(points[:, 0], pieces.hi)
        assert torch.equal(points[:, -1], pieces.lo)
        assert ((points >= pieces.lo[:, None]) & (points <= pieces.hi[:, None])).all()
        for i in range(300):
            mine = pieces.interval == i
            assert (pieces.lo[mine].min() <= lo[i]) & (pieces.hi[mine].max() >= hi[i])
            assert (
                torch.equal(pieces.lo[mine][1:], pieces.hi[mine][:-1])
                or (pieces.lo[mine][1:] <= pieces.hi[mine][:-1]).all()
            )
            assert (pieces.feature[mine] == i % 3).all()


def test_samples_are_as_many_as_the_steeper_polynomial_asks_for():
    """q = T_9 - T_7 vanishes at all nine points that a polynomial of degree 1 would ask for."""
    row = torch.from_numpy(np.polynomial.chebyshev.cheb2poly([0.0] * 7 + [-1.0, 0.0, 1.0]))
    zero = torch.zeros(1, dtype=torch.float64)
    table = Cells(one(-math.inf, math.inf), zero, zero + 1, row[None], zero)
    line = Series.hermite(zero, zero, torch.zeros(1, 2, dtype=torch.float64))
    bound = cut._sup(line, table, cut._cut(table, -one(1.0), one(1.0), 1), 1, 8).item()
    theta = np.linspace(0, math.pi, 100_001)
    true = np.abs(np.cos(9 * theta) - np.cos(7 * theta)).max()
    assert true <= bound <= CLOSE * true


def test_refining_a_piece_never_goes_below_what_was_left_out():
    expansion = Expansion.taylor(3, one(0.0))
    table = cells("gelu")
    piece = cut._cut(table, one(0.6), one(1.4), 1)
    value, _ = cut._difference(expansion.recurrence(), table, piece, 40)
    top = value.max().item()
    assert cut._refined(expansion.recurrence(), table, piece, 40, 2 * top) == 2 * top
    refined = cut._refined(expansion.recurrence(), table, piece, 40, 0.5 * top)
    assert top - 1e-15 <= refined <= top + 1e-15
