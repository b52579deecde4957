"""A feature's states as a ring: what goes round it in one case, how fast, and what training changed (group `/ring`)."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.style import (
    INK,
    MUTED,
    NEUTRAL,
    RULE,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    colourbar,
    figure,
    merged,
    significant,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

FRAMES, COLUMNS = 80, 320  # six of each take 0.6 MB at 64 sites; at half a page's width more could hardly be told apart
REVOLUTIONS = 4  # more of them in one picture would be stripes
MILLISECONDS = 70  # per frame
_MOVING = [1, 2, 4, 5]  # traces that frames change: sites, triangle, cursor, time
_DOTS = {"cmin": 0, "cmax": 100, "colorscale": SEQUENTIAL, "line": {"width": 0.7, "color": NEUTRAL}, "opacity": 1}


def ring_animation(ds: xr.Dataset, case: int, feature: int, controls: bool = True) -> "go.Figure":
    """Animate abs(r+) on a feature's ring, with the feature's input and a cursor below.

    The sites lie on a circle; the input enters at the top (site 0) and goes clockwise at the speed of the triangle outside, which
    marks where the first input of the picture should be by now. At most four revolutions and 80 frames are shown.

    Parameters
    ----------
    ds
        The group `/ring` (what `op.ring` returns).
    case, feature
        Values of the coordinates `case` and `feature`.
    controls
        Draw play, pause and a slider into the figure, for notebooks; pages bring their own, which the keyboard reaches.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from oplens.figures.ring import ring_animation
    >>> axes = {"case": [0], "feature": [0], "site": range(4), "time": range(6)}
    >>> data = {"envelope": (tuple(axes), np.ones((1, 1, 4, 6))), "drive": (("case", "feature", "time"), np.ones((1, 1, 6)))}
    >>> speed = {"velocity": ("feature", [-1.0]), "revolution": ("feature", [4.0])}
    >>> len(ring_animation(xr.Dataset({**data, **speed}, coords=axes), 0, 0).frames)
    6
    """
    one = _select(ds, case, feature)
    steps = window(one)
    shown = steps[:: -(-len(steps) // FRAMES)]
    time, drive = one["time"].values.astype(float), one["drive"].values.astype(float)
    percent, largest = _percent(one, shown)
    labels = _labels(time[shown], _unit(one))
    turns = time[shown] * _speed(one) / len(percent)
    states = [_state(*values) for values in zip(percent.T, turns, time[shown], labels, strict=True)]
    start = int((percent.astype(float) ** 2).sum(0).argmax())
    low, high = float(drive[steps].min()), float(drive[steps].max())
    pad = 0.08 * (high - low or 1.0)
    kept = steps[_peaks(drive[steps])]
    data = _traces(len(percent), time[kept], drive[kept], [low - pad, high + pad])
    for trace, state in zip(_MOVING, states[start], strict=True):
        data[trace] = merged(data[trace], state)
    fig = figure(
        data,
        height=500,
        meta={"frame": start, "milliseconds": MILLISECONDS},
        xaxis={"title": {"text": f"time ({_unit(one)})"}, "showgrid": False, "zeroline": False, "anchor": "y"},
        yaxis={"title": {"text": "input u"}, "domain": [0, 0.2], "range": [low - pad, high + pad], "nticks": 4},
        xaxis2={"visible": False, "range": [-1.4, 1.4], "anchor": "y2", "fixedrange": True, "constrain": "domain"},
        yaxis2={"visible": False, "range": [-1.25, 1.4], "domain": [0.27, 1], "scaleanchor": "x2", "fixedrange": True},
        annotations=[_note(1.33, "input enters"), _note(-0.22, f"full size: abs(r+) = {significant(largest)}")],
    )
    fig.frames = [{"name": name, "traces": _MOVING, "data": state} for name, state in zip(labels, states, strict=True)]
    if controls:
        fig.update_layout(_controls(labels, start))
    return fig


def space_time(ds: xr.Dataset, case: int, feature: int) -> "go.Figure":
    """Draw abs(r+) by time and site, and the path that an input entering first should take at the group velocity.

    Sites are stacked in the order in which an input passes them, site 0 lowest; the path starts anew when it has been round.

    Parameters
    ----------
    ds, case, feature
        As for :func:`ring_animation`.
    """
    one = _select(ds, case, feature)
    steps = window(one)
    stride = -(-len(steps) // COLUMNS)
    shown = steps[::stride]
    percent, largest = _percent(one, shown)
    time = one["time"].values.astype(float)
    sites, unit = len(percent), _unit(one)
    order = _passed(one)
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "z": percent,
            "x": float32(time[shown]),
            "y": np.arange(sites, dtype=np.int16),
            "zmin": 0,
            "zmax": 100,
            "colorscale": SEQUENTIAL,
            "colorbar": colourbar(),
            "hovertemplate": f"%{{x:.3~g}} {unit}, %{{y}} sites on: %{{z}} %<extra></extra>",
        }
    ]
    speed = _speed(one)
    words = f"abs(r+) in % of {significant(largest)}"
    if math.isfinite(speed):
        data.append(_path(float(time[steps[-1]]), sites, speed))
        words += f" · dashed: {significant(abs(float(one['velocity'])))} sites per step"
    drawn = f" · one step in {stride} is drawn" if stride > 1 else ""
    at = [0, sites // 4, sites // 2, 3 * sites // 4, sites - 1]
    return figure(
        data,
        height=500,
        **bar_title(words),
        xaxis={"title": {"text": f"time ({unit}){drawn}"}, "showgrid": False, "zeroline": False},
        yaxis={
            "title": {"text": "site, in the order of passing"},
            "tickmode": "array",
            "tickvals": at,
            "ticktext": [f"{order[k]}" for k in at],
            "showgrid": False,
            "zeroline": False,
            "range": [-0.5, sites - 0.5],
        },
    )


def window(one: xr.Dataset) -> Any:
    """Return the positions of the steps that pictures of one case and feature show: at most four revolutions from its start."""
    valid = np.flatnonzero(np.isfinite(one["drive"].values))
    revolution = float(one["revolution"])
    if not math.isfinite(revolution):
        return valid
    time = one["time"].values.astype(float)
    return valid[: max(2, int(np.searchsorted(time[valid], REVOLUTIONS * revolution)))]


def _select(ds: xr.Dataset, case: int, feature: int) -> xr.Dataset:
    return ds.isel(case=ring_position(ds, "case", case), feature=ring_position(ds, "feature", feature))


def ring_position(ds: xr.Dataset, name: str, value: int) -> int:
    """Return where a case or feature stands in a ring."""
    known = ds[name].values if name in ds.coords else np.arange(ds.sizes[name])
    found = np.flatnonzero(known == value)
    if not found.size:
        raise ArgumentError(f"{name}={value}: this ring holds {name}s {', '.join(map(str, known[:12].tolist()))}.")
    return int(found[0])


def _passed(one: xr.Dataset) -> Any:
    """Sites in the order in which an input passes them."""
    sites = np.arange(one.sizes["site"])
    return sites if float(one["velocity"]) > 0 else -sites % len(sites)


def _percent(one: xr.Dataset, steps: Any) -> tuple[Any, float]:
    """Envelope (site in the order of passing, step) in whole percent of its largest value, and that value."""
    envelope = one["envelope"].transpose("site", "time").values[_passed(one)][:, steps].astype(float)
    largest = float(envelope.max())
    return np.rint(100 * envelope / (largest or 1.0)).astype(np.uint8), largest


def _speed(one: xr.Dataset) -> float:
    """Sites per unit of the time axis; NaN where nothing travels."""
    return one.sizes["site"] / float(one["revolution"])


def _traces(sites: int, time: Any, drive: Any, ends: list[float]) -> list[dict[str, Any]]:
    """The circle, its sites clockwise in the order of passing, the triangle, the input, the cursor, and the time."""
    ring = {"xaxis": "x2", "yaxis": "y2", "type": "scatter", "hoverinfo": "skip"}
    circle, angle = np.linspace(0, 2 * np.pi, 121), 2 * np.pi * np.arange(sites) / sites
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    triangle = {"symbol": "triangle-down", "size": 11, "color": TOWARD}
    return [
        {**ring, "mode": "lines", "x": float32(np.sin(circle)), "y": float32(np.cos(circle)), "line": {"color": RULE}},
        {**ring, "mode": "markers", "x": float32(np.sin(angle)), "y": float32(np.cos(angle)), "marker": _DOTS},
        {**ring, "mode": "markers", "marker": triangle},
        {**line, "x": float32(time), "y": float32(drive), "line": {"width": 1.2, "color": INK}},
        {**line, "y": ends, "line": {"width": 1.5, "color": TOWARD}},
        {**ring, "mode": "text", "x": [0], "y": [0], "textfont": {"size": 15, "color": INK}},
    ]


def _peaks(values: Any) -> Any:
    """Positions of the smallest and the largest value of every stretch, so that no peak is lost."""
    if values.size <= COLUMNS:
        return np.arange(values.size)
    edges = np.linspace(0, values.size, COLUMNS // 2 + 1).astype(int).tolist()
    ends = [{a + int(values[a:b].argmin()), a + int(values[a:b].argmax())} for a, b in pairwise(edges)]
    return np.array(sorted(set().union(*ends)))


def _state(percent: Any, turns: float, time: float, label: str) -> list[dict[str, Any]]:
    """What the moving traces show at one step; whole numbers as lists are shorter than typed arrays here."""
    largest = max(6.0, min(17.0, 1088 / len(percent)))  # dots that touch
    sizes = np.rint(4 + (largest - 4) * percent / 100).astype(int)
    place: dict[str, Any] = {"x": [], "y": []}
    if math.isfinite(turns):
        angle = 2 * math.pi * turns
        place = {"x": [round(1.17 * math.sin(angle), 3)], "y": [round(1.17 * math.cos(angle), 3)]}
        place["marker"] = {"angle": round(math.degrees(angle) % 360)}
    return [
        {"marker": {"color": percent.tolist(), "size": sizes.tolist()}},
        place,
        {"x": [round(float(time), 5)] * 2},
        {"text": [label]},
    ]


def _path(last: float, sites: int, speed: float) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for turn in range(math.ceil(last * speed / sites)):
        start = turn * sites / speed
        stop = min(start + sites / speed, last)
        x += [start, stop, None]
        y += [0, (stop - start) * speed, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": TOWARD, "width": 1.6, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _controls(labels: list[str], start: int) -> dict[str, Any]:
    now = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    play = {**now, "frame": {"duration": MILLISECONDS, "redraw": False}, "fromcurrent": True}
    buttons = [
        {"label": "Play", "method": "animate", "args": [None, play]},
        {"label": "Pause", "method": "animate", "args": [[None], now]},
    ]
    steps = [{"label": label, "method": "animate", "args": [[label], now]} for label in labels]
    menu = {"type": "buttons", "direction": "left", "showactive": False, "buttons": buttons}
    slider = {"active": start, "steps": steps, "ticklen": 0, "minorticklen": 0, "currentvalue": {"visible": False}}
    return {
        "height": 590,
        "margin": {"b": 98},
        "updatemenus": [{**menu, "x": 0, "y": -0.13, "xanchor": "left", "yanchor": "top"}],
        "sliders": [{**slider, "x": 0.28, "len": 0.72, "y": -0.1, "font": {"size": 10}}],
    }


def _note(y: float, words: str) -> dict[str, Any]:
    font = {"size": 11, "color": MUTED}
    return {"x": 0, "y": y, "xref": "x2", "yref": "y2", "text": words, "showarrow": False, "font": font}


def _labels(time: Any, unit: str) -> list[str]:
    """Times with as many decimals as tell neighbours apart."""
    gap = float(time[1] - time[0]) if len(time) > 1 else 1.0
    digits = max(0, math.ceil(-math.log10(gap) - 1e-9))
    return [f"{value:.{digits}f} {unit}" for value in time]


def _unit(one: xr.Dataset) -> str:
    return "s" if str(one["time"].attrs.get("units", "")) == "s" else "steps"


def float32(values: Any) -> Any:
    """Return an array as pages carry it."""
    return np.asarray(values, dtype=np.float32)
