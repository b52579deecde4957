"""How far each order goes, beside the baselines, as a section."""

import numpy as np
import xarray as xr

from oplens import figures
from oplens.figures.style import number
from oplens.report.blocks import Picture, Section, Table


def accuracy_section(tree: xr.DataTree) -> list[Section]:
    """How far each order goes, beside the baselines."""
    summary = _dataset(tree, "summary")
    if summary is None or not ({"accuracy", "agreement", "model_accuracy"} & set(summary.data_vars)):
        return []
    baselines = _dataset(tree, "baselines")
    cut = "order" in summary.dims
    picture = Picture(
        "accuracy",
        f"Accuracy of {'the operator cut after each order, ' if cut else ''}the full model and simple baselines",
        "One dot per decision rule, on the explained cases. "
        + (
            "Orange: the operator cut after an order; the percentage beside its name is relative to the full model (black, dotted line). "
            if cut
            else "Black: the full model. "
        )
        + "Blue: baselines trained without any state-space model; an open dot was picked with hindsight, that is with the very "
        "labels it is scored on. Claim: measured.",
        {"": figures.accuracy_by_order(summary, baselines)},
    )
    rules = len(picture.variants[""].data[0]["y"])
    return [
        Section(
            "accuracy",
            "Accuracy",
            "How much of the model is a short sum?" if cut else "How good is the model?",
            findings=_accuracy_findings(summary),
            pictures=[picture] if rules > 1 else [],
            tables=[table for table in (_order_table(summary), _means_table(summary)) if table],
        )
    ]


def _accuracy_findings(summary: xr.Dataset) -> list[str]:
    found = []
    if "model_accuracy" in summary:
        model = float(summary["model_accuracy"])
        steps = [""]
        if "accuracy" in summary:
            steps += [
                f"order {int(o)} {'alone' if k == 0 else 'added'} reaches {100 * a:.0f} % ({100 * a / (model or 1.0):.0f} % of the model)"
                for k, (o, a) in enumerate(zip(summary["order"].values, summary["accuracy"].values, strict=True))
            ]
        found.append(f"The full model decides {100 * model:.0f} % of the cases correctly" + "; ".join(steps) + ".")
    elif "agreement" in summary:
        best, last = float(summary["agreement"].values[-1]), int(summary["order"].values[-1])
        found.append(f"Cut after order {last}, the operator decides {100 * best:.0f} % of the cases as the model does.")
    if np.isfinite(summary.get("channel_mean_r2", np.nan)):  # a single case varies in nothing
        share = float(summary["channel_mean_r2"])
        found.append(
            f"A linear function of the channels' mean values explains {100 * share:.0f} % of the variance of the model's margin"
            + (": much of what it uses is the offset of the signals, not their oscillation." if share > 0.5 else ".")
        )
    return found


def _order_table(summary: xr.Dataset) -> Table | None:
    columns = {
        "accuracy": "accuracy",
        "relative_accuracy": "of the model's",
        "agreement": "same decisions",
        "margin_r2": "margin R²",
    }
    present = [name for name in columns if name in summary and "order" in summary[name].dims]
    if not present:
        return None
    rows = [
        ["order 1" if int(order) == 1 else f"orders 1–{int(order)}"]
        + [
            number(float(summary[name][k]), 3) if name == "margin_r2" else f"{100 * float(summary[name][k]):.1f} %"
            for name in present
        ]
        for k, order in enumerate(summary["order"].values)
    ]
    if "model_accuracy" in summary:
        fixed = {"accuracy": f"{100 * float(summary['model_accuracy']):.1f} %", "relative_accuracy": "100.0 %"}
        rows.append(
            ["full model", *(fixed.get(name, "100.0 %" if name == "agreement" else number(1.0, 3)) for name in present)]
        )
    return Table(
        "The operator cut after each order, order 0 included: its accuracy, that as a fraction of the model's, and how often "
        "both decide alike. R² compares its margin with the model's and is negative where the cut is worse than a constant.",
        ["operator", *(columns[name] for name in present)],
        rows,
        frozenset(range(1, len(present) + 1)),
    )


def _means_table(summary: xr.Dataset) -> Table | None:
    if "accuracy_beyond_means" not in summary:
        return None
    values = summary["accuracy_beyond_means"]
    rows = [[str(q), f"{100 * float(v):.1f} %"] for q, v in zip(values["quantity"].values, values.values, strict=True)]
    return Table(
        "What the explained margin holds beyond the channel means: logistic regressions fitted on training data. Where the "
        "second line is not higher, the model adds nothing to the offsets.",
        ["predictors", "accuracy"],
        rows,
        frozenset({1}),
    )


def _dataset(tree: xr.DataTree, name: str) -> xr.Dataset | None:
    return tree.children[name].to_dataset(inherit=False) if name in tree.children else None
