r"""Moments of a pooled readout of Gaussian pre-activations, order by order of their Wiener expansion.

Sites x = (h, t) hold jointly Gaussian pre-activations with means m_x and covariance R_xy; the target is a constant plus
sum_x omega_x g(z_x). With the Hermite coefficients d_xk of g under N(m_x, R_xx) and c_k(x) = omega_x d_xk,

    mean             sum_x c_0(x)
    variance         sum_k k! sum_xy c_k(x) R_xy^k c_k(y)                        every order adds; R^k entry by entry
    orders 1 and 2   g'n + n'Q n - tr Q,   g = sum_x c_1(x) k_x,   Q = sum_x c_2(x) k_x k_x'          with z_x = m_x + k_x'n

R and its powers belong to the noise alone, so any number of signals share them: a signal costs one more column of a matrix product.

What orders above K leave out of the variance is bounded entry by entry: with rho the correlation, Cauchy-Schwarz at every pair gives

    sum_{k>K} k! c_k(x) R_xy^k c_k(y) <= abs(rho_xy)^(K+1) sqrt(T_x T_y),   T_x = omega_x^2 sum_{k>K} k! d_xk^2 R_xx^k

T_x = omega_x^2 Var g(z_x) less its first K orders, closed form with Owen's T; in small noise that difference is rounding, and
T_x <= omega_x^2 (R_xx^2 E[g''(z_x)^2] - sum_{k<=K} k (k-1) k! d_xk^2 R_xx^k) / (K (K+1)) is used, which shrinks with the noise. (For GELU.
A polynomial has no coefficients beyond its degree, and T_x is the sum of those that are left: 0 for K at the degree or above.)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from oplens.operators.polynomial import (
    ACTIVATIONS,
    Activation,
    gelu_coefficients,
    hermite_of_polynomial,
    normal_cdf,
    normal_density,
)

BLOCK = 2**18  # float64 values of a block of covariances: 2 MB, near the cache (measured 1.5x faster than 8 MB)
ROUNDING = 1e-13  # relative: above what the closed forms and the coefficients lose


@dataclass(frozen=True)
class WhiteNoise:
    """Noise that is white in time, as the pre-activations see it; everything at unit scale, `scale` restores the units.

    Attributes
    ----------
    response : Tensor, (d_model, length)
        Impulse responses of the pre-activations.
    root : Tensor, (d_model, d_input)
        Encoder times a square root of the noise covariance, divided by `scale`.
    scale : float
        Largest standard deviation of a pre-activation (1 without noise): powers of the covariance neither overflow nor vanish.
    remove_offset : bool
        Whether the model subtracts every case's own mean: K becomes K - cumsum(K) 1' / length.
    """

    response: Tensor
    root: Tensor
    scale: float
    remove_offset: bool

    @classmethod
    def of(cls, response: Tensor, root: Tensor, remove_offset: bool) -> "WhiteNoise":
        """From a root in the units of the preprocessed input."""
        largest = math.sqrt(float(cls(response, root, 1.0, remove_offset).variance.max()))
        scale = largest if largest > 0 else 1.0
        return cls(response, root / scale, scale, remove_offset)

    @cached_property
    def variance(self) -> Tensor:
        """Variance of every pre-activation at unit scale, (d_model, length)."""
        memory = (self.response**2).cumsum(-1)
        if self.remove_offset:
            memory = (memory - self.response.cumsum(-1) ** 2 / self.response.shape[1]).clamp(min=0)
        return (self.root**2).sum(-1, keepdim=True) * memory

    def blocks(self) -> Iterator[tuple[int, slice, Tensor]]:
        """(feature h, steps, R of (h, steps) with features h, h+1, ... as (steps, features, length)), every pair of features once.

        R_hh'(t, t') = (root root')_hh' sum_{l <= min(t, t')} K_h[t - l] K_h'[t' - l]: each row is the one before, moved on by a step.
        """
        mixing = self.root @ self.root.T
        d_model, length = self.response.shape
        total = self.response.cumsum(-1)
        for h in range(d_model):
            others = mixing[h, h:, None] * self.response[h:]
            size = max(1, BLOCK // others.numel())
            last = torch.zeros_like(others)
            for start in range(0, length, size):
                rows = slice(start, min(start + size, length))
                block = others.new_empty(rows.stop - start, *others.shape)
                for row, value in zip(block, self.response[h, rows], strict=True):
                    torch.mul(others, value, out=row)
                    row[:, 1:] += last[:, :-1]
                    last = row
                if self.remove_offset:
                    seen = mixing[h, h:, None] * total[h:] / length
                    block = block - total[h, rows, None, None] * seen
                yield h, rows, block

    def paths(self, feature: int) -> Tensor:
        """How noise at step l reaches step t of one feature before the root: (length t, length l)."""
        step = torch.arange(self.response.shape[1])
        lag = step[:, None] - step[None, :]
        paths = torch.where(lag >= 0, self.response[feature][lag.clamp(min=0)], 0.0)
        return paths - paths.mean(-1, keepdim=True) if self.remove_offset else paths


@dataclass(frozen=True)
class Weights:
    """Hermite coefficients times readout weights at unit noise scale, a column per signal and target.

    Attributes
    ----------
    orders : Tensor, (order + 1, d_model, length, columns)
        c_k(x) from order 0 on.
    tail : Tensor, (d_model, length, columns)
        sqrt of the bound on T_x, divided by R_xx^((K+1)/2): what multiplies abs(R)^(K+1).
    """

    orders: Tensor
    tail: Tensor

    @classmethod
    def of(
        cls,
        noise: WhiteNoise,
        mean: Tensor,
        readout: Tensor,
        orders: int,
        g: Activation = ACTIVATIONS["gelu"],
        pool: Tensor | None = None,
    ) -> "Weights":
        """From means (signals, d_model, length) and readout weights (n_targets, d_model); columns are signals x targets.

        `pool` (length,) weighs the steps: all alike when omitted.
        """
        d = _coefficients(mean, noise, orders, g)
        rest = _beyond(mean, noise, d, g).sqrt()
        spread = noise.variance
        alive = spread > 1e-30  # a site that the noise does not reach has no variance at any order
        rest = torch.where(alive, rest / torch.where(alive, spread, 1.0) ** ((orders + 1) / 2), 0.0)
        pool = torch.full_like(mean[0, 0], 1 / mean.shape[-1]) if pool is None else pool
        weighted = torch.einsum("shlk,ch,l->khlsc", d, readout, pool).flatten(3)
        bounds = torch.einsum("shl,ch,l->hlsc", rest, readout.abs(), pool)
        return cls(weighted.contiguous(), bounds.flatten(2).contiguous())


def contract(noise: WhiteNoise, weights: Weights) -> tuple[Tensor, Tensor]:
    """Variance that each order adds (order, columns), and a bound on what all higher orders would (columns,).

    Notes
    -----
    Claim: *exact*, and *bound*. Cost: order d_model^2 length^2 (1 + columns) multiply-adds; memory O(order d_model length columns).
    """
    c = weights.orders[1:]
    order, _, length, columns = c.shape
    by_order, rest = c.new_zeros(order, columns), c.new_zeros(columns)
    for h, rows, block in noise.blocks():
        R = block.flatten(1)
        power = R.clone()

        def both(left: Tensor, right: Tensor, power: Tensor = power) -> Tensor:
            """Pairs with other features stand for two."""
            return (left * (2 * (power @ right) - power[:, :length] @ right[:length])).sum(0)

        for k in range(order):
            by_order[k] += math.factorial(k + 1) * both(c[k, h, rows], c[k, h:].flatten(0, 1))
            power *= R
        power.abs_()
        rest += both(weights.tail[h, rows], weights.tail[h:].flatten(0, 1))
    return by_order, rest


def quadratic_form(noise: WhiteNoise, weights: Weights, column: int) -> tuple[Tensor, Tensor]:
    """Orders 1 and 2 of one column as a form g'n + n'Q n - tr Q of standard normal n (d_input length,): g and Q.

    Notes
    -----
    Claim: *exact*. Cost: d_model length^3 + d_model (d_input length)^2 multiply-adds.
    """
    d_model, length = noise.response.shape
    n_inputs = noise.root.shape[1]
    slope = noise.root.new_zeros(n_inputs, length)
    form = noise.root.new_zeros(n_inputs, length, n_inputs, length)
    first, second = weights.orders[1, ..., column], weights.orders[2, ..., column]
    for h in range(d_model):
        paths, root = noise.paths(h), noise.root[h]
        slope += root[:, None] * (first[h] @ paths)
        form += torch.einsum("i,j,lm->iljm", root, root, paths.T @ (second[h, :, None] * paths))
    return slope.flatten(), form.reshape(n_inputs * length, n_inputs * length)


def _coefficients(mean: Tensor, noise: WhiteNoise, orders: int, g: Activation) -> Tensor:
    """d_0..d_orders of g at every site at unit scale, (..., d_model, length, orders + 1)."""
    real = (noise.scale**2 * noise.variance).expand_as(mean)
    if g.polynomial is None:
        d = gelu_coefficients(mean.reshape(-1), real.reshape(-1), orders).unflatten(0, mean.shape)
    else:
        d = hermite_of_polynomial(g.polynomial[:, None], mean, real, orders)
    return d * noise.scale ** torch.arange(orders + 1, dtype=d.dtype)


def _beyond(mean: Tensor, noise: WhiteNoise, d: Tensor, g: Activation = ACTIVATIONS["gelu"]) -> Tensor:
    """Bound on sum_{k>K} k! d_k^2 v^k from d_0..d_K at unit scale (..., K + 1); mean (..., d_model, length).

    The smaller of two: the one from g'' is sharp in small noise, the variance of g less that of its first orders in large noise.
    """
    order = d.shape[-1] - 1
    if g.polynomial is not None:
        degree = max(order, g.polynomial.shape[-1] - 1)
        every, rest = _coefficients(mean, noise, degree, g), torch.zeros_like(mean)
        for k in range(order + 1, degree + 1):
            rest = rest + float(math.factorial(k)) * every[..., k] ** 2 * noise.variance**k
        return rest * (1 + ROUNDING)
    real = (noise.scale**2 * noise.variance).expand_as(mean)
    bent, plain = _mean_square_curvature(mean, real) * real**2 * (1 + ROUNDING), _variance_above(mean, real, d[..., 0])
    for k in range(1, order + 1):
        adds = float(math.factorial(k)) * d[..., k] ** 2 * noise.variance**k
        plain, bent = plain - adds, bent - k * (k - 1) * adds
    return torch.minimum(plain, bent / (order * (order + 1))).clamp(min=0)


def _mean_square_curvature(mean: Tensor, variance: Tensor) -> Tensor:
    """E g''(z)^2 under N(mean, variance): g'' = (2 - z^2) phi(z), and phi^2 times the density is another Gaussian's."""
    spread = 1 + 2 * variance
    mass = torch.exp(-(mean**2) / spread) / (2 * math.pi * torch.sqrt(spread))
    centre, width = mean / spread, variance / spread
    fourth = centre**4 + 6 * centre**2 * width + 3 * width**2
    return mass * (4 - 4 * (centre**2 + width) + fourth)


def _variance_above(mean: Tensor, variance: Tensor, expected: Tensor) -> Tensor:
    r"""Var g(z) under N(m, v) for erf-GELU, raised by what rounding may have taken; `expected` is E g.

    By Stein's identity, with f = Phi^2:  E z^2 f = (m^2 + v) E f + 2 m v E f' + v^2 E f'',  and E Phi^2 is Owen's T.
    """
    from scipy.special import owens_t

    u, w = torch.sqrt(1 + variance), torch.sqrt(1 + 2 * variance)
    q, below = mean / u, normal_cdf(mean / u)
    density = normal_density(q) / u
    centre, width = mean / u**2, variance / u**2  # of the Gaussian that phi times the density of z is
    half = torch.sqrt(1 + width)
    both = density * normal_cdf(centre / half)  # E phi Phi
    tilted = centre * both + density * width / half * normal_density(centre / half)  # E z phi Phi
    squared = below - 2 * torch.from_numpy(owens_t(q.numpy(), (1 / w).numpy()))
    bend = torch.exp(-((mean / w) ** 2)) / (math.pi * w) - 2 * tilted
    second = (mean**2 + variance) * squared + 4 * mean * variance * both + variance**2 * bend
    lost = (mean**2 + variance) * below + variance**2 * bend.abs() + expected**2
    return second - expected**2 + 10 * ROUNDING * lost
