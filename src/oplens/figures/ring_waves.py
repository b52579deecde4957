"""A ring's waves and coupling before and after training (group `/ring`)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.figures.ring import float32, ring_position
from oplens.figures.style import INK, MUTED, TOWARD, figure, merged, significant

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PLAIN = "%{x}: %{y:.3~g}<extra></extra>"


def dispersion(ds: xr.Dataset, feature: int) -> "go.Figure":
    """Draw frequency, its change in training, and decay time of every wave against its wavenumber.

    Lines: before training; dots: after; bars: what became of the stored mode, which may have stood elsewhere before.
    Diamonds: waves heard at a lower frequency (aliased), above the dotted line.

    Parameters
    ----------
    ds, feature
        As for :func:`ring_animation`.
    """
    one = ds.isel(feature=ring_position(ds, "feature", feature))
    rate, unit, time_unit = _rate(one)
    per = float(one["dt"]) * rate  # model time per second, or per step
    k = np.arange(one.sizes["wavenumber"], dtype=np.int16)
    after, before = (one[name].values * per / (2 * np.pi) for name in ("frequency", "frequency_before"))
    decays = [_decay_time(one[name].values * per) for name in ("decay", "decay_before")]
    aliased = one["aliased"].values.astype(bool)
    hover = [
        f"wavenumber {n} (stored mode {int(m)}{', conjugate' if c else ''})<br>{significant(b)} → {significant(a)} {unit}<br>"
        f"decays in {significant(d)} {time_unit}, before {significant(e)}"
        for n, m, c, b, a, d, e in zip(
            k, one["wavenumber_mode"].values, one["conjugated"].values, before, after, *decays, strict=True
        )
    ]
    dots = {
        "mode": "markers",
        "marker": {
            "size": 7,
            "color": ["#ffffff" if f else INK for f in aliased],
            "symbol": ["diamond-tall" if f else "circle" for f in aliased],
            "line": {"width": 1.2, "color": INK},
        },
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    line = {"mode": "lines", "line": {"color": TOWARD, "width": 1.5}, "hoverinfo": "skip"}
    data = [
        {"type": "scatter", "x": k, "y": float32(before), "name": "before training", **line},
        {"type": "scatter", "x": k, "y": float32(after), "name": "after training", **dots},
        _stems(k, one["frequency_change"].values * per / (2 * np.pi), "y2"),
        {"type": "scatter", "x": k, "y": float32(decays[1]), "yaxis": "y3", **line},
        {
            "type": "scatter",
            "x": k,
            "y": float32(decays[0]),
            "yaxis": "y3",
            **dots,
            "customdata": None,
            "hovertemplate": _PLAIN,
        },
    ]
    panels = [(f"frequency ({unit})", [0.48, 1]), (f"its change ({unit})", [0.25, 0.42]), (f"decay time ({time_unit})", [0, 0.19])]  # fmt: skip
    shapes = []
    if aliased.any():
        edge = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": rate / 2, "y1": rate / 2}
        shapes = [{**edge, "line": {"dash": "dot", "width": 1, "color": MUTED}}]
    return _panels(data, panels, 500, "wavenumber k", shapes)


def coupling_profile(ds: xr.Dataset, feature: int) -> "go.Figure":
    """Draw the weight of one site on another against the displacement between them, and its change in training.

    Parameters
    ----------
    ds, feature
        As for :func:`ring_animation`.
    """
    one = ds.isel(feature=ring_position(ds, "feature", feature))
    d = one["displacement"].values.astype(np.int16)
    after, before = (one[name].values for name in ("coupling", "coupling_before"))
    data = [
        _stems(d, after, "y"),
        {
            "type": "scatter",
            "mode": "markers",
            "x": d,
            "y": float32(before),
            "marker": {"symbol": "line-ew", "size": 9, "line": {"width": 1.5, "color": TOWARD}},
            "hoverinfo": "skip",
        },
        _stems(d, after - before, "y2"),
    ]
    panels = [("weight", [0.42, 1]), ("its change", [0, 0.34])]
    return _panels(data, panels, 500, "displacement (sites)", [])


def _stems(x: Any, y: Any, axis: str) -> dict[str, Any]:
    """Thin bars from zero."""
    bar = {"type": "bar", "x": x, "y": float32(y), "yaxis": axis, "width": 0.55}
    return {**bar, "marker": {"color": "#818d9a"}, "hovertemplate": _PLAIN}


def _panels(
    data: list[dict[str, Any]], panels: list[tuple[str, list[float]]], height: int, below: str, shapes: list[Any]
) -> "go.Figure":
    """Return panels one above the other on one horizontal axis, each named by its vertical axis."""
    lowest = "y" if len(panels) == 1 else f"y{len(panels)}"
    fig = figure(
        data,
        height=height,
        shapes=shapes,
        xaxis={"title": {"text": below}, "zeroline": False, "anchor": lowest},
        yaxis={"title": {"text": panels[0][0]}, "domain": panels[0][1]},
    )
    own = fig.layout.yaxis.to_plotly_json()
    for k, (title, domain) in enumerate(panels[1:], 2):
        fig.update_layout({f"yaxis{k}": merged(own, {"title": {"text": title}, "domain": domain, "nticks": 4})})
    return fig


def _rate(one: xr.Dataset) -> tuple[float, str, str]:
    rate = one.attrs.get("sampling_rate", "unknown")
    return (1.0, "cycles/step", "steps") if isinstance(rate, str) else (float(rate), "Hz", "s")


def _decay_time(rate: Any) -> Any:
    """Decay times of decay rates; none where a wave does not decay."""
    return np.where(rate > 0, 1 / np.where(rate > 0, rate, 1.0), np.nan)
