r"""The distribution of a margin in Gaussian noise, and the chance that it decides rightly.

Orders 1 and 2 of a margin are a quadratic form of Gaussian noise, whose characteristic function has a closed form. With eigenvalues
lambda of Q and the slopes b along its eigenvectors,

    E exp(iuX) = prod_j (1 - 2iu lambda_j)^(-1/2) exp(-iu lambda_j - u^2 b_j^2 / (2 (1 - 2iu lambda_j))),     X = g'n + n'Qn - tr Q
    P(X > x)   = 1/2 + (1/pi) int_0^inf Im(exp(-iux) E exp(iuX)) / u du                                         (Gil-Pelaez)

so that their distribution is exact. Orders above 2 have the variance r, bounded by r' >= r. Three answers follow for mean m:

    Gaussian     P(M > 0) = Phi(m / sd)
    corrected    orders 1 and 2 exactly, the rest as if it were Gaussian of variance r and independent
    bound        P(M <= 0) <= P(m + X <= d) + r' / (r' + d^2) for every d > 0, and <= v' / (v' + m^2)           (Cantelli's inequality)

The bound holds whatever the distribution of the rest.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

INVERSION = 1e-9  # what the inversion integral may be wrong by, far above what is found against closed forms
_STEPS = 2**14  # at most; a few hundred serve as a rule
_SHARES = np.linspace(0.02, 0.98, 49)  # of the mean, tried as d


@dataclass(frozen=True)
class QuadraticForm:
    """X = sum_j b_j n_j + lambda_j (n_j^2 - 1) of standard normal n: slopes b and curvatures lambda, (modes,) each.

    Examples
    --------
    >>> import numpy as np
    >>> curved = QuadraticForm(np.zeros(20), np.full(20, 0.5))  # half of chi^2_20 - 20, which has its median below zero
    >>> chance, error = curved.above(np.array([0.0]))
    >>> round(float(chance[0]), 6), error < 1e-8
    (0.45793, True)
    """

    slopes: Array
    curvatures: Array

    @classmethod
    def of(cls, slope: Tensor, form: Tensor) -> "QuadraticForm":
        """Along the eigenvectors of a symmetric form."""
        curvatures, vectors = np.linalg.eigh(form.numpy())
        return cls(vectors.T @ slope.numpy(), curvatures)

    @property
    def variance(self) -> float:
        """Order 1 and order 2 together."""
        return float(self.slopes @ self.slopes + 2 * self.curvatures @ self.curvatures)

    def above(self, levels: Array, extra: float = 0.0) -> tuple[Array, float]:
        """P(X + Y > level) for levels (n,), Y independent and Gaussian of variance `extra`; and what it may be wrong by.

        Notes
        -----
        The step keeps what lies 40 standard deviations off from wrapping; the range ends where the characteristic function is below
        1e-13. Where a mode or two carry everything it decays slowly and the range ends before: the error is then not known (inf).
        """
        sd = math.sqrt(self.variance + extra)
        if sd == 0:
            return np.asarray(np.where(levels < 0, 1.0, np.where(levels > 0, 0.0, 0.5))), 0.0
        step = 2 * np.pi / (40 * sd + 2 * float(np.abs(levels).max()))
        total = np.full(len(levels), 0.5)
        for start in range(0, _STEPS, 256):
            u = step * (np.arange(start, start + 256) + 0.5)
            z = 1 - 2j * u[:, None] * self.curvatures
            logs = -np.log(z) / 2 - 1j * u[:, None] * self.curvatures - (u[:, None] * self.slopes) ** 2 / (2 * z)
            values = np.exp(logs.sum(1) - extra * u**2 / 2) / u
            total += (np.exp(-1j * np.outer(levels, u)) @ values).imag * step / np.pi
            if np.abs(values[-1]) * u[-1] < 1e-13:
                return np.asarray(np.clip(total, 0.0, 1.0)), INVERSION
        return np.asarray(np.clip(total, 0.0, 1.0)), math.inf


@dataclass(frozen=True)
class Decisions:
    """Chance of a positive margin, (signals,) each: Gaussian, corrected, and bounds on the true one."""

    gaussian: Array
    corrected: Array
    lower: Array
    upper: Array

    @classmethod
    def of(cls, mean: Array, variance: Array, bound: Array, forms: tuple[QuadraticForm, ...]) -> "Decisions":
        """From means, variances from below, variances from above, and the first two orders of every signal."""
        rows = [_positive(*each) for each in zip(mean, variance, bound, forms, strict=True)]
        return cls(*(np.array(column) for column in zip(*rows, strict=True)))

    def right(self, towards: NDArray[np.bool_]) -> "Decisions":
        """Chance of a right decision, where a positive margin is right or, elsewhere, wrong."""
        gaussian, corrected = (np.where(towards, p, 1.0 - p) for p in (self.gaussian, self.corrected))
        lower = np.where(towards, self.lower, 1.0 - self.upper)
        return Decisions(gaussian, corrected, lower, np.where(towards, self.upper, 1.0 - self.lower))


def _positive(mean: float, variance: float, bound: float, form: QuadraticForm) -> tuple[float, float, float, float]:
    from scipy.stats import norm

    sd = math.sqrt(variance)
    gaussian = float(norm.cdf(mean / sd)) if sd > 0 else 0.5 + 0.5 * float(np.sign(mean))
    corrected = float(form.above(np.array([-mean]), max(variance - form.variance, 0.0))[0][0])
    wrong = _misses(abs(mean), math.copysign(1.0, mean), bound, form)
    if mean == 0:
        return gaussian, corrected, 0.0, 1.0
    return gaussian, corrected, *((1.0 - wrong, 1.0) if mean > 0 else (0.0, wrong))


def _misses(size: float, sign: float, bound: float, form: QuadraticForm) -> float:
    """Bound on the chance that a margin of mean `size` > 0 is not positive; `sign` turns the form."""
    if size == 0:
        return 1.0
    whole = bound / (bound + size**2)
    rest = max(bound - form.variance, 0.0)
    away = size * _SHARES
    turned = QuadraticForm(sign * form.slopes, sign * form.curvatures)
    above, error = turned.above(away - size)
    split = 1.0 - above + error + rest / (rest + away**2)
    return float(min(whole, split.min(), 1.0))
