"""Signals given by a formula, for predictions that need no recording."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError


@dataclass(frozen=True)
class Sinusoid:
    """amplitude sin(2 pi frequency t + phase) + offset, the same shape in every channel, sampled from t = 0.

    Parameters
    ----------
    frequency : float
        Hz, at least 0 and below half the sampling rate.
    n_timepoints : int
    sampling_rate : float
        Hz.
    amplitude, offset : float or tuple of float
        In the units of the data; one value, or one per channel.
    phase : float
        Radians.

    Examples
    --------
    >>> Sinusoid(1.0, n_timepoints=4, sampling_rate=4.0).values(2).round(6).tolist()
    [[0.0, 1.0, 0.0, -1.0], [0.0, 1.0, 0.0, -1.0]]
    """

    frequency: float
    n_timepoints: int
    sampling_rate: float
    amplitude: float | tuple[float, ...] = 1.0
    phase: float = 0.0
    offset: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        try:
            scalars = [float(value) for value in (self.frequency, self.sampling_rate, self.phase)]
            numbers = np.concatenate(
                [scalars, *(np.ravel(np.asarray(v, dtype=float)) for v in (self.amplitude, self.offset))]
            )
        except (TypeError, ValueError):
            raise ArgumentError(
                f"{self!r}: every value must be a number, amplitude and offset one or one per channel."
            ) from None
        if not np.isfinite(numbers).all():
            raise ArgumentError(f"{self!r}: every number must be finite.")
        if isinstance(self.n_timepoints, bool) or not isinstance(self.n_timepoints, int) or self.n_timepoints < 1:
            raise ArgumentError(
                f"Sinusoid(n_timepoints={self.n_timepoints!r}): give a whole number of steps, at least 1."
            )
        if self.sampling_rate <= 0 or not 0 <= self.frequency < self.sampling_rate / 2:
            raise ArgumentError(
                f"Sinusoid(frequency={self.frequency:g}, sampling_rate={self.sampling_rate:g}): a sampled sinusoid needs "
                "0 <= frequency < sampling_rate / 2."
            )

    def values(self, n_channels: int) -> NDArray[np.float64]:
        """Samples, (n_channels, n_timepoints)."""
        t = np.arange(self.n_timepoints) / self.sampling_rate
        wave = np.sin(2 * np.pi * self.frequency * t + self.phase)
        amplitude, offset = (self._per_channel(name, n_channels) for name in ("amplitude", "offset"))
        return np.asarray(amplitude[:, None] * wave + offset[:, None])

    def _per_channel(self, name: str, n_channels: int) -> NDArray[np.float64]:
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=float))
        if values.size not in (1, n_channels):
            raise ArgumentError(
                f"Sinusoid({name}=...): {values.size} values for {n_channels} channels; give one, or one for each."
            )
        return np.broadcast_to(values, (n_channels,))
