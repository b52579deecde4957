r"""Readouts that are polynomials themselves, one per feature: every expansion of theirs is exact from their own degree on.

g_h(z) = sum_k a_hk z^k. About any centre c the coefficients b_j of (z - c)^j follow by repeated synthetic division, and in the basis H_k of
variance v (see `closed_forms`) from  w^j = sum_i j! / (i! (j - 2i)! 2^i) v^i H_{j-2i}:

    d_k = sum_i b_{k+2i} (k + 2i)! / (k! i! 2^i) v^i,        0 beyond the degree.
"""

import math

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial.activations import Activation


def polynomial_activation(polynomial: Tensor) -> Activation:
    """The readout of those coefficients (d_model, degree + 1) of 1, z, z^2, ..., for values laid out as (..., d_model, n).

    Its `taylor` takes one point per feature; its `quotient` is a sum of products, in which nothing cancels that the polynomial does
    not cancel itself.

    Examples
    --------
    >>> import torch
    >>> square = polynomial_activation(torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64))
    >>> z = torch.tensor([[3.0]], dtype=torch.float64)
    >>> square.value(z).item(), square.derivative(z, 1).item(), square.quotient(z, z).item(), square.taylor(z[0], 3).tolist()
    (9.0, 6.0, 6.0, [[9.0, 6.0, 1.0, 0.0]])
    """
    if polynomial.ndim != 2 or polynomial.shape[1] < 2 or not bool(torch.isfinite(polynomial).all()):
        raise ArgumentError(
            f"polynomial_activation: expected finite coefficients (d_model, degree + 1), degree 1 or more, got {tuple(polynomial.shape)}."
        )
    a = polynomial.detach().double()
    return Activation(
        "polynomial",
        lambda z: horner(a, z),
        lambda point, order: hermite_of_polynomial(a, point, torch.zeros_like(point), order),
        lambda z, m: _quotient(a, z, m),
        lambda point: torch.full_like(point, math.inf),
        math.inf,
        polynomial=a,
    )


def horner(polynomial: Tensor, z: Tensor) -> Tensor:
    """sum_k polynomial[h, k] z^k at z (..., d_model, n)."""
    value = polynomial[:, -1:].expand_as(z)
    for k in range(polynomial.shape[-1] - 2, -1, -1):
        value = value * z + polynomial[:, k, None]
    return value


def derived(polynomial: Tensor, k: int) -> Tensor:
    """Coefficients of the k-th derivative, at least one of them."""
    for _ in range(k):
        steps = torch.arange(1, polynomial.shape[-1], dtype=polynomial.dtype)
        polynomial = polynomial[..., 1:] * steps if len(steps) else torch.zeros_like(polynomial)
    return polynomial


def hermite_of_polynomial(polynomial: Tensor, centre: Tensor, variance: Tensor, order: int) -> Tensor:
    """Coefficients d_0..d_order in the basis H_k of that centre and variance: (..., order + 1).

    Parameters
    ----------
    polynomial : Tensor, (..., degree + 1)
        Its leading dimensions broadcast with those of the centre.
    centre, variance : Tensor, (...)
        Variance 0 gives the Taylor coefficients at the centre.

    Notes
    -----
    Accuracy: *exact*, a few eps times the largest summand. Cost: O(degree^2) per centre.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> hermite_of_polynomial(torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), one, 4 * one, 3).tolist()  # z^2 about 1, variance 4
    [[5.0, 2.0, 1.0, 0.0]]
    """
    shape = torch.broadcast_shapes(polynomial.shape[:-1], centre.shape, variance.shape)
    columns = [column.expand(shape) for column in polynomial.unbind(-1)]
    degree = len(columns) - 1
    for start in range(degree):
        for j in range(degree - 1, start - 1, -1):
            columns[j] = columns[j] + centre * columns[j + 1]
    found = []
    for k in range(order + 1):
        total = torch.zeros(shape, dtype=centre.dtype)
        for i in range((degree - k) // 2 + 1 if k <= degree else 0):
            ways = math.factorial(k + 2 * i) // (math.factorial(k) * math.factorial(i)) / 2**i
            total = total + ways * columns[k + 2 * i] * variance**i
        found.append(total)
    return torch.stack(found, dim=-1)


def chebyshev_of_polynomial(polynomial: Tensor, centre: Tensor, radius: Tensor, order: int) -> Tensor:
    """Coefficients of T_k on [centre - radius, centre + radius] (d_model, order + 1), by a quadrature that is exact for the degree."""
    degree = polynomial.shape[-1] - 1
    n = max(degree, order) + 1
    theta = (2 * torch.arange(n, dtype=torch.float64) + 1) * (math.pi / 2 / n)
    cosines = torch.cos(theta[:, None] * torch.arange(order + 1, dtype=torch.float64)) * (2 / n)
    cosines[:, 0] /= 2
    cosines[:, degree + 1 :] = 0
    return horner(polynomial, centre[:, None] + radius[:, None] * torch.cos(theta)) @ cosines


def extremes(polynomial: Tensor, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers not above and not below the polynomial on [lo, hi] (..., d_model): the same shape each.

    Notes
    -----
    Accuracy: *bound* (Ehlich and Zeller 1964, about the middle of the sampled values), 1.02 times the half range; rounding included.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> low, high = extremes(torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), -one, 2 * one)
    >>> bool(-0.05 < low < 0), bool(4 <= high < 4.05)
    (True, True)
    """
    degree = polynomial.shape[-1] - 1
    if degree == 0:
        value = polynomial[:, 0].expand_as(lo)
        return value, value
    m = 8 * degree
    nodes = torch.cos(torch.arange(m + 1, dtype=torch.float64) * (math.pi / m))
    half = (hi - lo) / 2
    x = (lo + half)[..., None] + half[..., None] * nodes
    values = horner(polynomial, x)
    size = horner(polynomial.abs(), x.abs().amax(-1, keepdim=True))[..., 0]
    low, high = values.amin(-1), values.amax(-1)
    reach = (high - low) / 2 / math.cos(degree * math.pi / (2 * m)) + 1e-14 * (degree + 1) * size
    middle = low + (high - low) / 2
    return middle - reach, middle + reach


def _quotient(polynomial: Tensor, z: Tensor, m: Tensor) -> Tensor:
    """(g(z) - g(m)) / (z - m): synthetic division by z - m, then Horner's rule."""
    shape = torch.broadcast_shapes(z.shape, m.shape)
    row = polynomial[:, -1:].expand(torch.broadcast_shapes(m.shape, polynomial[:, :1].shape))
    rows = [row]
    for k in range(polynomial.shape[-1] - 2, 0, -1):
        row = row * m + polynomial[:, k, None]
        rows.append(row)
    value = rows[0].expand(shape)
    for row in rows[1:]:
        value = value * z + row
    return value
