"""How few waves decide as the model does, as a section."""

import numpy as np
import xarray as xr

from oplens.figures.reduction import accuracy_by_waves, shown_frequencies, wave_importance
from oplens.figures.style import number
from oplens.report.blocks import Limits, Picture, Section, Table

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
    if isinstance(results, xr.DataTree):
        if "reduction" not in results.children:
            return []
        results = results.children["reduction"].to_dataset(inherit=False)
    ds = results
    refitted = ds.attrs.get("refit") == "decoder"
    pictures = [
        Picture(
            "reduction-curve",
            "Smaller models of the most important waves",
            "Every dot is an ordinary model that keeps so many waves, measured on the explained cases; dotted: accuracy of the full model. "
            + ("Its decoder is fitted anew to the full model's logits on training cases. " if refitted else "")
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


def smallest_as_good(ds: xr.Dataset) -> int | None:
    """Return the position of the smallest model that, with all larger ones, decides as well as the full one; None if only that does."""
    reached, whole = ("accuracy", float(ds["model_accuracy"])) if "accuracy" in ds else ("agreement", 1.0)
    good = ds[reached].values >= whole - CLOSE - 1e-12
    lasting = np.logical_and.accumulate(good[::-1])[::-1]
    smaller = ds["n_waves"].values < _total(ds)
    found = np.flatnonzero(lasting & smaller)
    return int(found[0]) if found.size else None


def _findings(ds: xr.Dataset) -> list[str]:
    total = _total(ds)
    first = smallest_as_good(ds)
    if first is None:
        found = [
            f"No smaller model that was tried decides as well as the full one with its {total:,} waves "
            f"(within {100 * CLOSE:.0f} percentage points)."
        ]
    else:
        one = ds.isel(n_waves=first)
        kept, parameters = int(one["n_waves"]), int(one["n_parameters"])
        head = (
            f"{kept:,} of {total:,} waves ({parameters:,} of {int(ds['model_parameters']):,} parameters) "
            f"{'is' if kept == 1 else 'are'} enough: "
        )
        told = f"the smaller model decides {100 * float(one['agreement']):.0f} % of the cases as the full one does"
        if "accuracy" in ds:
            told = (
                f"the smaller model decides {100 * float(one['accuracy']):.0f} % of the cases correctly, the full one "
                f"{100 * float(ds['model_accuracy']):.0f} %; both decide alike in {100 * float(one['agreement']):.0f} %"
            )
        found = [f"{head}{told}."]
        skips = int(one["n_skips"]) if "n_skips" in ds else 0
        if skips:
            words = ("keeps", "it reads") if skips == 1 else ("keep", "they read")
            found.append(
                f"{skips} of its {int(one['n_features'])} hidden features {words[0]} no wave: what {words[1]} needs no memory, only the "
                "values of the moment."
            )
    units = str(ds["frequency"].attrs.get("units", "")).replace("cycles/step", "cycles per step")
    count = min(5, ds.sizes["rank"])
    shown = shown_frequencies(ds["frequency"].values)[:count]
    waves = f"{count} most important waves have" if count > 1 else "most important wave has"
    found.append(f"The {waves} {'these frequencies' if count > 1 else 'the frequency'}: {', '.join(shown)} {units}.")
    return found


def _total(ds: xr.Dataset) -> int:
    return int(ds.attrs["total_waves"]) if "total_waves" in ds.attrs else int(ds["n_waves"].values[-1])


def _table(ds: xr.Dataset) -> Table:
    labelled = "accuracy" in ds
    header = ["waves", "parameters", "features", *(["accuracy"] if labelled else []), "same decisions", "margin R²"]
    rows = []
    for k in range(ds.sizes["n_waves"]):
        one = ds.isel(n_waves=k)
        counts = [f"{int(one[name]):,}" for name in ("n_waves", "n_parameters", "n_features")]
        percent = [f"{100 * float(one[name]):.1f} %" for name in ("accuracy", "agreement") if name in ds]
        rows.append([*counts, *percent, number(float(one["margin_r2"]), 3)])
    if labelled:
        last = f"{100 * float(ds['model_accuracy']):.1f} %"
        rows.append(["full model", f"{int(ds['model_parameters']):,}", "", last, "100.0 %", number(1.0, 3)])
    return Table(
        "Ordinary models of the most important waves: poles, C and D as in the full model, the decoder's bias shifted to the same mean "
        "logits on training cases. Empty slots are left out of the parameters. Sizes are compared on the cases shown here, so a choice of "
        "the smallest good one is made with hindsight.",
        header,
        rows,
        frozenset(range(len(header))),
    )
