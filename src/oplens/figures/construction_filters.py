"""A built filter: its kernel and its gain beside those asked for, and the waves that it is made of (groups `/construction_...`)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.panels import add_lower, curve
from oplens.figures.style import AWAY, INK, LEGEND, NEUTRAL, TOWARD, figure, significant, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FLOOR = 1e-8  # of the largest gain: what is smaller is drawn there, it is rounding


def kernel_comparison(kernels: xr.Dataset, feature: int = 0) -> "go.Figure":
    """Draw a kernel as asked for and as the stored weights have it, and below it their difference.

    Parameters
    ----------
    kernels
        Group `/construction_kernels`.
    feature
        Which of the drawn kernels, counted from 0.
    """
    one = _one("kernel_comparison", kernels, feature)
    lag = one["lag"].values.astype(np.float32)
    wanted, built = one["wanted"].values, one["built"].values
    data = [
        curve(lag, wanted, "asked for", {"color": NEUTRAL, "width": 5}),
        curve(lag, built, "built", {"color": INK, "width": 1.6}),
        curve(lag, built - wanted, "difference", {"color": TOWARD, "width": 1.6}, "y2"),
    ]
    fig = figure(
        data,
        height=400,
        showlegend=True,
        legend=LEGEND,
        xaxis={"title": {"text": "lag (steps)"}, "anchor": "y2", "nticks": 6, "zeroline": False},
        yaxis={"domain": [0.42, 1], "nticks": 5, "exponentformat": "power", "title": {"text": "kernel"}},
    )
    largest = float(np.abs(built - wanted).max())
    marks = {"tickvals": [-largest, 0, largest], "ticktext": [significant(value) for value in (-largest, 0, largest)]}
    add_lower(fig, 0.32, "difference", **marks, range=[-1.2 * largest, 1.2 * largest])
    return fig


def gain_comparison(kernels: xr.Dataset, feature: int = 0) -> "go.Figure":
    """Draw by how much a sinusoid is multiplied, against its frequency, as asked for and as built; logarithmic.

    Parameters
    ----------
    kernels
        Group `/construction_kernels`.
    feature
        Which of the drawn kernels, counted from 0.
    """
    one = _one("gain_comparison", kernels, feature)
    units = str(one["frequency"].attrs.get("units", "Hz")).replace("cycles/step", "cycles per step")
    wanted, built = one["wanted_gain"].values, one["built_gain"].values
    top = float(max(wanted.max(), built.max())) or 1.0
    low = max(_FLOOR * top, float(min(wanted.min(), built.min())))
    x = one["frequency"].values.astype(np.float32)
    return figure(
        [
            curve(x, np.maximum(wanted, low), "asked for", {"color": NEUTRAL, "width": 5}),
            curve(x, np.maximum(built, low), "built", {"color": INK, "width": 1.6}),
        ],
        height=400,
        showlegend=True,
        legend=LEGEND,
        xaxis={"title": {"text": f"frequency of the input ({text(units)})"}, "nticks": 6, "zeroline": False},
        yaxis={
            "type": "log",
            "title": {"text": "gain"},
            "range": [np.log10(low) - 0.2, np.log10(top) + 0.3],
            **_decades(low, top),
            "zeroline": False,
        },
    )


def filter_waves(waves: xr.Dataset, feature: int = 0) -> "go.Figure":
    """Draw the waves of a feature by frequency and decay time; the larger a dot, the larger the wave at lag 0.

    Parameters
    ----------
    waves
        Group `/construction_waves`.
    feature
        Which of the drawn features, counted from 0.
    """
    one = _one("filter_waves", waves, feature)
    kept = np.flatnonzero(~np.isnan(one["size"].values))
    frequency, decay, size = (one[name].values[kept] for name in ("frequency", "decay_time", "size"))
    units = [
        text(str(one[name].attrs["units"]).replace("cycles/step", "cycles per step"))
        for name in ("frequency", "decay_time")
    ]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": frequency.astype(np.float32),
        "y": decay.astype(np.float32),
        "marker": {
            "size": 7 + 17 * np.sqrt(size / (float(size.max(initial=0.0)) or 1.0)),
            "color": AWAY,
            "opacity": 0.7,
            "line": {"width": 1, "color": INK},
        },
        "customdata": [
            f"{significant(f)} {units[0]}, falls by e in {significant(d)} {units[1]}<br>size {significant(s)}"
            for f, d, s in zip(frequency, decay, size, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    ends = np.log10([float(decay.min(initial=np.inf)), float(decay.max(initial=0.0))]) if len(decay) else np.zeros(2)
    room = 0.15 + 0.15 * float(ends[1] - ends[0])
    return figure(
        [trace],
        height=360,
        xaxis={"title": {"text": f"frequency ({units[0]})"}, "nticks": 6, "zeroline": False, "rangemode": "tozero"},
        yaxis={
            "type": "log",
            "title": {"text": f"decay time ({units[1]})"},
            "range": [float(ends[0]) - room, float(ends[1]) + room],
            **_decades(10 ** (float(ends[0]) - room), 10 ** (float(ends[1]) + room)),
            "zeroline": False,
        },
    )


def _one(call: str, ds: xr.Dataset, feature: int) -> xr.Dataset:
    if isinstance(feature, bool) or not 0 <= feature < ds.sizes["feature"]:
        raise ArgumentError(f"{call}(feature={feature!r}): this result holds kernels 0 to {ds.sizes['feature'] - 1}.")
    return ds.isel(feature=feature)


def _decades(low: float, high: float) -> dict[str, Any]:
    """Places of a logarithmic axis: powers of ten, or 1, 2 and 5 where there are few."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    step = -(-(last - first) // 6)
    digits = (1, 2, 5) if last - first <= 2 else (1,)
    places = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    places = [place for place in places if low <= place <= high]
    return {"tickmode": "array", "tickvals": places, "ticktext": [significant(place) for place in places]}
