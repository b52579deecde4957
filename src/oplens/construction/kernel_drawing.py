"""Kernels of a built S4D beside those it was built from, what they make of sinusoids, and the waves of its state space, as Datasets."""

import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.construction import ssm_certificate
from oplens.construction.realisation import stored_parameters
from oplens.construction.volterra import Volterra
from oplens.models.s4d import S4D
from oplens.results.variables import variable

FEATURES = 6  # kernels that are drawn, those that add most
_LAGS, _FREQUENCIES = 2048, 512


def kernel_groups(model: S4D, series: Volterra, errors: Sequence[ssm_certificate.KernelError]) -> dict[str, xr.Dataset]:
    """Groups `construction_kernels` and `construction_waves` of the features that add most.

    Parameters
    ----------
    model : S4D
        Kernels and waves are those of its stored weights.
    series : Volterra
        What it was built from.
    errors : sequence of KernelError
        Of :func:`oplens.construction.ssm_certificate.kernel_errors`.

    Notes
    -----
    Cost: 2048 lags of every drawn kernel in ball arithmetic.

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> from oplens.construction.ssm import build_ssm
    >>> from oplens.construction.volterra import volterra
    >>> series = volterra("example", ExponentialSum([0.5], [2.0]), None, 0.0)
    >>> model, _ = build_ssm(ExponentialSum([0.5], [2.0]))
    >>> groups = kernel_groups(model, series, ssm_certificate.kernel_errors(model, series))
    >>> groups["construction_kernels"].built.values[0, :3].round(9).tolist()
    [2.0, 1.0, 0.5]
    """

    def size(item: ssm_certificate.KernelError) -> float:
        return abs(series.features[item.feature].weight) * item.norm**item.order

    drawn = sorted(errors, key=size, reverse=True)[:FEATURES]
    return {"construction_kernels": _kernels(model, series, drawn), "construction_waves": _waves(model, drawn)}


def _kernels(model: S4D, series: Volterra, drawn: Sequence[ssm_certificate.KernelError]) -> xr.Dataset:
    wanted = np.array([series.features[item.feature].kernel.balls.response(_LAGS) for item in drawn])
    built = np.array([stored_parameters(model, item.feature).balls.response(_LAGS) for item in drawn])
    rate = model.config.sampling_rate
    frequency = np.fft.rfftfreq(_LAGS, 1.0 if rate is None else 1 / rate)
    step = max(1, len(frequency) // _FREQUENCIES)
    gains = [np.abs(np.fft.rfft(values, axis=1))[:, ::step] for values in (wanted, built)]
    lags = _until_faded(wanted)
    return xr.Dataset(
        {
            "wanted": variable(("feature", "lag"), wanted[:, :lags], "kernel that was asked for", claim="exact"),
            "built": variable(("feature", "lag"), built[:, :lags], "kernel of the stored weights", claim="exact"),
            "wanted_gain": variable(("feature", "stimulus"), gains[0], "gain that was asked for", "1", "measured"),
            "built_gain": variable(("feature", "stimulus"), gains[1], "gain of the stored weights", "1", "measured"),
            "norm": variable("feature", [item.norm for item in drawn], "L1 norm of the kernel", "1", "bound"),
            "error": variable("feature", [item.error for item in drawn], "L1 error of the kernel", "1", "bound"),
            "n_modes": variable("feature", [item.n_modes for item in drawn], "waves in use", claim="exact"),
        },
        {
            "feature": [item.feature + 1 for item in drawn],
            "label": ("feature", [_label(model, series, item) for item in drawn]),
            "lag": np.arange(lags),
            "frequency": ("stimulus", frequency[::step], {"units": "cycles/step" if rate is None else "Hz"}),
        },
        {"n_features": len(series.features)},
    )


def _until_faded(kernels: NDArray[np.float64]) -> int:
    """Lags that hold all but a thousandth of every kernel's absolute sum and a tenth more, at least 16."""
    sums = np.cumsum(np.abs(kernels), axis=1)
    last = int((sums < 0.999 * sums[:, -1:]).sum(1).max()) + 1
    return min(int(kernels.shape[1]), max(16, math.ceil(1.1 * last)))


def _label(model: S4D, series: Volterra, item: ssm_certificate.KernelError) -> str:
    """Order, output and channels of a feature, as far as there are several."""
    feature = series.features[item.feature]
    words = [f"squared, times {feature.weight:.3g}" if feature.order == 2 else "first order"]
    if series.n_outputs > 1:
        words.insert(0, str((model.config.classes or ())[item.output]))
    if series.n_channels > 1:
        words.append(f"channel {'+'.join(str(c + 1) for c, value in enumerate(feature.mixing) if value)}")
    return ", ".join(words)


def _waves(model: S4D, drawn: Sequence[ssm_certificate.KernelError]) -> xr.Dataset:
    """Decay times and frequencies, and how large each wave is at lag 0; NaN where a slot is empty."""
    rate = model.config.sampling_rate
    parameters = [stored_parameters(model, item.feature) for item in drawn]
    dt = np.exp([[item.log_dt] for item in parameters])
    exponent = (-np.exp([item.log_decay for item in parameters]) + 1j * np.array([p.angle for p in parameters])) * dt
    C = np.array([item.C for item in parameters])
    size = np.abs(C * dt * np.expm1(exponent) / exponent) * 2
    step, units = (1.0, ("steps", "cycles/step")) if rate is None else (1 / rate, ("s", "Hz"))
    dims, there = ("feature", "wave"), C != 0
    frequency = np.abs(exponent.imag) / (2 * np.pi * step)
    return xr.Dataset(
        {
            "decay_time": variable(
                dims,
                np.where(there, -step / exponent.real, np.nan),
                "time to fall by the factor e",
                units[0],
                claim="exact",
            ),
            "frequency": variable(dims, np.where(there, frequency, np.nan), "frequency", units[1], claim="exact"),
            "size": variable(dims, np.where(there, size, np.nan), "size of the wave at lag 0", claim="exact"),
        },
        {"feature": [item.feature + 1 for item in drawn]},
    )
