r"""How far a model's answers move when all its parameters carry noise: measured, to first order, and as the paper states it.

    T(theta + e) = T(theta) + J e + R,   e = sigma g,   g ~ N(0, I)

Measured and first-order movement share their draws g, so they are compared without the noise of either: J e is linear in sigma, and one
Jacobian-vector product per draw serves every sigma.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError
from oplens.measurement.arrays import Floats, fraction, whole
from oplens.measurement.jacobians import largest_gain
from oplens.measurement.noise_sweep import CALL, ROUNDING, Moved, Sweep, noise_scales
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

    from oplens.models.recording import Recorder

LINEAR = 0.1  # E norm(R) / E norm(J e) up to which the first order is said to tell the movement
_UNITS, _PARAMETER = "same as output", "same as parameters"


def weight_noise(
    recorder: "Recorder",
    x: Any,
    mask: Any = None,
    *,
    sigmas: Sequence[float] | None = None,
    draws: int = 32,
    relative: bool = False,
    lipschitz: float | None = None,
    batch_size: int = 8,
    seed: int = 0,
    level: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
) -> "xr.Dataset":
    r"""Move all parameters by Gaussian noise of several scales and compare the answers with the model's own.

    Norms are Euclidean, one per answer (a case, or a real position of a case), averaged over answers and over draws of the noise. Noise
    falls on every parameter that is trained, tied ones once, complex ones on real and imaginary part, entries of a sparse model on those
    stored; buffers stay as they are.

    Parameters
    ----------
    recorder : Recorder
        Of a model in float64.
    x : array, (batch, length) int or (batch, length, d_input)
    mask : array, (batch, length), optional
        True where a position is real.
    sigmas : sequence of float, optional
        Ascending. By default 13 scales at which the first-order movement goes from 1/1000 of the answers' spread to all of it.
    draws : int
        At least 2.
    relative : bool
        Noise of sigma times each parameter tensor's root mean square, instead of the paper's sigma on all.
    lipschitz : float, optional
        L of the paper's formula; by default the largest gain of the model by its input that was found, a lower bound of L.
    batch_size : int
        Cases that are in memory together.
    seed : int
    level : float
        Of the intervals, Student's over draws: the inputs are those given.
    progress : callable, optional
        Called with passes of the sweep done and in all, first before any.

    Returns
    -------
    xarray.Dataset
        Over `sigma`: `deviation` E norm(T~ - T) with `_error`, `_low`, `_high`; `first_order`, `first_order_error` E norm(J e);
        `first_order_bound` sigma norm(J)_F; `remainder` E norm(T~ - T - J e); `paper_claim` sigma sqrt(P) L.
        Scalars: `slope`, `slope_low`, `slope_high` (measured E norm(T~ - T) / sigma while linear; NaN if nowhere), `first_order_slope` with
        `_error` (E norm(J g); 0: exact), `jacobian_norm` with `_error` (root mean square over answers of norm(J)_F; 0: exact), `linear_until`
        (largest sigma up to which the remainder stays below a tenth of the first order; infinite if past the sweep, 0 if before it),
        `remainder_order` with `_low`, `_high` (exponent of sigma, 2 where T is smooth; NaN where fewer than three scales tell it), `lipschitz` (NaN
        if the model's input cannot be told), `output_spread`, `n_parameters`.

    Raises
    ------
    ArgumentError
        If an argument is none of those above, the model is not in float64 or cannot be differentiated, or no default scale can be found.
    DataError
        If noise makes an answer NaN or infinite.

    Notes
    -----
    Claim: *measured*; *exact* where at most 64 numbers are answered and the whole Jacobian costs no more passes than the sweep. The paper's
    formula is false: L is a constant in x and says nothing about T's parameters (:func:`oplens.theory.perturbation`). A movement above it
    contradicts it if L is given; above a lower bound of L it does not. Derivatives at a kink are one-sided, and blind to jumps (hashing).
    Cost: draws (sigmas + 1) forward passes per batch. Memory: four copies of the parameters, one batch. Source: Theorem 2 of the paper;
    E norm(J g)^2 = norm(J)_F^2: Hutchinson 1990.

    Examples
    --------
    >>> import torch
    >>> from oplens.models import S4D, S4DConfig
    >>> from oplens.models.own_recorders import S4DRecorder
    >>> recorder = S4DRecorder.of(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)))
    >>> ds = weight_noise(recorder, torch.linspace(-1, 1, 24).reshape(2, 12, 1), draws=4)
    >>> ds.sizes["sigma"], int(ds.n_parameters), bool((ds.first_order <= 2 * ds.first_order_bound).all())
    (13, 30, True)
    """
    sweep = Sweep.of(recorder, x, mask, whole(CALL, "batch_size", batch_size, 1), relative, seed)
    draws, level = whole(CALL, "draws", draws, 2), fraction(CALL, "level", level)
    scales = None if sigmas is None else noise_scales(sigmas)
    if not isinstance(relative, bool):
        raise ArgumentError(
            f"{CALL}(relative={relative!r}): give True (sigma times a tensor's root mean square) or False."
        )
    given = lipschitz is not None
    if given and (
        isinstance(lipschitz, bool) or not isinstance(lipschitz, int | float) or not 0 <= lipschitz < math.inf
    ):
        raise ArgumentError(f"{CALL}(lipschitz={lipschitz!r}): give a finite number of at least 0, or None to measure.")
    spread, size, n_answers = sweep.spread()
    scales = sweep.default_scales(spread or size) if scales is None else scales
    moved = sweep.run(scales, draws, progress)
    exact = sweep.exact(draws * len(scales))
    gain = largest_gain(CALL, recorder, sweep.x, sweep.mask, seed) if lipschitz is None else float(lipschitz)
    account = _Account(sweep, scales, moved, exact, gain, size, level, relative, given)
    return account.dataset(spread, n_answers)


def linear_until(sigmas: Floats, ratio: Floats, limit: float = LINEAR) -> float:
    """Largest sigma up to which `ratio` stays at most `limit`, between two scales on straight lines in logarithms.

    Examples
    --------
    >>> import numpy as np
    >>> s = np.array([0.01, 0.1, 1.0])
    >>> round(linear_until(s, s**2, limit=0.001), 6), linear_until(s, s, limit=0.001), linear_until(s, 0 * s)
    (0.031623, 0.0, inf)
    """
    within = np.logical_and.accumulate(ratio <= limit)
    last = int(within.sum()) - 1
    if last < 0:
        return 0.0
    if last == len(sigmas) - 1:
        return math.inf
    a, b = float(ratio[last]), float(ratio[last + 1])
    if a <= 0 or not math.isfinite(b):
        return float(sigmas[last])
    part = math.log(limit / a) / math.log(b / a)
    return float(sigmas[last] * (sigmas[last + 1] / sigmas[last]) ** part)


@dataclass(frozen=True)
class _Account:
    """What was found, as a Dataset."""

    sweep: Sweep
    sigmas: Floats
    moved: Moved
    exact: tuple[float, float] | None
    gain: float
    size: float
    level: float
    relative: bool
    given: bool

    def dataset(self, spread: float, n_answers: int) -> "xr.Dataset":
        """All variables and what a reader has to know beside them."""
        import xarray as xr

        from oplens.results import provenance

        source = "given" if self.given else "measured" if math.isfinite(self.gain) else "unknown"
        attrs = provenance(
            source=self.sweep.recorder.name,
            seed=self.sweep.seed,
            level=self.level,
            draws=len(self.moved.first),
            n_cases=len(self.sweep.x),
            n_answers=n_answers,
            noise="relative" if self.relative else "absolute",
            linear_limit=LINEAR,
            lipschitz_source=source,
        )
        name = "standard deviation of the noise" + (", in root mean squares of a tensor" if self.relative else "")
        variables = {**self._curves(), **self._derivatives(), **self._linearity()}
        variables["output_spread"] = variable(
            (), spread, "root mean square distance of answers from their mean", _UNITS
        )
        sigma = ("sigma", self.sigmas, {"units": self._scale, "long_name": name})
        return xr.Dataset(variables, coords={"sigma": sigma}, attrs=attrs)

    @property
    def _scale(self) -> str:
        return "1" if self.relative else _PARAMETER

    @property
    def _unit(self) -> str:
        return _UNITS if self.relative else f"{_UNITS} / {_PARAMETER}"

    def _interval(self, per_draw: Floats) -> tuple[Any, Any, Any, Any]:
        """Mean over draws, its standard error and Student's interval."""
        from scipy.stats import t

        n = len(per_draw)
        mean, error = per_draw.mean(0), per_draw.std(0, ddof=1) / math.sqrt(n)
        half = t.ppf(0.5 + self.level / 2, n - 1) * error
        return mean, error, mean - half, mean + half

    def _norm(self) -> tuple[float, float]:
        """norm(J)_F and its standard error, by the delta method from that of its square."""
        if self.exact is not None:
            return self.exact[1], 0.0
        mean, error, _, _ = self._interval(self.moved.squares)
        root = math.sqrt(float(mean))
        return root, float(error) / (2 * root) if root > 0 else 0.0

    def _curves(self) -> dict[str, Any]:
        s, P = self.sigmas, self.sweep.weights.size**2
        mean, error, low, high = self._interval(self.moved.deviation)
        first, first_error, _, _ = self._interval(self.moved.first)
        name, bound = f"{self.level:.0%} interval of the movement over draws", "bound" if self.exact else "measured"
        claim = "conditional" if self.given else "measured"
        rows = {
            "deviation": (mean, "mean movement E norm(T~ - T) of an answer", "measured"),
            "deviation_error": (error, "standard error of the movement over draws", "measured"),
            "deviation_low": (low, f"lower end of the {name}", "measured"),
            "deviation_high": (high, f"upper end of the {name}", "measured"),
            "first_order": (s * first, "first-order movement E norm(J e) on the same draws", "measured"),
            "first_order_error": (s * first_error, "standard error of E norm(J e) over draws", "measured"),
            "first_order_bound": (s * self._norm()[0], "sigma norm(J)_F, at least E norm(J e)", bound),
            "remainder": (self.moved.remainder.mean(0), "beyond first order, E norm(T~ - T - J e)", "measured"),
            "paper_claim": (s * math.sqrt(P) * self.gain, "the paper's sigma sqrt(P) L, false in general", claim),
        }
        return {key: variable("sigma", value, text, _UNITS, word) for key, (value, text, word) in rows.items()}

    def _derivatives(self) -> dict[str, Any]:
        first, error, _, _ = self._interval(self.moved.first)
        first, error = (first, error) if self.exact is None else (self.exact[0], 0.0)
        norm, norm_error = self._norm()
        claim, word = "measured" if self.exact is None else "exact", "conditional" if self.given else "bound"
        gain = "as given" if self.given else "largest gain by the input that was found, at most the Lipschitz constant"
        slope = "E norm(J g), first-order movement per unit of sigma"
        rows = {
            "first_order_slope": (float(first), slope, self._unit, claim),
            "first_order_slope_error": (float(error), "standard error of E norm(J g); 0: exact", self._unit, claim),
            "jacobian_norm": (norm, "norm(J)_F, root mean square over answers", self._unit, claim),
            "jacobian_norm_error": (norm_error, "standard error of norm(J)_F; 0: exact", self._unit, claim),
            "lipschitz": (self.gain, f"L of the paper's formula: {gain}", "same as output / input", word),
            "n_parameters": (self.sweep.weights.count, "real numbers that carry noise", "1", "exact"),
        }
        return {key: variable((), *row) for key, row in rows.items()}

    def _linearity(self) -> dict[str, Any]:
        end = self._end()
        slope, _, low, high = self._slope(end)
        order, _, order_low, order_high = self._order(end)
        until = (
            f"largest sigma with a remainder up to {LINEAR:.0%} of the first order; inf: past the sweep, 0: before it"
        )
        over, order_of = f"{self.level:.0%} interval over draws", "exponent of sigma in the remainder while linear"
        rows = {
            "slope": (slope, "measured movement per unit of sigma while linear", self._unit, "measured"),
            "slope_low": (low, f"lower end of the slope's {over}", self._unit, "measured"),
            "slope_high": (high, f"upper end of the slope's {over}", self._unit, "measured"),
            "linear_until": (end, until, self._scale, "measured"),
            "remainder_order": (order, order_of, "1", "fitted"),
            "remainder_order_low": (order_low, f"lower end of the exponent's {over}", "1", "fitted"),
            "remainder_order_high": (order_high, f"upper end of the exponent's {over}", "1", "fitted"),
        }
        return {key: variable((), *row) for key, row in rows.items()}

    def _end(self) -> float:
        first, remainder = self.sigmas * self.moved.first.mean(), self.moved.remainder.mean(0)
        ratio = np.divide(remainder, first, out=np.full(len(first), math.inf), where=first > 0)
        return linear_until(self.sigmas, np.where(remainder == 0, 0.0, ratio))

    def _slope(self, end: float) -> tuple[Any, Any, Any, Any]:
        """Least squares through the origin with errors that grow as sigma: the mean of deviation / sigma."""
        used = (self.sigmas <= end) & (self.moved.deviation.mean(0) >= ROUNDING * self.size)
        if not used.any():
            return (math.nan,) * 4
        return self._interval((self.moved.deviation[:, used] / self.sigmas[used]).mean(1))

    def _order(self, end: float) -> tuple[Any, Any, Any, Any]:
        """Slope of log remainder over log sigma, draw by draw."""
        used = (self.sigmas <= end) & (self.moved.remainder.min(0) > ROUNDING * self.size)
        if used.sum() < 3:
            return (math.nan,) * 4
        x, y = np.log(self.sigmas[used]), np.log(self.moved.remainder[:, used])
        x = x - x.mean()
        return self._interval(y @ x / (x @ x))
