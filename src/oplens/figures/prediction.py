"""What is known of a decision before any simulation: a target against frequency, and margins of two signals in noise."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.style import AWAY, INK, MUTED, NEUTRAL, TOWARD, figure, number, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 240  # of a density
BINS = 40


def frequency_sweep(sweep: xr.Dataset, toward: str | None = None) -> "go.Figure":
    """Draw the expected target against the frequency of a sinusoid, with one standard deviation on either side.

    Dots are simulated cases of the model (mean and two standard errors), where the Dataset holds them; dotted lines are its marked
    frequencies, as a rule those of training.

    Parameters
    ----------
    sweep
        From `ExplicitOperator.sweep`.
    toward
        The class whose logit is drawn, for class-centred targets; the first by default.

    Examples
    --------
    >>> ds = xr.Dataset(
    ...     {"target_mean": ("stimulus", [-1.0, 2.0]), "target_variance": ("stimulus", [0.1, 0.2])},
    ...     coords={"frequency": ("stimulus", [15.0, 20.0], {"units": "Hz"})},
    ...     attrs={"towards": "20 Hz", "against": "15 Hz"},
    ... )
    >>> frequency_sweep(ds).layout.yaxis.title.text
    'margin for 20 Hz (logit)'
    """
    drawn = _one_class(sweep, toward)
    order = np.argsort(drawn["frequency"].values)
    drawn = drawn.isel(stimulus=order)
    frequency, mean = drawn["frequency"].values, drawn["target_mean"].values
    sd = np.sqrt(drawn["target_variance"].values)
    data = [*_band(frequency, mean, sd), _line(frequency, mean)]
    low, high = (mean - sd).min(), (mean + sd).max()
    if "simulated_mean" in drawn:
        found, error = drawn["simulated_mean"].values, 2 * drawn["simulated_mean_error"].values
        low, high = min(low, (found - error).min()), max(high, (found + error).max())
        data.append(_points(frequency, found, error))
    low, high = min(low, 0.0), max(high, 0.0)
    pad = 0.12 * (high - low or 1.0)
    marks = json.loads(str(sweep.attrs.get("marks", "{}")))
    span = (float(frequency.min()), float(frequency.max()))
    shapes, notes = _marks({str(k): float(v) for k, v in marks.items() if span[0] <= v <= span[1]})
    units = str(drawn["frequency"].attrs.get("units", ""))
    return figure(
        data,
        height=340,
        margin={"l": 8, "r": 14, "t": 30, "b": 8},
        shapes=shapes,
        annotations=[*notes, *_sides(sweep, low - pad, high + pad)],
        xaxis={"title": {"text": f"frequency of the signal ({text(units)})"}, "showgrid": False, "zeroline": False},
        yaxis={"title": {"text": _target_words(sweep, toward)}, "range": [low - pad, high + pad], "nticks": 6},
    )


def prediction_distribution(discrimination: xr.Dataset) -> "go.Figure":
    """Draw the predicted margins of two signals in noise as Gaussian densities, over histograms of simulated cases.

    A margin right of zero decides for one class, left of it for the other; what lies on the wrong side is the error. Several phases
    of a signal are drawn as their mixture.

    Parameters
    ----------
    discrimination
        From `ExplicitOperator.discriminate`.

    Examples
    --------
    >>> ds = xr.Dataset(
    ...     {"target_mean": ("stimulus", [-1.0, 2.0]), "target_variance": ("stimulus", [0.1, 0.2])},
    ...     coords={"class": ["15 Hz", "20 Hz"], "label": ("stimulus", ["15 Hz", "20 Hz"])},
    ... )
    >>> [trace.name for trace in prediction_distribution(ds).data]
    ['15 Hz', '20 Hz']
    """
    names = [str(name) for name in discrimination["class"].values]
    label = discrimination["label"].values.astype(str)
    mean = discrimination["target_mean"].values
    sd = np.sqrt(discrimination["target_variance"].values)
    low, high = float((mean - 4 * sd).min()), float((mean + 4 * sd).max())
    low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    x = np.linspace(low - 0.05 * span, high + 0.05 * span, POINTS)
    data: list[dict[str, Any]] = []
    for k, (name, colour) in enumerate(zip(names, (AWAY, TOWARD), strict=True)):
        if "simulated_target" in discrimination:
            data.append(_histogram(discrimination["simulated_target"].isel({"class": k}).values, x, colour))
        data.append(_density(x, mean[label == name], sd[label == name], name, colour))
    # Above the curves' own peaks, one name on either side: on a phone names at the peaks would meet.
    notes = [
        {"x": 1.0, "xanchor": "right", "text": f"for {text(names[1], 18)} →", "font": {"size": 12, "color": TOWARD}},
        {"x": 0.0, "xanchor": "left", "text": f"← for {text(names[0], 18)}", "font": {"size": 12, "color": AWAY}},
    ]
    place = {"xref": "paper", "yref": "paper", "y": 1.0, "yanchor": "bottom", "showarrow": False}
    zero = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": INK, "width": 1}}
    return figure(
        data,
        height=300,
        margin={"l": 14, "r": 14, "t": 30, "b": 8},
        barmode="overlay",
        shapes=[zero],
        annotations=[{**note, **place} for note in notes],
        xaxis={
            "title": {"text": f"margin for {text(names[1], 18)} (logit)"},
            "range": [float(x[0]), float(x[-1])],
            "showgrid": False,
            "zeroline": False,
            "nticks": 6,
        },
        yaxis={"visible": False, "rangemode": "tozero"},
    )


def _one_class(sweep: xr.Dataset, toward: str | None) -> xr.Dataset:
    if "class" not in sweep["target_mean"].dims:
        return sweep
    names = [str(name) for name in sweep["class"].values]
    if toward is not None and toward not in names:
        raise ArgumentError(f"frequency_sweep(toward={toward!r}): the sweep's classes are {', '.join(names)}.")
    return sweep.isel({"class": names.index(toward) if toward is not None else 0})


def _target_words(sweep: xr.Dataset, toward: str | None) -> str:
    if "class" in sweep["target_mean"].dims:
        return f"centred logit of {text(toward if toward is not None else sweep['class'].values[0], 18)}"
    return f"margin for {text(sweep.attrs.get('towards', 'the first class'), 18)} (logit)"


def _band(x: Any, mean: Any, sd: Any) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "x": x.astype(np.float32), "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        {**edge, "y": (mean - sd).astype(np.float32)},
        {**edge, "y": (mean + sd).astype(np.float32), "fill": "tonexty", "fillcolor": "rgba(154,163,173,0.45)"},
    ]


def _line(x: Any, mean: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": "predicted",
        "x": x.astype(np.float32),
        "y": mean.astype(np.float32),
        "line": {"width": 1.5, "color": INK},
        "marker": {"color": INK, "size": 7},
        "customdata": [f"{number(f, 2)}: predicted {number(m, 3, True)}" for f, m in zip(x, mean, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _points(x: Any, mean: Any, error: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "simulated",
        "x": x.astype(np.float32),
        "y": mean.astype(np.float32),
        "marker": {"size": 4, "color": TOWARD},
        "error_y": {"type": "data", "array": error.astype(np.float32), "color": TOWARD, "thickness": 1, "width": 0},
        "customdata": [
            f"{number(f, 2)}: simulated {number(m, 3, True)} ± {number(e, 3)}"
            for f, m, e in zip(x, mean, error, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _marks(marks: dict[str, float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes = [
        {
            "type": "line",
            "x0": value,
            "x1": value,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": NEUTRAL, "width": 1, "dash": "dot"},
            "layer": "below",
        }
        for value in marks.values()
    ]
    notes = [
        {
            "x": value,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": text(name, 12),
            "showarrow": False,
            "font": {"size": 11, "color": MUTED},
        }
        for name, value in marks.items()
    ]
    return shapes, notes


def _sides(sweep: xr.Dataset, low: float, high: float) -> list[dict[str, Any]]:
    """What either side of zero decides, at the left edge, where there is room for it."""
    if "towards" not in sweep.attrs or "against" not in sweep.attrs:
        return []
    place = {"x": 0.01, "xref": "paper", "xanchor": "left", "showarrow": False, "bgcolor": "rgba(255,255,255,0.75)"}
    sides = []
    for room, edge, anchor, name, colour in (
        (high, high, "top", "towards", TOWARD),
        (-low, low, "bottom", "against", AWAY),
    ):
        if room > 0.15 * (high - low):
            words = f"decides {text(sweep.attrs[name], 18)}"
            sides.append({**place, "y": edge, "yanchor": anchor, "text": words, "font": {"size": 11, "color": colour}})
    return sides


def _density(x: Any, mean: Any, sd: Any, name: str, colour: str) -> dict[str, Any]:
    """Mixture of Gaussians; a margin without noise is a needle at its place."""
    least = 0.002 * (x[-1] - x[0])
    width = np.maximum(sd, least)[:, None]
    y = (np.exp(-(((x - mean[:, None]) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))).mean(0)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text(name, 24),
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "line": {"width": 2, "color": colour},
        "hoverinfo": "skip",
    }


def _histogram(values: Any, x: Any, colour: str) -> dict[str, Any]:
    """Bars of a density; bins are laid over the class's own cases, so that a narrow margin is not one bar."""
    counts, edges = np.histogram(values, bins=BINS, density=True)
    return {
        "type": "bar",
        "x": ((edges[:-1] + edges[1:]) / 2).astype(np.float32),
        "y": counts.astype(np.float32),
        "width": float(edges[1] - edges[0]),
        "marker": {"color": colour, "opacity": 0.22, "line": {"width": 0}},
        "hoverinfo": "skip",
    }
