"""How far a model's answers move under noise on its weights, as a section."""

import math

import numpy as np
import xarray as xr

from oplens.figures.robustness import movement_under_noise, three
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits, Picture, Section, Table, group

FAR = 10  # a formula that states so many times what was measured tells nothing of it


def robustness_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """Movement of the answers of the group `/robustness`, to first order and by the paper's formula; [] without the group.

    Parameters
    ----------
    results
        A result with a group `robustness`, or what `oplens.measurement.weight_noise` returns.
    limits
        Of no effect: one figure and one table.
    """
    ds = group(results, "robustness")
    if ds is None:
        return []
    draws, level = int(ds.attrs["draws"]), float(ds.attrs["level"])
    picture = Picture(
        "robustness-movement",
        "Movement of the answers under noise on the weights",
        f"Mean over {_plural(ds.attrs['n_answers'], 'answer')} and {draws} draws of the noise; shaded: its {level:.0%} interval over draws, "
        "the inputs being those given. Dashed: the first order, by Jacobian-vector products along the same draws; dotted: its bound "
        "σ‖J‖. Grey with diamonds: what the first order misses. Blue: what the paper's formula states. Both axes are logarithmic. "
        "Claim: measured.",
        {"": movement_under_noise(ds)},
    )
    notes = [
        _noise(ds),
        "Derivatives at a kink (ReLU) are one-sided, and blind to jumps such as those of hashed attention: both show as a remainder.",
    ]
    return [
        Section(
            "robustness",
            "Noise on weights",
            "How far do answers move when weights are inexact?",
            findings=[_movement(ds), _linear(ds), *_bound(ds), *_paper(ds)],
            pictures=[picture],
            tables=[_table(ds)],
            notes=notes,
        )
    ]


def example(ds: xr.Dataset) -> int:
    """Return the position of the noise that the words speak of: the largest one while linear, else the smallest."""
    linear = np.flatnonzero(ds["sigma"].values <= float(ds["linear_until"]))
    return int(linear[-1]) if linear.size else 0


def _movement(ds: xr.Dataset) -> str:
    k = example(ds)
    moved, spread = float(ds["deviation"][k]), float(ds["output_spread"])
    low, high = (three(float(ds[f"deviation_{end}"][k])) for end in ("low", "high"))
    share = f", {_percent(moved / spread)} of how widely the answers differ" if spread > 0 else ""
    where = "an answer" if int(ds.attrs["n_answers"]) > 1 else "the answer"
    return f"{_amount(ds, float(ds['sigma'][k]))} moves {where} by {three(moved)} on average ({low} to {high}){share}."


def _linear(ds: xr.Dataset) -> str:
    until, last = float(ds["linear_until"]), float(ds["sigma"][-1])
    limit = _percent(float(ds.attrs["linear_limit"]))
    if until == 0:
        least = _scale(ds, float(ds["sigma"][0]))
        return f"Already at {least}, the smallest noise tried, the first order misses more than {limit}: nothing here is linear."
    reach = f"In the whole sweep, up to {_scale(ds, last)}," if math.isinf(until) else f"Up to {_scale(ds, until)}"
    same = float(ds["first_order"][0] / ds["sigma"][0])
    found = (
        f"{reach} the first order tells the movement to {limit}: per unit of noise it is {three(float(ds['slope']))} as measured "
        f"({three(float(ds['slope_low']))} to {three(float(ds['slope_high']))}), {three(same)} to first order on the same "
        "draws"
    )
    if ds["first_order_slope"].attrs.get("claim") == "exact":
        found += f"; its mean over all noise is exactly {three(float(ds['first_order_slope']))}"
    order = float(ds["remainder_order"])
    rest = "" if math.isnan(order) else f" What it misses grows as σ to the power {number(order)}."
    return f"{found}.{rest}"


def _bound(ds: xr.Dataset) -> list[str]:
    first, norm = float(ds["first_order_slope"]), float(ds["jacobian_norm"])
    if not first > 0:
        return []
    error = float(ds["jacobian_norm_error"])
    about = f"{three(norm)} (± {three(error)})" if error > 0 else three(norm)
    return [
        f"The Jacobian's norm, {about}, bounds the first order for any shape of the Jacobian; here it is {number(norm / first)} times as large."
    ]


def _paper(ds: xr.Dataset) -> list[str]:
    k, L = example(ds), float(ds["lipschitz"])
    if math.isnan(L):
        return [
            "The paper's formula was not evaluated: the model's input could not be told apart, so no gain by it was found."
        ]
    given = ds.attrs.get("lipschitz_source") == "given"
    stated, moved = float(ds["paper_claim"][k]), float(ds["deviation"][k])
    source = (
        "as given" if given else "the largest gain by the input that was found, which may be below the true constant"
    )
    # E norm(e)^2 is sigma^2 P where all noise is alike, and sigma^2 norm(theta)^2 where it follows the weights.
    form = "σ‖θ‖ L for relative noise" if ds.attrs.get("noise") == "relative" else "σ√P L"
    words = (
        f"The paper's formula (Theorem 2: {form}, P = {int(ds['n_parameters']):,}, L = {three(L)}, {source}) states "
        f"{three(stated)} there"
    )
    counter = (
        "L is about inputs and says nothing about weights: 0 · ReLU(100 x) answers 0 everywhere, so its L is 0, and yet noise of 0.01 moves "
        "it by 0.80."
    )
    if stated < float(ds["deviation_low"][k]):
        proof = "the formula is contradicted" if given else "if L is the true constant, the formula is contradicted"
        factor = f"{three(moved / stated)} times less than" if stated > 0 else "less than"
        return [f"{words}, {factor} what was measured: {proof}.", counter]
    if stated < moved:
        return [f"{words}, less than what was measured, though within the interval.", counter]
    factor = f"{three(stated / moved)} times" if moved > 0 else "more than"
    verdict = (
        "far too high here, and no bound in general" if stated > FAR * moved else "no bound in general all the same"
    )
    return [f"{words}, {factor} what was measured: {verdict}.", counter]


def _noise(ds: xr.Dataset) -> str:
    what = (
        "Noise is Gaussian, independent for every parameter, with σ times the root mean square of the parameter's tensor; tensors of zeros "
        "stay as they are."
        if ds.attrs.get("noise") == "relative"
        else "Noise is Gaussian, independent and of the same σ for every parameter, large or small."
    )
    return f"{what} It falls on {int(ds['n_parameters']):,} numbers, tied ones once; buffers carry none."


def _amount(ds: xr.Dataset, sigma: float) -> str:
    if ds.attrs.get("noise") == "relative":
        return f"Noise of {_percent(sigma)} of each weight tensor's size"
    return f"Noise of σ = {significant(sigma)} on every weight"


def _scale(ds: xr.Dataset, sigma: float) -> str:
    return _percent(sigma) if ds.attrs.get("noise") == "relative" else f"σ = {significant(sigma)}"


def _percent(value: float) -> str:
    return f"{significant(100 * value)} %"


def _plural(count: int, name: str) -> str:
    return f"{int(count):,} {name}{'' if int(count) == 1 else 's'}"


def _table(ds: xr.Dataset) -> Table:
    names = {
        "deviation": "measured",
        "first_order": "first order",
        "first_order_bound": "σ‖J‖",
        "remainder": "beyond",
        "paper_claim": "paper",
    }
    rows = [
        [significant(float(sigma)), *(three(float(ds[name][k])) for name in names)]
        for k, sigma in enumerate(ds["sigma"].values)
    ]
    caption = (
        "Mean movement of an answer, Euclidean, in units of the answers. First order: mean of ‖J e‖ on the same draws; beyond: mean of what "
        "that misses; paper: σ√P L, which is false in general."
    )
    return Table(caption, ["σ", *names.values()], rows, frozenset(range(len(names) + 1)))
