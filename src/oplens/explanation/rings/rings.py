r"""A layer's features as rings (design: :mod:`oplens.operators.ring`): what travels on them in given cases, and what training changed.

Per feature, with s the states that the layer runs through on its own input u,

    r+(t) = F[:, :P] s(t),    z(t) = sum_j w_j 2 Re r+_j(t) + D u(t)

so the picture of abs(r+) is the model itself: the second equation is evaluated in every call and compared with the model's own
convolution (`ring_residual`). Poles before training are those of the configured initialisation, taken with the trained step (its
initial value is random and not kept).
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts.coordinates import case_coords
from oplens.explanation.accounts.explain import check_memory
from oplens.explanation.parts import LayerWaves
from oplens.explanation.rings.layer_rings import LayerRings, layer_rings, past, untrained_poles
from oplens.explanation.steps import check_pooled
from oplens.explanation.training import check_channels
from oplens.operators import diagonal, travel
from oplens.operators.ring import ORDERINGS, analytic_half, signed_coupling

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

SHOWN = 3  # features of the default choice

_Variable = tuple[tuple[str, ...], Any, dict[str, str]]


def ring(
    op: "ExplicitOperator",
    X: Any,
    cases: Sequence[int] = (0,),
    features: Sequence[int] | None = None,
    layer: int = 0,
    ordering: str | None = None,
    *,
    every: int = 1,
    memory_limit: int = 2 * 2**30,
) -> "xr.Dataset":
    """States of some features as rings (operators.ring): what travels on them in some cases, and what training changed.

    Parameters
    ----------
    X
        As for `explain`.
    cases, features : sequence of int
        Without `features`: the three whose rings have the largest mean absolute share in these cases' decisions.
    layer : int
        Counted from the input; driven by its own input.
    ordering : {"frequency", "stored"}, optional
        Default: that of the configuration (`ring_ordering`).
    every : int
        Keep every n-th step.
    memory_limit : int
        Bytes; a larger result is refused before work starts.

    Returns
    -------
    xarray.Dataset
        `envelope` abs(r+) (case, feature, site, time), `drive`, coupling, dispersion before and after training, speed, lags, delay
        limits; `ring_residual` says by how much z read off the ring misses the model's. NaN speeds where nothing travels.

    Raises
    ------
    ArgumentError
        With a sentence, before work starts.

    Notes
    -----
    Accuracy: *exact*; speeds and lags are *measured*. Cost: O(cases features d_state^2 length) and one forward pass per case; default
    features also cost one LayerWaves account of these cases.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> X = np.random.default_rng(0).normal(size=(3, 1, 40))
    >>> ds = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=16)), X).ring(X, features=[0])
    >>> ds.envelope.dims, bool(ds.ring_residual.max() < 1e-12), round(float(ds.velocity[0] / (-8 * ds.dt[0])), 6)
    (('case', 'feature', 'site', 'time'), True, 1.0)
    """
    import xarray as xr

    data = as_sequences(X)
    check_channels(op.model, data, "ring")
    rows = _indices("cases", cases, data.n_cases, "there are cases")
    ordering = op.model.config.ring_ordering if ordering is None else ordering
    _check(op, layer, ordering, every)
    config, picked = op.model.config, data.select(rows)
    named = None if features is None else _indices("features", features, config.d_model, "a layer has features")
    length, count = int(picked.lengths.max()), min(SHOWN, config.d_model) if named is None else len(named)
    values = len(rows) * count * (config.d_state + 1) * -(-length // every)
    check_memory(values, memory_limit, "ring", "show fewer cases or features, or keep every n-th step with every=n")
    chosen, importance = _largest(op, picked, layer, count) if named is None else (named, None)
    rings = layer_rings(op.model.layer(layer), chosen, ordering)
    before = layer_rings(op.model.layer(layer), chosen, ordering, untrained_poles(config))
    found, logits = _trajectories(op, picked, rings, chosen, layer, every)
    variables = {**found, **_wave_variables(rings, before), **_site_variables(rings, before, config.sampling_rate)}
    delayed = op.model.layer(layer).phase_delay()[chosen].detach().numpy()
    words = "phase delay between sites that the model was trained with, part of its poles"
    variables["phase_delay"] = (("feature",), delayed, _text("rad", words, "exact"))
    rule = "as asked for"
    if importance is not None:
        which = "feature whose ring has" if count == 1 else f"{count} features whose rings have"
        rule = f"the {which} the largest mean absolute share (all waves together) in the decisions of the chosen cases"
        words = "mean absolute share of the feature's ring in the decisions of the chosen cases"
        variables["mean_share"] = (("feature",), importance, _text("logit", words, "conditional"))
    last = -1 if config.pooling == "none" else None
    coords = {**case_coords(op, picked, picked.y, logits, last), **_coords(op, rings, chosen, length, every)}
    coords["case"] = ("case", np.array(rows))
    return xr.Dataset(variables, coords=coords, attrs=_attributes(op, data, layer, ordering, every, rule))


def _check(op: "ExplicitOperator", layer: Any, ordering: str, every: Any) -> None:
    n_layers = op.model.config.n_layers
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < n_layers:
        raise ArgumentError(f"ring(layer={layer!r}): the model has layers 0 to {n_layers - 1}, counted from the input.")
    if not isinstance(ordering, str) or ordering not in ORDERINGS:
        raise ArgumentError(f"ring(ordering={ordering!r}): choose one of {', '.join(ORDERINGS)}.")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError(f"ring(every={every!r}): keep every n-th step, n a whole number of at least 1.")


def _indices(name: str, values: Any, count: int, have: str) -> list[int]:
    found = list(values) if isinstance(values, Iterable) else [values]
    if not found or not all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in found):
        raise ArgumentError(f"ring({name}={values!r}): give a non-empty sequence of whole numbers.")
    if min(found) < 0 or max(found) >= count:
        raise ArgumentError(f"ring({name}={found}): {have} 0 to {count - 1}.")
    if len(set(found)) < len(found):
        raise ArgumentError(f"ring({name}={found}): one is named twice; give each once.")
    return [int(value) for value in found]


def _largest(
    op: "ExplicitOperator", data: SequenceData, layer: int, count: int
) -> tuple[list[int], NDArray[np.float64]]:
    """Features of largest mean absolute share (frozen factors: any architecture and layer), and that share in logit units."""
    check_pooled(op, "ring(features=None)", "name features, such as features=[0, 1]")
    if op.model.config.n_classes < 2:
        raise ArgumentError(
            "ring(features=None): a model with one class decides nothing, so no feature matters most; name some with features=[0, 1]."
        )
    share = op.explain(data, by=LayerWaves())["layer_share"].isel(layer=layer).sum("wave")
    size = abs(share).mean([dim for dim in share.dims if dim != "feature"]).values
    chosen = np.argsort(-size, kind="stable")[:count]
    return chosen.tolist(), size[chosen]


def _trajectories(
    op: "ExplicitOperator", data: SequenceData, rings: LayerRings, features: list[int], layer: int, every: int
) -> tuple[dict[str, _Variable], NDArray[np.float64]]:
    """Envelope and input of every case at the steps kept, and by how much the ring misses the model's pre-activation."""
    length = int(data.lengths.max())
    shape = (data.n_cases, len(features), -(-length // every))
    envelope = np.full((*shape[:2], rings.ring.n_sites, shape[2]), np.nan)
    drive, missed, logits = np.full(shape, np.nan), np.zeros(shape[:2]), []
    for row, steps in enumerate(data.lengths.tolist()):
        x = torch.from_numpy(np.ascontiguousarray(data.X[row, :, :steps].T, dtype=np.float64))
        with torch.no_grad():
            trace = op.model.trace(x[None])
        u, z = (value[..., features].transpose(1, 2) for value in (trace.layers[layer].u, trace.layers[layer].z))
        logits.append(trace.logits[0, -1 if op.model.config.pooling == "none" else ...].numpy())
        kept = np.arange(0, steps, every)
        drive[row, :, : len(kept)] = u[0, :, kept].numpy()
        worst = torch.zeros(len(features), dtype=torch.float64)
        for start, s in diagonal.states(rings.system, u):
            stop = start + s.shape[-1]
            r = analytic_half(rings.ring, s)
            own = torch.einsum("hj,bhjt->bht", rings.weights, 2 * r.real) + rings.system.D[:, None] * u[..., start:stop]
            worst = torch.maximum(worst, (own - z[..., start:stop]).abs().amax((0, 2)))
            inside = np.flatnonzero((kept >= start) & (kept < stop))
            envelope[row, :, :, inside] = np.moveaxis(r.abs()[0].numpy()[..., kept[inside] - start], -1, 0)
        scale = z.abs().amax((0, 2))
        missed[row] = (worst / torch.where(scale > 0, scale, torch.ones_like(scale))).numpy()
    lead = ("case", "feature")
    return {
        "envelope": ((*lead, "site", "time"), envelope, _text("1", "abs(r+), amplitude of the ring", "exact")),
        "drive": ((*lead, "time"), drive, _text("1", "input u of the feature's ring", "exact")),
        "ring_residual": (
            lead,
            missed,
            _text("1", "largest miss of the pre-activation got from the ring, over its largest value", "measured"),
        ),
    }, np.stack(logits)


def _wave_variables(rings: LayerRings, before: LayerRings) -> dict[str, _Variable]:
    """Dispersion by wavenumber, after and before training, and which stored mode a wavenumber carries."""
    axes = ("feature", "wavenumber")
    found: dict[str, _Variable] = {}
    for suffix, when, own in (("", "", rings), ("_before", " before training", before)):
        waves = travel.dispersion(own.ring)
        group = torch.nn.functional.pad(waves.group_velocity, (0, 1), value=math.nan)
        named = {
            "frequency": (waves.frequency, "rad / model time", "frequency omega of the wave"),
            "decay": (waves.decay, "1 / model time", "decay rate sigma of the wave"),
            "phase_velocity": (waves.phase_velocity, "sites / model time", "phase velocity"),
            "group_velocity": (group, "sites / model time", "group velocity between this wavenumber and the next"),
        }
        for name, (value, units, words) in named.items():
            found[name + suffix] = (axes, value.numpy(), _text(units, words + when, "exact"))
    # Modes may have changed places: what moved is told of each stored mode, where it stands now.
    at = before.ring.order.argsort(1).gather(1, rings.ring.order)
    was = before.ring.rates.gather(1, at)
    words = "change of the frequency of this wavenumber's stored mode in training"
    moved = (rings.ring.rates - was).imag
    found["frequency_change"] = (axes, moved.numpy(), _text("rad / model time", words, "exact"))
    words = "decay rate of this wavenumber's stored mode over that before training"
    found["decay_ratio"] = (axes, (rings.ring.rates.real / was.real).numpy(), _text("1", words, "exact"))
    words = "stored mode at this wavenumber"
    found["wavenumber_mode"] = (axes, rings.ring.order.numpy(), _text("1", words, "exact"))
    words = "the conjugate of the stored mode is meant"
    found["conjugated"] = (axes, rings.ring.conjugated.numpy(), _text("1", words, "exact"))
    words = "turns by more than half a turn per step, so it is heard at a lower frequency"
    found["aliased"] = (axes, rings.aliased.numpy(), _text("1", words, "exact"))
    return found


def _site_variables(rings: LayerRings, before: LayerRings, rate: float | None) -> dict[str, _Variable]:
    """Coupling, what enters and leaves at each site, which past it holds, and the limits of a phase delay."""
    seconds, per = ("s" if rate else "steps"), rate or 1.0
    feature, site = ("feature",), ("feature", "site")
    entering = 2 * analytic_half(rings.ring, rings.system.b[None, ..., None])[0, ..., 0].real
    low, high = travel.delay_limits(rings.poles)
    now, then = past(rings.stepped), past(before.stepped)
    speed = "group velocity, the least-squares slope of frequency over wavenumber"
    table: dict[str, tuple[tuple[str, ...], Any, str, str, str]] = {
        "injection": (site, entering, "1", "what one step of unit input adds to r at a site", "exact"),
        "readout": (site, rings.weights, "1", "weight of r at a site on the pre-activation", "exact"),
        "site_lag": (site, now["lag"] / per, seconds, "time since the input now passing this site entered", "measured"),
        "peak_lag": (site, now["peak_lag"] / per, seconds, "time at which an impulse is largest at a site", "measured"),
        "lag_agreement": (feature, now["agreement"], "1", "correlation of site_lag with peak_lag over inner sites", "measured"),
        "lag_miss": (feature, now["miss"] / per, seconds, "largest difference of site_lag from peak_lag over inner sites", "measured"),
        "velocity": (feature, now["velocity"], "sites/step", speed, "measured"),
        "velocity_before": (feature, then["velocity"], "sites/step", f"{speed}, before training", "measured"),
        "revolution": (feature, now["revolution"] / per, seconds, "time until an input is back at site 0", "measured"),
        "resolution": (feature, now["resolution"] / per, seconds, "time between inputs that sites can tell apart", "measured"),
        "energy_left": (feature, now["earlier"], "1", "energy an impulse has left after one revolution", "measured"),
        "delay_low": (feature, low, "rad", "lower limit of further phase delays that keep every wave decaying", "exact"),
        "delay_high": (feature, high, "rad", "upper limit of further phase delays that keep every wave decaying", "exact"),
        "largest_rate": (feature, rings.poles.real.amax(1), "1 / model time", "largest Re lambda", "exact"),
    }  # fmt: skip
    found = {
        name: (dims, value.numpy(), _text(units, words, claim)) for name, (dims, value, units, words, claim) in table.items()
    }  # fmt: skip
    for suffix, when, own in (("", "", rings), ("_before", " before training", before)):
        words = f"weight w(d) of a site on the site d further{when}; the sign turns at the seam"
        value = signed_coupling(own.ring)[1].numpy()
        found["coupling" + suffix] = (("feature", "displacement"), value, _text("1 / model time", words, "exact"))
    return found


def _coords(op: "ExplicitOperator", rings: LayerRings, features: list[int], length: int, every: int) -> dict[str, Any]:
    rate, sites, modes = op.model.config.sampling_rate, rings.ring.n_sites, rings.ring.n_modes
    kappa = 2 * np.pi / sites * (np.arange(modes) + 0.5)
    between = np.append((kappa[1:] + kappa[:-1]) / 2, np.nan)
    time = _text("s" if rate else "steps", "time in the case", "exact")
    return {
        "feature": ("feature", np.array(features)),
        "site": ("site", np.arange(sites)),
        "wavenumber": ("wavenumber", np.arange(modes)),
        "displacement": ("displacement", np.arange(-modes, modes)),
        "time": ("time", np.arange(0, length, every) / (rate or 1.0), time),
        "kappa": ("wavenumber", kappa, _text("rad/site", "phase between neighbouring sites", "exact")),
        "kappa_between": ("wavenumber", between, _text("rad/site", "where the group velocity is taken", "exact")),
        "dt": ("feature", rings.dt.numpy(), _text("model time / step", "model time per step", "exact")),
    }


def _attributes(
    op: "ExplicitOperator", data: SequenceData, layer: int, ordering: str, every: int, rule: str
) -> dict[str, Any]:
    from oplens.results import provenance

    config = op.model.config
    start = f"S4D-{config.initialisation.capitalize()}" + (
        f", its coupling cut at {config.coupling} sites" if config.coupling else ""
    )
    rates = "the poles" if config.discretisation == "zoh" else "log(a) / dt of the bilinear rule"
    return {
        **provenance(source=data.source),
        "ordering": ordering,
        "layer": layer,
        "architecture": config.architecture,
        "rule": rule,
        "every": every,
        "rates": rates,
        "before": f"{start}, as configured, with the trained step; checkpoints of other programs do not name theirs and are taken for "
        "S4D-Lin",
        "training_hash": op.training.digest,
        "sampling_rate": config.sampling_rate if config.sampling_rate is not None else "unknown",
    }


def _text(units: str, words: str, claim: str) -> dict[str, str]:
    return {"units": units, "long_name": words, "claim": claim}
