"""The training set an operator is fitted on, cases in bounded batches, and what every call checks of its sequences."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData
from oplens.errors import ArgumentError
from oplens.explanation.batch import Batch, prepare
from oplens.explanation.steps import readout_of
from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4D
from oplens.operators.polynomial import FAMILIES, SERIES_FAMILIES, Expansion, check_order

TRAINING_LIMIT = 64 * 2**20  # bytes of float32 training inputs kept inside an operator
# Of one (batch, d_model, length) float64 array: a dozen of them stay near the cache (measured 3x faster than 64 MB).
BATCH_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Training:
    """The training set an operator was fitted on: float32 inputs (n_cases, n_channels, n_timepoints), or their source and hash."""

    X: NDArray[np.float32] | None
    lengths: NDArray[np.int64]
    y: NDArray[np.str_] | None
    source: str
    digest: str

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """Standard deviation of the raw inputs, (n_channels,); asked for only where they are kept."""
        assert self.X is not None
        return spread_of(self.X.astype(np.float64), self.lengths)

    @classmethod
    def of(cls, data: SequenceData, y: NDArray[np.str_] | None) -> "Training":
        """Rounded to float32 before anything is fitted, so that a saved operator and a fresh one are the same."""
        if float(np.abs(data.X).max()) > float(np.finfo(np.float32).max):
            raise ArgumentError(
                f"expand(X_train=...): values reach {np.abs(data.X).max():.3g}, beyond float32; rescale the data."
            )
        X = data.X.astype(np.float32)
        keep = X if X.nbytes <= TRAINING_LIMIT else None
        return cls(keep, data.lengths, y, data.source, digest(X, data.lengths))

    def sequences(self, config: S4DConfig) -> SequenceData | None:
        """The training set with the model's names, or None where it was too large to keep.

        Classes are those of the labels where the model calls its logits otherwise.
        """
        if self.X is None:
            return None
        labels = () if self.y is None else sorted(set(self.y.tolist()))
        return SequenceData(
            X=self.X.astype(np.float64),
            lengths=self.lengths,
            y=self.y,
            channels=config.channels,
            classes=config.classes if set(labels) <= set(config.classes) else tuple(labels),
            sampling_rate=config.sampling_rate,
            name="training set",
            source=self.source,
        )


def spread_of(X: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard deviation (n_channels,) over the valid steps of all cases."""
    valid = np.arange(X.shape[-1]) < lengths[:, None]
    with np.errstate(over="ignore"):
        spread: NDArray[np.float64] = X.transpose(0, 2, 1)[valid].std(0)
    return spread


def digest(X: NDArray[np.float32], lengths: NDArray[np.int64]) -> str:
    """SHA-256 of float32 inputs and lengths; padding beyond the longest case does not count."""
    X = X[:, :, : int(lengths.max())]
    value = hashlib.sha256(np.ascontiguousarray(X).tobytes())
    value.update(np.ascontiguousarray(lengths.astype(np.int64)).tobytes())
    value.update(repr(X.shape).encode())
    return value.hexdigest()


def batches(
    model: S4D,
    X: NDArray[Any],
    lengths: NDArray[np.int64],
    directions: NDArray[np.float64],
    arrays: int = 1,
    at: int | None = None,
) -> Iterator[tuple[slice, Batch]]:
    """(rows, batch) over the cases of X (n_cases, n_channels, n_timepoints); `arrays` (batch, d_model, length) fit the budget.

    Without `at` all valid steps weigh alike.
    """
    system = model.layer(0).system()
    towards = torch.from_numpy(np.ascontiguousarray(directions))
    for rows, raw, steps in chunks(X, lengths, model.config.d_model * max(1, arrays // 4)):
        with torch.no_grad():
            yield rows, prepare(model, system, raw, steps, towards, at)


def chunks(X: NDArray[Any], lengths: NDArray[np.int64], per_step: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(rows, raw (batch, length, d_input), lengths (batch,)): as many cases as keep `per_step` float64 values a step in the budget."""
    size = max(1, BATCH_BYTES // (8 * per_step * X.shape[-1]))
    for start in range(0, len(X), size):
        rows = slice(start, min(start + size, len(X)))
        raw = X[rows, :, : int(lengths[rows].max())].astype(np.float64)
        yield rows, torch.from_numpy(raw).transpose(1, 2), torch.from_numpy(lengths[rows])


def gather(batches: Iterable[dict[str, Tensor]], axes: dict[str, int]) -> dict[str, NDArray[np.float64]]:
    """What was found batch by batch as one; cases lie on the first axis, or on the one that `axes` names."""
    rows: dict[str, list[Tensor]] = {}
    for found in batches:
        for name, value in found.items():
            rows.setdefault(name, []).append(value)
    return {name: torch.cat(value, dim=axes.get(name, 0)).numpy() for name, value in rows.items()}


def fit_gaussian(model: S4D, X: NDArray[np.float32], lengths: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Mean and population variance of every feature's pre-activation, cases weighing the same."""
    d_model = model.config.d_model
    none = np.zeros((1, model.config.n_classes))
    mean = torch.zeros(d_model, dtype=torch.float64)
    for _, batch in batches(model, X, lengths, none):
        mean += torch.einsum("bl,bhl->h", batch.pool, batch.z)
    mean /= len(X)
    variance = torch.zeros_like(mean)
    for _, batch in batches(model, X, lengths, none):
        variance += torch.einsum("bl,bhl->h", batch.pool, (batch.z - mean[:, None]) ** 2)
    return mean, variance / len(X)


def range_of(model: S4D, X: NDArray[np.float32], lengths: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Smallest and largest pre-activation of every feature on valid steps, (d_model,) each."""
    ends: list[Tensor] = []
    for _, batch in batches(model, X, lengths, np.zeros((1, model.config.n_classes))):
        inside = batch.mask[:, None] > 0
        low = torch.where(inside, batch.z, torch.inf).amin((0, 2))
        high = torch.where(inside, batch.z, -torch.inf).amax((0, 2))
        ends = [torch.minimum(ends[0], low), torch.maximum(ends[1], high)] if ends else [low, high]
    return ends[0], ends[1]


def fit_expansion(model: S4D, X: NDArray[np.float32], lengths: NDArray[np.int64], family: str, order: int) -> Expansion:
    """The readout's polynomial of a family, fitted to the training pre-activations."""
    readout = readout_of(model)
    if family == "chebyshev":
        return Expansion.chebyshev(order, *range_of(model, X, lengths), readout)
    if family == "empirical":
        none = np.zeros((1, model.config.n_classes))
        return Expansion.empirical(order, lambda: ((b.z, b.pool) for _, b in batches(model, X, lengths, none)), readout)
    return Expansion.fit(family, order, *fit_gaussian(model, X, lengths), readout)


def check_family(family: str, order: int) -> None:
    """Refuse unknown families and orders below 1 with a sentence."""
    check_order(order)
    known = (*FAMILIES, *SERIES_FAMILIES)
    if family not in known:
        raise ArgumentError(f"expand(family={family!r}): unknown family; choose one of {', '.join(known)}.")


def check_channels(model: S4D, data: SequenceData, call: str) -> None:
    """Refuse sequences whose channels or sampling rate are not the model's."""
    expected = model.config.d_input
    if data.X.shape[1] != expected:
        raise ArgumentError(
            f"{call}: the model has {expected} input channels ({', '.join(model.config.channels)}), the sequences have "
            f"{data.X.shape[1]}; arrays are (n_cases, n_channels, n_timepoints)."
        )
    names = model.config.channels
    if data.channels != names and sorted(data.channels) == sorted(names):
        raise ArgumentError(
            f"{call}: the sequences' channels are in another order ({', '.join(data.channels)}) than the model's "
            f"({', '.join(names)}); put them in the model's order."
        )
    rate, own = data.sampling_rate, model.config.sampling_rate
    if rate is not None and own is not None and rate != own:
        raise ArgumentError(
            f"{call}: the model reads {own:g} Hz, the sequences are sampled at {rate:g} Hz; resample them."
        )


def labels_of(y: Any, n_cases: int, call: str) -> NDArray[np.str_] | None:
    """Labels as strings, one per case."""
    if y is None:
        return None
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != n_cases:
        raise ArgumentError(f"{call}: expected one label for each of the {n_cases} cases, got shape {labels.shape}.")
    return labels.astype(str)


def known_labels(y: Any, n_cases: int, classes: tuple[str, ...], call: str) -> NDArray[np.str_] | None:
    """The same; a label that the model has no logit for would silently count as an error."""
    labels = labels_of(y, n_cases, call)
    unknown = [] if labels is None else sorted(set(labels.tolist()) - set(classes))
    if unknown:
        raise ArgumentError(
            f"{call}: there are labels {', '.join(unknown[:5])}, the model knows {', '.join(classes)}; check the data, "
            "or name the logits: load_checkpoint(classes=...), on the command line --classes."
        )
    return labels
