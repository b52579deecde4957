"""How the states of a model change from layer to layer: dimensions, and likeness."""

import math
from typing import Any

import numpy as np
import xarray as xr

from oplens.figures.layers import estimate
from oplens.figures.representations import DRAWN, dimensions_by_layer, layer_similarity
from oplens.figures.style import number
from oplens.report.blocks import Picture, Section, Table, group, switched

_DIMENSIONS = {
    "participation_ratio_corrected": "participation ratio",
    "participation_ratio": "not corrected",
    "d_int": "d_int of the paper",
    "d_int_centred": "the same, centred",
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "numerical_rank": "numerical rank",
    "two_nn": "TwoNN, slope",
    "two_nn_likelihood": "TwoNN, likelihood",
    "mle": "MLE",
}


def representations_section(tree: xr.DataTree) -> list[Section]:
    """Dimensions of every layer's states beside the likeness of layers; nothing where the file has neither."""
    ds, similarity = group(tree, "representations"), group(tree, "similarity")
    kinds = _kinds(similarity)
    switch, keys = switched("similarity", {"CKA": kinds})
    pictures, tables, notes, findings = [], [], [], []
    if ds is not None:
        ds = ds.sortby("layer")
        findings = [_spread(ds), _paper(ds), _bent(ds)]
        notes, tables = _points(ds), [_dimension_table(ds)]
        if any(name in ds and bool((ds[name] > 0).any()) for name in DRAWN):
            pictures.append(
                Picture(
                    "representations",
                    "Dimensions",
                    "Blue, grey, black: linear, from singular values. Orange: from distances between neighbours; whiskers: intervals of TwoNN's "
                    "likelihood, for MLE one standard error, itself a lower bound. Claim: measured; from distances: fitted.",
                    {"": dimensions_by_layer(ds)},
                )
            )
    if similarity is not None and kinds:
        findings.append(_alike(similarity.sortby(["layer", "layer_2"]), next(iter(kinds))))
        pictures.append(
            Picture(
                "similarity",
                "Likeness (linear CKA)",
                "1: the same up to rotation and scale. Unbiased: 0 on average for unrelated states, where the plain form is above 0 for few "
                "points. Claim: measured.",
                {key: layer_similarity(similarity, name) for key, (name,) in keys.items()},
                switch.id if switch else None,
            )
        )
    if not pictures and not tables:
        return []
    return [
        Section(
            "representations",
            "Representations",
            "How do the states change from layer to layer?",
            findings=[words for words in findings if words],
            switch=switch,
            pictures=pictures,
            notes=notes,
            tables=tables,
        )
    ]


def _kinds(similarity: xr.Dataset | None) -> dict[str, str]:
    if similarity is None or similarity.sizes.get("layer", 0) < 2:
        return {}
    names = {"cka_unbiased": "unbiased", "cka": "plain"}
    return {n: words for n, words in names.items() if n in similarity and bool(similarity[n].notnull().any())}


def _points(ds: xr.Dataset) -> list[str]:
    """How many points there were, and which of them distances could use."""
    words = []
    if "n_points" in ds:
        counts = sorted({int(n) for n in ds["n_points"].dropna("layer").values})
        count = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1]))) if counts else "–"
        words.append(
            f"{count} points a layer; positions of one text are not independent, so errors are larger than for as many that are."
        )
    if {"n_repeated", "n_sampled"} <= set(ds.data_vars) and float(ds["n_repeated"].max()) > 0:
        k = int(ds["n_repeated"].fillna(0).values.argmax())
        repeated, left = int(ds["n_repeated"][k]), int(ds["n_sampled"][k])
        words.append(
            f"Where distances decide, equal points are counted once: {_where(int(ds['layer'][k]))} {repeated:,} of {repeated + left:,} sampled "
            "points repeat others."
        )
    return words + [f"No value: {why}" for why in np.atleast_1d(ds.attrs.get("undefined", []))]


def _spread(ds: xr.Dataset) -> str:
    name = next(
        (
            n
            for n in ("participation_ratio_corrected", "participation_ratio")
            if n in ds and bool(ds[n].notnull().any())
        ),
        None,
    )
    if name is None:
        return ""
    known = ds[name].dropna("layer")
    layers, values = known["layer"].values, known.values
    how = "participation ratio" + ("" if name.endswith("corrected") else ", not corrected for few points")
    if len(layers) == 1:
        return (
            f"{_where(layers[0]).capitalize()} the states spread over {estimate(float(values[0]))} directions ({how})."
        )
    widest, narrowest = int(values.argmax()), int(values.argmin())
    middle = "".join(
        f", {word} {_where(layers[k])} ({estimate(float(values[k]))})"
        for word, k in (("widest", widest), ("narrowest", narrowest))
        if 0 < k < len(layers) - 1
    )
    return (
        f"{_where(layers[0]).capitalize()} the states spread over {estimate(float(values[0]))} directions, {_where(layers[-1])} over "
        f"{estimate(float(values[-1]))} ({how}){middle}."
    )


def _paper(ds: xr.Dataset) -> str:
    """The paper's d_int beside the participation ratio."""
    name = "participation_ratio_corrected" if "participation_ratio_corrected" in ds else "participation_ratio"
    if "d_int" not in ds or name not in ds:
        return ""
    ratio = (ds["d_int"] / ds[name].where(ds[name] > 0)).dropna("layer").values
    if not len(ratio):
        return ""
    low, high = estimate(float(ratio.min())), estimate(float(ratio.max()))
    times = low if low == high else f"{low} to {high}"
    return (
        f"The paper's d_int is {times} times that: it is a linear dimension too, of points that are not centred, and weighs small directions "
        "more. It is at most the rank, and says nothing of curvature."
    )


def _bent(ds: xr.Dataset) -> str:
    """Dimensions from distances beside linear ones; the interval belongs to the likelihood."""
    linear = "participation_ratio_corrected" if "participation_ratio_corrected" in ds else "participation_ratio"
    if "two_nn_likelihood" not in ds or linear not in ds:
        return ""
    known = ds[["two_nn_likelihood", linear, *(n for n in ("two_nn_low", "two_nn_high") if n in ds)]].dropna("layer")
    if not known.sizes["layer"]:
        return ""
    low = known.get("two_nn_low", known["two_nn_likelihood"]).values
    high = known.get("two_nn_high", known["two_nn_likelihood"]).values
    value, wide, layers = known["two_nn_likelihood"].values, known[linear].values, known["layer"].values
    below, above = int((high < wide).sum()), int((low > wide).sum())
    ends = [
        f"{estimate(float(value[k]), float(low[k]), float(high[k]))} {_where(layers[k])}"
        for k in dict.fromkeys((0, len(layers) - 1))
    ]
    rest = len(layers) - below - above
    if below == len(layers):
        verdict = "below the participation ratio throughout: neighbouring states differ in few directions, though all together fill many"
    elif above == len(layers):
        verdict = "above the participation ratio throughout, which counts large directions alone"
    else:
        parts = [f"below the participation ratio at {below}", f"above it at {above}", f"not told apart at {rest}"]
        verdict = (
            ", ".join(p for p, n in zip(parts, (below, above, rest), strict=True) if n) + f" of {len(layers)} layers"
        )
    return f"Distances between neighbours tell another dimension (TwoNN): {', '.join(ends)}, {verdict}."


def _dimension_table(ds: xr.Dataset) -> Table:
    names = [n for n in _DIMENSIONS if n in ds]
    rows = [
        [_where(layer).removeprefix("after ").removeprefix("in ")] + [_dimension(ds, name, k) for name in names]
        for k, layer in enumerate(ds["layer"].values)
    ]
    return Table(
        "Centred unless it is d_int of the paper. Participation ratio: from unbiased traces; the plain one is too small for few points.",
        ["after", *(_DIMENSIONS[n] for n in names)],
        rows,
        frozenset(range(1, len(names) + 1)),
    )


def _dimension(ds: xr.Dataset, name: str, k: int) -> str:
    value = float(ds[name][k])
    if name == "numerical_rank" and math.isfinite(value):
        return f"{value:.0f}"
    if name == "two_nn_likelihood" and "two_nn_low" in ds:
        return estimate(value, float(ds["two_nn_low"][k]), float(ds["two_nn_high"][k]))
    error = float(ds["mle_error"][k]) if name == "mle" and "mle_error" in ds else math.nan
    return estimate(value) + (
        f" ± {number(error, len(estimate(value).partition('.')[2]))}" if math.isfinite(error) else ""
    )


def _alike(ds: xr.Dataset, name: str) -> str:
    value, layers = ds[name].transpose("layer", "layer_2").values, ds["layer"].values
    steps = np.diagonal(value, 1)
    known = np.flatnonzero(np.isfinite(steps))
    if not len(known):
        return ""
    least, most = int(known[steps[known].argmin()]), int(known[steps[known].argmax()])
    kind = "linear CKA" + (", unbiased" if name.endswith("unbiased") else "")
    if len(known) == 1:
        return f"{_pair(layers, least)} have a likeness of {steps[least]:.2f} ({kind}; 1 is the same up to rotation and scale)."
    ends = f" The first and the last have {value[0, -1]:.2f}." if math.isfinite(value[0, -1]) else ""
    return (
        f"The largest change is from {_name(layers[least])} to {_name(layers[least + 1])}, with a likeness of {steps[least]:.2f} ({kind}), the "
        f"smallest from {_name(layers[most])} to {_name(layers[most + 1])}, with {steps[most]:.2f}.{ends}"
    )


def _where(layer: int) -> str:
    return "in the embedding" if layer == 0 else f"after layer {layer}"


def _name(layer: int) -> str:
    return "the embedding" if layer == 0 else f"layer {layer}"


def _pair(layers: Any, k: int) -> str:
    return f"{_name(layers[k]).capitalize()} and {_name(layers[k + 1])}"
