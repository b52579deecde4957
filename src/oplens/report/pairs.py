"""Pairs of parts as sections."""

import numpy as np
import xarray as xr

from oplens import figures
from oplens.errors import ArgumentError
from oplens.figures.contrast import Direction, table_dimensions
from oplens.figures.style import cell
from oplens.report.blocks import Limits, Picture, Section, Table, slug, switched
from oplens.report.partitions import ONE_SIDED, colour_key, partitions


def pair_sections(tree: xr.DataTree, limits: Limits) -> list[Section]:
    """Pairs of parts, as a matrix or as a ranking; one part alone has no pairs to show."""
    found = partitions(tree)
    sections = []
    for name, node in sorted(tree.children.items()):
        pairs = node.to_dataset(inherit=False)
        if "pair_share" in pairs and "rank" in pairs["pair_share"].dims:
            sections.append(_ranking_section(str(name), pairs))
        elif "pair_share" in pairs and any(pairs.sizes[d] > 1 for d in table_dimensions(pairs)):
            sections.append(_pair_section(str(name), pairs, _sides(pairs, found), limits))
    return sections


def _sides(pairs: xr.Dataset, found: dict[str, xr.Dataset]) -> tuple[Direction, ...]:
    try:
        return figures.directions(pairs)
    except ArgumentError:
        same = [p for p in found.values() if p.attrs.get("target") == pairs.attrs.get("target")]
        return figures.directions(same[0]) if same else ()


def _own_section(name: str, pairs: xr.Dataset, limits: Limits) -> Section:
    """Class means on the logit of each case's own class: one map per class, nothing to subtract."""
    orders = {str(int(o)): f"order {int(o)}" for o in np.atleast_1d(pairs["order"].values)}
    classes = {str(c): str(c) for c in pairs["class"].values}
    switch, keys = switched(name, {"show": orders, "class": classes})
    picture = Picture(
        f"{slug(name)}-own",
        "Mean over the cases of a class, on the logit of that class",
        "",
        {
            key: figures.pair_map(pairs, int(order), "own", toward=of)
            for key, (order, of) in list(keys.items())[: limits.variants]
        },
        switch.id if switch else None,
    )
    return Section(
        slug(name),
        f"{_pair_words(pairs).capitalize()} in pairs",
        f"Which {_pair_words(pairs)} act together?",
        switch=switch,
        pictures=[picture],
        notes=[_caption(pairs) + " Positive cells speak for the class, negative ones against it."],
    )


def _caption(pairs: xr.Dataset) -> str:
    dims = table_dimensions(pairs)
    summed = " and ".join(f"{name}s" for name in dims if name != "wave")
    meet = (
        f"Waves meet only inside a hidden feature; here all {summed} are added up in bins of frequency. "
        if "wave" in dims
        else ""
    )
    means = "" if "case" in pairs["pair_share"].dims else "From class means. "
    return (
        f"{meet}The matrix is symmetric: what an unordered pair holds is twice its off-diagonal cell; with the sources, rows add up to "
        f"the shares above. {means}Claim: {pairs['pair_share'].attrs.get('claim', '')}. Logit units."
    )


def _pair_section(name: str, pairs: xr.Dataset, sides: tuple[Direction, ...], limits: Limits) -> Section:
    cases = "case" in pairs["pair_share"].dims
    if not cases and not sides:
        return _own_section(name, pairs, limits)
    chosen = sides if cases and "class" in pairs["pair_share"].dims else sides[:1]
    orders = {str(int(o)): f"order {int(o)}" for o in np.atleast_1d(pairs["order"].values)}
    towards = {side.name: side for side in chosen}
    switch, keys = switched(name, {"show": orders, "class": {word: word for word in towards} or {"": ""}})
    shown = list(keys.items())[: limits.variants]
    # Class means hold no cases to count: two classes can be compared when both have a mean.
    means = [] if cases else [str(name) for name in pairs["class"].values]
    compared = all(side.comparable if cases else {side.name, side.against} <= set(means) for side in chosen)
    measures = (["difference", "magnitude"] if compared else ["magnitude"]) if sides else []
    titles = {"difference": "Difference between the classes", "magnitude": "Mean size, whatever the sign"}
    pictures = [
        Picture(
            f"{slug(name)}-{measure}",
            titles[measure],
            "",
            {key: figures.pair_map(pairs, int(order), measure, side=towards.get(of)) for key, (order, of) in shown},
            switch.id if switch else None,
        )
        for measure in measures
    ]
    return Section(
        slug(name),
        f"{_pair_words(pairs).capitalize()} in pairs",
        f"Which {_pair_words(pairs)} act together?",
        key=colour_key(chosen),
        switch=switch,
        pictures=pictures,
        notes=[_caption(pairs) + ("" if compared else f" {ONE_SIDED}")],
    )


def _ranking_section(name: str, pairs: xr.Dataset) -> Section:
    table = figures.pair_ranking(pairs)
    largest = float(table["size"].max())
    rows = [
        [str(r[0]), str(r[1]), cell(r[2], largest, signed=True), cell(r[3], largest)] for r in table.to_numpy().tolist()
    ]
    n = pairs.sizes.get("case", 0)
    return Section(
        slug(name),
        "Parts in pairs",
        "Which parts act together?",
        tables=[
            Table(
                f"Pairs that are most often among the {pairs.sizes['rank']} largest of a case ({n} cases), by total size. Both cells of an "
                f"unordered pair are counted. "
                f"Explained: {pairs.attrs.get('target', 'the decision')}. Claim: {pairs['pair_share'].attrs.get('claim', '')}; logit units.",
                ["pair", "cases", "mean content", "mean size"],
                rows,
                frozenset({1, 2, 3}),
            )
        ],
    )


def _pair_words(pairs: xr.Dataset) -> str:
    dims = table_dimensions(pairs)
    if "wave" in dims:
        return "waves"
    return (
        {"channel": "channels", "band": "bands", "window": "windows"}.get(dims[0], "parts")
        if len(dims) == 1
        else "parts"
    )
