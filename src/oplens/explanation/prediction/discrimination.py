r"""Accuracy between two signals in noise before any simulation, with its Gaussian assumption quantified.

Of every signal the margin's mean and variance are known (oplens.explanation.prediction.prediction), and orders 1 and 2 in distribution
(oplens.explanation.prediction.margins). The Gaussian accuracy Phi(mean / sd) takes only the first two moments; the corrected one has the first two
orders exactly; their difference and a bound that holds whatever the rest is say what the Gaussian assumption costs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation.accounts.explain import check_memory
from oplens.explanation.prediction import simulation
from oplens.explanation.prediction.margins import Decisions
from oplens.explanation.prediction.prediction import (
    Moments,
    Setting,
    check_count,
    check_model,
    check_orders,
    described,
    moments,
    noise_covariance,
    signal_values,
    units_of,
)
from oplens.explanation.prediction.simulation import Simulated
from oplens.explanation.targets import Margin

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

Array = NDArray[np.float64]


def discriminate(
    op: "ExplicitOperator",
    signals: Mapping[str, Any],
    noise: Any,
    orders: int = 6,
    phases: int = 1,
    simulate: int = 0,
    seed: int = 0,
    memory_limit: int = 2 * 2**30,
) -> "xr.Dataset":
    """Accuracy between two known signals in Gaussian noise, without simulating one case; plain architecture.

    Parameters
    ----------
    signals : mapping from class to Sinusoid or array (n_channels, n_timepoints)
        Two of the model's classes with the signal that belongs to each, in the units of the data and of one length.
    noise
        As for :meth:`predict`.
    orders : int
        Orders of the variance's expansion, 2 to 20.
    phases : int
        Every sinusoid is taken at this many equally spaced phases from its own on.
    simulate : int
        Cases of each class to run the model on besides (0: none), to hold the prediction against.
    seed : int
        Of the simulation.
    memory_limit : int
        Bytes; quadratic forms that would not fit are refused before work starts.

    Returns
    -------
    xarray.Dataset
        Per signal (stimulus) and class: `target_mean` (*exact*), variances (*truncated*, *bound*), `accuracy_gaussian` of Phi(mean / sd),
        `accuracy` with orders 1 and 2 of the margin exactly and the rest Gaussian (*truncated*), and limits on it (*bound*);
        `balanced_accuracy`, `gaussian_correction`, `simulated_...` (*measured*). The margin is that of the later class.

    Raises
    ------
    ArgumentError
        For the reference architecture, other than two of the model's classes, signals of different lengths or other channels, noise that
        is negative or no covariance.

    Notes
    -----
    Cost: that of :meth:`predict`, plus O(d_model length^3 + (n_channels length)^3) per signal for orders 1 and 2 in distribution.

    Examples
    --------
    >>> from oplens.data import Sinusoid, noisy_sinusoids
    >>> from oplens import S4D, S4DConfig, expand
    >>> data = noisy_sinusoids(n_cases=4, n_timepoints=50)
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4, classes=data.classes)), data)
    >>> signals = {name: Sinusoid(f, n_timepoints=50, sampling_rate=100.0) for name, f in (("15 Hz", 15.0), ("20 Hz", 20.0))}
    >>> ds = op.discriminate(signals, noise=0.5)
    >>> bool(ds.balanced_accuracy_lower_bound <= ds.balanced_accuracy <= ds.balanced_accuracy_upper_bound)
    True
    """
    check_model(op, "discriminate")
    check_orders(orders, 2, "discriminate")
    check_count("phases", phases, 1, "discriminate")
    check_count("simulate", simulate, 2, "discriminate", zero=True)
    check_count("seed", seed, 0, "discriminate")
    against, towards = _two_classes(op, signals)
    given = [_at_phases(signals[name], phases, name) for name in (against, towards)]
    n_channels = op.model.config.d_input
    values = [signal_values(signal, op, "discriminate") for group in given for signal in group]
    steps = {value.shape[1] for value in values}
    if len(steps) > 1:
        raise ArgumentError(
            f"discriminate: the signals have {' and '.join(map(str, sorted(steps)))} steps; a difference of length would decide: give "
            "signals of one length."
        )
    length = steps.pop()
    covariance = noise_covariance(noise, n_channels, "discriminate")
    rows = n_channels * length
    check_memory(
        (phases + 2) * rows**2,
        memory_limit,
        "discriminate",
        "shorten the signals or take fewer phases",
        "quadratic form",
    )
    setting = Setting.of(op, length, covariance, Margin(towards, against))
    stacked = np.stack(values)
    found = moments(setting, stacked, orders, forms=True)
    drawn = []
    if simulate:
        generator = np.random.default_rng(seed)
        drawn = [
            simulation.simulate(setting, group, simulate, generator) for group in (stacked[:phases], stacked[phases:])
        ]
    return _dataset(setting, [signal for group in given for signal in group], found, drawn, seed, noise)


def _dataset(
    setting: Setting, signals: list[Any], found: Moments, drawn: list[Simulated], seed: int, noise: Any
) -> "xr.Dataset":
    import xarray as xr

    from oplens.results import provenance

    assert isinstance(setting.target, Margin)
    margin = setting.target
    mean, variance, bound = (v[:, 0] for v in (found.mean, found.variance, found.variance_bound))
    each = Decisions.of(mean, variance, bound, found.forms).right(np.arange(len(signals)) >= len(signals) // 2)
    lines = {
        "target_mean": (mean, "expected margin", "exact"),
        "target_variance": (variance, "variance of the margin, cut at the highest order", "truncated"),
        "target_variance_bound": (bound, "bound from above on the margin's variance", "bound"),
        "accuracy_gaussian": (each.gaussian, "accuracy of a Gaussian margin", "truncated"),
        "accuracy": (each.corrected, "accuracy with orders 1 and 2 exactly, the rest Gaussian", "truncated"),
        "accuracy_lower_bound": (each.lower, "the accuracy is no smaller", "bound"),
        "accuracy_upper_bound": (each.upper, "the accuracy is no larger", "bound"),
    }
    variables: dict[str, Any] = {
        name: ("stimulus", value, described(text, claim, _units(name))) for name, (value, text, claim) in lines.items()
    }
    text = described("variance that each order adds", "truncated", "logit^2")
    variables["variance_by_order"] = (("order", "stimulus"), found.by_order[..., 0], text)
    variables |= _by_class(mean, variance, each)
    coords = _coordinates(margin, signals, len(found.by_order))
    if drawn:
        variables |= _simulated(drawn)
        coords["case"] = ("case", np.arange(len(drawn[0].values)))
    attrs = {
        **provenance(source=setting.op.training.source, seed=seed if drawn else None),
        "target": margin.describe(),
        "towards": margin.towards,
        "against": margin.against,
        "noise": repr(noise)[:200],
        "n_steps": setting.noise.response.shape[1],
        "orders": len(found.by_order),
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _by_class(mean: Array, variance: Array, each: Decisions) -> dict[str, Any]:
    """Means over the signals of a class, which are its phases: a mixture."""

    def halves(values: Array) -> Array:
        return values.reshape(2, -1)

    between = halves(mean).var(1)
    pooled = {name: halves(getattr(each, name)).mean(1) for name in ("gaussian", "corrected", "lower", "upper")}
    lines = {
        "class_mean": (halves(mean).mean(1), "expected margin over noise and phases", "exact"),
        "class_variance": (
            halves(variance).mean(1) + between,
            "variance of the margin over noise and phases",
            "truncated",
        ),
        "class_accuracy_gaussian": (pooled["gaussian"], "accuracy of Gaussian margins, mean over phases", "truncated"),
        "class_accuracy": (pooled["corrected"], "accuracy with orders 1 and 2 exactly, mean over phases", "truncated"),
        "class_accuracy_lower_bound": (pooled["lower"], "the accuracy is no smaller", "bound"),
        "class_accuracy_upper_bound": (pooled["upper"], "the accuracy is no larger", "bound"),
    }
    variables: dict[str, Any] = {
        name: ("class", value, described(text, claim, _units(name))) for name, (value, text, claim) in lines.items()
    }
    whole = {
        "balanced_accuracy_gaussian": ("gaussian", "truncated", "mean of both classes' Gaussian accuracies"),
        "balanced_accuracy": ("corrected", "truncated", "mean of both classes' accuracies, orders 1 and 2 exactly"),
        "balanced_accuracy_lower_bound": ("lower", "bound", "the balanced accuracy is no smaller"),
        "balanced_accuracy_upper_bound": ("upper", "bound", "the balanced accuracy is no larger"),
    }
    for name, (key, claim, long_name) in whole.items():
        variables[name] = ((), float(pooled[key].mean()), described(long_name, claim, "1"))
    size = float((pooled["corrected"] - pooled["gaussian"]).mean())
    variables["gaussian_correction"] = (
        (),
        size,
        described("what the Gaussian assumption leaves out of the balanced accuracy", "truncated", "1"),
    )
    return variables


def _simulated(drawn: list[Simulated]) -> dict[str, Any]:
    """What the running model did; `drawn` in the order of the classes, the second on the positive side."""
    values = np.stack([found.values[:, 0] for found in drawn])
    right = np.stack([1.0 - drawn[0].above_zero[0], drawn[1].above_zero[0]])
    lines = {
        "simulated_mean": (np.stack([f.mean[0] for f in drawn]), "mean margin of the simulated cases"),
        "simulated_mean_error": (np.stack([f.mean_error[0] for f in drawn]), "its standard error"),
        "simulated_variance": (np.stack([f.variance[0] for f in drawn]), "variance of the simulated margins"),
        "simulated_variance_error": (np.stack([f.variance_error[0] for f in drawn]), "its standard error"),
        "simulated_accuracy": (right, "share of simulated cases decided rightly"),
        "simulated_accuracy_error": (np.sqrt(right * (1 - right) / values.shape[1]), "its standard error"),
    }
    variables: dict[str, Any] = {
        name: ("class", value, described(text, "measured", _units(name))) for name, (value, text) in lines.items()
    }
    text = described("margin of every simulated case", "measured", "logit")
    variables["simulated_target"] = (("class", "case"), values, text)
    return variables


def _coordinates(margin: Margin, signals: list[Any], orders: int) -> dict[str, Any]:
    names = (margin.against, margin.towards)
    coords: dict[str, Any] = {
        "order": ("order", np.arange(1, orders + 1)),
        "class": ("class", np.array(names, dtype=object)),
        "label": ("stimulus", np.array([name for name in names for _ in range(len(signals) // 2)], dtype=object)),
    }
    if all(isinstance(signal, Sinusoid) for signal in signals):
        text = described("frequency of the signal", "exact", "Hz, by the signal's own sampling rate")
        coords["frequency"] = ("stimulus", np.array([s.frequency for s in signals]), text)
        coords["phase"] = ("stimulus", np.array([s.phase for s in signals]), described("phase", "exact", "rad"))
    return coords


def _units(name: str) -> str:
    return "1" if "accuracy" in name else units_of(name)


def _two_classes(op: "ExplicitOperator", signals: Any) -> tuple[str, str]:
    """The two classes in the model's order; the later one's margin over the earlier is predicted."""
    known = op.model.config.classes
    if not isinstance(signals, Mapping) or len(signals) != 2:
        raise ArgumentError(
            "discriminate(signals=...): give two signals by the classes they belong to, such as "
            f"{{{known[0]!r}: Sinusoid(...), {known[1]!r}: Sinusoid(...)}}."
        )
    unknown = [str(name) for name in signals if name not in known]
    if unknown:
        raise ArgumentError(
            f"discriminate(signals=...): the model has no class {unknown[0]!r}; it has {', '.join(known)}."
        )
    first, second = sorted(signals, key=known.index)
    return first, second


def _at_phases(signal: Any, phases: int, name: str) -> list[Any]:
    """A sinusoid at equally spaced phases from its own on."""
    if phases == 1:
        return [signal]
    if not isinstance(signal, Sinusoid):
        raise ArgumentError(
            f"discriminate(phases={phases}): the signal of {name!r} is no Sinusoid and has no phase to turn; leave phases at 1."
        )
    return [replace(signal, phase=signal.phase + 2 * np.pi * k / phases) for k in range(phases)]
