"""Do convolution, recurrence and single steps give the same numbers? A check for one's own model and data.

Reports against the S4 repository (issues 115 and 135) saw the modes differ by up to 52; here the difference is rounding, and shown.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.models.s4d import S4D, Mode, Trace

_OTHERS: tuple[Mode, ...] = ("recurrence", "step")
_CASES = 16  # at a time, so that memory does not grow with the data set


@dataclass(frozen=True)
class ModeDifference:
    """Largest difference of one mode from the convolution over the largest magnitude: per layer (pre-activations) and of the logits."""

    dtype: str
    mode: str
    layers: tuple[float, ...]
    logits: float


@dataclass(frozen=True)
class Consistency:
    """What :func:`check_consistency` found, one entry per dtype and mode."""

    differences: tuple[ModeDifference, ...]

    def worst(self, dtype: str = "float64") -> float:
        """Largest relative difference of any layer or logit in this dtype."""
        found = [max((*d.layers, d.logits)) for d in self.differences if d.dtype == dtype]
        if not found:
            raise ArgumentError(
                f"Consistency.worst(dtype={dtype!r}): compared were {', '.join(sorted({d.dtype for d in self.differences}))}."
            )
        return max(found)


def check_consistency(
    model: S4D,
    X: SequenceData | NDArray[np.float64] | list[NDArray[np.float64]],
    lengths: NDArray[np.int64] | None = None,
) -> Consistency:
    """Run a model by convolution, recurrence and single steps, print how far they differ, and return it.

    Parameters
    ----------
    model : S4D
    X : SequenceData, ndarray (n_cases, n_channels, n_timepoints) or list of ndarray (n_channels, length)
        Raw sequences.
    lengths : ndarray of int, (n_cases,), optional
        Valid steps per case of a padded array.

    Returns
    -------
    Consistency
        Differences relative to the largest magnitude, in the model's own dtype and in float64.

    Notes
    -----
    Accuracy: *measured*. Every layer receives what the same mode gave below it, so errors add up as they do in use.
    Cost: O(n_layers n_cases d_model n_timepoints d_state), by single steps.

    Examples
    --------
    >>> import contextlib, io
    >>> import numpy as np
    >>> from oplens.models import S4DConfig
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8))
    >>> with contextlib.redirect_stdout(io.StringIO()) as table:
    ...     found = check_consistency(model, np.ones((2, 1, 50)))
    >>> "recurrence" in table.getvalue(), found.worst() < 1e-12
    (True, True)
    """
    if not isinstance(model, S4D):
        raise ArgumentError(
            f"check_consistency(model={type(model).__name__}): give an S4D; a fitted classifier's is its model_."
        )
    data = as_sequences(X)
    valid = data.lengths if lengths is None else _checked(lengths, data)
    if data.n_channels != model.config.d_input:
        raise ArgumentError(
            f"check_consistency: X has {data.n_channels} channels, the model has d_input={model.config.d_input}; the layout is "
            "(n_cases, n_channels, n_timepoints)."
        )
    own = copy.deepcopy(model).eval()
    models = {str(own.decoder.weight.dtype).removeprefix("torch."): own, "float64": own.as_float64()}
    found = Consistency(tuple(d for dtype, m in models.items() for d in _differences(m, dtype, data, valid)))
    _show(found)
    return found


def _checked(lengths: NDArray[np.int64], data: SequenceData) -> NDArray[np.int64]:
    lengths = np.asarray(lengths)
    if (
        lengths.shape != (data.n_cases,)
        or lengths.dtype.kind not in "iu"
        or lengths.min() < 1
        or lengths.max() > data.n_timepoints
    ):
        raise ArgumentError(
            f"check_consistency: lengths must be {data.n_cases} integers between 1 and {data.n_timepoints}."
        )
    return lengths.astype(np.int64)


def _differences(model: S4D, dtype: str, data: SequenceData, lengths: NDArray[np.int64]) -> list[ModeDifference]:
    size = model.config.n_layers + 1
    scale, error = torch.zeros(size), {mode: torch.zeros(size) for mode in _OTHERS}
    for start in range(0, data.n_cases, _CASES):
        x = torch.from_numpy(data.X[start : start + _CASES].transpose(0, 2, 1).copy())
        steps = torch.from_numpy(lengths[start : start + _CASES])
        with torch.no_grad():
            base = _values(model.trace(x, steps))
            scale = torch.maximum(scale, torch.stack([v.abs().max() for v in base]).float())
            for mode in _OTHERS:
                other = _values(model.trace(x, steps, mode))
                gap = torch.stack([(v - b).abs().max() for v, b in zip(other, base, strict=True)]).float()
                error[mode] = torch.maximum(error[mode], gap)
    relative = {mode: (gap / scale.clamp(min=torch.finfo(torch.float32).tiny)).tolist() for mode, gap in error.items()}
    return [ModeDifference(dtype, mode, tuple(values[:-1]), values[-1]) for mode, values in relative.items()]


def _values(trace: Trace) -> list[Tensor]:
    return [layer.z * trace.mask[..., None] for layer in trace.layers] + [trace.logits]


def _show(found: Consistency) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Modes against the convolution (largest difference / largest magnitude)")
    for heading in ("dtype", "mode"):
        table.add_column(heading)
    for index in range(len(found.differences[0].layers)):
        table.add_column(f"layer {index}", justify="right")
    table.add_column("logits", justify="right")
    for d in found.differences:
        table.add_row(d.dtype, d.mode, *(f"{value:.1e}" for value in (*d.layers, d.logits)))
    Console().print(table)
