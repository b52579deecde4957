"""The chosen cases as cards: the signal, and the sum that decides."""

import numpy as np
import xarray as xr

from oplens import figures
from oplens.figures.contrast import table_dimensions
from oplens.report.blocks import Card, Choice, Limits, Picture, Section, Switch

_NAMES = {"feature": "", "wave": "waves", "channel": "channels", "band": "bands", "window": "time windows"}


def case_section(tree: xr.DataTree, found: dict[str, xr.Dataset], limits: Limits) -> list[Section]:
    """Small multiples of the chosen cases; every card can show the sum over any partition in the file."""
    if "inputs" not in tree.children:
        return []
    inputs = tree.children["inputs"].to_dataset(inherit=False)
    cases = [int(c) for c in np.atleast_1d(inputs["case"].values)][: limits.cases]
    names = {name: _partition_name(p) for name, p in found.items()}
    switch = Switch("switch-cases", [Choice("parts", names)]) if len(names) > 1 else None
    cards = [_card(inputs, case, found, switch) for case in cases]
    rule = str(inputs.attrs.get("rule", "")).strip()
    findings = [
        f"These {len(cases)} cases were chosen by rule: {rule}." if rule else f"{len(cases)} cases.",
        "Each sum starts at zero and ends at the number that decides: grey lines are no part (constants, sources"
        + (
            ", the remainder of the truncation), coloured lines are the largest parts with all orders together"
            if any("share" in partition for partition in found.values())
            else ", skips), coloured lines are the largest parts"
        )
        + ", the black bar is the model's own output.",
    ]
    sides = figures.directions(next(iter(found.values()))) if found else ()
    key = None
    if len(sides) == 1:
        key = (f"speaks for {sides[0].name}", f"speaks for {sides[0].against}")
    elif sides:
        key = ("speaks for the predicted class", "speaks against it")
    return [
        Section(
            "cases", "Cases", "Single decisions, term by term", findings=findings, key=key, switch=switch, cards=cards
        )
    ]


def _card(inputs: xr.Dataset, case: int, found: dict[str, xr.Dataset], switch: Switch | None) -> Card:
    row = inputs.sel(case=case) if "case" in inputs.indexes else inputs.isel(case=case)
    predicted = str(row["predicted"].values) if "predicted" in row.coords else ""
    label = str(row["label"].values) if "label" in row.coords else None
    units = str(inputs["signal"].attrs.get("units", ""))
    pictures = [
        Picture(
            f"case-{case}-signal", f"Signal ({units})" if units else "Signal", "", {"": figures.signals(inputs, case)}
        )
    ]
    variants = {}
    for name, partition in found.items():
        known = [side.name for side in figures.directions(partition)]
        toward = predicted if len(known) > 1 and predicted in known else None
        if case in partition["case"].values:
            variants[name if switch else ""] = figures.waterfall(partition, case, toward)
    if variants:
        pictures.append(Picture(f"case-{case}-sum", "Sum of terms", "", variants, switch.id if switch else None))
    return Card(
        heading=f"Case {case}",
        decided=predicted,
        labelled=label,
        right=None if label is None or not predicted else label == predicted,
        why=str(row["why"].values) if "why" in row.coords else "",
        pictures=pictures,
    )


def _partition_name(partition: xr.Dataset) -> str:
    if "layer_share" in partition:
        return "layers"
    return " × ".join(word for d in table_dimensions(partition) if (word := _NAMES.get(d, d)))
