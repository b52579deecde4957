"""Shares of channels, bands and time windows: maps of two part dimensions, bars and courses of one."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.contrast import (
    axis_title,
    binned_waves,
    difference,
    direction,
    magnitude,
    part_labels,
    shares,
    table_dimensions,
)
from oplens.figures.style import (
    AWAY,
    DIVERGING,
    LEGEND,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    cell,
    colourbar,
    figure,
    text,
    ticks,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

MEASURES = {"difference": "difference between classes", "magnitude": "mean size"}


def share_map(
    partition: xr.Dataset, order: str | int | None = None, measure: str = "difference", toward: str | None = None
) -> "go.Figure":
    """Draw a heat map of the shares of a product partition, such as channel x band.

    Parameters
    ----------
    partition
        A result of `op.explain` whose parts have two dimensions (waves are gathered into frequency bins).
    order
        An order, "sum" (all orders) or "full" (exact share through the whole readout).
    measure
        "difference": mean share over the cases of one class minus the mean over the others (logit units, signed);
        "magnitude": mean absolute share.
    toward
        The class whose logit is shown, for class-centred targets.
    """
    if measure not in MEASURES:
        raise ArgumentError(f"measure={measure!r}: choose one of {', '.join(MEASURES)}.")
    side = direction(partition, toward)
    values = shares(partition, order, side)
    labels: dict[str, list[str]] = {}
    if "wave" in values.dims:
        values, labels["wave_frequency"] = binned_waves(values, partition["frequency"])
    dims = [str(name) for name in values.dims if name != "case"]
    if len(dims) != 2:
        raise ArgumentError(
            f"share_map: parts along ({', '.join(dims)}); two dimensions are needed, as in channel x band."
        )
    row, column = dims
    labels |= {name: part_labels(partition, name) for name in dims if name not in labels}
    table = (difference(values, side) if measure == "difference" else magnitude(values)).transpose(row, column)
    top = float(np.nanmax(np.abs(table.values), initial=0.0)) or 1.0
    small = table.shape[0] <= 16 and table.shape[1] <= 8
    signed = measure == "difference"
    cells = np.array([[cell(v, top, signed) for v in line] for line in table.values])
    hover = [
        [f"{text(a, 40)}, {text(b, 40)}<br><b>{cells[i][j]}</b>" for j, b in enumerate(labels[column])]
        for i, a in enumerate(labels[row])
    ]
    trace = {
        "type": "heatmap",
        "z": table.values.astype(np.float32),
        "zmin": -top if signed else 0.0,
        "zmax": top,
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "xgap": 2,
        "ygap": 2,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorbar": colourbar(),
    }
    if small:
        trace |= {"text": cells, "texttemplate": "%{text}", "textfont": {"size": 11}}
    return figure(
        [trace],
        height=140 + max((28 if table.shape[0] <= 16 else 16) * table.shape[0], 60),
        **bar_title(f"{'difference of mean shares' if signed else 'mean absolute share'} (logit units)"),
        xaxis=ticks(labels[column], 16, title={"text": axis_title(partition, column)}),
        yaxis=ticks(labels[row], 14, autorange="reversed", title={"text": ""}),
    )


def share_bars(
    partition: xr.Dataset, order: str | int | None = None, toward: str | None = None, top: int = 20
) -> "go.Figure":
    """Draw the mean share of each channel or band for the cases of either class, largest first when many."""
    (dimension,) = _only(table_dimensions(partition), "share_bars")
    side = direction(partition, toward)
    values = shares(partition, order, side)
    labels = part_labels(partition, dimension)
    keep = np.arange(len(labels))
    if len(labels) > top:
        keep = np.sort(np.argsort(-magnitude(values).values)[:top])
    data: list[dict[str, Any]] = []
    for mask, name, colour, offset in zip(
        (side.toward, side.away), side.sides, (TOWARD, AWAY), (-0.13, 0.13), strict=True
    ):
        if mask.any():
            chosen = values.isel(case=np.flatnonzero(mask)).values[:, keep]
            low, high = np.quantile(chosen, (0.1, 0.9), axis=0)
            mean = chosen.mean(0)
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": text(name, 30),
                    "x": mean.astype(np.float32),
                    "y": np.arange(len(keep), dtype=np.float32) + offset,
                    "error_x": {
                        "array": (high - mean).astype(np.float32),
                        "arrayminus": (mean - low).astype(np.float32),
                        "thickness": 2,
                        "width": 0,
                        "color": colour,
                    },
                    "marker": {"size": 9, "color": colour},
                    "customdata": [text(labels[k], 40) for k in keep],
                    "hovertemplate": "%{customdata}: %{x:+.3f}<extra>%{fullData.name}</extra>",
                }
            )
    return figure(
        data,
        height=110 + 30 * len(keep),
        showlegend=True,
        legend=LEGEND,
        xaxis={"title": {"text": "share (logit units)"}, "zeroline": True},
        yaxis=ticks([labels[k] for k in keep], 18, autorange="reversed", title={"text": ""}, showgrid=True),
    )


def share_course(partition: xr.Dataset, order: str | int | None = None, toward: str | None = None) -> "go.Figure":
    """Draw the mean share of each time window for the cases of either class, with the middle 80 % of cases as a band."""
    (dimension,) = _only(table_dimensions(partition), "share_course")
    side = direction(partition, toward)
    values = shares(partition, order, side)
    n = partition.sizes[dimension]
    start = partition["window_start"].values if "window_start" in partition else np.arange(n) / n
    stop = partition["window_stop"].values if "window_stop" in partition else (np.arange(n) + 1) / n
    fraction = float(np.max(stop)) <= 1.0
    scale = 100.0 if fraction else 1.0
    x = np.repeat(scale * np.concatenate([start, stop[-1:]]), 2)[1:-1].astype(np.float32)
    data: list[dict[str, Any]] = []
    for mask, name, colour in zip((side.toward, side.away), side.sides, (TOWARD, AWAY), strict=True):
        if not mask.any():
            continue
        chosen = values.isel(case=np.flatnonzero(mask)).values
        low, high = (np.repeat(q, 2).astype(np.float32) for q in np.quantile(chosen, (0.1, 0.9), axis=0))
        mean = np.repeat(chosen.mean(0), 2).astype(np.float32)
        hover = {"hovertemplate": "%{x:.3g}: %{y:+.3f}<extra>%{fullData.name}</extra>"}
        edge = {
            "type": "scatter",
            "mode": "lines",
            "line": {"width": 0},
            "x": x,
            "hoverinfo": "skip",
            "showlegend": False,
        }
        data += [
            {**edge, "y": low},
            {**edge, "y": high, "fill": "tonexty", "fillcolor": _faint(colour)},
            {"type": "scatter", "mode": "lines", "x": x, "y": mean, "line": {"color": colour, "width": 2.5}, **hover}
            | {"name": text(name, 30)},
        ]
    return figure(
        data,
        height=340,
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "title": {"text": "position in the case (%)" if fraction else "time (steps)"},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"title": {"text": "share of a window (logit units)"}, "zeroline": True},
    )


def source_sizes(partition: xr.Dataset, order: str | int | None = None, toward: str | None = None) -> dict[str, float]:
    """Return the mean absolute share of every line that is no part (bias, skip, rest, ...) and of the remainder."""
    side = direction(partition, toward)
    full = str(order) == "full" or "share" not in partition
    name = "source_full_share" if full else "source_share"
    sizes: dict[str, float] = {}
    if name in partition:
        lines = partition[name]
        if "order" in lines.dims:
            lines = lines.sum("order") if order in (None, "sum") else lines.sel(order=int(str(order)))
        if "class" in lines.dims:
            lines = lines.isel({"class": side.index or 0})
        means = magnitude(lines)
        sizes = {str(label): float(means.sel(source=label)) for label in partition["source"].values}
    if not full and "remainder" in partition:
        rest = partition["remainder"]
        sizes["remainder"] = float(abs(rest.isel({"class": side.index or 0}) if "class" in rest.dims else rest).mean())
    return sizes


def _only(dims: tuple[str, ...], who: str) -> tuple[str, ...]:
    if len(dims) != 1:
        raise ArgumentError(f"{who}: parts along ({', '.join(dims)}); one dimension is needed, as in windows.")
    return dims


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
