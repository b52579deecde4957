"""The operator's kernels (group `/kernels`, or what `op.kernels` and its second-order stretches return)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.style import (
    DIVERGING,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    colourbar,
    figure,
    significant,
    text,
    ticks,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_GAINS = {1: "linear_gain", 2: "square_gain"}


def first_kernel(ds: xr.Dataset, toward: str | None = None) -> "go.Figure":
    """Draw the first-order kernel h1: what a unit of the input at each time is worth; a map of channels, or a line for one.

    Parameters
    ----------
    ds
        Group `/kernels`, or what `op.kernels(length)` returns (then the margin of the second class over the first, or class-centred).
    toward
        Class shown where there is one kernel per class; the first by default.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from oplens.figures.kernels import first_kernel
    >>> h1 = xr.DataArray(np.eye(2), dims=("channel", "time"), coords={"channel": ["C3", "C4"], "time": [0.0, 0.5]})
    >>> first_kernel(xr.Dataset({"h1": h1})).layout.yaxis.ticktext
    ('C3', 'C4')
    """
    values, target = _towards(ds, "h1", toward)
    table = values.transpose("channel", "time").values
    x = ds["time"].values
    return _rows(
        table, x, [str(name) for name in ds["channel"].values], {"title": {"text": _time(ds, "time")}}, target, True
    )


def kernel_gain(ds: xr.Dataset, order: int = 2, toward: str | None = None) -> "go.Figure":
    """Draw what a sinusoid of amplitude 1 in one channel adds, against its frequency; a map of channels, or a line for one.

    Parameters
    ----------
    ds
        Group `/kernels`.
    order
        1: the most that order 1 adds at any phase; 2: what order 2 adds on average over phases.
    toward
        As for :func:`first_kernel`.
    """
    if order not in _GAINS or _GAINS[order] not in ds:
        held = ", ".join(str(k) for k, name in _GAINS.items() if name in ds)
        raise ArgumentError(f"kernel_gain(order={order!r}): this result holds the gain of order {held or 'none'}.")
    values, target = _towards(ds, _GAINS[order], toward)
    table = values.transpose("channel", "stimulus").values
    frequency = ds["frequency"].values
    units = str(ds["frequency"].attrs.get("units", "Hz")).replace("cycles/step", "cycles per step")
    axis = {"type": "log", "title": {"text": f"frequency of the sinusoid ({units})"}, **_decades(frequency)}
    channels = [str(name) for name in ds["channel"].values]
    return _rows(table, frequency, channels, axis, target, order == 2)


def second_kernel(ds: xr.Dataset, pair: int = 0, toward: str | None = None) -> "go.Figure":
    """Draw a stretch of the second-order kernel h2 as a map: what a product of two samples is worth, by their times.

    Parameters
    ----------
    ds
        Group `/kernels`, or what `second_order_kernel` returns.
    pair
        Which pair of channels, where the Dataset holds several.
    toward
        As for :func:`first_kernel`.
    """
    if "h2" not in ds:
        raise ArgumentError("second_kernel: this result holds no second-order kernel; the operator has order 1.")
    values, target = _towards(ds, "h2", toward)
    names = (str(ds.attrs.get("channel", "")), str(ds.attrs.get("channel_2", "")))
    if "pair" in values.dims:
        if isinstance(pair, bool) or not 0 <= pair < values.sizes["pair"]:
            raise ArgumentError(
                f"second_kernel(pair={pair!r}): this result holds pairs 0 to {values.sizes['pair'] - 1}."
            )
        values = values.isel(pair=pair)
        names = (str(ds["member"].values[pair]), str(ds["member_2"].values[pair]))
    table = values.transpose("position", "position_2").values
    top = float(np.abs(table).max(initial=0.0)) or 1.0
    trace = {
        "type": "heatmap",
        "x": ds["position_2"].values.astype(np.float32),
        "y": ds["position"].values.astype(np.float32),
        "z": table.astype(np.float32),
        "zmin": -top,
        "zmax": top,
        "colorscale": DIVERGING,
        "colorbar": {**colourbar(), **_scale(top, signed=True)},
        "hovertemplate": "%{y:.3~g} and %{x:.3~g}: <b>%{z:+.3~g}</b><extra></extra>",
    }
    words = [f"{text(name, 24)}, {_time(ds, 'position')}" for name in names]
    square = {"nticks": 6, "zeroline": False, "showgrid": False, "constrain": "domain"}
    return figure(
        [trace],
        height=400,
        **bar_title(_title(target)),
        xaxis={"title": {"text": words[1]}, **square},
        yaxis={"title": {"text": words[0]}, "scaleanchor": "x", **square},
    )


def response(ds: xr.Dataset, top: int = 24) -> "go.Figure":
    """Draw the responses K~ of the features that the margin reads most, slowest first, each divided by its largest value.

    Parameters
    ----------
    ds
        What `op.kernels(length)` returns.
    top
        Number of features; the largest by abs(readout) times the response's root of the sum of squares.
    """
    values = ds["response"].transpose("feature", "lag").values
    readout = ds["readout"].values - ds["readout"].values.mean(0)
    size = np.sqrt((readout**2).sum(0)) * np.sqrt((values**2).sum(1))
    chosen = np.argsort(-size, kind="stable")[:top]
    spectrum = np.abs(np.fft.rfft(values[chosen], n=4 * values.shape[1])) ** 2
    middle = (spectrum * np.arange(spectrum.shape[1])).sum(1) / np.where(spectrum.sum(1) > 0, spectrum.sum(1), 1.0)
    chosen = chosen[np.argsort(middle, kind="stable")]
    largest = np.abs(values[chosen]).max(1, keepdims=True)
    table = values[chosen] / np.where(largest > 0, largest, 1.0)
    trace = {
        "type": "heatmap",
        "x": ds["lag"].values.astype(np.float32),
        "y": np.arange(len(chosen)),
        "z": table.astype(np.float32),
        "zmin": -1,
        "zmax": 1,
        "colorscale": DIVERGING,
        "colorbar": colourbar(),
        "hovertemplate": "%{y}, after %{x:.3~g}: %{z:.2f} of its largest<extra></extra>",
    }
    return figure(
        [trace],
        height=130 + 18 * len(chosen),
        **bar_title("response divided by its largest value"),
        xaxis={"title": {"text": _time(ds, "lag", "time since the input")}, "zeroline": False},
        yaxis=ticks([f"feature {int(f)}" for f in ds["feature"].values[chosen]], 14, autorange="reversed"),
    )


def _towards(ds: xr.Dataset, name: str, toward: str | None) -> tuple[xr.DataArray, str]:
    """Values without a class axis, and what they are worth of: the stated target, or the margin or centred logit of raw kernels."""
    values, stated = ds[name], str(ds.attrs.get("target", "the target"))
    if "class" not in values.dims:
        return values, stated
    classes = [str(c) for c in ds["class"].values]
    if toward is not None and toward not in classes:
        raise ArgumentError(
            f"toward={toward!r}: this result holds the classes {', '.join(classes)}; choose one of these."
        )
    if "target" in ds.attrs:
        chosen = classes[0] if toward is None else toward
        return values.isel({"class": classes.index(chosen)}), f"logit of {chosen}"
    if len(classes) == 2:
        first = classes.index(toward) if toward is not None else 1
        margin = values.isel({"class": first}) - values.isel({"class": 1 - first})
        return margin, f"margin: {classes[first]} - {classes[1 - first]}"
    chosen = classes[0] if toward is None else toward
    return values.isel({"class": classes.index(chosen)}) - values.mean("class"), f"logit of {chosen}"


def _rows(table: Any, x: Any, labels: list[str], axis: dict[str, Any], words: str, signed: bool) -> "go.Figure":
    """A map with one row per channel, or a line where there is one channel only."""
    top = float(np.abs(table).max(initial=0.0)) or 1.0
    if len(labels) == 1:
        line = {
            "type": "scatter",
            "mode": "lines",
            "x": x.astype(np.float32),
            "y": table[0].astype(np.float32),
            "line": {"color": TOWARD, "width": 2},
            "hovertemplate": "%{x:.3~g}: <b>%{y:+.3~g}</b><extra></extra>",
        }
        name = {**bar_title(_title(words))["title"], "pad": {"t": 8}}
        return figure(
            [line],
            height=300,
            title=name,
            margin={"l": 8, "r": 12, "t": 36, "b": 8},
            xaxis={"zeroline": False, **axis},
            yaxis={"zeroline": True, "exponentformat": "power", "nticks": 6},
        )
    trace = {
        "type": "heatmap",
        "x": x.astype(np.float32),
        "y": np.arange(len(labels)),
        "z": table.astype(np.float32),
        "zmin": -top if signed else 0,
        "zmax": top,
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "colorbar": {**colourbar(), **_scale(top, signed)},
        "hovertemplate": "%{y}, %{x:.3~g}: <b>%{z:+.3~g}</b><extra></extra>",
    }
    rows = 28 if len(labels) <= 16 else 16
    return figure(
        [trace],
        height=150 + max(rows * len(labels), 60),
        **bar_title(_title(words)),
        xaxis={"zeroline": False, "showgrid": False, **axis},
        yaxis=ticks(labels, 14, autorange="reversed", title={"text": ""}),
    )


def _scale(top: float, signed: bool) -> dict[str, Any]:
    """Ends and middle of a colour bar: its own ticks would show a small kernel's values as 0.000."""
    marks = (-top, 0.0, top) if signed else (0.0, top)
    return {"tickvals": list(marks), "ticktext": [significant(mark) for mark in marks]}


def _title(words: str) -> str:
    return f"{text(words, 44)} (logit units)"


def _decades(values: Any) -> dict[str, Any]:
    """Few round ticks of a logarithmic axis: Plotly's own show bare digits between the powers of ten."""
    low, high = float(np.min(values)), float(np.max(values))
    digits = (1,) if high > 500 * low else (1, 3)
    marks = [d * 10.0**e for e in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))) for d in digits]
    marks = [mark for mark in marks if low <= mark <= high]
    return {"tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}


def _time(ds: xr.Dataset, name: str, words: str = "time") -> str:
    return f"{words} ({ds[name].attrs.get('units', 's')})"
