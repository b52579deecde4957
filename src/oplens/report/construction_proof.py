"""What is certified of a built model, and what was run, as a section."""

import json

import xarray as xr

from oplens.figures.construction_proof import (
    construction_margins,
    error_parts,
    error_surface,
    function_section,
    layer_weights,
)
from oplens.figures.style import number, significant
from oplens.report.blocks import Picture, Section, Table, group, switched


def proof_section(results: xr.DataTree, ds: xr.Dataset) -> Section:
    """Certificate, margins, errors and passes of a built model; `ds` is the group `/construction`."""
    margins, checks = group(results, "construction_margins"), group(results, "construction_checks")
    slices, surface = group(results, "construction_slices"), group(results, "construction_surface")
    certificate = json.loads(ds.attrs["certificate"])
    bound = float(ds["error_bound"])
    pictures, switch = [], None
    if checks is not None and bound > 0:
        pictures.append(
            Picture(
                "construction-errors",
                "The certified bound and its parts",
                "The parts add up to the bound, which holds everywhere under the hypotheses below; the error found is the largest of all points "
                "that were tried, so the largest of all is at least that. Claims: bound, measured.",
                {"": error_parts(ds, checks)},
            )
        )
    if margins is not None and slices is None:
        pictures.append(
            Picture(
                "construction-margins",
                "What exactness needs, and what the weights give",
                "Bars: the least that the weights, converted to each dtype, deliver when every rounding is at its worst. Ticks: what suffices for "
                "every output to be exact. Claim: bound.",
                {"": construction_margins(margins)},
            )
        )
    pictures.append(
        Picture(
            "construction-weights",
            "Sizes, layer by layer",
            "Hidden units, weights that are not 0, and the places that full matrices would have. Claim: exact.",
            {"": layer_weights(ds)},
        )
    )
    if slices is not None:
        switch, keys = switched(
            "construction-along", {"along": {str(k): str(v) for k, v in enumerate(slices["along"].values)}}
        )
        pictures.append(
            Picture(
                "construction-section",
                "Model and function along a line through the largest error",
                "Above: both values. Below: their difference under the certified bound (dashed). Claims: exact, measured, bound.",
                {key: function_section(slices, bound, int(answers[0])) for key, answers in keys.items()},
                switch.id if switch else None,
            )
        )
    if surface is not None:
        pictures.append(
            Picture(
                "construction-surface",
                "Where the error is",
                "Distance between model and function over two variables; circled: the largest error found. Claim: measured.",
                {"": error_surface(surface, bound)},
            )
        )
    tables = [_sizes(results, ds)] + ([_runs(checks)] if checks is not None else [])
    if margins is not None and slices is not None:
        tables.append(_margins(margins))
    return Section(
        "construction-proof",
        "What holds",
        "What is certified, and what was run?",
        findings=_proof_findings(ds, checks, margins, certificate),
        switch=switch,
        pictures=pictures,
        tables=tables,
        notes=[f"Given: {'; '.join(certificate['hypotheses'])}."],
    )


def _proof_findings(
    ds: xr.Dataset, checks: xr.Dataset | None, margins: xr.Dataset | None, certificate: dict[str, object]
) -> list[str]:
    bound = float(ds["error_bound"])
    found = [f"Certified, claim {certificate['claim']}: {certificate['statement']}."]
    if checks is not None and "errors" in checks:
        runs, errors = checks.sizes["rank"], int(checks["errors"].sum())
        names = ", ".join(dict.fromkeys(str(name) for name in checks["dtype_of"].values))
        total = json.loads(checks.attrs["verification"])["total_inputs"]
        run = int(checks["inputs"].values[0])
        inputs = f"all {total:,} inputs" if run == total else f"{run:,} of {total:,} inputs, drawn in strata,"
        found.append(
            f"Run: {inputs} in {runs} pass{'es' if runs > 1 else ''} ({names}): "
            f"{f'{errors:,} outputs are WRONG' if errors > 1 else '1 output is WRONG' if errors else 'no output is wrong'}."
        )
    elif checks is not None:
        largest = float(checks["largest_error"].max())
        times = f"{bound / largest:.2g} times" if largest > 1e-3 * bound else "far"
        relation = f"{times} below the bound of" if largest <= bound else "ABOVE the bound of"
        found.append(
            f"The largest error found at {int(checks['inputs'].sum()):,} points is {significant(largest)}, {relation} {significant(bound)}."
        )
    if margins is not None:
        unmet = [
            str(n)
            for n, d, r in zip(
                margins["dtype_of"].values, margins["delivered"].values, margins["required"].values, strict=True
            )
            if d < r
        ]
        if unmet:
            found.append(
                f"Not certified in {', '.join(dict.fromkeys(unmet))}: the weights deliver less than exactness needs there."
            )
    share = 100 * float(ds["sparse"]) / float(ds["dense"])
    found.append(
        f"{int(ds['sparse']):,} weights are not 0, {number(share, 2 if share < 10 else 0)} % of the {int(ds['dense']):,} places of the dense "
        f"model; the residual stream is {int(ds['width']):,} wide."
    )
    return found


def _sizes(results: xr.DataTree, ds: xr.Dataset) -> Table:
    states = group(results, "construction_states")
    rows = []
    for k, layer in enumerate(ds["layer"].values):
        row = [f"{int(layer)}", f"{int(ds['n_heads'][k])}", f"{int(ds['hidden_units'][k]):,}"]
        if states is not None:
            fires = states["firing"].sel(layer=layer).values[:, -1]
            row.append(f"{fires.min():,}" if fires.min() == fires.max() else f"{fires.min():,} to {fires.max():,}")
        rows.append([*row, f"{int(ds['nonzeros'][k]):,}", f"{int(ds['places'][k]):,}"])
    header = [
        "layer",
        "heads",
        "hidden units",
        *(["fire where it is read"] if states is not None else []),
        "weights not 0",
        "places",
    ]
    return Table(
        "Layers, from the input up; embedding and readout left out.", header, rows, frozenset(range(len(header)))
    )


def _runs(checks: xr.Dataset) -> Table:
    counted = "errors" in checks
    rows = [
        [
            str(checks["dtype_of"].values[k]),
            str(checks["order_of"].values[k]),
            f"{int(checks['inputs'][k]):,}",
            *([f"{int(checks['errors'][k]):,}"] if counted else []),
            significant(float(checks["largest_error"][k])),
        ]
        for k in range(checks.sizes["rank"])
    ]
    header = [
        "dtype",
        "order of sums" if counted else "points",
        "inputs",
        *(["wrong"] if counted else []),
        "largest error",
    ]
    words = (
        "Passes over the inputs; wrong: not the function's value to the last bit."
        if counted
        else "Where the error was looked for."
    )
    return Table(words, header, rows, frozenset(range(2, len(header))))


def _margins(margins: xr.Dataset) -> Table:
    rows = [
        [str(name), str(compared), significant(float(required)), significant(float(delivered))]
        for name, compared, required, delivered in zip(
            *(margins[key].values for key in ("dtype_of", "compared", "required", "delivered")), strict=True
        )
    ]
    return Table("Margin against rounding.", ["dtype", "compared", "needed", "delivered"], rows, frozenset((2, 3)))
