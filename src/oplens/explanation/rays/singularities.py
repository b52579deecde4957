r"""Where the power series of a model in a complex eps along x_0 + eps (x - x_0) ends.

GELU is entire. What is left are, at any step of any layer, the zeros of

    a LayerNorm's variance + epsilon (branch point of its square root)      and      1 + exp(-y) of a gate (pole of its sigmoid)

and the nearest of them is the radius of convergence (several could cancel in the pooled logits; that takes a coincidence). Two ways:

- :class:`Nearest` takes the zeros of the functions' own power series, cut at some degree: cheap, exact where the zero lies well inside the
  disc in which that series converges, and otherwise up to some percent too far out (gates crowd where a pre-norm's variance vanishes);
- :func:`disc_is_free` counts zeros inside a circle by the argument principle, with the model itself run at complex eps.
"""

import math

import numpy as np
import torch
from torch import Tensor

from oplens.models.s4d import S4D
from oplens.operators import diagonal, jets

NOWHERE = "none"
TURN = 1.0  # radians that a phase may turn in one step around the circle
FIRST_STEP, LAST_STEP = math.pi / 32, math.pi / 8192


class Nearest:
    """The nearest zero of the series seen so far, for every case of a batch, and where it lies."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths.tolist()
        self.radius, self.place = [math.inf] * len(lengths), [NOWHERE] * len(lengths)

    def norm(self, layer: int, variance: Tensor) -> None:
        """Zeros of variance + epsilon, a series (order, batch, length)."""
        for case, steps in enumerate(self.lengths):
            self._see(case, variance[:, case, :steps], f"LayerNorm of layer {layer}")

    def gate(self, layer: int, argument: Tensor) -> None:
        """Values i pi of a gate's argument, a series (order, batch, length, d_model).

        Its other poles, at 3 i pi and on, are farther from the real argument at eps = 0: no case was found in which one came first.
        """
        for case, steps in enumerate(self.lengths):
            series = argument[:, case, :steps].flatten(1).to(torch.complex128)
            series[0] -= 1j * math.pi
            self._see(case, series, f"gate of layer {layer}")

    def _see(self, case: int, series: Tensor, place: str) -> None:
        radius = jets.nearest_zero(series, self.radius[case])
        if radius < self.radius[case]:
            self.radius[case], self.place[case] = radius, place


def disc_is_free(model: S4D, start: Tensor, end: Tensor, radius: float) -> bool:
    """Whether no singularity lies at abs(eps) <= radius; also False where the phases turn too fast to be followed.

    Parameters
    ----------
    start, end : Tensor, (length, d_input)
        Preprocessed values of one case at eps = 0 and 1.
    radius : float

    Notes
    -----
    Claim: *measured*: every phase is followed along the upper half of the circle (the functions are real on the real line) in steps
    that turn none of them by more than one radian. A phase that has returned to 0 encloses no zero.
    Cost: about 40 passes at complex values, more where zeros are close.
    """
    phases = [torch.zeros((), dtype=torch.float64)] * (2 * model.config.n_layers)  # all are positive at real eps
    angle, step = 0.0, FIRST_STEP
    while angle < math.pi:
        step = min(step, math.pi - angle)
        turned, change = _phases(model, start, end, radius * np.exp(1j * (angle + step)), phases)
        if math.isnan(change):
            return False
        if change > TURN:
            step /= 2
            if step < LAST_STEP:
                return False
            continue
        phases, angle = turned, angle + step
        step *= 1.5 if change < TURN / 3 else 1.0
    return all(bool((phase.abs() < math.pi / 2).all()) for phase in phases)


def _phases(model: S4D, start: Tensor, end: Tensor, eps: complex, before: list[Tensor]) -> tuple[list[Tensor], float]:
    """Phases at a complex eps of every layer's variance and gate denominator, continued from `before`, and their largest change."""
    after: list[Tensor] = []
    hidden = _affine(start + eps * (end - start), model.encoder.weight, model.encoder.bias)
    for index in range(model.config.n_layers):
        u = _norm(model, index, hidden, before, after) if model.config.prenorm else hidden
        response = diagonal.kernel(model.layer(index).system(), len(u), skip=True)
        z = torch.complex(*(diagonal.convolve(part.T, response).T for part in (u.real, u.imag)))
        convolution = model.layer(index).convolution
        assert convolution.bias is not None
        mixed, gate = _affine(_gelu(z), convolution.weight[..., 0], convolution.bias).chunk(2, dim=-1)
        # 1 + exp(-y) = exp(-y) (1 + exp(y)): the form whose exponential is small.
        small = torch.exp(torch.where(gate.real < 0, gate, -gate))
        angle = torch.where(gate.real < 0, -gate.imag, 0.0) + torch.angle(1 + small)
        after.append(_continued(angle, before[len(after)]))
        hidden = hidden + mixed * torch.where(gate.real < 0, small, 1.0) / (1 + small)
        if not model.config.prenorm:
            hidden = _norm(model, index, hidden, before, after)
    changes = [float((new - old).abs().max()) for new, old in zip(after, before, strict=True)]
    return after, math.nan if any(map(math.isnan, changes)) else max(changes)


def _norm(model: S4D, index: int, hidden: Tensor, before: list[Tensor], after: list[Tensor]) -> Tensor:
    """LayerNorm of complex values on the branch of the square root that is positive at real eps."""
    norm = model.norm(index)
    centred = hidden - hidden.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1) + norm.eps
    phase = _continued(torch.angle(variance), before[len(after)])
    after.append(phase)
    scale = torch.polar(variance.abs().sqrt(), phase / 2)
    return centred / scale[..., None] * norm.weight + norm.bias


def _continued(angle: Tensor, before: Tensor) -> Tensor:
    """The angle plus the multiple of 2 pi that brings it nearest to the phase before."""
    return before + torch.remainder(angle - before + math.pi, 2 * math.pi) - math.pi


def _affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return values @ weight.T.to(values.dtype) + bias


def _gelu(z: Tensor) -> Tensor:
    """Erf-GELU of complex values, NaN where it leaves double precision."""
    from scipy.special import erf

    with np.errstate(all="ignore"):
        return z * (1 + torch.from_numpy(np.asarray(erf(z.numpy() / math.sqrt(2))))) / 2
