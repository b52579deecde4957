r"""The operator cut at order 1 or 2 as a function of the preprocessed input: value, gradient and second derivative of a target.

    T(x) = sum_h w_h mean_t p_h(z_h(t)) + constant,        z = K~ * (E x) + z_bias,      w = direction W
    b = dT/dx = A' [w p'(z) / n],    Q = d2T/dx2 = A' diag(w p'' / n) A,     A_h = (convolution with K~_h) E_h

p is the expansion's polynomial of that degree about the training distribution, so b of order 1 and Q of order 2 are the same for every
case of a length. Plain architecture. Also here: a bound on the curvature of the model itself,

    T(x + delta) <= T(x) + norm(b) norm(delta) + c norm(delta)^2 / 2,
    c = sup_omega lambda_max( sum_h k_h abs(K^_h(omega))^2 E_h E_h' ) / n,   k_h = w_h max g'' or abs(w_h) max(-g'')

(of GELU and of polynomials of degree 2; where g'' has no bound, a bound that grows with norm(delta) takes its place)
because a convolution cut to n steps is no larger than its transfer function. The sup is taken over a grid and enlarged by what a
trigonometric polynomial can do between its points (Ehlich and Zeller 1964).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oplens.explanation.steps import readout_of
from oplens.explanation.training import BATCH_BYTES
from oplens.operators import diagonal
from oplens.operators.mixing import mixed_convolution
from oplens.operators.polynomial import Expansion, extremes
from oplens.operators.polynomial.polynomials import derived

if TYPE_CHECKING:
    from oplens.explanation.operator import ExplicitOperator

UPWARD = 2 / math.sqrt(2 * math.pi)  # max of g'' of erf-GELU, (2 - z^2) phi(z), at 0
DOWNWARD = 2 * math.exp(-2) / math.sqrt(2 * math.pi)  # max of -g'', at z^2 = 4
OVERSAMPLED = 8
DOUBLINGS = 60
SMALL = (
    16  # channels up to which the largest eigenvalue is found at every frequency; beyond, the largest row sum bounds it
)


@dataclass(frozen=True)
class Truncation:
    """The operator cut at `order`, for cases of `steps` steps."""

    op: "ExplicitOperator"
    order: int
    steps: int

    def value(self, x: Tensor, direction: Tensor) -> Tensor:
        """T (batch,) at preprocessed x (batch, d_input, steps) for directions (batch, n_classes)."""
        pooled = torch.cat([self._polynomial.evaluate(self._z(part)).mean(-1) for part in x.split(self._block)])
        decoder = self.op.model.decoder
        return (direction * (pooled @ decoder.weight.T + decoder.bias)).sum(-1)

    def gradient(self, x: Tensor, direction: Tensor) -> Tensor:
        """B (batch, d_input * steps)."""
        p, w = self._polynomial, direction @ self.op.model.decoder.weight
        c = p.coefficients  # H_1 = w and H_2 = w^2 - variance: c_1 + 2 c_2 w is the slope in either basis
        found = []
        for part, weight in zip(x.split(self._block), w.split(self._block), strict=True):
            slope = c[:, 1, None].expand(len(part), -1, self.steps)
            if self.order == 2:
                slope = slope + 2 * c[:, 2, None] * (self._z(part) - p.centre[:, None])
            found.append(self._back(slope * weight[..., None] / self.steps))
        return torch.cat(found)

    def product(self, rows: Tensor, direction: Tensor) -> Tensor:
        """Rows (batch, d_input * steps) times Q of one direction (n_classes,); order 2."""
        bend = 2 * self._polynomial.coefficients[:, 2] * (direction @ self.op.model.decoder.weight) / self.steps
        found = []
        for part in rows.split(self._block):
            driven = mixed_convolution(
                part.unflatten(1, (-1, self.steps)), self.op.model.encoder.weight, self._response
            )
            found.append(self._back(driven * bend[:, None]))
        return torch.cat(found)

    def curvature(self, direction: Tensor, channels: Sequence[int] | None = None) -> float:
        """C of the module for changes of these channels (default: all): no second derivative of the model is larger at any input."""
        w = direction @ self.op.model.decoder.weight
        polynomial = readout_of(self.op.model).polynomial
        if polynomial is None:
            weight = torch.where(w > 0, UPWARD * w, -DOWNWARD * w)
        else:
            assert polynomial.shape[-1] <= 3, "g'' has no bound"
            weight = (w * derived(polynomial, 2)[:, 0]).clamp(min=0)
        size = torch.fft.rfft(self._response, n=OVERSAMPLED * self.steps).abs() ** 2
        E = self.op.model.encoder.weight
        E = E if channels is None else E[:, list(channels)]
        matrices = torch.einsum("hf,hd,he->fde", weight[:, None] * size, E, E)
        few = E.shape[1] <= SMALL
        largest = torch.linalg.eigvalsh(matrices)[:, -1].max() if few else matrices.abs().sum(-1).max()
        between = math.cos(math.pi / OVERSAMPLED)
        return float(largest) / between / self.steps * (1 + 1e-9)

    def lower_bound(
        self, x: Tensor, direction: Tensor, slope: Tensor, rise: Tensor, channels: Sequence[int] | None = None
    ) -> Tensor:
        """Norm (batch,) below which no change raises T of the model by `rise`, for a polynomial readout of any degree.

        Changes of norm r move z_h by at most r norm(K~_h) norm(E_h), which bounds g'' and with it what is added to slope r.
        """
        g = readout_of(self.op.model).polynomial
        assert g is not None
        E = self.op.model.encoder.weight
        inward = (E if channels is None else E[:, list(channels)]).norm(dim=-1)
        z = torch.cat([torch.stack((v.amin(-1), v.amax(-1))) for v in map(self._z, x.split(self._block))], dim=1)
        reach, w = inward * self._response.norm(dim=-1), direction @ self.op.model.decoder.weight
        gain = torch.fft.rfft(self._response, n=OVERSAMPLED * self.steps).abs().amax(-1) ** 2 * inward**2 / self.steps
        gain = gain / math.cos(math.pi / OVERSAMPLED) * (1 + 1e-9)

        def most(r: Tensor) -> Tensor:
            least, largest = extremes(derived(g, 2), z[0] - r[:, None] * reach, z[1] + r[:, None] * reach)
            bend = (torch.maximum(w * least, w * largest).clamp(min=0) * gain).sum(-1)
            return slope * r + bend * r * r / 2

        high = torch.ones_like(rise)
        for _ in range(DOUBLINGS):
            high = torch.where(most(high) < rise, 2 * high, high)
        unreachable = most(high) < rise
        low = torch.zeros_like(rise)
        for _ in range(DOUBLINGS):
            middle = (low + high) / 2
            below = most(middle) < rise
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return torch.where(unreachable, math.inf, low)

    def _back(self, weights: Tensor) -> Tensor:
        """A' of weights (batch, d_model, steps): (batch, d_input * steps)."""
        n = diagonal.fft_length(self.steps)
        mixed = torch.einsum(
            "hd,bhf->bdf",
            self.op.model.encoder.weight.to(torch.complex128),
            torch.fft.rfft(weights, n=n) * self._transfer.conj(),
        )
        return torch.fft.irfft(mixed, n=n)[..., : self.steps].flatten(1)

    def _z(self, x: Tensor) -> Tensor:
        driven = mixed_convolution(x, self.op.model.encoder.weight, self._response)
        return driven + self.op.model.encoder.bias[:, None] * self._response.cumsum(-1)

    @property
    def _block(self) -> int:
        return max(1, BATCH_BYTES // (8 * self.op.model.config.d_model * self.steps))

    @cached_property
    def _response(self) -> Tensor:
        return diagonal.kernel(self.op.system, self.steps, skip=True)

    @cached_property
    def _transfer(self) -> Tensor:
        return diagonal.spectrum(self._response)

    @cached_property
    def _polynomial(self) -> Expansion:
        assert self.op.expansion is not None
        return self.op.expansion.truncated(self.order)
