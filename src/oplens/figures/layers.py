"""A model's layers as small multiples: one statistic of every head, by layer."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.style import (
    INK,
    MUTED,
    NEUTRAL,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    cell,
    colourbar,
    figure,
    number,
    significant,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

Head = tuple[int, int]

# Fixed, so that panels beside and below one another share their axis of layers.
_MARGIN = {"l": 44, "r": 8, "t": 12, "b": 44}


@dataclass(frozen=True)
class Measure:
    """What a statistic of heads is called on figures."""

    title: str
    unit: str = ""
    top: float | None = None  # the largest value there can be


MEASURES = {
    "normalised_entropy": Measure("entropy over its largest value", top=1.0),
    "entropy": Measure("entropy of a row", "nat"),
    "entropy_sum": Measure("H_l of the paper", "nat"),
    "distance": Measure("mean distance", "positions"),
    "first_mass": Measure("attention on the first position", top=1.0),
    "previous_mass": Measure("attention on the previous position", top=1.0),
    "effective_rank": Measure("effective rank"),
    "relative_rank": Measure("effective rank over the length", top=1.0),
    "stable_rank": Measure("stable rank"),
    "numerical_rank": Measure("numerical rank"),
    "eigenvalue_effective_rank": Measure("r_eff of the paper"),
}


def heads_by_layer(
    attention: xr.Dataset,
    measure: str,
    marked: Collection[Head] = (),
    reference: tuple[float, str] | None = None,
    highest: float | None = None,
) -> "go.Figure":
    """Draw one statistic of every head against the layer: a dot per head with its interval, and the mean of each layer's heads.

    Parameters
    ----------
    attention
        The group `/attention`: the statistic over (layer, head), NaN where a layer has fewer heads, with `_low` and `_high`.
    measure
        Name of the statistic, such as "distance".
    marked
        Heads (layer, head) in the colour of attention, such as those whose maps are drawn.
    reference
        A value to compare with, and its name; drawn as a dotted line.
    highest
        Upper end of the axis, to give two figures the same one.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.layers import heads_by_layer
    >>> ds = xr.Dataset({"distance": (("layer", "head"), [[1.0, 3.0]])}, coords={"layer": [1], "head": [0, 1]})
    >>> dots, mean = heads_by_layer(ds, "distance").data
    >>> dots.customdata[0], float(mean.y[0])
    ('layer 1, head 0: <b>1.00</b> positions', 2.0)
    """
    ds, words = _measured(attention, measure)
    value, low, high = (ds[name].values for name in (measure, f"{measure}_low", f"{measure}_high"))
    layers, heads = ds["layer"].values, ds["head"].values
    row, column = np.nonzero(np.isfinite(value))
    place = layers[row] + _spread(len(heads))[column]
    chosen = np.array([(int(layers[r]), int(heads[h])) in marked for r, h in zip(row, column, strict=True)], dtype=bool)
    ends = [value[row, column], low[row, column], high[row, column]]
    hover = np.array(
        [
            f"layer {layers[r]}, head {heads[h]}: <b>{estimate(v)}</b>{_unit(words)}{between(a, b, v)}"
            for r, h, v, a, b in zip(row, column, *ends, strict=True)
        ],
        dtype=object,
    )
    data = []
    for keep, colour in ((~chosen, NEUTRAL), (chosen, TOWARD)):
        if keep.any():
            data.append(_dots(place[keep], [end[keep] for end in ends], hover[keep], colour, len(heads)))
    data.append(_means(ds, measure, words))
    top = max(float(np.nanmax([ends[0], ends[2]])), *([reference[0]] if reference else [0.0]))
    top = words.top if words.top and top > 0.3 * words.top else min(1.06 * top, words.top or math.inf) or 1.0
    bottom = min(0.0, float(np.nanmin([ends[0], ends[1]])))
    return figure(
        data,
        height=_height(len(heads)),
        margin=_MARGIN,
        shapes=_reference(reference),
        annotations=_reference_words(reference),
        xaxis=layer_axis(layers),
        yaxis={"range": [bottom, highest or top], "nticks": 6, "automargin": False},
    )


def head_map(
    attention: xr.Dataset, measure: str, marked: Collection[Head] = (), highest: float | None = None
) -> "go.Figure":
    """Draw the same as a map, layers by heads: for models with many heads.

    Parameters
    ----------
    attention, measure, marked, highest
        As for :func:`heads_by_layer`; marked heads have a frame, `highest` is the darkest shade.
    """
    ds, words = _measured(attention, measure)
    value = ds[measure].values.T
    layers, heads = ds["layer"].values, ds["head"].values
    top = float(np.nanmax(value))
    hover = [
        [
            "" if math.isnan(v) else f"layer {a}, head {h}: <b>{estimate(v)}</b>{_unit(words)}{between(lo, hi, v)}"
            for a, v, lo, hi in zip(layers, *line, strict=True)
        ]
        for h, *line in zip(heads, value, ds[f"{measure}_low"].values.T, ds[f"{measure}_high"].values.T, strict=True)
    ]
    darkest = highest or (words.top if words.top and top > 0.3 * words.top else top or 1.0)
    written = len(layers) <= 6 and len(heads) <= 12
    trace = cells(value, layers, heads, darkest, hover, (lambda v: _short(v, top)) if written else None)
    frames = [
        {
            **{"type": "rect", "x0": a - 0.5, "x1": a + 0.5, "y0": h - 0.5, "y1": h + 0.5},
            "line": {"color": TOWARD, "width": 2},
        }
        for a, h in sorted(marked)
    ]
    return figure(
        [trace],
        height=_height(len(heads)),
        **{**bar_title(words.unit or words.title), "margin": {**_MARGIN, "t": 62}},
        shapes=frames,
        xaxis=layer_axis(layers),
        yaxis={**numbers_axis(heads, 12), "autorange": "reversed", "automargin": False},
    )


def layer_means(attention: xr.Dataset, measure: str) -> xr.Dataset:
    """Return `mean`, `low` and `high` of a statistic over the heads of each layer, and `n_heads`.

    The half-width is the mean of the heads' half-widths: heads are measured on the same cases, and the spread of a mean is at most
    the mean of the spreads, whatever they have in common. So the interval is never too narrow for that.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.layers import layer_means
    >>> dims, ends = ("layer", "head"), {"distance_low": [[0.5, 2.0]], "distance_high": [[1.5, 4.0]]}
    >>> ds = xr.Dataset({k: (dims, v) for k, v in {"distance": [[1.0, 3.0]], **ends}.items()}, coords={"layer": [1]})
    >>> {k: float(v[0]) for k, v in layer_means(ds, "distance").items()}
    {'mean': 2.0, 'low': 1.25, 'high': 2.75, 'n_heads': 2.0}
    """
    value = attention[measure]
    count = value.count("head")
    names = {"mean": measure, "low": f"{measure}_low", "high": f"{measure}_high"}
    found = {}
    for key, name in names.items():
        # A head without an interval leaves its layer's mean without one.
        ends = attention[name] if name in attention else xr.full_like(value, np.nan)
        found[key] = ends.where(value.notnull(), 0.0).sum("head", skipna=False) / count.where(count > 0)
    return xr.Dataset({**found, "n_heads": count.astype(float)})


def _measured(attention: xr.Dataset, measure: str) -> tuple[xr.Dataset, Measure]:
    """The statistic with its ends, (layer, head); ends that are missing are NaN."""
    if measure not in attention or not np.isfinite(attention[measure].values).any():
        raise ArgumentError(f"heads by layer, measure={measure!r}: the result holds no such number of any head.")
    value = attention[measure]
    ends = {n: attention.get(n, xr.full_like(value, np.nan)) for n in (f"{measure}_low", f"{measure}_high")}
    ds = xr.Dataset({measure: value, **ends}).transpose("layer", "head")
    return ds, MEASURES.get(measure, Measure(measure.replace("_", " ")))


def _dots(x: Any, ends: list[Any], hover: Any, colour: str, heads: int) -> dict[str, Any]:
    value, low, high = ends
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x.astype(np.float32),
        "y": value,
        "error_y": whiskers(value, low, high, colour, 1.2),
        "marker": {"size": 7 if heads <= 12 else 5, "color": colour},
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def whiskers(value: Any, low: Any, high: Any, colour: str, thickness: float) -> dict[str, Any]:
    """Error bars from ends; none where these are NaN."""
    above, below = np.nan_to_num(high - value), np.nan_to_num(value - low)
    return {"type": "data", "array": above, "arrayminus": below, "color": colour, "thickness": thickness, "width": 0}


def _means(ds: xr.Dataset, measure: str, words: Measure) -> dict[str, Any]:
    means = layer_means(ds, measure).dropna("layer", subset=["mean"])
    hover = [
        f"layer {layer}, mean of {int(n)} head{'s' if n > 1 else ''}: <b>{estimate(v)}</b>{_unit(words)}{between(a, b, v)}"
        for layer, n, v, a, b in zip(
            means["layer"].values, *(means[k].values for k in ("n_heads", "mean", "low", "high")), strict=True
        )
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": means["layer"].values,
        "y": means["mean"].values,
        "line": {"color": INK, "width": 2},
        "marker": {"symbol": "line-ew", "size": 16, "line": {"width": 2.5, "color": INK}},
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _reference(reference: tuple[float, str] | None) -> list[dict[str, Any]]:
    if reference is None:
        return []
    line = {"color": MUTED, "width": 1.2, "dash": "dot"}
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": reference[0], "y1": reference[0], "line": line}]


def _reference_words(reference: tuple[float, str] | None) -> list[dict[str, Any]]:
    if reference is None:
        return []
    place = {"xref": "paper", "x": 0, "xanchor": "left", "y": reference[0], "yanchor": "top", "showarrow": False}
    return [{**place, "text": f"{reference[1]}: {significant(reference[0])}", "font": {"size": 11, "color": MUTED}}]


def _spread(heads: int) -> NDArray[np.float64]:
    """Heads side by side within their layer's column, the same place in every layer."""
    return np.zeros(1) if heads == 1 else np.linspace(-0.32, 0.32, heads)


def cells(
    value: NDArray[np.float64],
    x: Any,
    y: Any,
    highest: float,
    hover: list[list[str]],
    written: Callable[[float], str] | None,
) -> dict[str, Any]:
    """Return a map of `value` (y, x) from 0, or what is less, to `highest`, blank where it is NaN; `written` says what its cells say."""
    trace = {
        "type": "heatmap",
        "z": value.astype(np.float32),
        "x": x,
        "y": y,
        "zmin": min(0.0, float(np.nanmin(value))),
        "zmax": highest,
        "colorscale": SEQUENTIAL,
        "xgap": 1,
        "ygap": 1,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorbar": colourbar(),
    }
    if written is not None:
        words = [["" if math.isnan(v) else written(v) for v in line] for line in value]
        trace |= {"text": words, "texttemplate": "%{text}", "textfont": {"size": 11}}
    return trace


def layer_axis(layers: Any) -> dict[str, Any]:
    """The axis that panels of layers share."""
    return {**numbers_axis(layers, 13), "title": {"text": "layer"}}


def numbers_axis(values: Any, most: int) -> dict[str, Any]:
    """An axis of whole numbers, of which at most so many are written."""
    shown = values[:: max(1, math.ceil(len(values) / most))]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [str(v) for v in shown],
        "range": [float(min(values)) - 0.5, float(max(values)) + 0.5],
        "showgrid": False,
        "zeroline": False,
        "tickangle": 0,
    }


def _height(heads: int) -> int:
    return max(270, 110 + (20 if heads <= 12 else 12) * heads)


def _unit(words: Measure) -> str:
    return f" {words.unit}" if words.unit else ""


def between(low: float, high: float, value: float) -> str:
    """An interval in brackets, with as many decimals as its value deserves; nothing where there is none."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    decimals = _decimals(value)
    return f" [{number(low, decimals)}, {number(high, decimals)}]"


def estimate(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a number with three significant digits, and its interval with as many decimals.

    Examples
    --------
    >>> from oplens.figures.layers import estimate
    >>> estimate(11.62, 11.3, 12.04), estimate(0.5), estimate(0.0917, 0.0881, 0.0953)
    ('11.6 [11.3, 12.0]', '0.500', '0.0917 [0.0881, 0.0953]')
    """
    return number(value, _decimals(value)) + between(low, high, value)


def _decimals(value: float) -> int:
    if not math.isfinite(value) or value == 0:
        return 2
    return max(0, 2 - math.floor(math.log10(float(f"{abs(value):.2e}"))))


def _short(value: float, largest: float) -> str:
    return cell(value, largest) if largest < 10 else f"{value:.0f}" if largest >= 100 else f"{value:.1f}"
