r"""Features of a layer as rings, before and after training, and which past their sites hold.

Rates are those of the steps a model takes: its poles with zero-order hold, log(a) / dt with the bilinear rule.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4DLayer
from oplens.operators import diagonal, travel
from oplens.operators.initialisation import initial_poles
from oplens.operators.ring import Ring, analytic_half, basis, build_ring, site_weights
from oplens.operators.trainable import initial_ring_poles

PEAK_STEPS = (
    2**14
)  # a longer revolution is not followed step by step: the envelope (site, step) would take over 16 MB per feature


@dataclass(frozen=True)
class LayerRings:
    """Rings of some features of a layer.

    Parameters
    ----------
    system : DiagonalSystem
        Of these features, modes as stored.
    ring : Ring
        In model time; rates are those of the steps taken.
    stepped : Ring
        The same waves per step, angles not wrapped, with what a step of input adds to each.
    weights : Tensor, (n_features, N)
        z = sum_j weights_j r_j + D u.
    poles : Tensor, (n_features, P)
        Continuous-time poles, as stored.
    dt : Tensor, (n_features,)
    aliased : Tensor, (n_features, P) bool
        By wavenumber: turns by more than pi in a step of zero-order hold.
    """

    system: diagonal.DiagonalSystem
    ring: Ring
    stepped: Ring
    weights: Tensor
    poles: Tensor
    dt: Tensor
    aliased: Tensor


def layer_rings(layer: S4DLayer, features: Sequence[int], ordering: str, poles: Tensor | None = None) -> LayerRings:
    """Rings of a layer's features; `poles` (P,) take the place of the layer's own, its steps and output weights staying."""
    with torch.no_grad():
        own, dt = layer.system(), layer.dt()[list(features)]
        chosen = layer.poles()[list(features)]
        chosen = chosen if poles is None else poles.to(chosen.dtype).expand_as(chosen).contiguous()
        system = diagonal.discretise(
            chosen, own.C[list(features)], own.D[list(features)], dt, method=layer.discretisation
        )
    zoh = layer.discretisation == "zoh"
    ring = build_ring(chosen if zoh else system.log_a / dt[:, None], ordering)
    entering = analytic_half(ring, system.b[None, ..., None])[0, ..., 0]  # one step of input, on the sites
    inputs = entering @ basis(ring.n_modes)[:, : ring.n_modes].conj()
    stepped = dataclasses.replace(ring, rates=ring.rates * dt[:, None], inputs=inputs, unit="step")
    aliased = stepped.rates.imag.abs() > math.pi if zoh else torch.zeros(ring.rates.shape, dtype=torch.bool)
    return LayerRings(system, ring, stepped, site_weights(ring, system.C), chosen, dt, aliased)


def untrained_poles(config: S4DConfig) -> Tensor:
    """Poles (P,) complex128 that every feature of a model starts from, as stored."""
    if config.coupling is None:
        sigma, omega = initial_poles(config.initialisation, config.d_state)
        poles = torch.complex(-sigma.double(), omega.double())
    else:
        poles = initial_ring_poles(config.initialisation, config.d_state, config.coupling)[0]
    phase = config.phase_delay or 0.0
    return poles * complex(math.cos(phase), -math.sin(phase))


def past(stepped: Ring) -> dict[str, Tensor]:
    """Which past a site holds, in steps, feature by feature; NaN where nothing travels (one mode, or no slope of frequency).

    Parameters
    ----------
    stepped : Ring
        Per step.

    Returns
    -------
    dict of Tensor
        `velocity` (sites per step, negative towards smaller j), `resolution` (steps per site), `revolution` (steps), `earlier` (energy
        that an impulse has left after one), `agreement` and `miss` (correlation and largest difference of the two lags), all
        (n_features,); `lag` (as predicted) and `peak_lag` (of a measured impulse) (n_features, N). The first and the last site passed
        are not compared: there what enters outshines what has been around.

    Notes
    -----
    Accuracy: *measured*. Cost: O(N P revolution) per feature for the impulse, which longer revolutions than 16384 steps go without.
    """
    count, sites = stepped.rates.shape[0], stepped.n_sites
    names = ("velocity", "revolution", "resolution", "earlier", "agreement", "miss")
    found = {name: torch.full((count,), math.nan, dtype=torch.float64) for name in names}
    found |= {name: torch.full((count, sites), math.nan, dtype=torch.float64) for name in ("lag", "peak_lag")}
    velocity = travel.speed(stepped)
    for feature in velocity.nonzero().flatten().tolist():
        one = slice(feature, feature + 1)
        fields = {name: getattr(stepped, name)[one] for name in ("rates", "inputs", "order", "conjugated")}
        own = dataclasses.replace(stepped, **fields)
        speed = velocity[feature].item()
        revolution = sites / abs(speed)
        lag = (-math.copysign(1, speed) * torch.arange(0, -sites, -1) % sites) / abs(speed)
        weight = own.inputs[0].abs() ** 2
        left = (weight * torch.exp(2 * own.rates[0].real * revolution)).sum() / weight.sum()
        values = {
            "velocity": speed,
            "revolution": revolution,
            "resolution": 1 / abs(speed),
            "earlier": left,
            "lag": lag,
        }
        if math.ceil(revolution) <= PEAK_STEPS:
            peaks = travel.peak_lags(own, math.ceil(revolution))[0].double()
            inner = lag.argsort()[1:-1]
            values["peak_lag"] = peaks
            if sites > 4:
                values["miss"] = (lag - peaks)[inner].abs().max()
                pair = torch.stack((lag[inner], peaks[inner]))
                values["agreement"] = torch.corrcoef(pair)[0, 1] if pair[1].std() > 0 else math.nan
        for name, value in values.items():
            found[name][feature] = torch.as_tensor(value, dtype=torch.float64)
    return found
