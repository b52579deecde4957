"""What is certified of a built model, and what was run, as a section."""

import json
from typing import Any

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
    bound, signals = float(ds["error_bound"]), certificate["construction"] == "ssm"
    pictures, switch = [], None
    if checks is not None and bound > 0:
        pictures.append(_errors(ds, checks))
    if margins is not None and slices is None:
        pictures.append(_needs(margins))
    if not signals:
        pictures.append(_weights(ds))
    if slices is not None:
        lines = {str(k): str(v) for k, v in enumerate(slices["along"].values)}
        switch, keys = switched("construction-along", {"shown" if signals else "along": lines})
        pictures.append(
            Picture(
                "construction-section",
                "Model and kernels on signals"
                if signals
                else "Model and function along a line through the largest error",
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
    tables = [] if signals else [_sizes(results, ds)]
    tables += [_runs(checks, signals)] if checks is not None else []
    tables += [_margins(margins)] if margins is not None and slices is not None else []
    return Section(
        "construction-proof",
        "What holds",
        "What is certified, and what was run?",
        findings=[
            f"Certified, claim {certificate['claim']}: {str(certificate['statement']).rstrip('.')}.",
            *(_run_findings(checks, certificate, bound) if checks is not None else []),
            *(_uncertified(margins) if margins is not None else []),
            _size_finding(ds, signals),
        ],
        switch=switch,
        pictures=pictures,
        tables=tables,
        notes=[f"Given: {'; '.join(certificate['hypotheses'])}."],
    )


def _errors(ds: xr.Dataset, checks: xr.Dataset) -> Picture:
    return Picture(
        "construction-errors",
        "The certified bound and its parts",
        "The parts add up to the bound, which holds everywhere under the hypotheses below; the error found is the largest of all that was "
        "tried, so the largest of all is at least that. Claims: bound, measured.",
        {"": error_parts(ds, checks)},
    )


def _needs(margins: xr.Dataset) -> Picture:
    return Picture(
        "construction-margins",
        "What exactness needs, and what the weights give",
        "Bars: the least that the weights, converted to each dtype, deliver when every rounding is at its worst. Ticks: what suffices for "
        "every output to be exact. Claim: bound.",
        {"": construction_margins(margins)},
    )


def _weights(ds: xr.Dataset) -> Picture:
    return Picture(
        "construction-weights",
        "Sizes, layer by layer",
        "Hidden units, weights that are not 0, and the places that full matrices would have. Claim: exact.",
        {"": layer_weights(ds)},
    )


def _run_findings(checks: xr.Dataset, certificate: dict[str, Any], bound: float) -> list[str]:
    """What was run: outputs counted, or the largest error beside the bound."""
    if "errors" in checks:
        runs, errors = checks.sizes["rank"], int(checks["errors"].sum())
        names = ", ".join(dict.fromkeys(str(name) for name in checks["dtype_of"].values))
        total = json.loads(checks.attrs["verification"])["total_inputs"]
        run = int(checks["inputs"].values[0])
        inputs = f"all {total:,} inputs" if run == total else f"{run:,} of {total:,} inputs, drawn in strata,"
        verdict = (
            f"{errors:,} outputs are WRONG" if errors > 1 else "1 output is WRONG" if errors else "no output is wrong"
        )
        return [f"Run: {inputs} in {runs} pass{'es' if runs > 1 else ''} ({names}): {verdict}."]
    # Weights converted to another dtype have a bound of their own.
    own = checks.isel(rank=checks["dtype_of"].values == certificate["dtype"])
    largest = float(own["largest_error"].max())
    signals = certificate["construction"] == "ssm"
    places = f"on {own.sizes['rank']} signals" if signals else f"at {int(own['inputs'].sum()):,} points"
    times = f"{bound / largest:.2g} times" if largest > 1e-3 * bound else "far"
    relation = f"{times} below the bound of" if 1.05 * largest <= bound else "which all but attains the bound of"
    relation = relation if largest <= bound else "ABOVE the bound of"
    return [f"The largest error found {places} is {significant(largest)}, {relation} {significant(bound)}."]


def _uncertified(margins: xr.Dataset) -> list[str]:
    """Dtypes whose margin is not met."""
    short = margins["delivered"].values < margins["required"].values
    names = ", ".join(dict.fromkeys(str(name) for name in margins["dtype_of"].values[short]))
    return [f"Not certified in {names}: the weights deliver less than exactness needs there."] if names else []


def _size_finding(ds: xr.Dataset, signals: bool) -> str:
    share = 100 * float(ds["sparse"]) / float(ds["dense"])
    width = int(ds["width"])
    wide = (
        f"it has {width:,} feature{'' if width == 1 else 's'}" if signals else f"the residual stream is {width:,} wide"
    )
    return (
        f"{int(ds['sparse']):,} weights are not 0, {number(share, 2 if share < 10 else 0)} % of the {int(ds['dense']):,} places of the dense "
        f"model; {wide}."
    )


def _sizes(results: xr.DataTree, ds: xr.Dataset) -> Table:
    states = group(results, "construction_states")
    rows = []
    for k, layer in enumerate(ds["layer"].values):
        row = [f"{int(layer)}", f"{int(ds['n_heads'][k])}", f"{int(ds['hidden_units'][k]):,}"]
        if states is not None:
            fires = states["firing"].sel(layer=layer).values[:, -1]
            row.append(f"{fires.min():,}" if fires.min() == fires.max() else f"{fires.min():,} to {fires.max():,}")
        rows.append([*row, f"{int(ds['nonzeros'][k]):,}", f"{int(ds['places'][k]):,}"])
    fire = ["fire where it is read"] if states is not None else []
    header = ["layer", "heads", "hidden units", *fire, "weights not 0", "places"]
    words = "Layers, from the input up; embedding and readout left out."
    return Table(words, header, rows, frozenset(range(len(header))))


def _runs(checks: xr.Dataset, signals: bool) -> Table:
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
    what = ("order of sums", "inputs") if counted else ("signal", "steps") if signals else ("points", "inputs")
    header = ["dtype", *what, *(["wrong"] if counted else []), "largest error"]
    words = "Where the error was looked for."
    if counted:
        words = "Passes over the inputs; wrong: not the function's value to the last bit."
    return Table(words, header, rows, frozenset(range(2, len(header))))


def _margins(margins: xr.Dataset) -> Table:
    columns = ("dtype_of", "compared", "required", "delivered")
    rows = [
        [str(name), str(compared), significant(float(required)), significant(float(delivered))]
        for name, compared, required, delivered in zip(*(margins[key].values for key in columns), strict=True)
    ]
    return Table("Margin against rounding.", ["dtype", "compared", "needed", "delivered"], rows, frozenset((2, 3)))
