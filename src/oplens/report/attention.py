"""What the heads of a model do, layer by layer, and where chosen heads look."""

import math

import numpy as np
import xarray as xr

from oplens.figures.attention_maps import SHADES, attention_map, causal
from oplens.figures.layers import MEASURES, Head, estimate, head_map, heads_by_layer, layer_means
from oplens.figures.style import number
from oplens.report.blocks import Limits, Picture, Ramp, Section, Table, group, switched
from oplens.report.heads import SAME_AXIS, drawn, head_findings, is_causal, of_head, root_json, shown

MANY = 12  # heads a layer; dots of more would hide one another, so that the map comes first
_PANELS = {
    "normalised_entropy": (
        "Entropy",
        "Over its largest value, the log of the visible positions: 1 is uniform, 0 a single position.",
    ),
    "distance": ("Distance (positions)", "Between the token that looks and those it looks at, on average."),
    "first_mass": (
        "Weight on the first position",
        "High where a head has nothing to look for (an attention sink).",
    ),
    "previous_mass": (
        "Weight on the previous token",
        "High where a head looks one token back; of tokens that have one before them.",
    ),
    "effective_rank": ("Effective rank", "From singular values (Roy & Vetterli 2007)."),
    "eigenvalue_effective_rank": (
        "r_eff of the paper",
        "From eigenvalues, as printed; the same axis as the effective rank.",
    ),
}
_COLUMNS = {
    "normalised_entropy": "entropy, of its largest (%)",
    "entropy_sum": "H_l of the paper (nat)",
    "distance": "distance (positions)",
    "first_mass": "on the first position (%)",
    "previous_mass": "on the previous token (%)",
    "effective_rank": "effective rank",
    "relative_rank": "of the length (%)",
    "eigenvalue_effective_rank": "r_eff of the paper",
    "stable_rank": "stable rank",
    "numerical_rank": "numerical rank",
}


def attention_sections(tree: "xr.DataTree", limits: Limits) -> list[Section]:
    """Heads by layer, and maps of chosen heads; nothing where the model has no attention.

    Parameters
    ----------
    tree
        A result of `measure`, with the groups `attention` and `attention_maps`.
    limits
        Smaller pages show fewer maps.
    """
    ds, maps = group(tree, "attention"), group(tree, "attention_maps")
    sections = []
    if ds is not None and shown(ds):
        sections.append(_heads(tree, ds, maps))
    if maps is not None and maps.sizes.get("rank", 0):
        sections.append(_maps(ds, maps, limits))
    return sections


def _heads(tree: xr.DataTree, ds: xr.Dataset, maps: xr.Dataset | None) -> Section:
    marked = set(drawn(maps))
    views = {"dots": "heads with intervals", "map": "map"}
    if ds.sizes["head"] > MANY:
        views = {name: views[name] for name in ("map", "dots")}
    switch, keys = switched("attention", {"show": views})
    uniform = _uniform(tree)
    tops = [_top(ds, name) for name in SAME_AXIS if name in shown(ds)]
    pictures = []
    for name in (name for name in _PANELS if name in shown(ds)):
        highest = max(tops) if name in SAME_AXIS else None
        drawings = {
            "map": head_map(ds, name, marked, highest),
            "dots": heads_by_layer(ds, name, marked, uniform if name == "distance" else None, highest),
        }
        variants = {key: drawings[view] for key, (view,) in keys.items()}
        pictures.append(Picture(f"attention-{name}", *_PANELS[name], variants, switch.id if switch else None))
    level = float(ds.attrs.get("level", 0.95))
    return Section(
        "attention",
        "Heads",
        "What do the heads do, layer by layer?",
        findings=head_findings(tree, ds),
        switch=switch,
        pictures=pictures,
        columns=3,
        notes=[
            f"One dot per head, at the same place in every layer; whiskers: {100 * level:g} % intervals over cases; line: the mean of a layer's "
            "heads. The interval of that mean has the mean of the heads' half-widths, which is enough whatever heads have in common."
            + (" Orange: heads whose maps are drawn below." if marked else "")
            + " Claim: measured.",
            *_ranked(tree, ds),
        ],
        tables=[_table(ds)],
    )


def _ranked(tree: xr.DataTree, ds: xr.Dataset) -> list[str]:
    """Say where ranks are of fewer cases than the rest."""
    cases, ranked = root_json(tree, "data").get("cases"), ds.attrs.get("ranked_cases")
    if cases is None or ranked is None or int(ranked) >= int(cases):
        return []
    return [f"Ranks are of the first {int(ranked)} of {int(cases)} cases: they cost more than all the rest."]


def _maps(ds: xr.Dataset | None, maps: xr.Dataset, limits: Limits) -> Section:
    heads = drawn(maps)
    why = [str(words) for words in maps["why"].values] if "why" in maps else [""] * len(heads)
    ranks = maps["rank"].values if "rank" in maps.coords else np.arange(maps.sizes["rank"])
    kept = list(zip(ranks.tolist(), heads, why, strict=True))[: limits.cases]
    pictures = [
        Picture(f"attention-map-{k}", _title(*head, words), _numbers(ds, head), {"": attention_map(maps, rank)})
        for k, (rank, head, words) in enumerate(kept)
    ]
    blank = " What a causal model hides is blank." if causal(maps) else ""
    left = f" {len(heads) - len(kept)} more heads are in the file." if len(kept) < len(heads) else ""
    case = f" ({maps.attrs['case']})" if "case" in maps.attrs else ""
    return Section(
        "attention-maps",
        "Attention maps",
        "Where do single heads look?",
        findings=[
            f"One case{case}: every row is a token that looks, every column a token it looks at.{blank} The heads stand out in one statistic "
            f"over all cases, which the titles name.{left}"
        ],
        ramp=Ramp("weight, the same scale in every map; shades by its square root", "0", "1", SHADES),
        pictures=pictures,
        columns=3,
        notes=[
            "One case shows how a head looks, not how it looks in general: the numbers under a map are over all cases. Claim: measured."
        ],
    )


def _title(layer: int, head: int, why: str) -> str:
    return f"Layer {layer}, head {head}" + (f": {why}" if why else "")


def _numbers(ds: xr.Dataset | None, head: Head) -> str:
    """What the statistics of a drawn head are over all cases."""
    if ds is None:
        return ""
    words = {
        "distance": "distance {}",
        "first_mass": "first position {}",
        "previous_mass": "previous token {}",
        "normalised_entropy": "entropy {} of its largest",
    }
    found = [
        text.format(f"{100 * value:.0f} %" if name != "distance" else estimate(value))
        for name, text in words.items()
        if name in ds and math.isfinite(value := of_head(ds, name, head))
    ]
    return ", ".join(found)


def _table(ds: xr.Dataset) -> Table:
    names = [name for name in _COLUMNS if name in shown(ds)]
    means = {name: layer_means(ds, name) for name in names}
    counts = means[names[0]]["n_heads"].values
    many = [str(int(n)) for n in counts] if len(set(counts)) > 1 else None
    rows = [
        [
            str(layer),
            *([many[k]] if many else []),
            *(_half_width(means[name].isel(layer=k), 100 if MEASURES[name].top else 1) for name in names),
        ]
        for k, layer in enumerate(ds["layer"].values)
    ]
    return Table(
        "Means over the heads of each layer, with the half-width of their intervals. H_l is a sum over all rows of a case, so it grows with the "
        "length.",
        ["layer", *(["heads"] if many else []), *(_COLUMNS[name] for name in names)],
        rows,
        frozenset(range(len(names) + 2)),
    )


def _half_width(mean: xr.Dataset, scale: int) -> str:
    value, low, high = (scale * float(mean[name]) for name in ("mean", "low", "high"))
    shown_value = estimate(value)
    if not math.isfinite(high - low):
        return shown_value
    decimals = len(shown_value.partition(".")[2])
    return f"{shown_value} ± {number((high - low) / 2, decimals)}"


def _top(ds: xr.Dataset, name: str) -> float:
    ends = [ds[n] for n in (name, f"{name}_high") if n in ds]
    return 1.06 * max(float(end.max()) for end in ends if bool(end.notnull().any()))


def _uniform(tree: xr.DataTree) -> tuple[float, str] | None:
    """The mean distance of uniform attention, where all cases have one length and the model is known to be causal or not."""
    length, looks_back = root_json(tree, "data").get("length"), is_causal(tree)
    ends = length if isinstance(length, list) else [length]
    if looks_back is None or len(set(ends)) != 1 or not isinstance(ends[0], int) or ends[0] < 2:
        return None
    n = ends[0]
    return ((n - 1) / 4 if looks_back else (n * n - 1) / (3 * n)), "uniform attention"
