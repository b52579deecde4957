r"""Readouts as piecewise polynomials with certified errors: ball arithmetic (python-flint) once per readout, floats ever after.

On the cell abs(z - c) <= 1/2, c an integer, g is interpolated at the n + 1 Chebyshev points with error at most

    4 M rho^-n / (rho - 1),    M = max abs(g) on the ellipse  c + a cos t + i b sin t,  a^2 = b^2 + 1/4,  rho = 2 (a + b),

(Trefethen, Approximation Theory and Approximation Practice, theorem 8.2) for any b for which g is analytic in the ellipse. Its height b
is kept below the half-width of a strip without poles:

    sigmoid, SiLU   1 + exp(-z) = 0 needs Im z an odd multiple of pi
    tanh            cosh z = 0 needs Im z an odd multiple of pi/2
    tanh-GELU       cosh y = 0, y = sqrt(2/pi) (z + a z^3), needs Re y = 0: x (1 + a x^2 - 3 a y^2) = 0 for z = x + iy, hence x = 0 where
                    abs(y) < 1/sqrt(3a) = 2.73; there abs(Im) = sqrt(2/pi) abs(y - a y^3) < sqrt(2/pi) 2 / (3 sqrt(3a)) = 1.453 < pi/2
    erf-GELU        entire

M is the largest absolute value of g on balls that cover the upper half of the ellipse (g is real on the real line); for erf-GELU
abs(Phi(x + iy)) <= 1 + abs(y) exp(y^2/2)/sqrt(2 pi), the integral of abs(phi(x + it)) <= exp(t^2/2)/sqrt(2 pi) from the real line. The
interpolant is brought to powers of t = (z - c)/(1/2) in balls and rounded to float64 there; what rounding did is added to the
error. Beyond the cells g is a straight line up to a tail that decreases, so its value at the last cell's edge bounds it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from flint import acb, arb, ctx
from torch import Tensor

PRECISION = 160  # bits
SEGMENTS = 64  # balls on half an ellipse
GOAL = 2e-18  # of the interpolation error: below the rounding of coefficients of size 1


@dataclass(frozen=True)
class Cells:
    """g as a piecewise polynomial: on cell i, abs(g - sum_k coefficients[i, k] ((z - centre) * stretch)^k) <= error.

    edges (n + 1,) from -inf to inf; centre, stretch, error (n,); coefficients (n, degree + 1).
    """

    edges: Tensor
    centre: Tensor
    stretch: Tensor
    coefficients: Tensor
    error: Tensor

    @property
    def degree(self) -> int:
        """Largest degree of a cell's polynomial."""
        return int(self.coefficients.shape[-1]) - 1


@dataclass(frozen=True)
class _Balls:
    """What ball arithmetic has to know of a readout."""

    real: Callable[[arb], arb]
    largest: Callable[[int], arb]  # cell centre -> M
    height: float  # b of the ellipse
    last: int  # centre of the last cell
    tail: Callable[[arb], arb]  # x > 0 -> bound on abs(g - line) beyond +-x
    left: tuple[float, float]  # the lines, constant and slope
    right: tuple[float, float]


@cache
def cells(readout: str) -> Cells:
    """The table of a readout; computed once per process (20 to 200 ms).

    Examples
    --------
    >>> table = cells("relu")  # two straight lines, exactly
    >>> table.edges.tolist(), table.coefficients.tolist(), table.error.tolist()
    ([-inf, 0.0, inf], [[0.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    """
    if readout == "relu":
        rows = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
        one = torch.ones(2, dtype=torch.float64)
        return Cells(torch.tensor([-math.inf, 0.0, math.inf], dtype=torch.float64), 0 * one, one, rows, 0 * one)
    with ctx.workprec(PRECISION):
        return _build(_table()[readout])


def _build(g: _Balls) -> Cells:
    half = arb(0.5)
    b = arb(g.height)
    rho = 2 * ((b * b + half * half).sqrt() + b)
    centres = range(-g.last, g.last + 1)
    sizes = [g.largest(c) for c in centres]
    worst = max(above(m) for m in sizes)
    degree = 1
    while above(4 * arb(worst) * rho ** (-degree) / (rho - 1)) > GOAL * max(1, g.last) and degree < 60:
        degree += 1
    angles = [arb.pi() * (2 * j + 1) / (2 * (degree + 1)) for j in range(degree + 1)]
    nodes = [theta.cos() for theta in angles]
    powers = _chebyshev_powers(degree)
    cosines = [[(theta * k).cos() * (1 if k == 0 else 2) / (degree + 1) for theta in angles] for k in range(degree + 1)]
    rows, errors = [], []
    for c, size in zip(centres, sizes, strict=True):
        values = [g.real(c + half * t) for t in nodes]
        series = [_dot(values, row) for row in cosines]
        exact = [_dot(series, [powers[k][j] for k in range(degree + 1)]) for j in range(degree + 1)]
        row_floats = [float(x.mid()) for x in exact]
        rounding = sum((abs(x - arb(f)) for x, f in zip(exact, row_floats, strict=True)), arb(0))
        rows.append(row_floats)
        errors.append(above(rounding + 4 * size * rho ** (-degree) / (rho - 1)))
    edge = g.last + 0.5
    tail = above(g.tail(arb(edge)))
    line = [[*ends, *[0.0] * (degree - 1)] for ends in (g.left, g.right)]
    inner = [c - 0.5 for c in centres] + [edge]
    return Cells(
        torch.tensor([-math.inf, *inner, math.inf], dtype=torch.float64),
        torch.tensor([0.0, *centres, 0.0], dtype=torch.float64),
        torch.tensor([1.0, *[2.0] * len(centres), 1.0], dtype=torch.float64),
        torch.tensor([line[0], *rows, line[1]], dtype=torch.float64),
        torch.tensor([tail, *errors, tail], dtype=torch.float64),
    )


def _dot(a: list[arb], b: list[arb]) -> arb:
    return sum((x * y for x, y in zip(a, b, strict=True)), arb(0))


def _chebyshev_powers(degree: int) -> list[list[arb]]:
    """Integer coefficients of T_0..T_degree."""
    rows = [[1] + [0] * degree, [0, 1] + [0] * (degree - 1)]
    for _ in range(2, degree + 1):
        raised = [0, *[2 * x for x in rows[-1][:-1]]]
        rows.append([x - y for x, y in zip(raised, rows[-2], strict=True)])
    return [[arb(x) for x in row] for row in rows]


def above(x: arb) -> float:
    """A float64 not below any number in the ball."""
    return math.nextafter(float(x.upper()), math.inf)


def _on_ellipse(g: Callable[[acb], acb], height: float) -> Callable[[int], arb]:
    """The largest abs(g) on the upper half of the ellipse about a cell's centre."""

    def largest(c: int) -> arb:
        b = arb(height)
        a = (b * b + arb(0.25)).sqrt()
        step = arb.pi() / SEGMENTS
        bound = arb(0)
        for j in range(SEGMENTS):
            theta = (step * j).union(step * (j + 1))
            bound = bound.max(abs(g(acb(c + a * theta.cos(), b * theta.sin()))).upper())
        return bound

    return largest


def _gelu_largest(height: float) -> Callable[[int], arb]:
    def largest(c: int) -> arb:
        b = arb(height)
        a = (b * b + arb(0.25)).sqrt()
        return (abs(c) + a) * (1 + b * (b * b / 2).exp() / (2 * arb.pi()).sqrt())

    return largest


def _table() -> dict[str, _Balls]:
    slope, cubic = (2 / arb.pi()).sqrt(), arb("0.044715")

    def gelu(x: arb) -> arb:
        return x * (-x / arb(2).sqrt()).erfc() / 2

    def gelu_tanh(z: acb) -> acb:
        return z * (1 + (slope * (z + cubic * z**3)).tanh()) / 2

    def sigmoid(z: acb) -> acb:
        return 1 / (1 + (-z).exp())

    def silu(z: acb) -> acb:
        return z * sigmoid(z)

    def real(g: Callable[[acb], acb]) -> Callable[[arb], arb]:
        return lambda x: g(acb(x)).real

    # Tails beyond x: z Phi(-z) <= phi(z) (Mills); z/(1 + exp(2y)) <= z exp(-2y); z/(1 + exp z) <= z exp(-z); exp(-z); 2 exp(-2z).
    # z exp(-z) and z exp(-2y), y >= z sqrt(2/pi), decrease beyond 1.
    line, one = (0.0, 1.0), (1.0, 0.0)
    zero = (0.0, 0.0)
    return {
        "gelu": _Balls(gelu, _gelu_largest(3.5), 3.5, 9, lambda x: (-x * x / 2).exp(), zero, line),
        "gelu_tanh": _Balls(
            real(gelu_tanh),
            _on_ellipse(gelu_tanh, 2.4),
            2.4,
            7,
            lambda x: x * (-2 * slope * (x + cubic * x**3)).exp(),
            zero,
            line,
        ),
        "silu": _Balls(real(silu), _on_ellipse(silu, 2.75), 2.75, 42, lambda x: x * (-x).exp(), zero, line),
        "sigmoid": _Balls(real(sigmoid), _on_ellipse(sigmoid, 2.75), 2.75, 39, lambda x: (-x).exp(), zero, one),
        "tanh": _Balls(
            lambda x: x.tanh(),
            _on_ellipse(lambda z: z.tanh(), 1.25),
            1.25,
            20,
            lambda x: 2 * (-2 * x).exp(),
            (-1.0, 0.0),
            one,
        ),
    }
