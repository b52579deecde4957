"""Pairs of parts: where two parts act together."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.contrast import (
    Direction,
    axis_title,
    difference,
    direction,
    magnitude,
    part_labels,
    table_dimensions,
    wave_bins,
)
from oplens.figures.style import DIVERGING, SEQUENTIAL, bar_title, cell, colourbar, figure, number, text, ticks

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LIMIT = 24


def pair_map(
    pairs: xr.Dataset,
    order: int | None = None,
    measure: str = "difference",
    toward: str | None = None,
    side: Direction | None = None,
) -> "go.Figure":
    """Draw the symmetric matrix of pair shares.

    Waves are gathered into frequency bins, over all channels, bands and windows that they stand with; of more than 24 other
    parts the largest are kept.

    Parameters
    ----------
    pairs
        A result of `op.explain(by=Pairs(...))` without `top`.
    order
        2 to K; the lowest by default.
    measure
        "difference": mean over one class minus mean over the other; "magnitude": mean absolute share (class means of
        pairs hold no single cases: there the mean of the absolute class means); "own": of class means on each case's own
        class, those of the class `toward`.
    side
        Direction of the target where `pairs` holds no target of its own.
    """
    if "rank" in pairs["pair_share"].dims:
        raise ArgumentError("pair_map: this result holds only the largest pairs of each case; use pair_ranking.")
    order = int(pairs["order"].values[0]) if order is None else order
    if measure != "own" and side is None and (measure == "difference" or "case" in pairs["pair_share"].dims):
        side = direction(pairs, toward)
    share = pairs["pair_share"].sel(order=order)
    matrix = _own(share, toward) if measure == "own" else _matrix(pairs, share, measure, side)
    table, labels = _binned(pairs, matrix) if "wave" in matrix.dims else _flat(pairs, matrix)
    title = axis_title(pairs, "wave_frequency") if "wave" in matrix.dims else ""
    top = float(np.nanmax(np.abs(table), initial=0.0)) or 1.0
    signed = measure != "magnitude"
    words = {"difference": "difference of mean shares", "own": "mean pair share"}.get(
        measure, "mean absolute pair share"
    )
    hover = [
        [
            f"{text(a, 40)} with {text(b, 40)}<br><b>{number(v, 3, signed)}</b>"
            for b, v in zip(labels, line, strict=True)
        ]
        for a, line in zip(labels, table, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "z": table.astype(np.float32),
        "zmin": -top if signed else 0.0,
        "zmax": top,
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "xgap": 1,
        "ygap": 1,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorbar": colourbar(),
    }
    if len(labels) <= 8:
        trace |= {
            "text": [[cell(v, top, signed) for v in line] for line in table],
            "texttemplate": "%{text}",
            "textfont": {"size": 11},
        }
    return figure(
        [trace],
        height=150 + max(18 * len(labels), 30 * min(len(labels), 6)),
        **bar_title(f"{words} (logit units)"),
        xaxis=ticks(labels, 24, **_columns(title, len(labels))),
        yaxis=ticks(labels, 24, autorange="reversed", title={"text": ""}),
    )


def _columns(title: str, count: int) -> dict[str, Any]:
    """The matrix is symmetric: beyond eight parts the columns' names would only overlap on a phone."""
    if count <= 8:
        return {"title": {"text": title}}
    return {"title": {"text": f"{title}, as in the rows" if title else "as in the rows"}, "showticklabels": False}


def pair_ranking(pairs: xr.Dataset, n: int = 15) -> "pd.DataFrame":
    """Return the pairs that are most often among the largest: one row per unordered pair.

    Columns: `pair`, `cases` (how many cases rank it), `share` and `size` (mean content and mean absolute content over
    those cases, logit units).
    """
    import pandas as pd

    share = pairs["pair_share"]
    if "rank" not in share.dims:
        raise ArgumentError("pair_ranking: this result holds whole matrices; use pair_map.")
    if "order" in share.dims:
        share = share.isel(order=0)
    members = np.stack([pairs["member"].values.ravel(), pairs["member_2"].values.ravel()]).astype(str)
    names = [" × ".join(sorted(pair)) for pair in members.T.tolist()]
    frame = pd.DataFrame({"pair": names, "share": share.values.ravel()})
    grouped = frame.assign(size=frame["share"].abs()).groupby("pair")
    table = pd.DataFrame({"cases": grouped.size(), "share": grouped["share"].mean(), "size": grouped["size"].mean()})
    table["total"] = table["cases"] * table["size"]
    table = table.sort_values("total", ascending=False).head(n).reset_index()
    return table[["pair", "cases", "share", "size"]]


def _own(share: xr.DataArray, toward: str | None) -> xr.DataArray:
    """Class means of one class."""
    names = [str(value) for value in share["class"].values]
    if "case" in share.dims or toward not in names:
        raise ArgumentError(
            f"pair_map(measure='own', toward={toward!r}): give class means and one of {', '.join(names)}."
        )
    return share.isel({"class": names.index(toward)})


def _matrix(pairs: xr.Dataset, share: xr.DataArray, measure: str, side: Direction | None) -> xr.DataArray:
    if "case" in share.dims:
        if "class" in share.dims and side is not None:
            share = share.isel({"class": side.index or 0})
        return difference(share, side) if measure == "difference" and side is not None else magnitude(share)
    if measure != "difference":
        return abs(share).mean("class")
    names = [str(value) for value in pairs["class"].values]
    if side is None or side.name not in names or side.against not in names:
        raise ArgumentError(f"pair_map: the class means are of {', '.join(names)}; side must compare two of these.")
    return share.isel({"class": names.index(side.name)}) - share.isel({"class": names.index(side.against)})


def _binned(pairs: xr.Dataset, matrix: xr.DataArray) -> tuple[np.ndarray, list[str]]:
    if "frequency" not in pairs:
        raise ArgumentError(
            "pair_map: waves are gathered by frequency, but the result holds no coordinate 'frequency'."
        )
    index, names = wave_bins(pairs["frequency"].transpose("feature", "wave"))
    one_hot = np.eye(len(names))[index]
    others = [dimension for dimension in matrix.dims if dimension not in ("feature", "wave", "wave_2")]
    values = matrix.sum(others).transpose("feature", "wave", "wave_2").values
    return np.einsum("fnm,fni,fmj->ij", values, one_hot, one_hot), names


def _flat(pairs: xr.Dataset, matrix: xr.DataArray) -> tuple[np.ndarray, list[str]]:
    dims = table_dimensions(pairs)
    values = matrix.transpose(*dims, *(f"{name}_2" for name in dims)).values
    names = [""]
    for name in dims:
        own = part_labels(pairs, name)
        names = [f"{a} · {b}" if a else b for a in names for b in own]
    values = values.reshape(len(names), len(names))
    if len(names) > LIMIT:
        keep = np.sort(np.argsort(-np.abs(values).sum(1))[:LIMIT])
        values, names = values[np.ix_(keep, keep)], [names[k] for k in keep]
    return values, names
