"""What the heads of a model do, in words: how far they look, which of them stand out, and what the paper's r_eff makes of them."""

import json
import math
from typing import Any

import numpy as np
import xarray as xr

from oplens.figures.layers import MEASURES, Head, estimate, layer_means

SAME_AXIS = ("effective_rank", "eigenvalue_effective_rank")


def head_findings(tree: xr.DataTree, ds: xr.Dataset) -> list[str]:
    """Sentences, each computed from the statistics with their intervals; those that the file cannot answer are left out."""
    back = _mostly(ds, "previous_mass", "looks at the previous token", "look at the previous token")
    rest = _mostly(ds, "first_mass", "rests on the first position", "rest on the first position")
    found = (_local(tree, ds), back, rest, _low_entropy(tree, ds), _printed(tree, ds))
    return [words for words in found if words]


def _local(tree: xr.DataTree, ds: xr.Dataset) -> str:
    """The paper's claim that early layers are local and late ones global, judged by means of layers with intervals."""
    if "distance" not in shown(ds):
        return ""
    means = layer_means(ds, "distance").dropna("layer", subset=["mean"]).sortby("layer")
    layers, where = means["layer"].values, _where(tree)
    if len(layers) == 1:
        return (
            f"Heads look {_said(means, 0)} positions {where} on average. Only one layer has attention, so the paper's claim that early layers "
            "are local and late ones global has nothing to compare."
        )
    half = len(layers) // 2
    early, late = (_pooled(means.isel(layer=part)) for part in (slice(None, half), slice(-half, None)))
    values = means["mean"].values
    near, far = int(values.argmin()), int(values.argmax())
    ends = (
        f"Early layers ({_span(layers[:half])}) look {estimate(*early)} positions {where} on average, late ones ({_span(layers[-half:])}) "
        f"{estimate(*late)}. "
    )
    extremes = (
        f" Nearest is layer {layers[near]}, {_said(means, near)}, farthest layer {layers[far]}, {_said(means, far)}."
    )
    told = extremes if len(layers) > 2 and _said(means, near) != _said(means, far) else ""
    return ends + _verdict(early, late, values, layers) + told + _within(ds)


def _verdict(early: tuple[float, ...], late: tuple[float, ...], values: Any, layers: Any) -> str:
    claim = "the paper's claim that early layers are local and late ones global"
    here = "for this model on these data"
    if not all(map(math.isfinite, (*early, *late))):
        return f"Without intervals, which need two cases, {claim} cannot be judged."
    if late[1] > early[2]:
        steps = np.diff(values)
        if (steps > 0).all():
            return f"{claim[0].upper()}{claim[1:]} holds {here}: the mean grows with every layer."
        at = int(steps.argmin())
        before, after = estimate(values[at]), estimate(values[at + 1])
        change = f"falls from {before} to {after}" if before != after else f"stays at {after}"
        return (
            f"{claim[0].upper()}{claim[1:]} holds {here} for these two means, not layer by layer: from layer {layers[at]} to layer "
            f"{layers[at + 1]} the mean {change}."
        )
    if early[1] > late[2]:
        return f"{claim[0].upper()}{claim[1:]} does not hold {here}: late layers look nearer."
    return f"Their intervals overlap: {claim} is not shown by these data."


def _within(ds: xr.Dataset) -> str:
    """How much of the difference between heads is one between layers."""
    value = ds["distance"].transpose("layer", "head").values
    there = np.isfinite(value).any(1)
    value, layers, flat = value[there], ds["layer"].values[there], value[np.isfinite(value)]
    total = float(((flat - flat.mean()) ** 2).sum())
    if flat.size == len(value) or not total > 0:
        return ""
    counts, means = np.isfinite(value).sum(1), np.nanmean(value, 1)
    explained = float((counts * (means - flat.mean()) ** 2).sum()) / total
    low, high = np.nanmin(value, 1), np.nanmax(value, 1)
    widest = int((high - low).argmax())
    return (
        f" The layer accounts for {100 * explained:.0f} % of the variance of distances between heads: in layer {layers[widest]} alone they range "
        f"from {estimate(low[widest])} to {estimate(high[widest])}."
    )


def _mostly(ds: xr.Dataset, name: str, one: str, many: str) -> str:
    """Heads that put more than half of their weight on one place, as their intervals have it; or the one with most there."""
    if name not in shown(ds):
        return ""
    mass = ds[name]
    low = ds[f"{name}_low"].fillna(mass) if f"{name}_low" in ds else mass
    heads = _heads_where(ds, low > 0.5, -mass)
    if not heads:
        most = _heads_where(ds, mass.notnull(), -mass)[0]
        return f"No head {one}: the most weight there is {_percent(ds, name, most)}, of {_named(most)}."
    said = [f"{_named(head)}, {_percent(ds, name, head)}" for head in heads[:3]]
    return f"{_count(len(heads), one, many)}, with more than half of the weight: {_listed(said, len(heads), '; ')}."


def _low_entropy(tree: xr.DataTree, ds: xr.Dataset) -> str:
    """Whether heads of low entropy look near, as entropy is often read."""
    if not {"distance", "normalised_entropy"} <= set(shown(ds)):
        return ""
    both = ds["distance"].notnull() & ds["normalised_entropy"].notnull()
    if int(both.sum()) < 4:
        return ""
    entropy, middle = ds["normalised_entropy"].where(both), float(ds["distance"].where(both).median())
    quarter = both & (entropy <= float(entropy.quantile(0.25)))
    head = _heads_where(ds, quarter, -ds["distance"])[0]
    lowest = f"the {int(quarter.sum())} heads of lowest entropy"
    if of_head(ds, "distance", head) <= middle:
        return f"Low entropy goes with short distance here: of {lowest} none looks farther than the median head ({estimate(middle)} positions)."
    first = of_head(ds, "first_mass", head) if "first_mass" in ds else math.nan
    rests = f", with {100 * first:.0f} % of its weight on the first position" if first > 0.5 else ""
    return (
        f"Low entropy does not mean local: {_named(head)} is among {lowest} ({100 * of_head(ds, 'normalised_entropy', head):.0f} % of its "
        f"largest), yet looks {_with_ends(ds, 'distance', head)} positions {_where(tree)}{rests}; the median head looks {estimate(middle)}."
    )


def _printed(tree: xr.DataTree, ds: xr.Dataset) -> str:
    """The paper's r_eff beside singular values."""
    if not set(SAME_AXIS) <= set(shown(ds)):
        return ""
    true, printed = (ds[name] for name in SAME_AXIS)
    ratio = (printed / true.where(true > 0)).where(printed > 0)
    if not bool(ratio.notnull().any()):
        return ""
    head = _heads_where(ds, ratio.notnull(), -abs(xr.apply_ufunc(np.log, ratio)))[0]
    why = (
        " (the eigenvalues of a causal matrix are its diagonal, each token's weight on itself)"
        if is_causal(tree)
        else ""
    )
    undefined = float(ds["undefined"].mean()) if "undefined" in ds else 0.0
    moduli = f" In {100 * undefined:.0f} % of the cases it is undefined, and moduli stand in." if undefined > 0 else ""
    low, high = estimate(float(ratio.min())), estimate(float(ratio.max()))
    span = f"over all heads it is {low} to {high} times" if ratio.count() > 1 else f"it is {low} times"
    return (
        f"The paper's r_eff is no rank{why}: {span} the effective rank from singular values; for {_named(head)} it gives "
        f"{estimate(of_head(ds, SAME_AXIS[1], head))} where singular values give {estimate(of_head(ds, SAME_AXIS[0], head))}.{moduli}"
    )


def shown(ds: xr.Dataset) -> list[str]:
    """Statistics of which any head has a number."""
    return [name for name in MEASURES if name in ds and bool(ds[name].notnull().any())]


def drawn(maps: xr.Dataset | None) -> list[Head]:
    """Heads (layer, head) of which the file holds maps, in their order."""
    if maps is None or "layer_of" not in maps or "head_of" not in maps:
        return []
    return [(int(a), int(h)) for a, h in zip(maps["layer_of"].values, maps["head_of"].values, strict=True)]


def is_causal(tree: xr.DataTree) -> bool | None:
    """Whether attention sees the past only; None where the file does not say."""
    known = root_json(tree, "model").get("causal")
    return known if isinstance(known, bool) else None


def root_json(tree: xr.DataTree, name: str) -> dict[str, Any]:
    """One of the JSON attributes of the root; empty where it is missing."""
    value = json.loads(tree.attrs.get(name, "{}"))
    return value if isinstance(value, dict) else {}


def _heads_where(ds: xr.Dataset, keep: xr.DataArray, key: xr.DataArray) -> list[Head]:
    """Heads (layer, head) that are kept, by increasing key."""
    kept, order = (a.transpose("layer", "head").values for a in (keep, key))
    places = np.argwhere(kept)
    ranked = places[np.argsort(order[kept], kind="stable")]
    return [(int(ds["layer"].values[a]), int(ds["head"].values[h])) for a, h in ranked]


def of_head(ds: xr.Dataset, name: str, head: Head) -> float:
    """A statistic of one head; NaN where the file does not know it."""
    layer, column = head
    if layer not in ds["layer"].values or column not in ds["head"].values:
        return math.nan
    return float(ds[name].sel(layer=layer, head=column))


def _with_ends(ds: xr.Dataset, name: str, head: Head) -> str:
    ends = [of_head(ds, f"{name}_{end}", head) if f"{name}_{end}" in ds else math.nan for end in ("low", "high")]
    return estimate(of_head(ds, name, head), *ends)


def _percent(ds: xr.Dataset, name: str, head: Head) -> str:
    share, low, high = (
        100 * of_head(ds, n, head) if n in ds else math.nan for n in (name, f"{name}_low", f"{name}_high")
    )
    return f"{share:.0f} %" + (f" [{low:.0f}, {high:.0f}]" if math.isfinite(low) and math.isfinite(high) else "")


def _said(means: xr.Dataset, k: int) -> str:
    return estimate(*(float(means[name][k]) for name in ("mean", "low", "high")))


def _pooled(means: xr.Dataset) -> tuple[float, float, float]:
    """Mean over layers of means, and its ends by the same rule as for heads."""
    mean, low, high = (float(means[name].mean(skipna=False)) for name in ("mean", "low", "high"))
    return mean, low, high


def _named(head: Head) -> str:
    return f"layer {head[0]}, head {head[1]}"


def _count(heads: int, one: str, many: str) -> str:
    return f"One head {one}" if heads == 1 else f"{heads} heads {many}"


def _listed(said: list[str], total: int, separator: str = ", ") -> str:
    return separator.join(said) + (f"{separator}and {total - len(said)} more" if total > len(said) else "")


def _where(tree: xr.DataTree) -> str:
    return "back" if is_causal(tree) else "away"


def _span(layers: Any) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
