"""A target against the frequency of a sinusoid in noise: where in the spectrum a model listens, before any simulation.

The covariances of the pre-activations and their powers belong to the noise alone, so all frequencies and phases share one pass over
them (oplens.explanation.prediction.wiener): each costs one more column of a matrix product.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation.prediction import simulation
from oplens.explanation.prediction.prediction import (
    Moments,
    Setting,
    check_count,
    check_model,
    check_orders,
    described,
    moments,
    noise_covariance,
    target_of,
    units_of,
)
from oplens.explanation.prediction.simulation import Simulated
from oplens.explanation.targets import Margin, Target

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

Array = NDArray[np.float64]


def sweep(
    op: "ExplicitOperator",
    frequencies: Sequence[float],
    noise: Any,
    amplitude: float | tuple[float, ...] = 1.0,
    offset: float | tuple[float, ...] = 0.0,
    n_timepoints: int | None = None,
    phases: int = 4,
    target: Target | None = None,
    orders: int = 4,
    simulate: int = 0,
    seed: int = 0,
    marks: Mapping[str, float] | None = None,
) -> "xr.Dataset":
    """Mean and variance of the target against the frequency of a sinusoid in noise; plain architecture.

    Parameters
    ----------
    frequencies : sequence of float
        Hz, at least 0 and below half the model's sampling rate; cycles per step where it knows none.
    noise, target, orders
        As for :meth:`predict`.
    amplitude, offset : float or tuple of float
        Of the sinusoid, in the units of the data; one value, or one per channel.
    n_timepoints : int, optional
        The longest training length when omitted.
    phases : int
        Equally spaced phases, whose mixture is predicted.
    simulate, seed : int
        Cases per frequency to run the model on besides, and their seed.
    marks : mapping from name to frequency, optional
        Lines of the picture; classes called "15 Hz" mark themselves.

    Returns
    -------
    xarray.Dataset
        `target_mean` (*exact*), `target_variance` (*truncated*), `target_variance_bound` (*bound*), `phase_variance` (*exact*),
        `probability_towards` (*truncated*, margins only), `simulated_...` (*measured*); dimension stimulus, coordinate frequency.

    Raises
    ------
    ArgumentError
        For the reference architecture, one class, frequencies that cannot be sampled, numbers that are not finite.

    Notes
    -----
    Cost: one pass over the noise's covariances for all frequencies and phases, O(orders d_model^2 length^2 (1 + number of them)).

    Examples
    --------
    >>> from oplens.data import noisy_sinusoids
    >>> from oplens import S4D, S4DConfig, expand
    >>> data = noisy_sinusoids(n_cases=4, n_timepoints=50)
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4, classes=data.classes, sampling_rate=100.0))
    >>> expand(model, data).sweep([5.0, 15.0, 25.0], noise=0.5).target_mean.sizes
    Frozen({'stimulus': 3})
    """
    config = op.model.config
    check_model(op, "sweep")
    check_orders(orders, 1, "sweep")
    check_count("phases", phases, 1, "sweep")
    check_count("simulate", simulate, 2, "sweep", zero=True)
    check_count("seed", seed, 0, "sweep")
    rate = config.sampling_rate if config.sampling_rate is not None else 1.0
    hertz = _frequencies(frequencies, rate, config.sampling_rate is not None)
    covariance = noise_covariance(noise, config.d_input, "sweep")
    length = int(op.training.lengths.max()) if n_timepoints is None else n_timepoints
    check_count("n_timepoints", length, 1, "sweep")
    marked = _marks(config.classes, marks)
    target = target_of(target, op, "sweep")
    for name, value in (("amplitude", amplitude), ("offset", offset)):
        _check_numbers(name, value)
    values = np.stack(
        [
            Sinusoid(f, int(length), rate, amplitude, 2 * np.pi * k / phases, offset).values(config.d_input)
            for f in hertz
            for k in range(phases)
        ]
    )
    setting = Setting.of(op, int(length), covariance, target)
    found = moments(setting, values, orders)
    drawn = []
    if simulate:
        generator = np.random.default_rng(seed)
        groups = values.reshape(len(hertz), phases, *values.shape[1:])
        drawn = [simulation.simulate(setting, group, simulate, generator) for group in groups]
    stated = {
        "amplitude": repr(amplitude)[:200],
        "offset": repr(offset)[:200],
        "noise": repr(noise)[:200],
        "phases": phases,
        "n_steps": int(length),
        "orders": orders,
        "sampling_rate": config.sampling_rate if config.sampling_rate is not None else "unknown",
        "marks": json.dumps(marked),
    }
    if drawn:
        stated |= {"seed": seed, "simulated_cases": simulate}
    return _dataset(setting, hertz, found, drawn, stated)


def _check_numbers(name: str, value: Any) -> None:
    """Refuse what is neither one number nor a flat sequence of them."""
    try:
        values = np.asarray(value)
    except ValueError:  # ragged
        values = np.array(None)
    if values.ndim > 1 or values.dtype.kind not in "iuf":
        raise ArgumentError(f"sweep({name}={value!r}): give one number, or one per channel.")


def _dataset(
    setting: Setting, hertz: list[float], found: Moments, drawn: list[Simulated], stated: dict[str, Any]
) -> "xr.Dataset":
    import xarray as xr

    from oplens.results import provenance

    config = setting.op.model.config
    lines = _lines(found, len(hertz))
    if isinstance(setting.target, Margin):
        lines["probability_towards"] = (
            _probability(found, len(hertz)),
            "chance of a positive margin, Gaussian",
            "truncated",
        )
    if drawn:
        lines |= _simulated(drawn, isinstance(setting.target, Margin))
    per_class = setting.target.per_class
    dims = ("stimulus", "class") if per_class else ("stimulus",)
    variables = {
        name: (dims, value if per_class else value[..., 0], described(text, claim, _units(name)))
        for name, (value, text, claim) in lines.items()
    }
    units = "Hz" if config.sampling_rate is not None else "cycles/step"
    coords: dict[str, Any] = {"frequency": ("stimulus", np.array(hertz), described("frequency", "exact", units))}
    if per_class:
        coords["class"] = ("class", np.array(config.classes, dtype=object))
    attrs = {**provenance(source=setting.op.training.source), "target": setting.target.describe(), **stated}
    if isinstance(setting.target, Margin):
        attrs |= {"towards": setting.target.towards, "against": setting.target.against}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _lines(found: Moments, count: int) -> dict[str, tuple[Array, str, str]]:
    """Mixtures over the phases of a frequency: the law of total variance."""

    def phases(values: Array) -> Array:
        return values.reshape(count, -1, values.shape[-1])

    between = phases(found.mean).var(1)
    noisy = phases(found.variance).mean(1)
    return {
        "target_mean": (phases(found.mean).mean(1), "expected target over noise and phases", "exact"),
        "target_variance": (noisy + between, "variance of the target over noise and phases", "truncated"),
        "target_variance_bound": (
            phases(found.variance_bound).mean(1) + between,
            "bound from above on that variance",
            "bound",
        ),
        "phase_variance": (between, "variance of the expected target over phases", "exact"),
    }


def _probability(found: Moments, count: int) -> Array:
    from scipy.stats import norm

    sd = np.sqrt(found.variance)
    a = np.divide(found.mean, sd, out=np.sign(found.mean) * 40.0, where=sd > 0)  # Phi(40) is 1
    return np.asarray(norm.cdf(a).reshape(count, -1, 1).mean(1))


def _simulated(drawn: list[Simulated], margin: bool) -> dict[str, tuple[Array, str, str]]:
    lines = {
        "simulated_mean": (np.stack([f.mean for f in drawn]), "mean target of the simulated cases"),
        "simulated_mean_error": (np.stack([f.mean_error for f in drawn]), "its standard error"),
        "simulated_variance": (np.stack([f.variance for f in drawn]), "variance over the simulated cases"),
        "simulated_variance_error": (np.stack([f.variance_error for f in drawn]), "its standard error"),
    }
    if margin:
        text = "share of simulated cases with a positive margin"
        lines["simulated_share_towards"] = (np.stack([f.above_zero for f in drawn]), text)
    return {name: (value, text, "measured") for name, (value, text) in lines.items()}


def _units(name: str) -> str:
    return "1" if "towards" in name else units_of(name)


def _frequencies(frequencies: Any, rate: float, known: bool) -> list[float]:
    asked = "give one or more frequencies, such as (5.0, 10.0, 20.0)"
    if isinstance(frequencies, str):
        raise ArgumentError(f"sweep(frequencies={frequencies!r}): {asked}.")
    try:
        values = np.asarray(frequencies, dtype=float)
    except (TypeError, ValueError):
        raise ArgumentError(f"sweep(frequencies={frequencies!r}): {asked}.") from None
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ArgumentError(f"sweep(frequencies=...): {asked}, all of them finite, in a flat sequence.")
    outside = values[(values < 0) | (values >= rate / 2)]
    if outside.size:
        raise ArgumentError(
            f"sweep: the frequency {outside[0]:g} cannot be sampled; the model reads {rate:g} steps per "
            f"{'second' if known else 'unit of time (it knows no sampling rate)'}, so give 0 <= frequency < {rate / 2:g}."
        )
    return [float(f) for f in values]


def _marks(classes: tuple[str, ...], marks: Mapping[str, float] | None) -> dict[str, float]:
    """Frequencies to look for; classes called "15 Hz" name their own."""
    if marks is not None:
        try:
            found = {str(name): float(value) for name, value in marks.items()}
        except (AttributeError, TypeError, ValueError):
            found = {"": float("nan")}
        if all(np.isfinite(value) for value in found.values()):
            return found
        raise ArgumentError(
            f"sweep(marks={marks!r}): give names with their frequencies, such as {{'alpha': 10.0}}."
        ) from None
    named = {name: re.fullmatch(r"(\d+(?:\.\d+)?) ?Hz", name) for name in classes}
    return {name: float(match[1]) for name, match in named.items() if match}
