r"""Certificates per decision: what holds for every input in a set, not only for the inputs that were seen.

The set of a case is the box  abs(x_d(t) - x0_d(t)) <= r  in the preprocessed input, every channel and step at once. In it

    abs(z_h(t) - z0_h(t)) <= eps_h = r sum_d abs(E_hd) sum_l abs(K~_h[l])                                   (attained)
    M(x) >= M(x0) - r sum_{d,t} abs(dM/dx_d(t)) - max abs(g'')/2 sum_h abs(W_h) eps_h^2 =: lowest            (robustness)
    abs(M(x) - M_K(x)) <= sum_h abs(W_h) sum_t p(t) sup of abs(g - p_K) on z0_h(t) +- eps_h =: bound          (truncation)

for the margin M of the decided class over each rival. `lowest > 0` certifies that no input of the set flips the model (robustness);
`lowest > bound` that order K decides as the model does everywhere in the set (truncation). A set in which the model's decision
changes has no truncation certificate: where M = 0, M_K may have either sign.

Source: derived for this library; max abs(g'') = 2 phi(0) for erf-GELU; the sup by oplens.operators.polynomial.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.batch import Batch
from oplens.explanation.training import check_channels, gather, labels_of
from oplens.operators import diagonal
from oplens.operators.polynomial import Expansion, RemainderTable, normal_cdf, normal_density

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

ORDERS = (2, 4, 8, 16, 20)
HALF_CURVATURE = 1 / math.sqrt(2 * math.pi)  # max abs(g'') / 2 = phi(0)
ROUNDING = (
    1e-9  # relative to the sum of absolute terms of a margin: far above what float64 loses, far below what decides
)
ROOM = 0.5  # remainder tables reach this share of the training range beyond it; cases further out get no certificate


def certify(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    radius: float | Sequence[float] = 0.0,
    orders: Sequence[int] = ORDERS,
) -> "xr.Dataset":
    """Work behind :meth:`ExplicitOperator.certify`."""
    import xarray as xr

    from oplens.explanation.explain import case_coords

    data = as_sequences(X)
    check_channels(op.model, data, "certify")
    labels = labels_of(y if y is not None else data.y, len(data.X), "certify(y=...)")
    radii, degrees = _radii(radius), _orders(orders)
    if op.model.config.architecture != "plain" or op.model.config.n_classes < 2:
        raise ArgumentError(
            "certify: certificates are for the plain architecture with two classes or more; the reference architecture's "
            "gates and norms move with the input, and no bound on them is known here."
        )
    known = op.training.sequences(op.model.config)
    if known is None:
        raise ArgumentError(
            f"certify: the operator's training set ({op.training.source}) was above 64 MB and is not kept in it, and polynomials are "
            "fitted on its range; expand on fewer training cases."
        )
    reach = _reach(op, int(op.training.lengths.max()))  # of the training set, so that no other case moves a polynomial
    tables = [_table(op, k, max(radii) * reach) for k in degrees]
    batches = op.batches(data, np.zeros((1, op.model.config.n_classes)))
    values = gather((_certify_batch(op, batch, radii, tables) for _, batch in batches), {"remainder_bound": 1})
    coords = case_coords(op, data, labels, values.pop("logits"))
    text = {
        "units": "standard deviations" if _standardised(op) else "as preprocessed",
        "long_name": "half width of the input box",
    }
    coords["radius"] = ("radius", np.array(radii), {**text, "claim": "exact"})
    coords["order"] = ("order", np.array(degrees))
    variables = _variables(values, degrees)
    return xr.Dataset(
        variables, coords=coords, attrs=_attributes(op, data, known, reach, float(values["robust_radius"].max()))
    )


def _certify_batch(
    op: "ExplicitOperator", batch: Batch, radii: list[float], tables: list[RemainderTable]
) -> dict[str, Tensor]:
    """Lowest margins (case, radius), radius of robustness (case) and remainder bounds (order, case, radius) over all rivals."""
    W, response = op.model.decoder.weight, diagonal.kernel(op.system, batch.x.shape[-1], skip=True)
    reach = _reach_after(op, response)[:, batch.lengths - 1].T  # (batch, d_model): a case's own length
    decided = batch.logits.argmax(-1)
    slope = batch.pool[:, None] * (normal_cdf(batch.z) + batch.z * normal_density(batch.z))
    pulled = diagonal.adjoint(slope, response)  # of every feature; a margin's gradient mixes them by W and E
    lowest, robust, gaps = [], [], []
    bounds = [_per_feature(batch, table, r * reach) for table in tables for r in radii]
    excess = []
    for rival in range(W.shape[0]):
        rows = W[decided] - W[rival]  # (batch, d_model); zero for the decided class itself, which is masked below
        gradient = torch.einsum("bh,hd,bhl->bdl", rows, batch.encoder, pulled)
        slopes = gradient.abs().sum((1, 2))
        bend = HALF_CURVATURE * (rows.abs() * reach**2).sum(-1)
        scale = (rows.abs() * (batch.pool[:, None] * batch.z.abs()).sum(-1)).sum(-1) + batch.logits.abs().sum(-1)
        margin = batch.logits.gather(1, decided[:, None])[:, 0] - batch.logits[:, rival] - ROUNDING * scale
        own = decided == rival
        at = torch.stack([margin - r * slopes - r * r * bend for r in radii], dim=-1)
        lowest.append(at.masked_fill(own[:, None], math.inf))
        robust.append(_root(margin, slopes, bend).masked_fill(own, math.inf))
        gap = torch.stack([(rows.abs() * bound).sum(-1) for bound in bounds]).unflatten(0, (len(tables), len(radii)))
        gap = gap.permute(0, 2, 1)  # (order, batch, radius)
        gaps.append(gap.masked_fill(own[:, None], -math.inf))
        excess.append((lowest[-1] - gap).masked_fill(own[:, None], math.inf))
    return {
        "logits": batch.logits,
        "margin_lower_bound": torch.stack(lowest).amin(0),
        "robust_radius": torch.stack(robust).amin(0),
        "remainder_bound": torch.stack(gaps).amax(0),
        "certified": torch.stack(excess).amin(0).permute(1, 2, 0),
    }


def _per_feature(batch: Batch, table: RemainderTable, eps: Tensor) -> Tensor:
    """sum_t p(t) sup of abs(g - p_K) on z(t) +- eps: (batch, d_model); infinite where the table does not reach."""
    z = torch.where(batch.mask[:, None] > 0, batch.z, batch.z[..., :1])
    wide = eps[..., None] + 1e-12 * (1 + z.abs())  # z itself carries rounding
    bound = table.bound(z - wide, z + wide)
    return torch.where(batch.mask[:, None] > 0, batch.pool[:, None] * bound, 0.0).sum(-1)


def _root(margin: Tensor, slopes: Tensor, bend: Tensor) -> Tensor:
    """Largest r with margin - r slopes - r^2 bend >= 0, written so that bend = 0 needs no case of its own; 0 for lost margins."""
    margin = margin.clamp(min=0)
    denominator = slopes + torch.sqrt(slopes**2 + 4 * bend * margin)
    return torch.where(denominator > 0, 2 * margin / denominator.clamp(min=1e-300), math.inf)


def _reach(op: "ExplicitOperator", length: int) -> Tensor:
    """eps_h per unit radius: sum_d abs(E_hd) sum_l abs(K~_h[l]), (d_model,)."""
    return _reach_after(op, diagonal.kernel(op.system, length, skip=True))[:, -1]


def _reach_after(op: "ExplicitOperator", response: Tensor) -> Tensor:
    """The same after 1, 2, ... steps of a response (d_model, length)."""
    return op.model.encoder.weight.abs().sum(-1)[:, None] * response.abs().cumsum(-1) * (1 + 1e-12)


def _table(op: "ExplicitOperator", order: int, eps: Tensor) -> RemainderTable:
    """Chebyshev polynomial on the training range widened by eps, certified on that and some room around it."""
    low, high = op.training_range()
    low, high = low - eps, high + eps
    expansion = Expansion.chebyshev(order, low, high)
    room = ROOM * (high - low)
    return RemainderTable.of(expansion, low - room, high + room)


def _variables(values: dict[str, Any], degrees: list[int]) -> dict[str, Any]:
    certified = values["certified"] > 0  # (case, radius, order)
    first = np.where(certified.any(-1), np.array(degrees)[certified.argmax(-1)], 0)
    robust = values["margin_lower_bound"] > 0
    return {
        "remainder_bound": (
            ("order", "case", "radius"),
            values["remainder_bound"],
            {
                "units": "logit",
                "long_name": "bound on what order K leaves out of the margin, largest over rivals",
                "claim": "bound",
            },
        ),
        "margin_lower_bound": (
            ("case", "radius"),
            values["margin_lower_bound"],
            {
                "units": "logit",
                "long_name": "bound from below on the model's smallest margin in the set",
                "claim": "bound",
            },
        ),
        "certified_order": (
            ("case", "radius"),
            first,
            {
                "units": "1",
                "long_name": "lowest order that decides as the model everywhere in the set; 0: none",
                "claim": "bound",
            },
        ),
        "robust": (
            ("case", "radius"),
            robust,
            {"units": "1", "long_name": "no input of the set flips the model", "claim": "bound"},
        ),
        "robust_radius": (
            ("case",),
            values["robust_radius"],
            {"units": "as radius", "long_name": "largest box in which the decision is certified", "claim": "bound"},
        ),
        "certified_fraction": (
            ("order", "radius"),
            certified.mean(0).T,
            {"units": "1", "long_name": "share of cases whose truncation is certified", "claim": "bound"},
        ),
        "robust_fraction": (
            ("radius",),
            robust.mean(0),
            {"units": "1", "long_name": "share of cases whose decision is certified", "claim": "bound"},
        ),
    }


def _attributes(
    op: "ExplicitOperator", data: SequenceData, known: SequenceData, reach: Tensor, widest: float
) -> dict[str, Any]:
    from oplens.results import provenance

    low, high = op.training_range()
    seen = torch.maximum(low.abs(), high.abs())
    none = np.zeros((1, op.model.config.n_classes))
    largest = max(float(batch.x.abs().max()) for _, batch in op.batches(known, none))
    whole = largest * reach
    reached = "no case here is certified that far" if widest < largest else "some case here is certified that far"
    return {
        **provenance(source=data.source),
        "family": "chebyshev",
        "training_hash": op.training.digest,
        "set": "box around each case in the preprocessed input: every channel and step within the radius",
        "global_box": (
            f"For all inputs no larger than the largest training value ({largest:.3g}), pre-activations are bounded by up to "
            f"{float(whole.max()):.3g}, where training inputs reach {float(seen.max()):.3g}; {reached} (largest certified radius {widest:.3g})."
        ),
    }


def _standardised(op: "ExplicitOperator") -> bool:
    preprocessing = op.model.config.preprocessing
    return preprocessing is not None and any(scale != 1 for scale in preprocessing.scale)


def _radii(radius: float | Sequence[float]) -> list[float]:
    values = [float(r) for r in np.atleast_1d(np.asarray(radius, dtype=float))]
    if not values or not all(math.isfinite(r) and r >= 0 for r in values):
        raise ArgumentError(
            f"certify(radius={radius!r}): give finite radii of at least 0, in units of the preprocessed input."
        )
    return values


def _orders(orders: Sequence[int]) -> list[int]:
    values = list(orders)
    if not values or any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in values):
        raise ArgumentError(f"certify(orders={orders!r}): give whole numbers of at least 1, such as (2, 8, 16).")
    return sorted({int(k) for k in values})
