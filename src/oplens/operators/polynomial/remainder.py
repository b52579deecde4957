r"""Certified sup of abs(g - p) on intervals, per feature.

On each cell g is a polynomial q up to a certified error e (`balls`), so with N = max(deg q, deg p) and samples at cos(j pi/m), m = 8 N,
of the part of the cell that lies in the interval

    sup abs(g - p) <= max_j abs((q - p)(x_j)) / cos(N delta) + e,    delta = pi/(2m)

(Ehlich and Zeller 1964: a trigonometric polynomial of degree N falls from its maximum no faster than the cosine of N times the
distance). Two roundings are accounted: the points are floats, which enlarges delta; and every sample comes with a bound on
its own error (`Series.evaluate_bounded`). Where that bound would show in the result, the samples which could be the largest are
evaluated again in ball arithmetic.
"""

import math
from dataclasses import dataclass

import torch
from flint import arb, ctx
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial.activations import Activation
from oplens.operators.polynomial.balls import Cells, above, cells
from oplens.operators.polynomial.expansion import Expansion
from oplens.operators.polynomial.fits import check_interval
from oplens.operators.polynomial.series import TINY, UNIT, Series

NARROW = 1e-8  # an interval narrower than this, relative to its distance from 0 or to 1, is widened to it
CHUNK = 2**18  # samples at a time
HIGHEST = 400  # order, for which delta's enlargement is still small
EXACT_BITS = 600


def certified_remainder(expansion: Expansion, lo: Tensor, hi: Tensor, oversampling: int = 8) -> Tensor:
    r"""A number not below abs(g(z) - p(z)) for any z in [lo, hi], for every feature.

    Parameters
    ----------
    expansion : Expansion
    lo, hi : Tensor, (..., d_model)
        Ends of the intervals, finite, lo <= hi; leading dimensions are further intervals of the same features.
    oversampling : int
        m / N, at least 2. The bound exceeds the true remainder by a factor of at most 1 / cos(pi / (2 oversampling)), 1.02 at 8 and
        1.09 at 4, beyond rounding.

    Returns
    -------
    Tensor, (..., d_model)

    Raises
    ------
    ArgumentError
        An empty or infinite interval, another number of features than the expansion's, an order above 400.

    Notes
    -----
    Accuracy: *bound*, rounding included; about 1e-15 max abs(g) is added to it. Larger intervals have larger bounds, up to
    the factor above. Cost: O(cells in the interval x N^2 x oversampling) per feature.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(2, dtype=torch.float64)
    >>> expansion = Expansion.chebyshev(8, -2 * one, 2 * one)
    >>> bound = certified_remainder(expansion, -2 * one, torch.tensor([2.0, 0.0], dtype=torch.float64))
    >>> z = torch.linspace(-2, 2, 1001, dtype=torch.float64).expand(1, 2, -1)
    >>> found = (expansion.activation.value(z) - expansion.evaluate(z)).abs()[0, 0].max()
    >>> bool(found <= bound[0] <= 1.03 * found)
    True
    """
    d_model = len(expansion.centre)
    lo, hi = torch.broadcast_tensors(lo.double(), hi.double())
    if lo.ndim == 0 or lo.shape[-1] != d_model:
        raise ArgumentError(
            f"certified_remainder: expected intervals of shape (..., {d_model}), got {tuple(lo.shape)}."
        )
    check_interval(lo, hi, "certified_remainder")
    if not isinstance(oversampling, int) or oversampling < 2:
        raise ArgumentError(
            f"certified_remainder(oversampling={oversampling!r}): a whole number of at least 2 is needed."
        )
    if expansion.order > HIGHEST:
        raise ArgumentError(
            f"certified_remainder: order {expansion.order} is above {HIGHEST}; cut the expansion lower."
        )
    table = _table(expansion.activation)
    pieces = _cut(table, lo.reshape(-1), hi.reshape(-1), d_model)
    return _sup(expansion.recurrence(), table, pieces, lo.numel(), oversampling).reshape(lo.shape)


def _table(readout: Activation) -> Cells:
    """The readout's cells; a polynomial of each feature's own is one cell per feature, without any error."""
    if readout.polynomial is None:
        return cells(readout.name)
    zero = torch.zeros(len(readout.polynomial), dtype=torch.float64)
    everywhere = torch.tensor([-math.inf, math.inf], dtype=torch.float64)
    return Cells(everywhere, zero, zero + 1, readout.polynomial, zero)


@dataclass(frozen=True)
class _Pieces:
    """Parts of intervals that lie in one cell each: interval, feature, cell (n,) whole numbers; lo, hi (n,)."""

    interval: Tensor
    feature: Tensor
    cell: Tensor
    lo: Tensor
    hi: Tensor

    def take(self, index: Tensor | slice) -> "_Pieces":
        return _Pieces(*(getattr(self, name)[index] for name in ("interval", "feature", "cell", "lo", "hi")))


def _cut(table: Cells, lo: Tensor, hi: Tensor, d_model: int) -> _Pieces:
    inner = table.edges[1:-1]
    first, last = torch.searchsorted(inner, lo), torch.searchsorted(inner, hi)
    count = last - first + 1
    interval = torch.repeat_interleave(torch.arange(len(lo)), count)
    start = torch.cumsum(count, 0) - count
    cell = first[interval] + torch.arange(len(interval)) - start[interval]
    left, right = table.edges[cell], table.edges[cell + 1]
    if len(table.edges) == 2:  # one cell of each feature's own
        cell = interval % d_model
    a, b = torch.maximum(lo[interval], left), torch.minimum(hi[interval], right)
    # Narrow pieces are widened inside their cell, which is wider than that: more is certified than was asked for.
    width = NARROW * torch.clamp(torch.maximum(a.abs(), b.abs()), min=1.0)
    narrow = b - a < width
    a, b = (
        torch.where(narrow, torch.maximum(a - width, left), a),
        torch.where(narrow, torch.minimum(b + width, right), b),
    )
    return _Pieces(interval, interval % d_model, cell, a, b)


def _points(pieces: _Pieces, m: int) -> Tensor:
    """(n, m + 1) Chebyshev points, both ends exactly among them, none outside."""
    cosine = torch.cos(torch.arange(m + 1, dtype=torch.float64) * (math.pi / m))
    half = (pieces.hi - pieces.lo) / 2
    x = (pieces.lo + half)[:, None] + half[:, None] * cosine
    x[:, 0], x[:, -1] = pieces.hi, pieces.lo
    return torch.minimum(torch.maximum(x, pieces.lo[:, None]), pieces.hi[:, None])


def _factor(degree: int, m: int) -> float:
    """1 / cos(N delta).

    A computed point is off by at most 16 UNIT max(abs(lo), abs(hi)) (cosine, product, two sums), which is below 32 UNIT / NARROW
    of half the interval; theta by that over the sine of it, pi/m at the least but for the ends, which are exact. Twice that
    allows for the change of the sine; the last factors for the rounding here.
    """
    delta = math.pi / (2 * m) + 2 * 32 * UNIT / NARROW / math.sin(math.pi / m)
    return 1 / math.cos(degree * delta * (1 + 1e-12)) * (1 + 1e-12)


def _sup(series: Series, table: Cells, pieces: _Pieces, n_intervals: int, oversampling: int) -> Tensor:
    degree = max(table.degree, series.order)
    m = oversampling * degree
    factor = _factor(degree, m)
    n = len(pieces.cell)
    upper, lower = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.float64)
    rows = max(1, CHUNK // (m + 1))
    for i in range(0, n, rows):
        value, error = _difference(series, table, pieces.take(slice(i, i + rows)), m)
        upper[i : i + rows] = (value + error).amax(-1)
        lower[i : i + rows] = (value - error).amax(-1)
    # Of an interval, what is certainly reached at a sample, and the pieces that rounding alone lifts visibly above it.
    reached = torch.zeros(n_intervals, dtype=torch.float64).scatter_reduce(0, pieces.interval, lower, "amax")
    floor = 1.005 * reached[pieces.interval] + 1e-15
    for i in (upper > floor).nonzero()[:, 0].tolist():
        upper[i] = _refined(series, table, pieces.take(slice(i, i + 1)), m, floor[i].item())
    bound = (upper * factor + table.error[pieces.cell]) * (1 + 4 * UNIT)
    return torch.zeros(n_intervals, dtype=torch.float64).scatter_reduce(0, pieces.interval, bound, "amax")


def _difference(series: Series, table: Cells, pieces: _Pieces, m: int) -> tuple[Tensor, Tensor]:
    """abs(q - p) at the samples and a bound on its error: (n, m + 1)."""
    x = _points(pieces, m)
    p, p_error = series.select(pieces.feature).evaluate_bounded(x)
    q, q_error = _cell_values(table, pieces.cell, x)
    difference = q - p
    error = (p_error + q_error + UNIT * difference.abs()) * (1 + 4 * UNIT)
    infinite = torch.isnan(difference) | torch.isnan(error) | torch.isinf(difference)
    return torch.where(infinite, 0.0, difference.abs()), torch.where(infinite, math.inf, error)


def _cell_values(table: Cells, cell: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    # x - c is exact (Sterbenz: c is 0 or an integer, and x within 1/2 of it), and so is the multiplication by 1 or 2.
    t = (x - table.centre[cell, None]) * table.stretch[cell, None]
    rows = table.coefficients[cell]
    value, error = rows[:, -1:].expand_as(t), torch.zeros_like(t)
    size = t.abs()
    for k in range(table.degree - 1, -1, -1):
        product = value * t
        value = product + rows[:, k, None]
        error = error * size + UNIT * (product.abs() + value.abs()) + TINY
    return value, error * (1 + 1e-9)


def _refined(series: Series, table: Cells, piece: _Pieces, m: int, floor: float) -> float:
    """The largest sample of one piece, those that may exceed `floor` taken in balls."""
    value, error = _difference(series, table, piece, m)
    candidates = ((value + error)[0] > floor).nonzero()[:, 0]
    points = _points(piece, m)[0, candidates].tolist()
    row = series.select(piece.feature)
    cell = int(piece.cell)
    largest = floor
    with ctx.workprec(EXACT_BITS):
        for x in points:
            difference = abs(_exact_cell(table, cell, x) - _exact_series(row, x))
            largest = max(largest, above(difference)) if difference.is_finite() else math.inf
    return largest


def _exact_cell(table: Cells, cell: int, x: float) -> arb:
    t = (arb(x) - arb(table.centre[cell].item())) * arb(table.stretch[cell].item())
    value = arb(0)
    for coefficient in reversed(table.coefficients[cell].tolist()):
        value = value * t + arb(coefficient)
    return value


def _exact_series(row: Series, x: float) -> arb:
    u = (arb(x) - arb(row.centre.item())) / arb(row.scale.item())
    before, value = arb(0), arb(1)
    coefficients = row.coefficients[0].tolist()
    total = arb(coefficients[0])
    recurrence = zip(row.slope[0].tolist(), row.shift[0].tolist(), row.back[0].tolist(), coefficients[1:], strict=True)
    for slope, shift, back, coefficient in recurrence:
        before, value = value, arb(slope) * (u - arb(shift)) * value - arb(back) * before
        total += arb(coefficient) * value
    return total
