r"""What travels on a ring: dispersion, velocities, which past each site holds, and the phase delay a ring endures.

The wave of wavenumber k is exp(i (kappa_k j + omega_k t) - sigma_k t) at site j, kappa_k = 2 pi (k + 1/2) / N. Its phase moves at
-omega_k / kappa_k sites per unit time, an envelope at -(omega_{k+1} - omega_k) / (kappa_{k+1} - kappa_k): at S4D-Lin -P everywhere,
so the input, entering at site 0, passes site j after (N - j) / P units of time and is back after 2. Only the envelope abs(r+) keeps
its shape there: omega is linear in kappa, but not through the origin.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.diagonal import expm1_ratio
from oplens.operators.ring import Ring, basis


@dataclass(frozen=True)
class Dispersion:
    """Waves of each ring, by wavenumber.

    Parameters
    ----------
    wavenumber : Tensor, (P,)
        kappa_k, radians per site.
    frequency, decay : Tensor, (d_model, P)
        omega_k (radians) and sigma_k, per `unit`.
    phase_velocity : Tensor, (d_model, P)
        -omega_k / kappa_k, sites per `unit`.
    group_velocity : Tensor, (d_model, P - 1)
        Between neighbouring wavenumbers, sites per `unit`.
    unit : {"model time", "step"}
    """

    wavenumber: Tensor
    frequency: Tensor
    decay: Tensor
    phase_velocity: Tensor
    group_velocity: Tensor
    unit: str

    def per_step(self, dt: Tensor) -> "Dispersion":
        """The same per step of dt (d_model,) model time; frequencies are not wrapped."""
        if self.unit == "step":
            raise ArgumentError("Dispersion.per_step: these values are per step already.")
        names = ("frequency", "decay", "phase_velocity", "group_velocity")
        return dataclasses.replace(self, **{name: getattr(self, name) * dt[:, None] for name in names}, unit="step")


@dataclass(frozen=True)
class LagMap:
    """Which past a site holds, feature by feature.

    Parameters
    ----------
    lag : Tensor, (d_model, N)
        Steps since the input now passing site j entered, in the latest revolution; 0 at site 0.
    velocity : Tensor, (d_model,)
        Sites per step, negative towards smaller j.
    resolution : Tensor, (d_model,)
        Steps per site: inputs closer than this share a site.
    revolution : Tensor, (d_model,)
        Steps until an input is back at site 0.
    earlier : Tensor, (d_model,)
        Energy an impulse has left after one revolution, relative to its entry; what earlier revolutions lay over the latest.
    """

    lag: Tensor
    velocity: Tensor
    resolution: Tensor
    revolution: Tensor
    earlier: Tensor


def dispersion(ring: Ring) -> Dispersion:
    """Frequency, decay and velocities against wavenumber, in the ring's unit.

    Notes
    -----
    Accuracy: *exact* for each wave; a group velocity is the quotient over two neighbours. It depends on the ring's ordering.

    Examples
    --------
    >>> from oplens.operators.ring import build_ring
    >>> waves = dispersion(build_ring(-0.5 + 1j * math.pi * torch.arange(4, dtype=torch.float64)[None]))
    >>> waves.group_velocity.round(decimals=12).tolist()
    [[-4.0, -4.0, -4.0]]
    """
    spacing = 2 * math.pi / ring.n_sites
    wavenumber = spacing * (torch.arange(ring.n_modes, dtype=torch.float64) + 0.5)
    omega = ring.rates.imag
    return Dispersion(
        wavenumber, omega, -ring.rates.real, -omega / wavenumber, -omega.diff(dim=1) / spacing, unit=ring.unit
    )


def speed(ring: Ring) -> Tensor:
    """Group velocity of an envelope of all waves, (d_model,), sites per the ring's unit: minus the least-squares slope of omega over kappa.

    After time t the wave of wavenumber k has the phase kappa_k j + omega_k t at site j. An impulse excites all waves alike and is
    largest where their phases differ least: where kappa_k j is, up to a constant, the best fit to -omega_k t. (The median of the group
    velocities is noisy after training: on a model of slow potentials it missed measured peaks by up to 82 steps of 1500, this by 4.)
    0 for a ring of one mode.

    Examples
    --------
    >>> from oplens.operators.ring import build_ring
    >>> speed(build_ring(-0.5 + 1j * math.pi * torch.arange(4, dtype=torch.float64)[None])).round(decimals=12).tolist()
    [-4.0]
    """
    centred = torch.arange(ring.n_modes, dtype=torch.float64) - (ring.n_modes - 1) / 2
    spacing = 2 * math.pi / ring.n_sites
    return -(ring.rates.imag @ centred) / (spacing * (centred**2).sum().clamp(min=0.5))


def lag_map(ring: Ring, dt: Tensor | None = None) -> LagMap:
    r"""Which past each site holds: site j of N the input (N - j) / abs(velocity) steps ago (velocity < 0), by :func:`speed`.

    At S4D-Lin the velocity is -P dt: site j holds the input (N - j) / (P dt) steps ago, a revolution takes 2 / dt steps and leaves
    e^-2 of the energy.

    Parameters
    ----------
    ring : Ring
    dt : Tensor, (d_model,)
        Model time per step; omitted for a ring per step.

    Raises
    ------
    ArgumentError
        If nothing travels: one mode only, or a velocity of 0 (all poles real, as at S4D-Real).

    Notes
    -----
    Accuracy: a reading, not an identity. It holds where omega is linear in k; compare :func:`peak_lags`. `earlier` is *exact*.

    Examples
    --------
    >>> from oplens.operators.ring import build_ring
    >>> ring = build_ring(-0.5 + 1j * math.pi * torch.arange(2, dtype=torch.float64)[None])
    >>> past = lag_map(ring, torch.tensor([0.1], dtype=torch.float64))
    >>> past.lag.round(decimals=9).tolist(), round(past.earlier.item(), 6)
    ([[0.0, 15.0, 10.0, 5.0]], 0.135335)
    """
    step = _step("lag_map", ring, dt)
    if ring.n_modes < 2:
        raise ArgumentError(
            "lag_map: a ring of one mode has no group velocity; a map of the past needs two modes or more."
        )
    velocity = speed(ring) * step
    still = velocity == 0
    if bool(still.any()):
        raise ArgumentError(
            f"lag_map: nothing travels on the ring of feature {int(still.nonzero()[0])} (its group velocity is 0, as with real "
            "poles only), so its sites do not hold one moment of the past each."
        )
    distance = -torch.sign(velocity)[:, None] * torch.arange(0, -ring.n_sites, -1) % ring.n_sites
    resolution = 1 / velocity.abs()
    revolution = ring.n_sites * resolution
    weight = ring.inputs.abs() ** 2
    left = torch.exp(2 * ring.rates.real * (step * revolution)[:, None])
    return LagMap(
        distance * resolution[:, None],
        velocity,
        resolution,
        revolution,
        (weight * left).sum(1) / weight.sum(1),
    )


def peak_lags(ring: Ring, length: int, dt: Tensor | None = None) -> Tensor:
    """Lag (d_model, N) < length at which the envelope abs(r+_j) of a unit impulse's response is largest: *measured*.

    The impulse lasts one step (held constant in model time). Beside site 0 an input may be larger as it enters than after its way
    around: r+ is fed there too. Cost: O(d_model N P length).
    """
    if length < 1:
        raise ArgumentError(f"peak_lags(length={length}): the response needs at least one step.")
    step = _step("peak_lags", ring, dt)[:, None]
    inputs = ring.inputs if ring.unit == "step" else step * expm1_ratio(ring.rates * step)
    lags = torch.arange(length, dtype=torch.float64)
    states = inputs[..., None] * torch.exp((ring.rates * step)[..., None] * lags)
    return (basis(ring.n_modes)[:, : ring.n_modes] @ states).abs().argmax(-1)


def delay_limits(poles: Tensor) -> tuple[Tensor, Tensor]:
    """Open interval of phase delays phi (d_model,), (d_model,) in radians at which exp(-i phi) poles all decay; empty where one grows.

    For phi > 0 the limit is tan phi = min sigma / omega over omega > 0.

    Examples
    --------
    >>> low, high = delay_limits(torch.tensor([[-0.5 + 0j, -0.5 + 100j]]))
    >>> round(low.item(), 4), round(high.item(), 4)
    (-1.5708, 0.005)
    """
    decay, frequency = -poles.real, poles.imag
    angle = torch.atan2(frequency, decay)
    # Of a wave that decays the angle left to the axis itself: as a difference from pi/2 it loses its digits where a wave hardly decays.
    above = torch.where(decay > 0, torch.atan2(decay, frequency), math.pi / 2 - angle)
    below = torch.where(decay > 0, torch.atan2(decay, -frequency), math.pi / 2 + angle)
    return -below.amin(1), above.amin(1)


def delay(ring: Ring, phase: float) -> Ring:
    r"""Ring whose sites hear each other with a phase delay: r+' = exp(-i phi) W r+ + beta+ u, so that lambda becomes exp(-i phi) lambda.

    Raises
    ------
    ArgumentError
        If a wave would grow (the message gives the largest Re lambda and the limit), or the ring is per step.

    Examples
    --------
    >>> from oplens.operators.ring import build_ring
    >>> ring = build_ring(torch.tensor([[-0.5 + 0j, -0.5 + 100j]]))
    >>> round(delay(ring, 0.004).rates.real.max().item(), 3)
    -0.1
    >>> try:
    ...     delay(ring, 0.01)
    ... except ArgumentError as error:
    ...     print(str(error).split(" (")[0])
    delay(phase=0.01): the ring is unstable, its largest Re lambda is 0.500008
    """
    if ring.unit != "model time":
        raise ArgumentError(
            "delay: a phase delay turns the poles of a ring in model time; build one, delay it, then discretise."
        )
    if not math.isfinite(phase):
        raise ArgumentError(f"delay(phase={phase}): give a finite angle in radians.")
    rates = ring.rates * complex(math.cos(phase), -math.sin(phase))
    largest = rates.real.amax(1)
    if bool((largest > 0).any()):
        low, high = (limit.tolist() for limit in delay_limits(ring.rates))
        between = f"phases between {max(low):.6g} and {min(high):.6g} keep every wave decaying"
        if max(low) >= min(high):
            between = "no phase makes every wave decay"
        raise ArgumentError(
            f"delay(phase={phase:g}): the ring is unstable, its largest Re lambda is {largest.max().item():.6g} "
            f"(feature {int(largest.argmax())}); {between}."
        )
    return dataclasses.replace(ring, rates=rates)


def _step(caller: str, ring: Ring, dt: Tensor | None) -> Tensor:
    """Ring time per step, (d_model,)."""
    features = ring.rates.shape[0]
    if ring.unit == "step":
        if dt is not None:
            raise ArgumentError(f"{caller}: this ring is per step already; leave dt out.")
        return torch.ones(features, dtype=torch.float64)
    if dt is None:
        raise ArgumentError(f"{caller}: a ring in model time needs dt, the model time per step of each feature.")
    if dt.shape != (features,) or not bool((dt > 0).all() & torch.isfinite(dt).all()):
        raise ArgumentError(
            f"{caller}: expected {features} positive steps dt, one per feature, got {tuple(dt.shape)}: {dt.tolist()}."
        )
    return dt.double()
