"""Which layer predicts recorded neurons, against what noise allows and what chance gives."""

import math

import numpy as np
import xarray as xr

from oplens.figures.layers import estimate
from oplens.figures.neural import predictivity_by_layer
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
        "the noise of the responses. Dotted: responses permuted against the features. Claim: measured.",
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


def _predicts(ds: xr.Dataset) -> list[str]:
    mean = ds["predictivity"].mean("neuron").values
    layers, best = ds["layer"].values, int(np.nanargmax(mean))
    among = (
        f"Of {len(layers)} layers, {_name(layers[best])} predicts"
        if len(layers) > 1
        else f"{_name(layers[best]).capitalize()} predicts"
    )
    share = ""
    if "noise_ceiling" in ds and bool(ds["noise_ceiling"].notnull().any()):
        share = f", where noise allows {float(ds['noise_ceiling'].mean()):.2f}"
    if "median_normalised_predictivity" in ds and math.isfinite(
        middle := float(ds["median_normalised_predictivity"][best])
    ):
        share += f"; the median neuron reaches {100 * middle:.0f} % of its ceiling"
    found = [
        f"{among} the {ds.sizes['neuron']} neurons {'best, ' if len(layers) > 1 else ''}with a mean correlation of {mean[best]:.2f}{share}."
    ]
    if "p_value" in ds and bool(ds["p_value"].notnull().any()):
        found.append(_chance(ds, best))
    return found


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
        "mean correlation": [f"{v:.3f}" for v in ds["predictivity"].mean("neuron").values],
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


def _name(layer: int) -> str:
    return "the embedding" if layer == 0 else f"layer {layer}"
