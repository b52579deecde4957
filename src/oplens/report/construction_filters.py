"""How a built S4D computes: its kernels beside those asked for, as a section."""

import numpy as np
import xarray as xr

from oplens.figures.construction_filters import filter_waves, gain_comparison, kernel_comparison
from oplens.figures.style import significant
from oplens.report.blocks import Limits, Picture, Section, Table, switched

HEADING = ("construction", "How it computes", "How does it compute?")


def filter_section(kernels: xr.Dataset, waves: xr.Dataset, limits: Limits) -> Section:
    """Kernels, gains and waves of the groups `/construction_kernels` and `/construction_waves`."""
    shown = range(min(kernels.sizes["feature"], max(1, limits.cases // 2)))
    names = {str(k): f"{int(kernels['feature'][k])}: {kernels['label'].values[k]}" for k in shown}
    switch, keys = switched("construction-filters", {"filter": names})
    follows = switch.id if switch else None
    chosen = {key: int(answers[0]) for key, answers in keys.items()}
    pictures = [
        Picture(
            "construction-kernel",
            "Kernel, asked for and built",
            "What an input of 1, so many steps ago, adds to the filter's output; read from the stored weights. Below: built less asked for. "
            "Claim: exact.",
            {key: kernel_comparison(kernels, feature) for key, feature in chosen.items()},
            follows,
        ),
        Picture(
            "construction-gain",
            "Gain, asked for and built",
            "By how much the filter multiplies a sinusoid, from the kernel's first 2,048 lags. Claim: measured.",
            {key: gain_comparison(kernels, feature) for key, feature in chosen.items()},
            follows,
        ),
        Picture(
            "construction-waves",
            "The decaying waves that it is made of",
            "Every dot is a wave of the state space, by frequency and by how long it lasts; larger dots are larger waves at lag 0. Claim: exact.",
            {key: filter_waves(waves, feature) for key, feature in chosen.items()},
            follows,
        ),
    ]
    return Section(
        *HEADING,
        findings=_findings(kernels),
        switch=switch,
        pictures=pictures,
        tables=[_table(kernels)],
    )


def _findings(kernels: xr.Dataset) -> list[str]:
    total, drawn = int(kernels.attrs["n_features"]), kernels.sizes["feature"]
    norm = kernels["norm"].values
    relative = float(np.max(kernels["error"].values / np.where(norm > 0, norm, 1.0)))
    modes = int(kernels["n_modes"].sum())
    waves = f"{modes} decaying wave{'' if modes == 1 else 's'}"
    if total == 1:
        first = f"One filter of {waves}."
    else:
        first = (
            f"{total} filters; the {drawn} that add most, which are shown, have {waves}."
            if drawn < total
            else f"{total} filters of {waves}."
        )
    plural = "kernels are" if drawn > 1 else "kernel is"
    return [
        first,
        f"The {plural} within {significant(relative)} of {'those' if drawn > 1 else 'the one'} asked for: absolute differences summed over all "
        "lags, in relation to the kernel's own sum.",
    ]


def _table(kernels: xr.Dataset) -> Table:
    rows = [
        [
            f"{int(kernels['feature'][k])}",
            str(kernels["label"].values[k]),
            f"{int(kernels['n_modes'][k])}",
            significant(float(kernels["norm"][k])),
            significant(float(kernels["error"][k])),
        ]
        for k in range(kernels.sizes["feature"])
    ]
    header = ["filter", "of", "waves", "L1 norm at most", "L1 error at most"]
    return Table(
        "Kernels, and how far they are from those asked for. Claim: bound.", header, rows, frozenset((0, 2, 3, 4))
    )
