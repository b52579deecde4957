"""A built model at work on one input: what its positions hold after each layer, and where they looked (groups `/construction_...`)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.style import (
    AWAY,
    INK,
    MUTED,
    NEUTRAL,
    RULE,
    SEQUENTIAL,
    TOWARD,
    bar_title,
    colourbar,
    figure,
    number,
    significant,
    text,
    ticks,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_WIDTH, _LETTER, _LINE = 232, 6.7, 14  # pixels: of all boxes on a phone, of a letter, of a line of text
_WASH, _WARM = "#eef3f9", "#fbe3d6"


def construction_flow(states: xr.Dataset, maps: xr.Dataset, terms: xr.Dataset, case: int = 0) -> "go.Figure":
    """Draw what every position holds after each layer, boxed where the answer is made of it, with lines to where it looked.

    Orange: not what should be there. Grey: held, but the answer does not use it.

    Parameters
    ----------
    states, maps, terms
        Groups `/construction_states`, `/construction_maps`, `/construction_terms`.
    case
        Which input.
    """
    one, weights, answer = (_one("construction_flow", ds, case) for ds in (states, maps, terms))
    n, layers = one.sizes["token"], one.sizes["layer"]
    names = [str(name) for name in one["text"].values]
    used, wrong = one["used"].values.astype(bool), one["wrong"].values.max(-1) > 0
    joined = one.attrs.get("what") == "symbol" and all(len(name) == 1 for name in names)
    cells = [[_lines(_held(one, names, layer, i), n, joined) for i in range(n)] for layer in range(layers)]
    rows = _Rows.of([*(max(len(cell) for cell in row) for row in cells), 1])
    given, wanted = answer["answer"].values, answer["wanted"].values
    right = np.allclose(given, wanted, rtol=0, atol=float(one.attrs["error_bound"]))
    shapes = [_box(i, rows, layer, wrong[layer, i]) for layer in range(layers) for i in range(n) if used[layer, i]]
    shapes.append(_box(n - 1, rows, layers, not right))
    words = [text(", ".join(significant(float(value)) for value in values[:3]), 24) for values in (given, wanted)]
    place = {"y": rows.centres[-1], "showarrow": False}
    notes = [{**place, "x": n - 1, "text": f"<b>{words[0]}</b>", "font": {"size": 13, "color": INK}}]
    if n > 1:
        look = {"xanchor": "right", "font": {"size": 12, "color": MUTED if right else TOWARD}}
        # A difference that shows is no equality, though the bound allows it.
        bound = (
            f", {'within' if right else 'beyond'} the bound"
            if words[0] != words[1] and one.attrs["error_bound"] > 0
            else ""
        )
        notes.append({**place, "x": n - 1.6, "text": f"function: {words[1]}{bound} {'✓' if right else '✗'}", **look})
    names_of_rows = ["input", *(f"layer {layer}" for layer in range(1, layers)), "answer"]
    return figure(
        [
            _looks(weights["weight"].values, used, rows),
            _labels(cells, used, wrong, rows),
            _hover(one, cells, names, rows),
        ],
        height=int(70 + rows.height),
        shapes=shapes,
        annotations=notes,
        xaxis=ticks([str(i + 1) for i in range(n)], side="top", title={"text": "position"}, range=[-0.55, n - 0.45]),
        yaxis=ticks(names_of_rows, tickvals=rows.centres, range=[rows.height, 0], title={"text": ""}),
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of boxes, in pixels from the top: their centres and half heights, and the height of all."""

    centres: list[float]
    halves: list[float]
    height: float

    @classmethod
    def of(cls, lines: list[int]) -> "_Rows":
        """Rows of so many lines of text, with room for the lines between them."""
        halves = [(12 + _LINE * max(1, count)) / 2 for count in lines]
        tops = np.cumsum([6.0, *(2 * half + 24 for half in halves)])
        return cls([float(t + h) for t, h in zip(tops, halves, strict=False)], halves, float(tops[-1]) - 16)


def attention_by_layer(maps: xr.Dataset, states: xr.Dataset, case: int = 0) -> "go.Figure":
    """Draw the attention of every layer that attends as maps: rows look at columns; marked rows are those that the answer uses.

    Parameters
    ----------
    maps, states
        Groups `/construction_maps` and `/construction_states`.
    case
        Which input.
    """
    one, held = _one("attention_by_layer", maps, case), _one("attention_by_layer", states, case)
    weights = one["weight"].values
    attending = [
        (layer, head)
        for layer in range(weights.shape[0])
        for head in range(weights.shape[1])
        if not np.isnan(weights[layer, head]).all()
    ]
    names = [str(name) for name in one["text"].values]
    n, used = len(names), held["used"].values.astype(bool)
    columns = min(2, max(1, len(attending)))
    rows = -(-max(1, len(attending)) // columns)
    data, axes, notes, top = [], {}, [], float(np.nanmax(weights, initial=0.0)) or 1.0
    labels = names if n <= 12 else [""] * n
    for place, (layer, head) in enumerate(attending):
        column, row = place % columns, place // columns
        suffix = "" if place == 0 else str(place + 1)
        data.append(_map(weights[layer, head], used[layer + 1], names, suffix, top))
        left, top = column / columns, 1 - row / rows
        domain = [left + 0.06 * (column > 0), left + 1 / columns - 0.06 * (column < columns - 1)]
        heights = [top - 0.86 / rows, top - 0.1 / rows]
        axes[f"xaxis{suffix}"] = ticks(
            labels, 5, domain=domain, anchor=f"y{suffix}", autotickangles=[0], constrain="domain"
        )
        axes[f"yaxis{suffix}"] = ticks(
            labels,
            5,
            domain=heights,
            anchor=f"x{suffix}",
            scaleanchor=f"x{suffix}",
            constrain="domain",
            range=[n - 0.5, -0.5],
        )
        words = f"layer {int(one['layer'][layer])}" + (f", head {head + 1}" if weights.shape[1] > 1 else "")
        notes.append(_heading(words, sum(domain) / 2, heights[1]))
    return _panels(data, 60 + 210 * rows, axes, notes)


def answer_terms(terms: xr.Dataset, case: int = 0, output: int = 0) -> "go.Figure":
    """Draw the terms that an answer is the sum of as bars, largest first, with the constant and what is left.

    Parameters
    ----------
    terms
        Group `/construction_terms`.
    case, output
        Which input, and which number of its answer.
    """
    one = _one("answer_terms", terms, case).isel(quantity=output)
    kept = np.flatnonzero(~np.isnan(one["contribution"].values))
    rows = [("constant", float(one["constant"]))]
    rows += [(str(one["member"].values[k]), float(one["contribution"].values[k])) for k in kept]
    left = int(one["n_terms"]) - len(kept)
    if left > 0:
        rows.append((f"{left:,} smaller terms", float(one["rest"])))
    rows.append(("answer", float(one["answer"])))
    values = np.array([value for _, value in rows])
    colours = [NEUTRAL, *(TOWARD if v > 0 else AWAY for v in values[1:-1]), INK]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values.astype(np.float32),
        "y": np.arange(len(rows)),
        "marker": {"color": colours},
        "text": [number(value, 3, signed=True) for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": [f"{text(name, 60)}: {number(value, 6)}<extra></extra>" for name, value in rows],
    }
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.42 * ((high - low) or 1.0)
    return figure(
        [trace],
        height=70 + 25 * len(rows),
        bargap=0.35,
        xaxis={"title": {"text": "added to the answer"}, "range": [low - room * (low < 0), high + room], "nticks": 5},
        yaxis=ticks([name for name, _ in rows], 22, range=[len(rows) - 0.4, -0.6], title={"text": ""}),
    )


def _one(call: str, ds: xr.Dataset, case: int) -> xr.Dataset:
    if isinstance(case, bool) or not 0 <= case < ds.sizes["case"]:
        raise ArgumentError(f"{call}(case={case!r}): this result holds inputs 0 to {ds.sizes['case'] - 1}.")
    return ds.isel(case=case)


def _held(one: xr.Dataset, names: list[str], layer: int, position: int) -> list[str]:
    """What a position holds, by input position; "?" where it should hold something and nothing can be read."""
    known, wrong = one["known"].values[layer, position], one["wrong"].values[layer, position]
    symbols = one.attrs.get("what") == "symbol"
    own = {float(v): names[j] for j, v in enumerate(one["known"].values[0].diagonal()) if not np.isnan(v)}
    found = []
    for value, bad in zip(known.tolist(), wrong.tolist(), strict=True):
        if np.isnan(value):
            found += ["?"] if bad else []
        else:
            # Names are those of the input; another symbol, which only a wrong model holds, is shown as its number.
            found.append(own.get(value, f"{value:g}") if symbols else significant(value))
    return found


def _lines(parts: list[str], n: int, joined: bool) -> list[str]:
    """Break what a cell holds into lines that fit its column on a phone; `joined`: symbols of one letter."""
    letters = max(1, int(_WIDTH / n / _LETTER))
    gap = "" if joined else " "
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(gap) + len(part) <= letters:
            lines[-1] += gap + part
        else:
            lines.append(part)
    return lines


def _labels(cells: list[list[list[str]]], used: Any, wrong: Any, rows: _Rows) -> dict[str, Any]:
    places = [(layer, i) for layer, row in enumerate(cells) for i, lines in enumerate(row) if lines]
    colours = [TOWARD if wrong[p] else INK if used[p] else NEUTRAL for p in places]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [i for _, i in places],
        "y": [rows.centres[layer] for layer, _ in places],
        "text": ["<br>".join(text(line) for line in cells[layer][i]) for layer, i in places],
        "textfont": {"family": _MONO, "size": 11, "color": colours},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _hover(one: xr.Dataset, cells: list[list[list[str]]], names: list[str], rows: _Rows) -> dict[str, Any]:
    told = []
    for layer, row in enumerate(cells):
        for i, lines in enumerate(row):
            words = (
                f"position {i + 1} (input {text(names[i], 20)}) after layer {layer}" if layer else f"position {i + 1}"
            )
            words += f"<br>holds {text(' '.join(lines), 60) or 'nothing'}"
            if layer:
                words += f"<br>{int(one['firing'].values[layer, i]):,} hidden units fire"
            told.append((i, rows.centres[layer], words))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row[0] for row in told],
        "y": [row[1] for row in told],
        "marker": {"size": 24, "color": "rgba(0,0,0,0)"},
        "customdata": [row[2] for row in told],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _looks(weights: Any, used: Any, rows: _Rows) -> dict[str, Any]:
    """Lines from every position that the answer uses to those that it looked at, and from itself."""
    x: list[float | None] = []
    y: list[float | None] = []
    last = used.shape[1] - 1
    for layer in range(len(weights) + 1):
        links = [(last, last)]  # into the answer
        if layer < len(weights):
            links = [
                (source, int(i)) for i in np.flatnonzero(used[layer + 1]) for source in _sources(weights[layer], int(i))
            ]
        for source, target in links:
            x += [float(source), float(target), None]
            y += [rows.centres[layer] + rows.halves[layer], rows.centres[layer + 1] - rows.halves[layer + 1], None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": AWAY, "width": 1.4},
        "hoverinfo": "skip",
    }


def _sources(heads: Any, position: int) -> list[int]:
    """Where a position looks: itself, by the skip connection, and what has at least half of its largest weight."""
    looked = [
        np.flatnonzero(head[position] >= head[position].max() / 2) for head in heads
    ]  # none where weights are NaN
    return sorted({position, *(int(j) for found in looked for j in found)})


def _box(x: int, rows: _Rows, row: int, wrong: bool) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": x - 0.46,
        "x1": x + 0.46,
        "y0": rows.centres[row] - rows.halves[row],
        "y1": rows.centres[row] + rows.halves[row],
        "line": {"color": TOWARD if wrong else AWAY, "width": 1.2},
        "fillcolor": _WARM if wrong else _WASH,
        "layer": "below",
    }


def _map(weight: Any, used: Any, names: list[str], suffix: str, top: float) -> dict[str, Any]:
    rows = [
        [
            f"position {i + 1} ({text(names[i], 12)}){', used by the answer,' if used[i] else ''} looks at {j + 1} ({text(names[j], 12)})"
            for j in range(len(names))
        ]
        for i in range(len(names))
    ]
    return {
        "type": "heatmap",
        "z": weight.astype(np.float32),
        "zmin": 0,
        "zmax": top,
        "colorscale": SEQUENTIAL,
        "showscale": not suffix,
        "colorbar": {**colourbar(), "nticks": 4},
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "xgap": 1,
        "ygap": 1,
        "customdata": rows,
        "hovertemplate": "%{customdata}: <b>%{z:.3~g}</b><extra></extra>",
    }


def _heading(words: str, x: float, y: float) -> dict[str, Any]:
    return {
        "text": words,
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "center",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": MUTED},
    }


def _panels(data: list[dict[str, Any]], height: int, axes: dict[str, Any], notes: list[dict[str, Any]]) -> "go.Figure":
    """Several panels in the one look."""
    first = {name: axes.pop(name) for name in ("xaxis", "yaxis") if name in axes}
    fig = figure(data, height=height, **bar_title("attention weight"), annotations=notes, **first)
    for name, axis in axes.items():
        look = fig.layout["xaxis" if name.startswith("x") else "yaxis"].to_plotly_json()
        fig.update_layout({name: {**look, **axis}})
    fig.update_layout(plot_bgcolor=RULE if data else None)
    return fig
