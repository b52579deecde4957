"""What is certified of the decisions, in numbers first, as a section."""

import math

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.figures.certificates import certified_fraction, robust_radii, rounded_down
from oplens.figures.style import significant
from oplens.report.blocks import Limits, Picture, Section, Table

LIMITS = (
    "A certificate is about one model and boxes around these cases. It does not say that a decision is right, and a decision that is not "
    "certified may well be stable: the bound is not reached. The box lets every sample of every channel move at once, each in the worst "
    "direction; noise of the same size flips far less. Everything is computed in double precision."
)


def certificate_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """What no input near a case can change: robustness and truncation apart; [] without the group `/certificates`.

    Parameters
    ----------
    results
        A result with a group `certificates`, or what `op.certify` returns.
    limits
        Smaller pages list fewer cases.
    """
    inputs, order = xr.Dataset(), 0
    if isinstance(results, xr.DataTree):
        if "certificates" not in results.children:
            return []
        if "inputs" in results.children:
            inputs = results.children["inputs"].to_dataset(inherit=False)
        order = max(
            (int(node.attrs.get("order", 0)) for node in results.children.values() if "share" in node), default=0
        )
        results = results.children["certificates"].to_dataset(inherit=False)
    ds = results
    pictures = [
        Picture(
            "certificates-fraction",
            "How much is certified, against the size of the box",
            "Black: decisions that no input in the box flips. Dotted: decisions that one step against the gradient has not flipped at that "
            "size; the truth lies between the two. Orange: decisions for which the operator cut at an order decides as the model everywhere "
            "in the box, with a dot at the cases themselves. Claim: bound; the dotted line is measured.",
            {"": certified_fraction(ds)},
        ),
        Picture(
            "certificates-radii",
            "Every decision's own box",
            "Full dot: certified up to there. Open dot: flipped there by one step against the gradient; without one, no step flipped "
            "it, or only beyond the picture. Claim: bound; open dots are measured.",
            {"": robust_radii(ds)},
        ),
    ]
    tables = [_fractions(ds), *_cases(ds, inputs, limits)]
    return [
        Section(
            "certificates",
            "Certificates",
            "What cannot flip a decision?",
            findings=[*_robustness(ds, inputs), _truncation(ds, order)],
            pictures=pictures,
            tables=tables,
            notes=[LIMITS, *_attributes(ds)],
        )
    ]


def _attributes(ds: xr.Dataset) -> list[str]:
    said = str(ds.attrs.get("set", ""))
    return [
        text for text in (f"The set of inputs: {said}." if said else "", str(ds.attrs.get("global_box", ""))) if text
    ]


def _robustness(ds: xr.Dataset, inputs: xr.Dataset) -> list[str]:
    robust, flipped = (np.asarray(ds[name].values, dtype=float) for name in ("robust_radius", "flipped_radius"))
    half = rounded_down(float(np.median(robust)))
    radius = _telling(ds["radius"].values, ds["robust_fraction"].values) or float(half)
    share = (
        f"{_percent(float(np.mean(robust >= radius)))} of the {len(robust)} decisions"
        if len(robust) > 1
        else "the one decision"
    )
    found = [
        f"Robustness: {share} cannot be flipped by any change of at most {_amount(ds, radius, inputs)}, in every channel and step at once. "
        "This is proven for all inputs in the box, not tried on some."
    ]
    middle = f"{'Half of the decisions hold' if len(robust) > 1 else 'It holds'} to {half} {_units(ds)}"
    met = np.isfinite(flipped) & (robust > 0)
    if met.any():
        ratio = significant(float(np.median(flipped[met] / robust[met])))
        middle += f". One step against the gradient, a simple attack, flips {'a decision' if len(robust) > 1 else 'it'} at {ratio} times the "
        middle += f"certified size{f' (median of {met.sum()})' if met.sum() > 1 else ''}: how far it really holds lies between the two"
    found.append(middle + ".")
    if "label" in ds.coords:
        right = np.asarray(ds["label"].values == ds["predicted"].values, dtype=bool)
        if right.any() and not right.all():
            sides = [rounded_down(float(np.median(robust[keep]))) for keep in (right, ~right)]
            found.append(f"Right decisions hold to {sides[0]}, wrong ones to {sides[1]} {_units(ds)} (medians).")
    return found


def _truncation(ds: xr.Dataset, shown: int) -> str:
    """The order that the page's sums have, else the lowest that is certified for half of the cases at some radius, else the best."""
    fractions, radii, orders = (
        ds["certified_fraction"].values,
        ds["radius"].values,
        [int(k) for k in ds["order"].values],
    )
    useful = [k for k in range(len(orders)) if (fractions[k][radii > 0] >= 0.5).any()]
    k = orders.index(shown) if shown in orders else useful[0] if useful else int(fractions.max(1).argmax())
    radius = _telling(radii, fractions[k])
    near = float(fractions[k][radii == 0][0]) if (radii == 0).any() else None
    words = f"orders 1 to {orders[k]}" if orders[k] > 1 else "order 1"
    said = f"Truncation, another question: the operator cut after {words} ({_family(ds)} polynomials) decides as the model does"
    if radius > 0:
        said += f" everywhere in the box of {significant(radius)} {_units(ds)} for {_percent(fractions[k][radii == radius][0])} of the cases"
        return said + ("." if near is None else f", and at the cases themselves for {_percent(near)}.")
    if near is None:
        return f"{said} in none of these boxes for half of the cases."
    beyond = ", and in no larger box for half" if (radii > 0).any() else ""
    return f"{said} at the cases themselves for {_percent(near)} of them{beyond}."


def _family(ds: xr.Dataset) -> str:
    family = str(ds.attrs.get("family", ""))
    return family if family == "empirical" else family.capitalize()


def _telling(radii: NDArray[np.float64], fractions: NDArray[np.float64]) -> float:
    """The largest radius at which at least half is certified, 0 where there is none."""
    inside = [float(r) for r, share in zip(radii, fractions, strict=True) if share >= 0.5]
    return max(inside, default=0.0)


def _fractions(ds: xr.Dataset) -> Table:
    names = [f"order{'s 1–' if order > 1 else ' '}{int(order)}" for order in ds["order"].values]
    rows = [
        [significant(float(radius)), _percent(float(ds["robust_fraction"].values[k]))]
        + [_percent(float(share)) for share in ds["certified_fraction"].values[:, k]]
        for k, radius in enumerate(ds["radius"].values)
    ]
    return Table(
        f"Share of the {ds.sizes['case']} cases certified in a box of each radius ({_units(ds)}): the decision itself (robust), and the "
        f"operator cut at an order ({_family(ds)} polynomials) deciding as the model does. Claim: bound.",
        ["radius", "robust", *names],
        rows,
        frozenset(range(2 + len(names))),
    )


def _cases(ds: xr.Dataset, inputs: xr.Dataset, limits: Limits) -> list[Table]:
    """The chosen cases, or those of largest and smallest radius where none were chosen."""
    known = {str(case): row for row, case in enumerate(ds["case"].values)}
    chosen = (
        [known[str(case)] for case in np.atleast_1d(inputs["case"].values) if str(case) in known]
        if "case" in inputs.coords
        else []
    )
    chosen = chosen or list(np.argsort(-ds["robust_radius"].values, kind="stable")[[0, -1]])
    radius = _telling(ds["radius"].values, ds["robust_fraction"].values)
    at = int(np.argmin(abs(ds["radius"].values - radius)))
    labelled = "label" in ds.coords
    rows = []
    for row in chosen[: limits.cases]:
        order = int(ds["certified_order"].values[row, at])
        rows.append(
            [
                f"case {ds['case'].values[row]}",
                str(ds["predicted"].values[row]),
                *([str(ds["label"].values[row])] if labelled else []),
                rounded_down(float(ds["robust_radius"].values[row])),
                _flip(float(ds["flipped_radius"].values[row])),
                str(order) if order else "none",
            ]
        )
    last = f"order at {significant(float(ds['radius'].values[at]))}"
    header = ["case", "decided", *(["labelled"] if labelled else []), "certified to", "flipped at", last]
    return [
        Table(
            "Single cases: the box in which the decision is certified, the box in which one step against the gradient flipped it "
            f"({_units(ds)}), and the lowest order that decides as the model everywhere in the box of that size.",
            header,
            rows,
            frozenset(range(2 + labelled, len(header))),
        )
    ]


def _flip(radius: float) -> str:
    return "not found" if math.isinf(radius) else significant(radius)


def _amount(ds: xr.Dataset, radius: float, inputs: xr.Dataset) -> str:
    """A radius in its own units and, where those are not the data's, in the data's."""
    own = f"{significant(radius)} {_units(ds)}"
    if ds["radius"].attrs.get("units") == "as in the data":
        return own
    signal = str(inputs["signal"].attrs.get("units", "")) if "signal" in inputs else ""
    units = signal if signal not in ("", "as in the data") else "in the units of the data"
    low, high = (significant(radius * float(value)) for value in (ds["half_width"].min(), ds["half_width"].max()))
    return f"{own} ({low if low == high else f'{low} to {high}'} {units})"


def _units(ds: xr.Dataset) -> str:
    units = str(ds["radius"].attrs.get("units", ""))
    return "in the units of the data" if units == "as in the data" else units


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
