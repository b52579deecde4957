r"""Coefficients of every activation in every family: closed forms where there are any, else sums that converge geometrically."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial.activations import Activation
from oplens.operators.polynomial.closed_forms import (
    check_order,
    gelu_chebyshev,
    gelu_coefficients,
    hermite_values,
    relu_chebyshev,
    relu_coefficients,
)
from oplens.operators.polynomial.polynomials import chebyshev_of_polynomial, hermite_of_polynomial
from oplens.operators.polynomial.series import Series

Samples = Callable[[], Iterable[tuple[Tensor, Tensor]]]
NODES = 2**19  # the most points a Chebyshev fit may take


def hermite(g: Activation, centre: Tensor, variance: Tensor, order: int) -> Tensor:
    r"""Coefficients d_k = E[g^(k)(centre + s X)] / k! in the basis H_k: (d_model, order + 1).

    Notes
    -----
    Accuracy: closed forms for erf-GELU, ReLU and polynomials. Otherwise the trapezoidal rule, whose error for integrands analytic in a strip
    of half-width d is exp(-2 pi d / h) (Trefethen and Weideman 2014, theorem 5.1); h is chosen for 1e-17, the growth
    exp(d sqrt(2k)) of He_k off the real line included. For s <= strip / pi the k-th derivatives are averaged, accurate to a few
    eps in d_k r^k, r the radius of convergence; for larger s, where these would cancel, E[g He_k] is, accurate to a few eps
    times E abs(g) in s^k sqrt(k!) d_k, the standard deviation of the k-th term. Cost: O(d_model order nodes), nodes about
    120 max(1, s).
    """
    check_order(order)
    if g.polynomial is not None:
        return hermite_of_polynomial(g.polynomial, centre, variance, order)
    if g.name == "gelu":
        return gelu_coefficients(centre, variance, order)
    if g.name == "relu":
        return relu_coefficients(centre, variance, order)
    rows = [_hermite_row(g, m, s, order) for m, s in zip(centre, torch.sqrt(variance), strict=True)]
    return torch.stack(rows) if rows else torch.zeros(0, order + 1, dtype=torch.float64)


def _hermite_row(g: Activation, m: Tensor, s: Tensor, order: int) -> Tensor:
    if s == 0:
        return g.taylor(m[None], order)[0]
    # Halfway to the poles the k-th derivative is 2^k times what it is on the line.
    derivatives = s.item() <= g.strip / math.pi
    share, growth = (0.5, order * math.log(2)) if derivatives else (0.95, 0.0)
    strip = min(share * g.strip / s.item(), 4.0)
    step = 2 * math.pi * strip / (42 + growth + strip * strip / 2 + strip * math.sqrt(2 * order))
    reach = 9.5 + 1.5 * math.sqrt(order)
    n = math.ceil(reach / step)
    x = torch.arange(-n, n + 1, dtype=torch.float64) * step
    weight = step * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if derivatives:
        return weight @ g.taylor(m + s * x, order)
    value = weight * g.value(m + s * x)
    k = torch.arange(order + 1, dtype=torch.float64)
    # 1/sqrt(k!) once in hermite_values, once here
    return torch.stack([value @ he for he in hermite_values(x, order)]) * torch.exp(
        -torch.lgamma(k + 1) / 2 - k * torch.log(s)
    )


def chebyshev(g: Activation, centre: Tensor, radius: Tensor, order: int) -> Tensor:
    r"""Coefficients of T_k on [centre - radius, centre + radius]: (d_model, order + 1).

    Notes
    -----
    Accuracy: closed forms for ReLU, and for erf-GELU on symmetric intervals. Otherwise Gauss-Chebyshev quadrature; N nodes alias
    2 M rho^(k-2N) at most, and N is chosen to put that below 1e-17 M. Rounding is eps times the largest value of g.
    Cost: O(d_model order N), N about order + 20 radius / strip.
    """
    check_order(order)
    if g.polynomial is not None:
        return chebyshev_of_polynomial(g.polynomial, centre, radius, order)
    if g.name == "relu":
        return relu_chebyshev(centre, radius, order)
    if g.name == "gelu" and not bool(centre.any()):
        return gelu_chebyshev(radius, order)
    b = min(0.8 * g.strip, 4.0) / radius.max().item()
    n = math.ceil(order / 2 + 27 / math.asinh(b)) + 8  # log rho = asinh(b); M grows by exp(8) at most for b radius <= 4
    if n > NODES:
        raise ArgumentError(
            f"expand(family='chebyshev'): an interval of half-width {radius.max().item():.3g} asks for {n} nodes (limit {NODES}); "
            "no polynomial of moderate degree follows the readout over such a range: rescale the model's inputs."
        )
    theta = (2 * torch.arange(n, dtype=torch.float64) + 1) * (math.pi / 2 / n)
    cosines = torch.cos(theta[:, None] * torch.arange(order + 1, dtype=torch.float64)) * (2 / n)
    cosines[:, 0] /= 2
    rows = [g.value(c + r * torch.cos(theta)) @ cosines for c, r in zip(centre, radius, strict=True)]
    return torch.stack(rows) if rows else torch.zeros(0, order + 1, dtype=torch.float64)


def empirical(g: Activation, samples: Samples, order: int) -> Series:
    r"""Least squares under the observed pre-activations, by the Stieltjes procedure.

    In u = (z - mean) / s the monic orthogonal polynomials are P_{k+1} = (u - shift_k) P_k - back_k P_{k-1} with
    shift_k = <u P_k, P_k> / <P_k, P_k>, back_k = <P_k, P_k> / <P_{k-1}, P_{k-1}>, and coefficients <g - p_{k-1}, P_k> / <P_k, P_k>
    (the residual, not g, so that what earlier orders left of rounding is taken along).

    Notes
    -----
    Accuracy: *fitted*; orthogonality to about eps times the largest abs(P_k) for orders well below sqrt(number of samples).
    A feature that takes n different values has coefficients 0 beyond order n - 1. Cost: order + 2 passes over the samples.
    """
    check_order(order)
    mean, variance = _mean_and_variance(samples)
    scale = torch.where(variance > 0, torch.sqrt(variance), 1.0)
    rows = len(mean)
    one = torch.ones(rows, order, dtype=torch.float64)
    shift, back = torch.zeros(rows, order, dtype=torch.float64), torch.zeros(rows, order, dtype=torch.float64)
    coefficients = torch.zeros(rows, order + 1, dtype=torch.float64)
    series = Series(mean, scale, one, shift, back, coefficients)
    norm_before = torch.ones_like(mean)
    for k in range(order + 1):
        norm, first, projection, size = torch.zeros(4, rows, dtype=torch.float64)
        for z, weight in samples():
            u = (z - mean[:, None]) / scale[:, None]
            value = list(series.truncated(k).basis(z))[-1]
            weighed = weight[:, None] * value
            norm += torch.einsum("bhl,bhl->h", weighed, value)
            first += torch.einsum("bhl,bhl->h", weighed * u, value)
            projection += torch.einsum("bhl,bhl->h", weighed, g.value(z) - series.evaluate(z))
            size += torch.einsum("bl,bhl->h", weight, torch.clamp(u.abs(), min=1.0) ** (2 * k))
        # zero at every sample, up to rounding: the feature takes k values only
        empty = norm <= 1e-24 * size
        coefficients[:, k] = torch.where(empty, 0.0, projection / torch.where(empty, 1.0, norm))
        if k < order:
            shift[:, k] = torch.where(empty, 0.0, first / torch.where(empty, 1.0, norm))
            back[:, k] = torch.where(empty | (k == 0), 0.0, norm / norm_before)
        norm_before = torch.where(empty, 1.0, norm)
    return series


def _mean_and_variance(samples: Samples) -> tuple[Tensor, Tensor]:
    total = mean = None
    for z, weight in samples():
        if bool((weight < 0).any()) or not bool(torch.isfinite(z).all()):
            raise ArgumentError("expand(family='empirical'): weights must not be negative and samples must be finite.")
        mean = (0.0 if mean is None else mean) + torch.einsum("bl,bhl->h", weight, z)
        total = (0.0 if total is None else total) + weight.sum()
    if mean is None or total is None or not bool(total > 0):
        raise ArgumentError("expand(family='empirical'): there is no sample of positive weight to fit to.")
    mean = mean / total
    variance = torch.zeros_like(mean)
    for z, weight in samples():
        variance += torch.einsum("bl,bhl->h", weight, (z - mean[:, None]) ** 2)
    variance = variance / total
    # a constant keeps no variance of its own rounding
    return mean, torch.where(variance > 1e-24 * mean * mean, variance, 0.0)


def check_interval(lo: Tensor, hi: Tensor, call: str) -> None:
    """Refuse intervals that are empty or not finite."""
    if not (bool(torch.isfinite(lo).all()) and bool(torch.isfinite(hi).all())):
        raise ArgumentError(f"{call}: the ends of an interval must be finite numbers.")
    wrong = (lo > hi).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ArgumentError(
            f"{call}: the interval [{lo[at].item():g}, {hi[at].item():g}] at {at} is empty; give lo <= hi."
        )
