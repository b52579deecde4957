"""One look for all figures, and the escaping of names that Plotly would read as HTML."""

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

INK, MUTED, RULE, PAPER = "#1b1f24", "#5b6470", "#e3e5e8", "#ffffff"
# Blue and orange stay apart in every common colour-vision deficiency; direction has colour, size is grey.
TOWARD, AWAY, NEUTRAL = "#c2410c", "#1d5fa8", "#9aa3ad"
DIVERGING = [[0.0, AWAY], [0.25, "#8fb8de"], [0.5, "#f6f6f4"], [0.75, "#eda77a"], [1.0, TOWARD]]
SEQUENTIAL = [[0.0, "#f6f6f4"], [0.33, "#c9d0d8"], [0.66, "#818d9a"], [1.0, "#333c47"]]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Above a plot, and below one whose entries are many: a legend beside it would take the width of a phone.
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12, "color": MUTED}}
LEGEND_BELOW = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "font": {"size": 12}, "itemwidth": 30}

_AXIS = {
    "gridcolor": RULE,
    "zerolinecolor": "#b9c0c7",
    "zerolinewidth": 1,
    "ticks": "outside",
    "ticklen": 5,
    "tickcolor": "rgba(0,0,0,0)",
    "automargin": True,
    "fixedrange": True,
    "title": {"font": {"size": 12, "color": MUTED}, "standoff": 8},
    "tickfont": {"size": 12, "color": INK},
}


def text(name: object, limit: int | None = None) -> str:
    """Return `name` so that Plotly, which renders a subset of HTML in labels, shows it letter by letter.

    Names longer than `limit` characters lose their end; control characters become spaces.

    Examples
    --------
    >>> from oplens.figures.style import text
    >>> text("<b>C3</b>"), text("a very long channel name", limit=10)
    ('&lt;b&gt;C3&lt;/b&gt;', 'a very lo…')
    """
    plain = "".join(c if c.isprintable() else " " for c in str(name))
    if limit is not None and len(plain) > limit:
        plain = plain[: limit - 1] + "…"
    return html.escape(plain).replace("&quot;", "&#34;")  # Plotly knows numbered entities, and few by name


def number(value: float, digits: int = 2, signed: bool = False) -> str:
    """Return `value` with a true minus sign, and more digits where these would leave none that counts.

    Examples
    --------
    >>> from oplens.figures.style import number
    >>> number(-0.5), number(0.25, signed=True), number(0.0012), number(1e-12)
    ('−0.50', '+0.25', '0.0012', '1.0e−12')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    sign, size = "+" if signed else "", abs(value)
    if value != 0 and (size < 1e-4 or size >= 1e5):
        return f"{value:{sign}.1e}".replace("-", "−")
    if 0 < size < 10 ** (1 - digits):
        digits = 1 - math.floor(math.log10(size))
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def figure(data: Sequence[dict[str, Any]], height: int, **layout: Any) -> "go.Figure":
    """Return a Plotly figure of `data` in the one look; `xaxis` and `yaxis` are merged over it."""
    import plotly.graph_objects as go

    axes = {name: merged(_AXIS, layout.pop(name, {})) for name in ("xaxis", "yaxis")}
    base = {
        "template": {},
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "showlegend": False,
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": "#c7cdd4", "font": {"family": FONT, "size": 12, "color": INK}},
        "hovermode": "closest",
        "dragmode": False,
    }
    return go.Figure(data=list(data), layout={**base, **axes, **layout})


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return `first` updated by `second`, inner dictionaries key by key."""
    result = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def significant(value: float) -> str:
    """Return `value` with three significant digits.

    Examples
    --------
    >>> from oplens.figures.style import significant
    >>> significant(233.571), significant(0.012345)
    ('234', '0.0123')
    """
    return number(value) if not math.isfinite(value) else f"{value:.3g}".replace("-", "−")


def cell(value: float, largest: float, signed: bool = False) -> str:
    """Return a number for a cell of a map: as many digits as the largest value deserves, "0" for what rounds to nothing."""
    if math.isnan(value):
        return "–"
    digits = 2 if largest >= 0.095 else int(min(6, 1 - math.floor(math.log10(largest)))) if largest > 0 else 0
    if abs(value) < 0.5 * 10**-digits:
        return "0"
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def ticks(labels: Sequence[str], limit: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an axis that puts `labels` at 0, 1, 2, ...: categories would merge equal names and read "1" as a number."""
    return merged(
        {
            "tickmode": "array",
            "tickvals": list(range(len(labels))),
            "ticktext": [text(label, limit) for label in labels],
            "showgrid": False,
            "zeroline": False,
            "autotickangles": [0, -45, -90],
            "ticklabeloverflow": "allow",
            "range": [-0.5, len(labels) - 0.5],
        },
        more,
    )


def colourbar() -> dict[str, Any]:
    """Return a slim horizontal colour bar above the plot: on a phone the width belongs to the data."""
    return {
        "orientation": "h",
        "thickness": 8,
        "len": 0.7,
        "x": 0.5,
        "y": 1.0,
        "yref": "container",
        "yanchor": "top",
        "ypad": 22,
        "outlinewidth": 0,
        "nticks": 5,
        "tickfont": {"size": 11, "color": MUTED},
    }


def bar_title(words: str) -> dict[str, Any]:
    """Return layout entries that name the colour bar: its own title would be drawn over it at the top edge."""
    title = {
        "text": words,
        "font": {"size": 11, "color": MUTED},
        "x": 0.5,
        "xanchor": "center",
        "xref": "paper",
        "y": 1.0,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 2},
        "automargin": False,
    }
    return {"title": title, "margin": {"l": 8, "r": 12, "t": 62, "b": 8}}
