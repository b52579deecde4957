r"""The readout as a polynomial per feature: activations, families, and a certified bound on what a polynomial leaves out."""

from oplens.operators.polynomial.activations import ACTIVATIONS, Activation, activation
from oplens.operators.polynomial.closed_forms import (
    check_order,
    gelu,
    gelu_chebyshev,
    gelu_coefficients,
    normal_cdf,
    normal_density,
    relu_chebyshev,
    relu_coefficients,
)
from oplens.operators.polynomial.expansion import FAMILIES, SERIES_FAMILIES, Expansion
from oplens.operators.polynomial.polynomials import extremes, hermite_of_polynomial, polynomial_activation
from oplens.operators.polynomial.remainder import certified_remainder
from oplens.operators.polynomial.series import Series
from oplens.operators.polynomial.table import RemainderTable

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "SERIES_FAMILIES",
    "Activation",
    "Expansion",
    "RemainderTable",
    "Series",
    "activation",
    "certified_remainder",
    "check_order",
    "extremes",
    "gelu",
    "gelu_chebyshev",
    "gelu_coefficients",
    "hermite_of_polynomial",
    "normal_cdf",
    "normal_density",
    "polynomial_activation",
    "relu_chebyshev",
    "relu_coefficients",
]
