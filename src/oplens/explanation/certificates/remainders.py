r"""What polynomials leave of the readout, E_K = g - p_K, on any interval: certified sup of abs(E_K) and of abs(E_K'').

Looked up from bins, as in :class:`oplens.operators.polynomial.RemainderTable`, for many orders at once. In a bin with Chebyshev points x_i, one
of which lies within q of any point of it,

    sup abs(E)   <= max_i abs(E(x_i)) + q (max_i abs(E'(x_i)) + q sup abs(E''))
    sup abs(E'') <= max_i abs(E''(x_i)) + q (max_i abs(E'''(x_i)) + q (max abs(g'''') + sup abs(p''''))),

the last sup, and that of abs(g'''') where g is a polynomial itself, by Ehlich and Zeller (see operators/polynomial/remainder). Source:
derived for this library.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.operators.polynomial import Activation, Expansion, Series
from oplens.operators.polynomial.polynomials import derived, horner

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
        """Certify every bin of [lo, hi] (d_model,) for the expansion cut at each of the orders, which increase.

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
        series = expansion.truncated(orders[-1]).recurrence()
        readout = expansion.activation
        degree = 0 if readout.polynomial is None else readout.polynomial.shape[-1] - 1
        points = max(32, 2 * series.order, 2 * degree)
        parts = [  # a few features at a time: a dozen arrays of every bin's points are held
            _tabulated(series.select(rows), readout.select(rows), orders, lo[rows], hi[rows], points)
            for rows in torch.arange(len(lo)).split(max(1, 2**17 // (BINS * points)))
        ]
        certified, lost = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return cls(orders, lo, hi, _runs(certified), _runs(lost))

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


def _tabulated(
    series: Series, g: Activation, orders: tuple[int, ...], lo: Tensor, hi: Tensor, m: int
) -> tuple[Tensor, Tensor]:
    """Per feature and bin, sup abs(E) of every order and then sup abs(E''), and the rounding of p and p': (d_model, BINS, 2 n_orders)."""
    half = (hi - lo)[:, None] / (2 * BINS)
    nodes = torch.cos(torch.arange(m + 1, dtype=torch.float64) * (math.pi / m))
    x = (lo[:, None] + half * (2 * torch.arange(BINS) + 1))[..., None] + half[..., None] * nodes
    readout, fourth, slack = _readout(g, x, m)
    gap = half * (math.pi / (2 * m))  # nodes are at most twice this apart
    total, envelope = torch.zeros(5, *x.shape, dtype=x.dtype), torch.zeros(4, *x.shape[:2], dtype=x.dtype)
    lost, found, rounding = envelope.clone(), [], []
    for k, flat in enumerate(_basis(series, x.flatten(1), orders[-1], 4)):
        basis = flat.unflatten(-1, x.shape[1:])
        total += series.coefficients[:, k, None, None] * basis
        # A step's rounding travels on as the polynomials themselves do, so term k is off by what the largest so far allows.
        envelope = torch.maximum(envelope, basis[:4].abs().amax(-1))
        lost += LOST * (k + 1) ** 2 * series.coefficients[:, k, None].abs() * envelope
        if k in orders:
            left = (readout - total[:4]).abs().amax(-1) + lost + slack
            both = fourth + total[4].abs().amax(-1) / math.cos(max(k - 4, 0) * math.pi / (2 * m))
            bend = (left[2] + gap * (left[3] + gap * both)) * (1 + 1e-9)
            found.append(((left[0] + gap * (left[1] + gap * bend)) * (1 + 1e-9), bend))
            rounding.append(lost[:2].clone())
    sups, bends = zip(*found, strict=True)
    values, slopes = zip(*rounding, strict=True)
    return torch.stack((*sups, *bends), dim=-1), torch.stack((*values, *slopes), dim=-1)


def _readout(g: Activation, z: Tensor, m: int) -> tuple[Tensor, Tensor | float, Tensor | float]:
    """g, g', g'' and g''' (4, d_model, BINS, m + 1), a bound on max abs(g'''') of every bin, and on the rounding of the four."""
    flat = z.flatten(1)
    values = torch.stack([g.derivative(flat, k) for k in range(4)]).unflatten(-1, z.shape[1:])
    if g.polynomial is None:
        return values, FOURTH, 1e-14
    degree = g.polynomial.shape[-1] - 1
    largest = g.derivative(flat, 4).abs().unflatten(-1, z.shape[1:]).amax(-1)
    size = z.abs().amax(-1)  # terms of equal sign at the bin's far end are as large as rounding ever sees
    terms = torch.stack([horner(derived(g.polynomial.abs(), k), size) for k in range(5)])
    slack = LOST * (degree + 1) ** 2 * terms
    fourth = (largest + slack[4]) / math.cos(max(degree - 4, 0) * math.pi / (2 * m))
    return values, fourth, slack[:4] + 1e-300


def _runs(bins: Tensor) -> Tensor:
    """Rows for runs of 2^level bins of each feature, from bins (d_model, BINS, columns)."""
    levels = [bins]
    while 2 ** len(levels) <= BINS:
        half, last = 2 ** (len(levels) - 1), levels[-1]
        levels.append(torch.maximum(last, torch.nn.functional.pad(last[:, half:], (0, 0, 0, half))))
    return torch.stack(levels).flatten(0, 2)
