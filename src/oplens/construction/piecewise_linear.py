r"""A Lipschitz function of n reals as a transformer: linear interpolation on the Kuhn triangulation of a grid (construction F).

    hat_z(x) = ReLU(1 - max(0, max_j u_j) + min(0, min_j u_j)),  u = M (x - z),     f~(x) = c + sum_z (f(z) - c) hat_z(x)

The hats sum to 1 on the cube, so a constant c (midway between f's least and largest value at the nodes) can be taken out: it keeps
rounding small. Maxima and minima are tournaments, max(a, b) = b + ReLU(a - b) and min(a, b) = a - ReLU(a - b), in ceil(log2(n+1)) layers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.construction.certificate import Certificate
from oplens.construction.gathering import ROUNDOFF, Gathering, certify, gamma, gathering, read, write
from oplens.construction.real_functions import RealFunction, check_memory
from oplens.construction.weights import DTYPES, dtype_name
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.theory import piecewise_linear_rate
from oplens.theory.statement import count, power


def build_piecewise_linear(
    f: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    n: int,
    M: int,
    lipschitz: tuple[str, float],
    bounds: tuple[float, float] = (0.0, 1.0),
    *,
    dtype: str | torch.dtype = "float64",
    n_frequencies: int = 4,
    seed: int = 0,
    memory_limit: int = 2 * 2**30,
) -> tuple[Transformer, Certificate]:
    r"""Weights of a transformer that reads n reals and returns f~, and a bound on sup abs(f~ - f).

    sup error <= interpolation + gather + rounding, interpolation = (L/M) times min(n/(n+1), 3/4) for L in the max norm, sqrt(n)/2 in l2,
    n/2 in l1. Proof of the last two: with barycentric weights c_k of the simplex's vertices, sum_k c_k abs(x_j - v_kj) =
    2 xi_j (1 - xi_j)/M and sum_k c_k (x_j - v_kj)^2 = xi_j (1 - xi_j)/M^2, xi the position within the cell; sum over j (and Jensen).

    Parameters
    ----------
    f : callable
        Takes points (n_points, n) float64 inside `bounds`, returns (n_points,).
    n, M : int
        Variables (the sequence's length); cells per axis.
    lipschitz : (str, float)
        Norm "l1", "l2" or "max", and L. Checked by sampling: a contradiction is refused, passing is no proof.
    bounds : (float, float)
        Interval of every variable.
    dtype : str or torch.dtype
        float64 or float32, of weights and arithmetic.
    n_frequencies : int
        K of the positional code.
    seed : int
        Of the pairs at which the Lipschitz constant is checked.
    memory_limit : int
        Bytes; refused before f is evaluated.

    Returns
    -------
    Transformer
        Ordinary sparse weights; x (batch, n, 1) to (batch, 1). Sequences have exactly n positions.
    Certificate
        Claim *bound*; f's own values at the nodes count as exact.

    Raises
    ------
    ArgumentError
        n < 1, M < 1, bounds, dtype, or a size over the memory limit.
    DataError
        NaN or infinite values of f, or two points that contradict the Lipschitz constant.

    Notes
    -----
    Accuracy: *bound*. Cost: O(n (M+1)^n log n) weights and (M+1)^n evaluations of f.
    Source: Kuhn 1960 (triangulation); the constants derived for this library.

    Examples
    --------
    >>> model, certificate = build_piecewise_linear(lambda x: abs(x[:, 0] - x[:, 1]), n=2, M=4, lipschitz=("l1", 1.0))
    >>> x = torch.tensor([[[0.8], [0.15]]], dtype=torch.float64)
    >>> round(float(model(x)), 9), round(certificate.error_bound, 9), certificate.depth
    (0.65, 0.25, 4)
    """
    call = "build_piecewise_linear"
    target = RealFunction(f, n, lipschitz, bounds, call)
    count(call, "M", M)
    count(call, "n_frequencies", n_frequencies)
    nodes, depth = power(call, M + 1, n), n.bit_length()
    check_memory(call, nodes * (n + 1) * (4 * depth + 8) * 48, memory_limit, f"(M+1)^n = {nodes} nodes; lower M")
    dtype = DTYPES[dtype_name(call, dtype)]
    plan = gathering(call, n, n_frequencies, target.bounds, dtype)
    target.check_lipschitz(seed=seed)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[np.arange(M + 1)] * n, indexing="ij")], 1)
    values = target.values(target.outer(grid / M))
    target.check_grid(grid / M, values.reshape((M + 1,) * n))
    centre = (values.min() + values.max()) / 2
    levels, hats = _tournaments(grid, M, plan)
    own = sum(level.units for level in levels)
    model = plan.model(own + 1, [*(level.units for level in levels), nodes])
    _write_layers(model, plan, [*levels, hats], values - centre, centre)
    parts = _parts(model, plan, target, M, values - centre, float(centre), dtype)
    model = model.to(dtype).eval().requires_grad_(False)
    statement = f"linear interpolation of f on the Kuhn triangulation of {M} cells per axis, within the error bound of f everywhere"
    hypotheses = (target.hypothesis, "f's values at the nodes are exact")
    return model, certify("piecewise-linear", model, plan, statement, hypotheses, parts)


@dataclass(frozen=True)
class _Level:
    """ReLU units of one feed-forward layer: unit r is ReLU(sum_i weights_i state[columns_ri] + constants_r)."""

    units: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    constants: NDArray[np.float64]


@dataclass(frozen=True)
class _Form:
    """A linear form of the residual stream for every node: sum_i weights_i state[columns_zi] + constants_z."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    constants: NDArray[np.int64]

    def plus(self, other: "_Form", factor: float) -> "_Form":
        """self + factor times other."""
        return _Form(
            np.concatenate((self.columns, other.columns), 1),
            np.concatenate((self.weights, factor * other.weights)),
            self.constants + int(factor) * other.constants,
        )


def _tournaments(grid: NDArray[np.int64], M: int, plan: Gathering) -> tuple[list[_Level], _Level]:
    """Layers of max and min of (0, u_1, ..., u_n) at every node, and the layer of the hats.

    Units whose weights agree, as those of nodes that share coordinates do, are one unit.
    """
    nodes, n = grid.shape
    zero = _Form(np.zeros((nodes, 0), np.int64), np.zeros(0), np.zeros(nodes, np.int64))
    leaves = [
        _Form(np.full((nodes, 1), plan.gathered + j), np.array([float(M)]), -grid[:, j].astype(np.int64))
        for j in range(n)
    ]
    terms = [(form, form) for form in (zero, *leaves)]  # (max, min) of a block
    levels, column = [], plan.first
    while len(terms) > 1:
        made: list[_Level] = []
        following = []
        for a, b in zip(terms[::2], terms[1::2], strict=False):
            single = a[0] is a[1] and b[0] is b[1]
            high, column = _unit(a[0].plus(b[0], -1), made, column)
            low, column = (high, column) if single else _unit(a[1].plus(b[1], -1), made, column)
            following.append((b[0].plus(high, 1), a[1].plus(low, -1)))
        terms = following + terms[len(following) * 2 :]
        levels.append(_join(made))
    high, low = terms[0]
    hat = low.plus(high, -1)
    rows = np.repeat(np.arange(nodes), len(hat.weights))
    return levels, _Level(nodes, rows, hat.columns.ravel(), np.tile(hat.weights, nodes), hat.constants + np.float64(1))


def _unit(form: _Form, made: list[_Level], column: int) -> tuple[_Form, int]:
    """Units ReLU(form), each distinct one once, in coordinates from `column` on; and the form that reads them at every node."""
    key = np.concatenate((form.columns, form.constants[:, None]), 1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    units, width = len(distinct), len(form.weights)
    rows = np.repeat(np.arange(units), width)
    constants = distinct[:, -1].astype(np.float64)
    made.append(_Level(units, rows, distinct[:, :-1].ravel(), np.tile(form.weights, units), constants))
    read = _Form((column + inverse.reshape(-1, 1)).astype(np.int64), np.ones(1), np.zeros(len(key), np.int64))
    return read, column + units


def _join(parts: list[_Level]) -> _Level:
    """Units of several tournaments in one layer."""
    starts = np.cumsum([0, *(part.units for part in parts)])
    return _Level(
        int(starts[-1]),
        np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.constants for part in parts]),
    )


def _write_layers(
    model: Transformer, plan: Gathering, levels: list[_Level], heights: NDArray[np.float64], centre: float
) -> None:
    """Tournament units into their coordinates, the hats' weighted sum into the last, which is read out."""
    column, last = plan.first, model.config.d_model - 1
    for index, level in enumerate(levels, start=1):
        feed = model.block(index).feedforward
        assert feed is not None
        write(feed.up, level.rows, level.columns, level.weights, level.constants)
        units = np.arange(level.units)
        if index < len(levels):
            write(feed.down, column + units, units, np.ones(level.units))
            column += level.units
        else:
            write(feed.down, np.full(level.units, last), units, heights)
    assert model.readout is not None
    write(model.readout, [0], [last], [1.0], [centre])


def _parts(
    model: Transformer,
    plan: Gathering,
    target: RealFunction,
    M: int,
    heights: NDArray[np.float64],
    centre: float,
    dtype: torch.dtype,
) -> tuple[tuple[str, float], ...]:
    """Interpolation, gathering and rounding, each a bound on its own.

    Gathering: f~ has slopes of at most L along each axis inside the cube, and of at most M max abs(f - c) where rounding leaves it.
    Rounding: a hat that is not 0 in floats has 1 - max + min > -delta, delta < 1; at most (n+1) 2^n nodes have that (the least of
    0, u_1, ..., u_n is one of n+1, and every other of them lies in an interval shorter than 2, which leaves 2 integers for each), and
    adding zeros rounds nothing.
    """
    n, L, u = plan.n, target.unit_lipschitz, ROUNDOFF[dtype]
    rate = {"max": min(n / (n + 1), 0.75), "l2": math.sqrt(n) / 2, "l1": n / 2}[target.norm]
    # The library's rate for the max norm; both are L/M times the constant above.
    interpolation = piecewise_linear_rate(n, L, M).value if target.norm == "max" else rate * L / M
    largest = float(np.abs(heights).max())
    delta = _rounding_of_hats(model, plan, u)
    active = (n + 1) * 2**n
    total = largest * (active * delta + gamma(active + 4, u) * (1 + active * delta))
    total += gamma(3, u) * (2 * abs(centre) + largest)
    low, high = target.bounds
    total += L / (high - low) * n * gamma(4, ROUNDOFF[torch.float64]) * max(abs(low), abs(high))
    return (
        ("interpolation", float(interpolation)),
        ("gathering", n * max(L, M * largest) * plan.error(u)),
        ("rounding", total),
    )


def _rounding_of_hats(model: Transformer, plan: Gathering, u: float) -> float:
    """Largest rounding error of what enters a hat's ReLU, the gathered reals taken as exact.

    A running error analysis over the layers: `size` bounds every coordinate, `error` its rounding; a sum of k terms and a bias with
    rounded weights errs by gamma(k + 3) times the sum of absolute values, and a ReLU passes errors on.
    """
    size, error = np.zeros(model.config.d_model), np.zeros(model.config.d_model)
    size[plan.gathered : plan.first] = 1 + plan.error(u)
    column, delta = plan.first, 0.0
    for index in range(1, model.config.n_layers):
        feed = model.block(index).feedforward
        assert feed is not None
        row, at, weight, bias = read(feed.up)
        absolute = np.bincount(row, np.abs(weight) * (size + error)[at], feed.d_ffn) + np.abs(bias)
        passed = np.bincount(row, np.abs(weight) * error[at], feed.d_ffn)
        terms = np.bincount(row, minlength=feed.d_ffn).max(initial=0) + 3
        found = passed + gamma(float(terms), u) * absolute
        if index == model.config.n_layers - 1:
            delta = float(found.max())
        else:
            size[column : column + feed.d_ffn], error[column : column + feed.d_ffn] = absolute, found
            column += feed.d_ffn
    if delta >= 1:
        raise ArgumentError(
            f"build_piecewise_linear: rounding of {delta:.3g} cells leaves no certificate; build in float64 or lower M."
        )
    return delta
