r"""Kernels of filters: exponential sums, finite impulse responses, and symmetric second-order kernels.

    ExponentialSum       k(t) = D [t = 0] + sum_i r_i C(t + j_i - 1, j_i - 1) p_i^t      (scipy.signal.residuez's convention)
    FiniteKernel         k(t) = values[t], 0 beyond
    SecondOrderKernel    h(t1, t2) = sum_j s_j g_j(t1) g_j(t2)

A filter given by coefficients is kept as an exact ratio of polynomials as well, so that what is certified of a built model is its distance
from the filter of those coefficients, and not from rounded poles and residues.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.construction import kernel_balls
from oplens.construction.rational import (
    Polynomial,
    check_fading,
    coefficients,
    complex_row,
    conjugate_pairs,
    fractions,
    monic,
    real_array,
    reduce,
    times,
)
from oplens.errors import ArgumentError
from oplens.theory.statement import LARGEST_NUMBER, count, number

LONGEST_FINITE = 8192  # lags of a finite kernel; its Hankel matrix is decomposed
Ratio = tuple[Polynomial, Polynomial]  # N and D of H = N(w)/D(w), w = z^-1


@dataclass(frozen=True)
class ExponentialSum:
    """A real, fading sum of exponentials, one value per step.

    Parameters
    ----------
    poles, residues : sequence of complex
        Conjugate pairs in full; abs(pole) between 0 and 1. A pole that stands several times belongs to 1/(1 - p z^-1)^j, j its
        occurrence, as in scipy.signal.residuez.
    direct : float
        D, the part at lag 0 that belongs to no pole: k(0) = D + sum of residues.
    ratio : pair of tuples of Fraction, optional
        The exact transfer function that poles and residues were rounded from; the classmethods give it.

    Examples
    --------
    >>> kernel = ExponentialSum([0.5], [2.0], direct=1.0)
    >>> kernel.response(4).tolist()
    [3.0, 1.0, 0.5, 0.25]
    >>> ExponentialSum.butterworth(2, 0.1).n_poles
    2
    """

    poles: tuple[complex, ...]
    residues: tuple[complex, ...]
    direct: float = 0.0
    ratio: Ratio | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        call = "ExponentialSum"
        poles, residues = (complex_row(call, name, getattr(self, name)) for name in ("poles", "residues"))
        if len(poles) != len(residues):
            raise ArgumentError(f"{call}: {len(poles)} poles but {len(residues)} residues; give one of each.")
        object.__setattr__(self, "direct", number(call, "direct", self.direct, -math.inf))
        for pole in poles:
            check_fading(call, pole)
        _check_size(call, max(map(abs, residues), default=0.0))
        if self.ratio is None:
            poles, residues = conjugate_pairs(call, poles, residues)
        object.__setattr__(self, "poles", poles)
        object.__setattr__(self, "residues", residues)

    @property
    def n_poles(self) -> int:
        """Poles, both members of pairs counted."""
        return len(self.poles)

    @property
    def balls(self) -> kernel_balls.KernelBalls:
        """The kernel in ball arithmetic."""
        if self.ratio is not None:
            return kernel_balls.rational(*self.ratio)
        return kernel_balls.exponential(self.poles, self.residues, self.direct)

    def response(self, length: int) -> NDArray[np.float64]:
        """The impulse response, (length,)."""
        return np.array(self.balls.response(count("response", "length", length)))

    @classmethod
    def from_ba(cls, b: Any, a: Any) -> "ExponentialSum":
        """Filter of transfer function coefficients, as scipy.signal.lfilter takes them.

        Raises
        ------
        ArgumentError
            If it does not fade, or its impulse response has a finite part beyond lag 0, which no exponential sum is.
        """
        top, bottom = coefficients("from_ba", "b", b), coefficients("from_ba", "a", a)
        return _from_ratio("from_ba", top, bottom)

    @classmethod
    def from_sos(cls, sos: Any) -> "ExponentialSum":
        """Filter of second-order sections (n_sections, 6), as scipy.signal.sosfilt takes them; the accurate way to give a filter."""
        sections = real_array("from_sos", "sos", sos)
        if sections.ndim != 2 or sections.shape[1] != 6 or not len(sections):
            raise ArgumentError(
                f"ExponentialSum.from_sos: expected sections of shape (n_sections, 6), got {sections.shape}; each is b0 b1 b2 a0 a1 a2."
            )
        top: Polynomial = (Fraction(1),)
        bottom = top
        for section in sections:
            top = times(top, fractions(section[:3]))
            bottom = times(bottom, fractions(section[3:]))
        return _from_ratio("from_sos", top, bottom)

    @classmethod
    def from_zpk(cls, z: Any, p: Any, k: Any) -> "ExponentialSum":
        """Filter of zeros, poles and gain in the z plane, as scipy.signal.zpk2sos takes them: missing zeros are at the origin.

        Members of pairs that differ in their last digits are made conjugate.
        """
        zeros, poles = complex_row("from_zpk", "z", z), complex_row("from_zpk", "p", p)
        gain = Fraction(number("from_zpk", "k", k, -math.inf))
        top = tuple(gain * c for c in monic("from_zpk", zeros))
        return _from_ratio("from_zpk", top, monic("from_zpk", poles))

    @classmethod
    def butterworth(
        cls, order: int, cutoff: Any, sampling_rate: float | None = None, band: str = "low"
    ) -> "ExponentialSum":
        """The sections that scipy.signal.butter gives.

        Parameters
        ----------
        order : int
        cutoff : float or pair of float
            Hz, or fractions of the Nyquist frequency without a sampling rate; two of them for bands.
        sampling_rate : float, optional
        band : {"low", "high", "bandpass", "bandstop"}
            Or "lowpass", "highpass".
        """
        from scipy.signal import butter

        call = "butterworth"
        order = count(call, "order", order, most=40)
        band = {"lowpass": "low", "highpass": "high"}.get(band, band)
        if band not in ("low", "high", "bandpass", "bandstop"):
            raise ArgumentError(f"{call}(band={band!r}): choose one of low, high, bandpass, bandstop.")
        rate = None if sampling_rate is None else number(call, "sampling_rate", sampling_rate, open_below=True)
        nyquist = 1.0 if rate is None else rate / 2
        if rate is None and any(isinstance(edge, int | float) and edge >= 1 for edge in np.ravel(cutoff).tolist()):
            raise ArgumentError(
                f"{call}(cutoff={cutoff!r}): without a sampling rate a cutoff is a fraction of the Nyquist frequency, below 1; give sampling_rate "
                "to have it in Hz."
            )
        edges = [number(call, "cutoff", edge, 0, nyquist, open_below=True) for edge in np.ravel(cutoff).tolist()]
        if len(edges) != (2 if band.startswith("band") else 1) or edges != sorted(set(edges)):
            raise ArgumentError(
                f"{call}(band={band!r}, cutoff={cutoff!r}): give one frequency for low and high, two in ascending order for bands."
            )
        sos = butter(order, edges if len(edges) == 2 else edges[0], band, output="sos", fs=rate)
        return cls.from_sos(sos)


@dataclass(frozen=True)
class FiniteKernel:
    """A finite impulse response, values at lags 0, 1, ...; only approximately an exponential sum.

    Examples
    --------
    >>> FiniteKernel.matched([1.0, 2.0, 5.0]).values
    (5.0, 2.0, 1.0)
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        values = real_array("FiniteKernel", "values", self.values)
        if values.ndim != 1 or not 2 <= len(values) <= LONGEST_FINITE:
            raise ArgumentError(
                f"FiniteKernel: expected between 2 and {LONGEST_FINITE} values in a row, got shape {values.shape}; a single value is "
                "ExponentialSum((), (), direct=value), and a longer response is resampled first."
            )
        if not values.any():
            raise ArgumentError("FiniteKernel: all values are 0; leave this kernel out.")
        _check_size("FiniteKernel", np.abs(values).max())
        object.__setattr__(self, "values", tuple(values.tolist()))

    @classmethod
    def matched(cls, template: Any) -> "FiniteKernel":
        """The filter whose output is the inner product of its last inputs with a template: the template reversed in time."""
        return cls(tuple(real_array("FiniteKernel.matched", "template", template)[::-1]))

    @property
    def balls(self) -> kernel_balls.KernelBalls:
        """The kernel in ball arithmetic."""
        return kernel_balls.finite(self.values)

    def response(self, length: int) -> NDArray[np.float64]:
        """The impulse response, (length,)."""
        values = np.array(self.values[: count("response", "length", length)])
        return np.pad(values, (0, length - len(values)))


Kernel = ExponentialSum | FiniteKernel


def _check_size(call: str, largest: float) -> None:
    if largest > LARGEST_NUMBER:
        raise ArgumentError(
            f"{call}: a value of size {largest:.3g} is above {LARGEST_NUMBER:g}, whose squares leave double precision; change the units."
        )


def _from_ratio(call: str, top: Polynomial, bottom: Polynomial) -> ExponentialSum:
    """Common factors out, poles and residues by ball arithmetic."""
    top, bottom = reduce(f"ExponentialSum.{call}", top, bottom)
    balls = kernel_balls.rational(top, bottom)
    poles: list[complex] = []
    residues: list[complex] = []
    for term in balls.terms:
        pole = _mid(term.pole)
        check_fading(f"ExponentialSum.{call}", pole, bool(abs(term.pole) < 1))
        for coefficient in term.coefficients:
            members = [(pole, 2 * _mid(coefficient))]
            if pole.imag:
                members = [(pole, _mid(coefficient)), (pole.conjugate(), _mid(coefficient).conjugate())]
            for p, r in members:
                poles.append(p)
                residues.append(r)
    return ExponentialSum(tuple(poles), tuple(residues), float(balls.direct.mid()), (top, bottom))


def _mid(value: Any) -> complex:
    return complex(float(value.real.mid()), float(value.imag.mid()))
