"""What is known before any simulation, as a section: two signals told apart in noise, and a sweep over frequencies."""

from typing import Any

import numpy as np
import xarray as xr

from oplens.figures.prediction import frequency_sweep, prediction_distribution
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits, Picture, Section, Switch, Table, switched

UNUSUAL = 4.0  # standard errors between prediction and simulation that chance does not explain


def prediction_section(tree: xr.DataTree, limits: Limits) -> list[Section]:
    """One section of the group `/prediction`, which holds `discrimination`, `sweep` or both; none where it is absent."""
    if "prediction" not in tree.children:
        return []
    found = {str(name): node.to_dataset(inherit=False) for name, node in tree.children["prediction"].children.items()}
    two, sweep = found.get("discrimination"), found.get("sweep")
    findings, pictures, tables = [], [], []
    key, switch = None, None
    if two is not None and "class_accuracy" in two:
        findings += _accuracy_findings(two)
        pictures.append(_distribution_picture(two))
        tables += [_accuracy_table(two), *_simulation_table(two)]
        key = (f"decides {two.attrs.get('towards', '')}", f"decides {two.attrs.get('against', '')}")
    if sweep is not None and "target_mean" in sweep:
        findings += _sweep_findings(sweep)
        switch, picture = _sweep_picture(sweep, limits)
        pictures.append(picture)
    if not pictures:
        return []
    return [
        Section(
            "prediction",
            "Prediction",
            "What will it decide on signals it has not seen?",
            findings=findings,
            key=key,
            switch=switch,
            pictures=pictures,
            tables=tables,
        )
    ]


def scores(two: xr.Dataset) -> list[tuple[str, str, float, float, float]]:
    """Return (class, quantity, predicted, simulated, z) of everything that was simulated; z counts standard errors.

    An accuracy's standard error is that of the predicted one: where every simulated case was right its own would be zero.
    """
    if "simulated_mean" not in two:
        return []
    count = two.sizes["case"]
    rows = []
    for k, name in enumerate(two["class"].values):
        single = two.isel({"class": k})
        p = float(single["class_accuracy"])
        spread = float(np.sqrt(max(p * (1 - p), 1 / count**2) / count))
        for word, predicted, simulated, error in (
            ("mean", "class_mean", "simulated_mean", float(single["simulated_mean_error"])),
            ("variance", "class_variance", "simulated_variance", float(single["simulated_variance_error"])),
            ("accuracy", "class_accuracy", "simulated_accuracy", spread),
        ):
            a, b = float(single[predicted]), float(single[simulated])
            rows.append((str(name), word, a, b, (b - a) / error if error > 0 else 0.0 if a == b else float("inf")))
    return rows


def _accuracy_findings(two: xr.Dataset) -> list[str]:
    names = [str(name) for name in two["class"].values]
    accuracy, gaussian = float(two["balanced_accuracy"]), float(two["balanced_accuracy_gaussian"])
    found = [
        f"In {_noise(two)} over {two.attrs.get('n_steps')} steps the model tells {names[0]} from {names[1]} in {_percent(accuracy)} of cases: "
        f"known from its weights, without simulating one. If margins were exactly Gaussian it would be {_percent(gaussian)}; certainly it is "
        f"at least {_percent(float(two['balanced_accuracy_lower_bound']))}."
    ]
    checked = scores(two)
    if checked:
        right = float(two["simulated_accuracy"].mean())
        worst = max(abs(z) for *_, z in checked)
        verdict = "as chance allows" if worst < UNUSUAL else "more than chance allows: the prediction is off here"
        found.append(
            f"Simulated with {two.sizes['case']:,} cases of each class, the model itself is right in {_percent(right)}; means, variances and "
            f"accuracies differ from the predicted ones by up to {number(worst, 1)} standard errors, {verdict}."
        )
    return found


def _distribution_picture(two: xr.Dataset) -> Picture:
    simulated = (
        " Bars: simulated cases of the model (claim: measured); where they leave the curve, the margin is not Gaussian."
        if "simulated_target" in two
        else ""
    )
    return Picture(
        "prediction-margins",
        "Margins of the two signals in noise",
        "Curves: Gaussians with the predicted mean (claim: exact) and variance (claim: truncated), averaged over phases where "
        f"there are several. What lies across the line is decided wrongly.{simulated}",
        {"": prediction_distribution(two)},
    )


def _accuracy_table(two: xr.Dataset) -> Table:
    """Quantities as rows, so that the table fits a phone."""
    rows = [["mean margin"], ["standard deviation"], ["variance that order 1 adds"]]
    rows += [["accuracy if Gaussian"], ["accuracy"], ["certainly at least"], ["certainly at most"]]
    for k, name in enumerate(two["class"].values):
        single = two.isel({"class": k})
        own = two["variance_by_order"].values[:, two["label"].values.astype(str) == str(name)]
        share = float(own[0].sum() / own.sum()) if own.sum() > 0 else 1.0
        chances = (
            "class_accuracy_gaussian",
            "class_accuracy",
            "class_accuracy_lower_bound",
            "class_accuracy_upper_bound",
        )
        cells = [
            number(float(single["class_mean"]), 2, True),
            number(float(np.sqrt(single["class_variance"])), 2),
            _percent(share),
            *(_percent(float(single[chance])) for chance in chances),
        ]
        for row, value in zip(rows, cells, strict=True):
            row.append(value)
    if float(two["class_accuracy_upper_bound"].min()) == 1.0:
        rows.pop()  # a limit that limits nothing
    return Table(
        "Each signal before simulation. Order 1 of a margin is exactly Gaussian, so its share of the variance says how Gaussian the "
        "whole is. The accuracy takes orders 1 and 2 exactly and the rest as Gaussian (claim: truncated); what is certain holds whatever "
        "the rest does (claim: bound).",
        ["", *(str(name) for name in two["class"].values)],
        rows,
        frozenset({1, 2}),
    )


def _simulation_table(two: xr.Dataset) -> list[Table]:
    rows = [
        [
            f"{name}, {word}",
            _percent(a) if word == "accuracy" else number(a, 3, word != "variance"),
            _percent(b) if word == "accuracy" else number(b, 3, word != "variance"),
            f"{z:+.1f}".replace("-", "−"),
        ]
        for name, word, a, b, z in scores(two)
    ]
    if not rows:
        return []
    return [
        Table(
            f"Predicted against simulated ({two.sizes['case']:,} cases of each class). z: their difference in standard errors of the "
            "simulation.",
            ["", "predicted", "simulated", "z"],
            rows,
            frozenset({1, 2, 3}),
        )
    ]


def _sweep_findings(sweep: xr.Dataset) -> list[str]:
    frequency, mean = sweep["frequency"].values, sweep["target_mean"].values
    units = str(sweep["frequency"].attrs.get("units", ""))
    found = []
    if mean.ndim == 1:
        high, low = int(mean.argmax()), int(mean.argmin())
        found.append(
            f"Over {len(frequency)} frequencies the expected margin for {sweep.attrs.get('towards', 'the first class')} is highest at "
            f"{significant(float(frequency[high]))} {units} ({number(float(mean[high]), 2, True)}) and lowest at "
            f"{significant(float(frequency[low]))} {units} ({number(float(mean[low]), 2, True)})."
        )
    else:
        peaks = [
            f"{name} at {significant(float(frequency[int(mean[:, k].argmax())]))} {units}"
            for k, name in enumerate(sweep["class"].values)
        ]
        found.append(
            f"Over {len(frequency)} frequencies the expected logits are highest for {', '.join(map(str, peaks))}."
        )
    if "simulated_mean" in sweep:
        z = _ratio(sweep["simulated_mean"].values - mean, sweep["simulated_mean_error"].values)
        within = float((abs(z) < 2).mean())
        found.append(
            f"Of {z.size} simulated means {_percent(within)} lie within two standard errors of the predicted ones (chance: 95 %); the "
            f"largest difference is {number(float(abs(z).max()), 1)}."
        )
    return found


def _sweep_picture(sweep: xr.Dataset, limits: Limits) -> tuple[Switch | None, Picture]:
    per_class = "class" in sweep["target_mean"].dims
    names = [str(name) for name in sweep["class"].values][: limits.variants] if per_class else []
    switch, keys = (
        switched("prediction", {"logit of": {name: name for name in names}}) if names else (None, {"": ("",)})
    )
    variants = {key: frequency_sweep(sweep, answer[0] or None) for key, answer in keys.items()}
    simulated = (
        f" Dots: mean of {int(sweep.attrs['simulated_cases']):,} simulated cases with two standard errors (claim: measured)."
        if "simulated_mean" in sweep
        else ""
    )
    picture = Picture(
        "prediction-sweep",
        "Sinusoids in noise, frequency by frequency",
        f"Line: expected target (claim: exact). Band: one standard deviation over noise and phases (claim: truncated).{simulated} "
        f"Amplitude {sweep.attrs.get('amplitude', '1')} in {_noise(sweep)}; dotted: marked frequencies, as a rule those of training.",
        variants,
        switch.id if switch else None,
    )
    return switch, picture


def _ratio(difference: Any, error: Any) -> Any:
    """Differences in standard errors; what does not vary and does not differ is 0."""
    return np.divide(difference, error, out=np.where(difference == 0, 0.0, np.inf), where=error > 0)


def _noise(dataset: xr.Dataset) -> str:
    """The noise in words; one standard deviation per channel and whole matrices are shown as they were given."""
    stated = str(dataset.attrs.get("noise", ""))
    return f"white noise of standard deviation {stated}" if stated[:1].isdigit() else f"white noise {stated}"


def _percent(value: float) -> str:
    """Percentage with a digit after the point, and never rounded up to certainty."""
    if 0.9995 <= value < 1.0:
        return "over 99.9 %"
    return "under 0.1 %" if 0.0 < value < 0.0005 else f"{100 * value:.1f} %"
