"""What representations are like, layer by layer: how many dimensions they fill, and how alike any two of them are."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.layers import between, cells, estimate, layer_axis, numbers_axis, whiskers
from oplens.figures.style import AWAY, INK, LEGEND_BELOW, NEUTRAL, TOWARD, bar_title, cell, figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Linear dimensions are blue and grey, those from distances orange; what the paper prints is dashed.
_DIMENSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "effective_rank": ("effective rank", {"color": NEUTRAL}),
    "d_int": ("d_int of the paper", {"color": INK, "dash": "dash"}),
    "participation_ratio_corrected": ("participation ratio", {"color": AWAY}),
    "participation_ratio": ("the same, not corrected", {"color": AWAY, "dash": "dot"}),
    "mle": ("MLE", {"color": "#e58a4e", "dash": "dash"}),
    "two_nn_likelihood": ("TwoNN", {"color": TOWARD}),
}
DRAWN = tuple(_DIMENSIONS)
_ENDS = {"two_nn_likelihood": ("two_nn_low", "two_nn_high")}


def dimensions_by_layer(representations: xr.Dataset) -> "go.Figure":
    """Draw every kind of dimension of the representations against the layer, 0 being the embedding; logarithmic.

    Parameters
    ----------
    representations
        The group `/representations`; what of it is missing or NaN is left out. TwoNN is drawn as its likelihood, to which its interval
        belongs; MLE with one standard error.
    """
    layers = representations["layer"].values
    found = {n: v for n, v in _DIMENSIONS.items() if n in representations and _positive(representations[n]).any()}
    if not found:
        raise ArgumentError("dimensions_by_layer: the result holds no dimension of any layer.")
    data = []
    for name, (words, line) in found.items():
        value = np.where(_positive(representations[name]), representations[name].values, np.nan)
        low, high = _dimension_ends(representations, name, value)
        hover = [
            "" if math.isnan(v) else f"{words}, {_place(k)}: <b>{estimate(v)}</b>{between(a, b, v)}"
            for k, v, a, b in zip(layers, value, low, high, strict=True)
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": words,
                "x": layers,
                "y": value,
                "line": {"width": 2, **line},
                "marker": {"size": 6, "color": line["color"]},
                "error_y": whiskers(value, low, high, str(line["color"]), 1.5),
                "customdata": hover,
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    values = np.concatenate([_finite(trace["y"]) for trace in data])
    return figure(
        data,
        height=430,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        showlegend=True,
        legend=LEGEND_BELOW,
        xaxis={**layer_axis(layers), "title": {"text": "after layer (0: the embedding)"}},
        yaxis={**_log_axis(float(values.min()), float(values.max())), "title": {"text": "dimensions"}},
    )


def layer_similarity(similarity: xr.Dataset, measure: str = "cka") -> "go.Figure":
    """Draw how alike the representations after every two layers are, 0 being the embedding.

    Parameters
    ----------
    similarity
        The group `/similarity`: `cka` and `cka_unbiased` over (layer, layer_2).
    measure
        One of the two.
    """
    if measure not in similarity or not np.isfinite(similarity[measure].values).any():
        raise ArgumentError(f"layer_similarity(measure={measure!r}): the result holds no such number.")
    value = similarity[measure].transpose("layer", "layer_2").values
    layers, others = similarity["layer"].values, similarity["layer_2"].values
    hover = [
        [
            "" if math.isnan(v) else f"{_place(a)} and {_place(b)}: <b>{v:.3f}</b>"
            for b, v in zip(others, line, strict=True)
        ]
        for a, line in zip(layers, value, strict=True)
    ]
    trace = cells(value, others, layers, 1.0, hover, (lambda v: cell(v, 1.0)) if len(layers) <= 9 else None)
    title = {"text": "after layer (0: the embedding)"}
    return figure(
        [trace],
        height=430,
        **bar_title("linear CKA" if measure == "cka" else "linear CKA, unbiased"),
        xaxis={**numbers_axis(others, 12), "title": title},
        yaxis={**numbers_axis(layers, 12), "autorange": "reversed", "title": title},
    )


def _log_axis(low: float, high: float) -> dict[str, Any]:
    low, high = low / 1.25, high * 1.25
    wide = math.log10(high / low) > 2.5
    places = [
        n * 10.0**d
        for d in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for n in ((1, 3) if wide else (1, 2, 5))
    ]
    places = [at for at in places if low <= at <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [f"{at:,g}" for at in places],
        "zeroline": False,
    }


def _dimension_ends(ds: xr.Dataset, name: str, value: Any) -> tuple[Any, Any]:
    if name in _ENDS and all(end in ds for end in _ENDS[name]):
        low, high = (ds[end].values for end in _ENDS[name])
        return low, high
    if f"{name}_error" in ds:
        error = ds[f"{name}_error"].values
        return value - error, value + error
    return np.full_like(value, np.nan), np.full_like(value, np.nan)


def _positive(values: xr.DataArray) -> Any:
    """What a logarithmic axis can hold."""
    return np.isfinite(values.values) & (values.values > 0)


def _finite(values: Any) -> Any:
    return values[np.isfinite(values)]


def _place(layer: int) -> str:
    return "embedding" if layer == 0 else f"layer {layer}"
