r"""One polynomial per feature in a basis with a three-term recurrence: what every family is, whatever fitted it.

    u = (z - centre) / scale        P_0 = 1        P_{k+1} = slope_k (u - shift_k) P_k - back_k P_{k-1}

Taylor: slope 1, shift 0, back 0. Hermite: back_k = k v. Chebyshev: slope 1, then 2, back 1. Polynomials orthogonal under data: slope 1,
shift and back as the data say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

UNIT = 2.0**-53  # half an ulp of 1: relative rounding error of one float64 operation
TINY = 1e-290  # above every underflow that a product of two normal numbers can suffer here


@dataclass(frozen=True)
class Series:
    """centre, scale (d_model,); slope, shift, back (d_model, order); coefficients (d_model, order + 1)."""

    centre: Tensor
    scale: Tensor
    slope: Tensor
    shift: Tensor
    back: Tensor
    coefficients: Tensor

    @classmethod
    def hermite(cls, centre: Tensor, variance: Tensor, coefficients: Tensor) -> "Series":
        """Basis H_k of variance v; powers of z - centre where v is 0."""
        k = torch.arange(coefficients.shape[-1] - 1, dtype=torch.float64)
        one = torch.ones(len(centre), len(k), dtype=torch.float64)
        return cls(centre, torch.ones_like(centre), one, 0 * one, k * variance[:, None], coefficients)

    @classmethod
    def chebyshev(cls, centre: Tensor, radius: Tensor, coefficients: Tensor) -> "Series":
        """Basis T_k on [centre - radius, centre + radius]."""
        one = torch.ones(len(centre), coefficients.shape[-1] - 1, dtype=torch.float64)
        slope = 2 * one
        slope[:, 0] = 1
        return cls(centre, radius, slope, 0 * one, one, coefficients)

    @property
    def order(self) -> int:
        """Degree."""
        return int(self.coefficients.shape[-1]) - 1

    def truncated(self, order: int) -> "Series":
        """The first orders of the same basis."""
        parts = {name: getattr(self, name)[:, :order] for name in ("slope", "shift", "back")}
        return replace(self, **parts, coefficients=self.coefficients[:, : order + 1])

    def select(self, index: Tensor) -> "Series":
        """Rows by index (n,), repeats allowed."""
        fields = ("centre", "scale", "slope", "shift", "back", "coefficients")
        return Series(*(getattr(self, name)[index] for name in fields))

    def basis(self, z: Tensor) -> Iterator[Tensor]:
        """P_0..P_order at z (..., d_model, n)."""
        u = (z - self.centre[:, None]) / self.scale[:, None]
        before, value = torch.zeros_like(u), torch.ones_like(u)
        yield value
        for k in range(self.order):
            step = self.slope[:, k, None] * (u - self.shift[:, k, None]) * value - self.back[:, k, None] * before
            before, value = value, step
            yield value

    def evaluate(self, z: Tensor) -> Tensor:
        """The polynomial at z (..., d_model, n)."""
        terms = (self.coefficients[:, k, None] * value for k, value in enumerate(self.basis(z)))
        return sum(terms, torch.zeros_like(z))

    def evaluate_bounded(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The polynomial at float64 points z (d_model, n), and a bound on the rounding error of each value.

        Notes
        -----
        Accuracy: *bound*. Running error analysis: a computed sum, difference, product or quotient is within UNIT of its own size
        of the exact result on the same operands, and errors of operands are carried along. The bound itself is a sum of
        non-negative numbers, so its own rounding is relative, below (8 order + 8) UNIT, which the last factor covers.
        """
        centre, scale = self.centre[:, None], self.scale[:, None]
        w = z - centre
        u = w / scale
        u_error = UNIT * (w.abs() / scale + u.abs()) * (1 + 4 * UNIT) + TINY
        before, before_error = torch.zeros_like(u), torch.zeros_like(u)
        value, error = torch.ones_like(u), torch.zeros_like(u)
        total = self.coefficients[:, :1] * value
        total_error = torch.zeros_like(u)
        for k in range(self.order):
            slope, shift, back = (x[:, k, None] for x in (self.slope, self.shift, self.back))
            moved = u - shift
            factor = slope * moved
            factor_error = slope.abs() * (u_error + UNIT * moved.abs()) + UNIT * factor.abs()
            first, second = factor * value, back * before
            step = first - second
            step_error = (
                factor.abs() * error
                + factor_error * (value.abs() + error)
                + back.abs() * before_error
                + UNIT * (first.abs() + second.abs() + step.abs())
                + TINY
            )
            before, before_error, value, error = value, error, step, step_error
            coefficient = self.coefficients[:, k + 1, None]
            term = coefficient * value
            total = total + term
            total_error = total_error + coefficient.abs() * error + UNIT * (term.abs() + total.abs()) + TINY
        return total, total_error * (1 + 1e-9)

    def powers(self) -> Tensor:
        """Coefficients of 1, z - centre, .., (z - centre)^order: (d_model, order + 1).

        Notes
        -----
        Accuracy: eps times the largest summand of each power; for Chebyshev these grow as (1 + sqrt 2)^order, which is what any
        account by powers of such a polynomial pays.
        """
        n = self.order + 1
        before = torch.zeros(len(self.centre), n, dtype=torch.float64)
        value = before.clone()
        value[:, 0] = 1
        total = self.coefficients[:, :1] * value
        for k in range(self.order):
            slope, shift, back = (x[:, k, None] for x in (self.slope, self.shift, self.back))
            raised = torch.nn.functional.pad(value[:, :-1], (1, 0))
            before, value = value, slope * (raised - shift * value) - back * before
            total = total + self.coefficients[:, k + 1, None] * value
        return total / self.scale[:, None] ** torch.arange(n, dtype=torch.float64)
