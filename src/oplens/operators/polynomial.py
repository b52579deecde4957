r"""The readout as a polynomial: erf-GELU expanded in one basis that holds Taylor and Hermite alike.

On w = z - m the basis is  H_0 = 1, H_1 = w, H_{k+1} = w H_k - k v H_{k-1},  which is s^k He_k(w / s) for variance v = s^2
(Hermite: orthogonal under N(m, v)) and w^k for v = 0 (Taylor at m). The coefficients have one closed form as well, of which
Taylor is the limit v -> 0: d_k = E[g^(k)(m + s X)] / k! with X standard normal.

Source: design of this library (derived afresh; the Carleman embedding of arXiv 2604.20595 is Taylor at 0).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError

FAMILIES = ("hermite", "taylor")


def normal_cdf(x: Tensor) -> Tensor:
    """Standard normal distribution function, relatively accurate in both tails (torch's own loses the left one to 1 + erf)."""
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def gelu(z: Tensor) -> Tensor:
    """Erf-form GELU, z Phi(z)."""
    return z * normal_cdf(z)


def normal_density(x: Tensor) -> Tensor:
    """Standard normal density."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_coefficients(centre: Tensor, variance: Tensor, order: int) -> Tensor:
    r"""Coefficients d_0..d_order of erf-GELU in the basis above.

    With u = sqrt(1 + variance), q = centre / u:

        d_0 = centre Phi(q) + (variance / u) phi(q)        d_1 = Phi(q) + q phi(q) / u^2
        d_k = (-1)^k u^(1-k) phi(q) (He_{k-2}(q) - He_k(q) / u^2) / k!        k >= 2

    Parameters
    ----------
    centre, variance : Tensor, (d_model,)
        Of the Gaussian the expansion is adapted to; variance 0 gives the Taylor coefficients at `centre`.
    order : int
        At least 1.

    Returns
    -------
    Tensor, (d_model, order + 1)

    Notes
    -----
    Accuracy: *exact*, a few eps times the largest of the two subtracted terms. He_n / sqrt(n!) is what is recurred, so that high
    orders do not overflow. Cost: O(d_model order).

    Examples
    --------
    >>> import torch
    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> [round(v, 6) + 0.0 for v in gelu_coefficients(zero, zero, 4)[0].tolist()]  # z/2 + z^2/sqrt(2 pi) - z^4/(6 sqrt(2 pi))
    [0.0, 0.5, 0.398942, 0.0, -0.06649]
    """
    check_order(order)
    u = torch.sqrt(1 + variance)
    q = centre / u
    density = normal_density(q)
    below = normal_cdf(q)
    columns = [centre * below + variance / u * density, below + q * density / u**2]
    scaled = [torch.ones_like(q), q]  # He_n(q) / sqrt(n!)
    for n in range(1, order):
        scaled.append((q * scaled[n] - math.sqrt(n) * scaled[n - 1]) / math.sqrt(n + 1))
    for k in range(2, order + 1):
        # 1/k! = (k!)^(-1/2) (k!)^(-1/2): one half belongs to the scaled He, the other is formed in logarithms.
        half = math.exp(-0.5 * math.lgamma(k + 1))
        bracket = scaled[k - 2] / math.sqrt(k * (k - 1)) - scaled[k] / u**2
        columns.append((-1) ** k * u ** (1 - k) * density * bracket * half)
    return torch.stack(columns, dim=-1)


@dataclass(frozen=True)
class Expansion:
    """A readout polynomial per feature: family, centre (d_model,), variance (d_model,), coefficients (d_model, order + 1)."""

    family: str
    centre: Tensor
    variance: Tensor
    coefficients: Tensor

    @property
    def order(self) -> int:
        """Degree of the polynomial."""
        return int(self.coefficients.shape[-1]) - 1

    @classmethod
    def fit(cls, family: str, order: int, mean: Tensor, variance: Tensor) -> "Expansion":
        """Hermite about the given Gaussian, or Taylor at 0 (mean and variance are then not used).

        Examples
        --------
        >>> import torch
        >>> one = torch.ones(3, dtype=torch.float64)
        >>> Expansion.fit("hermite", 2, one, one).order
        2
        """
        if family not in FAMILIES:
            raise ArgumentError(f"expand(family={family!r}): unknown family; choose one of {', '.join(FAMILIES)}.")
        if family == "taylor":
            mean, variance = torch.zeros_like(mean), torch.zeros_like(variance)
        return cls(family, mean, variance, gelu_coefficients(mean, variance, order))

    def basis(self, w: Tensor, order: int) -> list[Tensor]:
        """H_0..H_order at w (batch, d_model, length); negative indices are never asked for."""
        variance = self.variance[:, None]
        values = [torch.ones_like(w), w]
        for k in range(1, order):
            values.append(w * values[k] - k * variance * values[k - 1])
        return values[: order + 1]

    def evaluate(self, z: Tensor) -> Tensor:
        """The polynomial at z (batch, d_model, length)."""
        values = self.basis(z - self.centre[:, None], self.order)
        return sum((self.coefficients[:, k, None] * value for k, value in enumerate(values)), torch.zeros_like(z))

    def divided_difference(self, z: Tensor) -> Tensor:
        """(g(z) - g(m)) / (z - m), continued by g' at z = m; equals Phi(z) for m = 0."""
        # = Phi(z) + m (Phi(z) - Phi(m)) / w, in which only the last quotient cancels near m: there the midpoint rule
        # phi(c) + w^2 phi''(c) / 24 is exact to 1e-15 (the next term is w^4 phi''''(c) / 1920).
        m = self.centre[:, None]
        w = z - m
        near = w.abs() < 1e-3
        middle = m + w / 2
        limit = normal_density(middle) * (1 + w * w * (middle**2 - 1) / 24)
        # Both taken from the tail that m lies in, so that large |m| leaves nothing to cancel.
        tail = normal_cdf(-z.abs())
        below, above = torch.where(z < 0, tail, 1 - tail), torch.where(z < 0, 1 - tail, tail)
        rise = torch.where(m > 0, normal_cdf(-m) - above, below - normal_cdf(m)) / torch.where(near, 1.0, w)
        return below + m * torch.where(near, limit, rise)


def check_order(order: int) -> None:
    """Refuse orders below 1 with a sentence."""
    if isinstance(order, bool) or not isinstance(order, int):
        raise ArgumentError(f"expand(order={order!r}): order must be a whole number, got {type(order).__name__}.")
    if order < 1:
        raise ArgumentError(f"expand(order={order}): order must be at least 1; order 1 is the waves themselves.")
