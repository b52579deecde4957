"""A function of n real numbers with its Lipschitz constant, checked before anything is built from it; and measured sup errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError
from oplens.models.transformer import Transformer
from oplens.theory.statement import count, number

NORMS = ("l1", "l2", "max")
_ORDER = {"l1": 1, "l2": 2, "max": math.inf}
_AT_ONCE = 2**17  # points in memory together
_SLACK = (
    1e-9  # relative to the claimed constant and to f's values: above the rounding of f, below any real contradiction
)


@dataclass(frozen=True)
class RealFunction:
    """f on a cube, in coordinates of the unit cube.

    Parameters
    ----------
    f : callable
        Takes points (n_points, n) float64 inside `bounds`, returns (n_points,) real numbers.
    n : int
        Variables.
    lipschitz : (str, float)
        Norm "l1", "l2" or "max" and constant L: abs(f(x) - f(y)) <= L norm(x - y), in the units of x that `bounds` has.
    bounds : (float, float)
        The interval of every variable.
    call : str
        Who asks, for error messages.
    """

    f: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    n: int
    lipschitz: tuple[str, float]
    bounds: tuple[float, float]
    call: str

    def __post_init__(self) -> None:
        count(self.call, "n", self.n)
        low, high = check_bounds(self.call, self.bounds)
        try:
            norm, L = self.lipschitz
        except (TypeError, ValueError):
            norm, L = None, math.nan
        if norm not in NORMS:
            raise ArgumentError(
                f"{self.call}(lipschitz={self.lipschitz!r}): give a pair (norm, L), the norm one of {', '.join(NORMS)}; the error bound "
                "rests on it and cannot be had from f's values alone."
            )
        object.__setattr__(self, "lipschitz", (norm, number(self.call, "lipschitz L", L)))
        object.__setattr__(self, "bounds", (low, high))
        if not callable(self.f):
            raise ArgumentError(f"{self.call}(f={self.f!r}): f must be a function of points (n_points, n).")

    @property
    def norm(self) -> str:
        """Norm that the Lipschitz constant is in."""
        return self.lipschitz[0]

    @property
    def unit_lipschitz(self) -> float:
        """The constant in coordinates of the unit cube."""
        return self.lipschitz[1] * (self.bounds[1] - self.bounds[0])

    @property
    def hypothesis(self) -> str:
        """What the certificates take from the user, as a sentence."""
        norm, L = self.lipschitz
        return f"abs(f(x) - f(y)) <= {L:g} norm(x - y) in the {norm} norm: stated by the user, not contradicted by sampling"

    def outer(self, unit: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points of the unit cube in the coordinates of `bounds`."""
        low, high = self.bounds
        return np.clip(low + (high - low) * unit, low, high)

    def values(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """f at points (n_points, n) inside `bounds`: (n_points,) float64, all finite or refused.

        Raises
        ------
        DataError
            If f returns something of another shape, complex numbers, NaN or infinity.
        """
        found = np.empty(len(points))
        for start in range(0, len(points), _AT_ONCE):
            part = points[start : start + _AT_ONCE]
            value = np.asarray(self.f(part))
            if value.shape != (len(part),) or value.dtype.kind not in "fiub":
                raise DataError(
                    f"{self.call}: f of points of shape {part.shape} gave shape {value.shape} of {value.dtype}; it must give "
                    f"{len(part)} real numbers, one per point (write it for arrays: x[:, 0] is the first variable)."
                )
            bad = ~np.isfinite(value)
            if bad.any():
                raise DataError(
                    f"{self.call}: f is {value[bad][0]} at {part[bad][0].tolist()} and not finite at {bad.sum()} of {len(part)} points; "
                    "define it there, or choose bounds that leave them out."
                )
            found[start : start + _AT_ONCE] = value
        return found

    def check_lipschitz(self, pairs: int = 6000, seed: int = 0) -> None:
        """Look for two points that contradict the stated constant: passing is no proof, failing is one.

        Raises
        ------
        DataError
            With the two points, where abs(f(x) - f(y)) exceeds L norm(x - y).
        """
        rng = np.random.default_rng(count(self.call, "seed", seed, 0))
        x = rng.random((pairs, self.n))
        # Directions in which the norm is smallest for what f can change: along an axis (l1), any (l2), along a diagonal (max).
        steps = {
            "l1": np.eye(self.n)[rng.integers(self.n, size=pairs)],
            "l2": rng.standard_normal((pairs, self.n)),
            "max": rng.choice([-1.0, 1.0], (pairs, self.n)),
        }[self.norm]
        size = 10.0 ** rng.uniform(-3, 0, (pairs, 1))
        y = np.clip(x + size * steps / np.linalg.norm(steps, _ORDER[self.norm], axis=1, keepdims=True), 0, 1)
        x, y = self.outer(x), self.outer(y)
        self._refuse(x, y, self.values(x), self.values(y))

    def check_grid(self, unit: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """The same between neighbours of a grid whose values (k,) * n are there already; `unit` (k^n, n) are its points."""
        x = self.outer(unit).reshape(*values.shape, self.n)
        for axis in range(self.n):
            here = np.delete(np.arange(values.shape[axis]), -1)
            pairs = [(x.take(at, axis).reshape(-1, self.n), values.take(at, axis).ravel()) for at in (here, here + 1)]
            self._refuse(pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1])

    def _refuse(
        self,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
        fx: NDArray[np.float64],
        fy: NDArray[np.float64],
    ) -> None:
        """Refuse where the pair that exceeds the stated constant most exceeds it by more than rounding."""
        distance = np.linalg.norm(x - y, _ORDER[self.norm], axis=1)
        L = self.lipschitz[1]
        excess = np.abs(fx - fy) - L * distance
        excess -= _SLACK * (L * distance + np.abs(fx) + np.abs(fy))
        worst = int(np.argmax(excess))
        if excess[worst] > 0:
            raise DataError(
                f"{self.call}(lipschitz={self.lipschitz!r}): f({x[worst].tolist()}) = {fx[worst]:.10g} and f({y[worst].tolist()}) = "
                f"{fy[worst]:.10g} differ by {abs(fx[worst] - fy[worst]) / distance[worst]:.6g} times their distance in the {self.norm} "
                "norm; give a constant of at least that."
            )


@dataclass(frozen=True)
class MeasuredError:
    """Largest error found: a lower bound of the sup error, since only `evaluations` points were looked at."""

    value: float
    point: tuple[float, ...]
    evaluations: int
    claim: str = "measured"


def check_bounds(call: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """An interval of finite, distinct ends."""
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(f"{call}(bounds={bounds!r}): give two finite numbers (low, high), low below high.")
    return low, high


def check_memory(call: str, needed: int, limit: int, cure: str) -> None:
    """Refuse work that needs more bytes than the limit."""
    if needed > limit:
        raise ArgumentError(
            f"{call}: needs about {needed / 2**30:.3g} GiB, memory_limit is {limit / 2**30:.3g} GiB; {cure}, or raise memory_limit."
        )


def evaluate(
    model: Transformer, points: NDArray[np.float64], bounds: tuple[float, float] = (0.0, 1.0)
) -> NDArray[np.float64]:
    """Outputs of a built model at points (n_points, n): every row is a sequence of n reals.

    Raises
    ------
    DataError
        If a value is NaN or outside `bounds`, where the model's certificate says nothing.

    Notes
    -----
    Accuracy: what the certificate says. Cost: O(n_points times non-zeros), a bounded number of points at a time.
    """
    points = np.asarray(points, dtype=np.float64)
    low, high = check_bounds("evaluate", bounds)
    if points.ndim != 2 or points.shape[1] != model.config.max_length:
        raise DataError(
            f"evaluate: expected points of shape (n_points, {model.config.max_length}), got {points.shape}; the model reads sequences of "
            "exactly that length."
        )
    bad = ~((points >= low) & (points <= high))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DataError(
            f"evaluate: point {row}, variable {column + 1} is {points[row, column]}; the model was built for [{low:g}, {high:g}] "
            "and is certified only there."
        )
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        parts = [
            model(torch.from_numpy(part).to(dtype)[..., None])[:, 0].double().numpy()
            for part in np.split(points, range(4096, len(points), 4096))
            if len(part)
        ]
    return np.concatenate(parts) if parts else np.zeros(0)


def sup_error(
    model: Transformer,
    f: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    bounds: tuple[float, float] = (0.0, 1.0),
    points: int = 20000,
    seed: int = 0,
) -> MeasuredError:
    """Largest abs(model - f) over a dense grid, random points and a local search from the worst of them.

    Parameters
    ----------
    model : Transformer
        Built by :func:`build_piecewise_linear` or :func:`build_fourier`.
    points : int
        At most so many grid points, as many random ones, and about half as many in the search.

    Returns
    -------
    MeasuredError
        A lower bound of the sup error; claim *measured*.
    """
    n = model.config.max_length or 1
    target = RealFunction(f, n, ("max", 0.0), bounds, "sup_error")
    count("sup_error", "points", points)
    rng = np.random.default_rng(count("sup_error", "seed", seed, 0))
    # Interval counts with many divisors, so that the grid holds the midpoints of most constructions' own cells.
    most = points ** (1 / n)
    per_axis = max((k + 1 for k in (1, 2, 4, 12, 24, 48, 120, 240, 480, 960, 1920, 9600) if k < most), default=1)
    axes = np.meshgrid(*[np.linspace(0, 1, per_axis)] * n, indexing="ij")
    unit = np.concatenate((np.stack([a.ravel() for a in axes], 1), rng.random((points, n))))

    def error(u: NDArray[np.float64]) -> NDArray[np.float64]:
        x = target.outer(u)
        return np.abs(evaluate(model, x, target.bounds) - target.values(x))

    found = error(unit)
    evaluations = len(unit)
    best = np.argsort(found)[-8:]
    where, worst = unit[best], found[best]
    size = 1.0 / per_axis
    tries = max(1, points // (2 * 40 * 8))
    for _ in range(40):
        trial = where[:, None] + size * rng.standard_normal((len(where), tries, n)) * (rng.random((tries, n)) < 0.7)
        trial = np.clip(trial, 0, 1)
        value = error(trial.reshape(-1, n)).reshape(len(where), tries)
        evaluations += value.size
        pick = value.argmax(1)
        rows = np.arange(len(where))
        better = value[rows, pick] > worst
        where = np.where(better[:, None], trial[rows, pick], where)
        worst = np.where(better, value[rows, pick], worst)
        size *= 0.8
    top = int(worst.argmax())
    return MeasuredError(float(worst[top]), tuple(target.outer(where[top]).tolist()), evaluations)
