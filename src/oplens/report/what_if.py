"""What would flip each decision, and what the model does without a part: as sections, and as lines for a terminal."""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.figures.steering import ablation_scatter, change_sizes, predicted_against_achieved, steering_overlay
from oplens.figures.style import cell, number, significant
from oplens.report.blocks import Choice, Limits, Picture, Section, Switch, Table

READING = (
    "A change found here is the smallest for this model, not a plausible recording: it may be nothing that a brain or a machine would "
    "do. Refined changes are local minima of a search, so smaller ones may exist; none can below a certified bound."
)


def what_if_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """The smallest changes that flip decisions, and the model without its parts; [] where a file holds neither.

    Parameters
    ----------
    results
        A result with a group `what_if` (and `what_if_cases`, which holds signals), groups `ablation` or `ablation_...`; or what
        `op.steer` returns.
    limits
        Smaller pages list and draw fewer cases.
    """
    if isinstance(results, xr.Dataset):
        return [_steering(results, results, limits)]
    sections = []
    if "what_if" in results.children:
        steering = results.children["what_if"].to_dataset(inherit=False)
        cases = results.children.get("what_if_cases")
        sections.append(_steering(steering, steering if cases is None else cases.to_dataset(inherit=False), limits))
    parts = {name: node.to_dataset(inherit=False) for name, node in results.children.items() if _is_ablation(str(name))}
    return [*sections, *([_ablations(parts)] if parts else [])]


def what_if_lines(steering: xr.Dataset) -> list[str]:
    """One line per case, what would flip it, and a summary: for a terminal.

    Parameters
    ----------
    steering
        What `op.steer` returns, or the group `/what_if`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.explanation.interventions.steering import steer
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4, classes=("left", "right")))
    >>> X = np.random.default_rng(0).normal(size=(2, 1, 30))
    >>> lines = what_if_lines(steer(expand(model, X), X))
    >>> len(lines), lines[0].startswith("case 0: ")
    (3, True)
    """
    return [
        *(_case_line(steering.isel(case=k)) for k in range(steering.sizes["case"])),
        " ".join(_findings(steering)[:2]),
    ]


def _is_ablation(name: str) -> bool:
    return name == "ablation" or name.startswith("ablation_")


def _case_line(row: xr.Dataset) -> str:
    head = f"case {int(row['case'])}: {row['predicted'].values} -> {row['to'].values}"
    if float(row["norm"]) == 0:
        already = bool(row["reached"]) and row["predicted"].values == row["to"].values
        return f"{head}: {'decided so already' if already else 'no allowed change moves it'}"
    units = str(row["norm"].attrs.get("units", ""))
    largest = int(np.argmax(row["channel_energy"].values))
    size = (
        f"norm {significant(float(row['norm']))} {units} ({_percent(float(row['relative_norm']))} of the case's), rms "
        f"{significant(float(row['rms'].values[largest]))} in data units in {row['channel'].values[largest]}"
    )
    before, predicted, achieved = _margins(row)
    said = f"margin {before} -> predicted {predicted}, achieved {achieved}"
    outcome = "" if bool(row["reached"]) else "; NOT reached" + _how_far(row)
    return f"{head}: {size}; {_where(row)}; {said}{outcome}"


def _how_far(row: xr.Dataset) -> str:
    reach = float(row["reach"])
    return "" if np.isinf(reach) else f" (the operator reaches {number(reach, 2, True)} at most)"


def _where(row: xr.Dataset) -> str:
    """Channel, band and window with most of the change's energy."""
    return "mostly " + ", ".join(_largest_parts(row.expand_dims("case"), np.array([True])))


def _part(ds: xr.Dataset, dim: str, k: int) -> str:
    if dim == "window":
        return f"in time window {k + 1} of {ds.sizes['window']}"
    return f"in {ds[dim].values[k]}" if dim == "channel" else f"at {ds[dim].values[k]}"


def _steering(ds: xr.Dataset, cases: xr.Dataset, limits: Limits) -> Section:
    pictures, switch = _overlays(cases, limits)
    moved = ds["norm"].values > 0
    if moved.any():
        if (_flags(ds, "reached") & moved).any():
            pictures.append(
                Picture(
                    "what-if-sizes",
                    "How small a change is enough",
                    "Orange: the norm of the change that was found, every case's own. Black dash: certified, no change of a smaller norm does "
                    "it. The smallest one lies between. Claim: measured (found), bound (dash).",
                    {"": change_sizes(ds)},
                )
            )
        pictures.append(
            Picture(
                "what-if-predictions",
                "How well the operator foresees what a change does",
                "A dot per case and change: by how much the margin moves, as the operator predicts it (across) and as the running model does "
                "(up). Dotted: both agree. Claim: truncated (predicted), exact (achieved).",
                {"": predicted_against_achieved(ds)},
            )
        )
    return Section(
        "what-if",
        "What if",
        "What would flip each decision?",
        findings=_findings(ds),
        switch=switch,
        pictures=pictures,
        tables=[_case_table(ds, cases, limits)],
        notes=[READING, f"Allowed: {ds.attrs.get('confined_to', 'changes of every channel and step')}."],
    )


def _overlays(cases: xr.Dataset, limits: Limits) -> tuple[list[Picture], Switch | None]:
    """The chosen cases' signals with their changes, one at a time."""
    if not {"delta", "signal"} <= set(cases.data_vars):
        return [], None
    chosen = [int(c) for c in cases["case"].values[cases["norm"].values > 0]][: limits.cases]
    if not chosen:
        return [], None
    options = {str(case): f"case {case}" for case in chosen}
    switch = Switch("switch-what-if", [Choice("case", options)]) if len(chosen) > 1 else None
    picture = Picture(
        "what-if-signal",
        "The signal, and what would flip it",
        "Black: the case as recorded. Orange: the case as changed, and below it the change alone, magnified as the axis says. Drawn are the "
        "channels that hold most of the change. Claim: measured.",
        {(str(case) if switch else ""): steering_overlay(cases, case) for case in chosen},
        switch.id if switch else None,
    )
    return [picture], switch


def _findings(ds: xr.Dataset) -> list[str]:
    moved = ds["norm"].values > 0
    count, reached = ds.sizes["case"], _flags(ds, "reached") & moved
    already = int((_flags(ds, "reached") & ~moved).sum())
    units = str(ds["norm"].attrs.get("units", ""))
    margin = float(ds.attrs.get("margin", 0.0))
    wish = "flip" if margin == 0 else f"take the margin to {number(margin)} for"
    if reached.any():
        share = _percent(float(np.median(ds["relative_norm"].values[reached])))
        said = (
            f"Changes of median norm {_median(ds['norm'].values[reached])} {units} ({share} of a case's own norm) {wish} "
            f"{int(reached.sum())} of {count} decisions{_bounded(ds, reached)}"
        )
    else:
        said = f"No change that was found would {wish} any of {count} decisions"
    said += f"; {already} are there already." if already else "."
    first = _flags(ds, "first_flipped")
    account = str(ds.attrs.get("account", "the operator"))
    gap = np.abs(ds["first_predicted_target"].values - ds["first_achieved_target"].values)
    alone = (
        f"By the {account} alone, before refinement, {int(first.sum())} of {count} flip; its prediction of the margin after its own "
        f"change misses the model's by {_median(gap[moved])} (median)."
        if moved.any()
        else f"By the {account} nothing needs to change."
    )
    found = [said, alone]
    if moved.any():
        found.append(_places(ds, moved))
    unreachable = int((~_flags(ds, "reachable")).sum())
    if unreachable:
        found.append(f"For {unreachable} cases the {account} says that no allowed change gets there.")
    return found


def _bounded(ds: xr.Dataset, reached: NDArray[np.bool_]) -> str:
    if "norm_lower_bound" not in ds:
        return ""
    bound = ds["norm_lower_bound"].values[reached]
    return f"; it is certified that none below {_median(bound)} (median) does"


def _places(ds: xr.Dataset, moved: NDArray[np.bool_]) -> str:
    """Where the changes are, on average over the cases."""
    words = _largest_parts(ds, moved)
    return f"Of the changes' energy, on average {', '.join(words[:-1])} and {words[-1]}."


def _largest_parts(ds: xr.Dataset, cases: NDArray[np.bool_]) -> list[str]:
    """Of every kind of part the one with most of the energy; a single channel is no news."""
    words = []
    for dim in ("channel", "band", "window"):
        share = ds[f"{dim}_energy"].transpose("case", dim).values[cases].mean(0)
        k = int(np.argmax(share))
        if dim != "channel" or share.size > 1:
            words.append(f"{_percent(float(share[k]))} {_part(ds, dim, k)}")
    return words


def _case_table(ds: xr.Dataset, cases: xr.Dataset, limits: Limits) -> Table:
    known = {int(c): k for k, c in enumerate(ds["case"].values)}
    shown = [known[int(c)] for c in cases["case"].values if int(c) in known][: limits.cases]
    wanted = _flags(ds, "reached")[shown].all()
    header = ["case", "from → to", "norm", "of its own", "mostly in", "rms there", "margin", "predicted", "achieved"]
    return Table(
        f"Norm in {ds['norm'].attrs.get('units', '')}; rms in units of the data, in the channel with most of the change; margins of the "
        "wanted class over its rival before the change, after it by the operator, and after it by the running model.",
        header if wanted else [*header, "reached"],
        [_case_row(ds.isel(case=k))[: len(header) + (not wanted)] for k in shown],
        frozenset({2, 3, 5, 6, 7, 8}),
    )


def _case_row(row: xr.Dataset) -> list[str]:
    largest = int(np.argmax(row["channel_energy"].values))
    still = float(row["norm"]) == 0
    way = f"{row['predicted'].values} → {row['to'].values}".replace(
        " ", "\u00a0"
    )  # a class name of two words stays on its line
    return [
        str(int(row["case"])),
        way,
        significant(float(row["norm"])),
        "–" if still else _percent(float(row["relative_norm"])),
        "–" if still else str(row["channel"].values[largest]),
        "–" if still else significant(float(row["rms"].values[largest])),
        *_margins(row),
        "yes" if bool(row["reached"]) else "no",
    ]


def _ablations(parts: dict[str, xr.Dataset]) -> Section:
    pictures, tables, findings = [], [], []
    for name, ds in parts.items():
        title = name.removeprefix("ablation").strip("_").replace("_", " × ") or "parts"
        pictures.append(
            Picture(
                f"{name.replace('_', '-')}-scatter",
                f"Without each of the {title}: predicted against the running model",
                "A dot per case and part taken out. Open: minus the part's share. Full: the operator run without the part. Dotted: prediction and "
                "model agree. Claim: truncated (predicted), exact (the model).",
                {"": ablation_scatter(ds)},
            )
        )
        tables.append(_part_table(ds, title))
        findings += _part_findings(ds, title)
    return Section(
        "ablation",
        "Without parts",
        "What does the model do without a part?",
        findings=findings,
        pictures=pictures,
        tables=tables,
    )


def _part_findings(ds: xr.Dataset, title: str) -> list[str]:
    change = _mean_change(ds)
    k = int(np.argmax(change))
    kept = float(ds.attrs.get("keep", 0.0))
    how = "Without" if kept == 0 else f"With {number(kept)} of"
    said = (
        f"{how} {ds['member'].values[k]}, which moves the explained number most among the {title}, the model decides "
        f"{_percent(float(ds['agreement'].values[k]))} of the cases as before"
    )
    if "accuracy" in ds:
        said += f" and its accuracy goes from {_percent(float(ds['model_accuracy']))} to {_percent(float(ds['accuracy'].values[k]))}"
    scores = [f"minus a part's share foretells what its absence does with R² {number(round(float(ds['share_r2']), 2))}"]
    if "change_r2" in ds:
        scores += [
            f"the operator cut at order {int(o)} with {number(round(float(v), 2))}"
            for o, v in zip(ds["order"].values, ds["change_r2"].values, strict=True)
        ]
    return [said + ".", f"Over all cases and {title}, {', '.join(scores)}."]


def _mean_change(ds: xr.Dataset) -> NDArray[np.float64]:
    change = abs(ds["actual_change"])
    found: NDArray[np.float64] = change.mean([d for d in change.dims if d != "rank"]).values
    return found


def _part_table(ds: xr.Dataset, title: str) -> Table:
    change = _mean_change(ds)
    order = np.argsort(-change, kind="stable")[:20]
    header = [title, "mean change", "decided as before", *(["accuracy"] if "accuracy" in ds else [])]
    rows = [
        [
            str(ds["member"].values[k]),
            number(float(change[k]), 3),
            _percent(float(ds["agreement"].values[k])),
            *([_percent(float(ds["accuracy"].values[k]))] if "accuracy" in ds else []),
        ]
        for k in order
    ]
    caption = (
        f"One part at a time ({ds.attrs.get('parts', '')}); mean absolute change of the explained number, in logits."
    )
    return Table(caption, header, rows, frozenset(range(1, len(header))))


def _flags(ds: xr.Dataset, name: str) -> NDArray[np.bool_]:
    return np.asarray(ds[name].values).astype(bool)  # files hold booleans as small integers


def _median(values: NDArray[np.float64]) -> str:
    return significant(float(np.median(values)))


def _percent(share: float) -> str:
    if 0 < share < 5e-4:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def _margins(row: xr.Dataset) -> list[str]:
    """The margin before, predicted and achieved, with the digits that the largest of them deserves."""
    values = [float(row[name]) for name in ("start_target", "predicted_target", "achieved_target")]
    texts = [cell(value, max(map(abs, values)), signed=True) for value in values]
    # A change lands as near the other side as it can, and "0" would read as undecided.
    return [*texts[:2], "just above 0" if texts[2] == "0" and values[2] > 0 else texts[2]]
