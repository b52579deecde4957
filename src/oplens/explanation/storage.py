"""An operator's directory: `model/`, `operator.json` (names, labels, hashes) and `operator.safetensors` (coefficients, training inputs)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oplens.errors import CheckpointError
from oplens.explanation.operator import ExplicitOperator
from oplens.explanation.steps import readout_of
from oplens.explanation.training import Training, digest
from oplens.models.s4d import S4D
from oplens.models.storage import load_model, parse_tensors, read_content, read_json, save_model, write_bytes
from oplens.operators.polynomial import FAMILIES, SERIES_FAMILIES, Expansion, Series

FORMAT = "oplens-operator"
VERSION = 1
SERIES_FIELDS = ("centre", "scale", "slope", "shift", "back", "coefficients")


def save_operator(op: ExplicitOperator, directory: str | Path) -> None:
    """Write an operator; `operator.json` comes last and holds the hashes of the others, so a half-written directory is recognised.

    Without hashes an overwrite that broke off would pair one model with another one's coefficients.
    """
    from safetensors.torch import save

    directory = Path(directory)
    save_model(op.model, directory / "model")
    tensors: dict[str, Tensor] = {"lengths": torch.from_numpy(op.training.lengths.astype(np.int64))}
    if op.training.X is not None:
        tensors["X_train"] = torch.from_numpy(np.ascontiguousarray(op.training.X))
    if op.expansion is not None:
        for name in ("centre", "variance", "coefficients"):
            tensors[name] = getattr(op.expansion, name).contiguous()
        if op.expansion.series is not None:
            tensors |= {
                f"series.{name}": getattr(op.expansion.series, name).contiguous().clone() for name in SERIES_FIELDS
            }
    content = save(tensors)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "tensors_sha256": hashlib.sha256(content).hexdigest(),
        "model_sha256": _model_hash(directory),
        "family": op.family,
        "order": op.order,
        "training": {
            "source": op.training.source,
            "sha256": op.training.digest,
            "y": None if op.training.y is None else [str(label) for label in op.training.y],
        },
    }
    write_bytes(directory / "operator.safetensors", content)
    write_bytes(directory / "operator.json", (json.dumps(header, indent=1) + "\n").encode())


def load_operator(directory: str | Path) -> ExplicitOperator:
    """Read an operator written by :func:`save_operator`; damaged or foreign files are refused with a sentence."""
    directory = Path(directory)
    path = directory / "operator.json"
    header = read_json(path, "an operator's directory holds operator.json, operator.safetensors and model/")
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: not an operator this library reads (format {header.get('format')!r}, version {header.get('version')!r})."
        )
    training = header.get("training")
    if not isinstance(training, dict) or not isinstance(training.get("sha256"), str):
        raise CheckpointError(f"{path}: key 'training' is missing or damaged.")
    content = read_content(directory / "operator.safetensors")
    tensors = parse_tensors(content, directory / "operator.safetensors")
    model = load_model(directory / "model").as_float64()
    hashes = hashlib.sha256(content).hexdigest(), _model_hash(directory)
    if hashes != (header.get("tensors_sha256"), header.get("model_sha256")):
        raise CheckpointError(
            f"{directory}: the files are not of one operator (SHA-256 differs from {path.name}): a damaged copy, or an overwrite "
            "that broke off; copy or save the directory again."
        )
    expansion = None
    if header.get("family") != "none":
        expansion = _expansion(header, tensors, model, path)
    lengths = _tensor(tensors, "lengths", path).numpy()
    if lengths.ndim != 1 or lengths.dtype != np.int64 or len(lengths) == 0:
        raise CheckpointError(
            f"{path}: the lengths of the training cases are damaged ({lengths.dtype}, {lengths.shape})."
        )
    labels = training.get("y")
    if labels is not None and (not isinstance(labels, list) or len(labels) != len(lengths)):
        raise CheckpointError(f"{path}: training labels do not match the {len(lengths)} training cases.")
    X = tensors["X_train"].numpy() if "X_train" in tensors else None
    if X is not None and (X.ndim != 3 or X.shape[0] != len(lengths) or X.shape[1] != model.config.d_input):
        raise CheckpointError(f"{path}: training inputs have shape {X.shape}, which is not the model's.")
    if X is not None and (X.dtype != np.float32 or digest(X, lengths) != training["sha256"]):
        raise CheckpointError(f"{path}: the training inputs are not those the operator was fitted on (hashes differ).")
    y = None if labels is None else np.array(labels, dtype=str)
    kept = Training(X, lengths, y, str(training.get("source", "unknown")), training["sha256"])
    return ExplicitOperator(model, expansion, kept)


def _model_hash(directory: Path) -> str:
    """Of the model's configuration, which holds the hash of its tensors."""
    return hashlib.sha256(read_content(directory / "model" / "config.json")).hexdigest()


def _expansion(header: dict[str, Any], tensors: dict[str, Tensor], model: S4D, path: Path) -> Expansion:
    d_model = model.config.d_model
    known = (*FAMILIES, *SERIES_FAMILIES)
    if header.get("family") not in known:
        raise CheckpointError(
            f"{path}: unknown family {header.get('family')!r}; this library knows {', '.join(known)}."
        )
    names = ("centre", "variance", "coefficients")
    centre, variance, coefficients = (_tensor(tensors, name, path) for name in names)
    order = header.get("order")
    if (
        not isinstance(order, int)
        or coefficients.shape != (d_model, order + 1)
        or not centre.shape == variance.shape == (d_model,)
    ):
        raise CheckpointError(f"{path}: the expansion's shapes do not fit order {order!r} and d_model {d_model}.")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (centre, variance, coefficients)):
        raise CheckpointError(f"{path}: the expansion holds NaN or infinite values.")
    if bool((variance < 0).any()):
        raise CheckpointError(f"{path}: the expansion holds a negative variance.")
    family, series = str(header["family"]), None
    if family in SERIES_FAMILIES:
        series = Series(*(_tensor(tensors, f"series.{name}", path) for name in SERIES_FIELDS))
        expected = {"centre": (d_model,), "scale": (d_model,), "coefficients": (d_model, order + 1)}
        for name in SERIES_FIELDS:
            if getattr(series, name).shape != expected.get(name, (d_model, order)):
                raise CheckpointError(f"{path}: tensor series.{name} does not fit order {order} and d_model {d_model}.")
    return Expansion(family, centre, variance, coefficients, readout_of(model), series)


def _tensor(tensors: dict[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"{path.with_suffix('.safetensors')}: tensor {name!r} is missing.")
    return tensors[name]
