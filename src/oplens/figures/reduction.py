"""How smaller models of few waves decide, and which waves those are (group `/reduction`)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.figures.style import LEGEND, MUTED, TOWARD, figure, number, significant, text, ticks

if TYPE_CHECKING:
    import plotly.graph_objects as go

LOWEST_R2 = -0.25  # what is further below tells no more than that a constant would do better


def accuracy_by_waves(ds: xr.Dataset) -> "go.Figure":
    """Draw accuracy (without labels: agreement with the full model) and R^2 of its margin against the number of waves kept.

    Dashed: the decoder fitted anew. Dotted: accuracy of the full model. R^2 below -0.25 is drawn there.

    Parameters
    ----------
    ds
        Group `/reduction`, as `op.reduction_curve` returns it.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.reduction import accuracy_by_waves
    >>> lines = {"agreement": ("n_waves", [0.9, 1.0]), "margin_r2": ("n_waves", [0.5, 1.0]), "n_parameters": ("n_waves", [9, 40])}
    >>> [trace.name for trace in accuracy_by_waves(xr.Dataset(lines, coords={"n_waves": [2, 8]})).data]
    ['same decisions', 'margin R²']
    """
    kept = ds["n_waves"].values.astype(float)
    upper = ("accuracy", "accuracy", TOWARD) if "accuracy" in ds else ("agreement", "same decisions", TOWARD)
    lines = [(*upper, "y"), ("margin_r2", "margin R²", "#333c47", "y2")]
    data = [
        _line(ds, f"{prefix}{variable}", f"{name}{words}", {"color": colour, "width": 2, "dash": dash}, axis)
        for variable, name, colour, axis in lines
        for prefix, words, dash in (("", "", "solid"), ("refitted_", ", refitted", "dash"))
        if f"{prefix}{variable}" in ds
    ]
    shapes = []
    if "model_accuracy" in ds:
        level = float(ds["model_accuracy"])
        ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": level, "y1": level}
        shapes = [{"type": "line", **ends, "line": {"color": MUTED, "width": 1, "dash": "dot"}}]
    lowest = {
        axis: min(float(np.nanmin(t["y"], initial=1.0)) for t in data if t["yaxis"] == axis) for axis in ("y", "y2")
    }
    places = _places(kept)
    fig = figure(
        data,
        height=420,
        showlegend=True,
        legend=LEGEND,
        shapes=shapes,
        xaxis={
            "type": "log",
            "title": {"text": "waves kept (logarithmic)"},
            "tickvals": places,
            "ticktext": [f"{int(k):,}" for k in places],
            "zeroline": False,
            "anchor": "y2",
        },
        yaxis={
            "domain": [0.45, 1],
            "range": [max(0.0, np.floor(10 * lowest["y"] - 0.2) / 10), 1.02],
            "tickformat": ".0%",
            "nticks": 5,
            "zeroline": False,
        },
    )
    lower = {**fig.layout.yaxis.to_plotly_json(), "domain": [0, 0.36], "tickformat": ""}
    lower |= {"range": [min(0.0, lowest["y2"]) - 0.05, 1.06], "zeroline": True, "tickvals": [0, 0.5, 1]}
    fig.update_layout(yaxis2=lower)
    return fig


def _line(ds: xr.Dataset, variable: str, name: str, line: dict[str, Any], axis: str) -> dict[str, Any]:
    kept, values = ds["n_waves"].values, ds[variable].values.astype(float)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": kept.astype(np.float32),
        "y": np.maximum(values, LOWEST_R2).astype(np.float32),
        "yaxis": axis,
        "line": line,
        "marker": {"size": 7, "color": line["color"], "symbol": "circle" if line["dash"] == "solid" else "circle-open"},
        "customdata": [
            f"{int(k):,} wave{'s' if k > 1 else ''}, {int(p):,} parameters<br>{name} "
            + (number(v, 3) if axis == "y2" else f"{100 * v:.1f} %")
            for k, v, p in zip(kept, values, ds["n_parameters"].values, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def wave_importance(ds: xr.Dataset, top: int = 12) -> "go.Figure":
    """Draw the most important waves as bars named by their frequencies: how much their shares of the decision vary.

    Parameters
    ----------
    ds
        Group `/reduction`.
    top
        Number of waves.
    """
    first = ds.isel(rank=slice(0, top))
    importance = first["importance"].values.astype(float)
    units = str(first["frequency"].attrs.get("units", "")).replace("cycles/step", "cycles per step")
    seconds = str(first["decay_time"].attrs.get("units", ""))
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": importance.astype(np.float32),
        "y": np.arange(len(importance)),
        "marker": {"color": "#333c47"},
        "text": [number(value) for value in importance],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [
            f"{text(name, 60)}<br>{significant(f)} {units}, decays in {significant(d)} {seconds}"
            for name, f, d in zip(
                first["member"].values, first["frequency"].values, first["decay_time"].values, strict=True
            )
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    short = units.replace("cycles per step", "c/step")
    return figure(
        [trace],
        height=90 + 26 * len(importance),
        bargap=0.35,
        xaxis={
            "title": {"text": "spread of its share (logit units)"},
            "range": [0, 1.25 * (float(importance.max(initial=0.0)) or 1.0)],
        },
        yaxis=ticks(
            [f"{f} {short}" for f in shown_frequencies(first["frequency"].values)],
            18,
            autorange="reversed",
            title={"text": ""},
        ),
    )


def shown_frequencies(values: Any) -> list[str]:
    """Return frequencies with three digits, "0" for what is zero but for training's noise.

    Examples
    --------
    >>> shown_frequencies([20.06, 0.2, 3.8e-06])
    ['20.1', '0.200', '0']
    """
    floor = 1e-5 * max(float(np.max(values, initial=0.0)), 1e-300)
    return [f"{value:#.3g}".rstrip(".") if value > floor else "0" for value in np.asarray(values, dtype=float).tolist()]


def _places(kept: Any) -> list[float]:
    """Every number of waves measured, or so many of them that their labels fit a phone."""
    step = int(np.ceil(len(kept) / 7))
    return [float(k) for k in kept[::-1][::step][::-1]]
