"""How far a model is from its target: the mean error EAM, and the largest, found or bounded from below."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, floats, fraction, validity, whole
from oplens.measurement.ratios import RatioTotals
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class ErrorTotals:
    """Errors norm(f(x_i) - T(x_i))_2 over as many batches as are added; constant memory.

    Attributes
    ----------
    errors : RatioTotals
        Over cases; positions of one case are one draw.
    largest : float

    Notes
    -----
    Claim: *measured*. Cost: O(size).

    Examples
    --------
    >>> totals = ErrorTotals.of([[3.0, 4.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]])
    >>> ds = totals.statistics()
    >>> float(ds.eam), float(ds.largest)
    (3.0, 5.0)
    """

    errors: RatioTotals
    largest: float

    @classmethod
    def of(cls, target: Any, output: Any, mask: Any = None) -> "ErrorTotals":
        """Of target and output of one shape.

        Parameters
        ----------
        target, output : array, (n_cases,), (n_cases, m) or, with the mask's positions, (n_cases, length, m)
            f(x) and T(x). One dimension: m = 1.
        mask : array, (n_cases, length), optional
            True where a position is real.
        """
        return cls._of(*_norms("ErrorTotals.of", target, output, mask))

    @classmethod
    def _of(cls, norms: Floats, real: Floats) -> "ErrorTotals":
        return cls(RatioTotals.of(norms.sum(1), real.sum(1)), float(norms.max(initial=0.0)))

    def __add__(self, other: "ErrorTotals") -> "ErrorTotals":
        """Both together."""
        return ErrorTotals(self.errors + other.errors, max(self.largest, other.largest))

    def statistics(self, level: float = 0.95, exhaustive: bool = False) -> "xr.Dataset":
        """EAM with its interval, and the largest error.

        Parameters
        ----------
        level : float
        exhaustive : bool
            Every input there is has been given once: then the mean and the largest are *exact* and have no interval.

        Returns
        -------
        xarray.Dataset
            As for :func:`mean_error` and :func:`sup_error`.
        """
        import xarray as xr

        level, every = fraction("statistics", "level", level), _flag("statistics", exhaustive)
        n = int(self.errors.cases)
        if n == 0:
            raise DataError("statistics: no errors were given; there is nothing to average.")
        low, high = self.errors.interval(level)
        variables = {
            "eam": variable((), float(self.errors.mean), _EAM, _UNITS, "exact" if every else "measured"),
            "n_cases": variable((), n, "cases measured", claim="exact"),
            **_largest(self.largest, n, level, every),
        }
        if not every:
            variables["eam_error"] = variable((), float(self.errors.error), "standard error of EAM over cases", _UNITS)
            variables["eam_low"] = variable((), float(low), f"lower end of the {level:.0%} interval of EAM", _UNITS)
            variables["eam_high"] = variable((), float(high), f"upper end of the {level:.0%} interval of EAM", _UNITS)
        return xr.Dataset(variables, attrs={"level": level, "exhaustive": int(every), "interval": "normal"})


_EAM = "mean approximation error EAM of the paper"
_UNITS = "same as f"


def mean_error(
    target: Any,
    output: Any,
    mask: Any = None,
    *,
    interval: str = "normal",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> "xr.Dataset":
    r"""The paper's EAM (1/N) sum_i norm(f(x_i) - T(x_i))_2 with an interval over cases.

    Parameters
    ----------
    target, output, mask
        As for :meth:`ErrorTotals.of`, all at once.
    interval : {"normal", "bootstrap"}
        Student's interval from the ratio estimator's error, or quantiles of `resamples` resampled means: skewed errors of few cases want
        the second.
    level : float
    resamples, seed : int

    Returns
    -------
    xarray.Dataset
        `eam`, `eam_error`, `eam_low`, `eam_high`, `largest`, `exceedance`, `n_cases`.

    Notes
    -----
    Claim: *measured*, over the distribution the inputs were drawn from: a mean says nothing about the worst input, and EAM <= sup error.
    Cost: O(size + resamples n_cases). Source: the paper, section 4.2, metric 1; bootstrap: Efron & Tibshirani (1993), chapter 13.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 101)
    >>> ds = mean_error(x, x**2, interval="bootstrap")
    >>> round(float(ds.eam), 4), bool(ds.eam_low < 1 / 6 < ds.eam_high)
    (0.165, True)
    """
    if interval not in ("normal", "bootstrap"):
        raise ArgumentError(f"mean_error(interval={interval!r}): give 'normal' or 'bootstrap'.")
    norms, real = _norms("mean_error", target, output, mask)
    found = ErrorTotals._of(norms, real).statistics(level)
    if interval == "normal":
        return found
    count, seed = whole("mean_error", "resamples", resamples, 100), whole("mean_error", "seed", seed, 0)
    total, rows = norms.sum(1), real.sum(1)
    total, rows = total[rows > 0], rows[rows > 0]
    if len(rows) < 2:
        raise DataError("mean_error(interval='bootstrap'): one case cannot be resampled; give at least two.")
    generator, n = np.random.default_rng(seed), len(rows)
    means = np.empty(count)
    for k in range(count):  # a row at a time: memory stays that of the data
        chosen = generator.integers(n, size=n)
        means[k] = total[chosen].sum() / rows[chosen].sum()
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    found["eam_low"].values[...], found["eam_high"].values[...] = low, high
    found["eam_error"].values[...] = means.std(ddof=1)
    return found.assign_attrs(interval="bootstrap", resamples=count, seed=seed)


def sup_error(target: Any, output: Any, mask: Any = None, *, exhaustive: bool, level: float = 0.95) -> "xr.Dataset":
    r"""The largest error norm(f(x) - T(x))_2: *exact* over all inputs, a lower bound over a sample; which of the two is said.

    Of n independent inputs, the share of all inputs with an error above the largest seen is, with confidence `level`, at most
    1 - (1 - level)^(1/n), about 3/n at 95 %. Proof: if that share exceeds p, the sample misses it with probability below (1 - p)^n.

    Parameters
    ----------
    target, output, mask
        As for :meth:`ErrorTotals.of`.
    exhaustive : bool
        True only where every input there is has been given.
    level : float
        Confidence of `exceedance`.

    Returns
    -------
    xarray.Dataset
        `largest` (*exact*, or *bound* from below), `exceedance` (*bound*; absent if exhaustive), `n_cases`.

    Notes
    -----
    Cost: O(size). Source: the paper's Definition 2 is about this supremum; bound derived above.

    Examples
    --------
    >>> ds = sup_error([0.0, 1.0], [0.25, 1.0], exhaustive=True)
    >>> float(ds.largest), ds.largest.claim
    (0.25, 'exact')
    >>> sup_error([0.0, 1.0], [0.25, 1.0], exhaustive=False).largest.long_name
    'lower bound of the largest error, from 2 samples'
    """
    import xarray as xr

    every, level = _flag("sup_error", exhaustive), fraction("sup_error", "level", level)
    norms, real = _norms("sup_error", target, output, mask)
    n = int((real.sum(1) > 0).sum())
    if n == 0:
        raise DataError("sup_error: no errors were given; the largest of none is nothing.")
    variables = {
        **_largest(float(norms.max()), n, level, every),
        "n_cases": variable((), n, "cases measured", claim="exact"),
    }
    return xr.Dataset(variables, attrs={"level": level, "exhaustive": int(every)})


def _largest(largest: float, n: int, level: float, exhaustive: bool) -> dict[str, Any]:
    if exhaustive:
        return {"largest": variable((), largest, f"largest error over all {n} inputs", _UNITS, "exact")}
    share = -float(np.expm1(np.log1p(-level) / n))
    return {
        "largest": variable((), largest, f"lower bound of the largest error, from {n} samples", _UNITS, "bound"),
        "exceedance": variable(
            (),
            share,
            f"share of independent inputs with a larger error, at most, at confidence {level:g}",
            "1",
            "bound",
        ),
    }


def _norms(call: str, target: Any, output: Any, mask: Any) -> tuple[Floats, Floats]:
    """Norms (n_cases, positions), 0 at padding, and which are real."""
    shape = "(n_cases,), (n_cases, m) or (n_cases, length, m)"
    f, T = (floats(call, name, v, (1, 2, 3), shape, False) for name, v in (("target", target), ("output", output)))
    if f.shape != T.shape:
        raise ArgumentError(
            f"{call}: target of shape {f.shape}, output of shape {T.shape}; they must agree, not broadcast."
        )
    if f.ndim < 3:
        if mask is not None:
            raise ArgumentError(
                f"{call}(mask=...): a mask needs positions: target and output (n_cases, length, m), got {f.shape}."
            )
        f, T = (v.reshape(len(v), 1, -1) if v.size else v.reshape(0, 1, 1) for v in (f, T))
    real = validity(call, mask, f.shape[:2], "(n_cases, length)")
    f, T = (np.where(real[..., None], v, 0.0) for v in (f, T))
    if not (np.isfinite(f).all() and np.isfinite(T).all()):
        raise DataError(
            f"{call}: NaN or infinite values of f or T outside the padding; an error there is not a number."
        )
    return np.asarray(np.linalg.norm(f - T, axis=-1)), real.astype(float)


def _flag(call: str, exhaustive: Any) -> bool:
    if not isinstance(exhaustive, bool | np.bool_):
        raise ArgumentError(
            f"{call}(exhaustive={exhaustive!r}): give True (every input was given) or False (a sample)."
        )
    return bool(exhaustive)
