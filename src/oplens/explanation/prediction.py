r"""The distribution of the output before any simulation: a known signal in Gaussian noise, white in time.

Every pre-activation z_h(t) is then Gaussian, with the deterministic response as mean and

    R_hh'(t, t') = (E_h Sigma E_h') sum_{l <= min(t, t')} K~_h[t - l] K~_h'[t' - l]

as covariance, transients included (the stationary shortcut is wrong where cases are shorter than the modes' memory). With d_hk(t) the
Hermite coefficients of the readout under N(mean, R_hh(t, t)) (oplens.operators.polynomial):

    E logit   = bias + sum_h W_h sum_t p(t) d_h0(t)
    Var logit = sum_k k! sum_{hh'tt'} W_h W_h' p p' d_hk(t) d_h'k(t') R_hh'(t, t')^k

Every order adds a variance (that of one Wiener chaos), so a sum cut at `orders` is a bound from below, and its last term shows how much
may be missing.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation.targets import Target, default_target
from oplens.operators import diagonal
from oplens.operators.polynomial import gelu_coefficients

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator


def predict(
    op: "ExplicitOperator", signal: Any, noise: Any, target: Target | None = None, orders: int = 6
) -> "xr.Dataset":
    """Work behind :meth:`ExplicitOperator.predict`."""
    import xarray as xr

    from oplens.results import provenance

    config = op.model.config
    _check(op, orders)
    target = default_target(config.classes) if target is None else target
    directions = torch.from_numpy(target.directions(config.classes))
    values, covariance = _signal(signal, config.d_input), _covariance(noise, config.d_input)
    assert config.preprocessing is not None
    scale = torch.tensor(config.preprocessing.scale, dtype=torch.float64)
    covariance = covariance / scale[:, None] / scale[None, :]
    with torch.no_grad():
        mean = op.model.trace(values.T[None]).layers[0].z[0].T
        response = diagonal.kernel(op.system, values.shape[1], skip=True)
        mixing = op.model.encoder.weight @ covariance @ op.model.encoder.weight.T  # (d_model, d_model)
        variance = mixing.diagonal()[:, None] * (response**2).cumsum(-1)
        length = values.shape[1]
        # (d_model, length, order + 1)
        d = gelu_coefficients(mean.reshape(-1), variance.reshape(-1), orders).unflatten(0, mean.shape)
        W = directions @ op.model.decoder.weight
        expected = W @ d[..., 0].mean(-1) + directions @ op.model.decoder.bias
        parts = _variances(W, d / length, mixing, response, orders)
    lead = ("class",) if target.per_class else ()
    found = {
        "target_mean": (lead, expected, "expected target", "exact"),
        "target_variance": (lead, parts.sum(0), "variance of the target, cut at the highest order", "truncated"),
        "variance_by_order": (("order", *lead), parts, "variance that each order adds", "truncated"),
    }
    variables = {
        name: (
            dims,
            value.numpy() if target.per_class else value.numpy()[..., 0],
            {"units": "logit" if "mean" in name else "logit^2", "long_name": text, "claim": claim},
        )
        for name, (dims, value, text, claim) in found.items()
    }
    coords: dict[str, Any] = {"order": ("order", np.arange(1, orders + 1))}
    if target.per_class:
        coords["class"] = ("class", np.array(config.classes, dtype=object))
    attrs = {**provenance(source=op.training.source), "target": target.describe(), "signal": repr(signal)[:200]}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _variances(W: Tensor, d: Tensor, mixing: Tensor, response: Tensor, orders: int) -> Tensor:
    """Variance that each order adds, (order, n_targets); pairs of features one row at a time, O(d_model length^2) memory."""
    n_features = response.shape[0]
    total = torch.zeros(orders, W.shape[0], dtype=W.dtype)
    for h in range(n_features):
        for first in range(h, n_features, 8):
            others = slice(first, min(first + 8, n_features))
            R = _shared(response[h], response[others]) * mixing[h, others, None, None]
            power = torch.ones_like(R)
            twice = torch.full((R.shape[0],), 2.0, dtype=W.dtype)
            if first == h:
                twice[0] = 1.0
            for k in range(1, orders + 1):
                power = power * R
                cell = torch.einsum("t,jts,js->j", d[h, :, k], power, d[others, :, k])
                total[k - 1] += math.factorial(k) * torch.einsum("c,cj,j->c", W[:, h], W[:, others], twice * cell)
    return total


def _shared(one: Tensor, others: Tensor) -> Tensor:
    """sum_{l <= min(t, s)} one[t - l] others_j[s - l] as (j, t, s): running sums along the diagonals of the outer product."""
    length = one.shape[0]
    outer = one[None, :, None] * others[:, None, :]
    # Read with rows one longer than they are, cell (t, s) falls into column length + s - t: diagonals become columns.
    padded = torch.nn.functional.pad(outer, (length, 0)).flatten(1)
    columns = torch.nn.functional.pad(padded, (0, length)).unflatten(1, (length, 2 * length + 1))
    summed = columns.cumsum(1).flatten(1)[:, : 2 * length * length]
    return summed.unflatten(1, (length, 2 * length))[..., length:]


def _check(op: "ExplicitOperator", orders: int) -> None:
    config = op.model.config
    if config.architecture != "plain":
        raise ArgumentError(
            "predict: gates and norms of the reference architecture are not Gaussian; this needs the plain architecture."
        )
    if config.preprocessing is not None and config.preprocessing.remove_offset:
        raise ArgumentError(
            "predict: a model that removes offsets makes white noise correlated over time; that is not supported."
        )
    if len(config.classes) < 2:
        raise ArgumentError("predict: a model with one class has nothing to decide.")
    if isinstance(orders, bool) or not isinstance(orders, int) or not 1 <= orders <= 20:
        raise ArgumentError(f"predict(orders={orders!r}): give a whole number from 1 to 20.")


def _signal(signal: Any, n_channels: int) -> Tensor:
    values = signal.values(n_channels) if isinstance(signal, Sinusoid) else np.asarray(signal)
    if values.ndim != 2 or values.shape[0] != n_channels or values.shape[1] < 1 or values.dtype.kind not in "iuf":
        raise ArgumentError(
            f"predict: expected a Sinusoid or samples of shape ({n_channels}, n_timepoints), got {values.shape}."
        )
    if not np.isfinite(values).all():
        raise ArgumentError("predict: the signal holds NaN or infinite samples.")
    return torch.from_numpy(values.astype(np.float64))


def _covariance(noise: Any, n_channels: int) -> Tensor:
    """Covariance over channels from a standard deviation, one per channel, or a matrix; in the units of the data."""
    values = np.asarray(noise, dtype=float)
    if not np.isfinite(values).all() or values.ndim > 2 or (values.ndim < 2 and (values < 0).any()):
        raise ArgumentError(
            "predict(noise=...): give finite standard deviations of at least 0, or a covariance matrix over channels."
        )
    if values.ndim == 2:
        if values.shape != (n_channels, n_channels) or not np.allclose(values, values.T):
            raise ArgumentError(
                f"predict(noise=...): expected a symmetric ({n_channels}, {n_channels}) matrix, got {values.shape}."
            )
        if np.linalg.eigvalsh(values).min() < -1e-12 * max(1.0, abs(values).max()):
            raise ArgumentError("predict(noise=...): the covariance matrix has a negative eigenvalue.")
        return torch.from_numpy(values)
    if values.ndim == 1 and values.size != n_channels:
        raise ArgumentError(f"predict(noise=...): {values.size} standard deviations for {n_channels} channels.")
    return torch.diag(torch.from_numpy(np.broadcast_to(values, (n_channels,)).astype(float) ** 2))
