"""What is certified of a built model, and what was found: margins, sizes, parts of the error bound, the error itself."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.panels import add_lower, curve
from oplens.figures.style import (
    AWAY,
    INK,
    LEGEND,
    NEUTRAL,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    colourbar,
    figure,
    number,
    significant,
    text,
    ticks,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go


def construction_margins(margins: xr.Dataset) -> "go.Figure":
    """Draw what the weights deliver in each dtype as bars, and what exactness needs as ticks; orange where it is not met.

    Parameters
    ----------
    margins
        Group `/construction_margins`.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.construction_proof import construction_margins
    >>> ds = xr.Dataset({"required": ("rank", [8.3]), "delivered": ("rank", [40.0])}, {"dtype_of": ("rank", ["float16"])})
    >>> construction_margins(ds.assign_coords(compared=("rank", ["score gap"]))).data[0].text
    ('40, 8.3 needed',)
    """
    required, delivered = (margins[name].values.astype(float) for name in ("required", "delivered"))
    shown = np.where(np.isfinite(delivered), delivered, 0.0)
    met = delivered >= required
    rows = np.arange(len(required))
    top = float(max(shown.max(initial=0.0), required.max(initial=0.0))) or 1.0
    words = [f"{significant(d)}, {significant(r)} needed" for d, r in zip(delivered, required, strict=True)]
    bars = _bars(shown, [AWAY if ok else TOWARD for ok in met], words)
    needed = {
        "type": "scatter",
        "mode": "markers",
        "x": required.astype(np.float32),
        "y": rows,
        "marker": {"symbol": "line-ns", "size": 22, "line": {"width": 2.5, "color": INK}},
        "hoverinfo": "skip",
    }
    low = min(0.0, float(shown.min(initial=0.0)))
    compared = ", ".join(dict.fromkeys(str(name) for name in margins["compared"].values))
    return figure(
        [bars, needed],
        height=90 + 34 * len(rows),
        bargap=0.4,
        xaxis={"title": {"text": text(compared, 60)}, "range": [low, 1.75 * top], "nticks": 6},
        yaxis=ticks([str(name) for name in margins["dtype_of"].values], range=[len(rows) - 0.4, -0.6]),
    )


def layer_weights(construction: xr.Dataset) -> "go.Figure":
    """Draw, layer by layer on a logarithmic axis, hidden units, weights that are not 0, and places that a dense model has.

    Parameters
    ----------
    construction
        Group `/construction`.
    """
    rows = np.arange(construction.sizes["layer"])
    looks = (
        ("hidden_units", "hidden units", INK, "line-ns-open"),
        ("nonzeros", "weights not 0", TOWARD, "circle"),
        ("places", "places, dense", AWAY, "circle-open"),
    )
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": np.maximum(construction[variable].values, 1).astype(np.float64),
            "y": rows,
            "marker": {"size": 11, "color": colour, "symbol": symbol, "line": {"width": 2, "color": colour}},
            "customdata": [f"{name}: {int(v):,}" for v in construction[variable].values],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        for variable, name, colour, symbol in looks
    ]
    top = float(construction["places"].max())
    return figure(
        data,
        height=130 + 34 * len(rows),
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "type": "log",
            "title": {"text": "number (logarithmic)"},
            "range": [-0.1, np.log10(top) + 0.3],
            "dtick": max(1, int(np.log10(top) / 5)),
            "zeroline": False,
        },
        yaxis=ticks([f"layer {int(k)}" for k in construction["layer"].values], range=[len(rows) - 0.4, -0.6]),
    )


def error_parts(construction: xr.Dataset, checks: xr.Dataset) -> "go.Figure":
    """Draw the parts of the error bound, their sum, and the largest error that was found, as bars.

    Parameters
    ----------
    construction, checks
        Groups `/construction` and `/construction_checks`.
    """
    parts = [
        (str(n), float(v))
        for n, v in zip(construction["quantity"].values, construction["error_part"].values, strict=True)
    ]
    # Weights converted to another dtype have a bound of their own.
    dtype = json.loads(construction.attrs["certificate"])["dtype"]
    largest = float(np.nanmax(checks["largest_error"].values[checks["dtype_of"].values == dtype], initial=0.0))
    rows = [*parts, ("certified bound", float(construction["error_bound"])), ("largest error found", largest)]
    values = np.array([value for _, value in rows])
    colours = [*[NEUTRAL] * len(parts), AWAY, TOWARD]
    return figure(
        [_bars(values, colours, [significant(value) for value in values])],
        height=90 + 28 * len(rows),
        bargap=0.35,
        xaxis={
            "exponentformat": "power",
            "title": {"text": "error of the function's value"},
            "range": [0, 1.35 * (float(values.max()) or 1.0)],
            "nticks": 5,
        },
        yaxis=ticks([name for name, _ in rows], 24, range=[len(rows) - 0.4, -0.6]),
    )


def function_section(slices: xr.Dataset, bound: float, axis: int = 0) -> "go.Figure":
    """Draw model and function along a line through the largest error, and below it the error under the certified bound.

    Parameters
    ----------
    slices
        Group `/construction_slices`.
    bound
        The certified bound.
    axis
        Which line, counted from 0.
    """
    if isinstance(axis, bool) or not 0 <= axis < slices.sizes["rank"]:
        raise ArgumentError(
            f"function_section(axis={axis!r}): this result holds lines 0 to {slices.sizes['rank'] - 1}."
        )
    one = slices.isel(rank=axis)
    x = one["place"].values.astype(np.float32)
    data = [
        curve(x, one["wanted"].values, "function", {"color": NEUTRAL, "width": 5}),
        curve(x, one["answer"].values, "model", {"color": INK, "width": 1.6}),
        curve(x, one["error"].values, "error", {"color": TOWARD, "width": 1.6}, "y2"),
    ]
    place = int(np.abs(x - float(one["worst"])).argmin())
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "largest error found",
            "x": x[place : place + 1],
            "y": [float(one["error"].values[place])],
            "yaxis": "y2",
            "marker": {"size": 9, "color": TOWARD},
            "hovertemplate": f"largest error found: {significant(float(slices['largest_error']))}<extra></extra>",
        }
    )
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y2", "y0": bound, "y1": bound}
    fig = figure(
        data,
        height=430,
        showlegend=True,
        legend=LEGEND,
        shapes=[{**line, "line": {"color": AWAY, "width": 1.5, "dash": "dash"}}],
        annotations=[_bound_label(bound)],
        xaxis={"title": {"text": text(str(one["along"].values), 60)}, "anchor": "y2", "nticks": 6, "zeroline": False},
        yaxis={"domain": [0.45, 1], "nticks": 5, "exponentformat": "power", "title": {"text": "value"}},
    )
    add_lower(fig, 0.36, "error", range=[0, 1.25 * bound or 1.0], nticks=4)
    return fig


def error_surface(surface: xr.Dataset, bound: float) -> "go.Figure":
    """Draw the error over two variables as a map, from 0 to the certified bound, with the point of the largest error found.

    Parameters
    ----------
    surface
        Group `/construction_surface`.
    bound
        The certified bound.
    """
    point = np.asarray(surface.attrs["point"], dtype=float)
    values = surface["error"].transpose("position_2", "position").values
    trace = {
        "type": "heatmap",
        "x": surface["position"].values.astype(np.float32),
        "y": surface["position_2"].values.astype(np.float32),
        "z": values.astype(np.float32),
        "zmin": 0,
        "zmax": bound or 1.0,
        "colorscale": SEQUENTIAL,
        "colorbar": {**colourbar(), "nticks": 4},
        "hovertemplate": "x1 = %{x:.3~g}, x2 = %{y:.3~g}: <b>%{z:.3~g}</b><extra></extra>",
    }
    mark = {
        "type": "scatter",
        "mode": "markers",
        "x": point[:1],
        "y": point[1:2],
        "marker": {"size": 12, "color": "rgba(0,0,0,0)", "line": {"width": 2.5, "color": TOWARD}},
        "cliponaxis": False,
        "hovertemplate": "largest error found<extra></extra>",
    }
    others = ", ".join(f"x{j} = {value:.3g}" for j, value in enumerate(point[2:], 3))
    square = {"nticks": 6, "zeroline": False, "showgrid": False, "constrain": "domain"}
    return figure(
        [trace, mark],
        height=430,
        **bar_title(f"error, from 0 to the certified bound {number(bound, 3)}"),
        xaxis={"title": {"text": "x1" + (f" ({others})" if others else "")}, **square},
        yaxis={"title": {"text": "x2"}, "scaleanchor": "x", **square},
    )


def _bars(values: Any, colours: list[str], words: list[str]) -> dict[str, Any]:
    """Bars from the top down, with words at their ends."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": values.astype(np.float32),
        "y": np.arange(len(values)),
        "marker": {"color": colours},
        "text": words,
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _bound_label(bound: float) -> dict[str, Any]:
    return {
        "text": f"certified bound {significant(bound)}",
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": bound,
        "yref": "y2",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": AWAY},
    }
