r"""What polynomials leave of the readout, E_K = g - p_K, on any interval: certified sup of abs(E_K) and of abs(E_K'').

Both are looked up from bins, as in :class:`oplens.operators.polynomial.RemainderTable`, for many orders at once. In a bin with Chebyshev
points x_i, none further than q from the next one,

    sup abs(E'') <= max_i abs(E''(x_i)) + q (max_i abs(E'''(x_i)) + q (max abs(g'''') + sup abs(p''''))),

the last sup by Ehlich and Zeller (see operators/polynomial/remainder). Source: derived for this library.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.operators.polynomial import Expansion, RemainderTable, Series, normal_density

BINS = 256
SLACK = 1e-6  # of a bin: covers the rounding of an index
LOST = 1e-14  # times (order + 1)^2 and the largest terms a recurrence has met: what float64 may lose of a polynomial
FOURTH = 1.5957691216057308  # max abs(g'''') = 4 phi(0) of erf-GELU


@dataclass(frozen=True)
class Remainders:
    """Certified tables for all orders.

    Attributes
    ----------
    orders : tuple of int
    lo, hi : Tensor, (d_model,)
        Range that is covered.
    certified : Tensor, (levels * d_model * BINS, 2 n_orders)
        For runs of 2^level bins: sup abs(E) of every order, then sup abs(E'').
    lost : Tensor, same shape
        Bounds on the rounding of p_K and of p_K'.
    """

    orders: tuple[int, ...]
    lo: Tensor
    hi: Tensor
    certified: Tensor
    lost: Tensor

    @classmethod
    def of(cls, expansion: Expansion, orders: tuple[int, ...], lo: Tensor, hi: Tensor) -> "Remainders":
        """Certify every bin of [lo, hi] (d_model,) for the expansion cut at each of the orders.

        Examples
        --------
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> tables = Remainders.of(Expansion.chebyshev(8, -3 * one, 3 * one), (2, 8), -4 * one, 4 * one)
        >>> z = torch.zeros(1, 1, dtype=torch.float64)
        >>> sup, curvature = tables.bound(z - 0.1, z + 0.1)
        >>> sup.shape, bool((sup[..., 1] < sup[..., 0]).all()), bool(tables.bound(z - 9, z)[0].isinf().all())
        (torch.Size([1, 1, 2]), True, True)
        """
        hi = torch.maximum(hi, lo + 1e-6 * torch.clamp(torch.maximum(lo.abs(), hi.abs()), min=1.0))
        sups, bends, values, slopes = [], [], [], []
        for order in orders:
            cut = expansion.truncated(order)
            sups.append(RemainderTable.of(cut, lo, hi, BINS).sup[0])
            bend, value, slope = _curvature_by_parts(cut.recurrence(), lo, hi)
            bends.append(bend)
            values.append(value)
            slopes.append(slope)
        return cls(orders, lo, hi, _runs([*sups, *bends]), _runs([*values, *slopes]))

    def bound(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers not below abs(E_K) and abs(E_K'') on [lo, hi] (..., d_model, n): (..., d_model, n, n_orders) each; inf outside."""
        return self._look_up(self.certified, lo, hi)

    def rounding(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the rounding of p_K and p_K' as float64 evaluates them there, shaped as `bound`'s."""
        return self._look_up(self.lost, lo, hi)

    def _look_up(self, table: Tensor, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        d_model, n_orders = len(self.lo), len(self.orders)
        start, step = self.lo[:, None], ((self.hi - self.lo) / BINS)[:, None]
        first = torch.floor((lo - start) / step - SLACK).clamp(0, BINS - 1).long()
        last = torch.floor((hi - start) / step + SLACK).clamp(0, BINS - 1).long()
        level = torch.frexp((last - first + 1).double()).exponent.long() - 1
        row = (level * d_model + torch.arange(d_model)[:, None]) * BINS
        second = row + last + 1 - 2**level
        found = torch.maximum(table[(row + first).flatten()], table[second.flatten()])
        outside = (lo < start) | (hi > self.hi[:, None])
        found = found.masked_fill_(outside.flatten()[:, None], math.inf).unflatten(0, lo.shape)
        return found[..., :n_orders], found[..., n_orders:]


def derivatives(series: Series, z: Tensor, orders: tuple[int, ...], highest: int) -> Iterator[Tensor]:
    """p, p', .., p^(highest) of the series cut at each order (increasing), at z (..., d_model, n): (highest + 1, ..., d_model, n) each."""
    total = torch.zeros(highest + 1, *z.shape, dtype=z.dtype)
    for k, value in enumerate(_basis(series, z, orders[-1], highest)):
        total += series.coefficients[:, k, None] * value
        if k in orders:
            yield total.clone()


def _basis(series: Series, z: Tensor, order: int, highest: int) -> Iterator[Tensor]:
    """P_k and its derivatives, (highest + 1, ..., d_model, n), for k = 0..order."""
    u = (z - series.centre[:, None]) / series.scale[:, None]
    before = torch.zeros(highest + 1, *u.shape, dtype=u.dtype)
    value = before.clone()
    value[0] = 1
    yield value
    for k in range(order):
        slope, shift, back = (x[:, k, None] for x in (series.slope, series.shift, series.back))
        step = slope * (u - shift) * value - back * before
        for j in range(1, highest + 1):
            step[j] += j * slope / series.scale[:, None] * value[j - 1]
        before, value = value, step
        yield value


def _curvature(series: Series, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per feature and bin (d_model, BINS): sup of abs(E''), and the rounding of p and p'."""
    m = max(32, 2 * series.order)
    half = (hi - lo)[:, None] / (2 * BINS)
    points = torch.cos(torch.arange(m + 1, dtype=torch.float64) * (math.pi / m))
    x = (lo[:, None] + half * (2 * torch.arange(BINS) + 1))[..., None] + half[..., None] * points
    value = torch.zeros(5, *x.shape, dtype=x.dtype)
    envelope = torch.zeros(4, *x.shape[:2], dtype=x.dtype)
    lost = envelope.clone()
    for k, flat in enumerate(_basis(series, x.flatten(1), series.order, 4)):
        basis = flat.unflatten(-1, x.shape[1:])
        value += series.coefficients[:, k, None, None] * basis
        # A step's rounding travels on as the polynomials themselves do, so term k is off by what the largest so far allows.
        envelope = torch.maximum(envelope, basis[:4].abs().amax(-1))
        lost += series.coefficients[:, k, None].abs() * envelope
    lost *= LOST * (series.order + 1) ** 2
    density = normal_density(x)
    second = (density * (2 - x * x) - value[2]).abs().amax(-1) + lost[2]
    third = (density * x * (x * x - 4) - value[3]).abs().amax(-1) + lost[3]
    fourth = FOURTH + value[4].abs().amax(-1) / math.cos(max(series.order - 4, 0) * math.pi / (2 * m))
    gap = half * (math.pi / (2 * m))  # points are at most twice this apart
    return (second + gap * (third + gap * fourth)) * (1 + 1e-9) + 1e-13, lost[0], lost[1]


def _curvature_by_parts(series: Series, lo: Tensor, hi: Tensor) -> tuple[Tensor, ...]:
    """:func:`_curvature`, a few features at a time: a dozen arrays of every bin's points are held."""
    parts = [
        _curvature(series.select(rows), lo[rows], hi[rows])
        for rows in torch.arange(len(lo)).split(max(1, 2**18 // (BINS * max(32, 2 * series.order))))
    ]
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def _runs(columns: list[Tensor]) -> Tensor:
    """Rows for runs of 2^level bins of each feature, from bins (d_model, BINS) of every column."""
    levels = [torch.stack(columns, dim=-1)]  # (d_model, BINS, columns)
    while 2 ** len(levels) <= BINS:
        half, last = 2 ** (len(levels) - 1), levels[-1]
        levels.append(torch.maximum(last, torch.nn.functional.pad(last[:, half:], (0, 0, 0, half))))
    return torch.stack(levels).flatten(0, 2)
