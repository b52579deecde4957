r"""Truncated power series in one variable: arithmetic on the coefficients f_0, f_1, ..., f_K of f(eps) = sum_k f_k eps^k.

A series is one tensor (K + 1, ...), its coefficients first; every function is elementwise over the other axes. Composites come from the
differential equation that the outer function solves, so no derivative is ever formed:

    e = exp(a):         n e_n = sum_{k=1}^n k a_k e_{n-k}
    s = sigmoid(a):     n s_n = sum_{k=1}^n k a_k p_{n-k},          p = s (1 - s)
    P = Phi(a):         n P_n = sum_{k=1}^n k a_k phi_{n-k},        phi = exp(-a^2 / 2) / sqrt(2 pi)
    r = a^alpha:        n a_0 r_n = sum_{k=1}^n (alpha k - n + k) a_k r_{n-k}

Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 13; erf-GELU and the tails of the sigmoid are written here so that
nothing cancels. Accuracy: *exact*, a few eps of the largest product in a sum. Cost: O(K^2) elementwise products.
"""

import math

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial import normal_cdf, normal_density

GROUP = 32  # series whose roots are computed at once


def line(start: Tensor, end: Tensor, order: int) -> Tensor:
    """Series of start + eps (end - start), cut after `order`.

    Examples
    --------
    >>> import torch
    >>> line(torch.tensor(1.0), torch.tensor(3.0), 3).tolist()
    [1.0, 2.0, 0.0, 0.0]
    """
    if order < 1:
        raise ArgumentError(f"line(order={order}): a line has an order 1.")
    series = start.new_zeros(order + 1, *start.shape)
    series[0], series[1] = start, end - start
    return series


def product(a: Tensor, b: Tensor) -> Tensor:
    """Series of a b.

    Examples
    --------
    >>> import torch
    >>> product(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])).tolist()
    [1.0, 4.0, 4.0]
    """
    shape = torch.broadcast_shapes(a.shape[1:], b.shape[1:])
    out = torch.zeros(len(a), *shape, dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    for n in range(len(a)):
        for k in range(n + 1):
            out[n].addcmul_(a[k], b[n - k])
    return out


def reciprocal(a: Tensor) -> Tensor:
    """Series of 1 / a, a_0 not 0.

    Examples
    --------
    >>> import torch
    >>> reciprocal(torch.tensor([1.0, -1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return power(a, -1.0)


def sqrt(a: Tensor) -> Tensor:
    """Series of sqrt(a), a_0 > 0.

    Examples
    --------
    >>> import torch
    >>> sqrt(torch.tensor([1.0, 2.0, 1.0])).tolist()
    [1.0, 1.0, 0.0]
    """
    return power(a, 0.5)


def rsqrt(a: Tensor) -> Tensor:
    """Series of 1 / sqrt(a), a_0 > 0.

    Examples
    --------
    >>> import torch
    >>> rsqrt(torch.tensor([4.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    return power(a, -0.5)


def power(a: Tensor, alpha: float) -> Tensor:
    """Series of a ** alpha by J. C. P. Miller's recurrence; a_0 must lie where the power is analytic."""
    out = torch.zeros_like(a)
    out[0] = a[0] ** alpha
    for n in range(1, len(a)):
        for k in range(1, n + 1):
            out[n].addcmul_(a[k], out[n - k], value=(alpha * k - n + k) / n)
        out[n] /= a[0]
    return out


def exp(a: Tensor) -> Tensor:
    """Series of exp(a).

    Examples
    --------
    >>> import torch
    >>> exp(torch.tensor([0.0, 1.0, 0.0])).tolist()
    [1.0, 1.0, 0.5]
    """
    out = torch.zeros_like(a)
    out[0] = torch.exp(a[0])
    for n in range(1, len(a)):
        _integrate(a, out, out, n)
    return out


def sigmoid(a: Tensor) -> Tensor:
    """Series of 1 / (1 + exp(-a)).

    Examples
    --------
    >>> import torch
    >>> sigmoid(torch.tensor([0.0, 1.0, 0.0])).tolist()
    [0.5, 0.25, 0.0]
    """
    out, slope = torch.zeros_like(a), torch.zeros_like(a)
    out[0], below = torch.sigmoid(a[0]), torch.sigmoid(-a[0])
    slope[0] = out[0] * below
    for n in range(1, len(a)):
        _integrate(a, slope, out, n)
        # s (1 - s) at order n: the two ends of the square belong to s_n, with 1 - 2 s_0 written so that tails keep their digits.
        slope[n] = out[n] * (below - out[0])
        for j in range(1, n):
            slope[n].addcmul_(out[j], out[n - j], value=-1)
    return out


def standard_normal(a: Tensor) -> Tensor:
    """Series of the standard normal distribution function Phi(a)."""
    density = exp(-product(a, a) / 2) / math.sqrt(2 * math.pi)
    out = torch.zeros_like(a)
    density[0], out[0] = normal_density(a[0]), normal_cdf(a[0])
    for n in range(1, len(a)):
        _integrate(a, density, out, n)
    return out


def gelu(a: Tensor) -> Tensor:
    """Series of erf-GELU, a Phi(a).

    Examples
    --------
    >>> import torch
    >>> [round(v, 6) for v in gelu(torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])).tolist()]
    [0.0, 0.5, 0.398942, 0.0, -0.06649]
    """
    return product(a, standard_normal(a))


def polynomial(coefficients: Tensor, a: Tensor) -> Tensor:
    """Series of sum_k c_k a^k, coefficients (d_model, degree + 1) of each last axis's entry of a (K + 1, ..., d_model).

    Examples
    --------
    >>> import torch
    >>> polynomial(torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[3.0], [1.0], [0.0], [0.0]]))[:, 0].tolist()  # 1 + 2 (3 + eps)^2
    [19.0, 12.0, 2.0, 0.0]
    """
    out = torch.zeros_like(a)
    out[0] = coefficients[:, -1]
    for k in range(coefficients.shape[1] - 2, -1, -1):
        out = product(out, a)
        out[0] += coefficients[:, k]
    return out


def _integrate(a: Tensor, slope: Tensor, out: Tensor, n: int) -> None:
    """Put coefficient n of f(a) into out, f' having the series `slope` along a: n f_n = sum_k k a_k slope_{n-k}."""
    for k in range(1, n + 1):
        out[n].addcmul_(a[k], slope[n - k], value=k / n)


def nearest_zero(series: Tensor, within: float = math.inf) -> float:
    r"""Smallest modulus of a zero over many series (K + 1, n), real or complex; `within` when all lie beyond it.

    A zero at abs(eps) <= r needs sum_{k>=1} abs(f_k) r^k >= abs(f_0), so the roots are computed (eigenvalues of the companion matrix of
    the reversed polynomial) only for the few series in which the best radius so far is not excluded.

    Notes
    -----
    Claim: *measured*. The zeros are those of the polynomials of degree K: where the nearest zero lies inside the disc in which its
    series converges the error shrinks geometrically with K; at the edge of that disc it is found from outside, by some percent.
    0.0 where coefficients leave double precision.

    Examples
    --------
    >>> import torch
    >>> round(nearest_zero(torch.tensor([[6.0, 4.0], [-5.0, 0.0], [1.0, 1.0]])), 6)  # (2 - x)(3 - x) and 4 + x^2
    2.0
    """
    if not bool(torch.isfinite(series.abs()).all()):
        return 0.0
    degree = len(series) - 1
    size = (series / series[0]).abs()
    steps = torch.arange(1, degree + 1, dtype=size.dtype)[:, None]
    best, open_ = within, torch.ones(series.shape[1], dtype=torch.bool)
    while True:
        # Before anything bounds the search, the largest (abs(f_k) / abs(f_0))^(1/k) points to small zeros.
        score = (size[1:] ** (1 / steps)).amax(0) if math.isinf(best) else _reach(size, best)
        possible = open_ & (score > 0 if math.isinf(best) else score >= 1)
        group = torch.topk(torch.where(possible, score, -1.0), min(GROUP, len(score))).indices
        group = group[possible[group]]
        if not len(group):
            return best
        companion = series.new_zeros(len(group), degree, degree)
        companion[:, 0] = -(series[1:, group] / series[0, group]).T
        companion[:, range(1, degree), range(degree - 1)] = 1
        best = min(best, float(1 / torch.linalg.eigvals(companion).abs().max()))
        open_[group] = False


def _reach(series: Tensor, radius: float) -> Tensor:
    """sum_{k>=1} abs(f_k) radius^k: no value at abs(eps) <= radius is farther from f_0, (n,) of (K + 1, n)."""
    size = series[1:].abs()
    steps = torch.arange(1, len(series), dtype=size.dtype)[:, None]
    return torch.where(size > 0, size * radius**steps, 0.0).sum(0)  # a power may overflow where its coefficient is 0
