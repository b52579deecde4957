"""What the figures draw: shares at one order, averaged and compared between the classes that the target tells apart."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from oplens.errors import ArgumentError
from oplens.results import part_dimensions

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Direction:
    """What a positive share speaks for: `toward` and `away` select the cases to compare.

    Attributes
    ----------
    name, against
        The class that a positive share speaks for, and what it speaks against.
    index
        Position on the target's class axis; None for a margin.
    toward, away
        (n_cases,) which cases belong to either side, by `grouping`.
    grouping
        "label", "predicted" (no labels were given) or "sign" (the target itself: neither is known).
    """

    name: str
    against: str
    index: int | None
    toward: BoolArray
    away: BoolArray
    grouping: str

    @property
    def comparable(self) -> bool:
        """Whether either side has a case."""
        return bool(self.toward.any() and self.away.any())

    @property
    def sides(self) -> tuple[str, str]:
        """How captions call the two groups of cases."""
        if self.grouping == "sign":
            return "cases with a positive target", "cases with a negative target"
        word = "" if self.grouping == "label" else "predicted "
        return f"{word}{self.name}", f"{word}{self.against}"


def directions(partition: xr.Dataset) -> tuple[Direction, ...]:
    """Return one direction for a margin, one per class for class-centred logits.

    The two classes of a margin are found from the numbers (target = one logit minus another), so no text is parsed.

    Parameters
    ----------
    partition
        A partition as in docs/schema.md, with `target` (case, [class]).

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.figures.contrast import directions
    >>> ds = xr.Dataset(
    ...     {"target": ("case", [2.0, -1.0]), "logits": (("case", "class"), [[0.0, 2.0], [1.0, 0.0]])},
    ...     coords={"class": ["rest", "move"], "label": ("case", ["move", "rest"])},
    ... )
    >>> [(d.name, d.against, d.toward.tolist()) for d in directions(ds)]
    [('move', 'rest', [True, False])]
    """
    if "target" not in partition:
        return _stated_directions(partition)
    target = partition["target"]
    grouping = next((name for name in ("label", "predicted") if name in partition.coords), "sign")
    names = [str(name) for name in partition["class"].values] if "class" in partition.coords else []
    groups = partition[grouping].values.astype(str) if grouping != "sign" else np.array([], dtype=str)
    if "class" in target.dims:
        own = [groups == name if grouping != "sign" else target.values[:, k] > 0 for k, name in enumerate(names)]
        return tuple(Direction(name, "the other classes", k, own[k], ~own[k], grouping) for k, name in enumerate(names))
    pair = _margin_classes(partition, names)
    if pair is None or grouping == "sign":
        name, against = pair or ("a positive target", "a negative one")
        return (Direction(name, against, None, target.values > 0, target.values < 0, "sign"),)
    return (Direction(*pair, None, groups == pair[0], groups == pair[1], grouping),)


def _stated_directions(pairs: xr.Dataset) -> tuple[Direction, ...]:
    """Return the directions of a Dataset without `target`, from its attribute `target`: "margin: a - b", or class by class."""
    grouping = next((name for name in ("label", "predicted") if name in pairs.coords), "sign")
    groups = pairs[grouping].values.astype(str) if grouping != "sign" else np.array([], dtype=str)
    names = [str(name) for name in pairs["class"].values] if "class" in pairs.coords else sorted(set(groups.tolist()))
    if {"case", "class"} <= set(pairs["pair_share"].dims):
        own = [groups == name for name in names]
        return tuple(Direction(name, "the other classes", k, own[k], ~own[k], grouping) for k, name in enumerate(names))
    stated = str(pairs.attrs.get("target", ""))
    for first in names:
        for second in names:
            if stated == f"margin: {first} - {second}":
                word = "label" if grouping == "sign" else grouping
                return (Direction(first, second, None, groups == first, groups == second, word),)
    raise ArgumentError(
        f"The result holds no variable 'target', and its attribute target={stated!r} names no margin between two of its "
        "classes; give side=directions(partition)[0] of a partition of the same cases."
    )


def _margin_classes(partition: xr.Dataset, names: list[str]) -> tuple[str, str] | None:
    if "logits" not in partition:
        return None
    logits, target = partition["logits"].values, partition["target"].values
    scale = 1e-6 * (np.abs(logits).max(initial=0.0) + 1e-300)
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            if i != j and np.abs(logits[:, i] - logits[:, j] - target).max(initial=0.0) <= scale:
                return first, second
    return None


def direction(partition: xr.Dataset, toward: str | None = None) -> Direction:
    """Return the direction called `toward`, or the first one."""
    found = directions(partition)
    for item in found:
        if toward is None or item.name == toward:
            return item
    known = ", ".join(item.name for item in found)
    raise ArgumentError(f"toward={toward!r}: the target of this result speaks for {known}; choose one of these.")


def order_choices(partition: xr.Dataset) -> dict[str, str]:
    """Return the orders that `partition` can show, as `{value of the argument order: words}`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from oplens.figures.contrast import order_choices
    >>> order_choices(xr.Dataset({"share": (("order", "case", "channel"), np.zeros((2, 3, 4)))}, {"order": [1, 2]}))
    {'sum': 'all orders', '1': 'order 1', '2': 'order 2'}
    """
    choices: dict[str, str] = {}
    name = "share" if "share" in partition else "pair_share" if "pair_share" in partition else None
    if name and "order" in partition[name].dims:
        orders = [int(value) for value in partition["order"].values]
        if len(orders) > 1:
            choices["sum"] = "all orders"
        choices |= {str(value): f"order {value}" for value in orders}
    if "full_share" in partition:
        choices["full"] = "full readout"
    return choices or {"sum": "all"}


def shares(partition: xr.Dataset, order: str | int | None = None, side: Direction | None = None) -> xr.DataArray:
    """Return the shares (case, *parts) at one order, or summed over orders, or through the full readout.

    For class-centred logits the class is `side`'s.
    """
    choices = order_choices(partition)
    key = str(order) if order is not None else next(iter(choices))
    if key not in choices:
        raise ArgumentError(f"order={order!r}: this result holds {', '.join(choices)}; choose one of these.")
    if key == "full":
        chosen = partition["full_share"]
    else:
        chosen = partition["share" if "share" in partition else "pair_share"]
        if "order" in chosen.dims:
            chosen = chosen.sum("order") if key == "sum" else chosen.sel(order=int(key))
    if "class" in chosen.dims and "case" in chosen.dims:
        index = (side or direction(partition)).index
        chosen = chosen.isel({"class": 0 if index is None else index})
    return chosen


def difference(values: xr.DataArray, side: Direction) -> xr.DataArray:
    """Return the mean over the cases of one side minus that over the other's; NaN where a side has no case."""
    means = [
        values.isel(case=np.flatnonzero(mask)).mean("case") if mask.any() else values.isel(case=0) * np.nan
        for mask in (side.toward, side.away)
    ]
    return means[0] - means[1]


def magnitude(values: xr.DataArray) -> xr.DataArray:
    """Return the mean over cases of abs(values)."""
    return abs(values).mean("case")


def part_labels(partition: xr.Dataset, dimension: str) -> list[str]:
    """Return the names of the parts along `dimension`, with units where they have them."""
    size = partition.sizes[dimension]
    if dimension == "band" and "band_low" in partition:
        edges = zip(partition["band_low"].values, partition["band_high"].values, strict=True)
        return [f"{low:.3g}–{high:.3g}" for low, high in edges]
    if dimension == "window" and "window_start" in partition:
        start, stop = partition["window_start"].values, partition["window_stop"].values
        if stop.max(initial=0.0) <= 1.0:
            return [f"{100 * a:.3g}–{100 * b:.3g} %" for a, b in zip(start, stop, strict=True)]
        return [f"{a:g}–{b:g}" for a, b in zip(start, stop, strict=True)]
    if dimension in partition.coords:
        return [str(value) for value in partition[dimension].values]
    return [f"{dimension} {k}" for k in range(size)]


def axis_title(partition: xr.Dataset, dimension: str) -> str:
    """Return the words and units of an axis along `dimension`."""
    if dimension == "band":
        return f"frequency band ({frequency_units(partition)})"
    if dimension == "window":
        stop = partition["window_stop"].values if "window_stop" in partition else np.array([1.0])
        return "part of the case" if stop.max(initial=0.0) <= 1.0 else "time window (steps)"
    return {"channel": "input channel", "wave_frequency": f"wave frequency ({frequency_units(partition)})"}.get(
        dimension, dimension
    )


def frequency_units(partition: xr.Dataset) -> str:
    """Return the units of frequencies and bands, as the result states them."""
    for name in ("frequency", "band_low"):
        if name in partition.coords and "units" in partition[name].attrs:
            return str(partition[name].attrs["units"]).replace("cycles/step", "cycles per step")
    return "cycles per step" if partition.attrs.get("sampling_rate", "unknown") == "unknown" else "Hz"


def wave_bins(frequency: xr.DataArray, n_bins: int = 12) -> tuple[Any, list[str]]:
    """Return the bin of every wave (feature, wave) and the bins' names: octaves between powers of two, slow waves in the first."""
    values = frequency.values.astype(float)
    top = max(float(values.max(initial=0.0)), 1e-12)
    positive = values[values > 0]
    low = max(float(np.quantile(positive, 0.05)) if positive.size else top / 2, 1e-12)
    last = int(np.ceil(np.log2(top)))
    first = max(min(int(np.floor(np.log2(low))) + 1, last - 1), last - n_bins + 1)
    edges = 2.0 ** np.arange(first, last + 1)
    n_steps = len(edges) - 1
    index = np.clip(np.searchsorted(edges, values, side="right"), 0, n_steps)
    names = [f"<{edges[0]:.3g}", *(f"{a:.3g}–{b:.3g}" for a, b in pairwise(edges))]
    return index, names


def binned_waves(values: xr.DataArray, frequency: xr.DataArray) -> tuple[xr.DataArray, list[str]]:
    """Sum (..., feature, wave, ...) over the waves of each frequency bin, giving the dimension `wave_frequency`."""
    index, names = wave_bins(frequency)
    flat = values.stack(_flat=("feature", "wave")).transpose(..., "_flat")
    order = xr.DataArray(index, dims=("feature", "wave")).stack(_flat=("feature", "wave")).values
    one_hot = np.eye(len(names))[order]
    rest = [dimension for dimension in flat.dims if dimension != "_flat"]
    return xr.DataArray(flat.values @ one_hot, dims=(*rest, "wave_frequency")), names


def table_dimensions(partition: xr.Dataset) -> tuple[str, ...]:
    """Return the part dimensions of a partition, whichever of its variables holds them."""
    for name in ("share", "full_share", "pair_share"):
        if name in partition:
            return part_dimensions(partition[name])
    return ()
