r"""Lowest margins of a model, and of its operator cut at some orders, over a box around each case of a batch.

With rows = W_decided - W_rival and M the margin,  M_K  the one of the operator cut at order K,  E_K = g - p_K,  all over the box of radius r:

    M   >= M(x0) - r sum_{d,t} w_d abs(dM/dx_d(t)) - r^2 bend            (bend: see `boxes`, `Setting.curvature`)
    M_K >= M_K(x0) - r sum_{d,t} w_d abs(dM_K/dx_d(t)) - r^2 bend - sum_h abs(rows_h) curve_h
    abs(M - M_K) <= abs(M - M_K)(x0) + r sum_{d,t} w_d abs(d(M - M_K)/dx_d(t)) + sum_h abs(rows_h) curve_h
    abs(M - M_K) <= sum_h abs(rows_h) sum_t p(t) sup abs(E_K)

where curve_h bounds the mean of the second-order part of E_K, by the smaller of  sum_t p(t) sup abs(E_K'') eps_h(t)^2 / 2  and
max_t sup abs(E_K'') max_w abs(K^_h(w))^2 (sum_d abs(E_hd) w_d)^2 r^2 / 2; every sup is taken on z0_h(t) +- eps_h(t). Steps go in short runs, which
share one interval.

Source: derived for this library.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oplens.explanation.batch import Batch
from oplens.explanation.certificates.boxes import ROUNDING, Box, spectral_gain
from oplens.explanation.certificates.remainders import Remainders, derivatives
from oplens.explanation.steps import readout_of
from oplens.operators import diagonal
from oplens.operators.polynomial import Activation, Series, extremes
from oplens.operators.polynomial.polynomials import derived, horner

if TYPE_CHECKING:
    from oplens.explanation.operator import ExplicitOperator

ROOM = 0.5  # tables reach this share of the training range beyond it; where a box reaches further there is no truncation certificate
RUNS = 128  # of steps, in the longest training case
TRIES = 5  # steps of the search for a radius at which the decision is seen flipped


@dataclass(frozen=True)
class Polynomials:
    """The readout's polynomials, as deep as the highest order, with certified tables of what each order leaves."""

    series: Series
    tables: Remainders


@dataclass(frozen=True)
class Setting:
    """An operator and a box; what depends on the length of a case alone is computed once.

    Attributes
    ----------
    op : ExplicitOperator
    box : Box
    run : int
        Steps that share one interval of pre-activations.
    """

    op: "ExplicitOperator"
    box: Box
    run: int
    _responses: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    _reaches: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _bends: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)
    _gains: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, op: "ExplicitOperator", box: Box) -> "Setting":
        """Runs follow the training set's longest case, so that no other case moves a bound."""
        return cls(op, box, max(1, int(op.training.lengths.max()) // RUNS))

    @cached_property
    def readout(self) -> Activation:
        """What the model's pre-activations go through."""
        return readout_of(self.op.model)

    @cached_property
    def domain(self) -> tuple[Tensor, Tensor] | None:
        """Pre-activations (d_model,) between which `curvature` holds; None where it holds for all.

        g'' of a polynomial of degree 3 or more grows without bound, so that it is bounded on the training range with some room only;
        where a box reaches further nothing is certified.
        """
        if self.readout.polynomial is None or self.readout.polynomial.shape[-1] <= 3:
            return None
        low, high = self.op.statistics.range
        room = ROOM * (high - low)
        return low - room, high + room

    @cached_property
    def curvature(self) -> tuple[Tensor, Tensor] | None:
        """Bounds on g'' and -g'' of every feature in the domain; None for GELU's own."""
        if self.readout.polynomial is None:
            return None
        second = derived(self.readout.polynomial, 2)
        zero = torch.zeros(len(second), dtype=second.dtype)
        least, most = extremes(second, *(self.domain or (zero, zero)))
        return most, -least

    def limit(self, batch: Batch) -> Tensor:
        """Radius (batch,) up to which a box stays in the domain."""
        if self.domain is None:
            return torch.full((len(batch.z),), math.inf, dtype=batch.z.dtype)
        low, high = (end[:, None] for end in self.domain)
        room = torch.minimum(high - batch.z, batch.z - low) - 1e-12 * (1 + batch.z.abs())
        reach = self.reach(batch)
        room = torch.where(room < 0, 0.0, torch.where(reach > 0, room / reach.clamp(min=1e-300), math.inf))
        return torch.where(batch.mask[:, None] > 0, room, math.inf).amin((1, 2))

    def reach(self, batch: Batch) -> Tensor:
        """(batch or 1, d_model, length): see :meth:`Box.reach`."""
        length = batch.x.shape[-1]
        if not self.box.centred:  # a shorter case's reach is the beginning of a longer one's
            return self.reach_after(length)[None]
        reaches = [self.reach_after(steps) for steps in batch.lengths.tolist()]
        return torch.stack([torch.nn.functional.pad(reach, (0, length - reach.shape[-1])) for reach in reaches])

    def bend(self, batch: Batch, decided: Tensor) -> Tensor:
        """(batch, n_classes): see :meth:`Box.bend`; 0 for the decided class itself."""
        model, found = self.op.model, []
        for steps, own in zip(batch.lengths.tolist(), decided.tolist(), strict=True):
            if (steps, own) not in self._bends:
                rows = model.decoder.weight[own] - model.decoder.weight
                self._bends[steps, own] = self.box.bend(
                    model.encoder.weight, self.response(steps)[1], self.reach_after(steps), rows, self.curvature
                )
            found.append(self._bends[steps, own])
        return torch.stack(found)

    def gain(self, batch: Batch) -> Tensor:
        """(batch, d_model, 1): max over frequencies of abs(K^_h)^2, times (sum_d abs(E_hd) w_d)^2."""
        inward = self.op.model.encoder.weight.abs() @ self.box.width
        for steps in set(batch.lengths.tolist()) - self._gains.keys():
            self._gains[steps] = (spectral_gain(self.response(steps)[1]).amax(-1) * inward**2 * (1 + ROUNDING))[:, None]
        return torch.stack([self._gains[steps] for steps in batch.lengths.tolist()])

    def reach_after(self, length: int) -> Tensor:
        """How far a box of radius 1 moves z_h(t) of a case of this length, (d_model, length)."""
        if length not in self._reaches:
            self._reaches[length] = self.box.reach(self.op.model.encoder.weight, self.response(length)[0])
        return self._reaches[length]

    def response(self, length: int) -> tuple[Tensor, Tensor]:
        """Response of the whole pre-activation (d_model, length), and its spectrum."""
        if length not in self._responses:
            response = diagonal.kernel(self.op.system, length, skip=True)
            self._responses[length] = response, diagonal.spectrum(response)
        return self._responses[length]


@dataclass(frozen=True)
class Robustness:
    """Bounds of the margins over every class, (batch, n_classes) each; over the decided class itself the margin is inf.

    Attributes
    ----------
    decided : Tensor, (batch,)
    margin, slopes, bend : Tensor
        The margin less what rounding may have added to it, and what a box takes from it to first and to second order.
    allowance : Tensor
        What rounding may have added.
    limit : Tensor, (batch,)
        Radius up to which `bend` holds; nothing is certified beyond.
    gradient : Tensor, (batch, n_classes, d_input, length)
        Of the logits in the box's coordinates.
    """

    decided: Tensor
    margin: Tensor
    slopes: Tensor
    bend: Tensor
    allowance: Tensor
    limit: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, setting: Setting, batch: Batch) -> "Robustness":
        """One transform of the readout's slopes, and one inverse per class and channel."""
        W = setting.op.model.decoder.weight
        decided = batch.logits.argmax(-1)
        gradient = class_gradients(setting, batch, setting.readout.derivative(batch.z, 1))
        sizes = (batch.pool[:, None] * _size(setting.readout, batch.z)).sum(-1)
        rows = (W[decided][:, None] - W).abs()
        allowance = ROUNDING * ((rows * sizes[:, None]).sum(-1) + batch.logits.abs().sum(-1, keepdim=True))
        margin = batch.logits.gather(1, decided[:, None]) - batch.logits - allowance
        margin = margin.scatter(1, decided[:, None], math.inf)
        slopes, bend = steepness(gradient, decided), setting.bend(batch, decided)
        return cls(decided, margin, slopes, bend, allowance, setting.limit(batch), gradient)

    def lowest(self, radius: float) -> Tensor:
        """Bound from below on the margins in the box, (batch, n_classes)."""
        found = self.margin - radius * self.slopes - radius * radius * self.bend
        return torch.where((radius > self.limit)[:, None] & self.margin.isfinite(), -math.inf, found)

    def radius(self) -> Tensor:
        """Largest radius at which no rival's bound is negative, (batch,); inf where nothing moves the margin."""
        return torch.minimum(_root(self.margin, self.slopes, self.bend).amin(-1), self.limit)


def _size(readout: Activation, z: Tensor) -> Tensor:
    """Of the terms that make up g(z): what its rounding is measured by."""
    return z.abs() if readout.polynomial is None else horner(readout.polynomial.abs(), z.abs())


def _root(margin: Tensor, slopes: Tensor, bend: Tensor) -> Tensor:
    """Largest r with margin - r slopes - r^2 bend >= 0: 0 for lost or undefined margins, inf for infinite ones and where nothing moves."""
    kept = torch.where(margin.isinf(), 0.0, margin.nan_to_num(nan=0.0)).clamp(min=0)
    denominator = slopes + torch.sqrt(slopes**2 + 4 * bend * kept)
    root = torch.where(denominator > 0, 2 * kept / denominator.clamp(min=1e-300), math.inf)
    return (
        root.nan_to_num(nan=0.0, posinf=math.inf)
        .masked_fill(margin == math.inf, math.inf)
        .masked_fill(~(margin > 0), 0.0)
    )


def class_gradients(setting: Setting, batch: Batch, slope: Tensor) -> Tensor:
    """Gradient of sum_h W_ch sum_t p(t) f(z_h(t)) in the box's coordinates, slope = f'(z): (batch, n_classes, d_input, length)."""
    model = setting.op.model
    length, d_input, n_classes = batch.x.shape[-1], model.config.d_input, model.config.n_classes
    pulled = diagonal.spectrum(batch.pool[:, None] * slope) * setting.response(length)[1].conj()
    inward = (model.encoder.weight * setting.box.width).T  # (d_input, d_model)
    weights = (model.decoder.weight[:, None] * inward).flatten(0, 1)  # (n_classes d_input, d_model)
    mixed = weights @ torch.view_as_real(pulled).flatten(-2)
    spectra = torch.view_as_complex(mixed.unflatten(-1, (-1, 2)))
    gradient = torch.fft.irfft(spectra, n=diagonal.fft_length(length))[..., :length]
    return setting.box.centre(gradient.unflatten(1, (n_classes, d_input)), batch.mask)


def steepness(gradient: Tensor, decided: Tensor) -> Tensor:
    """Sums over channels and steps of the absolute gradient of each margin: (batch, n_classes)."""
    own = gradient[torch.arange(len(decided)), decided]
    sums = [(own - gradient[:, rival]).abs().sum((1, 2)) for rival in range(gradient.shape[1])]
    return torch.stack(sums, dim=-1) * (1 + ROUNDING)


def truncated(
    setting: Setting, polynomials: Polynomials, batch: Batch, robust: Robustness, radii: list[float]
) -> dict[str, Tensor]:
    """Over the rivals, the smallest lower bound on M_K and the largest bound on abs(M - M_K): (order, batch, radius) each.

    `truncated_radius` (order, batch) is how far the order is certified to decide as the model, as the radii show: curve and sup at one of
    them hold in every smaller box, curve / r^2 as well, since sups grow with the box, so that the bounds are quadratic in r up to there.
    """
    W = setting.op.model.decoder.weight
    cuts, rows = _Cuts.of(setting, polynomials, batch, robust), (W[robust.decided][:, None] - W).abs()
    own = torch.nn.functional.one_hot(robust.decided, len(W)).bool()[:, None]
    lost, lost_slope = _over_features(rows, cuts.lost), _over_features(rows, cuts.lost_slope)
    allowance, bend = robust.allowance[:, None], robust.bend[:, None]
    margin, slopes = cuts.margin - lost - allowance, cuts.slopes + lost_slope
    lowest, gaps, held = [], [], torch.zeros(lost.shape[:2], dtype=lost.dtype)
    for radius in radii:
        sup, curve = (_over_features(rows, values) for values in _left_over(polynomials.tables, cuts, radius))
        sup = sup + lost + allowance
        gap = torch.minimum(sup, cuts.gap + lost + allowance + radius * (cuts.gap_slopes + lost_slope) + curve)
        direct = margin - radius * slopes - radius * radius * bend - curve
        low = torch.maximum(direct, robust.lowest(radius)[:, None] - sup)
        # A feature that a margin does not read times an infinite bound is NaN: no bound, as the infinite one.
        lowest.append(low.nan_to_num(nan=-math.inf).masked_fill(own, math.inf).amin(-1))
        gaps.append(gap.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(own, 0.0).amax(-1))
        if radius > 0:
            root = _root(margin, slopes, bend + curve / radius**2)
            root = torch.maximum(root, _root(robust.margin[:, None] - sup, robust.slopes[:, None], bend))
            held = torch.maximum(held, root.masked_fill(own, math.inf).amin(-1).clamp(max=radius))
    return {
        "truncated_margin_lower_bound": torch.stack(lowest, dim=-1).transpose(0, 1),
        "remainder_bound": torch.stack(gaps, dim=-1).transpose(0, 1),
        "truncated_radius": torch.minimum(held, robust.radius()[:, None]).T,
    }


def _over_features(rows: Tensor, values: Tensor) -> Tensor:
    """sum_h rows (batch, n_classes, d_model) values (batch, d_model, n_orders): (batch, n_orders, n_classes)."""
    return torch.einsum("bch,bhk->bkc", rows, values)


@dataclass(frozen=True)
class _Cuts:
    """What holds for every radius.

    margin, slopes : (batch, n_orders, n_classes), of the cut operators at x0; gap, gap_slopes: the same of what they leave, absolute
    lost, lost_slope : (batch, d_model, n_orders), the rounding of the polynomials' means and of what their slopes add per radius
    low, high, width : (batch, d_model, n), pre-activations of runs of steps and how far a box of radius 1 moves them
    weight : (batch, n), the runs' shares of the mean
    gain : (batch, d_model, 1), the largest abs(K^_h)^2 with what enters the feature
    """

    margin: Tensor
    slopes: Tensor
    gap: Tensor
    gap_slopes: Tensor
    lost: Tensor
    lost_slope: Tensor
    low: Tensor
    high: Tensor
    width: Tensor
    weight: Tensor
    gain: Tensor

    @classmethod
    def of(cls, setting: Setting, polynomials: Polynomials, batch: Batch, robust: Robustness) -> "_Cuts":
        model, tables, own = setting.op.model, polynomials.tables, robust.decided[:, None]
        whole = batch.logits.gather(1, own) - batch.logits
        found = []
        for p, slope in derivatives(polynomials.series, batch.z, tables.orders, 1):
            logits = (batch.pool[:, None] * p).sum(-1) @ model.decoder.weight.T + model.decoder.bias
            margin, gradient = logits.gather(1, own) - logits, class_gradients(setting, batch, slope)
            steep, left = (steepness(g, robust.decided) for g in (gradient, robust.gradient - gradient))
            found.append((margin, steep, (whole - margin).abs(), left))
        margins, slopes, gaps, gap_slopes = (torch.stack(values, dim=1) for values in zip(*found, strict=True))
        low, high, width, weight = _runs(setting, batch)
        lost, lost_slope = tables.rounding(low, high)
        lost, lost_slope = _mean(lost, weight), _mean(lost_slope * width[..., None], weight)
        gain = setting.gain(batch)
        return cls(margins, slopes, gaps, gap_slopes, lost, lost_slope, low, high, width, weight, gain)


def _left_over(tables: Remainders, cuts: _Cuts, radius: float) -> tuple[Tensor, Tensor]:
    """Per feature and order, the mean sup of abs(E_K), and a bound on the mean of its second-order part: (batch, d_model, n_orders)."""
    moved = radius * cuts.width + 1e-12 * (
        1 + torch.maximum(cuts.low.abs(), cuts.high.abs())
    )  # z itself carries rounding
    sup, bend = tables.bound(cuts.low - moved, cuts.high + moved)
    locally = _mean(bend * (moved * moved)[..., None], cuts.weight) / 2
    jointly = bend.amax(-2) * cuts.gain * (radius * radius / 2)
    return _mean(sup, cuts.weight), torch.minimum(locally, jointly)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bhnk,bn->bhk", values, weight)


def _runs(setting: Setting, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Smallest and largest pre-activation and widest reach of every run of steps (batch, d_model, n), and its weight (batch, n)."""
    size, length = setting.run, batch.z.shape[-1]
    inside = batch.mask[:, None] > 0
    z = torch.where(inside, batch.z, batch.z[..., :1])  # padding stands where the case itself has been
    reach = torch.where(inside, setting.reach(batch), 0.0)
    weight = torch.nn.functional.pad(batch.pool, (0, -length % size)).unflatten(-1, (-1, size)).sum(-1)
    z, reach = (torch.cat((v, v[..., -1:].expand(*v.shape[:-1], -length % size)), dim=-1) for v in (z, reach))
    z, reach = z.unflatten(-1, (-1, size)), reach.unflatten(-1, (-1, size))
    return z.amin(-1), z.amax(-1), reach.amax(-1), weight


def flipped(setting: Setting, batch: Batch, robust: Robustness) -> Tensor:
    """Smallest radius at which a step against the gradient was seen to flip the decision, (batch,); inf where it never was.

    Pre-activations are affine along the step, so every try costs a readout and no convolution.
    """
    model, length = setting.op.model, batch.x.shape[-1]
    ratio = torch.where(robust.margin.isinf(), math.inf, robust.margin / robust.slopes.clamp(min=1e-300))
    first, rival = ratio.min(-1)
    rows = torch.arange(len(first))
    step = (robust.gradient[rows, rival] - robust.gradient[rows, robust.decided]).sign()
    inward = setting.box.centre(step, batch.mask) * setting.box.width[:, None]
    spectra = torch.einsum("hd,bdf->bhf", batch.encoder.to(torch.complex128), diagonal.spectrum(inward))
    moved = torch.fft.irfft(spectra * setting.response(length)[1], n=diagonal.fft_length(length))[..., :length]
    found, radius = torch.full_like(first, math.inf), first.clamp(min=0)
    start = robust.margin[rows, rival].clamp(min=0)
    for _ in range(TRIES):
        activated = (batch.pool[:, None] * setting.readout.value(batch.z + radius[:, None, None] * moved)).sum(-1)
        logits = activated @ model.decoder.weight.T + model.decoder.bias
        lead = logits.gather(1, robust.decided[:, None]) - logits
        left = lead.masked_fill(robust.margin.isinf(), math.inf).amin(-1)
        found = torch.where(left <= 0, torch.minimum(found, radius), found)
        # Where the chord from radius 0 crosses zero, a little beyond it, at most twice as far.
        chord = radius * (start / (start - left).clamp(min=1e-300)).clamp(max=2)
        radius = torch.where(left < start, 1.002 * chord, 2 * radius)
    return found
