"""How far answers move when weights carry noise (group `/robustness`)."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.figures.style import AWAY, INK, LEGEND, MUTED, NEUTRAL, TOWARD, figure, number, significant

if TYPE_CHECKING:
    import plotly.graph_objects as go

DECADES = 5  # drawn below the smallest movement; remainders further down tell no more


def movement_under_noise(ds: xr.Dataset) -> "go.Figure":
    """Draw the measured movement with its interval against the noise, beside first order, its bound, the remainder and the paper's claim.

    Both axes are logarithmic. The vertical line stands where the remainder has grown to a tenth of the first order.

    Parameters
    ----------
    ds
        Group `/robustness`, as `oplens.measurement.weight_noise` returns it.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.robustness import movement_under_noise
    >>> lines = ("deviation", "deviation_low", "deviation_high", "first_order", "first_order_bound", "remainder", "paper_claim")
    >>> curves = {name: ("sigma", [0.1, 1.0]) for name in lines}
    >>> ds = xr.Dataset({**curves, "linear_until": ((), 0.5)}, coords={"sigma": [0.1, 1.0]})
    >>> [trace.name for trace in movement_under_noise(ds).data][1:]
    ['measured', 'first order', 'bound of it', 'beyond first order', "paper's formula"]
    """
    sigma = ds["sigma"].values.astype(float)
    lines: list[tuple[str, str, dict[str, Any], str | None]] = [
        ("deviation", "measured", {"color": TOWARD, "width": 2.5}, "circle"),
        ("first_order", "first order", {"color": INK, "width": 1.5, "dash": "dash"}, None),
        ("first_order_bound", "bound of it", {"color": NEUTRAL, "width": 1.5, "dash": "dot"}, None),
        ("remainder", "beyond first order", {"color": NEUTRAL, "width": 1.5}, "diamond"),
        ("paper_claim", "paper's formula", {"color": AWAY, "width": 2, "dash": "dashdot"}, None),
    ]
    # A logarithmic axis has no place for 0 and below; what is not drawn is told by the section.
    floor = 10.0**-DECADES * _smallest(ds["deviation"].values)
    data = [_band(ds, sigma, floor)]
    for name, words, line, symbol in lines:
        values = ds[name].values.astype(float)
        if np.isfinite(values).any() and (values > floor).any():
            data.append(_line(sigma, np.where(values > floor, values, np.nan), words, line, symbol))
    shapes, annotations = _end(float(ds["linear_until"]), sigma)
    relative = ds.attrs.get("noise") == "relative"
    return figure(
        data,
        height=440,
        showlegend=True,
        legend={**LEGEND, "y": 1.08},
        shapes=shapes,
        annotations=annotations,
        xaxis={
            "type": "log",
            "title": {"text": "noise, in rms of each tensor" if relative else "noise on every parameter (σ)"},
            "zeroline": False,
            **_powers(sigma),
        },
        yaxis={
            "type": "log",
            "title": {"text": "movement of an answer"},
            "zeroline": False,
            **_powers(np.concatenate([np.asarray(trace["y"], dtype=float) for trace in data])),
        },
    )


def three(value: float) -> str:
    """Return `value` with three significant digits, and all of a large number's before the point.

    Examples
    --------
    >>> three(10.0), three(2352.8), three(0.00012346), three(1.4e-5)
    ('10.0', '2,353', '0.000123', '1.4e−5')
    """
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else number(value)
    if size < 1e-4 or size >= 1e6:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return (f"{value:,.0f}" if size >= 999.5 else f"{value:#.3g}".rstrip(".")).replace("-", "−")


def _smallest(values: Any) -> float:
    positive = values[np.isfinite(values) & (values > 0)]
    return float(positive.min()) if positive.size else 1.0


def _band(ds: xr.Dataset, sigma: Any, floor: float) -> dict[str, Any]:
    """The interval of the measured movement as a filled outline."""
    low = np.maximum(ds["deviation_low"].values.astype(float), floor)
    high = np.maximum(ds["deviation_high"].values.astype(float), floor)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.concatenate([sigma, sigma[::-1]]),
        "y": np.concatenate([high, low[::-1]]),
        "fill": "toself",
        "fillcolor": "rgba(194, 65, 12, 0.16)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _line(sigma: Any, values: Any, name: str, line: dict[str, Any], symbol: str | None) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if symbol else "lines",
        "name": name,
        "x": sigma,
        "y": values,
        "line": line,
        "marker": {"size": 6, "color": line["color"], "symbol": symbol or "circle"},
        "customdata": [f"σ = {significant(s)}<br>{name} {three(v)}" for s, v in zip(sigma, values, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _end(until: float, sigma: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if not sigma[0] <= until <= sigma[-1]:
        return [], []
    ends = {"x0": until, "x1": until, "yref": "paper", "y0": 0, "y1": 1}
    line = {"type": "line", **ends, "line": {"color": MUTED, "width": 1, "dash": "dot"}}
    right = math.log(until / sigma[0]) > 0.5 * math.log(sigma[-1] / sigma[0])
    words = {
        "text": f"linear up to {significant(until)}",
        "x": math.log10(until),
        "xanchor": "right" if right else "left",
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": MUTED},
    }
    return [line], [words]


def _powers(values: Any) -> dict[str, Any]:
    """Ticks at powers of ten, at most eight of them, written as people write them."""
    kept = values[np.isfinite(values) & (values > 0)]
    low, high = math.floor(math.log10(kept.min())), math.ceil(math.log10(kept.max()))
    step = max(1, math.ceil((high - low) / 7))
    powers = list(range(low, high + 1, step))
    plain = powers[0] > -4 and powers[-1] < 5
    names = [f"{10.0**p:,.10g}" if plain else f"10<sup>{str(p).replace('-', '−')}</sup>" for p in powers]
    ends = [math.log10(kept.min()), math.log10(kept.max())]
    margin = 0.04 * max(ends[1] - ends[0], 1.0)
    return {
        "tickmode": "array",
        "tickvals": [10.0**p for p in powers],
        "ticktext": names,
        "range": [ends[0] - margin, ends[1] + margin],
    }
