"""What polynomials leave of the readout: derivatives and bounds against mpmath and dense evaluation."""

import math

import mpmath
import numpy as np
import pytest
import torch

from oplens.explanation.certificates.remainders import BINS, Remainders, derivatives
from oplens.operators.polynomial import Expansion

LOW, HIGH = torch.tensor([-6.0, -1.0], dtype=torch.float64), torch.tensor([5.0, 9.0], dtype=torch.float64)


def expansion_of(family, order):
    if family == "chebyshev":
        return Expansion.chebyshev(order, LOW, HIGH)
    if family == "empirical":
        z = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2, 300))) * 2 + (LOW + HIGH)[:, None] / 2
        return Expansion.empirical(order, lambda: [(z, torch.full((4, 300), 1 / 1200, dtype=torch.float64))])
    mean, variance = (LOW + HIGH) / 2, torch.tensor([2.0, 3.0], dtype=torch.float64)
    return Expansion.fit(family, order, mean, variance)


def exact_polynomial(expansion, feature, z):
    """Derivatives 0 to 4 of the expansion's series, by its recurrence in mpmath on the float coefficients, as power series in the offset from z."""
    s = expansion.recurrence()
    centre, scale = (mpmath.mpf(x[feature].item()) for x in (s.centre, s.scale))
    point = [(mpmath.mpf(z) - centre) / scale, 1 / scale]
    before, value = [mpmath.mpf(0)] * 5, [mpmath.mpf(1)] + [mpmath.mpf(0)] * 4
    total = [mpmath.mpf(s.coefficients[feature, 0].item())] + [mpmath.mpf(0)] * 4
    for n in range(expansion.order):
        slope, shift, back = (mpmath.mpf(x[feature, n].item()) for x in (s.slope, s.shift, s.back))
        raised = [(point[0] - shift) * value[k] + (point[1] * value[k - 1] if k else 0) for k in range(5)]
        before, value = value, [slope * a - back * b for a, b in zip(raised, before, strict=True)]
        total = [t + mpmath.mpf(s.coefficients[feature, n + 1].item()) * v for t, v in zip(total, value, strict=True)]
    return [math.factorial(k) * t for k, t in enumerate(total)]


@pytest.mark.parametrize("family", ["hermite", "taylor", "chebyshev", "empirical"])
@pytest.mark.parametrize("order", [1, 2, 7, 20])
def test_derivatives_are_the_recurrences_own_and_their_rounding_is_allowed_for(family, order):
    expansion = expansion_of(family, order)
    tables = Remainders.of(expansion, (order,), LOW - 3, HIGH + 3)
    share = torch.from_numpy(np.random.default_rng(1).uniform(size=(2, 6)))
    z = (LOW - 3)[:, None] + (HIGH - LOW + 6)[:, None] * share
    (found,) = derivatives(expansion.recurrence(), z, (order,), 4)
    lost = [value[..., 0] for value in tables.rounding(z, z)]
    with mpmath.workdps(40):
        for feature in range(2):
            for i in range(z.shape[1]):
                exact = exact_polynomial(expansion, feature, z[feature, i].item())
                for k in range(5):
                    miss = abs(mpmath.mpf(found[k, feature, i].item()) - exact[k])
                    assert miss <= (
                        lost[k][feature, i].item() if k < 2 else 1e-9 * found[k, feature].abs().max().item()
                    )
    assert float(lost[0].max()) < 1e-7 * float(found[0].abs().max())


def test_orders_on_the_way_equal_each_order_alone():
    expansion = expansion_of("hermite", 6)
    z = torch.linspace(-4, 4, 5, dtype=torch.float64).expand(3, 2, 5)
    together = list(derivatives(expansion.recurrence(), z, (1, 3, 6), 2))
    for order, found in zip((1, 3, 6), together, strict=True):
        (alone,) = derivatives(expansion.truncated(order).recurrence(), z, (order,), 2)
        torch.testing.assert_close(found, alone, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("family", ["hermite", "taylor", "chebyshev", "empirical"])
def test_bounds_hold_on_dense_points_and_are_not_far_above(family):
    orders = (1, 2, 5, 12)
    expansion = expansion_of(family, 12)
    low, high = LOW - 3, HIGH + 3
    tables = Remainders.of(expansion, orders, low, high)
    rng = np.random.default_rng(2)
    ends = (
        np.sort(rng.uniform(size=(2, 40, 2)), axis=-1) * (high - low).numpy()[:, None, None]
        + low.numpy()[:, None, None]
    )
    ends[:, ::2, 1] = ends[:, ::2, 0] + 1e-3  # narrow ones too
    ends = np.minimum(ends, high.numpy()[:, None, None])
    first, last = torch.from_numpy(ends[..., 0].copy()), torch.from_numpy(ends[..., 1].copy())
    sup, bend = tables.bound(first, last)
    t = torch.linspace(0, 1, 801, dtype=torch.float64)
    x = (first[..., None] + (last - first)[..., None] * t).flatten(1)
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    bin_width = ((high - low) / BINS)[:, None]
    for k, order in enumerate(orders):
        cut = expansion.truncated(order)
        (p,) = derivatives(cut.recurrence(), x, (order,), 2)
        second = (density * (2 - x * x) - p[2]).abs().unflatten(-1, (40, 801)).amax(-1)
        value = (x * 0.5 * torch.erfc(-x / math.sqrt(2)) - p[0]).abs().unflatten(-1, (40, 801)).amax(-1)
        assert bool((value <= sup[..., k]).all())
        assert bool((second <= bend[..., k]).all())
        # A bin more at either end, and what lies between points.
        wide = (first[..., None] - bin_width[..., None] + (last - first + 2 * bin_width)[..., None] * t).flatten(1)
        (q,) = derivatives(cut.recurrence(), wide, (order,), 2)
        wider = (torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi) * (2 - wide * wide) - q[2]).abs()
        assert bool((bend[..., k] <= 1.05 * wider.unflatten(-1, (40, 801)).amax(-1) + 2e-3).all())


def test_outside_the_tables_nothing_is_bounded():
    tables = Remainders.of(expansion_of("chebyshev", 4), (2, 4), LOW, HIGH)
    inside = torch.stack((LOW, HIGH), dim=-1)[:, :1] + 0.5
    for lo, hi in ((inside, inside + 100), (inside - 100, inside)):
        for found in (*tables.bound(lo, hi), *tables.rounding(lo, hi)):
            assert bool(found.isinf().all())
    assert all(bool(found.isfinite().all()) for found in tables.bound(inside, inside))
