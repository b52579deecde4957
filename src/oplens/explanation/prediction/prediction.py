r"""The distribution of the output before any simulation: a known signal in Gaussian noise, white in time.

Every pre-activation z_h(t) is then Gaussian, with the deterministic response as mean and

    R_hh'(t, t') = (E_h Sigma E_h') (sum_{l <= min(t, t')} K~_h[t - l] K~_h'[t' - l]  -  [offset removed] k_h(t) k_h'(t') / L)

as covariance, k = cumsum K~: transients included (the stationary shortcut is wrong where cases are shorter than the modes' memory).
Subtracting a case's own mean is linear, so a model that does so only loses the constant from what the noise reaches.

    E logit   = bias + sum_h W_h sum_t p(t) E g(z_h(t))                                              closed form, exact
    Var logit = sum_k k! sum_{hh'tt'} W_h W_h' p p' d_hk(t) d_h'k(t') R_hh'(t, t')^k                (oplens.explanation.prediction.wiener)

Every order adds a variance, so a sum cut at `orders` is a bound from below; the bound on what is left out makes one from above.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation.prediction.margins import QuadraticForm
from oplens.explanation.prediction.wiener import Weights, WhiteNoise, contract, quadratic_form
from oplens.explanation.steps import check_at, check_pooled, pooling, readout_of
from oplens.explanation.targets import Outputs, Target, default_target
from oplens.operators import diagonal

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

BATCH = 2**23  # float64 values of the coefficients of signals that share one pass over the covariances: 64 MB


@dataclass(frozen=True)
class Setting:
    """What predictions of one operator, noise, target and length share.

    Attributes
    ----------
    readout, constant : Tensor, (n_targets, d_model) and (n_targets,)
        Targets as functionals of the pooled features.
    root : ndarray, (n_channels, n_channels)
        A square root of the noise covariance in the units of the data.
    pool : Tensor, (length,)
        Weights of the steps: the mean, or one step of a model that answers at each.
    """

    op: "ExplicitOperator"
    target: Target
    directions: Tensor
    readout: Tensor
    constant: Tensor
    noise: WhiteNoise
    root: NDArray[np.float64]
    pool: Tensor

    @classmethod
    def of(
        cls, op: "ExplicitOperator", length: int, covariance: Tensor, target: Target, at: int | None = None
    ) -> "Setting":
        """Of checked arguments; covariance (n_channels, n_channels) in the units of the data."""
        model = op.model
        preprocessing = model.config.preprocessing
        assert preprocessing is not None
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=0).sqrt()
        scale = torch.tensor(preprocessing.scale, dtype=torch.float64)
        directions = torch.from_numpy(target.directions(model.config.classes))
        with torch.no_grad():
            response = diagonal.kernel(op.system, length, skip=True)
            seen = model.encoder.weight @ (root / scale[:, None])
            noise = WhiteNoise.of(response, seen, preprocessing.remove_offset)
            readout, constant = directions @ model.decoder.weight, directions @ model.decoder.bias
        pool = pooling(torch.ones(1, length, dtype=torch.float64), torch.tensor([length]), at)[0]
        return cls(op, target, directions, readout, constant, noise, root.numpy(), pool)

    def means(self, values: NDArray[np.float64]) -> Tensor:
        """Pre-activations (signals, d_model, length) of noise-free signals (signals, n_channels, length)."""
        with torch.no_grad():
            trace = self.op.model.trace(torch.from_numpy(values).transpose(1, 2))
        return trace.layers[0].z.transpose(1, 2)


@dataclass(frozen=True)
class Moments:
    """Moments of the targets of some signals, (signals, n_targets); `by_order` (order, signals, n_targets).

    `forms`, if asked for: orders 1 and 2 of the first target of every signal.
    """

    mean: NDArray[np.float64]
    by_order: NDArray[np.float64]
    rest: NDArray[np.float64]
    forms: tuple[QuadraticForm, ...] = ()

    @property
    def variance(self) -> NDArray[np.float64]:
        """Cut at the highest order: a bound from below."""
        return np.asarray(self.by_order.sum(0))

    @property
    def variance_bound(self) -> NDArray[np.float64]:
        """The variance is nowhere larger."""
        return self.variance + self.rest


def moments(setting: Setting, values: NDArray[np.float64], orders: int, forms: bool = False) -> Moments:
    """Moments of signals (signals, n_channels, length), as many at a time as share one pass over the covariances."""
    n_targets, activation = len(setting.readout), readout_of(setting.op.model)
    size = max(1, BATCH // ((orders + 4) * setting.noise.response.numel() * n_targets))
    means, variances, rests = [], [], []
    found: list[QuadraticForm] = []
    for start in range(0, len(values), size):
        part = values[start : start + size]
        shape = (len(part), n_targets)
        weights = Weights.of(setting.noise, setting.means(part), setting.readout, orders, activation, setting.pool)
        by_order, rest = contract(setting.noise, weights)
        means.append(weights.orders[0].sum((0, 1)).view(shape) + setting.constant)
        variances.append(by_order.view(orders, *shape))
        rests.append(rest.view(shape))
        if forms:
            columns = range(0, weights.tail.shape[-1], n_targets)
            found += [QuadraticForm.of(*quadratic_form(setting.noise, weights, k)) for k in columns]
    # Positive in exact arithmetic; where an order has no coefficient, rounding may say otherwise.
    by_order = torch.cat(variances, dim=1).clamp(min=0)
    return Moments(torch.cat(means).numpy(), by_order.numpy(), torch.cat(rests).numpy(), tuple(found))


def predict(
    op: "ExplicitOperator",
    signal: Any,
    noise: Any,
    target: Target | None = None,
    orders: int = 6,
    at: int | None = None,
) -> "xr.Dataset":
    """Mean and variance of the target for a known signal in Gaussian noise, without simulating one case; plain architecture.

    Parameters
    ----------
    signal : Sinusoid or array (n_channels, n_timepoints)
        In the units of the data.
    noise : float, sequence of float or matrix
        Standard deviation of noise that is white in time: one, one per channel, or the covariance over channels.
    target : Target, optional
        As for :meth:`explain`.
    orders : int
        Orders of the variance's expansion, 1 to 20.
    at : int, optional
        For models that answer at every step (pooling='none'), and needed there: the step of the signal whose answer is predicted,
        counted from 0, or from the end if negative.

    Returns
    -------
    xarray.Dataset
        `target_mean` (*exact*), `target_variance` and `variance_by_order` (*truncated*: each order adds, so a bound from below),
        `target_variance_bound` from above (*bound*). Means in logits, variances in their squares, () or (class).

    Raises
    ------
    ArgumentError
        For the reference architecture, one class, a signal of other channels or another sampling rate, noise that is negative or no
        covariance.

    Notes
    -----
    The whole model is meant, not its polynomial; models that remove offsets are included. Cost: O(orders d_model^2 length^2).

    Examples
    --------
    >>> from oplens.data import Sinusoid, noisy_sinusoids
    >>> from oplens import S4D, S4DConfig, expand
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)), noisy_sinusoids(n_cases=4).X)
    >>> ds = op.predict(Sinusoid(15.0, n_timepoints=50, sampling_rate=100.0), noise=0.5)
    >>> bool(ds.target_variance > 0)
    True
    """
    import xarray as xr

    from oplens.results import provenance

    config = op.model.config
    if config.pooling == "mean":
        check_model(op, "predict")
    check_orders(orders, 1, "predict")
    target = Outputs() if target is None and config.pooling == "none" else target_of(target, op, "predict")
    values = signal_values(signal, op, "predict")
    covariance = noise_covariance(noise, config.d_input, "predict")
    at = check_at(config, at, np.array([values.shape[1]]), "predict")
    setting = Setting.of(op, values.shape[1], covariance, target, at)
    found = moments(setting, values[None], orders)
    unit = "logit" if at is None else "output"
    lead = ("class",) if target.per_class else ()
    lines = {
        "target_mean": (lead, found.mean[0], "expected target", "exact"),
        "target_variance": (lead, found.variance[0], "variance of the target, cut at the highest order", "truncated"),
        "target_variance_bound": (lead, found.variance_bound[0], "bound from above on the target's variance", "bound"),
        "variance_by_order": (("order", *lead), found.by_order[:, 0], "variance that each order adds", "truncated"),
    }
    variables = {
        name: (
            dims,
            value if target.per_class else value[..., 0],
            described(text, claim, units_of(name).replace("logit", unit)),
        )
        for name, (dims, value, text, claim) in lines.items()
    }
    coords: dict[str, Any] = {"order": ("order", np.arange(1, orders + 1))}
    if target.per_class:
        coords["class"] = ("class", np.array(config.classes, dtype=object))
    attrs = {**provenance(source=op.training.source), "target": target.describe(), "signal": repr(signal)[:200]}
    attrs |= {} if at is None else {"at": at}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def described(long_name: str, claim: str, units: str) -> dict[str, str]:
    """Attributes of a variable."""
    return {"units": units, "long_name": long_name, "claim": claim}


def units_of(name: str) -> str:
    """Means are logits, variances their squares."""
    return "logit^2" if "variance" in name else "logit"


def check_model(op: "ExplicitOperator", call: str) -> None:
    """Refuse models whose output is no pooled readout of Gaussian pre-activations, and those with nothing to decide."""
    config = op.model.config
    check_pooled(op, call)
    if config.architecture != "plain":
        raise ArgumentError(
            f"{call}: gates and norms of the reference architecture are not Gaussian; this needs the plain architecture."
        )
    if len(config.classes) < 2:
        raise ArgumentError(f"{call}: a model with one class has nothing to decide.")


def target_of(target: Any, op: "ExplicitOperator", call: str) -> Target:
    """The target asked for, or the default one."""
    classes = op.model.config.classes
    if target is None:
        return default_target(classes)
    if not isinstance(target, Target):
        raise ArgumentError(
            f"{call}(target={target!r}): give Margin(towards, against) or CentredLogits(); the classes are {', '.join(classes)}."
        )
    return target


def check_orders(orders: Any, least: int, call: str) -> None:
    """Refuse numbers of orders that cannot work."""
    if isinstance(orders, bool) or not isinstance(orders, int) or not least <= orders <= 20:
        raise ArgumentError(f"{call}(orders={orders!r}): give a whole number from {least} to 20.")


def check_count(name: str, value: Any, least: int, call: str, zero: bool = False) -> None:
    """Refuse what is no whole number of at least `least`; `zero` allows 0 as well."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or (value < least and not (zero and value == 0)):
        either = f"0 or at least {least}" if zero else f"at least {least}"
        raise ArgumentError(f"{call}({name}={value!r}): give a whole number, {either}.")


def signal_values(signal: Any, op: "ExplicitOperator", call: str) -> NDArray[np.float64]:
    """Samples (n_channels, n_timepoints) of a Sinusoid or of an array."""
    n_channels, rate = op.model.config.d_input, op.model.config.sampling_rate
    if isinstance(signal, Sinusoid) and rate is not None and signal.sampling_rate != rate:
        raise ArgumentError(
            f"{call}: the model reads {rate:g} Hz, the sinusoid is sampled at {signal.sampling_rate:g} Hz; give sampling_rate={rate:g}."
        )
    try:
        values = signal.values(n_channels) if isinstance(signal, Sinusoid) else np.asarray(signal)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{call}: the signal's channels have different numbers of samples.") from None
    if values.ndim != 2 or values.shape[0] != n_channels or values.shape[1] < 1 or values.dtype.kind not in "iuf":
        raise ArgumentError(
            f"{call}: expected a Sinusoid or samples of shape ({n_channels}, n_timepoints), got {values.shape}."
        )
    if not np.isfinite(values).all():
        raise ArgumentError(f"{call}: the signal holds NaN or infinite samples.")
    return values.astype(np.float64)


def noise_covariance(noise: Any, n_channels: int, call: str) -> Tensor:
    """Covariance over channels from a standard deviation, one per channel, or a matrix; in the units of the data."""
    asked = "give finite standard deviations of at least 0, or a covariance matrix over channels"
    try:
        values = np.asarray(noise, dtype=float)
    except (TypeError, ValueError):
        raise ArgumentError(f"{call}(noise={noise!r}): {asked}.") from None
    if not np.isfinite(values).all() or values.ndim > 2 or (values.ndim < 2 and (values < 0).any()):
        raise ArgumentError(f"{call}(noise=...): {asked}.")
    if values.ndim == 2:
        if values.shape != (n_channels, n_channels) or not np.allclose(values, values.T):
            raise ArgumentError(
                f"{call}(noise=...): expected a symmetric ({n_channels}, {n_channels}) matrix, got {values.shape}."
            )
        if np.linalg.eigvalsh(values).min() < -1e-12 * max(1.0, abs(values).max()):
            raise ArgumentError(f"{call}(noise=...): the covariance matrix has a negative eigenvalue.")
        return torch.from_numpy(values)
    if values.ndim == 1 and values.size != n_channels:
        raise ArgumentError(f"{call}(noise=...): {values.size} standard deviations for {n_channels} channels.")
    return torch.diag(torch.from_numpy(np.broadcast_to(values, (n_channels,)).astype(float) ** 2))
