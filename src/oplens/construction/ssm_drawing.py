"""A built state-space model as a result: its certificate, its verification, and its answers beside those of its kernels."""

import json
from typing import Any

import numpy as np
import torch
import xarray as xr

from oplens.construction import ssm_certificate
from oplens.construction.cases import VALUE
from oplens.construction.certificate import Certificate
from oplens.construction.drawing import root_tree
from oplens.construction.kernel_drawing import kernel_groups
from oplens.construction.ssm_verification import SignalVerification, kernel_outputs, signals
from oplens.construction.volterra import volterra
from oplens.models.s4d import S4D
from oplens.results import provenance
from oplens.results.variables import variable


def draw_ssm(
    model: S4D,
    kernel1: Any,
    kernel2: Any,
    constant: Any,
    certificate: Certificate,
    found: SignalVerification,
    name: str = "filter",
) -> xr.DataTree:
    """What `oplens build ssm` writes, for :func:`oplens.report.render`.

    Parameters
    ----------
    model, kernel1, kernel2, constant, certificate
        As built.
    found : SignalVerification
        Of :func:`verify_ssm`; its signals are drawn, in the model's own dtype.
    name : str
        What was built.

    Returns
    -------
    xr.DataTree
        Groups `construction`, `construction_checks` (one per signal and dtype), `construction_slices` (first output over time),
        `construction_kernels` and `construction_waves` (asked for, and held by the weights).

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> from oplens.construction.ssm import build_ssm
    >>> from oplens.construction.ssm_verification import verify_ssm
    >>> kernel = ExponentialSum.butterworth(2, 0.2)
    >>> model, certificate = build_ssm(kernel)
    >>> tree = draw_ssm(model, kernel, None, 0.0, certificate, verify_ssm(model, kernel, length=64))
    >>> tree["construction_slices"].answer.shape
    (6, 64)
    """
    series = volterra("draw_ssm", kernel1, kernel2, constant)
    config = model.config
    facts = {
        "architecture": f"S4D, plain, readout of degree {config.degree}, an answer per step",
        "construction": certificate.construction,
        "n_layers": 1,
        "d_model": config.d_model,
        "n_parameters": certificate.dense,
        "n_nonzeros": certificate.sparse,
        "dtype": certificate.dtype,
    }
    layers = np.array([[0, certificate.dense, certificate.sparse]])
    tree = root_tree(facts, layers, [certificate], f"ssm: {name}")
    errors = ssm_certificate.kernel_errors(model, series)
    largest = max(check.largest_error for check in found.checks if check.dtype == certificate.dtype)
    kind = "as given, up to rounding" if certificate.claim == "exact" else "approximated"
    tree.attrs |= {
        "headline": f"{name}: {sum(item.n_modes for item in errors)} waves, kernels {kind}; outputs within {certificate.error_bound:.3g} for "
        f"inputs up to {found.input_bound:g} (certified); the largest error found in {certificate.dtype} is {largest:.3g}.",
        "data": json.dumps({"name": name, "length": found.length}),
    }
    attributes = provenance(source=f"build ssm: {name}", dtype=certificate.dtype, seed=found.seed)
    tree["/construction_checks"] = xr.DataTree(_checks(found).assign_attrs(attributes))
    tree["/construction_slices"] = xr.DataTree(_slices(model, series, found).assign_attrs(attributes))
    for group, dataset in kernel_groups(model, series, errors).items():
        tree[f"/{group}"] = xr.DataTree(dataset.assign_attrs(attributes))
    return tree


def _checks(found: SignalVerification) -> xr.Dataset:
    checks = found.checks
    return xr.Dataset(
        {
            "inputs": variable("rank", [check.steps for check in checks], "steps run", claim="exact"),
            "largest_error": variable(
                "rank", [check.largest_error for check in checks], "largest error found", VALUE, "measured"
            ),
        },
        {
            "dtype_of": ("rank", [check.dtype for check in checks]),
            "order_of": ("rank", [check.signal for check in checks]),
        },
    )


def _slices(model: S4D, series: Any, found: SignalVerification) -> xr.Dataset:
    """The first output over time, signal by signal."""
    dtype = model.decoder.weight.dtype
    responses = [np.array(feature.kernel.balls.response(found.length)) for feature in series.features]
    names, answers, wanted = [], [], []
    # The inputs with the largest errors first: they are what a reader sees unless others are chosen.
    for name, values in reversed(signals(model, series, found.input_bound, found.length, found.seed)):
        x = torch.from_numpy(values).to(dtype)
        with torch.no_grad():
            answers.append(model(x[None])[0, :, 0].double().numpy())
        wanted.append(kernel_outputs(series, responses, x.double().numpy())[:, 0])
        names.append(f"time in steps, {name}")
    dims = ("rank", "position")
    error = np.abs(np.stack(answers) - np.stack(wanted))
    return xr.Dataset(
        {
            "answer": variable(dims, np.stack(answers), "the model's output", VALUE, claim="exact"),
            "wanted": variable(dims, np.stack(wanted), "the kernels applied to the input", VALUE, claim="exact"),
            "error": variable(dims, error, "abs(model - kernels)", VALUE, "measured"),
            "largest_error": variable((), error.max(), "largest error found", VALUE, "measured"),
        },
        {
            "place": (dims, np.tile(np.arange(float(found.length)), (len(names), 1))),
            "along": ("rank", names),
            "worst": ("rank", error.argmax(1).astype(float)),
        },
    )
