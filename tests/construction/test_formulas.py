"""Formulas as text, against the same arithmetic written in Python."""

import math

import numpy as np
import pytest

from oplens.construction.formulas import formula
from oplens.construction.piecewise_linear import build_piecewise_linear
from oplens.errors import ArgumentError, DataError

CASES = {
    "abs(x1 - x2)": lambda x: abs(x[0] - x[1]),
    "max(x1, x2, x3)": lambda x: max(x[:3]),
    "(min(x3, x1*2) - 1) % 0.3": lambda x: (min(x[2], x[0] * 2) - 1) % 0.3,
    "sin(2*pi*x1) * sin(2*pi*x2)": lambda x: math.sin(2 * math.pi * x[0]) * math.sin(2 * math.pi * x[1]),
    "abs(4*x1 - round(4*x1))/4": lambda x: abs(4 * x[0] - round(4 * x[0])) / 4,
    "-x1**2 + e**-x2 - +3": lambda x: -(x[0] ** 2) + math.exp(-x[1]) - 3,
    "exp(log(x1 + 1)) / sqrt(1 + x3) + tanh(x2) - cos(x1) + tan(x2) - floor(3*x3)": lambda x: (
        (x[0] + 1) / math.sqrt(1 + x[2]) + math.tanh(x[1]) - math.cos(x[0]) + math.tan(x[1]) - math.floor(3 * x[2])
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_a_formula_is_what_python_makes_of_it(text):
    x = np.random.default_rng(0).random((50, 3))
    found = formula(text)
    np.testing.assert_allclose(found(x), [CASES[text](row) for row in x.tolist()], atol=1e-13)
    assert found.n == max(int(c) for c in "123" if f"x{c}" in text)


def test_integers_are_numbers_like_others():
    assert formula("2**-1 + 0*x1")(np.zeros((1, 1))).tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abs(x1 -", "cannot be read"),
        ("", "cannot be read"),
        ("3 + pi", "holds no variable"),
        ("x0 + x1", "'x0' is not known here"),
        ("y + x1", "'y' is not known here"),
        ("x1.real", "'x1.real' is not known"),
        ("__import__('os').getcwd()", "is not known here"),
        ("abs(x1, x2)", "is not known here"),
        ("max()", "is not known here"),
        ("max(*x1)", "is not known here"),
        ("round(x1, ndigits=2)", "is not known here"),
        ("x1 if x2 else 3", "is not known here"),
        ("x1 // 2", "is not known here"),
        ("x1 + True", "'True' is not known"),
        ("x1 + 1j", "is not known"),
        ("x1 + 1" + "0" * 400, "is not known"),
        ("x1 + x100000", "is not known"),
        ("x1 @ x2", "is not known"),
        ("x1" + " + x1" * 600, "characters are more than"),
        ("-" * 100 + "x1", "nested more than"),
    ],
)
def test_anything_else_is_refused(text, words):
    with pytest.raises(ArgumentError, match=words):
        formula(text)


def test_points_with_too_few_variables_are_refused():
    with pytest.raises(DataError, match=r"shape \(n_points, 3\), got \(4, 2\)"):
        formula("x3")(np.zeros((4, 2)))


def test_where_a_formula_is_undefined_the_construction_refuses():
    with pytest.raises(DataError, match="f is nan at"):
        build_piecewise_linear(formula("sqrt(x1 - 0.5)"), 1, 2, ("l1", 9.0))
