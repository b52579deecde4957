r"""A Lipschitz function of n reals as a transformer: its Fejér-Korovkin mean, every cosine piecewise linear (construction E).

    F(x) = sum_kappa a_kappa cos(pi kappa.x),   one of every pair +-kappa, abs(kappa_j) <= D;   x_j = abs(theta_j)/pi

rho_k = ((D+2-k) cos(k p) + sin(k p) cot p)/(D+2), p = pi/(D+2), times midpoint sums of at least (D+2)/2 nodes per axis: the discrete
operator is positive with the continuous one's first moment, so there is no quadrature error. A cosine is made of ReLUs from t = 0
outwards, with knots at most h apart, so that every unit is as small as it can be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.construction.certificate import Certificate
from oplens.construction.gathering import ROUNDOFF, Gathering, certify, gamma, gathering, write
from oplens.construction.real_functions import RealFunction, check_memory
from oplens.construction.weights import DTYPES, dtype_name
from oplens.models.transformer import Transformer
from oplens.theory import fourier_rate
from oplens.theory.statement import count, number, power

_SHARE = 0.1  # of the mean's own error bound that the default step gives to the cosines
_BYTES = 72  # per weight while it is being placed; the peak was measured at 52 to 72


def build_fourier(
    f: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    n: int,
    D: int,
    lipschitz: tuple[str, float],
    bounds: tuple[float, float] = (0.0, 1.0),
    *,
    step: float | None = None,
    nodes: int | None = None,
    dtype: str | torch.dtype = "float64",
    n_frequencies: int = 4,
    seed: int = 0,
    memory_limit: int = 2 * 2**30,
) -> tuple[Transformer, Certificate]:
    r"""Weights of a transformer that reads n reals and returns F with piecewise linear cosines, and a bound on its sup error.

    sup error <= n L sin(pi/(2(D+2))) [l1; sqrt(n) in l2 and max] + sum_{kappa != 0} abs(a_kappa) h_kappa^2/8 + gathering + rounding.

    Parameters
    ----------
    f : callable
        Takes points (n_points, n) float64 inside `bounds`, returns (n_points,).
    n, D : int
        Variables (the sequence's length); degree per axis.
    lipschitz : (str, float)
        Norm "l1", "l2" or "max", and L. Checked by sampling: a contradiction is refused, passing is no proof.
    bounds : (float, float)
        Interval of every variable.
    step : float, optional
        h, largest distance of knots in radians, up to 1. By default such that the cosines' part is at most a tenth of the mean's, but not
        below 0.001.
    nodes : int, optional
        Midpoints per axis at which f is read, at least (D+2)/2; D + 2 by default.
    dtype : str or torch.dtype
        float64 or float32, of weights and arithmetic.
    n_frequencies : int
        K of the positional code.
    seed : int
        Of the pairs at which the Lipschitz constant is checked.
    memory_limit : int
        Bytes; refused before f is evaluated, or, where `step` is left to the coefficients, before weights are made.

    Returns
    -------
    Transformer
        Ordinary sparse weights, two layers; x (batch, n, 1) to (batch, 1). Sequences have exactly n positions.
    Certificate
        Claim *bound*; f's own values at the nodes count as exact.

    Raises
    ------
    ArgumentError
        n < 1, D < 1, too few nodes, a step outside (0, 1], bounds, dtype, or a size over the memory limit.
    DataError
        NaN or infinite values of f, or two points that contradict the Lipschitz constant.

    Notes
    -----
    Accuracy: *bound*. Cost: ((2D+1)^n + 1)/2 cosines, about pi norm1(kappa)/h ReLUs each; nodes^n evaluations of f.
    Source: Korovkin's kernel (1958); constants as in :func:`oplens.theory.fourier_rate`.

    Examples
    --------
    >>> model, certificate = build_fourier(lambda x: abs(x[:, 0] - 0.5), n=1, D=6, lipschitz=("l1", 1.0))
    >>> [name for name, _ in certificate.error_parts], round(certificate.error_bound, 3)
    (['mean', 'cosines', 'coefficients', 'gathering', 'rounding'], 0.206)
    >>> 0.05 < float(model(torch.full((1, 1, 1), 0.5, dtype=torch.float64))) < 0.21
    True
    """
    call = "build_fourier"
    target = RealFunction(f, n, lipschitz, bounds, call)
    count(call, "D", D)
    count(call, "n_frequencies", n_frequencies)
    nodes = D + 2 if nodes is None else count(call, "nodes", nodes, -(-(D + 2) // 2), None, "at least (D+2)/2")
    if step is not None:
        number(call, "step", step, 0, 1 + 1e-12, open_below=True, meaning="radians between knots")
    waves = power(call, 2 * D + 1, n)
    cure = f"{waves // 2 + 1} cosines, {nodes**n} nodes; lower D"
    check_memory(call, 8 * ((n + 6) * waves + (2 * n + 3) * power(call, nodes, n)), memory_limit, cure)
    check_memory(call, _bytes(n, D, 1.0 if step is None else step), memory_limit, f"{cure}, enlarge step")
    dtype = DTYPES[dtype_name(call, dtype)]
    plan = gathering(call, n, n_frequencies, target.bounds, dtype)
    target.check_lipschitz(seed=seed)
    midpoints = (np.arange(nodes) + 0.5) / nodes
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[midpoints] * n, indexing="ij")], 1)
    values = target.values(target.outer(grid))
    values = values.reshape((nodes,) * n)
    target.check_grid(grid, values)
    kappa, a = ridges(values, D)
    mean = float(fourier_rate(n, target.unit_lipschitz, D, target.norm).value)
    if step is None:
        step = 1.0 if mean == 0 else math.sqrt(8 * _SHARE * mean / max(float(np.abs(a[1:]).sum()), mean))
        step = min(1.0, max(1e-3, step))
        check_memory(call, _bytes(n, D, step), memory_limit, f"{cure}, or give a step above {step:.3g}")
    knots = _Knots.of(kappa[1:], step)
    model = plan.model(len(kappa) - 1, [len(knots.at)])
    _write(model, plan, kappa[1:], a, knots)
    parts = (("mean", mean), *_parts(plan, target, kappa[1:], a, knots, values, dtype))
    model = model.to(dtype).eval().requires_grad_(False)
    statement = f"the Fejér-Korovkin mean of degree {D} of f, its cosines with knots {step:.3g} apart, within the error bound of f everywhere"
    return model, certify(
        "fourier", model, plan, statement, (target.hypothesis, "f's values at the nodes are exact"), parts
    )


def ridges(values: NDArray[np.float64], D: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Wavenumbers and amplitudes of the Fejér-Korovkin mean of values at midpoints of [0, 1]^n.

    Parameters
    ----------
    values : ndarray, (M,) * n
        f at x_j = (m_j + 1/2)/M.
    D : int
        Degree per axis, at most 2M - 2.

    Returns
    -------
    kappa : ndarray of int, (((2D+1)^n + 1)/2, n)
        0 first; of every other pair +-kappa the one whose first non-zero entry is positive.
    a : ndarray, (((2D+1)^n + 1)/2,)
        F(x) = sum a cos(pi kappa.x).

    Examples
    --------
    >>> kappa, a = ridges(np.cos(np.pi * (np.arange(4) + 0.5) / 4), D=2)
    >>> kappa.ravel().tolist(), (np.round(a, 6) + 0).tolist()
    ([0, 1, 2], [0.0, 0.707107, 0.0])
    """
    n, M = values.ndim, values.shape[0]
    k = np.arange(D + 1)
    p = np.pi / (D + 2)
    rho = ((D + 2 - k) * np.cos(k * p) + np.sin(k * p) / np.tan(p)) / (D + 2)
    # k (2m + 1) is taken modulo 4M in whole numbers, so that the angle keeps its digits.
    transform = rho[:, None] * np.cos(np.pi / (2 * M) * (np.outer(k, 2 * np.arange(M) + 1) % (4 * M))) / M
    c = values
    for _ in range(n):
        c = np.tensordot(c, transform, axes=(0, 1))  # the axis goes last, so after n rounds the order is the old one
    kappa = wavenumbers(n, D)
    a = c[tuple(np.abs(kappa).T)]
    return kappa, np.where(np.arange(len(kappa)) > 0, 2 * a, a)


def wavenumbers(n: int, D: int) -> NDArray[np.int64]:
    """(((2D+1)^n + 1)/2, n): 0 first; of every other pair +-kappa the one whose first non-zero entry is positive.

    Examples
    --------
    >>> wavenumbers(2, 1).tolist()
    [[0, 0], [0, 1], [1, -1], [1, 0], [1, 1]]
    """
    axes = np.meshgrid(*[np.arange(-D, D + 1)] * n, indexing="ij")
    kappa = np.stack([axis.ravel() for axis in axes], 1)
    # The order is lexicographic: 0 stands in the middle, and after it come those whose first non-zero entry is positive.
    return kappa[len(kappa) // 2 :]


@dataclass(frozen=True)
class _Knots:
    """ReLU units weight ReLU(sign pi kappa.x - at) that add up to cos(pi kappa.x) - 1 between them; one row per unit.

    `ridge` is the row of kappa that a unit serves, `end` the largest value of sign pi kappa.x, `step` (n_ridges,) the largest h.
    """

    ridge: NDArray[np.int64]
    sign: NDArray[np.float64]
    at: NDArray[np.float64]
    weight: NDArray[np.float64]
    end: NDArray[np.float64]
    step: NDArray[np.float64]

    @classmethod
    def of(cls, kappa: NDArray[np.int64], step: float) -> "_Knots":
        """Knots at most `step` apart, from 0 to both ends of the range that kappa.x has on the unit cube."""
        parts, largest = [], np.zeros(len(kappa))
        for sign in (1.0, -1.0):
            end = np.pi * np.clip(sign * kappa, 0, None).sum(1)
            units = np.ceil(end / step).astype(np.int64)
            h = end / np.maximum(units, 1)
            ridge = np.repeat(np.arange(len(kappa)), units)
            first = np.repeat(np.cumsum(units) - units, units)
            at = (np.arange(len(ridge)) - first) * h[ridge]
            # Second difference of cos over h: -4 sin^2(h/2) cos(t)/h; half of it at t = 0, where the slope before is 0.
            weight = -4 * np.sin(h[ridge] / 2) ** 2 / h[ridge] * np.cos(at) * np.where(at == 0, 0.5, 1.0)
            parts.append((ridge, np.full(len(ridge), sign), at, weight, end[ridge]))
            largest = np.maximum(largest, h)
        ridge, signs, at, weight, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return cls(ridge, signs, at, weight, ends, largest)


def _bytes(n: int, D: int, step: float) -> int:
    """Bytes while the units are placed; kappa's absolute values sum to n (2D+1)^(n-1) D (D+1)/2 over the ridges."""
    waves = (2 * D + 1) ** n
    return int(_BYTES * (n + 4) * (math.pi / step * n * (2 * D + 1) ** (n - 1) * D * (D + 1) / 2 + waves))


def _write(
    model: Transformer, plan: Gathering, kappa: NDArray[np.int64], a: NDArray[np.float64], knots: _Knots
) -> None:
    """Units into one coordinate per ridge, ridges into the readout."""
    feed, units = model.block(1).feedforward, np.arange(len(knots.at))
    assert feed is not None
    assert model.readout is not None
    rows, columns = np.repeat(units, plan.n), np.tile(plan.gathered + np.arange(plan.n), len(units))
    write(feed.up, rows, columns, (np.pi * knots.sign[:, None] * kappa[knots.ridge]).ravel(), -knots.at)
    write(feed.down, plan.first + knots.ridge, units, knots.weight)
    index = np.arange(len(kappa))
    # Every ridge's coordinate is its cosine less 1.
    write(model.readout, np.zeros(len(kappa), np.int64), plan.first + index, a[1:], [math.fsum(a)])


def _parts(
    plan: Gathering,
    target: RealFunction,
    kappa: NDArray[np.int64],
    a: NDArray[np.float64],
    knots: _Knots,
    values: NDArray[np.float64],
    dtype: torch.dtype,
) -> tuple[tuple[str, float], ...]:
    """Cosines, coefficients, gathering and rounding, each a bound on its own.

    Gathering: chords of the cosine are no steeper than 1. Coefficients: what float64 made of the amplitudes, nodes and weights, which
    the rest takes as exact. Rounding: a unit sums n products and a bias, a ridge its active units of one side, the readout the ridges;
    units that are 0 add exactly.
    """
    n, u, double, R = plan.n, ROUNDOFF[dtype], ROUNDOFF[torch.float64], len(kappa)
    size, reach = np.abs(a[1:]), np.pi * np.abs(kappa).sum(1)
    arrived = plan.error(u)
    cosines = float((size * knots.step**2).sum() / 8)
    low, high = target.bounds
    moved = n * target.lipschitz[1] * gamma(4, double) * max(abs(low), abs(high))
    made = gamma(16 * n + values.shape[0] * n, double) * float(np.abs(values).max()) * 2 * (R + 1)
    made += float((size * gamma(12, double) * (1 + reach) ** 3).sum())
    unit = gamma(n + 5, u) * (reach[knots.ridge] * (1 + arrived) + knots.at)
    per_ridge = np.bincount(knots.ridge, minlength=R).max(initial=0) + 4
    held = knots.end - knots.at + unit + reach[knots.ridge] * arrived
    ridge = np.bincount(knots.ridge, np.abs(knots.weight) * (unit + gamma(float(per_ridge), u) * held), R)
    rounding = float((size * ridge).sum() + gamma(R + 4, u) * ((size * (2 + ridge)).sum() + 2 * np.abs(a).sum()))
    return (
        ("cosines", cosines),
        ("coefficients", moved + made),
        ("gathering", float((size * reach).sum()) * arrived),
        ("rounding", rounding),
    )
