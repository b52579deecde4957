r"""Boxes around cases, and what they do to a model: how far pre-activations move, and how far a margin can bend.

A box of radius r around a case x0 holds every x with  abs(x_d(t) - x0_d(t)) <= r s_d  in the data, all channels and steps at once.
Behind the model's preprocessing it is the set of  eta_d(t) w_d,  abs(eta) <= r,  w_d = s_d / scale_d, from which, if the model removes every
case's own offset, the mean over valid steps is taken: no input can give a preprocessed case another mean.

reach     abs(z_h(t) - z0_h(t)) <= r sum_d abs(E_hd) w_d sum_l abs(K~_h[t - l] - c_h(t)),  c_h(t) = sum_{j <= t} K~_h[j] / length with offsets
          removed and 0 without                                                                                               (attained)
bend      with constants b_h >= -W_h g''(z)/2 for all z reached, the second-order part of a margin is at least -sum_h b_h mean_t (z_h - z0_h)^2.
          A finite convolution is a corner of a circulant one, which is diagonal in frequency, so in terms of the channels this is at most
          the mean over t of  eta' Q(w) eta  at some frequency w,  Q(w) = sum_h b_h abs(K^_h(w))^2 e_h e_h',  e_hd = E_hd w_d. For any diagonal
          matrix above all Q(w) it is at most  r^2 trace of it,  since abs(eta) <= r: row sums of abs(Q), shrunk by an eigenvalue. Where
          that is more than  sum_h b_h mean_t reach_h(t)^2,  as it can be with offsets removed, the latter serves.

Source: derived for this library.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.models.configuration import S4DConfig

MOST_CONVEX, MOST_CONCAVE = (
    0.7978845608028655,
    0.1079819330263762,
)  # 2 phi(0) = max g'', 2 phi(2) = max -g'' of erf-GELU
ROUNDING = 1e-9  # relative: far above what float64 loses in a sum, far below what decides
EIGENVALUE_WORK = (
    2**28
)  # frequencies times channels^3 at most: above it neighbouring frequencies share their largest gain


@dataclass(frozen=True)
class Box:
    """Shape of the boxes: half widths at radius 1.

    Attributes
    ----------
    half_width : Tensor, (d_input,)
        In the data.
    width : Tensor, (d_input,)
        The same in the preprocessed input.
    centred : bool
        Whether the model removes every case's own offset.
    """

    half_width: Tensor
    width: Tensor
    centred: bool

    @classmethod
    def of(cls, config: S4DConfig, scale: float | Sequence[float] | None) -> "Box":
        """Half widths in the data, one for all channels or one each; the preprocessing's own scale when None.

        Examples
        --------
        >>> from oplens import S4DConfig
        >>> from oplens.models import Preprocessing
        >>> config = S4DConfig(d_input=2, n_classes=2, preprocessing=Preprocessing((0.0, 0.0), (2.0, 5.0)))
        >>> Box.of(config, None).width.tolist(), Box.of(config, 10.0).width.tolist()
        ([1.0, 1.0], [5.0, 2.0])
        """
        preprocessing = config.preprocessing
        assert preprocessing is not None
        own = torch.tensor(preprocessing.scale, dtype=torch.float64)
        half = own if scale is None else torch.from_numpy(_half_widths(scale, config))
        return cls(half, half / own, preprocessing.remove_offset)

    @classmethod
    def cube(cls, d_input: int, half_width: float) -> "Box":
        """The same half width in every channel of the preprocessed input, whatever its mean."""
        half = torch.full((d_input,), half_width, dtype=torch.float64)
        return cls(half, half, False)

    def centre(self, values: Tensor, mask: Tensor) -> Tensor:
        """Directions (..., d_input, length) as they come out of the preprocessing; mask (batch, length). Its own transpose."""
        if not self.centred:
            return values
        shape = (len(mask), *(1,) * (values.ndim - 2), mask.shape[-1])
        keep = mask.reshape(shape)
        return (values - (values * keep).sum(-1, keepdim=True) / keep.sum(-1, keepdim=True)) * keep

    def reach(self, encoder: Tensor, response: Tensor) -> Tensor:
        """How far a box of radius 1 moves z_h(t) in a case as long as the response (d_model, length): same shape.

        Cost: O(d_model length), O(d_model length^2) where offsets are removed.
        """
        inward = (encoder.abs() @ self.width)[:, None]
        sums = torch.stack([_centred_sums(row) for row in response]) if self.centred else response.abs().cumsum(-1)
        return inward * sums * (1 + 1e-12)

    def bend(
        self,
        encoder: Tensor,
        spectrum: Tensor,
        reach: Tensor,
        rows: Tensor,
        curvature: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Per margin, what r^2 times it bounds: how much second-order terms of the readout can take from the margin.

        Parameters
        ----------
        encoder : Tensor, (d_model, d_input)
        spectrum : Tensor, (d_model, n) complex
            Of the response of the whole pre-activation, on a circle on which it does not meet itself.
        reach : Tensor, (d_model, length)
            See :meth:`reach`.
        rows : Tensor, (n, d_model)
            W of the margins.
        curvature : (Tensor, Tensor), (d_model,) each, optional
            Bounds from above on g'' and -g'' of every feature; those of GELU, for all z, when omitted.

        Returns
        -------
        Tensor, (n,)
        """
        # Channels that do not move only cost; without any, nothing bends.
        inward = (encoder * self.width)[:, self.width > 0]
        d_input = inward.shape[1]
        gain = _grouped(spectral_gain(spectrum), max(8, EIGENVALUE_WORK // d_input**3))
        outer = (inward[:, :, None] * inward[:, None, :]).flatten(1)  # (d_model, d_input^2)
        convex, concave = curvature or (torch.full_like(rows[0], MOST_CONVEX), torch.full_like(rows[0], MOST_CONCAVE))
        found = []
        for row in rows:
            limit = row.abs() * torch.where(row > 0, concave, convex).clamp(min=0) / 2
            quadratic = ((limit[:, None] * gain).T @ outer).unflatten(
                -1, (d_input, d_input)
            )  # (frequency, d_input, d_input)
            above = quadratic.abs().sum(-1).amax(0).clamp(min=1e-100)
            shrink = torch.linalg.eigvalsh(quadratic / torch.sqrt(above[:, None] * above))[..., -1].amax()
            jointly = above.sum() * shrink.clamp(0, 1)
            found.append(torch.minimum(jointly, limit @ (reach**2).mean(-1)))
        return torch.stack(found) * (1 + ROUNDING)


def spectral_gain(spectrum: Tensor) -> Tensor:
    """abs(K^_h)^2, (d_model, n)."""
    return spectrum.real**2 + spectrum.imag**2


def _grouped(gain: Tensor, most: int) -> Tensor:
    """At most this many frequencies, each the largest of its neighbourhood: no quadratic form shrinks by it."""
    size = -(-gain.shape[-1] // most)
    padded = torch.nn.functional.pad(gain, (0, -gain.shape[-1] % size))
    return padded.unflatten(-1, (-1, size)).amax(-1)


def _centred_sums(response: Tensor) -> Tensor:
    """sum_l abs(K[t - l] - c(t)) over all l of a case, K = 0 where l > t: (length,), rows at a time to bound memory."""
    length = len(response)
    level = response.cumsum(-1) / length
    sums = torch.empty_like(response)
    step = max(1, 2**20 // length)
    for start in range(0, length, step):
        stop = min(start + step, length)
        inside = (response[:stop] - level[start:stop, None]).abs().tril(start)
        sums[start:stop] = inside.sum(-1) + level[start:stop].abs() * (length - 1 - torch.arange(start, stop))
    return sums


def _half_widths(scale: Any, config: S4DConfig) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        values = np.asarray(scale, dtype=float)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if values.ndim > 1 or not np.isfinite(values).all() or (values < 0).any() or not (values > 0).any():
        raise ArgumentError(
            f"certify(scale={scale!r}): give the box's half width at radius 1 in units of the data, one for all channels or one per "
            "channel, finite, at least 0 (the channel stays as it is) and not all 0."
        )
    if values.ndim == 1 and len(values) != config.d_input:
        raise ArgumentError(
            f"certify(scale=...): {len(values)} half widths for {config.d_input} channels ({', '.join(config.channels)})."
        )
    return np.broadcast_to(values, (config.d_input,)).copy()
