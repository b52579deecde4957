r"""The readouts this library expands: one table of values, Taylor series, difference quotients and where they stop being analytic.

A series about any real point comes from the differential equation the function solves (t = tanh y: t' = (1 - t^2) y'), so
derivatives of any order cost O(order^2) and lose nothing in the tails, where 1 - t_0^2 is taken as 1 / cosh^2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial.closed_forms import (
    gelu,
    gelu_coefficients,
    normal_cdf,
    normal_density,
    relu_coefficients,
)

SLOPE = math.sqrt(2 / math.pi)  # of tanh-GELU: z/2 (1 + tanh(SLOPE (z + CUBIC z^3)))
CUBIC = 0.044715


@dataclass(frozen=True)
class Activation:
    """A readout g.

    Attributes
    ----------
    name : str
    value : z of any shape -> g(z)
    taylor : points (n,), order -> (n, order + 1), coefficients of (z - point)^k
    quotient : z, m that broadcast -> (g(z) - g(m)) / (z - m), continued by g'(m) at z = m
    radius : real points (n,) -> distance to the nearest singularity, which is the radius of convergence of `taylor`
    strip : float
        g is analytic where abs(Im z) is below it (0: not analytic on the real line).
    slopes : tuple
        Closed forms of g', g'', ..., as many as there are; higher derivatives come from `taylor`.
    polynomial : Tensor, (d_model, degree + 1), optional
        Where the readout is a polynomial of each feature's own (:mod:`oplens.operators.polynomial.polynomials`); values are then laid
        out as (..., d_model, n).
    """

    name: str
    value: Callable[[Tensor], Tensor]
    taylor: Callable[[Tensor, int], Tensor]
    quotient: Callable[[Tensor, Tensor], Tensor]
    radius: Callable[[Tensor], Tensor]
    strip: float
    slopes: tuple[Callable[[Tensor], Tensor], ...] = ()
    polynomial: Tensor | None = None

    def select(self, features: Tensor) -> "Activation":
        """The readout of some features, by index (n,)."""
        if self.polynomial is None:
            return self
        from oplens.operators.polynomial.polynomials import polynomial_activation

        return polynomial_activation(self.polynomial[features])

    def derivative(self, z: Tensor, k: int) -> Tensor:
        """g^(k)(z).

        Examples
        --------
        >>> import torch
        >>> activation("tanh").derivative(torch.zeros(1, dtype=torch.float64), 3).tolist()
        [-2.0]
        """
        if k == 0:
            return self.value(z)
        if self.polynomial is not None:
            from oplens.operators.polynomial.polynomials import derived, horner

            return horner(derived(self.polynomial, k), z)
        if k <= len(self.slopes):
            return self.slopes[k - 1](z)
        return math.factorial(k) * self.taylor(z.reshape(-1), k)[:, k].reshape(z.shape)


def activation(name: "str | Activation") -> Activation:
    """The activation of that name: `gelu`, `gelu_tanh`, `silu`, `relu`, `sigmoid` or `tanh`; an activation is returned as it is."""
    if isinstance(name, Activation):
        return name
    if name not in ACTIVATIONS:
        raise ArgumentError(f"activation={name!r}: unknown; choose one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _tanh_series(y: list[Tensor], order: int) -> Tensor:
    """Coefficients of tanh of a polynomial, given the polynomial's own: (n, order + 1)."""
    t = [torch.tanh(y[0])]
    complement = [1 / torch.cosh(y[0]) ** 2]  # of 1 - t^2
    for n in range(order):
        total = sum(
            ((j + 1) * y[j + 1] * complement[n - j] for j in range(min(n + 1, len(y) - 1))), torch.zeros_like(t[0])
        )
        t.append(total / (n + 1))
        complement.append(-sum((t[j] * t[n + 1 - j] for j in range(n + 2)), torch.zeros_like(t[0])))
    return torch.stack(t, dim=-1)


def _tanh_taylor(point: Tensor, order: int) -> Tensor:
    return _tanh_series([point, torch.ones_like(point)], order)


def _sigmoid_taylor(point: Tensor, order: int) -> Tensor:
    series = _tanh_series([point / 2, torch.full_like(point, 0.5)], order) / 2
    series[:, 0] = torch.sigmoid(point)
    return series


def _times_z(point: Tensor, series: Tensor) -> Tensor:
    """Of z times a function, from the function's own series at `point`."""
    product = point[:, None] * series
    product[:, 1:] += series[:, :-1]
    return product


def _silu_taylor(point: Tensor, order: int) -> Tensor:
    return _times_z(point, _sigmoid_taylor(point, order))


def _inner(z: Tensor) -> Tensor:
    return SLOPE * (z + CUBIC * z**3)


def _gelu_tanh(z: Tensor) -> Tensor:
    return z * torch.sigmoid(2 * _inner(z))


def _gelu_tanh_taylor(point: Tensor, order: int) -> Tensor:
    cubic = torch.full_like(point, SLOPE * CUBIC)
    y = [_inner(point), SLOPE * (1 + 3 * CUBIC * point**2), 3 * cubic * point, cubic]
    series = _tanh_series(y, order) / 2
    series[:, 0] = torch.sigmoid(2 * y[0])
    return _times_z(point, series)


def _tanh_quotient(z: Tensor, m: Tensor) -> Tensor:
    """Near: sinh(w) / (w cosh z cosh m), in which nothing cancels. Far: from the tail both lie in."""
    w = z - m
    near = w.abs() < 1
    small = torch.where(near & (w != 0), w, 1.0)
    ratio = torch.where(w == 0, 1.0, torch.sinh(small) / small)
    tail_z, tail_m = (2 * torch.sigmoid(-2 * x.abs()) for x in (z, m))  # 1 - abs(tanh)
    side = torch.where(m > 0, tail_m - tail_z, tail_z - tail_m)
    rise = torch.where(z * m > 0, side, torch.tanh(z) - torch.tanh(m))
    return torch.where(near, ratio / torch.cosh(z) / torch.cosh(m), rise / torch.where(near, 1.0, w))


def _sigmoid_quotient(z: Tensor, m: Tensor) -> Tensor:
    return _tanh_quotient(z / 2, m / 2) / 4


def _silu_quotient(z: Tensor, m: Tensor) -> Tensor:
    return torch.sigmoid(z) + m * _sigmoid_quotient(z, m)


def _gelu_tanh_quotient(z: Tensor, m: Tensor) -> Tensor:
    inner = SLOPE * (1 + CUBIC * (z * z + z * m + m * m))  # (y(z) - y(m)) / (z - m)
    return torch.sigmoid(2 * _inner(z)) + m / 2 * inner * _tanh_quotient(_inner(z), _inner(m))


def _relu_quotient(z: Tensor, m: Tensor) -> Tensor:
    # Of one sign the quotient is a slope; of two signs abs(z - m) = abs(z) + abs(m) and nothing cancels.
    mixed = (z * m < 0) | ((z == 0) != (m == 0))
    slope = torch.where(z > 0, 1.0, torch.where(z < 0, 0.0, 0.5)).expand(torch.broadcast_shapes(z.shape, m.shape))
    return torch.where(mixed, (torch.relu(z) - torch.relu(m)) / torch.where(mixed, z - m, 1.0), slope)


def _gelu_quotient(z: Tensor, m: Tensor) -> Tensor:
    # = Phi(z) + m (Phi(z) - Phi(m)) / w, in which only the last quotient cancels near m: there the midpoint rule
    # phi(c) + w^2 phi''(c) / 24 is exact to 1e-15 (the next term is w^4 phi''''(c) / 1920).
    w = z - m
    near = w.abs() < 1e-3
    middle = m + w / 2
    limit = normal_density(middle) * (1 + w * w * (middle**2 - 1) / 24)
    # Both taken from the tail that m lies in, so that large |m| leaves nothing to cancel.
    tail = normal_cdf(-z.abs())
    below, above = torch.where(z < 0, tail, 1 - tail), torch.where(z < 0, 1 - tail, tail)
    rise = torch.where(m > 0, normal_cdf(-m) - above, below - normal_cdf(m)) / torch.where(near, 1.0, w)
    return below + m * torch.where(near, limit, rise)


def _gelu_taylor(point: Tensor, order: int) -> Tensor:
    if order == 0:
        return gelu(point)[:, None]
    return gelu_coefficients(point, torch.zeros_like(point), order)


def _relu_taylor(point: Tensor, order: int) -> Tensor:
    if order == 0:
        return torch.relu(point)[:, None]
    return relu_coefficients(point, torch.zeros_like(point), order)


def _gelu_slope(z: Tensor) -> Tensor:
    return normal_cdf(z) + z * normal_density(z)


def _gelu_bend(z: Tensor) -> Tensor:
    return normal_density(z) * (2 - z * z)


def _gelu_third(z: Tensor) -> Tensor:
    return normal_density(z) * z * (z * z - 4)


def _entire(point: Tensor) -> Tensor:
    return torch.full_like(point, math.inf)


def _gelu_tanh_radius(point: Tensor) -> Tensor:
    r"""Distance to the nearest pole.

    Poles solve z + a z^3 = i y with SLOPE y an odd multiple of pi/2. With z = i s the cubic is real, and for y above 2/(3 sqrt(3a))
    (all of them are) it has one real root -t, t = 2 cosh(arccosh(1.5 y sqrt(3a)) / 3) / sqrt(3a), and the poles nearer to the
    real line are +-sqrt(3 t^2 - 4/a)/2 +- i t/2.
    """
    reach = 2 * (float(point.abs().max()) + 3) if point.numel() else 0.0
    count = math.ceil(SLOPE * (reach + CUBIC * reach**3) / math.pi) + 1
    y = (2 * torch.arange(count, dtype=torch.float64) + 1) * (math.pi / 2 / SLOPE)
    root = math.sqrt(3 * CUBIC)
    t = 2 * torch.cosh(torch.acosh(1.5 * root * y) / 3) / root
    real = torch.sqrt(3 * t**2 - 4 / CUBIC) / 2
    return torch.stack([torch.hypot(real - x.abs(), t / 2).min() for x in point])


ACTIVATIONS = {
    "gelu": Activation(
        "gelu",
        gelu,
        _gelu_taylor,
        _gelu_quotient,
        _entire,
        math.inf,
        slopes=(_gelu_slope, _gelu_bend, _gelu_third),
    ),
    # strip: see `balls`; the nearest pole from 0 is at 2.83
    "gelu_tanh": Activation(
        "gelu_tanh", _gelu_tanh, _gelu_tanh_taylor, _gelu_tanh_quotient, _gelu_tanh_radius, 1 / math.sqrt(3 * CUBIC)
    ),
    "silu": Activation(
        "silu",
        lambda z: z * torch.sigmoid(z),
        _silu_taylor,
        _silu_quotient,
        lambda x: torch.hypot(x, torch.full_like(x, math.pi)),
        math.pi,
    ),
    "relu": Activation("relu", torch.relu, _relu_taylor, _relu_quotient, torch.abs, 0.0),
    "sigmoid": Activation(
        "sigmoid",
        torch.sigmoid,
        _sigmoid_taylor,
        _sigmoid_quotient,
        lambda x: torch.hypot(x, torch.full_like(x, math.pi)),
        math.pi,
    ),
    "tanh": Activation(
        "tanh",
        torch.tanh,
        _tanh_taylor,
        _tanh_quotient,
        lambda x: torch.hypot(x, torch.full_like(x, math.pi / 2)),
        math.pi / 2,
    ),
}
