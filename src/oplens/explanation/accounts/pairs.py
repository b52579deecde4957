r"""Pairs of parts: the terms of order 2 and above as symmetric matrices whose rows sum to the parts' shares.

With G = sum omega zeta_i zeta_j H_{k-2} and the first moments of the parts, the pair (i, j) of order k in Wick form is d_k times

    sum omega [ nu_i nu_j H_{k-2} - (k-2)(C_i nu_j + C_j nu_i) H_{k-3} - C_ij H_{k-2} + (k-2)(k-3) C_i C_j H_{k-4} ].

At order 2 of the plain architecture waves need no pre-activations: :mod:`oplens.operators.pairs` telescopes the sums.
For k >= 3 a cell is a marginal that also holds third parts.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData
from oplens.errors import ArgumentError
from oplens.explanation.accounts.coordinates import case_coords, part_coords
from oplens.explanation.accounts.decomposition import Decomposition, WaveDecomposition, decompose
from oplens.explanation.accounts.explain import attributes, check_memory, concrete, in_units
from oplens.explanation.batch import Batch, Weight
from oplens.explanation.parts import LayerWaves, Pairs, normalise
from oplens.explanation.targets import Target
from oplens.explanation.training import batches
from oplens.operators.pairs import pair_sums

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator


@dataclass(frozen=True)
class _Members:
    """Training moments of parts and sources together, (d_model, J): means, covariances with z, covariances of pairs (J, J)."""

    mean: Tensor
    covariance: Tensor
    pairs: Tensor


def explain_pairs(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    by: Pairs,
    target: Target,
    X_train: Any,
    memory_limit: int,
    at: int | None = None,
) -> "xr.Dataset":
    """Work behind `explain(by=Pairs(...))`."""
    parts = concrete(op, by.by)
    by = dataclasses.replace(by, by=parts)
    if op.expansion is None or isinstance(parts[0], LayerWaves):
        raise ArgumentError(
            "explain(by=Pairs(...)): a stack of two or more layers has no order axis, so no pairs; use its shares."
        )
    if op.order < 2:
        raise ArgumentError(
            f"explain(by=Pairs(...)): pairs begin at order 2, the operator has order {op.order}; expand with order=2."
        )
    decomposition = decompose(parts, op.model.config, op.system)
    directions = target.directions(op.model.config.classes)
    _check(op, data, labels, by, target, decomposition, len(directions), memory_limit)
    members = _training(op, parts, decomposition, X_train)
    collect = _Collector(by, labels, decomposition, op, at)
    scale = decomposition.n_parts + len(decomposition.sources)
    explicit = at is not None or _needs_explicit(op, decomposition) or _far_from_zero(op, members.mean)
    for rows, batch in batches(op.model, data.X, data.lengths, directions, scale if explicit else 1, at):
        nu = decomposition.explicit(batch) - members.mean[..., None] if explicit else None
        collect.add(
            rows, batch.logits, [_order(op, decomposition, batch, members, k, nu) for k in range(2, op.order + 1)]
        )
    claim = "exact" if op.model.config.architecture == "plain" else "conditional"
    return collect.dataset(op, data, parts, target, claim)


def _check(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    by: Pairs,
    target: Target,
    decomposition: Decomposition,
    n_targets: int,
    memory_limit: int,
) -> None:
    if by.mean and labels is None:
        raise ArgumentError("explain(by=Pairs(mean='class')): class means need labels; pass y=.")
    if by.mean and labels is not None:
        unknown = sorted(set(labels.tolist()) - set(op.model.config.classes))
        if unknown:
            raise ArgumentError(f"explain(by=Pairs(mean='class')): the model has no class {', '.join(unknown)}.")
    features, size = op.model.config.d_model, decomposition.n_parts + len(decomposition.sources)
    # Every feature's cells of one case are formed, about four times over, whatever is kept of them.
    check_memory(
        4 * features * size**2, memory_limit, "explain(by=Pairs(...)), one case", "choose coarser parts", "work"
    )
    if by.top:
        return
    cases = len(np.unique(labels)) if by.mean and labels is not None else len(data.X)
    features = features if decomposition.per_feature else 1
    cure = "ask for Pairs(..., top=100) or Pairs(..., mean='class'), or explain fewer cases at a time"
    targets = 1 if by.mean else n_targets
    check_memory((op.order - 1) * cases * targets * features * size**2, memory_limit, "explain(by=Pairs(...))", cure)


def _needs_explicit(op: "ExplicitOperator", decomposition: Decomposition) -> bool:
    return op.order > 2 or not isinstance(decomposition, WaveDecomposition) or op.model.config.architecture != "plain"


def _far_from_zero(op: "ExplicitOperator", mean: Tensor) -> bool:
    """Whether means are so large beside the pre-activation's spread that subtracting their products would cost four digits."""
    assert op.expansion is not None
    return op.family == "hermite" and bool((mean**2 > 1e4 * op.expansion.variance[:, None]).any())


def _training(op: "ExplicitOperator", parts: tuple[Any, ...], decomposition: Decomposition, X_train: Any) -> _Members:
    moments = op.statistics.moments(parts, decomposition, X_train)
    mean = _joined(moments.mean, moments.source_mean)
    covariance = _joined(moments.covariance, moments.source_covariance)
    size = mean.shape[-1]
    if op.family != "hermite":
        return _Members(mean, covariance, torch.zeros(mean.shape[0], size, size, dtype=mean.dtype))
    key = ("pairs", parts)
    if key not in op.statistics.pairs:
        op.statistics.pairs[key] = _covariances(op, decomposition, mean, X_train)
    return _Members(mean, covariance, op.statistics.pairs[key])


def _covariances(op: "ExplicitOperator", decomposition: Decomposition, mean: Tensor, X_train: Any) -> Tensor:
    """E sum p nu_i nu_j over the training set, (d_model, J, J)."""
    X, lengths = op.statistics.inputs(X_train)
    none = np.zeros((1, op.model.config.n_classes))
    total: Tensor | None = None
    identity = isinstance(decomposition, WaveDecomposition) and not _far_from_zero(op, mean)
    arrays = 1 if identity else decomposition.n_parts + len(decomposition.sources)
    for _, batch in batches(op.model, X, lengths, none, arrays=arrays):
        if identity:
            assert isinstance(decomposition, WaveDecomposition)
            gram = _recurrence_gram(decomposition, batch) - mean[:, :, None] * mean[:, None, :]
        else:
            nu = decomposition.explicit(batch) - mean[..., None]
            gram = _gram(nu, batch.pool[:, None].expand_as(batch.z))
        total = gram.sum(0) if total is None else total + gram.sum(0)
    assert total is not None
    return total / len(X)


def _order(
    op: "ExplicitOperator", decomposition: Decomposition, batch: Batch, members: _Members, k: int, nu: Tensor | None
) -> Tensor:
    """Pairs of order k: (batch, target, d_model or 1, J, J)."""
    assert op.expansion is not None
    basis = op.expansion.basis(batch.z - op.expansion.centre[:, None], max(k - 2, 0))
    results = []
    for weight in batch.weights:
        cells = _wick(decomposition, batch, weight, members, basis, k, nu) * op.expansion.coefficients[:, k, None, None]
        contraction = "th,bhij->bthij" if decomposition.per_feature else "th,bhij->btij"
        found = torch.einsum(contraction, weight.outer, cells)
        results.append(found if decomposition.per_feature else found[:, :, None])
    return torch.cat(results, dim=1)


def _wick(
    decomposition: Decomposition,
    batch: Batch,
    weight: Weight,
    members: _Members,
    basis: list[Tensor],
    k: int,
    nu: Tensor | None,
) -> Tensor:
    """(batch, d_model, J, J) without the coefficient d_k, from explicit nu or (order 2) by the identity."""
    q = (weight.omega * basis[k - 2]).expand_as(batch.z)
    total = q.sum(-1)[..., None, None]
    covariance = members.covariance
    if nu is None:
        assert isinstance(decomposition, WaveDecomposition)
        mean = members.mean
        gram, first = _recurrence_gram(decomposition, batch), _joined(*decomposition.moments(batch, q))
        cross = first[..., :, None] * mean[:, None, :]
        return gram - cross - cross.transpose(-1, -2) + (mean[:, :, None] * mean[:, None, :] - members.pairs) * total
    cells = _gram(nu, q) - members.pairs * total
    if k >= 3:
        lower = (weight.omega * basis[k - 3]).expand_as(batch.z)
        centred = torch.einsum("bhjl,bhl->bhj", nu, lower)
        mixed = covariance[:, :, None] * centred[..., None, :]
        cells = cells - (k - 2) * (mixed + mixed.transpose(-1, -2))
    if k >= 4:
        lowest = (weight.omega * basis[k - 4]).expand_as(batch.z).sum(-1)[..., None, None]
        cells = cells + (k - 2) * (k - 3) * covariance[:, :, None] * covariance[:, None, :] * lowest
    return cells


def _gram(nu: Tensor, q: Tensor) -> Tensor:
    """sum_t q nu_i nu_j: (batch, d_model, J, J)."""
    return (nu * q[:, :, None]) @ nu.transpose(-1, -2)


def _recurrence_gram(decomposition: WaveDecomposition, batch: Batch) -> Tensor:
    """sum p zeta_i zeta_j of modes, bias and skip by the recurrence identity: (batch, d_model, P + n_sources, same)."""
    n_modes = decomposition.system.n_modes
    size = n_modes + len(decomposition.sources)
    pool = 1 / batch.lengths.to(batch.u.dtype)[:, None]
    gram = batch.u.new_zeros(*batch.u.shape[:2], size, size)
    for sums in pair_sums(decomposition.system, batch.u, batch.lengths):
        gram[:, sums.rows, :n_modes, :n_modes] = sums.modes * pool[..., None, None]
        gram[:, sums.rows, :n_modes, n_modes + 1] = sums.skip * pool[..., None]
        gram[:, sums.rows, n_modes + 1, :n_modes] = gram[:, sums.rows, :n_modes, n_modes + 1]
        gram[:, sums.rows, n_modes + 1, n_modes + 1] = sums.both * pool
    with_bias = _joined(*decomposition.moments(batch, batch.pool[:, None] * batch.z_bias))
    gram[:, :, n_modes, :] = with_bias
    gram[:, :, :, n_modes] = with_bias
    return gram


def _joined(parts: Tensor, sources: Tensor) -> Tensor:
    """Parts (flattened) and sources along one last axis."""
    lead = sources.ndim - 1
    return torch.cat((parts.flatten(lead), sources), dim=-1)


class _Collector:
    """Gathers batches into full matrices, their class means, or the largest pairs."""

    def __init__(
        self,
        by: Pairs,
        labels: NDArray[np.str_] | None,
        decomposition: Decomposition,
        op: "ExplicitOperator",
        at: int | None,
    ) -> None:
        self.by, self.labels, self.decomposition, self.op, self.at = by, labels, decomposition, op, at
        self.chunks: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.sums: dict[str, Tensor] = {}

    def add(self, rows: slice, logits: Tensor, orders: list[Tensor]) -> None:
        values = torch.stack(orders)  # (order, batch, target, feature or 1, J, J)
        self.logits.append(logits)
        index = torch.arange(values.shape[1])
        if self.by.top:
            towards = logits.argmax(-1) if values.shape[2] > 1 else torch.zeros_like(index)
            self.chunks.append(_largest(values[:, index, towards], self.decomposition.n_parts, self.by.top))
        elif self.by.mean:
            assert self.labels is not None
            classes = self.op.model.config.classes
            for case, label in enumerate(self.labels[rows].tolist()):
                towards_own = classes.index(label) if values.shape[2] > 1 else 0
                self.sums[label] = self.sums.get(label, torch.zeros(())) + values[:, case, towards_own]
        else:
            self.chunks.append(values)

    def dataset(
        self, op: "ExplicitOperator", data: SequenceData, parts: tuple[Any, ...], target: Target, claim: str
    ) -> "xr.Dataset":
        import xarray as xr

        coords = case_coords(op, data, self.labels, torch.cat(self.logits).numpy(), self.at)
        coords["order"] = ("order", np.arange(2, op.order + 1))
        attrs = {**attributes(op, parts, target, data, claim, at=self.at), "pairs": repr(self.by)}
        if target.per_class and (self.by.top or self.by.mean):
            # One number per case again: that of the class the case is decided for, or belongs to.
            attrs["target"] += ", of the predicted class" if self.by.top else ", of each case's own class"
        if self.by.top:
            coords["rank"] = ("rank", np.arange(1, min(self.by.top, self._n_cells()) + 1))
            return in_units(xr.Dataset(self._top(claim), coords=coords, attrs=attrs), self.at)
        lead: tuple[str, ...] = ("case", "class") if target.per_class else ("case",)
        if self.by.mean:
            assert self.labels is not None
            names = [name for name in op.model.config.classes if name in self.sums]
            counts = [int((self.labels == name).sum()) for name in names]
            values = torch.stack([self.sums[name] / n for name, n in zip(names, counts, strict=True)], dim=1)
            values = values[:, :, None]
            lead = ("class",)
            coords = {"order": coords["order"], "class": ("class", np.array(names, dtype=object))}
            coords["n_cases"] = ("class", np.array(counts))
        else:
            values = torch.cat(self.chunks, dim=1)
            if target.per_class:
                coords["class"] = ("class", np.array(op.model.config.classes, dtype=object))
        coords.update(part_coords(op, self.decomposition, parts))
        coords["source"] = ("source", np.array(self.decomposition.sources, dtype=object))
        for name in ("source", *self.decomposition.dims):
            coords[f"{name}_2"] = (f"{name}_2", coords[name][1])
        per_class = target.per_class and not self.by.mean
        return in_units(xr.Dataset(self._matrices(values, lead, per_class, claim), coords=coords, attrs=attrs), self.at)

    def _matrices(self, values: Tensor, lead: tuple[str, ...], per_class: bool, claim: str) -> dict[str, Any]:
        d, n = self.decomposition, self.decomposition.n_parts
        array = values if per_class else values[:, :, 0]
        feature = ("feature",) if d.per_feature else ()
        if not d.per_feature:
            array = array.squeeze(-3)
        over = array.shape[:-2]
        second = tuple(f"{name}_2" for name in d.dims)
        sources = array[..., n:, n:]
        if d.per_feature:
            sources = sources.sum(-3)
        with_sources = array[..., :n, n:].reshape(*over, *d.shape, len(d.sources))
        text = {"units": "logit", "claim": claim}
        return {
            "pair_share": (
                ("order", *lead, *feature, *d.dims, *second),
                array[..., :n, :n].reshape(*over, *d.shape, *d.shape).numpy(),
                {**text, "long_name": "term of a pair of parts (off-diagonal cells stand twice)"},
            ),
            "pair_source_share": (
                ("order", *lead, *feature, *d.dims, "source"),
                with_sources.numpy(),
                {
                    **text,
                    "long_name": "term of a part with a source (stands once in the part's row, once in the source's)",
                },
            ),
            "source_pair_share": (
                ("order", *lead, "source", "source_2"),
                sources.numpy(),
                {**text, "long_name": "term of two sources"},
            ),
        }

    def _n_cells(self) -> int:
        n = self.decomposition.n_parts
        return (self.op.model.config.d_model if self.decomposition.per_feature else 1) * n * (n + 1) // 2

    def _top(self, claim: str) -> dict[str, Any]:
        found = torch.cat(self.chunks, dim=1).numpy()  # (order, case, rank, [value, feature, i, j])
        names = self._names()
        dims = ("order", "case", "rank")
        text = {"units": "logit", "claim": claim}
        first, second = (self._label(found[..., 1], found[..., i], names) for i in (2, 3))
        return {
            "pair_share": (dims, found[..., 0], {**text, "long_name": "content of an unordered pair (both cells)"}),
            "member": (dims, first, {"units": "1", "long_name": "first part", "claim": claim}),
            "member_2": (dims, second, {"units": "1", "long_name": "second part", "claim": claim}),
        }

    def _names(self) -> NDArray[np.object_]:
        d = self.decomposition
        coords = part_coords(self.op, d, normalise(self.by.by))
        axes = []
        for dim, size in zip(d.dims, d.shape, strict=True):
            values = coords[dim][1] if dim in coords else np.arange(size)
            axes.append([str(v) if dim in ("channel", "band") else f"{dim} {v}" for v in values])
        return np.array([" · ".join(names) for names in itertools.product(*axes)], dtype=object)

    def _label(self, feature: NDArray[Any], index: NDArray[Any], names: NDArray[np.object_]) -> NDArray[np.object_]:
        labels = names[index.astype(int)]
        if not self.decomposition.per_feature:
            return labels
        text = np.array([f"feature {int(f)} · " for f in feature.ravel()], dtype=object).reshape(feature.shape)
        return text + labels


def _largest(values: Tensor, n_parts: int, top: int) -> Tensor:
    """The largest unordered pairs by absolute content: (order, batch, rank, 4) of value, feature, i, j."""
    cells = values[..., :n_parts, :n_parts]
    i, j = torch.triu_indices(n_parts, n_parts)
    content = cells[..., i, j] * torch.where(i == j, 1.0, 2.0)  # (order, batch, feature, pairs)
    flat = content.flatten(2)
    count = min(top, flat.shape[-1])
    chosen = flat.abs().topk(count, dim=-1).indices
    value = torch.gather(flat, -1, chosen)
    feature, cell = chosen // len(i), chosen % len(i)
    return torch.stack((value, feature.double(), i[cell].double(), j[cell].double()), dim=-1)
