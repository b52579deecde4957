"""A model along the ray from a baseline to a case: how fast an expansion closes in, its course, and where power series end."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.style import AWAY, INK, LEGEND, MUTED, NEUTRAL, TOWARD, figure, number, significant, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

FLOOR = 1e-17  # a logarithmic axis has no zero, and no miss below rounding says anything
POINTS = 121  # of a smooth course


def ray_error(ray: xr.Dataset) -> "go.Figure":
    """Draw how far the expansion cut after each order misses the model anywhere along the ray: median, middle 80 %, worst case.

    Dotted: the median size of the target, which the misses are to be compared with.

    Parameters
    ----------
    ray
        From `ExplicitOperator.ray`; of several classes the worst counts.
    """
    error = _over_classes(ray["ray_error"]).transpose("case", "order").values.clip(min=FLOOR)
    orders = ray["order"].values
    low, middle, high = np.quantile(error, (0.1, 0.5, 0.9), axis=0)
    size = target_size(ray)
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": orders,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    lines = [
        {**edge, "y": low.astype(np.float32)},
        {**edge, "y": high.astype(np.float32), "fill": "tonexty", "fillcolor": "rgba(194,65,12,0.14)"},
        _line(orders, error.max(0), "worst case", NEUTRAL, dash="dot"),
        _line(orders, middle, "median", TOWARD),
    ]
    dotted = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": size, "y1": size}
    note = {"xref": "paper", "x": 1, "y": np.log10(size), "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    return figure(
        lines,
        height=320,
        showlegend=True,
        legend=LEGEND,
        shapes=[{**dotted, "line": {"color": MUTED, "width": 1, "dash": "dot"}}],
        annotations=[{**note, "text": "size of the target", "font": {"size": 11, "color": MUTED}}],
        xaxis={"title": {"text": "order"}, "dtick": max(1, len(orders) // 9), "showgrid": False, "zeroline": False},
        yaxis={
            "title": {"text": "largest miss along the ray (logit)"},
            "type": "log",
            "dtick": max(1, round(np.log10(error.max() / error.min()) / 6)),
            "exponentformat": "power",
        },
    )


def ray_course(ray: xr.Dataset, case: int, toward: str | None = None) -> "go.Figure":
    """Draw the target along the ray to one case: dots are passes of the model, lines the expansion cut after orders 1, 2 and the last.

    Parameters
    ----------
    ray
        From `ExplicitOperator.ray`.
    case
        Its number in the coordinate `case`.
    toward
        The class whose logit is drawn, for class-centred targets; by default the predicted one.
    """
    row, word = _row(ray, case, toward)
    terms, positions, course = row["ray_order"].values, row["position"].values, row["model_course"].values
    eps = np.linspace(0, 1, POINTS)
    last = len(terms) - 1
    lines = []
    for order, colour in ((1, NEUTRAL), (2, AWAY), (last, TOWARD)):
        if order < last or colour == TOWARD:
            values = np.cos(np.arange(order + 1) * np.arccos(2 * eps - 1)[:, None]) @ terms[: order + 1]
            lines.append(_line(eps, values, f"up to order {order}", colour, markers=False))
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "model",
        "x": positions.astype(np.float32),
        "y": course.astype(np.float32),
        "marker": {"size": 7, "color": INK},
        "hovertemplate": "%{x:.2f}: %{y:+.4f}<extra>model</extra>",
    }
    return figure(
        [*lines, dots],
        height=320,
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "title": {"text": "position on the way"},
            "range": [-0.03, 1.03],
            "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "ticktext": ["baseline", "¼", "½", "¾", "case"],
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"title": {"text": f"{text(word, 34)} (logit)"}, "zeroline": True, "nticks": 6},
    )


def convergence_radii(result: xr.Dataset) -> "go.Figure":
    """Draw the radius of convergence of every case's power series, sorted: orders sum to the target right of the line at 1 only.

    Parameters
    ----------
    result
        From `ExplicitOperator.convergence` or `homogeneous`.
    """
    radius, nearest = result["convergence_radius"].values, result["nearest"].values.astype(str)
    finite = np.isfinite(radius)
    if not finite.any():
        raise ArgumentError(
            "convergence_radii: no case here has a singularity (the plain architecture has none), so there is no radius to draw."
        )
    order = np.argsort(radius)[: int(finite.sum())]
    rank = 100 * (np.arange(len(order)) + 1) / len(radius)
    shown = radius[order].clip(min=1e-12)
    groups = [("LayerNorm", AWAY, "a LayerNorm's scale ends it"), ("gate", TOWARD, "a gate ends it")]
    data: list[dict[str, Any]] = []
    for kind, colour, words in groups:
        mine = np.array([place.startswith(kind) for place in nearest[order]], dtype=bool)
        if mine.any():
            cases = [
                f"case {result['case'].values[k]}: {significant(radius[k])}, {text(nearest[k])}" for k in order[mine]
            ]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": words,
                    "x": shown[mine].astype(np.float32),
                    "y": rank[mine].astype(np.float32),
                    "marker": {"size": 8, "color": colour},
                    "customdata": cases,
                    "hovertemplate": "%{customdata}<extra></extra>",
                }
            )
    low, high = np.log10(min(0.5, shown.min())), np.log10(max(2.0, shown.max()))
    pad = 0.05 * (high - low)
    line = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": INK, "width": 1}}
    note = {"x": 0, "yref": "paper", "y": 0, "yanchor": "bottom", "xanchor": "right", "showarrow": False}
    return figure(
        data,
        height=300,
        showlegend=True,
        legend=LEGEND,
        shapes=[line],
        annotations=[{**note, "text": "the case ", "font": {"size": 11, "color": MUTED}}],
        xaxis={
            "title": {"text": "radius of convergence (1: the way to the case)"},
            "type": "log",
            "range": [low - pad, high + pad],
            "tickvals": [v for v in _TICKS if 10 ** (low - pad) <= v <= 10 ** (high + pad)],
            "zeroline": False,
        },
        yaxis={"title": {"text": "cases with at most this radius (%)"}, "range": [-3, 103], "zeroline": False},
    )


_TICKS = tuple(float(f"{digit}e{power}") for power in range(-12, 13) for digit in (1, 2, 5))


def target_size(ray: xr.Dataset) -> float:
    """Return the median over cases of the target's absolute value (its largest class)."""
    return max(float(np.median(_over_classes(abs(ray["target"])).values)), FLOOR)


def _over_classes(values: xr.DataArray) -> xr.DataArray:
    return values.max("class") if "class" in values.dims else values


def _row(ray: xr.Dataset, case: int, toward: str | None) -> tuple[xr.Dataset, str]:
    """One case, one class, and what the target is called."""
    cases = ray["case"].values
    if case not in cases:
        raise ArgumentError(
            f"case={case}: this result does not hold it; it holds {len(cases)} cases, such as {cases[0]}."
        )
    row = ray.isel(case=int(np.flatnonzero(cases == case)[0]))
    if "class" not in row["target"].dims:
        return row, str(ray.attrs.get("target", "target"))
    names = [str(name) for name in ray["class"].values]
    toward = str(row["predicted"].values) if toward is None else toward
    if toward not in names:
        raise ArgumentError(f"toward={toward!r}: choose one of {', '.join(names)}.")
    return row.isel({"class": names.index(toward)}), f"centred logit of {toward}"


def _line(
    x: NDArray[Any], y: NDArray[Any], name: str, colour: str, dash: str = "solid", markers: bool = True
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": name,
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 6, "color": colour},
        "customdata": [number(float(v), 4) for v in y],
        "hovertemplate": "%{x:.3g}: %{customdata}<extra>%{fullData.name}</extra>",
    }
