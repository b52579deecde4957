"""How much of the model each order is, beside what simple baselines reach."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.style import AWAY, INK, MUTED, NEUTRAL, RULE, TOWARD, figure, text

if TYPE_CHECKING:
    import plotly.graph_objects as go


def accuracy_by_order(summary: xr.Dataset, baselines: xr.Dataset | None = None) -> "go.Figure":
    """Draw the accuracy of the operator cut after each order, of the full model, and of the baselines, one dot each.

    The percentage in brackets is relative to the full model. Open dots: baselines chosen with hindsight, that is with the
    labels they are tested on.

    Parameters
    ----------
    summary
        The group `/summary`, with `accuracy` (order) and `model_accuracy`; without labels, `agreement` (order) is drawn.
    baselines
        The group `/baselines`.
    """
    rows = _rows(summary, baselines)
    if not rows:
        raise ArgumentError("accuracy_by_order: the summary holds neither accuracies nor agreement.")
    values = np.array([row["value"] for row in rows])
    model = next((row["value"] for row in rows if row["kind"] == "model"), None)
    low = max(0.0, float(np.floor((values.min() - 0.06) * 10) / 10))
    tickvals = np.linspace(low, 1.0, 3).tolist()
    return figure(
        [_names(rows, low, model), _dots(rows)],
        height=60 + 50 * len(rows),
        margin={"l": 14, "r": 16, "t": 12, "b": 8},
        shapes=_lines(len(rows), low, model),
        xaxis={
            "range": [low - 0.02 * (1.0 - low), 1.0 + 0.03 * (1.0 - low)],
            "tickvals": tickvals,
            "ticktext": [_percent(v) for v in tickvals],
            "tickangle": 0,
            "ticklabeloverflow": "allow",
            "showgrid": False,
            "zeroline": False,
            "title": {"text": "accuracy" if model is not None else "agreement with the model"},
        },
        yaxis={"visible": False, "range": [len(rows) - 0.4, -0.75]},
    )


def _lines(count: int, low: float, model: float | None) -> list[dict[str, Any]]:
    """A rail for every row, and a dotted line at the model."""
    lines = [
        {"type": "line", "x0": low, "x1": 1.0, "y0": k, "y1": k, "line": {"color": RULE, "width": 2}, "layer": "below"}
        for k in range(count)
    ]
    if model is not None:
        dotted = {"color": NEUTRAL, "width": 1, "dash": "dot"}
        span = {"x0": model, "x1": model, "y0": -0.6, "y1": count - 0.5}
        lines.append({"type": "line", **span, "line": dotted, "layer": "below"})
    return lines


def _names(rows: list[dict[str, Any]], low: float, model: float | None) -> dict[str, Any]:
    """The rows' names above their rails: beside them they would take a phone's width."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": np.full(len(rows), low, dtype=np.float32),
        "y": np.arange(len(rows), dtype=np.float32) - 0.36,
        "text": [
            text(row["label"], 44)
            + (f" · {_percent(row['value'] / model)} of the model" if model and row["kind"] == "order" else "")
            for row in rows
        ],
        "textposition": "middle right",
        "textfont": {"size": 12, "color": MUTED},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _dots(rows: list[dict[str, Any]]) -> dict[str, Any]:
    colours = {"order": TOWARD, "model": INK, "baseline": AWAY, "hindsight": AWAY}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": np.array([row["value"] for row in rows], dtype=np.float32),
        "y": np.arange(len(rows)),
        "marker": {
            "size": 13,
            "color": ["#ffffff" if row["kind"] == "hindsight" else colours[row["kind"]] for row in rows],
            "line": {"width": 2, "color": [colours[row["kind"]] for row in rows]},
        },
        "text": [f"<b>{_percent(row['value'])}</b>" for row in rows],
        "textposition": "bottom center",
        "textfont": {"size": 12},
        "cliponaxis": False,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rows(summary: xr.Dataset, baselines: xr.Dataset | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    name = "accuracy" if "accuracy" in summary else "agreement" if "agreement" in summary else None
    if name:
        for order, value in zip(summary["order"].values, summary[name].values, strict=True):
            words = "order 1" if int(order) == 1 else f"orders 1–{int(order)}"
            rows.append({"label": words, "value": float(value), "kind": "order"})
    model = next(
        (float(d["model_accuracy"]) for d in (summary, baselines) if d is not None and "model_accuracy" in d), None
    )
    if model is not None:
        rows.append({"label": "full model", "value": model, "kind": "model"})
    if baselines is not None and model is not None and "accuracy" in baselines:
        hindsight = baselines["hindsight"].values if "hindsight" in baselines else np.zeros(baselines.sizes["baseline"])
        extra = [
            {"label": str(label), "value": float(value), "kind": "hindsight" if late else "baseline"}
            for label, value, late in zip(
                baselines["baseline"].values, baselines["accuracy"].values, hindsight, strict=True
            )
            if np.isfinite(value)
        ]
        rows += sorted(extra, key=lambda row: -row["value"])
    return rows


def _percent(value: float) -> str:
    return text(f"{100 * value:.0f} %")
