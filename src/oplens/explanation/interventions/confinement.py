r"""Which changes of an input are allowed: a linear subspace of the preprocessed cases of one length, as an orthogonal projector.

Channels keep their rows, bands their bins of the Fourier transform of the unpadded case, a window its steps. Nothing lies in a band
and in a window at once, so both together allow the discrete prolate spheroidal sequences of the window (Slepian 1978) that have at
least half of their energy in the bands: so has every change made of them. A model that removes offsets sees no change of an offset,
so there none is allowed. On top of this, linear functionals may be held: each takes one direction away.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.explanation.parts import Bands, By, Channels, Waves, Windows, normalise
from oplens.models.configuration import S4DConfig
from oplens.operators import diagonal

SAME = 1e-10  # part of a held direction, relative to its size, below which the others already imply it


@dataclass(frozen=True)
class Confinement:
    """What a caller asked for, checked against a model: channels (indices), bands, window (fractions), waves that are held."""

    channels: tuple[int, ...] | None = None
    bands: tuple[tuple[float, float], ...] | None = None
    window: tuple[float, float] | None = None
    held: tuple[tuple[int, int], ...] = ()
    hold_skip: bool = False

    def describe(self, config: S4DConfig) -> str:
        """In words, for a result's attribute."""
        units = "Hz" if config.sampling_rate else "cycles/step"
        words = []
        if self.channels is not None:
            words.append("changes of " + ", ".join(config.channels[c] for c in self.channels))
        if self.bands is not None:
            words.append("frequencies " + ", ".join(f"{low:g}-{high:g} {units}" for low, high in self.bands))
        if self.window is not None:
            words.append(f"steps from {self.window[0]:g} to {self.window[1]:g} of a case's length")
        if self.held:
            skips = " and skips" if self.hold_skip else ""
            words.append(f"order-1 shares of {len(self.held)} waves{skips} held")
        return "; ".join(words) or "changes of every channel and step"


@dataclass(frozen=True)
class Subspace:
    """Projector of changes (batch, d_input * steps), channels slowest, onto the allowed ones.

    Attributes
    ----------
    shape : (d_input, steps)
    channels : Tensor (d_input,) of 0 and 1, or None
    bins : Tensor (steps // 2 + 1,) of 0 and 1, or None
        Allowed bins of the Fourier transform; without a window.
    basis : Tensor (steps, m) orthonormal, or None
        What a window allows in time.
    held : Tensor (d_input * steps, k) orthonormal
        Allowed directions that are taken away again.
    """

    shape: tuple[int, int]
    channels: Tensor | None
    bins: Tensor | None
    basis: Tensor | None
    held: Tensor

    def project(self, rows: Tensor) -> Tensor:
        """Nearest allowed changes, same shape."""
        rows = self._confine(rows)
        return rows - (rows @ self.held) @ self.held.T if self.held.shape[1] else rows

    def _confine(self, rows: Tensor) -> Tensor:
        values = rows.unflatten(-1, self.shape)
        if self.channels is not None:
            values = values * self.channels[:, None]
        if self.bins is not None:
            values = torch.fft.irfft(torch.fft.rfft(values) * self.bins, n=self.shape[1])
        if self.basis is not None:
            values = (values @ self.basis) @ self.basis.T
        return values.flatten(-2)


def subspace(
    wanted: Confinement, config: S4DConfig, system: diagonal.DiagonalSystem, encoder: Tensor, steps: int
) -> Subspace:
    """The allowed changes of cases of `steps` steps.

    Parameters
    ----------
    wanted : Confinement
    config : S4DConfig
    system : DiagonalSystem
        Of the layer whose waves are held.
    encoder : Tensor, (d_model, d_input)
        What drives them.
    steps : int
    """
    shape = (config.d_input, steps)
    channels = None
    if wanted.channels is not None:
        channels = torch.zeros(config.d_input, dtype=torch.float64)
        channels[list(wanted.channels)] = 1
    bins = None if wanted.bands is None else _bins(wanted.bands, config.sampling_rate or 1.0, steps)
    basis = None if wanted.window is None else _window(wanted.window, bins, steps)
    none = torch.zeros(config.d_input * steps, 0, dtype=torch.float64)
    free = Subspace(shape, channels, bins if basis is None else None, basis, none)
    rows = [_offsets(config, steps), *_held_rows(wanted, system, encoder, steps)]
    functionals = torch.cat([row for row in rows if len(row)]) if any(len(row) for row in rows) else none.T
    return Subspace(shape, channels, free.bins, basis, _directions(free, functionals))


def wave_functionals(system: diagonal.DiagonalSystem, steps: int) -> Tensor:
    """G (d_model, P, steps): the mean over time of wave n of feature h is sum_t G_hn(t) u_h(t)."""
    kernels = diagonal.mode_kernels(system, steps)
    return kernels.cumsum(-1).flip(-1) / steps


def _held_rows(wanted: Confinement, system: diagonal.DiagonalSystem, encoder: Tensor, steps: int) -> list[Tensor]:
    """Functionals of the input (count, d_input * steps) whose change is the change of a held wave's (or skip's) mean."""
    if not wanted.held:
        return []
    means = wave_functionals(system, steps)
    features, waves = (torch.tensor(index) for index in zip(*wanted.held, strict=True))
    rows = [torch.einsum("kd,kt->kdt", encoder[features], means[features, waves]).flatten(1)]
    if wanted.hold_skip:
        rows.append((system.D[:, None] * encoder)[..., None].expand(-1, -1, steps).flatten(1) / steps)
    return rows


def _offsets(config: S4DConfig, steps: int) -> Tensor:
    """Means of the channels, where the model removes them: (d_input, d_input * steps), else none."""
    assert config.preprocessing is not None
    eye = torch.eye(config.d_input, dtype=torch.float64)
    rows = eye[..., None].expand(-1, -1, steps).flatten(1)
    return rows if config.preprocessing.remove_offset else rows[:0]


def _directions(free: Subspace, functionals: Tensor) -> Tensor:
    """Orthonormal directions (n, k) inside the free subspace that the functionals see; dependent ones once."""
    size = functionals.norm(dim=1, keepdim=True)
    functionals = functionals[size[:, 0] > 0] / size[size[:, 0] > 0]
    if not len(functionals):  # transforms of no rows are an error in some builds
        return functionals.T
    _, values, vectors = torch.linalg.svd(free.project(functionals), full_matrices=False)
    return vectors[values > SAME].T.contiguous()


def _bins(bands: tuple[tuple[float, float], ...], rate: float, steps: int) -> Tensor:
    frequency = torch.arange(steps // 2 + 1, dtype=torch.float64) * rate / steps
    inside = torch.zeros_like(frequency)
    for low, high in bands:
        inside[(frequency >= low) & ((frequency < high) | (high >= rate / 2))] = 1
    if not inside.any():
        raise ArgumentError(
            f"steer(by=Bands({list(bands)})): a case of {steps} steps has no frequency in there, its resolution is "
            f"{rate / steps:.4g}; give wider bands."
        )
    return inside


def _window(window: tuple[float, float], bins: Tensor | None, steps: int) -> Tensor:
    """Orthonormal sequences (steps, m) of a window: its steps, or what is both in it and mostly in the bands."""
    # As Windows(n) counts: step t belongs to the window if start <= t / steps < stop.
    start, stop = math.ceil(window[0] * steps - 1e-9), math.ceil(window[1] * steps - 1e-9)
    if start >= stop:
        raise ArgumentError(
            f"steer(window={window}): a case of {steps} steps has no step in there; give a longer window."
        )
    inside = torch.eye(steps, dtype=torch.float64)[:, start:stop]
    if bins is None:
        return inside
    banded = torch.fft.irfft(torch.fft.rfft(inside.T) * bins, n=steps)[:, start:stop]
    concentration, sequences = torch.linalg.eigh((banded + banded.T) / 2)
    kept = sequences[:, concentration >= 0.5]
    if not kept.shape[1]:
        raise ArgumentError(
            f"steer(by=Bands(...), window={window}): nothing that lasts only {stop - start} steps has half of its energy in these "
            "bands; give a longer window or wider bands."
        )
    return inside @ kept


def confinement(
    config: S4DConfig,
    by: By | None,
    window: Sequence[float] | None,
    hold: Sequence[tuple[int, int]] | None,
    waves: Sequence[tuple[int, int]] | None,
) -> Confinement:
    """Check what a caller asks for, with a sentence for what cannot work."""
    channels: tuple[int, ...] | None = None
    bands: tuple[tuple[float, float], ...] | None = None
    for part in () if by is None else normalise(by):
        if isinstance(part, Channels) and part.names is not None:
            channels = _channels(part.names, config)
        elif isinstance(part, Bands) and part.edges is not None:
            bands = part.resolve(config.sampling_rate or 1.0)
        else:
            raise ArgumentError(f"steer(by={part!r}): {_cure(part)}")
    held, skip = _held(config, hold, waves)
    return Confinement(channels, bands, None if window is None else _fractions(window), held, skip)


def _cure(part: Any) -> str:
    if isinstance(part, Channels | Bands):
        return "name what may change, such as Channels(('Cz',)) or Bands([(8, 13)]); without by= every channel and frequency may."
    if isinstance(part, Windows):
        return "it names all windows; say which time may change by window=(start, stop) in fractions of a case, such as (0.75, 1)."
    if isinstance(part, Waves):
        return "waves of one feature share their input; waves=[(feature, wave), ...] changes these and holds the shares of all others."
    return "only Channels, Bands and their product confine a change."


def _channels(names: tuple[str, ...], config: S4DConfig) -> tuple[int, ...]:
    for name in names:
        if name not in config.channels:
            raise ArgumentError(
                f"steer(by=Channels(...)): the model has no channel {name!r}; it has {', '.join(config.channels)}."
            )
    return tuple(config.channels.index(name) for name in names)


def _fractions(window: Sequence[float]) -> tuple[float, float]:
    try:
        start, stop = (float(value) for value in window)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"steer(window={window!r}): give (start, stop) in fractions of a case, such as (0.75, 1)."
        ) from error
    if not 0 <= start < stop <= 1:
        raise ArgumentError(f"steer(window={window!r}): it is empty or beyond a case; give 0 <= start < stop <= 1.")
    return start, stop


def _held(
    config: S4DConfig, hold: Sequence[tuple[int, int]] | None, waves: Sequence[tuple[int, int]] | None
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Waves whose order-1 shares must not change, and whether the skips' must not either."""
    if hold is None and waves is None:
        return (), False
    if hold is not None and waves is not None:
        raise ArgumentError("steer(hold=..., waves=...): choose one; waves= holds every wave it does not name.")
    if config.n_layers > 1:
        raise ArgumentError(
            "steer(hold=...): waves of a stack have no pooled order-1 share; only a single layer's can be held."
        )
    if config.architecture != "plain":
        raise ArgumentError(
            "steer(hold=...): in the reference architecture gates weigh a wave differently on every input, so no linear functional "
            "holds its share; this needs the plain architecture."
        )
    given = _members(hold if waves is None else waves, config, "hold" if waves is None else "waves")
    if waves is None:
        return given, False
    everything = [(h, n) for h in range(config.d_model) for n in range(config.n_modes)]
    return tuple(pair for pair in everything if pair not in set(given)), True


def _members(pairs: Any, config: S4DConfig, name: str) -> tuple[tuple[int, int], ...]:
    try:
        members = tuple((operator.index(h), operator.index(n)) for h, n in pairs)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"steer({name}={pairs!r}): give pairs (feature, wave), such as [(0, 3), (5, 1)]."
        ) from error
    if not members:
        raise ArgumentError(f"steer({name}=[]): name at least one wave, or leave {name}= out.")
    for h, n in members:
        if not (0 <= h < config.d_model and 0 <= n < config.n_modes):
            raise ArgumentError(
                f"steer({name}=...): there is no wave {n} of feature {h}; features are 0 to {config.d_model - 1}, waves 0 to "
                f"{config.n_modes - 1}."
            )
    return members
