r"""Shares of parts: the terms a decision is the sum of.

With nu_i = zeta_i - mean_i, C_i = Cov(zeta_i, z) over training data and H_k the basis of the expansion (oplens.operators.polynomial),
the term of part i at order k (Wick form) is

    T_k[i] = sum_h d_k sum_t omega_h(t) ( nu_i H_{k-1}(w) - (k-1) C_i H_{k-2}(w) )

and its exact share of the whole readout  sum_h sum_t omega_h(t) nu_i (g(z) - g(m)) / (z - m).  Taylor, Chebyshev and empirical
polynomials are powers about a centre: mean_i = 0 (the bias takes the centre), C_i = 0. Sources are parts in every formula; they
only keep lines of their own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.explanation.accounts.decomposition import Decomposition
from oplens.explanation.batch import Batch, Weight
from oplens.operators.polynomial import Expansion


@dataclass(frozen=True)
class Moments:
    """Training moments of every part and source: means (d_model, *shape) and covariances with z, same shapes."""

    mean: Tensor
    covariance: Tensor
    source_mean: Tensor
    source_covariance: Tensor


@dataclass(frozen=True)
class Shares:
    """Terms of a batch: (order, case, target, [feature], *parts) and their sources (order, case, target, source)."""

    share: Tensor
    source_share: Tensor
    order_0: Tensor
    full_share: Tensor
    source_full_share: Tensor
    full_constant: Tensor


def power_moments(decomposition: Decomposition, expansion: Expansion) -> Moments:
    """Families of powers about a centre have no moments but the centre itself, which the bias source takes."""
    d_model = expansion.centre.shape[0]
    parts = torch.zeros(d_model, *decomposition.shape, dtype=torch.float64)
    sources = torch.zeros(d_model, len(decomposition.sources), dtype=torch.float64)
    mean = sources.clone()
    mean[:, 0] = expansion.centre
    return Moments(parts, parts, mean, sources)


def batch_moments(
    decomposition: Decomposition, expansion: Expansion, batch: Batch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over the batch's cases of the first moments and of the moments with w."""
    first, source_first = decomposition.moments(batch, batch.pool[:, None])
    w = batch.z - expansion.centre[:, None]
    second, source_second = decomposition.moments(batch, batch.pool[:, None] * w)
    return first.sum(0), second.sum(0), source_first.sum(0), source_second.sum(0)


def shares(batch: Batch, decomposition: Decomposition, expansion: Expansion, moments: Moments) -> Shares:
    """Terms of every order, and the exact shares of the whole readout."""
    w = batch.z - expansion.centre[:, None]
    basis = expansion.basis(w, expansion.order)
    quotient = expansion.divided_difference(batch.z)
    contract = _contract_feature if not decomposition.per_feature else _keep_feature
    orders: list[tuple[Tensor, Tensor]] = []
    full: tuple[Tensor, Tensor] | None = None
    order_0, full_constant = batch.constant, batch.constant
    constants_0, constants_full = [], []
    at_centre = expansion.activation.value(expansion.centre[:, None])[:, 0]
    for weight in batch.weights:
        totals = [(weight.omega * value).sum(-1) for value in basis]  # S_k(h) = sum_t omega H_k
        rows = []
        for k in range(1, expansion.order + 1):
            weighed = weight.omega if k == 1 else weight.omega * basis[k - 1]
            parts, sources = decomposition.moments(batch, weighed)
            drift, source_drift = _drift(moments, totals, k)
            d_k = expansion.coefficients[:, k]
            rows.append(_outer(weight, contract, d_k, parts - drift, sources - source_drift))
        orders = _join(orders, rows)
        q = weight.omega * quotient
        parts, sources = decomposition.moments(batch, q)
        total = q.sum(-1)
        ones = torch.ones_like(expansion.centre)
        mean, source_mean = _times(total, moments.mean), _times(total, moments.source_mean)
        whole = _outer(weight, contract, ones, parts - mean, sources - source_mean)
        full = whole if full is None else (_cat(full[0], whole[0]), _cat(full[1], whole[1]))
        constants_0.append(torch.einsum("bh,th->bt", totals[0] * expansion.coefficients[:, 0], weight.outer))
        constants_full.append(torch.einsum("bh,th->bt", totals[0] * at_centre, weight.outer))
    assert full is not None
    order_0 = order_0 + torch.cat(constants_0, dim=-1)
    full_constant = full_constant + torch.cat(constants_full, dim=-1)
    if batch.residual is not None:
        # The residual stream is linear in x: it joins the parts at order 1, or is a source of its own beside waves.
        direct, source_direct = (value.transpose(0, 1) for value in decomposition.inputs(batch, batch.residual))
        if decomposition.per_feature:
            direct = direct.unsqueeze(2)
        orders[0] = (orders[0][0] + direct, orders[0][1] + source_direct)
        full = (full[0] + direct, full[1] + source_direct)
    share, source_share = (torch.stack([row[i] for row in orders]) for i in (0, 1))
    return Shares(share, source_share, order_0, full[0], full[1], full_constant)


def remainder(batch: Batch, z: Tensor, expansion: Expansion) -> Tensor:
    """sum omega (g - p)(z), pointwise, for a z obtained by another route than the terms: (batch, n_targets)."""
    gap = expansion.activation.value(z) - expansion.evaluate(z)
    return _weighted_sum(batch.weights, gap)


def class_orders(batch: Batch, expansion: Expansion) -> Tensor:
    """Class logits of the operator cut after each order 1..K: (order, batch, n_classes)."""
    if expansion.series is not None:  # the best polynomial of a lower degree is not the first powers of a higher one
        own = [expansion.truncated(k).evaluate(batch.z) for k in range(1, expansion.order + 1)]
        return torch.stack([_weighted_sum(batch.class_weights, value) for value in own]) + batch.class_constant
    basis = expansion.basis(batch.z - expansion.centre[:, None], expansion.order)
    terms = [
        _weighted_sum(batch.class_weights, expansion.coefficients[:, k, None] * value) for k, value in enumerate(basis)
    ]
    return torch.cumsum(torch.stack(terms), dim=0)[1:] + batch.class_constant


def _weighted_sum(weights: tuple[Weight, ...], values: Tensor) -> Tensor:
    columns = [torch.einsum("bh,th->bt", (weight.omega * values).sum(-1), weight.outer) for weight in weights]
    return torch.cat(columns, dim=-1)


def _drift(moments: Moments, totals: list[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """What the Wick form subtracts: mean_i S_{k-1} + (k-1) C_i S_{k-2}."""
    parts, sources = _times(totals[k - 1], moments.mean), _times(totals[k - 1], moments.source_mean)
    if k >= 2:
        parts = parts + (k - 1) * _times(totals[k - 2], moments.covariance)
        sources = sources + (k - 1) * _times(totals[k - 2], moments.source_covariance)
    return parts, sources


def _times(total: Tensor, moment: Tensor) -> Tensor:
    """(batch, d_model) with (d_model, ...) to (batch, d_model, ...)."""
    return total.reshape(*total.shape, *[1] * (moment.ndim - 1)) * moment


def _outer(weight: Weight, contract: str, factor: Tensor, parts: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    flat = parts.flatten(2) if parts.ndim > 2 else parts[..., None]
    outer = weight.outer * factor
    result = torch.einsum(contract, outer, flat)
    return result.unflatten(-1, parts.shape[2:]), torch.einsum("th,bhs->bts", outer, sources)


_keep_feature = "th,bhi->bthi"
_contract_feature = "th,bhi->bti"


def _join(orders: list[tuple[Tensor, Tensor]], rows: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    if not orders:
        return rows
    return [(_cat(a[0], b[0]), _cat(a[1], b[1])) for a, b in zip(orders, rows, strict=True)]


def _cat(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=1)
