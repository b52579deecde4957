"""Curves in two panels, one above the other, on a common axis."""

from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.figures.style import merged

if TYPE_CHECKING:
    import plotly.graph_objects as go


def curve(x: Any, y: Any, name: str, line: dict[str, Any], axis: str = "y") -> dict[str, Any]:
    """Return a line; those of the upper panel, axis "y", are in the legend, those of the lower one, "y2", are named by their axis."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": np.asarray(y, dtype=np.float32),
        "yaxis": axis,
        "line": line,
        "showlegend": axis == "y",
        "hovertemplate": f"%{{x:.4~g}}: {name} %{{y:.4~g}}<extra></extra>",
    }


def add_lower(fig: "go.Figure", top: float, words: str, **more: Any) -> None:
    """Give a figure a lower panel, up to `top` of the height, whose axis `y2` looks like the upper one but for `more`."""
    axis = fig.layout.yaxis.to_plotly_json()
    fig.update_layout(yaxis2=merged(axis, {"domain": [0, top], "title": {"text": words}, **more}))
