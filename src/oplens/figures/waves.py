"""Waves by frequency and decay time, and the layer account of deep stacks."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.figures.contrast import difference, direction, frequency_units, magnitude, shares
from oplens.figures.style import (
    DIVERGING,
    MUTED,
    NEUTRAL,
    bar_title,
    colourbar,
    figure,
    number,
    significant,
    text,
    ticks,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LAYER_LINES = {
    "layer_share": "waves",
    "layer_skip_share": "skip",
}
OTHER_LINES = {"residual_share": "encoder's residual stream", "constant": "constants"}


def wave_scatter(
    partition: xr.Dataset, order: str | int | None = None, toward: str | None = None, top: int = 400
) -> "go.Figure":
    """Draw the `top` waves of largest mean absolute share at their frequency and decay time.

    Colour: difference of mean shares between the classes. Area: mean absolute share. Diamonds: aliased waves, drawn at
    their wrapped frequency.
    """
    table = wave_table(partition, order, toward).head(top)
    x, ticks_x = _log_positions(table["frequency"].to_numpy())
    y, ticks_y = _log_positions(table["decay_time"].to_numpy())
    table["difference"] = table["difference"].fillna(0.0)  # one side has no case: nothing to colour by
    reach = float(table["difference"].abs().max()) or 1.0
    largest = float(table["size"].max()) or 1.0
    units = frequency_units(partition)
    time_units = "s" if units == "Hz" else "steps"
    columns = ("name", "frequency", "decay_time", "difference", "size")
    data: list[dict[str, Any]] = []
    for aliased, symbol, kind in ((False, "circle", "wave"), (True, "diamond-tall", "aliased wave")):
        rows = np.flatnonzero(table["aliased"].to_numpy() == aliased)
        if not rows.size:
            continue
        chosen = table.iloc[rows]
        marker: dict[str, Any] = {
            "symbol": symbol,
            "size": (4 + 26 * np.sqrt(chosen["size"].to_numpy() / largest)).astype(np.float32),
            "color": chosen["difference"].to_numpy().astype(np.float32),
            "cmin": -reach,
            "cmax": reach,
            "colorscale": DIVERGING,
            "line": {"width": 1.2 if aliased else 0.7, "color": MUTED},
            "opacity": 0.9,
            "showscale": not data,
        }
        if not data:
            marker["colorbar"] = colourbar()
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "x": x[rows].astype(np.float32),
                "y": y[rows].astype(np.float32),
                "marker": marker,
                "customdata": [
                    f"<b>{name}</b>{' (aliased)' if aliased else ''}<br>{significant(f)} {units}, decays in {significant(t)} "
                    f"{time_units}<br>difference {number(d, 3, signed=True)}, mean size {number(m, 3)}"
                    for name, f, t, d, m in zip(*(chosen[c].tolist() for c in columns), strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return figure(
        data,
        height=460,
        **bar_title("difference of mean shares (logit units)"),
        xaxis={"title": {"text": f"frequency ({units}, logarithmic)"}, "zeroline": False, **ticks_x},
        yaxis={"title": {"text": f"decay time ({time_units}, logarithmic)"}, "zeroline": False, **ticks_y},
    )


def wave_table(partition: xr.Dataset, order: str | int | None = None, toward: str | None = None) -> "pd.DataFrame":
    """Return one row per wave: name, frequency, decay_time, aliased, difference and size of the shares (logit units)."""
    import pandas as pd

    side = direction(partition, toward)
    values = shares(partition, order, side)
    features, waves = np.meshgrid(np.arange(values.sizes["feature"]), np.arange(values.sizes["wave"]), indexing="ij")
    columns: dict[str, Any] = {
        "name": [f"feature {f}, wave {n}" for f, n in zip(features.ravel(), waves.ravel(), strict=True)],
        "frequency": _flat(partition, "frequency", features.shape),
        "decay_time": _flat(partition, "decay_time", features.shape),
        "aliased": _flat(partition, "aliased", features.shape).astype(bool),
        "difference": difference(values, side).transpose("feature", "wave").values.ravel(),
        "size": magnitude(values).transpose("feature", "wave").values.ravel(),
    }
    return pd.DataFrame(columns).sort_values("size", ascending=False, ignore_index=True)


def layer_account(partition: xr.Dataset, measure: str = "magnitude", toward: str | None = None) -> "go.Figure":
    """Draw what each layer of a deep stack contributes: its waves and its skip, and the encoder's residual stream.

    Parameters
    ----------
    partition
        A Dataset with `layer_share`; the account is conditional on gates and norms frozen at each case's values.
    measure
        "magnitude": mean absolute sum of a line's terms; "difference": mean of the line over one class minus the other.
    """
    side = direction(partition, toward)
    lines = layer_lines(partition, side.index)
    labels = list(lines)
    values = [float(magnitude(v) if measure == "magnitude" else difference(v, side)) for v in lines.values()]
    colours = [_layer_colour(label, value, measure) for label, value in zip(labels, values, strict=True)]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": np.array(values, dtype=np.float32),
        "y": np.arange(len(labels)),
        "marker": {"color": colours},
        "text": [number(v, signed=measure == "difference") for v in values],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{text}<extra></extra>",
    }
    low, high = min(0.0, *values), max(0.0, *values)
    pad = 0.3 * ((high - low) or 1.0)  # a phone leaves a label of five characters a quarter of the axis
    return figure(
        [trace],
        height=90 + 26 * len(labels),
        bargap=0.35,
        xaxis={"title": {"text": "logit units"}, "range": [low - (pad if low < 0 else 0), high + pad]},
        yaxis=ticks(labels, autorange="reversed", title={"text": ""}),
    )


def layer_lines(partition: xr.Dataset, class_index: int | None = None) -> dict[str, xr.DataArray]:
    """Return the lines (case,) of the layer account, first the residual stream, then layer by layer, then constants."""
    keep = ("case", "layer")
    arrays = {}
    for name in (*LAYER_LINES, *OTHER_LINES):
        if name in partition:
            array = partition[name]
            array = array.isel({"class": class_index or 0}) if "class" in array.dims else array
            arrays[name] = array.sum([d for d in array.dims if d not in keep])
    lines = {OTHER_LINES["residual_share"]: arrays["residual_share"]} if "residual_share" in arrays else {}
    for position in range(partition.sizes["layer"]):
        for name, words in LAYER_LINES.items():
            if name in arrays:
                lines[f"layer {position + 1}: {words}"] = arrays[name].isel(layer=position)
    if "constant" in arrays:
        constant = arrays["constant"]
        lines[OTHER_LINES["constant"]] = constant.sum("layer") if "layer" in constant.dims else constant
    return lines


def _flat(partition: xr.Dataset, name: str, shape: tuple[int, ...]) -> Any:
    if name not in partition:
        return np.zeros(int(np.prod(shape)))
    return partition[name].transpose("feature", "wave").values.ravel()


def _layer_colour(label: str, value: float, measure: str) -> str:
    if measure == "difference":
        return DIVERGING[-1][1] if value > 0 else DIVERGING[0][1]  # type: ignore[return-value]
    return "#333c47" if label.endswith("waves") else NEUTRAL


def _log_positions(values: Any) -> tuple[Any, dict[str, Any]]:
    """Return log10 positions and an axis with round ticks; zero sits half a decade below the smallest positive value."""
    finite = values[np.isfinite(values)]
    # A frequency that is zero but for rounding would stretch the axis over ten empty decades.
    floor = 1e-5 * float(np.max(finite, initial=0.0))
    usable = np.isfinite(values) & (values > floor)
    if not usable.any():
        return np.zeros(len(values)), {"tickvals": [0.0], "ticktext": ["0"]}
    logs = np.full(len(values), np.nan)
    logs[usable] = np.log10(values[usable])
    low, high = float(np.nanmin(logs)), float(np.nanmax(logs))
    zero, infinite = low - 0.35, high + 0.35
    logs[~usable] = np.where(np.isinf(values[~usable]), infinite, zero)
    wide = high - low > 2.2
    candidates = [
        (m, e) for e in range(int(np.floor(low)), int(np.ceil(high)) + 1) for m in ((1,) if wide else (1, 2, 5))
    ]
    pairs = [(np.log10(m) + e, f"{m * 10.0**e:g}") for m, e in candidates]
    pairs = [(p, label) for p, label in pairs if low - 0.05 <= p <= high + 0.05]
    if not np.all(usable):
        pairs += [(zero, "0")] if (values <= floor).any() else []
        pairs += [(infinite, "∞")] if np.isinf(values).any() else []
    pad = 0.08 * max(high - low, 0.5)
    span = [float(np.nanmin(logs)) - pad, float(np.nanmax(logs)) + pad]
    return logs, {"tickvals": [p for p, _ in pairs], "ticktext": [text(label) for _, label in pairs], "range": span}
