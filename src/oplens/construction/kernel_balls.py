r"""Kernels in ball arithmetic (python-flint): values, norms and distances that are bounds and no estimates.

    k(t) = D [t = 0] + samples(t) + sum_i 2 Re sum_j c_ij C(t + j - 1, j - 1) p_i^t      (conjugates implied; of a real pole c is half)

L1 norms are a sum of balls up to a lag T and a bound on the rest: C(t + j - 1, j - 1) abs(p)^t shrinks at every step beyond T by
at least rho = abs(p) (T + j)/(T + 1), a geometric series. In a difference of two kernels each pole stands beside the one that is to equal
it, and the rest is bounded by the difference of the pair, not by their sum:

    abs(c p^t - c' q^t) <= abs(c - c') m^t + min(abs(c), abs(c')) abs(p - q) t m^(t-1),   m = max(abs(p), abs(q))

so kernels with long memories need no sums over all of it.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flint import acb, acb_series, arb, ctx, fmpq, fmpq_poly

from oplens.operators.polynomial.balls import above

PRECISION = 320  # bits; residues of crowded poles lose some to cancellation
LONGEST = 2**16  # lags that are summed one by one
_BLOCK = 256


@dataclass(frozen=True)
class Term:
    """One pole of a pair, or a real one, and half the coefficients of 1/(1 - p z^-1)^j, j = 1, 2, ..., in twice the real part."""

    pole: acb
    coefficients: tuple[acb, ...]

    def rest(self, start: int) -> arb:
        """Bound on sum over t >= start of this term's size."""
        size, total = abs(self.pole).upper(), arb(0)
        for j, coefficient in enumerate(self.coefficients, start=1):
            rho = size * (start + j) / (start + 1)
            if not rho < 1:
                return arb("inf")
            total += abs(coefficient) * math.comb(start + j - 1, j - 1) * size**start / (1 - rho)
        return 2 * total


@dataclass(frozen=True)
class KernelBalls:
    """A real causal kernel of the kinds above, or a difference of two."""

    direct: arb
    terms: tuple[Term, ...]
    samples: tuple[arb, ...] = ()
    pairs: tuple[tuple[Term, Term], ...] = ()  # first member less second

    def values(self) -> Iterator[arb]:
        """k(0), k(1), ... without end."""
        signed = [(term, 2) for term in self.terms]
        signed += [(term, 2 * sign) for pair in self.pairs for term, sign in zip(pair, (1, -1), strict=True)]
        # A box turned step by step grows by up to sqrt(2) each time; powers of their own, and one product, keep it small.
        fine = [[term.pole**t for t in range(_BLOCK)] for term, _ in signed]
        for start in itertools.count(0, _BLOCK):
            coarse = [
                [coefficient * term.pole**start * factor for coefficient in term.coefficients]
                for term, factor in signed
            ]
            for step in range(_BLOCK):
                t = start + step
                value = self.samples[t] if t < len(self.samples) else arb(0)
                if t == 0:
                    value += self.direct
                for powers, coefficients in zip(fine, coarse, strict=True):
                    value += (powers[step] * _binomials(coefficients, t)).real
                yield value

    def at(self, w: acb) -> acb:
        """sum_t k(t) w^t inside the unit circle."""
        value = acb(self.direct)
        for t in range(len(self.samples) - 1, -1, -1):
            value += self.samples[t] * w**t
        for term in self.terms:
            for j, c in enumerate(term.coefficients, start=1):
                value += c / (1 - term.pole * w) ** j + c.conjugate() / (1 - term.pole.conjugate() * w) ** j
        return value

    def rest(self, start: int) -> arb:
        """Bound on sum over t >= start of abs(k(t))."""
        total = sum((abs(value) for value in self.samples[start:]), arb(0))
        total += sum((term.rest(start) for term in self.terms), arb(0))
        return total + sum((_pair_rest(*pair, start) for pair in self.pairs), arb(0))

    def norms(self, longest: int = LONGEST) -> tuple[float, float]:
        """Upper bounds of the L1 and the L2 norm."""
        with ctx.workprec(PRECISION):
            absolute, squares, done = arb(0), arb(0), 0
            values, block = self.values(), _BLOCK
            while True:
                for _ in range(block):
                    value = abs(next(values)).upper()
                    absolute += value
                    squares += value * value
                done += block
                rest = self.rest(done)
                if bool(rest <= absolute / 200) or done >= longest:
                    return above(absolute + rest), above((squares + rest * rest).sqrt())
                block = done

    def response(self, length: int) -> list[float]:
        """The values at lags below `length`, to the last bit or nearly."""
        with ctx.workprec(PRECISION):
            values = self.values()
            return [float(next(values).mid()) for _ in range(length)]

    def minus(self, other: "KernelBalls") -> "KernelBalls":
        """The difference, poles that belong together side by side."""
        left, pairs, alone = list(other.terms), [], []
        for term in self.terms:
            simple = [item for item in left if len(item.coefficients) == len(term.coefficients) == 1]
            near = min(simple, key=lambda item: float(abs(item.pole - term.pole).mid()), default=None)
            if near is None:
                alone.append(term)
            else:
                left.remove(near)
                pairs.append((term, near))
        length = max(len(self.samples), len(other.samples))
        first, second = ([*kernel.samples, *[arb(0)] * (length - len(kernel.samples))] for kernel in (self, other))
        with ctx.workprec(PRECISION):
            alone += [Term(term.pole, tuple(-c for c in term.coefficients)) for term in left]
            samples = tuple(a - b for a, b in zip(first, second, strict=True))
            return KernelBalls(self.direct - other.direct, tuple(alone), samples, tuple(pairs))


def _binomials(coefficients: list[acb], t: int) -> acb:
    """sum_j c_j C(t + j - 1, j - 1)."""
    total = coefficients[0]
    for j, coefficient in enumerate(coefficients[1:], start=1):
        total += math.comb(t + j, j) * coefficient
    return total


def _pair_rest(a: Term, b: Term, start: int) -> arb:
    """Bound on the rest of a - b; both bounds hold, the smaller is taken."""
    c, d = a.coefficients[0], b.coefficients[0]
    m = abs(a.pole).upper().max(abs(b.pole).upper())
    if not m < 1:  # the series below is one only then
        return arb("inf")
    # sum over t >= T of t m^(t-1) = (m^T (T (1 - m)/m + 1)) / (1 - m)^2, by differentiating the geometric series.
    slope = (start * m ** max(start - 1, 0) * (1 - m) + m**start) / (1 - m) ** 2
    near = abs(c - d) * m**start / (1 - m) + abs(c).min(abs(d)) * abs(a.pole - b.pole) * slope
    return (2 * near).min(a.rest(start) + b.rest(start))


def finite(values: tuple[float, ...]) -> KernelBalls:
    """A kernel of finitely many lags, its floats taken as they are."""
    return KernelBalls(arb(0), (), tuple(arb(value) for value in values))


def exponential(poles: tuple[complex, ...], residues: tuple[complex, ...], direct: float) -> KernelBalls:
    """Floats taken as they are; the j-th occurrence of a pole multiplies 1/(1 - p z^-1)^j; of a conjugate pair the upper member counts."""
    grouped: dict[complex, list[acb]] = {}
    for pole, residue in zip(poles, residues, strict=True):
        if pole.imag >= 0:
            half = residue if pole.imag else residue / 2
            grouped.setdefault(pole, []).append(acb(half.real, half.imag))
    return KernelBalls(arb(direct), tuple(Term(acb(p.real, p.imag), tuple(c)) for p, c in grouped.items()))


def rational(numerator: tuple[Fraction, ...], denominator: tuple[Fraction, ...]) -> KernelBalls:
    """Partial fractions of N(w)/D(w), w = z^-1, coefficients ascending, deg N <= deg D, D(0) and the last of D not 0, in balls.

    With v = 1 - p w, H = G(v)/v^m and the coefficient of 1/(1 - p w)^j is that of v^(m-j) in G.
    """
    with ctx.workprec(PRECISION):
        top, bottom = (fmpq_poly([fmpq(c.numerator, c.denominator) for c in part]) for part in (numerator, denominator))
        degree = bottom.degree()
        if degree == 0:
            return KernelBalls(_ball(top[0]) / _ball(bottom[0]), ())
        backwards: Any = fmpq_poly([bottom[degree - i] for i in range(degree + 1)]).numer()
        roots: list[tuple[acb, int]] = backwards.complex_roots()
        terms = []
        for index, (pole, order) in enumerate(roots):
            if pole.imag < 0:
                continue
            old = ctx.cap
            ctx.cap = order
            try:
                series = _regular_part(top, bottom[0], roots, index)
            finally:
                ctx.cap = old
            share = 2 if pole.imag.is_zero() else 1
            terms.append(Term(pole, tuple(series[order - j] / share for j in range(1, order + 1))))
        direct = _ball(top[degree]) / _ball(bottom[degree]) if top.degree() == degree else arb(0)
        return KernelBalls(direct, tuple(terms))


def _regular_part(top: fmpq_poly, scale: fmpq, roots: list[tuple[acb, int]], index: int) -> list[acb]:
    """Coefficients of G(v) up to the pole's order."""
    pole, order = roots[index]
    w = acb_series([1 / pole, -1 / pole], prec=order)
    value = acb_series([0], prec=order)
    for i in range(top.degree(), -1, -1):
        value = value * w + acb_series([acb(_ball(top[i]))], prec=order)
    value = value * acb_series([1 / acb(_ball(scale))], prec=order)
    for other, (p, times) in enumerate(roots):
        if other != index:
            factor = acb_series([1 - p / pole, p / pole], prec=order)
            for _ in range(times):
                value = value / factor
    coefficients = list(value.coeffs())
    return coefficients + [acb(0)] * (order - len(coefficients))


def _ball(value: fmpq) -> arb:
    return arb(value)
