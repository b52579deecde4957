r"""The ring as coupled phase oscillators.

With complex phases psi_j, r+_j = exp(i psi_j) turns dr+/dt = W r+ + beta+ u into

    dpsi_j/dt = -i sum_k W_jk exp(i (psi_k - psi_j)) - i beta+_j u exp(-i psi_j)

Re psi is the phase of site j and exp(-Im psi) its amplitude. The equations are the S4D state exactly, but phases exist only where
r+ is not 0: a state that starts (or passes) there is singular. (The real r would be so at every change of sign.)
The input enters through beta+ = F[:, :P] 1, the analytic half of the profile beta = 2 Re beta+ that sits on site 0 alone: with beta in
its place r+ would leave the span of the P stored wavenumbers (the state, its projection on them, stays the same).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.ring import Ring, analytic_injection, coupling, skew_circulant

SINGULAR = 1e-12  # of the largest site: what F s leaves by rounding where the sum is 0


@dataclass(frozen=True)
class Oscillators:
    """Coupling W (d_model, N, N) real and input profile beta+ (d_model, N) complex, per unit model time."""

    W: Tensor
    beta: Tensor

    def rates(self, psi: Tensor, u: Tensor) -> Tensor:
        """Right-hand side dpsi/dt (d_model, N) of phases psi (d_model, N) complex at input u (d_model,) real.

        Notes
        -----
        Accuracy: *exact*. Only differences of phases are exponentiated, so a decayed ring does not underflow. Cost: O(d_model N^2).
        """
        differences = psi[:, None, :] - psi[:, :, None]
        pulled = (self.W * torch.exp(1j * differences)).sum(-1)
        return -1j * (pulled + self.beta * u[:, None] * torch.exp(-1j * psi))


def build_oscillators(ring: Ring) -> Oscillators:
    """Oscillators of a ring in model time; between two steps the model holds its input constant.

    A delayed ring (:func:`oplens.operators.travel.delay`) is a ring like any other here: its W is that of exp(-i phi) lambda.

    Examples
    --------
    >>> from oplens.operators.ring import build_ring
    >>> oscillators = build_oscillators(build_ring(torch.tensor([[-0.5 + 3j]])))
    >>> psi = phases(torch.tensor([[1.0 + 0j, 1j]]))  # one wave: every site turns at i times lambda, whatever its amplitude
    >>> bool((oscillators.rates(psi, torch.zeros(1)) + 1j * (-0.5 + 3j)).abs().max() < 1e-14)
    True
    """
    if ring.unit != "model time":
        raise ArgumentError(
            "build_oscillators: oscillators run in model time, this ring is per step; use build_ring on the poles."
        )
    return Oscillators(skew_circulant(coupling(ring)), analytic_injection(ring))


def phases(r: Tensor) -> Tensor:
    """Complex phases psi = -i log r+ of an analytic half r+ (d_model, N), real part in (-pi, pi].

    Raises
    ------
    ArgumentError
        If a site is 0 to rounding: at rest, or after a single impulse in model time (which leaves every other site at 0).
    """
    if r.ndim != 2 or not r.is_complex():
        raise ArgumentError(
            f"phases: expected the analytic half r+ (d_model, N), complex, got {r.dtype} {tuple(r.shape)}."
        )
    size = r.abs()
    singular = ~(size > SINGULAR * size.amax(1, keepdim=True))
    if bool(singular.any()):
        feature, site = singular.nonzero()[0].tolist()
        raise ArgumentError(
            f"phases: a singular start, r+ is {size[feature, site].item():.3g} at site {site} of feature {feature} and 0 has no phase; "
            "start from a state that the recurrence has reached after some steps of input."
        )
    return -1j * torch.log(r.to(torch.complex128))


def analytic_sites(psi: Tensor) -> Tensor:
    """r+ = exp(i psi), the way back from :func:`phases`.

    Examples
    --------
    >>> r = torch.tensor([[1.0 + 2j, -3.0 + 0.5j]], dtype=torch.complex128)
    >>> bool((analytic_sites(phases(r)) - r).abs().max() < 1e-15)
    True
    """
    return torch.exp(1j * psi)
