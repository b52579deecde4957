"""How few waves decide as the model does, as a section."""

import numpy as np
import xarray as xr

from oplens.figures.reduction import accuracy_by_waves, shown_frequencies, wave_importance
from oplens.figures.style import number
from oplens.report.blocks import Limits, Picture, Section, Table, group

CLOSE = 0.02  # accuracy, or agreement, that a smaller model may lose and still be called as good


def reduction_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """Smaller models of the group `/reduction`: how they decide, and which waves they keep; [] without the group.

    Parameters
    ----------
    results
        A result with a group `reduction`, or what `op.reduction_curve` returns.
    limits
        The smallest pages leave the waves' bars out; they are named in words all the same.
    """
    ds = group(results, "reduction")
    if ds is None:
        return []
    pictures = [
        Picture(
            "reduction-curve",
            "Smaller models of the most important waves",
            "Every dot is an ordinary model that keeps so many waves, measured on the explained cases. "
            + (
                "Dashed: its decoder fitted anew to the full model's logits on training cases. "
                if _refitted(ds)
                else ""
            )
            + ("Dotted: accuracy of the full model. " if "model_accuracy" in ds else "")
            + "R² compares its margin with the full model's. Claim: measured.",
            {"": accuracy_by_waves(ds)},
        )
    ]
    if limits.variants > 1:
        pictures.append(
            Picture(
                "reduction-waves",
                "The most important waves",
                "By how much a wave's share of the decision varies over the training cases; several waves of one frequency stand in "
                "several hidden features. Claim: measured.",
                {"": wave_importance(ds)},
            )
        )
    return [
        Section(
            "reduction",
            "Fewer waves",
            "How few waves are enough?",
            findings=_findings(ds),
            pictures=pictures,
            tables=[_table(ds)],
        )
    ]


def smallest_as_good(ds: xr.Dataset, prefix: str = "") -> int | None:
    """Return the position of the smallest model that, with all larger ones, decides as well as the full one; None if only that does.

    `prefix` is "refitted_" for the models whose decoders were fitted anew.
    """
    reached, whole = ("accuracy", float(ds["model_accuracy"])) if "accuracy" in ds else ("agreement", 1.0)
    good = ds[f"{prefix}{reached}"].values >= whole - CLOSE - 1e-12
    lasting = np.logical_and.accumulate(good[::-1])[::-1]
    smaller = ds["n_waves"].values < _total(ds)
    found = np.flatnonzero(lasting & smaller)
    return int(found[0]) if found.size else None


def _findings(ds: xr.Dataset) -> list[str]:
    total, first = _total(ds), smallest_as_good(ds)
    if first is None:
        found = [
            f"No smaller model that was tried decides as well as the full one with its {total:,} waves "
            f"(within {100 * CLOSE:.0f} percentage points)."
        ]
    else:
        kept, parameters = (int(ds[name][first]) for name in ("n_waves", "n_parameters"))
        found = [
            f"{kept:,} of {total:,} waves ({parameters:,} of {int(ds['model_parameters']):,} parameters) "
            f"{'is' if kept == 1 else 'are'} enough: {_reached(ds, first)}."
        ]
    again = smallest_as_good(ds, "refitted_") if _refitted(ds) else None
    if again is not None and (first is None or again < first):
        kept = int(ds["n_waves"][again])
        found.append(
            f"With the decoder fitted anew on training cases, {kept:,} {'is' if kept == 1 else 'are'} enough: "
            f"{_reached(ds, again, 'refitted_')}."
        )
        first = again
    if first is not None and "n_skips" in ds and int(ds["n_skips"][first]):
        skips = int(ds["n_skips"][first])
        words = ("keeps", "it reads") if skips == 1 else ("keep", "they read")
        found.append(
            f"{skips} of its {int(ds['n_features'][first])} hidden features {words[0]} no wave: what {words[1]} needs no memory, only the "
            "values of the moment."
        )
    units = str(ds["frequency"].attrs.get("units", "")).replace("cycles/step", "cycles per step")
    count = min(5, ds.sizes["rank"])
    shown = shown_frequencies(ds["frequency"].values)[:count]
    waves = f"{count} most important waves have" if count > 1 else "most important wave has"
    found.append(f"The {waves} {'these frequencies' if count > 1 else 'the frequency'}: {', '.join(shown)} {units}.")
    return found


def _reached(ds: xr.Dataset, position: int, prefix: str = "") -> str:
    agreement = f"{100 * float(ds[f'{prefix}agreement'][position]):.0f} %"
    if "accuracy" not in ds:
        return f"the smaller model decides {agreement} of the cases as the full one does"
    own, full = float(ds[f"{prefix}accuracy"][position]), float(ds["model_accuracy"])
    return (
        f"the smaller model decides {100 * own:.0f} % of the cases correctly, the full one {100 * full:.0f} %; both decide alike in "
        f"{agreement}"
    )


def _refitted(ds: xr.Dataset) -> bool:
    return "refitted_agreement" in ds


def _total(ds: xr.Dataset) -> int:
    return int(ds.attrs["total_waves"]) if "total_waves" in ds.attrs else int(ds["n_waves"].values[-1])


def _table(ds: xr.Dataset) -> Table:
    names = {"accuracy": "accuracy", "agreement": "same decisions", "margin_r2": "margin R²"}
    kinds = [(prefix, words) for prefix, words in (("", ""), ("refitted_", ", refitted")) if f"{prefix}agreement" in ds]
    columns = {
        f"{p}{name}": f"{text}{words}" for p, words in kinds for name, text in names.items() if f"{p}{name}" in ds
    }
    rows = []
    for k in range(ds.sizes["n_waves"]):
        counts = [f"{int(ds[name][k]):,}" for name in ("n_waves", "n_parameters", "n_features")]
        rows.append([*counts, *(_cell(name, float(ds[name][k])) for name in columns)])
    if "model_accuracy" in ds:
        whole = {"accuracy": float(ds["model_accuracy"])}
        last = [_cell(name, whole.get(name.removeprefix("refitted_"), 1.0)) for name in columns]
        rows.append(["full model", f"{int(ds['model_parameters']):,}", "", *last])
    header = ["waves", "parameters", "features", *columns.values()]
    return Table(
        "Ordinary models of the most important waves: poles, C and D as in the full model, the decoder's bias shifted to the same mean "
        "logits on training cases; refitted: its weights as well, to the full model's logits. Empty slots are left out of the parameters. "
        "Sizes are compared on the cases shown here, so a choice of the smallest good one is made with hindsight.",
        header,
        rows,
        frozenset(range(len(header))),
    )


def _cell(name: str, value: float) -> str:
    return number(value, 3) if name.endswith("margin_r2") else f"{100 * value:.1f} %"
