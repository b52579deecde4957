r"""Decompositions of the pre-activation: z_h(t) = sum_i zeta_{h,i}(t) + sources, and the moments that shares are made of.

All a share needs of a part is  sum_t q_h(t) zeta_{h,i}(t)  for a few weights q. Waves give it by one correlation of q with
the input and a product with the mode kernels; input parts by one adjoint pass and an inner product; so no wave and no part's
pre-activation is formed (`explicit` does form them: for pairs, and as the obvious version that tests compare with).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.explanation.batch import Batch
from oplens.explanation.parts import Bands, Channels, Part, Waves, Windows
from oplens.models.configuration import S4DConfig
from oplens.operators import diagonal


class Cases(Protocol):
    """Preprocessed sequences: x (batch, d_input, length), zero on padding; mask (batch, length); lengths (batch,)."""

    @property
    def x(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor: ...


@dataclass(frozen=True)
class PlainCases:
    """The same and no more: x (batch, d_input, length), mask (batch, length), lengths (batch,)."""

    x: Tensor
    mask: Tensor
    lengths: Tensor


class Decomposition(ABC):
    """Base: `dims` name the part axes, `shape` their sizes; `per_feature` says whether the feature axis is one of them."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    per_feature: bool

    @abstractmethod
    def moments(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """sum_t q(t) zeta(t) for q (batch, d_model, length): parts (batch, d_model, *shape), sources (batch, d_model, n_sources)."""

    @abstractmethod
    def inputs(self, batch: Cases, v: Tensor) -> tuple[Tensor, Tensor]:
        """sum_{d,t} v_d(t) x_d(t) for v (targets, batch, d_input, length): parts (targets, batch, *shape), sources (targets, batch, n)."""

    @abstractmethod
    def explicit(self, batch: Batch) -> Tensor:
        """Pre-activations of all parts (flattened), then sources: (batch, d_model, n_parts + n_sources, length)."""

    @property
    def n_parts(self) -> int:
        """Parts per feature (or in all when they span the features)."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class WaveDecomposition(Decomposition):
    """Modes, with the skip and the bias as sources (and the residual stream, where there is one)."""

    system: diagonal.DiagonalSystem
    has_residual: bool

    dims = ("wave",)
    per_feature = True

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.system.n_modes,)

    @property
    def sources(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("bias", "skip", "residual") if self.has_residual else ("bias", "skip")

    def moments(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        parts, skip = self.driven(batch.u_spectrum, diagonal.spectrum(q), q.shape[-1])
        bias = (q * batch.z_bias).sum(-1)
        return parts, _stack_sources(bias, skip, self.has_residual)

    def driven(self, u: Tensor, q: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Moments of the modes (batch, d_model, P) and of the skip (batch, d_model), from spectra of what drives them and of q."""
        lagged = diagonal.correlate_spectra(q, u, length)
        parts = (lagged.transpose(0, 1) @ self._kernels(length).transpose(1, 2)).transpose(0, 1)
        return parts, self.system.D * lagged[..., 0]

    def inputs(self, batch: Cases, v: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.einsum("tbdl,bdl->tb", v, batch.x)
        parts = v.new_zeros(*whole.shape, *self.shape)
        zero = torch.zeros_like(whole)
        return parts, _stack_sources(zero, zero, self.has_residual, whole)

    def explicit(self, batch: Batch) -> Tensor:
        chunks = [diagonal.waves(self.system, s) for _, s in diagonal.states(self.system, batch.u)]
        parts = torch.cat(chunks, dim=-1)
        sources = [batch.z_bias.expand_as(batch.u), self.system.D[:, None] * batch.u]
        if self.has_residual:
            sources.append(torch.zeros_like(batch.u))
        return torch.cat((parts, torch.stack(sources, dim=2)), dim=2)

    def _kernels(self, length: int) -> Tensor:
        cached = self._cache.get(length)
        if cached is None:
            cached = diagonal.mode_kernels(self.system, length)
            self._cache.clear()
            self._cache[length] = cached
        return cached

    @cached_property
    def _cache(self) -> dict[int, Tensor]:
        return {}


@dataclass(frozen=True)
class InputDecomposition(Decomposition):
    """Channels, bands, windows of the preprocessed input and their products; sources: the bias and what no part covers."""

    system: diagonal.DiagonalSystem
    channels: tuple[int, ...] | None
    bands: tuple[tuple[float, float], ...] | None
    windows: int | None
    sampling_rate: float

    dims: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    covers: bool = True
    per_feature = False

    @property
    def sources(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("bias",) if self.covers else ("bias", "rest")

    def split(self, batch: Cases) -> tuple[Tensor, Tensor]:
        """The input's parts (batch, n_bands, d_input, length) before windows and channel selection, and what they leave of x."""
        if not self._last or self._last[0] is not batch.x:
            self._last[:] = [batch.x, *self._split(batch)]
        return self._last[1], self._last[2]

    @cached_property
    def _last(self) -> list[Tensor]:
        """Input of the latest batch and its split: every order asks for the same one."""
        return []

    def _split(self, batch: Cases) -> tuple[Tensor, Tensor]:
        x = batch.x
        if self.bands is None:
            banded = x[:, None]
        else:
            banded = torch.zeros(x.shape[0], len(self.bands), *x.shape[1:], dtype=x.dtype)
            for size in torch.unique(batch.lengths).tolist():
                rows = batch.lengths == size
                banded[rows, :, :, :size] = _filter(x[rows, :, :size], self.bands, self.sampling_rate)
        if self.covers:
            return banded, torch.zeros_like(x)
        chosen = banded.sum(1)
        if self.channels is not None:
            keep = torch.zeros(x.shape[1], dtype=x.dtype)
            keep[list(self.channels)] = 1
            chosen = chosen * keep[:, None]
        return banded, x - chosen

    def moments(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        response = diagonal.kernel(self.system, q.shape[-1], skip=True)
        back = diagonal.adjoint(q, response) * batch.drive
        banded, rest = self.split(batch)
        # (batch, d_model, bands, channels, windows): the encoder weighs what the adjoint sees of every channel
        seen = torch.einsum("bhwl,bndwl->bhndw", self._windowed(back, batch), self._windowed(banded, batch))
        parts = self._arrange(seen * batch.encoder[:, None, :, None])
        sources = [(q * batch.z_bias).sum(-1)]
        if not self.covers:
            sources.append(torch.einsum("bhl,hd,bdl->bh", back, batch.encoder, rest))
        return parts, torch.stack(sources, dim=-1)

    def inputs(self, batch: Cases, v: Tensor) -> tuple[Tensor, Tensor]:
        banded, rest = self.split(batch)
        weights = self._windowed(v.transpose(0, 1), batch)
        parts = self._arrange(torch.einsum("btdwl,bndwl->tbndw", weights, self._windowed(banded, batch)))
        sources = [v.new_zeros(v.shape[:2])]
        if not self.covers:
            sources.append(torch.einsum("tbdl,bdl->tb", v, rest))
        return parts, torch.stack(sources, dim=-1)

    def driving(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """What each part (flattened) and, when there is one, the rest drives: u_i = E_i v_i as E_i (d_model, m), v_i (batch, m, length)."""
        banded, rest = self.split(batch)
        selections = [slice(None)] if self.channels is None else [slice(c, c + 1) for c in self.channels]
        for columns in selections:
            for band in range(banded.shape[1]):
                for window in self._indicators(batch):
                    yield batch.encoder[:, columns], batch.drive * banded[:, band, columns] * window[:, None]
        if not self.covers:
            yield batch.encoder, batch.drive * rest

    def explicit(self, batch: Batch) -> Tensor:
        length = batch.x.shape[-1]
        response = diagonal.kernel(self.system, length, skip=True)
        driven = [diagonal.convolve(torch.einsum("hd,bdl->bhl", E, v), response) for E, v in self.driving(batch)]
        driven.insert(self.n_parts, batch.z_bias.expand_as(batch.u))
        return torch.stack(driven, dim=2)

    def _windowed(self, values: Tensor, batch: Cases) -> Tensor:
        """(batch, ..., length) as (batch, ..., windows, steps of the longest window), zero past every window's end."""
        if self.windows is None:
            return values[..., None, :]
        # Step t belongs to window floor(t windows / length), so that window w begins at ceil(w length / windows).
        edges = -(-torch.arange(self.windows + 1)[None] * batch.lengths[:, None] // self.windows)
        start, stop = edges[:, :-1, None], edges[:, 1:, None]
        index = start + torch.arange(int((stop - start).max()))
        inside = (index < stop).reshape(len(index), *[1] * (values.ndim - 2), *index.shape[1:])
        flat = index.clamp(max=values.shape[-1] - 1).reshape(len(index), *[1] * (values.ndim - 2), -1)
        taken = torch.gather(values, -1, flat.expand(*values.shape[:-1], -1))
        return taken.unflatten(-1, index.shape[1:]) * inside

    def _indicators(self, batch: Cases) -> list[Tensor]:
        """Indicator (batch, length) of each window of every case's own valid steps; all steps when there are no windows."""
        if self.windows is None:
            return [batch.mask]
        step = torch.arange(batch.x.shape[-1])[None]
        index = (step * self.windows) // batch.lengths[:, None]
        return [(index == w).to(batch.x.dtype) for w in range(self.windows)]

    def _arrange(self, values: Tensor) -> Tensor:
        """(..., bands, channels, windows) to (..., *shape) in the order channel, band, window."""
        values = values.sum(-2, keepdim=True) if self.channels is None else values[..., list(self.channels), :]
        return values.transpose(-3, -2).reshape(*values.shape[:-3], *self.shape)


@dataclass(frozen=True)
class ProductDecomposition(Decomposition):
    """Waves driven by parts of the input: zeta_{h,n,i} is mode n's response to part i alone."""

    waves: WaveDecomposition
    input: InputDecomposition

    per_feature = True

    @property
    def dims(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("wave", *self.input.dims)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (*self.waves.shape, *self.input.shape)

    @property
    def sources(self) -> tuple[str, ...]:  # type: ignore[override]
        extra = () if self.input.covers else ("rest",)
        return ("bias", "skip", *extra, *(("residual",) if self.waves.has_residual else ()))

    def moments(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        skip = torch.zeros(batch.u.shape[:2], dtype=q.dtype)
        parts, rest = [], torch.zeros_like(skip)
        weighed = diagonal.spectrum(q)
        for index, (E, v) in enumerate(self.input.driving(batch)):
            # The encoder mixes few transforms of channels instead of transforming every feature.
            u = torch.einsum("hd,bdf->bhf", E.to(weighed.dtype), diagonal.spectrum(v))
            modes, direct = self.waves.driven(u, weighed, q.shape[-1])
            skip = skip + direct
            if index < self.input.n_parts:
                parts.append(modes)
            else:
                rest = modes.sum(-1)
        stacked = torch.stack(parts, dim=-1).unflatten(-1, self.input.shape)
        columns = [(q * batch.z_bias).sum(-1), skip, *([] if self.input.covers else [rest])]
        if self.waves.has_residual:
            columns.append(torch.zeros_like(skip))
        return stacked, torch.stack(columns, dim=-1)

    def inputs(self, batch: Cases, v: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.einsum("tbdl,bdl->tb", v, batch.x)
        sources = v.new_zeros(*whole.shape, len(self.sources))
        sources[..., -1] = whole
        return v.new_zeros(*whole.shape, *self.shape), sources

    def explicit(self, batch: Batch) -> Tensor:
        parts, rest = [], torch.zeros_like(batch.u)
        for index, (E, v) in enumerate(self.input.driving(batch)):
            u = torch.einsum("hd,bdl->bhl", E, v)
            chunks = [diagonal.waves(self.waves.system, s) for _, s in diagonal.states(self.waves.system, u)]
            modes = torch.cat(chunks, dim=-1)
            if index < self.input.n_parts:
                parts.append(modes)
            else:
                rest = modes.sum(2)
        direct = self.waves.system.D[:, None] * batch.u
        columns = [batch.z_bias.expand_as(batch.u), direct, *([] if self.input.covers else [rest])]
        if self.waves.has_residual:
            columns.append(torch.zeros_like(batch.u))
        return torch.cat((torch.stack(parts, dim=3).flatten(2, 3), torch.stack(columns, dim=2)), dim=2)


def decompose(parts: tuple[Part, ...], config: S4DConfig, system: diagonal.DiagonalSystem) -> Decomposition:
    """The decomposition a canonical tuple of parts names."""
    has_residual = config.architecture == "reference"
    waves = WaveDecomposition(system, has_residual)
    rate = config.sampling_rate or 1.0
    channels: tuple[int, ...] | None = None
    bands: tuple[tuple[float, float], ...] | None = None
    windows: int | None = None
    dims: list[str] = []
    shape: list[int] = []
    covers = True
    for part in parts:
        if isinstance(part, Channels):
            channels = _channel_indices(part, config)
            dims.append("channel")
            shape.append(len(channels))
            covers = covers and len(channels) == config.d_input
        elif isinstance(part, Bands):
            bands = part.resolve(rate)
            dims.append("band")
            shape.append(len(bands))
            covers = covers and _covers(bands, rate / 2)
        elif isinstance(part, Windows):
            windows = part.count
            dims.append("window")
            shape.append(windows)
    if not dims:
        return waves
    split = InputDecomposition(system, channels, bands, windows, rate, tuple(dims), tuple(shape), covers)
    return ProductDecomposition(waves, split) if isinstance(parts[0], Waves) else split


def _channel_indices(part: Channels, config: S4DConfig) -> tuple[int, ...]:
    if part.names is None:
        return tuple(range(config.d_input))
    for name in part.names:
        if name not in config.channels:
            raise ArgumentError(f"Channels: the model has no channel {name!r}; it has {', '.join(config.channels)}.")
    return tuple(config.channels.index(name) for name in part.names)


def _covers(bands: tuple[tuple[float, float], ...], nyquist: float) -> bool:
    """Whether the bands leave no frequency out, from 0 to Nyquist."""
    reached = 0.0
    for low, high in sorted(bands):
        if low > reached:
            return False
        reached = high
    return reached >= nyquist


def _filter(x: Tensor, bands: tuple[tuple[float, float], ...], sampling_rate: float) -> Tensor:
    """Ideal band masks on the Fourier transform of x (batch, d_input, steps): (batch, n_bands, d_input, steps)."""
    steps = x.shape[-1]
    # One rounding only: a bin that lies on an edge must compare equal to it (rfftfreq rounds twice, 35/100 above 0.35).
    frequency = torch.arange(steps // 2 + 1, dtype=x.dtype) * sampling_rate / steps
    spectrum = torch.fft.rfft(x)
    nyquist = sampling_rate / 2
    masks = [(frequency >= low) & ((frequency < high) | (high >= nyquist)) for low, high in bands]
    return torch.stack([torch.fft.irfft(spectrum * mask, n=steps) for mask in masks], dim=1)


def _stack_sources(bias: Tensor, skip: Tensor, has_residual: bool, residual: Tensor | None = None) -> Tensor:
    columns = [bias, skip]
    if has_residual:
        columns.append(torch.zeros_like(bias) if residual is None else residual)
    return torch.stack(columns, dim=-1)
