"""Ratios of polynomials with exact coefficients, and the reading of what they are given by."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpq, fmpq_poly
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError

_PAIRED = 1e-9  # relative distance up to which two numbers are taken for a conjugate pair
Polynomial = tuple[Fraction, ...]  # ascending in w = z^-1


def reduce(call: str, top: Polynomial, bottom: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Without common factors; refused where the filter answers before its input, or with a finite part beyond lag 0."""
    N, D = (fmpq_poly([fmpq(c.numerator, c.denominator) for c in part]) for part in (top, bottom))
    if D.degree() < 0 or D[0] == fmpq(0):
        raise ArgumentError(
            f"{call}: the first coefficient of the denominator is 0; the filter answers before its input."
        )
    if N.degree() < 0:
        raise ArgumentError(f"{call}: the numerator is 0; leave this kernel out.")
    common = N.gcd(D)
    N, D = N // common, D // common
    if N.degree() > D.degree():
        raise ArgumentError(
            f"{call}: the impulse response has a finite part beyond lag 0 (numerator of degree {N.degree()}, denominator of degree "
            f"{D.degree()} in 1/z), which is no exponential sum; give FiniteKernel(scipy.signal.lfilter(b, a, impulse)), which is "
            "approximated with a certified error."
        )
    return tuple(tuple(Fraction(int(c.p), int(c.q)) for c in part.coeffs()) for part in (N, D))  # type: ignore[return-value]


def check_fading(call: str, pole: complex, inside: bool = True) -> None:
    """Refuse poles outside the unit circle, on it, and at its centre; `inside` is what is known of it before its rounding."""
    size = abs(pole)
    if not (math.isfinite(size) and size < 1 and inside):
        raise ArgumentError(
            f"{call}: the pole {pole:.6g} has size {size:.9g}; inside the unit circle only does memory fade, and a model of decaying waves "
            "has no others."
        )
    if size == 0:
        raise ArgumentError(f"{call}: a pole at 0 acts at lag 0 alone; add its residue to direct.")


def conjugate_pairs(
    call: str, poles: tuple[complex, ...], residues: tuple[complex, ...]
) -> tuple[tuple[complex, ...], tuple[complex, ...]]:
    """Real poles as they are, upper members each followed by its exact conjugate."""
    left = list(zip(poles, residues, strict=True))
    made: list[tuple[complex, complex]] = []
    while left:
        pole, residue = left.pop(0)
        if pole.imag == 0:
            if abs(residue.imag) > _PAIRED * abs(residue):
                raise ArgumentError(f"{call}: the residue {residue:.6g} of the real pole {pole.real:.6g} is not real.")
            made.append((complex(pole.real), complex(residue.real)))
            continue
        partner = next(
            (
                item
                for item in left
                if abs(item[0] - pole.conjugate()) <= _PAIRED * abs(pole)
                and abs(item[1] - residue.conjugate()) <= _PAIRED * abs(residue)
            ),
            None,
        )
        if partner is None:
            raise ArgumentError(
                f"{call}: the pole {pole:.6g} with residue {residue:.6g} has no conjugate partner, so the kernel is not real; give both "
                "members of every pair."
            )
        left.remove(partner)
        upper = (pole, residue) if pole.imag > 0 else partner
        made += [upper, (upper[0].conjugate(), upper[1].conjugate())]
    return tuple(p for p, _ in made), tuple(r for _, r in made)


def monic(call: str, roots: tuple[complex, ...]) -> Polynomial:
    """prod (1 - root w), ascending in w; pairs from their upper members."""
    call = f"ExponentialSum.{call}"
    snapped = tuple(complex(r.real) if abs(r.imag) <= _PAIRED * abs(r) else r for r in roots)
    paired, _ = conjugate_pairs(call, snapped, tuple(complex(1) for _ in snapped))
    product: Polynomial = (Fraction(1),)
    for root in paired:
        x, y = Fraction(root.real), Fraction(root.imag)
        if root.imag == 0:
            product = times(product, (Fraction(1), -x))
        elif root.imag > 0:
            product = times(product, (Fraction(1), -2 * x, x * x + y * y))
    return product


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product."""
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return tuple(product)


def fractions(values: Any) -> Polynomial:
    """Floats as they are."""
    return tuple(Fraction(float(value)) for value in values)


def coefficients(call: str, name: str, values: Any) -> Polynomial:
    """A row of real numbers."""
    found = np.atleast_1d(real_array(call, name, values))
    if found.ndim != 1 or not len(found):
        raise ArgumentError(f"ExponentialSum.{call}: {name} must be a row of coefficients, got shape {found.shape}.")
    return fractions(found)


def real_array(call: str, name: str, values: Any) -> NDArray[np.float64]:
    """Finite real numbers."""
    try:
        found = np.asarray(values)
        if found.dtype.kind not in "fiu":
            raise TypeError
        found = found.astype(np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{call}({name}=...): expected an array of real numbers.") from None
    bad = ~np.isfinite(found)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise DataError(f"{call}: {name} holds {found[where]} at {where}; all values must be finite.")
    return found


def complex_row(call: str, name: str, values: Any) -> tuple[complex, ...]:
    """Finite complex numbers."""
    try:
        found = tuple(complex(value) for value in values)
    except (TypeError, ValueError):
        raise ArgumentError(f"{call}({name}={values!r}): expected a sequence of complex numbers.") from None
    for value in found:
        if not (math.isfinite(value.real) and math.isfinite(value.imag)):
            raise ArgumentError(f"{call}({name}=...): {value} is not finite.")
    return found
