"""Where single heads look: token by token, of one case."""

import html
import math
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.figures.style import PAPER, figure, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

HEIGHT = 344
_LABELS = 22  # as many as fit beside a map of that height
_CUT = 9  # letters of a token's text that stand beside a map
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
# Shades by the square root of the weight: a hundredth is still seen.
SHADES = ("#f4f4f2", "#d5dae0", "#aab3bd", "#7d8894", "#525c68", "#1b1f24")
_SCALE = [[(k / (len(SHADES) - 1)) ** 2, shade] for k, shade in enumerate(SHADES)]


def attention_map(maps: xr.Dataset, rank: int) -> "go.Figure":
    """Draw the attention of one head in one case: rows are the tokens that look, columns those they look at.

    All maps have one scale, from weight 0 to 1; shades grow with the square root. What a causal model hides stays blank.

    Parameters
    ----------
    maps
        The group `/attention_maps`: `weight` (rank, token, token_2), with the tokens' texts as coordinate `text` over token.
    rank
        Value of the coordinate `rank`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from oplens.figures.attention_maps import attention_map
    >>> weight = (("rank", "token", "token_2"), np.array([[[1.0, 0.0], [0.25, 0.75]]]))
    >>> ds = xr.Dataset({"weight": weight}, coords={"rank": [0], "text": ("token", ["a", " b"])})
    >>> (trace,) = attention_map(ds, 0).data
    >>> trace.y, bool(np.isnan(trace.z[0, 1]))
    (('0 a', '1 ␣b'), True)
    """
    known = maps["rank"].values if "rank" in maps.coords else np.arange(maps.sizes["rank"])
    found = np.flatnonzero(known == rank)
    if not found.size:
        raise ArgumentError(
            f"attention_map(rank={rank}): this result holds ranks {', '.join(map(str, known.tolist()))}."
        )
    weight = maps["weight"].transpose("rank", "token", "token_2").values
    shown = weight[found[0]].astype(np.float32)
    if causal(maps):
        shown[np.triu_indices(len(shown), 1)] = np.nan
    names = _names(maps)
    trace = {
        "type": "heatmap",
        "z": shown,
        "x": names,
        "y": names,
        "zmin": 0.0,
        "zmax": 1.0,
        "colorscale": _SCALE,
        "showscale": False,
        "xgap": 0.5 if len(names) <= 32 else 0,
        "ygap": 0.5 if len(names) <= 32 else 0,
        "hovertemplate": "<b>%{y}</b><br>looks at <b>%{x}</b><br>weight %{z:.3f}<extra></extra>",
        "hoverongaps": False,
    }
    ticks = _ticks(maps, names)
    # Labels decide, not how a browser measures them: maps of one case line up.
    room = 12 + round(6.2 * max(_width(html.unescape(label)) for label in ticks["ticktext"]))
    return figure(
        [trace],
        height=HEIGHT,
        margin={"l": room, "r": 6, "t": 6, "b": room},
        plot_bgcolor=PAPER,
        xaxis={**ticks, "tickangle": -90, "title": {"text": ""}},
        yaxis={**ticks, "autorange": "reversed", "title": {"text": ""}},
    )


def causal(maps: xr.Dataset) -> bool:
    """Whether no head that is drawn looks ahead anywhere: then blank says so better than white."""
    weight = maps["weight"].transpose("rank", "token", "token_2").values
    ahead = np.triu_indices(weight.shape[-1], 1)
    return not np.nan_to_num(weight[:, ahead[0], ahead[1]]).any()


def token_text(value: object, limit: int | None = None) -> str:
    r"""Return a token's text with spaces, line ends and control characters made visible; not yet escaped.

    Examples
    --------
    >>> from oplens.figures.attention_maps import token_text
    >>> token_text(" the"), token_text("a\n"), token_text("\x07"), token_text(""), token_text("extraordinary", 6)
    ('␣the', 'a↵', '\\x07', '∅', 'extra…')
    """
    plain = str(value)
    # A mark without its letter would sit on whatever stands before it.
    alone = "◌" if plain and unicodedata.category(plain[0])[0] == "M" else ""
    shown = alone + "".join(_letter(c) for c in plain) or "∅"
    if limit is None or _width(shown) <= limit:
        return shown
    while _width(shown) > limit - 1:
        shown = shown[:-1]
    return shown + "…"


def _width(shown: str) -> int:
    """Columns that a text takes: Chinese, Japanese and Korean letters take two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in shown)


def _letter(c: str) -> str:
    if c in _SHOWN:
        return _SHOWN[c]
    # Signs that turn the writing direction or take no width would show another text than is there.
    if unicodedata.category(c)[0] in "CZ":
        code = ord(c)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return c


def _names(maps: xr.Dataset) -> list[str]:
    """Position and text: names of their own for equal tokens, and what the hover label says."""
    positions = maps["token"].values if "token" in maps.coords else np.arange(maps.sizes["token"])
    return [text(f"{p} {token_text(t, 24)}") for p, t in zip(positions, _texts(maps), strict=True)]


def _texts(maps: xr.Dataset) -> NDArray[Any]:
    return maps["text"].values if "text" in maps else np.full(maps.sizes["token"], "")


def _ticks(maps: xr.Dataset, names: list[str]) -> dict[str, Any]:
    step = max(1, math.ceil(len(names) / _LABELS))
    plain = "text" not in maps
    labels = [text(n.split(" ")[0] if plain else token_text(t, _CUT)) for n, t in zip(names, _texts(maps), strict=True)]
    return {
        "type": "category",
        "tickmode": "array",
        "tickvals": names[::step],
        "ticktext": labels[::step],
        "showgrid": False,
        "zeroline": False,
        "ticklen": 2,
        "automargin": False,
        "tickfont": {"size": 10},
    }
