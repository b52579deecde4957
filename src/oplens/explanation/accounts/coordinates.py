"""Coordinates of an explanation: cases, and parts in the units a reader expects."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import SequenceData
from oplens.explanation.accounts.decomposition import Decomposition
from oplens.explanation.parts import Waves
from oplens.explanation.steps import step_of
from oplens.operators import diagonal

if TYPE_CHECKING:
    from oplens.explanation.operator import ExplicitOperator


def case_coords(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    logits: NDArray[np.float64],
    at: int | None = None,
) -> dict[str, Any]:
    """Coordinates along `case`; the answer of a model with one output per step decides nothing, so nothing is `predicted` there."""
    classes = np.array(op.model.config.classes)
    coords: dict[str, Any] = {
        "case": ("case", np.arange(len(data.X))),
        "n_steps": ("case", data.lengths),
    }
    if at is not None:
        coords["step"] = ("case", step_of(data.lengths, at))
    if at is None or len(classes) > 1:
        coords["predicted"] = ("case", classes[logits.argmax(-1)].astype(object))
    if labels is not None:
        coords["label"] = ("case", labels.astype(object))
    return coords


def part_coords(op: "ExplicitOperator", decomposition: Decomposition, parts: tuple[Any, ...]) -> dict[str, Any]:
    """Coordinates along the part dimensions, in the units a reader expects."""
    config = op.model.config
    coords: dict[str, Any] = {}
    if isinstance(parts[0], Waves):
        coords.update(wave_coords(op))
    for dim, size in zip(decomposition.dims, decomposition.shape, strict=True):
        if dim == "channel":
            names = next(part.names for part in parts if type(part).__name__ == "Channels") or config.channels
            coords["channel"] = ("channel", np.array(names, dtype=object))
        elif dim == "band":
            coords.update(_band_coords(op, parts))
        elif dim == "window":
            coords.update(_window_coords(size))
    return coords


def wave_coords(op: "ExplicitOperator") -> dict[str, Any]:
    """Frequency, decay time and aliasing of the first layer's modes."""
    config = op.model.config
    rate = config.sampling_rate
    system = op.system
    frequency, decay, aliased = mode_table(system, rate or 1.0, config.discretisation)
    per = "Hz" if rate else "cycles/step"
    time = "s" if rate else "steps"
    coords: dict[str, Any] = {
        "feature": ("feature", np.arange(system.d_model)),
        "wave": ("wave", np.arange(system.n_modes)),
        "frequency": (("feature", "wave"), frequency, {"units": per, "long_name": "mode frequency", "claim": "exact"}),
        "decay_time": (("feature", "wave"), decay, {"units": time, "long_name": "decay time", "claim": "exact"}),
        "aliased": (
            ("feature", "wave"),
            aliased,
            {"units": "1", "long_name": "above Nyquist, folded", "claim": "exact"},
        ),
    }
    return coords


def mode_table(
    system: diagonal.DiagonalSystem, sampling_rate: float, discretisation: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Frequency (the angle wrapped to (-pi, pi]), decay time and aliasing flag of every mode, (d_model, P)."""
    angle = system.log_a.imag.numpy()
    wrapped = np.angle(np.exp(1j * angle))
    frequency = sampling_rate * np.abs(wrapped) / (2 * np.pi)
    with np.errstate(divide="ignore"):
        decay = -1 / (sampling_rate * system.log_a.real.numpy())
    # The bilinear map sends every pole below Nyquist; only the zero-order hold folds.
    aliased = (np.abs(angle) > np.pi) if discretisation == "zoh" else np.zeros(angle.shape, dtype=bool)
    return frequency, decay, aliased


def _band_coords(op: "ExplicitOperator", parts: tuple[Any, ...]) -> dict[str, Any]:
    rate = op.model.config.sampling_rate
    part = next(part for part in parts if type(part).__name__ == "Bands")
    edges = part.resolve(rate or 1.0)
    units = "Hz" if rate else "cycles/step"
    labels = [f"{low:.4g}-{high:.4g} {units}" for low, high in edges]
    text = {"units": units, "claim": "exact"}
    return {
        "band": ("band", np.array(labels, dtype=object)),
        "band_low": ("band", np.array([low for low, _ in edges]), {**text, "long_name": "lower edge, included"}),
        "band_high": ("band", np.array([high for _, high in edges]), {**text, "long_name": "upper edge, excluded"}),
    }


def _window_coords(count: int) -> dict[str, Any]:
    edges = np.linspace(0, 1, count + 1)
    text = {"units": "1", "claim": "exact"}
    return {
        "window": ("window", np.arange(count)),
        "window_start": ("window", edges[:-1], {**text, "long_name": "start, fraction of the case's own length"}),
        "window_stop": ("window", edges[1:], {**text, "long_name": "stop, fraction of the case's own length"}),
    }
