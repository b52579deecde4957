"""How well each layer predicts recorded neurons, against what noise allows and what chance gives."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.layers import estimate, layer_axis
from oplens.figures.style import AWAY, INK, MUTED, NEUTRAL, TOWARD, figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def predictivity_by_layer(neural: xr.Dataset) -> "go.Figure":
    """Draw the correlation of held-out predictions with responses against the layer: every neuron, their mean, ceiling and chance.

    Parameters
    ----------
    neural
        The group `/neural`: `predictivity` (layer, neuron), and where known `noise_ceiling` (neuron), `null_mean` and `p_value` (layer).
        Layers above chance (p < 0.05, corrected for the number of layers where the file does) have a filled mean. Layer 0 is the embedding.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.neural import predictivity_by_layer
    >>> r = (("layer", "neuron"), [[0.1, 0.3], [0.2, 0.6]])
    >>> ds = xr.Dataset({"predictivity": r, "noise_ceiling": ("neuron", [0.5, 0.9])}, coords={"layer": [0, 1]})
    >>> [(trace.name, float(trace.y[-1])) for trace in predictivity_by_layer(ds).data[:2]]
    [('mean noise ceiling', 0.7), ('one neuron', 0.6)]
    """
    if "predictivity" not in neural or not np.isfinite(neural["predictivity"].values).any():
        raise ArgumentError("predictivity_by_layer: the result holds no predictivity of any neuron.")
    r = neural["predictivity"].transpose("layer", "neuron")
    layers = r["layer"].values
    ends = np.array([float(min(layers)) - 0.5, float(max(layers)) + 0.5])
    data: list[dict[str, Any]] = []
    if "noise_ceiling" in neural and np.isfinite(neural["noise_ceiling"].values).any():
        ceiling = float(neural["noise_ceiling"].mean())
        words = f"mean noise ceiling: <b>{estimate(ceiling)}</b>"
        data.append(_line("mean noise ceiling", ends, np.full(2, ceiling), words, {"color": AWAY, "dash": "dash"}))
    data.append(_neurons(r))
    if "null_mean" in neural:
        null = neural["null_mean"].values
        hover = [f"layer {k}, responses permuted: <b>{estimate(v)}</b>" for k, v in zip(layers, null, strict=True)]
        data.append(_line("permuted responses", layers, null, hover, {"color": MUTED, "dash": "dot"}))
    data.append(_means(neural, r))
    drawn = np.concatenate([np.asarray(trace["y"], dtype=float) for trace in data])
    top, bottom = float(np.nanmax(drawn)), min(0.0, float(np.nanmin(drawn)))
    return figure(
        data,
        height=400,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        showlegend=True,
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "font": {"size": 12}, "itemwidth": 30},
        xaxis={**layer_axis(layers), "title": {"text": "layer (0: the embedding)"}},
        yaxis={"range": [1.06 * bottom, 1.06 * top or 1.0], "nticks": 6, "title": {"text": "correlation"}},
    )


def _line(name: str, x: Any, y: NDArray[np.float64], hover: Any, line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"width": 1.8, **line},
        "customdata": [hover] * len(y) if isinstance(hover, str) else hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _neurons(r: xr.DataArray) -> dict[str, Any]:
    layers, neurons = r["layer"].values, r["neuron"].values if "neuron" in r.coords else np.arange(r.sizes["neuron"])
    row, column = np.nonzero(np.isfinite(r.values))
    places = np.linspace(-0.3, 0.3, len(neurons)) if len(neurons) > 1 else np.zeros(1)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "one neuron",
        "x": (layers[row] + places[column]).astype(np.float32),
        "y": r.values[row, column],
        "marker": {"size": 5, "color": NEUTRAL, "opacity": 0.7},
        "customdata": [
            f"layer {layers[a]}, neuron {neurons[b]}: <b>{estimate(r.values[a, b])}</b>"
            for a, b in zip(row, column, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _means(neural: xr.Dataset, r: xr.DataArray) -> dict[str, Any]:
    layers, mean = r["layer"].values, r.mean("neuron").values
    known = next((name for name in ("p_value_corrected", "p_value") if name in neural), None)
    p = neural[known].values if known else np.full(len(layers), np.nan)
    middle = neural.get("median_normalised_predictivity", xr.full_like(r.mean("neuron"), np.nan)).values
    hover = [
        f"layer {k}, mean: <b>{estimate(v)}</b>"
        + ("" if math.isnan(m) else f"<br>of its ceiling, median: {estimate(m)}")
        + ("" if math.isnan(q) else f"<br>p = {estimate(q)}")
        for k, v, m, q in zip(layers, mean, middle, p, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "mean" if np.isnan(p).all() else "mean (filled: p < 0.05)",
        "x": layers,
        "y": mean,
        "line": {"color": INK, "width": 2},
        "marker": {
            "size": 9,
            "color": [TOWARD if q < 0.05 else "#ffffff" for q in p],
            "line": {"width": 2, "color": INK},
        },
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
