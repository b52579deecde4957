"""How well each layer predicts recorded neurons, against what noise allows and what chance gives."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.layers import between, estimate, layer_axis, whiskers
from oplens.figures.style import AWAY, INK, LEGEND_BELOW, MUTED, NEUTRAL, TOWARD, figure, text

if TYPE_CHECKING:
    import plotly.graph_objects as go


def predictivity_by_layer(neural: xr.Dataset) -> "go.Figure":
    """Draw the correlation of held-out predictions with responses against the layer: every neuron, their mean, ceiling and chance.

    Parameters
    ----------
    neural
        The group `/neural`: `predictivity` (layer, neuron), and where known `noise_ceiling` (neuron), `null_mean` and `p_value` (layer).
        Layers above chance (p < 0.05, corrected for the number of layers where the file does) have a filled mean. With
        `mean_predictivity_low` and `_high` means have whiskers, and with `difference_to_best_high` those that may be the best are diamonds.
        Layer 0 is the embedding.

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
    reach = [neural[name].values for name in ("mean_predictivity_low", "mean_predictivity_high") if name in neural]
    drawn = np.concatenate([*(np.asarray(trace["y"], dtype=float) for trace in data), *reach])
    top, bottom = float(np.nanmax(drawn)), min(0.0, float(np.nanmin(drawn)))
    return figure(
        data,
        height=400,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        showlegend=True,
        legend=LEGEND_BELOW,
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
    layers, neurons = r["layer"].values, np.arange(r.sizes["neuron"])
    names = next((r[name].values for name in ("label", "neuron") if name in r.coords), neurons)
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
            f"layer {layers[a]}, neuron {text(names[b], 24)}: <b>{estimate(r.values[a, b])}</b>"
            for a, b in zip(row, column, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _means(neural: xr.Dataset, r: xr.DataArray) -> dict[str, Any]:
    layers, mean = r["layer"].values, r.mean("neuron").values
    unknown = xr.full_like(r.mean("neuron"), np.nan)
    p = neural.get("p_value_corrected", neural.get("p_value", unknown)).values
    middle = neural.get("median_normalised_predictivity", unknown).values
    low, high = (neural.get(f"mean_predictivity_{end}", unknown).values for end in ("low", "high"))
    apart = [neural.get(f"difference_to_best{end}", unknown).values for end in ("", "_low", "_high")]
    hover = [
        f"layer {k}, mean: <b>{estimate(v)}</b>{between(a, b, v)}"
        + ("" if math.isnan(d[0]) else f"<br>less than the best: {estimate(*d)}")
        + ("" if math.isnan(m) else f"<br>of its ceiling, median: {estimate(m)}")
        + ("" if math.isnan(q) else f"<br>p = {estimate(q)}")
        for k, v, a, b, m, q, *d in zip(layers, mean, low, high, middle, p, *apart, strict=True)
    ]
    signs = ["filled: p < 0.05"] * bool(np.isfinite(p).any()) + ["diamond: may be best"] * bool(
        np.isfinite(apart[2]).any()
    )
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"mean ({', '.join(signs)})" if signs else "mean",
        "x": layers,
        "y": mean,
        "error_y": whiskers(mean, low, high, INK, 1.6),
        "line": {"color": INK, "width": 2},
        "marker": {
            "size": [12 if end >= 0 else 9 for end in apart[2]],
            "symbol": ["diamond" if end >= 0 else "circle" for end in apart[2]],
            "color": [TOWARD if q < 0.05 else "#ffffff" for q in p],
            "line": {"width": 2, "color": INK},
            "opacity": 1,  # sizes in a list would make it .7
        },
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
