"""Invented rings for figures and pages: two features, two cases of unequal length, a packet that goes round, grows and fades."""

import numpy as np
import xarray as xr

RATE = 50.0


def invented_ring(steps: int = 60, revolution: float | None = None, n_modes: int = 4) -> xr.Dataset:
    """Group `/ring` at 50 Hz; `revolution` (seconds) overrides that of both features, NaN stands for nothing travels."""
    rng = np.random.default_rng(0)
    N, time = 2 * n_modes, np.arange(steps) / RATE
    velocity = np.array([-0.8, 0.5])
    spin = np.array([N / abs(v) / RATE for v in velocity]) if revolution is None else np.full(2, revolution)
    velocity = np.where(np.isnan(spin), np.nan, velocity)
    place = np.nan_to_num(velocity)[:, None, None] * np.arange(steps) - np.arange(N)[:, None]
    packet = np.exp(-(((place + N / 2) % N - N / 2) ** 2)) * np.exp(-np.abs(time - 0.3))
    envelope = np.stack([packet, 2 * packet]) + 0.02 * rng.random((2, 2, N, steps))
    drive = rng.normal(size=(2, 2, steps))
    lengths = [steps, max(1, steps - 10)]
    envelope[1, ..., lengths[1] :], drive[1, ..., lengths[1] :] = np.nan, np.nan
    before = np.pi * np.arange(n_modes) + np.zeros((2, 1))
    frequency = before + rng.normal(0, 0.2, before.shape)
    decay = 0.5 + 0.1 * rng.random(before.shape)
    decay[1, 1 % n_modes] = -0.01
    aliased = np.zeros(before.shape, dtype=bool)
    aliased[1, -1] = True
    order, turned = np.tile(np.arange(n_modes), (2, 1)), np.zeros(before.shape, dtype=bool)
    if n_modes > 2:
        order[1, [1, 2]], turned[1, 1] = [2, 1], True
    lag = spin[:, None] * np.arange(N) / N
    feature, waves, sites = ("feature",), ("feature", "wavenumber"), ("feature", "site")
    values = {
        "envelope": (("case", "feature", "site", "time"), envelope, "1", "exact"),
        "drive": (("case", "feature", "time"), drive, "1", "exact"),
        "ring_residual": (("case", "feature"), np.array([[1e-15, 2e-15], [3e-15, 4e-15]]), "1", "measured"),
        "frequency": (waves, frequency, "rad / model time", "exact"),
        "frequency_before": (waves, before, "rad / model time", "exact"),
        "decay": (waves, decay, "1 / model time", "exact"),
        "decay_before": (waves, np.full(before.shape, 0.5), "1 / model time", "exact"),
        "frequency_change": (waves, frequency[:, ::-1] - before[:, ::-1], "rad / model time", "exact"),
        "decay_ratio": (waves, decay / 0.4, "1", "exact"),
        "group_velocity_before": (waves, np.full(before.shape, -float(n_modes)), "sites / model time", "exact"),
        "wavenumber_mode": (waves, order, "1", "exact"),
        "conjugated": (waves, turned, "1", "exact"),
        "aliased": (waves, aliased, "1", "exact"),
        "coupling": (("feature", "displacement"), rng.normal(size=(2, N)), "1 / model time", "exact"),
        "coupling_before": (("feature", "displacement"), rng.normal(size=(2, N)), "1 / model time", "exact"),
        "injection": (sites, rng.normal(size=(2, N)), "1", "exact"),
        "readout": (sites, rng.normal(size=(2, N)), "1", "exact"),
        "site_lag": (sites, lag, "s", "measured"),
        "peak_lag": (sites, lag + 0.01, "s", "measured"),
        "lag_agreement": (feature, np.where(np.isnan(spin), np.nan, 0.998), "1", "measured"),
        "lag_miss": (feature, spin / 16, "s", "measured"),
        "velocity": (feature, velocity, "sites/step", "measured"),
        "velocity_before": (feature, velocity * [1.25, 0.8], "sites/step", "measured"),
        "revolution": (feature, spin, "s", "measured"),
        "resolution": (feature, spin / N, "s", "measured"),
        "energy_left": (feature, np.where(np.isnan(spin), np.nan, 0.135), "1", "measured"),
        "delay_low": (feature, np.array([-1.5, -1.4]), "rad", "exact"),
        "delay_high": (feature, np.array([0.005, 0.004]), "rad", "exact"),
        "largest_rate": (feature, -decay.min(1), "1 / model time", "exact"),
        "phase_delay": (feature, np.zeros(2), "rad", "exact"),
        "mean_share": (feature, np.array([1.5, 0.25]), "logit", "conditional"),
    }
    variables = {
        name: (dims, value, {"units": units, "long_name": name.replace("_", " "), "claim": claim})
        for name, (dims, value, units, claim) in values.items()
    }
    coords = {
        "case": [7, 3],
        "feature": [2, 5],
        "site": np.arange(N),
        "wavenumber": np.arange(n_modes),
        "displacement": np.arange(-n_modes, n_modes),
        "time": ("time", time, {"units": "s", "long_name": "time in the case", "claim": "exact"}),
        "label": ("case", np.array(["left", "right"], dtype=object)),
        "dt": ("feature", np.array([0.2, 0.125])),
    }
    attrs = {
        "ordering": "frequency",
        "layer": 0,
        "rule": "the 2 features whose rings have the largest mean absolute share",
        "before": "S4D-Lin, as configured, with the trained step",
        "every": 1,
        "sampling_rate": RATE,
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)
