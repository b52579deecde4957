r"""What rings are trained by: weights of any value, and every wave decays.

**Coupling.** A ring of N = 2P sites (:mod:`oplens.operators.ring`) whose sites hear others up to r sites away is

    W = S - Q Q^T - delta,     S[j, k] = coupling_(j - k) = -S[k, j],     Q[j, k] = damping_(j - k) for j - k = 0, ..., min(r, P - 1)

S antisymmetric, Q one-sided, both with the sign change at the seam. With theta_k = 2 pi (k + 1/2) / N the wave of wavenumber k has

    Re lambda_k = -delta - abs(sum_m damping_m exp(-i m theta_k))^2 <= -delta,     delta = exp(log_decay)
    Im lambda_k = -sum_d c_d coupling_d sin(d theta_k),     c_d = 2, but c_P = 1: both ways round lead to the opposite site

By the theorem of Fejer and Riesz a real even coupling of reach r is -Q Q^T - delta for some weights exactly if it makes waves of every
length decay by delta or more, whether or not they fit the ring. So nothing is lost against such rings, and the weights are free: a
self-coupling of -delta - sum abs(even weights) (Gershgorin) is safe as well, but reaches fewer rings and has a kink at weight 0, where
S4D-Lin starts. Of the rings of plain poles some stay out of reach: those that decay at the P lengths that fit and would grow between.

**Phase delay.** lambda becomes exp(-i phi) lambda, phi a learned share of the open interval in which every wave of the undelayed ring
keeps decaying (:func:`oplens.operators.travel.delay_limits`). The interval moves with the poles, and phi with it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.operators.initialisation import initial_poles
from oplens.operators.travel import delay_limits

# Share of the interval of phases kept free at either end: on its ends a wave would neither grow nor decay.
MARGIN = 1e-6


@dataclass(frozen=True)
class CouplingStart:
    """Where the weights of every ring of a layer start: `log_decay`, `damping` (min(r, P - 1) + 1,) and `coupling` (r,), in float64."""

    log_decay: float
    damping: NDArray[np.float64]
    coupling: NDArray[np.float64]


def coupled_poles(log_decay: Tensor, damping: Tensor, coupling: Tensor, n_modes: int) -> Tensor:
    """Poles of rings given by their weights; stored mode k is the wave of wavenumber k.

    Parameters
    ----------
    log_decay : Tensor, (d_model,)
    damping : Tensor, (d_model, min(r, P - 1) + 1)
    coupling : Tensor, (d_model, r)
        Odd part of the coupling to sites 1, ..., r away, per unit model time.
    n_modes : int
        P, at least r.

    Returns
    -------
    Tensor, (d_model, P) complex128

    Notes
    -----
    Accuracy: *exact*; no real part is above -exp(log_decay), rounding included. Cost: O(d_model P r).

    Examples
    --------
    >>> poles = coupled_poles(torch.zeros(1), torch.tensor([[1.0, 2.0]]), torch.tensor([[-3.0]]), 2)
    >>> poles.real.round(decimals=4).tolist(), poles.imag.round(decimals=4).tolist()
    ([[-8.8284, -3.1716]], [[4.2426, 4.2426]])
    """
    reach = max(damping.shape[1] - 1, coupling.shape[1])
    site = torch.arange(reach + 1, device=coupling.device)
    wave = 2 * torch.arange(n_modes, device=coupling.device) + 1
    # Reduced to one turn in integers: the angle of a large product would lose digits.
    angle = (site[:, None] * wave % (4 * n_modes)).double() * (math.pi / (2 * n_modes))
    cosine, sine = torch.cos(angle), torch.sin(angle)
    q = damping.double()
    decay = torch.exp(log_decay.double())[:, None] + (q @ cosine[: q.shape[1]]) ** 2 + (q @ sine[: q.shape[1]]) ** 2
    ways = torch.where(site[1:] == n_modes, 1.0, 2.0)[: coupling.shape[1]]
    return torch.complex(-decay, -(coupling.double() * ways) @ sine[1 : coupling.shape[1] + 1])


def initial_coupling(initialisation: str, d_state: int, reach: int) -> CouplingStart:
    """Weights of the ring of an initialisation (:mod:`oplens.operators.initialisation`), modes by increasing frequency, cut at `reach`.

    Notes
    -----
    Accuracy: *exact* at reach P; a shorter reach drops the weights beyond it, with what they did to the poles. At S4D-Lin and -Inv decay
    is that of the initialisation for any reach. Cost: O(d_state log d_state).

    Examples
    --------
    >>> start = initial_coupling("lin", 8, 2)
    >>> round(math.exp(start.log_decay) + float(start.damping @ start.damping), 6), start.coupling.round(4).tolist()
    (0.5, [-3.0785, 2.2214])
    """
    from scipy.fft import dct, dst

    sigma, omega = _by_frequency(initialisation, d_state)
    modes = d_state // 2
    even = dct(sigma, type=2)[: min(reach, modes - 1) + 1] / d_state
    size = 1 << (8 * d_state - 1).bit_length()
    spread = np.zeros(size)
    spread[: len(even)] = even
    spread[size - len(even) + 1 :] = even[:0:-1]
    decay = np.fft.fft(spread).real  # at wavelengths that need not fit the ring
    floor = decay.min() / 2
    return CouplingStart(
        math.log(floor), _factor(decay - floor)[: len(even)], np.asarray(-dst(omega, type=2)[:reach] / d_state)
    )


def initial_ring_poles(initialisation: str, d_state: int, reach: int | None) -> Tensor:
    """Poles (1, P) complex128 that a layer starts from before its delay: those of :func:`initial_coupling`, or plain ones without `reach`."""
    from scipy.fft import dct, dst

    sigma, omega = _by_frequency(initialisation, d_state)
    if reach is not None:
        even, odd = dct(sigma, type=2) / d_state, dst(omega, type=2) / d_state
        even[reach + 1 :], odd[reach:] = 0, 0
        sigma, omega = dct(even, type=3), dst(odd, type=3)
    return torch.from_numpy(-sigma + 1j * omega)[None]


def delayed_poles(poles: Tensor, position: Tensor) -> Tensor:
    """exp(-i phi) poles, (d_model, P), with phi = :func:`phase_delay`; all decay, whatever `position` (d_model,) is.

    Notes
    -----
    Accuracy: *exact*. Real parts are formed from the angle that is left to the imaginary axis and keep their digits, and their sign, where
    a wave hardly decays.

    Examples
    --------
    >>> poles = torch.tensor([[-0.5 + 0j, -0.5 + 100j]], dtype=torch.complex128)
    >>> delayed_poles(poles, torch.tensor([50.0])).real.max().item() < 0
    True
    """
    low, high = delay_limits(poles)
    share, rest = _shares(position)
    decay, frequency = -poles.real, poles.imag
    above = (torch.atan2(decay, frequency) - high[:, None]) + ((high - low) * rest)[:, None]
    below = (torch.atan2(decay, -frequency) + low[:, None]) + ((high - low) * share)[:, None]
    return poles.abs() * torch.complex(-torch.sin(torch.minimum(above, below)), torch.cos(above))


def phase_delay(poles: Tensor, position: Tensor) -> Tensor:
    """Phase delay phi (d_model,) in radians at `position` (any real numbers) between the limits of undelayed poles (d_model, P)."""
    low, high = delay_limits(poles)
    return low + (high - low) * _shares(position)[0]


def position_of(poles: Tensor, phase: float) -> Tensor | None:
    """Positions (d_model,) at which :func:`phase_delay` is `phase`, or None if that is not inside the limits of each feature.

    Examples
    --------
    >>> poles = torch.tensor([[-0.5 + 0j, -0.5 + 100j]], dtype=torch.complex128)
    >>> round(phase_delay(poles, position_of(poles, 0.004)).item(), 12), position_of(poles, 0.006)
    (0.004, None)
    """
    low, high = delay_limits(poles)
    share, rest = (phase - low) / (high - low) - MARGIN, (high - phase) / (high - low) - MARGIN
    if not bool((torch.minimum(share, rest) > 0).all()):
        return None
    return torch.log(share) - torch.log(rest)


def _shares(position: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the interval below and above phi; each keeps its digits where it is small."""
    position = position.double()
    return MARGIN + (1 - 2 * MARGIN) * torch.sigmoid(position), MARGIN + (1 - 2 * MARGIN) * torch.sigmoid(-position)


def _by_frequency(initialisation: str, d_state: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with torch.device("cpu"):  # a model may be built on the meta device, for its shapes alone
        sigma, omega = (values.double().numpy() for values in initial_poles(initialisation, d_state))
    order = np.argsort(np.abs(omega), kind="stable")
    return sigma[order], omega[order]


def _factor(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Real q of minimum phase with abs(sum_m q_m exp(-i m theta))^2 = power > 0 on a grid of one turn (spectral factorisation)."""
    cepstrum = np.fft.ifft(np.log(power)).real
    half = len(power) // 2
    cepstrum[0] /= 2
    cepstrum[half] /= 2
    cepstrum[half + 1 :] = 0
    factor: NDArray[np.float64] = np.fft.ifft(np.exp(np.fft.fft(cepstrum))).real
    return factor
