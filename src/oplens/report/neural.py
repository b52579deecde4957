"""Which layer predicts recorded neurons, against what noise allows and what chance gives."""

import math

import numpy as np
import xarray as xr

from oplens.figures.layers import estimate
from oplens.figures.neural import predictivity_by_layer
from oplens.figures.style import number
from oplens.report.blocks import Picture, Section, Table, group


def neural_section(tree: xr.DataTree) -> list[Section]:
    """Predictivity of the group `/neural`; nothing without it."""
    ds = group(tree, "neural")
    if ds is None or "predictivity" not in ds or not bool(ds["predictivity"].notnull().any()):
        return []
    ds = ds.sortby("layer")
    picture = Picture(
        "neural",
        "Predictivity by layer",
        "Correlation of cross-validated ridge predictions with the mean response. Dots: neurons. Dashed: what a perfect model would reach, given "
        f"the noise of the responses. Dotted: responses permuted against the features.{_intervals(ds)} Claim: measured.",
        {"": predictivity_by_layer(ds)},
    )
    return [
        Section(
            "neural",
            "Neurons",
            "Which layer predicts the recorded neurons?",
            findings=_predicts(ds),
            pictures=[picture],
            notes=[str(note) for note in np.atleast_1d(ds.attrs.get("notes", []))],
            tables=[_neural_table(ds)],
        )
    ]


def _intervals(ds: xr.Dataset) -> str:
    """What whiskers and diamonds of the picture stand for, where it has them."""
    if "difference_to_best_high" not in ds:
        return ""
    return (
        f" Whiskers: intervals at {100 * float(ds.attrs.get('level', 0.95)):.3g} % over stimuli drawn again, readouts not fitted again. Layers "
        "err together, so overlapping whiskers do not decide which is better. Diamonds: layers whose difference to the best may be 0."
    )


def _predicts(ds: xr.Dataset) -> list[str]:
    mean = ds["predictivity"].mean("neuron").values
    best, count = int(np.nanargmax(mean)), ds.sizes["layer"]
    who, whom = _name(ds["layer"].values[best]), f"the {ds.sizes['neuron']} neurons"
    rivals = _rivals(ds)
    if count == 1:
        found = f"{who.capitalize()} predicts {whom} with a mean correlation of {_mean(ds, best)}"
    elif len(rivals) > 1:
        some = f"Of {count} layers, {_names(rivals)} predict {whom} best and"
        which = some if len(rivals) < count else f"Any of {count} layers may predict {whom} best: they"
        found = f"{which} cannot be told apart; {who} has the largest mean correlation, {_mean(ds, best)}"
    else:
        found = f"Of {count} layers, {who} predicts {whom} best, with a mean correlation of {_mean(ds, best)}"
    if "noise_ceiling" in ds and bool(ds["noise_ceiling"].notnull().any()):
        found += f", where noise allows {float(ds['noise_ceiling'].mean()):.2f}"
    if "median_normalised_predictivity" in ds and math.isfinite(
        middle := float(ds["median_normalised_predictivity"][best])
    ):
        found += f"; the median neuron reaches {100 * middle:.0f} % of its ceiling"
    chance = [_chance(ds, best)] if "p_value" in ds and bool(ds["p_value"].notnull().any()) else []
    return [f"{found}.", *chance, *_behind(ds, rivals)]


def _rivals(ds: xr.Dataset) -> list[int]:
    """Layers that may be the best; none where the file holds no differences."""
    if "difference_to_best_high" not in ds:
        return []
    return [int(layer) for layer in ds["layer"].values[ds["difference_to_best_high"].values >= 0]]


def _behind(ds: xr.Dataset, rivals: list[int]) -> list[str]:
    """How far the layer that comes closest among those that are not the best stays behind."""
    others = np.flatnonzero(~ds["layer"].isin(rivals).values)
    if not rivals or not len(others):
        return []
    high = ds["difference_to_best_high"].values
    nearest = int(others[high[others].argmax()])
    ends = (-float(ds[f"difference_to_best{end}"][nearest]) for end in ("", "_high", "_low"))
    which = "The other layer is" if len(others) == 1 else f"The other {len(others)} layers are"
    closest = "" if len(others) == 1 else f"; {_name(ds['layer'].values[nearest])} comes closest,"
    return [f"{which} behind the best{closest} by {estimate(*ends)}."]


def _mean(ds: xr.Dataset, k: int) -> str:
    """A layer's mean correlation with two decimals, as the ceiling has, and its interval."""
    value = f"{float(ds['predictivity'].mean('neuron')[k]):.2f}"
    if "mean_predictivity_low" not in ds or not math.isfinite(low := float(ds["mean_predictivity_low"][k])):
        return value
    return f"{value} [{number(low)}, {number(float(ds['mean_predictivity_high'][k]))}]"


def _chance(ds: xr.Dataset, best: int) -> str:
    """What chance gives, for the layer that was chosen because it is the best."""
    tried, layers = int(ds.attrs.get("permutations", 0)), ds.sizes["layer"]
    least = f" ({tried} permutations allow no less than {estimate(1 / (1 + tried))})" if tried else ""
    p = float(ds["p_value"][best])
    if layers == 1:
        return f"Permuted responses are predicted as well with p = {estimate(p)}{least}."
    if "p_value_corrected" in ds:
        corrected = ds["p_value_corrected"].values
        return (
            f"As the best of {layers} layers it has p = {estimate(float(corrected[best]))}, against any layer on permuted responses{least}; "
            f"{int((corrected < 0.05).sum())} of {layers} layers are above chance at p < 0.05 by that measure."
        )
    return (
        f"On its own it has p = {estimate(p)}{least}; the best of {layers} layers looks better than it is. At p < 0.05, each tested on its own, "
        f"{int((ds['p_value'].values < 0.05).sum())} of {layers} layers are above chance."
    )


def _neural_table(ds: xr.Dataset) -> Table:
    columns = {
        **_means(ds),
        **{
            words: [estimate(float(v)) for v in ds[name].values]
            for name, words in {
                "median_normalised_predictivity": "of its ceiling, median neuron",
                "null_mean": "permuted responses",
                "p_value": "p",
                "p_value_corrected": "p as the best of all layers",
            }.items()
            if name in ds
        },
    }
    rows = [[_name(layer), *(values[k] for values in columns.values())] for k, layer in enumerate(ds["layer"].values)]
    folds = f"{int(ds.attrs['folds'])} folds; " if "folds" in ds.attrs else ""
    return Table(
        f"Ridge regressions from a layer's states to each neuron, {folds}penalties chosen on training folds.",
        ["layer", *columns],
        rows,
        frozenset(range(1, len(columns) + 1)),
    )


def _means(ds: xr.Dataset) -> dict[str, list[str]]:
    """Columns of mean correlations and of what they lack to the best, with intervals where there are."""
    found = {"mean correlation": [number(v, 3) for v in ds["predictivity"].mean("neuron").values]}
    if "difference_to_best" not in ds:
        return found
    for name, words in (("mean_predictivity", "mean correlation"), ("difference_to_best", "difference to the best")):
        value, low, high = (ds[f"{name}{end}"].values for end in ("", "_low", "_high"))
        found[words] = [
            f"{number(v, 3)} [{number(a, 3)}, {number(b, 3)}]" for v, a, b in zip(value, low, high, strict=True)
        ]
    return found


def _names(layers: list[int]) -> str:
    """Layers in words, runs of three or more by their ends: the embedding and layers 2 to 4 and 6."""
    runs: list[list[int]] = []
    for layer in (k for k in layers if k):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [p for run in runs for p in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    several = sum(map(len, runs)) > 1
    words = (
        []
        if not parts
        else [f"{'layers' if several else 'layer'} {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}"]
    )
    return " and ".join([*(["the embedding"] if 0 in layers else []), *words])


def _name(layer: int) -> str:
    return "the embedding" if layer == 0 else f"layer {layer}"
