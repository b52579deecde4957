"""A built model's answer as a sum: what every string, hat or cosine of its last layer adds at the last position."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.construction.fourier import wavenumbers
from oplens.construction.gathering import Gathering
from oplens.construction.layouts import Sizes
from oplens.construction.steps import Steps
from oplens.construction.weights import map_entries
from oplens.models.transformer import Transformer


@dataclass(frozen=True)
class Terms:
    """answer = constant + sum of terms, m numbers each.

    Parameters
    ----------
    labels : tuple of str
        "0110", "(0.25, 0.5)", "cos pi(2 x1 - x2)".
    values : array, (n_terms, m)
        Largest first.
    constant : array, (m,)
    """

    labels: tuple[str, ...]
    values: NDArray[np.float64]
    constant: NDArray[np.float64]


def answer_terms(construction: str, model: Transformer, steps: Steps, sizes: Sizes) -> Terms:
    """Terms of hidden units that fire, with the weights they have in the answer.

    Notes
    -----
    Accuracy: *exact*; constant and terms sum to the output up to rounding. Cost: O(entries of the last layer).
    """
    readout, bias = _matrix(model.readout, model.config.d_output, model.config.d_model)
    feedforward: Any = model.block(model.config.n_layers - 1).feedforward
    rows, units, values = (part.double().numpy() for part in map_entries(feedforward.down))
    rows, units = rows.astype(np.int64), units.astype(np.int64)
    held = steps.before.copy()
    if feedforward.down.bias is not None:
        held += feedforward.down.bias.detach().double().numpy()
    constant = readout @ held + bias
    if construction == "fourier":
        return _cosines(readout, constant, rows, values * steps.activations[units], sizes)
    fires = np.flatnonzero(steps.activations)
    per_term = 2 if construction == "lookup" and sizes.length > 1 else 1  # units of one gate
    found = np.unique(fires // per_term)
    sums = np.zeros((len(found), model.config.d_output))
    kept = steps.activations[units] != 0
    parts = readout[:, rows[kept]].T * (values * steps.activations[units])[kept, None]
    np.add.at(sums, np.searchsorted(found, units[kept] // per_term), parts)
    name = _node if construction == "piecewise-linear" else _string
    count = model.config.layers[-1].d_ffn
    return _sorted([name(int(unit), sizes, count) for unit in found], sums, constant)


def _matrix(layer: Any, rows: int, columns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A small linear map as a full matrix, and its bias."""
    found = np.zeros((rows, columns))
    r, c, values = map_entries(layer)
    found[r.numpy(), c.numpy()] = values.double().numpy()
    return found, np.zeros(rows) if layer.bias is None else layer.bias.detach().double().numpy()


def _cosines(
    readout: NDArray[np.float64],
    constant: NDArray[np.float64],
    rows: NDArray[np.int64],
    parts: NDArray[np.float64],
    sizes: Sizes,
) -> Terms:
    """A ridge's coordinate holds its cosine less 1, so that 1 times its amplitude moves from the constant into the term."""
    first = Gathering(sizes.length, sizes.n_frequencies, sizes.bounds).first
    ridges = np.bincount(rows, parts, readout.shape[1])[first:] + 1
    amplitudes = readout[:, first:].T
    D = (round((2 * len(ridges) + 1) ** (1 / sizes.length)) - 1) // 2
    labels = [f"cos π({_ridge(kappa)})" for kappa in wavenumbers(sizes.length, D)[1:]]
    return _sorted(labels, amplitudes * ridges[:, None], constant - amplitudes.sum(0))


def _sorted(labels: list[str], values: NDArray[np.float64], constant: NDArray[np.float64]) -> Terms:
    size = np.abs(values).max(1, initial=0.0)
    order = np.argsort(-size, kind="stable")
    return Terms(tuple(labels[i] for i in order), values[order], constant)


def _string(unit: int, sizes: Sizes, count: int) -> str:
    """The input that a hidden unit stands for."""
    digits = [unit // sizes.vocabulary**place % sizes.vocabulary for place in range(sizes.length - 1, -1, -1)]
    names = [sizes.name(digit) for digit in digits]
    return ("" if max(map(len, names)) == 1 else " ").join(names)


def _node(unit: int, sizes: Sizes, count: int) -> str:
    """The grid point that a hat stands on."""
    per_axis = round(count ** (1 / sizes.length))
    low, high = sizes.bounds
    places = np.array(np.unravel_index(unit, (per_axis,) * sizes.length)) / max(per_axis - 1, 1)
    return f"({', '.join(f'{low + (high - low) * place:.3g}' for place in places)})"


def _ridge(kappa: NDArray[np.int64]) -> str:
    """2 x1 - x2."""
    parts: list[str] = []
    for j, k in enumerate(kappa.tolist(), 1):
        if k:
            sign = ("−" if k < 0 else "+") + " " if parts else "−" if k < 0 else ""
            parts.append(f"{sign}{'' if abs(k) == 1 else f'{abs(k)} '}x{j}")
    return " ".join(parts)
