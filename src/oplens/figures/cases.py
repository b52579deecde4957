"""Single cases: the signal as recorded, and the sum that decides it, term by term."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.contrast import binned_waves, direction, part_labels, table_dimensions
from oplens.figures.style import AWAY, INK, MUTED, NEUTRAL, TOWARD, cell, figure, number, significant, text, ticks
from oplens.figures.waves import layer_lines

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 400


def signals(inputs: xr.Dataset, case: int, channels: int = 8) -> "go.Figure":
    """Draw a chosen case's raw channels one above the other, all to one scale, each around its own mean.

    Long cases keep the smallest and the largest value of every stretch, so that no peak is lost.

    Parameters
    ----------
    inputs
        The group `/inputs`.
    case
        Value of the coordinate `case` (index in the explained set).
    channels
        At most this many, those of largest spread.
    """
    signal = inputs["signal"].isel(case=_position(inputs, case)).transpose("channel", "time").values
    valid = np.isfinite(signal).all(0)
    signal = signal[:, valid]
    time = (inputs["time"].values if "time" in inputs else np.arange(valid.size))[valid]
    names = part_labels(inputs, "channel")
    keep = np.arange(len(names))
    if len(names) > channels:
        keep = np.sort(np.argsort(-signal.std(1))[:channels])
    centred = signal[keep] - signal[keep].mean(1, keepdims=True)
    step = float(np.quantile(np.ptp(centred, axis=1), 0.75)) or 1.0
    data = []
    for row, values in enumerate(centred):
        x, y = _envelope(time, values)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x.astype(np.float32),
                "y": (y / step - row).astype(np.float32),
                "line": {"width": 1, "color": INK},
                "hoverinfo": "skip",
            }
        )
    stated = str(inputs["time"].attrs.get("units", "")) if "time" in inputs else "steps"
    in_seconds = stated == "s" if stated else time.size > 1 and not float(time[1] - time[0]).is_integer()
    return figure(
        data,
        height=80 + 26 * len(keep),
        xaxis={
            "title": {
                "text": ("time (s)" if in_seconds else "time (steps)")
                + f" · rows {significant(step)}{_units(inputs)} apart"
            },
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "tickmode": "array",
            "tickvals": [-k for k in range(len(keep))],
            "ticktext": [text(names[k], 12) for k in keep],
            "showgrid": False,
            "zeroline": False,
            "range": [-len(keep) + 0.2, 0.8],
            "title": {"text": ""},
            "tickfont": {"size": 11},
        },
    )


def _units(inputs: xr.Dataset) -> str:
    """Units of the signal behind a number; files of unknown units say "as in the data", which is no unit."""
    units = str(inputs["signal"].attrs.get("units", ""))
    return "" if units in ("", "as in the data") else f" {text(units, 10)}"


def waterfall(partition: xr.Dataset, case: int, toward: str | None = None, top: int = 6) -> "go.Figure":
    """Draw how the terms of one decision add up to the explained number.

    From above: the constant (order 0), lines that are no part (bias, skip, ...), the `top` largest parts summed over
    orders, all other parts in one bar, the remainder of the truncation, and the target.

    Parameters
    ----------
    partition
        A partition as in docs/schema.md (input parts, windows, waves, or the layer account).
    case
        Value of the coordinate `case`.
    toward
        The class whose logit is explained, for class-centred targets.
    """
    side = direction(partition, toward)
    single = partition.isel(case=slice(_position(partition, case), None)).isel(case=slice(0, 1))
    lines = terms(single, side.index, top)
    target = _scalar(single["target"], side.index)
    values = np.array([value for _, value, _ in lines])
    starts = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    ends = starts + values
    labels = [label for label, _, _ in lines] + ["= margin" if side.index is None else "= centred logit"]
    colours = [(TOWARD if value > 0 else AWAY) if part else NEUTRAL for _, value, part in lines]
    largest = float(np.abs([*values, target]).max())
    low, high = float(min(0.0, target, ends.min())), float(max(0.0, target, ends.max()))
    pad = 0.22 * ((high - low) or 1.0)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "base": np.append(starts, 0.0).astype(np.float32),
            "x": np.append(values, target).astype(np.float32),
            "y": np.arange(len(labels)),
            "marker": {"color": [*colours, INK]},
            "customdata": [
                f"{text(a, 60)}: {number(v, 3, True)}" for a, v in zip(labels, [*values, target], strict=True)
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
            "width": 0.68,
        },
        {
            "type": "scatter",
            "mode": "text",
            "x": np.append(np.maximum(starts, ends), max(target, 0.0)).astype(np.float32),
            "y": np.arange(len(labels)),
            "text": [" " + cell(v, largest, signed=True) for v in [*values, target]],
            "textposition": "middle right",
            "textfont": {"size": 11, "color": MUTED},
            "hoverinfo": "skip",
            "cliponaxis": False,
        },
    ]
    joints = [
        {
            "type": "line",
            "x0": e,
            "x1": e,
            "y0": k,
            "y1": k + 1,
            "line": {"color": NEUTRAL, "width": 1},
            "layer": "below",
        }
        for k, e in enumerate(ends.tolist())
    ]
    return figure(
        data,
        height=64 + 23 * len(labels),
        shapes=joints,
        xaxis={"title": {"text": "logit units"}, "range": [low - 0.06 * (high - low or 1.0), high + pad], "nticks": 5},
        yaxis=ticks(
            labels,
            32 if len(_part_dimensions(partition)) > 2 else 24,
            autorange="reversed",
            title={"text": ""},
            tickfont={"size": 11},
        ),
    )


def terms(partition: xr.Dataset, class_index: int | None, top: int) -> list[tuple[str, float, bool]]:
    """Return the lines (words, value in logit units, whether it is a part) of a Dataset with one case; they add up to the target."""
    if "layer_share" in partition:
        lines = [
            (name, float(v.sum()), name.endswith("waves")) for name, v in layer_lines(partition, class_index).items()
        ]
        return [*lines, *_gap(partition, lines, class_index)]
    truncated = "share" in partition
    constant, share, sources = (
        ("order_0", "share", "source_share") if truncated else ("full_constant", "full_share", "source_full_share")
    )
    lines = []
    if constant in partition:
        lines.append(("order 0" if truncated else "constant", _scalar(partition[constant], class_index), False))
    if sources in partition:
        for label in partition["source"].values:
            value = _scalar(partition[sources].sel(source=label), class_index)
            if value != 0:
                lines.append((str(label), value, False))
    names, values = _flat_parts(partition, share, class_index)
    largest = np.argsort(-np.abs(values))[:top]
    lines += [(names[k], float(values[k]), True) for k in largest]
    if len(names) > top:
        lines.append((f"other {len(names) - len(largest)} parts", float(np.delete(values, largest).sum()), True))
    if truncated:
        lines.append(("remainder", _scalar(partition["remainder"], class_index), False))
    return [*lines, *_gap(partition, lines, class_index)]


def _part_dimensions(partition: xr.Dataset) -> list[str]:
    return [name for name in table_dimensions(partition) if name != "feature"]


def _gap(
    partition: xr.Dataset, lines: list[tuple[str, float, bool]], class_index: int | None
) -> list[tuple[str, float, bool]]:
    """Return what the lines leave of the target as a line of its own, unless it is rounding: never hide it in a bar."""
    gap = _scalar(partition["target"], class_index) - sum(value for _, value, _ in lines)
    scale = sum(abs(value) for _, value, _ in lines) or 1.0
    return [("NOT EXPLAINED", gap, False)] if abs(gap) > 1e-5 * scale else []


def _flat_parts(partition: xr.Dataset, name: str, class_index: int | None) -> tuple[list[str], Any]:
    values = partition[name]
    if "class" in values.dims:
        values = values.isel({"class": class_index or 0})
    values = values.sum("order") if "order" in values.dims else values
    labels: dict[str, list[str]] = {}
    if "wave" in values.dims and "frequency" in partition:
        values, labels["wave_frequency"] = binned_waves(values, partition["frequency"])
        units = "Hz" if str(partition["frequency"].attrs.get("units", "")) == "Hz" else "c/step"
        labels["wave_frequency"] = [f"waves {label} {units}" for label in labels["wave_frequency"]]
    dims = [str(d) for d in values.dims if d != "case"]
    names = [""]
    for dimension in dims:
        own = labels.get(dimension) or part_labels(partition, dimension)
        if dimension == "band":
            # Labels are short: that there are no hertz is said wherever bands have an axis.
            units = " Hz" if str(partition["band_low"].attrs.get("units", "")) == "Hz" else ""
            own = [f"{label}{units}" for label in own]
        names = [f"{a} · {b}" if a else b for a in names for b in own]
    return names, values.isel(case=0).transpose(*dims).values.ravel()


def _position(dataset: xr.Dataset, case: int) -> int:
    known = dataset["case"].values if "case" in dataset.coords else np.arange(dataset.sizes["case"])
    found = np.flatnonzero(known == case)
    if not found.size:
        raise ArgumentError(
            f"case={case}: this result does not hold it; it holds {known.size} cases, {known[:5]} ... ."
        )
    return int(found[0])


def _scalar(array: xr.DataArray, class_index: int | None) -> float:
    if "class" in array.dims:
        array = array.isel({"class": class_index or 0})
    return float(array.sum())


def _envelope(time: Any, values: Any) -> tuple[Any, Any]:
    if values.size <= 2 * POINTS:
        return time, values
    edges = np.linspace(0, values.size, POINTS + 1).astype(int)
    picked = []
    for a, b in pairwise(edges.tolist()):
        picked += sorted({a + int(values[a:b].argmin()), a + int(values[a:b].argmax())})
    index = np.array(picked)
    return time[index], values[index]
