"""What is certified of the decisions: how many of them against the size of the box, and each one's own box."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.style import INK, LEGEND_BELOW, MUTED, NEUTRAL, RULE, TOWARD, figure, significant, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

# From pale to dark: orders are a sequence, and the colour of what the operator does is orange elsewhere too.
_ORDERS = ("#f2b48a", "#e58a4e", TOWARD, "#92310a", "#5c1f06")
_RIGHT, _WRONG = INK, TOWARD


def certified_fraction(certificates: xr.Dataset) -> "go.Figure":
    """Draw the share of cases that is certified against the radius: robust decisions, and the truncation at every order.

    All lines are drawn from every case's own radius. Robust decisions and those that no step against the gradient has flipped enclose the
    truth. Radius 0, where orders are certified at the cases themselves, has a place of its own on the left.

    Parameters
    ----------
    certificates
        What `op.certify` returns, or the group `/certificates`.
    """
    radii = np.asarray(certificates["radius"].values, dtype=float)
    robust, flipped = (np.asarray(certificates[n].values, dtype=float) for n in ("robust_radius", "flipped_radius"))
    left, right = _span(radii, robust, flipped)
    data = [
        _steps(flipped, left, right, "not flipped by one step", {"color": NEUTRAL, "width": 2, "dash": "dot"}),
        _steps(robust, left, right, "robust: no input flips it", {"color": INK, "width": 2.5}),
    ]
    data += _orders(certificates, radii, left, right)
    return figure(
        data,
        height=430,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        showlegend=True,
        legend={**LEGEND_BELOW, "y": -0.24},
        xaxis={
            **_radius_axis(left, right, zero=bool((radii == 0).any())),
            "title": {"text": f"radius ({text(_units(certificates), 24)})"},
        },
        yaxis={"range": [-2, 102], "ticksuffix": " %", "nticks": 6, "title": {"text": ""}, "zeroline": False},
    )


def robust_radii(certificates: xr.Dataset, most: int = 400) -> "go.Figure":
    """Draw every case's certified radius and, at the other end of its line, the radius at which one step flipped it; sorted.

    With labels, right decisions stand above wrong ones. Lines without a right end were never flipped.

    Parameters
    ----------
    certificates
        What `op.certify` returns, or the group `/certificates`.
    most
        At most this many cases, evenly spaced in the order of their radii.
    """
    robust, flipped = (np.asarray(certificates[n].values, dtype=float) for n in ("robust_radius", "flipped_radius"))
    groups = [(name, rows) for name, rows in _groups(certificates) if len(rows)]
    if not groups:
        raise ArgumentError("robust_radii: the result holds no case.")
    left, right = _span(np.zeros(1), robust, flipped)
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    start = 0.0
    total = sum(len(rows) for _, rows in groups)
    pixels = int(np.clip(1.3 * min(total, most), 120, 430))
    room = 20 * min(total, most) / pixels  # rows that a heading takes
    for name, rows in groups:
        ranked = rows[np.argsort(-robust[rows], kind="stable")]
        ranked = ranked[
            np.unique(np.linspace(0, len(ranked) - 1, math.ceil(most * len(rows) / max(total, most))).astype(int))
        ]
        y = start + room + np.arange(len(ranked), dtype=np.float64)
        colour = _WRONG if name.startswith("wrong") else _RIGHT
        data += _dumbbells(certificates, ranked, y, colour, left, right)
        notes.append(
            _heading(f"{name}: half hold to {rounded_down(float(np.median(robust[rows])))}", start + room / 2, left)
        )
        start = float(y[-1]) + 1
    return figure(
        data,
        height=80 + 20 * len(groups) + pixels,
        margin={"l": 12, "r": 16, "t": 8, "b": 8},
        annotations=notes,
        xaxis={
            **_radius_axis(left, right, zero=False),
            "title": {"text": f"radius ({text(_units(certificates), 24)})"},
        },
        yaxis={"visible": False, "range": [start + 1, -0.5]},
    )


def _dumbbells(
    ds: xr.Dataset, rows: NDArray[np.intp], y: NDArray[np.float64], colour: str, left: float, right: float
) -> list[dict[str, Any]]:
    """A thin line per case from what is certified to what was flipped, with a dot at either end that lies in the picture."""
    robust, flipped = (np.asarray(ds[name].values, dtype=float)[rows] for name in ("robust_radius", "flipped_radius"))
    start, stop = np.clip(np.maximum(robust, left), left, right), np.clip(flipped, left, right)
    x = np.column_stack((start, stop, np.full(len(rows), np.nan))).ravel()
    lines = {
        "type": "scatter",
        "mode": "lines",
        # None, not NaN, would be JSON's; a float32 array carries NaN as it is.
        "x": x.astype(np.float32),
        "y": np.repeat(y, 3).astype(np.float32),
        "line": {"color": RULE, "width": 1},
        "hoverinfo": "skip",
    }
    names = [_case_words(ds, int(row)) for row in rows]
    said = [
        f"{name}<br>certified to {rounded_down(a)}, flipped at {significant(b)}"
        for name, a, b in zip(names, robust, flipped, strict=True)
    ]
    dots = []
    for values, symbol, size in ((robust, "circle", 5), (flipped, "circle-open", 4)):
        seen = np.isfinite(values) & (values >= left) & (values <= right)
        dots.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": values[seen].astype(np.float32),
                "y": y[seen].astype(np.float32),
                "marker": {"symbol": symbol, "size": size, "color": colour, "line": {"width": 1, "color": colour}},
                "text": [words for words, keep in zip(said, seen, strict=True) if keep],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return [lines, *dots]


def _case_words(ds: xr.Dataset, row: int) -> str:
    words = f"case {text(ds['case'].values[row])}: {text(ds['predicted'].values[row], 20)}"
    return words + (f", labelled {text(ds['label'].values[row], 20)}" if "label" in ds.coords else "")


def _heading(words: str, y: float, left: float) -> dict[str, Any]:
    return {
        "text": text(words),
        "x": math.log10(left),
        "y": y,
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "font": {"size": 12, "color": MUTED},
    }


def _groups(ds: xr.Dataset) -> list[tuple[str, NDArray[np.intp]]]:
    cases = np.arange(ds.sizes["case"])
    if "label" not in ds.coords:
        return [(f"{len(cases)} cases", cases)]
    right = np.asarray(ds["label"].values == ds["predicted"].values, dtype=bool)
    return [
        (f"{word} ({int(keep.sum())})", cases[keep])
        for word, keep in (("right decisions", right), ("wrong decisions", ~right))
    ]


def rounded_down(value: float) -> str:
    """Return a certified size with three significant digits, never a larger one.

    Examples
    --------
    >>> from oplens.figures.certificates import rounded_down
    >>> rounded_down(0.018169), rounded_down(0.2), rounded_down(0.0), rounded_down(float("inf"))
    ('0.0181', '0.2', '0', '∞')
    """
    if value <= 0 or not math.isfinite(value):
        return significant(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    shown = float(f"{value:.3g}")
    return significant(shown if shown <= value else shown - unit)


def _units(ds: xr.Dataset) -> str:
    return str(ds["radius"].attrs.get("units", "")) or "as given"


def _span(radii: NDArray[np.float64], *measured: NDArray[np.float64]) -> tuple[float, float]:
    """Where the axis starts and ends: all radii asked for, and nine tenths of the cases' own."""
    found = np.concatenate([values[np.isfinite(values) & (values > 0)] for values in measured])
    known = radii[radii > 0]
    low = min([*known[:1], *([float(np.quantile(found, 0.05))] if len(found) else [])], default=0.1)
    high = max([*known[-1:], *([float(np.quantile(found, 0.9))] if len(found) else [])], default=1.0)
    return low / 1.8, max(high, 1.01 * low) * 1.15


def _orders(ds: xr.Dataset, radii: NDArray[np.float64], left: float, right: float) -> list[dict[str, Any]]:
    """A staircase per order, as far as the radii asked for show, from the share at radius 0 where that was asked."""
    asked = float(radii.max())
    lines = []
    for k, order in enumerate(int(order) for order in ds["order"].values):
        name, shade = f"order{'s 1–' if order > 1 else ' '}{order}", _shades(ds.sizes["order"])[k]
        line = {"color": shade, "width": 1.5}
        steps = _steps(ds["truncated_radius"].values[k], left, max(min(asked, right), left), name, line)
        if (radii == 0).any():
            share = 100 * float(ds["certified_fraction"].values[k][radii == 0][0])
            steps["x"] = np.concatenate(([left], steps["x"])).astype(np.float32)
            steps["y"] = np.concatenate(([share], steps["y"])).astype(np.float32)
            steps |= {"mode": "lines+markers", "marker": {"color": shade, "size": [7] + [0] * (len(steps["x"]) - 1)}}
        lines.append(steps)
    return lines


def _steps(values: NDArray[np.float64], left: float, right: float, name: str, line: dict[str, Any]) -> dict[str, Any]:
    """The share of cases whose value is at least x, as a falling staircase from `left` to `right`."""
    inside = np.sort(values[np.isfinite(values) & (values > left) & (values < right)])
    x = np.concatenate(([left], inside, [right]))
    share = np.array([100 * np.mean(values >= at) for at in x]) if len(values) else np.zeros(len(x))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x.astype(np.float32),
        "y": share.astype(np.float32),
        "line": {**line, "shape": "vh"},
        "hovertemplate": f"{name}<br>radius %{{x:.3g}}: %{{y:.0f}} %<extra></extra>",
    }


def _radius_axis(left: float, right: float, zero: bool) -> dict[str, Any]:
    """A logarithmic axis with round numbers, and 0 at its left end."""
    decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
    wide = math.log10(right / left) > 2
    steps = [
        n * 10.0**d
        for d in decades
        for n in ((1.0,) if math.log10(right / left) > 3.5 else (1.0, 3.0) if wide else (1.0, 2.0, 5.0))
    ]
    places = [at for at in steps if left * 1.3 <= at <= right]
    return {
        "type": "log",
        "range": [math.log10(left) - 0.02, math.log10(right)],
        "tickmode": "array",
        "tickvals": [*([left] if zero else []), *places],
        "ticktext": [*(["0"] if zero else []), *(significant(float(f"{at:.3g}")) for at in places)],
        "zeroline": False,
    }


def _shades(count: int) -> list[str]:
    if count <= 1:
        return [TOWARD] * count
    return [_ORDERS[round(k * (len(_ORDERS) - 1) / (count - 1))] for k in range(count)]
