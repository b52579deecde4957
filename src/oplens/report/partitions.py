"""Partitions as sections: which dimensions the parts have decides which question is answered, and how it is drawn."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from oplens import figures
from oplens.figures.contrast import (
    Direction,
    difference,
    frequency_units,
    part_labels,
    shares,
    table_dimensions,
)
from oplens.figures.style import cell, number, significant
from oplens.report.blocks import Limits, Picture, Section, Switch, Table, slug, switched

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Drawer = Callable[[str, str | None], "go.Figure"]

_WORDS = {
    "feature": "",
    "wave": "wave",
    "channel": "channel",
    "band": "frequency band",
    "window": "time window",
    "wave_frequency": "wave frequency",
}
ONE_SIDED = "The cases are all of one class, so that classes cannot be compared."
_TITLES = {
    ("channel", "band"): "Where, and at which frequencies?",
    ("channel", "window"): "Where, and when?",
    ("band", "window"): "At which frequencies, and when?",
    ("channel", "band", "window"): "Where, at which frequencies, and when?",
    ("channel",): "Which channels?",
    ("band",): "Which frequencies?",
    ("window",): "When in the case?",
    ("feature", "wave"): "Which waves?",
}


def partitions(tree: xr.DataTree) -> dict[str, xr.Dataset]:
    """Return the partitions of a file, input parts before windows before waves."""
    found = {}
    for name, node in tree.children.items():
        dataset = node.to_dataset(inherit=False)
        if "target" in dataset and any(v in dataset for v in ("share", "full_share", "layer_share")):
            found[str(name)] = dataset
    return dict(sorted(found.items(), key=lambda item: (_rank(item[1]), item[0])))


def _rank(dataset: xr.Dataset) -> tuple[int, int]:
    dims = table_dimensions(dataset)
    place = 0 if "layer_share" in dataset else 3 if "wave" in dims else 2 if dims == ("window",) else 1
    return place, -len(dims)


def partition_section(name: str, partition: xr.Dataset, limits: Limits) -> Section:
    """Shares of one partition: a map, a course, bars, the wave plane or the layers."""
    if "layer_share" in partition:
        return _layer_section(name, partition)
    dims = table_dimensions(partition)
    if dims == ("feature", "wave"):
        return _wave_section(name, partition, limits)
    if dims == ("window",):
        draw: dict[str, Drawer] = {
            "Share of each time window, by class": lambda order, toward: figures.share_course(partition, order, toward)
        }
        shown = "Line: mean over the cases of a class; shaded: the middle 80 % of its cases."
    elif len(dims) == 1:
        draw = {"Share of each part, by class": lambda order, toward: figures.share_bars(partition, order, toward)}
        shown = "Dot: mean over the cases of a class; line: the middle 80 % of its cases."
    else:
        plane, summed = _plane(partition)
        draw = {
            "Difference between the classes": lambda order, toward: figures.share_map(
                plane, order, "difference", toward
            ),
            "Mean size, whatever the sign": lambda order, toward: figures.share_map(plane, order, "magnitude", toward),
        }
        shown = "First map: mean share over the cases of {a} minus that over the cases of {b}. Second map: mean absolute share over all cases."
        if not any(side.comparable for side in figures.directions(partition)):
            draw.pop("Difference between the classes")
            shown = f"Mean absolute share over all cases. {ONE_SIDED}"
        if summed:
            words = " and ".join(f"{_WORDS[dimension]}s" for dimension in summed)
            shown = f"Shares are summed over {words} here; the file holds every one. {shown}"
    return _shares_section(name, partition, draw, shown, limits)


def _plane(partition: xr.Dataset) -> tuple[xr.Dataset, tuple[str, ...]]:
    """Return the partition with shares summed until a map can show it, and the dimensions that went."""
    dims = table_dimensions(partition)
    inputs = [dimension for dimension in dims if dimension not in ("feature", "wave")]
    summed = tuple(inputs[1 if "wave" in dims else 2 :])
    sums = {name: partition[name].sum(summed) for name in ("share", "full_share") if name in partition}
    return partition.assign(sums), summed


def _shares_section(
    name: str, partition: xr.Dataset, draw: Mapping[str, Drawer], shown: str, limits: Limits
) -> Section:
    sides = figures.directions(partition)
    switch, keys = _switch(name, partition, sides, limits)
    a, b = sides[0].sides if len(sides) == 1 else ("the chosen class", "the other classes")
    dims = table_dimensions(partition)
    caption = f"{shown.format(a=a, b=b)} {_claims(partition)} Logit units."
    pictures = [
        Picture(
            f"{slug(name)}-{k}",
            title,
            caption if len(draw) == 1 else "",
            _variants(keys, drawer),
            switch.id if switch else None,
        )
        for k, (title, drawer) in enumerate(draw.items())
    ]
    title = _TITLES.get(dims) or "Shares by " + " and ".join(word for d in dims if (word := _WORDS.get(d, d)))
    return Section(
        slug(name),
        _nav(dims),
        title,
        findings=[_largest(partition, sides[0])] if len(sides) == 1 else [],
        key=colour_key(sides),
        switch=switch,
        pictures=pictures,
        notes=[*([caption] if len(draw) > 1 else []), *_source_notes(partition)],
        tables=_class_table(partition, sides),
    )


def _wave_section(name: str, partition: xr.Dataset, limits: Limits) -> Section:
    sides = figures.directions(partition)
    switch, keys = _switch(name, partition, sides, limits)
    table = figures.wave_table(partition, toward=sides[0].name if len(sides) > 1 else None)
    n = len(table)
    held = float(table["size"][: limits.waves].sum() / (table["size"].sum() or 1.0))
    which = (
        f"the {limits.waves} largest of {n} waves, holding {100 * held:.0f} % of all absolute shares"
        if n > limits.waves
        else f"all {n} waves"
    )
    aliased = int(table["aliased"].sum())
    compared = any(side.comparable for side in sides)
    colour = "Colour: difference of mean shares between the classes." if compared else ONE_SIDED
    diamonds = (
        " Diamonds: aliased waves, faster than half the sampling rate, drawn at the frequency they appear to have."
        if aliased
        else ""
    )
    picture = Picture(
        f"{slug(name)}-0",
        "Every wave at its frequency and decay time",
        f"A wave is one damped oscillation of one hidden feature; shown are {which}. Area: mean absolute share. {colour}{diamonds} "
        f"{_claims(partition)}",
        _variants(keys, lambda order, toward: figures.wave_scatter(partition, order, toward, limits.waves)),
        switch.id if switch else None,
    )
    rows = _wave_rows(table.head(12))
    units = frequency_units(partition)
    times = "s" if units == "Hz" else "steps"
    against = f" (target: {sides[0].name})" if len(sides) > 1 else ""
    listed = Table(
        f"The twelve waves of largest mean absolute share, all orders together{against}.",
        ["wave", f"frequency ({units})", f"decay time ({times})", "aliased", "difference of classes", "mean size"],
        rows,
        frozenset({1, 2, 4, 5}),
    )
    _, frequency, decay, _, _, size = rows[0]
    return Section(
        slug(name),
        "Waves",
        "Which waves?",
        findings=[
            f"The largest share on average, {size} logit units, belongs to a wave at {frequency} {units} that decays in {decay} "
            f"{times}{against}. {aliased} of {n} waves are aliased."
        ],
        key=colour_key(sides),
        switch=switch,
        pictures=[picture],
        tables=[listed],
        notes=_source_notes(partition),
    )


def _wave_rows(table: "pd.DataFrame") -> list[list[str]]:
    """Waves as texts: name, frequency, decay time, aliased, difference, size."""
    largest = float(table["size"].max())
    return [
        [
            name,
            significant(frequency),
            significant(decay),
            "yes" if aliased else "no",
            cell(difference, largest, signed=True),
            cell(size, largest),
        ]
        for name, frequency, decay, aliased, difference, size in table.to_numpy().tolist()
    ]


def _layer_section(name: str, partition: xr.Dataset) -> Section:
    sides = figures.directions(partition)
    compared = [side for side in sides if side.comparable]
    switch, keys = switched(name, {"class": {side.name: side.name for side in compared or sides}})
    claim = str(partition["layer_share"].attrs.get("claim", "conditional"))
    titles = {"magnitude": "Mean size of each line", "difference": "Difference between the classes"}
    pictures = [
        Picture(
            f"{slug(name)}-{measure}",
            title,
            "",
            {key: figures.layer_account(partition, measure, toward) for key, (toward,) in keys.items()},
            switch.id if switch else None,
        )
        for measure, title in titles.items()
        if measure == "magnitude" or compared
    ]
    note = (
        f"Each line is the sum of its terms in one case, in logit units. Claim: {claim}. Gates, activation factors and norm scales are "
        "frozen at their values on each case; a layer's waves are counted through the residual path only, and what passes "
        "through later layers is in theirs."
    )
    return Section(
        slug(name),
        "Layers",
        "What does each layer contribute?",
        findings=[
            "This stack has no orders: with its gates and norms frozen it is affine, and its account is conditional on that. "
            "Large lines of opposite sign cancel; the check above says by how much."
        ],
        key=colour_key(sides),
        switch=switch,
        pictures=pictures,
        notes=[note] if compared else [note, ONE_SIDED],
    )


def _switch(
    name: str, partition: xr.Dataset, sides: tuple[Direction, ...], limits: Limits
) -> tuple[Switch | None, dict[str, tuple[str, str | None]]]:
    orders = figures.order_choices(partition)
    classes: dict[str, str] = {side.name: side.name for side in sides} if len(sides) > 1 else {}
    compared = {side.name: side.name for side in sides if side.comparable}
    classes = compared if classes and compared else classes
    if len(orders) * max(len(classes), 1) > limits.variants:
        orders = dict(list(orders.items())[:1])
        classes = dict(list(classes.items())[: limits.variants])
    switch, keys = switched(name, {"show": orders, "class": classes or {"": ""}})
    return switch, {key: (order, toward or None) for key, (order, toward) in keys.items()}


def _variants(keys: Mapping[str, tuple[str, str | None]], draw: Drawer) -> dict[str, "go.Figure"]:
    return {key: draw(order, toward) for key, (order, toward) in keys.items()}


def _largest(partition: xr.Dataset, side: Direction) -> str:
    found = _most_different(partition, side)
    if found is None:
        return ""
    a, b = side.sides
    return f"The classes differ most in {found[0]}: its mean share is {found[1]} in cases of {a} and {found[2]} in cases of {b}."


def _class_table(partition: xr.Dataset, sides: tuple[Direction, ...]) -> list[Table]:
    if len(sides) == 1:
        return []
    found = [(side.name, _most_different(partition, side)) for side in sides]
    rows = [[name, *words] for name, words in found if words is not None]
    caption = "Where each class stands out most, all orders together: the part whose mean share differs most between its own cases and all others."
    return [Table(caption, ["class", "part", "own cases", "other cases"], rows, frozenset({2, 3}))] if rows else []


def _most_different(partition: xr.Dataset, side: Direction) -> tuple[str, str, str] | None:
    """Return the part of largest difference in words, and its mean share on either side."""
    values = shares(partition, None, side)
    if "wave" in values.dims or not side.comparable:
        return None
    gap = difference(values, side)
    position = dict(zip(gap.dims, np.unravel_index(int(np.argmax(np.abs(gap.values))), gap.shape), strict=True))
    words = []
    for dimension, k in position.items():
        units = f" {frequency_units(partition)}" if dimension == "band" else ""
        label = f"{part_labels(partition, str(dimension))[int(k)]}{units}"
        words.append(f"window {label}" if dimension == "window" else label)
    chosen = values.isel({dimension: int(k) for dimension, k in position.items()}).values
    means = [float(chosen[mask].mean()) for mask in (side.toward, side.away)]
    own, other = (cell(mean, max(map(abs, means)), signed=True) for mean in means)
    return ", ".join(words), own, other


def _source_notes(partition: xr.Dataset) -> list[str]:
    sizes = figures.source_sizes(partition)
    if not sizes:
        return []
    listed = " · ".join(f"{name} {number(value)}" for name, value in sizes.items())
    return [f"Lines that are no part, mean absolute value in logit units: {listed}."]


def _claims(partition: xr.Dataset) -> str:
    words = {
        sentence: str(partition[name].attrs.get("claim", ""))
        for name, sentence in (("share", "orders are"), ("full_share", "the full readout is"))
        if name in partition
    }
    if len(set(words.values())) == 1:
        return f"Claim: {next(iter(words.values()))}."
    return f"Claim: {'; '.join(f'{sentence} {claim}' for sentence, claim in words.items())}."


def colour_key(sides: tuple[Direction, ...]) -> tuple[str, str] | None:
    """Return what orange and blue mean in a section."""
    if not sides:
        return None
    if len(sides) > 1:
        return "speaks for the chosen class", "speaks against it"
    side = sides[0]
    return f"speaks for {side.name}", "speaks against" if side.grouping == "sign" else f"speaks for {side.against}"


def _nav(dims: tuple[str, ...]) -> str:
    words = {"feature": "", "wave": "Waves", "channel": "Channels", "band": "Bands", "window": "Time"}
    return " × ".join(word for d in dims if (word := words.get(d, d)))
