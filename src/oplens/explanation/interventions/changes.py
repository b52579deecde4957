"""What steering found as a Dataset: the changes in the units of the data, what they do, and where their energy lies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData
from oplens.errors import ArgumentError
from oplens.explanation.accounts.coordinates import case_coords, part_coords
from oplens.explanation.accounts.decomposition import PlainCases, decompose
from oplens.explanation.accounts.explain import concrete
from oplens.explanation.parts import Bands, Channels, Windows
from oplens.explanation.training import chunks

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.interventions.steering import Aim, Settings
    from oplens.explanation.operator import ExplicitOperator

WINDOWS = 8  # of the table that says when a change happens


def assemble(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    logits: NDArray[np.float64],
    aim: "Aim",
    settings: "Settings",
    groups: list[tuple[NDArray[np.int64], dict[str, Tensor]]],
) -> "xr.Dataset":
    """One Dataset of the groups of equal length, cases in their own order."""
    import xarray as xr

    config = op.model.config
    assert config.preprocessing is not None
    found = _ungrouped(groups, data)
    delta = found.pop("delta") * np.array(config.preprocessing.scale)[:, None]
    after = _run(op, data, delta)
    row = aim.rows[:, 0].numpy()
    first_logits = found.pop("first_logits")
    found["achieved_target"] = (row * after).sum(1)
    found["first_achieved_target"] = (row * first_logits).sum(1)
    before = logits.argmax(1)
    for name, changed in (("flipped", after), ("first_flipped", first_logits)):
        found[name] = (changed.argmax(1) != before) & (changed.argmax(1) == aim.to)
    wanted = torch.einsum("brc,bc->br", aim.rows, torch.from_numpy(after)).numpy()
    # Bisection ends a hair above what is wanted, an unrefined change a rounding error beside it.
    found["reached"] = (wanted >= aim.margin - 1e-9 * (1 + np.abs(after).sum(1, keepdims=True))).all(1)
    energies, coords = _energies(op, data, delta)
    norm = np.sqrt(energies["channel_energy"].sum(1))
    found["norm"] = norm
    found["relative_norm"] = norm / np.where(found["size"] > 0, found.pop("size"), 1.0)
    whole = np.where(norm > 0, norm**2, 1.0)[:, None]
    variables = {
        name: (dims, found[name], attrs) for name, (dims, attrs) in _described(op, settings).items() if name in found
    }
    for name, values in energies.items():
        dim = name.removesuffix("_energy")
        text = {"units": "1", "long_name": f"share of the change's energy in each {dim}", "claim": "exact"}
        variables[name] = (("case", dim), values / whole, text)
    units = {"units": "as in the data"}
    rms = np.sqrt((delta**2).sum(-1) / data.lengths[:, None])
    found_by = "measured" if settings.refine else "truncated"
    variables |= {
        "delta": (("case", "channel", "time"), delta, {**units, "long_name": "change of the input", "claim": found_by}),
        "signal": (
            ("case", "channel", "time"),
            data.X,
            {**units, "long_name": "the input itself", "claim": "measured"},
        ),
        "rms": (("case", "channel"), rms, {**units, "long_name": "root mean square of the change", "claim": found_by}),
    }
    coords |= {**case_coords(op, data, labels, logits), **_more_coords(op, data, aim)}
    return xr.Dataset(variables, coords=coords, attrs=_attributes(op, data, aim, settings))


def what_if_groups(steering: "xr.Dataset", cases: Sequence[int]) -> dict[str, "xr.Dataset"]:
    """What a result file keeps of `op.steer`: the numbers of all cases, and signals with their changes (float32) of the chosen.

    Parameters
    ----------
    steering : Dataset
        Of `op.steer`.
    cases : sequence of int
        Values of the coordinate `case`, such as those of the group `/inputs`.

    Returns
    -------
    dict
        Groups `what_if` and `what_if_cases` of docs/schema.md.
    """
    known = {int(case): k for k, case in enumerate(steering["case"].values)}
    missing = [int(case) for case in cases if int(case) not in known]
    if missing:
        raise ArgumentError(f"what_if_groups(cases=...): the result of steer holds no case {missing[0]}.")
    chosen = steering.isel(case=[known[int(case)] for case in cases])
    signals = {name: chosen[name].astype(np.float32) for name in ("delta", "signal")}
    return {"what_if": steering.drop_vars(["delta", "signal", "time"]), "what_if_cases": chosen.assign(signals)}


def _ungrouped(
    groups: list[tuple[NDArray[np.int64], dict[str, Tensor]]], data: SequenceData
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for index, values in groups:
        for name, value in values.items():
            array = value.numpy()
            shape = data.X.shape if name == "delta" else (len(data.X), *array.shape[1:])
            whole = found.setdefault(name, np.zeros(shape, dtype=array.dtype))
            if name == "delta":
                whole[index, :, : array.shape[-1]] = array
            else:
                whole[index] = array
    return found


def _run(op: "ExplicitOperator", data: SequenceData, delta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits of the model, preprocessing included, run on the changed data."""
    with torch.no_grad():
        parts = chunks(data.X + delta, data.lengths, op.model.config.d_model)
        return np.asarray(torch.cat([op.model(raw, lengths) for _, raw, lengths in parts]).numpy())


def _energies(
    op: "ExplicitOperator", data: SequenceData, delta: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
    """Energy (case, part) of the preprocessed change in every channel, octave and window; they are projections, so each adds up."""
    config = op.model.config
    assert config.preprocessing is not None
    x = torch.from_numpy(delta / np.array(config.preprocessing.scale)[:, None])
    lengths = torch.from_numpy(data.lengths)
    mask = (torch.arange(x.shape[-1])[None] < lengths[:, None]).double()
    cases = PlainCases(x, mask, lengths)
    energies: dict[str, NDArray[np.float64]] = {}
    coords: dict[str, Any] = {}
    for part in (Channels(), Bands(), Windows(WINDOWS)):
        parts = concrete(op, part)
        decomposition = decompose(parts, config, op.system)
        share, _ = decomposition.inputs(cases, x[None])
        energies[f"{decomposition.dims[0]}_energy"] = share[0].numpy()
        coords |= part_coords(op, decomposition, parts)
    return energies, coords


def _described(op: "ExplicitOperator", settings: "Settings") -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Dimensions and attributes of the numbers per case."""
    preprocessing = op.model.config.preprocessing
    standardised = preprocessing is not None and any(scale != 1 for scale in preprocessing.scale)
    spread = "standard deviations" if standardised else "as preprocessed"
    plain = op.model.config.architecture == "plain"
    account = f"the operator cut at order {settings.order}" if plain else "the model's gradient at the case"
    found_by = "measured" if settings.refine else "truncated"
    texts = {
        "norm": (spread, "Euclidean norm of the preprocessed change", found_by),
        "relative_norm": ("1", "norm of the change over that of the preprocessed case", found_by),
        "norm_lower_bound": (spread, "no allowed change of a smaller norm reaches what is wanted", "bound"),
        "start_target": ("logit", "margin of `to` over `against` before the change", "exact"),
        "predicted_target": ("logit", f"the margin after the change, by {account}", "truncated"),
        "achieved_target": ("logit", "the margin after the change, of the running model", "exact"),
        "flipped": ("1", "the running model decides `to` after the change and did not before", "exact"),
        "reached": ("1", "the running model's margin reaches what is wanted", "exact"),
        "first_norm": (spread, "norm of the change before refinement", "truncated"),
        "first_predicted_target": ("logit", f"margin before refinement, by {account}", "truncated"),
        "first_achieved_target": ("logit", "margin before refinement, of the running model", "exact"),
        "first_flipped": ("1", "the change before refinement flips the running model", "exact"),
        "reachable": ("1", f"{account} can reach what is wanted by an allowed change", "truncated"),
        "reach": ("logit", f"largest margin that {account} can reach by an allowed change", "truncated"),
    }
    return {
        name: (("case",), {"units": units, "long_name": text, "claim": claim})
        for name, (units, text, claim) in texts.items()
    }


def _more_coords(op: "ExplicitOperator", data: SequenceData, aim: "Aim") -> dict[str, Any]:
    config = op.model.config
    names = np.array(config.classes, dtype=object)
    units = "s" if config.sampling_rate else "steps"
    time = np.arange(data.X.shape[-1]) / (config.sampling_rate or 1.0)
    return {
        "to": ("case", names[aim.to]),
        "against": ("case", names[aim.against]),
        "time": ("time", time, {"units": units, "long_name": "time", "claim": "exact"}),
    }


def _attributes(op: "ExplicitOperator", data: SequenceData, aim: "Aim", settings: "Settings") -> dict[str, Any]:
    from oplens.results import provenance

    config = op.model.config
    plain = config.architecture == "plain"
    return {
        **provenance(source=data.source),
        "family": op.family if plain else "none",
        "order": settings.order,
        "account": f"operator cut at order {settings.order}" if plain else "gradient of the running model",
        "architecture": config.architecture,
        "training_hash": op.training.digest,
        "margin": aim.margin,
        "anchor": settings.anchor,
        "refined": "on the running model" if settings.refine else "no",
        "confined_to": settings.confinement.describe(config),
        "sampling_rate": config.sampling_rate if config.sampling_rate is not None else "unknown",
    }
