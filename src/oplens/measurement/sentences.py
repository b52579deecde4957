"""What a measured model's numbers say, in sentences: the headline of a result, and what its reader has to know."""

from typing import TYPE_CHECKING

import numpy as np

from oplens.data.tokens import Tokens
from oplens.measurement.batches import Inputs

if TYPE_CHECKING:
    import xarray as xr

    from oplens.models.recording import Recorder


def headline(groups: "dict[str, xr.Dataset]", n_cases: int) -> str:
    """One sentence with numbers: how well the model predicts or classifies; else how far its layers look, or how wide they are.

    Examples
    --------
    >>> import xarray as xr
    >>> names = ("accuracy", "accuracy_low", "accuracy_high", "n_cases")
    >>> headline({"predictions": xr.Dataset(dict(zip(names, (0.9, 0.7, 0.97, 20))))}, 20)
    'Accuracy 0.900 on 20 labelled cases (95 % interval 0.700 to 0.970).'
    """
    told = groups.get("predictions")
    level = f"{100 * told.attrs.get('level', 0.95):.4g} %" if told is not None else ""
    if told is not None and "perplexity" in told:
        cases = f"{n_cases} case{'' if n_cases == 1 else 's'}"
        low, high = float(told["perplexity_low"]), float(told["perplexity_high"])
        interval = f" ({level} interval {_number(low)} to {_number(high)})" if n_cases > 1 else ""
        if n_cases > 1 and not np.isfinite(high):
            interval = " (too few cases of like length for an interval)"
        return (
            f"Perplexity {_n(told, 'perplexity')}{interval} over {int(told['n_predictions']):,} predictions in {cases}"
            + (f"; {_n(told, 'bits_per_byte')} bits per byte." if "bits_per_byte" in told else ".")
        )
    if told is not None and "accuracy" in told:
        low, high = float(told["accuracy_low"]), float(told["accuracy_high"])
        return f"Accuracy {float(told['accuracy']):.3f} on {int(told['n_cases'])} labelled cases ({level} interval {low:.3f} to {high:.3f})."
    attention = groups.get("attention")
    if attention is not None:
        far = attention["distance"].mean("head").dropna("layer")
        if far.size:
            least, most = (_number(float(value)) for value in (far.min(), far.max()))
            if most == "0":
                return "Attention stays on the token that looks, in every layer."
            if least == most:
                return f"Attention looks {most} positions away on average in every layer."
            near, wide = (far["layer"].values[k] for k in (far.values.argmin(), far.values.argmax()))
            return (
                f"Attention looks {least} positions away on average in layer {near}, the nearest, and {most} in layer {wide}, the "
                "farthest."
            )
    return _widths(groups["representations"])


def errors_headline(errors: "xr.Dataset", against: str) -> str:
    """How far the answers lie from those of a second model or of known values, in one sentence.

    Examples
    --------
    >>> import xarray as xr
    >>> found = xr.Dataset({"largest": 0.5, "eam": 0.125, "n_cases": 8}, attrs={"scope": "all 8 sequences of 3 symbols out of 2"})
    >>> errors_headline(found, "and.csv")
    'Largest error 0.5 and mean error 0.125 against and.csv, over all 8 sequences of 3 symbols out of 2.'
    """
    n_cases, scope = int(errors["n_cases"]), str(errors.attrs["scope"])
    where = scope if scope.startswith("all ") else f"{n_cases:,} case{'' if n_cases == 1 else 's'}"
    return f"Largest error {_n(errors, 'largest')} and mean error {_n(errors, 'eam')} against {against}, over {where}."


def own_notes(groups: "dict[str, xr.Dataset]", data: Inputs, recorder: "Recorder") -> list[str]:
    """What the measurement itself has to say beside the model's notes."""
    found = list(data.data.notes) if isinstance(data.data, Tokens) else []
    attention, similarity = groups.get("attention"), groups.get("similarity")
    if attention is not None and attention.attrs["ranked_cases"] < data.n_cases:
        found.append(f"Ranks of attention are of the first {attention.attrs['ranked_cases']} of {data.n_cases} cases.")
    if similarity is not None and similarity.attrs["points"] != "all points":
        found.append(f"Similarity of layers is measured on {similarity.attrs['points']}.")
    labelled = not isinstance(data.data, Tokens) and data.data.y is not None
    if labelled and "predictions" not in groups and "accuracy" not in groups:
        found.append(
            "The data's labels are not the model's classes, or it does not answer with one class a case: no accuracy."
        )
    if data.n_cases == 1:
        found.append("A single case has no spread: there are no standard errors and no intervals.")
    if recorder.predicts_next and "predictions" not in groups:
        found.append("No case has a second token, so nothing is predicted.")
    return found


def _widths(layers: "xr.Dataset") -> str:
    ratio = layers["participation_ratio_corrected"].dropna("layer")
    if not ratio.size:
        return "The points of a layer are too few or too equal to have a dimension."
    least, most = (_number(float(value)) for value in (ratio.min(), ratio.max()))
    if least == most:
        return f"Participation ratio of the points: {most} in every layer."
    low, high = (ratio["layer"].values[k] for k in (ratio.values.argmin(), ratio.values.argmax()))
    return (
        f"Participation ratio of the points: {least} in layer {low}, the smallest, {most} in layer {high}, the largest."
    )


def _n(ds: "xr.Dataset", name: str) -> str:
    return _number(float(ds[name]))


def _number(value: float) -> str:
    """Five significant digits below ten thousand, as people write numbers."""
    return f"{value:.5g}" if abs(value) < 1e4 else f"{value:.4g}"
