"""What flips a decision, and what a part is worth: changes on the signal, their sizes, and predictions against the running model."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.style import AWAY, INK, LEGEND, MUTED, NEUTRAL, RULE, TOWARD, cell, figure, significant, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 200  # columns of a drawn signal; each keeps its smallest and largest value
MARKERS = 4000
_LEGEND = {**LEGEND, "itemwidth": 30}


def steering_overlay(steering: xr.Dataset, case: int, channels: int = 4) -> "go.Figure":
    """Draw a case as it is and as changed, and the change alone, magnified: the channels that hold most of the change.

    Parameters
    ----------
    steering
        What `op.steer` returns, or the group `/what_if_cases`: with `delta` and `signal`.
    case
        Value of the coordinate `case`.
    channels
        At most this many.
    """
    if not {"delta", "signal"} <= set(steering.data_vars):
        raise ArgumentError(
            "steering_overlay: the result holds no signals; give what op.steer returns, or the group /what_if_cases."
        )
    row = steering.isel(case=_position(steering, case))
    steps = int(row["n_steps"])
    order = ("channel", "time")
    signal, delta = (row[name].transpose(*order).values[:, :steps].astype(float) for name in ("signal", "delta"))
    keep = np.sort(np.argsort(-row["channel_energy"].values, kind="stable")[:channels])
    centred = signal - signal.mean(1, keepdims=True)
    step = float(np.quantile(np.ptp(centred[keep], axis=1), 0.75)) or 1.0
    factor = _factor(step / 2 / (float(np.ptp(delta[keep], axis=1).max()) or step))
    time = row["time"].values[:steps]
    data, labels = [], []
    for place, k in enumerate(keep):
        for values, colour, width, at in (
            (centred[k], INK, 1.0, 2 * place),
            (centred[k] + delta[k], TOWARD, 1.0, 2 * place),
            (factor * delta[k], TOWARD, 1.4, 2 * place + 1),
        ):
            data.append(_line(time, values / step - at * 0.75, colour, width))
        labels += [text(row["channel"].values[k], 12), "change" if factor == 1 else f"change × {factor:g}"]
    return figure(
        data,
        height=108 + 46 * len(keep) * 2,
        margin={"l": 8, "r": 12, "t": 58, "b": 8},
        title=_said(row),
        xaxis={"title": {"text": _time_words(steering)}, "showgrid": False, "zeroline": False},
        yaxis={
            "tickmode": "array",
            "tickvals": [-0.75 * k for k in range(len(labels))],
            "ticktext": labels,
            "showgrid": False,
            "zeroline": False,
            "range": [-0.75 * len(labels) + 0.1, 0.75],
            "title": {"text": ""},
            "tickfont": {"size": 11},
        },
    )


def predicted_against_achieved(steering: xr.Dataset) -> "go.Figure":
    """Draw how far each change moves the margin: as the operator predicts, against the running model.

    Open dots: the operator's own change; full dots: the change after refinement on the running model. On the diagonal both agree.

    Parameters
    ----------
    steering
        What `op.steer` returns, or the group `/what_if`.
    """
    start = steering["start_target"].values
    pairs = (
        ("the operator's own change", "first_predicted_target", "first_achieved_target", "circle-open", AWAY),
        ("refined on the model", "predicted_target", "achieved_target", "circle", TOWARD),
    )
    refined = str(steering.attrs.get("refined", "")) != "no"
    data: list[dict[str, Any]] = []
    ends = [0.0]
    for name, predicted, achieved, symbol, colour in pairs if refined else pairs[:1]:
        x, y = steering[predicted].values - start, steering[achieved].values - start
        ends += [float(x.min()), float(x.max()), float(y.min()), float(y.max())]
        data.append(_dots(name, x, y, symbol, colour, [f"case {c}" for c in steering["case"].values]))
    return _against(data, ends, "predicted change of the margin (logit)", "achieved by the running model (logit)")


def change_sizes(steering: xr.Dataset) -> "go.Figure":
    """Draw the norm of every case's change, smallest first, above the certified norm below which none can do it.

    Parameters
    ----------
    steering
        What `op.steer` returns, or the group `/what_if`.
    """
    reached = steering["reached"].values.astype(bool) & (steering["norm"].values > 0)
    rows = np.flatnonzero(reached)
    if not rows.size:
        raise ArgumentError("change_sizes: no change reaches what is wanted, so there is no size to draw.")
    rows = rows[np.argsort(steering["norm"].values[rows], kind="stable")]
    norm = steering["norm"].values[rows]
    labels = [f"case {c}: {significant(n)}" for c, n in zip(steering["case"].values[rows], norm, strict=True)]
    place = np.arange(1, len(rows) + 1, dtype=np.float32)
    data: list[dict[str, Any]] = []
    if "norm_lower_bound" in steering:
        bound = steering["norm_lower_bound"].values[rows]
        bars = np.full((len(rows), 3), np.nan)
        bars[:, 0], bars[:, 1] = bound, norm
        across = np.repeat(place, 3).reshape(-1, 3)
        across[:, 2] = np.nan
        line = {"color": RULE, "width": 1.5}
        data.append({**_line_of(across.ravel(), bars.ravel(), line), "showlegend": False, "hoverinfo": "skip"})
        data.append(_dots("certified: no smaller change does", place, bound, "line-ew-open", INK, labels))
    data.append(_dots("found", place, norm, "circle", TOWARD, labels))
    return figure(
        data,
        height=340,
        showlegend=len(data) > 1,
        legend=_LEGEND,
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
        xaxis={"title": {"text": "cases, smallest change first"}, "showgrid": False, "zeroline": False, "nticks": 6},
        yaxis={
            "title": {"text": f"norm of the change ({text(steering['norm'].attrs.get('units', ''), 22)})"},
            "range": [0, 1.06 * float(norm.max())],
        },
    )


def ablation_scatter(ablation: xr.Dataset) -> "go.Figure":
    """Draw how taking a part out changes the explained number: predicted, against the model run without the part; a dot per case and part.

    Open dots: minus the part's share. Full dots: the operator cut at its highest order, run without the part (plain architecture).

    Parameters
    ----------
    ablation
        What `op.ablate` returns, or the group `/ablation`.
    """
    actual = ablation["actual_change"]
    dims = actual.dims
    names = [f"{m}, case {c}" for c in ablation["case"].values for m in ablation["member"].values]
    if "class" in dims:
        names = [f"{name}, {k}" for name in names for k in ablation["class"].values]
        dims = ("case", "rank", "class")
    y = actual.transpose(*dims).values.ravel()
    stride = -(-y.size // MARKERS)
    series = [("minus its share", ablation["share_change"], "circle-open", AWAY)]
    if "predicted_change" in ablation:
        last = ablation["predicted_change"].isel(order=-1)
        order = int(ablation["order"].values[-1])
        series.append((f"the operator cut at order {order}", last, "circle", TOWARD))
    data, ends = [], [0.0, float(y.min()), float(y.max())]
    for name, values, symbol, colour in series:
        x = values.transpose(*dims).values.ravel()
        ends += [float(x.min()), float(x.max())]
        data.append(_dots(name, x[::stride], y[::stride], symbol, colour, names[::stride], 5))
    return _against(data, ends, "predicted change (logit)", "the model without the part (logit)")


def _against(data: list[dict[str, Any]], ends: list[float], across: str, up: str) -> "go.Figure":
    """A square of predictions against what happened, with the diagonal on which both agree."""
    low, high = min(ends), max(ends)
    pad = 0.05 * ((high - low) or 1.0)
    span = [low - pad, high + pad]
    diagonal = {"type": "line", "x0": span[0], "x1": span[1], "y0": span[0], "y1": span[1], "layer": "below"}
    return figure(
        data,
        height=420,
        showlegend=len(data) > 1,
        legend=_LEGEND,
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
        shapes=[{**diagonal, "line": {"color": NEUTRAL, "width": 1, "dash": "dot"}}],
        xaxis={"title": {"text": across}, "range": span, "nticks": 6},
        yaxis={"title": {"text": up}, "range": span, "nticks": 6},
    )


def _dots(
    name: str, x: NDArray[Any], y: NDArray[Any], symbol: str, colour: str, labels: list[str], size: int = 7
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": np.asarray(x, dtype=np.float32),
        "y": np.asarray(y, dtype=np.float32),
        "marker": {"size": size, "symbol": symbol, "color": colour, "line": {"width": 1.2, "color": colour}},
        "text": [text(label, 60) for label in labels],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }


def _line(time: NDArray[Any], values: NDArray[Any], colour: str, width: float) -> dict[str, Any]:
    x, y = _drawn(time, values)
    return {**_line_of(x, y, {"width": width, "color": colour}), "hoverinfo": "skip"}


def _line_of(x: NDArray[Any], y: NDArray[Any], line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.asarray(x, dtype=np.float32),
        "y": np.asarray(y, dtype=np.float32),
        "line": line,
    }


def _drawn(time: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """As many points as a picture has room for, peaks kept."""
    if values.size <= 2 * POINTS:
        return time, values
    edges = np.linspace(0, values.size, POINTS + 1).astype(int)
    picked = [
        sorted({a + int(values[a:b].argmin()), a + int(values[a:b].argmax())}) for a, b in pairwise(edges.tolist())
    ]
    index = np.concatenate(picked)
    return time[index], values[index]


def _factor(value: float) -> float:
    """1, 2, 5, 10, ...: the largest of these that is no larger than `value`, at least 1."""
    if not np.isfinite(value) or value < 1:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * max(digit for digit in (1, 2, 5) if digit * power <= value * (1 + 1e-9)))


def _said(row: xr.Dataset) -> dict[str, Any]:
    """The numbers of one case as a title in two short lines, for a phone."""
    start, predicted, achieved = (float(row[name]) for name in ("start_target", "predicted_target", "achieved_target"))
    largest = max(abs(start), abs(predicted), abs(achieved))
    before, foreseen, after = (cell(value, largest, signed=True) for value in (start, predicted, achieved))
    first = f"{text(row['to'].values, 14)} over {text(row['against'].values, 14)}: {before} → {after}"
    second = f"the operator predicts {foreseen} · norm {significant(float(row['norm']))}"
    return {
        "text": f"{first}<br>{second}",
        "font": {"size": 12, "color": MUTED},
        "x": 0,
        "xanchor": "left",
        "xref": "container",
        "y": 1.0,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 18, "l": 8},
        "automargin": False,
    }


def _time_words(steering: xr.Dataset) -> str:
    return "time (s)" if str(steering["time"].attrs.get("units", "")) == "s" else "time (steps)"


def _position(dataset: xr.Dataset, case: int) -> int:
    found = np.flatnonzero(dataset["case"].values == case)
    if not found.size:
        raise ArgumentError(f"case={case}: this result does not hold it; it holds {dataset['case'].values[:5]} ... .")
    return int(found[0])
