r"""Certificates per decision: what holds for every input in a set, not only for the inputs that were seen.

The set of a case is the box  abs(x_d(t) - x0_d(t)) <= r s_d  in the data, every channel and step at once
(:mod:`oplens.explanation.certificates.boxes`).
For the margin M of the decided class over each rival, and the margin M_K of the operator cut at order K,

    M > 0 all over the box             no input of the set flips the model                         (robustness)
    M > 0 and M_K > 0 all over it      order K decides as the model does everywhere in the set     (truncation)

by the bounds from below in :mod:`oplens.explanation.certificates.certified_margins`. The two questions are kept apart: where M may
be negative no truncation is certified, whatever M_K does, and a robust decision says nothing about any order.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.batch import Batch
from oplens.explanation.certificates.boxes import Box
from oplens.explanation.certificates.certified_margins import ROOM, Polynomials, Robustness, Setting, flipped, truncated
from oplens.explanation.certificates.remainders import Remainders
from oplens.explanation.steps import check_pooled
from oplens.explanation.training import batches, check_channels, check_family, chunks, fit_expansion, gather, labels_of
from oplens.operators.polynomial import Expansion

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

HIGHEST = 64
ORDERS = (1, 2, 4, 8, 16)
NICE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # radii of a decade
MOST_RADII = 12
SAMPLE = 64  # cases that choose the radii


def certify(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    radius: float | Sequence[float] | None = 0.0,
    orders: Sequence[int] = ORDERS,
    scale: float | Sequence[float] | None = None,
    family: str | None = None,
) -> "xr.Dataset":
    """Certificates per case: in which box the decision cannot flip, and which order decides as the model does all over it.

    The box of a case is abs(x_d(t) - x0_d(t)) <= radius * scale_d in the data, every channel and step at once; with preprocessing that
    removes every case's own offset, it is what is left of that box. Plain architecture.

    Parameters
    ----------
    X, y
        As for :meth:`explain`.
    radius : float, sequence of float, or None
        Sizes of the box; None chooses 0 and round numbers from where nearly all decisions are certified to where none is.
    orders : sequence of int
        Orders asked whether they decide as the model does.
    scale : float or sequence of float, optional
        Half width of the box at radius 1, in the units of the data, for all channels or one each (0: the channel stays as it is). The
        default is the model's own scale: radii then count standard deviations.
    family : str, optional
        Polynomials whose orders are asked: `hermite`, `taylor`, `chebyshev` or `empirical`. The default is the operator's own.

    Returns
    -------
    xarray.Dataset
        Robustness, claim *bound*: `robust` (case, radius), `robust_radius` (case), `robust_fraction` (radius), `margin_lower_bound`
        (case, radius). Truncation, claim *bound*: `certified_order` (case, radius), the lowest that decides as the model everywhere in the
        box, 0 for none; `truncated_radius` (order, case), up to which it does, as far as the radii reach; `certified_fraction` (order,
        radius); `remainder_bound` and `truncated_margin_lower_bound` (order, case, radius).
        Beside them `margin` (case), *exact*; `flipped_radius` (case), at which a step against the gradient was seen to flip the
        decision, *measured*; `half_width` (channel). Attributes `set` and `global_box` say what the set is, and what is known of all
        inputs at once.

    Raises
    ------
    ArgumentError
        For the reference architecture, one class, a training set that is not kept, radii or half widths that are negative or not
        finite, orders below 1.

    Notes
    -----
    Accuracy: *bound*; rounding is allowed for. A decision that is not certified may well be stable.
    Cost: one forward pass, an adjoint pass per order and one more, a readout per try for `flipped_radius`, and a look-up per radius and
    order.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4))
    >>> X = np.random.default_rng(0).normal(size=(4, 1, 30))
    >>> ds = expand(model, X).certify(X, radius=[0.0, 0.01], orders=(2, 8))
    >>> bool((ds.robust_radius > 0).all()), ds.certified_order.dims
    (True, ('case', 'radius'))
    """
    import xarray as xr

    from oplens.explanation.accounts.coordinates import case_coords

    data = as_sequences(X)
    check_channels(op.model, data, "certify")
    labels = labels_of(y if y is not None else data.y, len(data.X), "certify(y=...)")
    radii, degrees = None if radius is None else _radii(radius), _orders(orders)
    _check_model(op)
    expansion = _expansion(op, family, degrees[-1])
    setting = Setting.of(op, Box.of(op.model.config, scale))
    radii = _chosen_radii(setting, data) if radii is None else radii
    polynomials = _polynomials(op, expansion, degrees)
    values = gather(_certified(setting, polynomials, data, radii), dict.fromkeys(BY_ORDER, 1))
    coords = case_coords(op, data, labels, values.pop("logits"))
    units = _units(op, scale)
    text = {"units": units, "long_name": "half width of the input box, in multiples of half_width", "claim": "exact"}
    coords["radius"] = ("radius", np.array(radii), text)
    coords["order"] = ("order", np.array(degrees))
    coords["channel"] = ("channel", np.array(op.model.config.channels, dtype=object))
    variables = _variables(values, degrees, setting.box, units)
    return xr.Dataset(variables, coords=coords, attrs=_attributes(setting, data, expansion, values["robust_radius"]))


BY_ORDER = ("truncated_margin_lower_bound", "remainder_bound", "truncated_radius")


def _certified(
    setting: Setting, polynomials: Polynomials, data: SequenceData, radii: list[float]
) -> Iterator[dict[str, Tensor]]:
    """Batch by batch: margins over the rivals at every radius, radii of robustness and of flips, and the truncations."""
    for _, batch in _batches(setting.op, data):
        robust = Robustness.of(setting, batch)
        yield {
            "logits": batch.logits,
            "margin": robust.margin.amin(-1),
            "margin_lower_bound": torch.stack([robust.lowest(r).amin(-1) for r in radii], dim=-1),
            "robust_radius": robust.radius(),
            "flipped_radius": flipped(setting, batch, robust),
            **truncated(setting, polynomials, batch, robust, radii),
        }


def _batches(op: "ExplicitOperator", data: SequenceData) -> Iterator[tuple[slice, Batch]]:
    return batches(op.model, data.X, data.lengths, np.zeros((1, op.model.config.n_classes)))


def _check_model(op: "ExplicitOperator") -> None:
    check_pooled(op, "certify")
    if op.model.config.architecture != "plain" or op.model.config.n_classes < 2:
        raise ArgumentError(
            "certify: certificates are for the plain architecture with two classes or more; the reference architecture's "
            "gates and norms move with the input, and no bound on them is known here."
        )
    if op.training.X is None:
        raise ArgumentError(
            f"certify: the operator's training set ({op.training.source}) was above 64 MB and is not kept in it, and the bounds on what "
            "polynomials leave are tabulated on its range; expand on fewer training cases."
        )


def _expansion(op: "ExplicitOperator", family: str | None, order: int) -> Expansion:
    """The polynomials to be certified: the operator's own where they reach far enough."""
    assert op.expansion is not None  # the plain architecture has one layer
    family = op.family if family is None else family
    check_family(family, order)
    if family == op.family and order <= op.order:
        return op.expansion
    X, lengths = op.statistics.inputs()
    return fit_expansion(op.model, X, lengths, family, order)


def _polynomials(op: "ExplicitOperator", expansion: Expansion, orders: list[int]) -> Polynomials:
    low, high = op.statistics.range
    room = ROOM * (high - low)
    tables = Remainders.of(expansion, tuple(orders), low - room, high + room)
    return Polynomials(expansion.truncated(orders[-1]).recurrence(), tables)


def _chosen_radii(setting: Setting, data: SequenceData) -> list[float]:
    """0 and round numbers from where nearly all of a sample's decisions are certified to where none is."""
    rows = np.unique(np.linspace(0, data.n_cases - 1, min(SAMPLE, data.n_cases)).astype(int))
    sample = _batches(setting.op, data.select(rows.tolist()))
    found = torch.cat([Robustness.of(setting, batch).radius() for _, batch in sample]).numpy()
    found = found[np.isfinite(found) & (found > 0)]
    if not len(found):
        return [0.0]
    low, high = np.log10(np.quantile(found, 0.05) / 4), np.log10(found.max())
    steps = [
        float(f"{nice * 10.0**decade:.3g}")
        for decade in range(math.floor(low) - 1, math.ceil(high) + 2)
        for nice in NICE
    ]
    inside = [r for r in steps if 10**low <= r < 10**high]
    beyond = next(r for r in steps if r >= 10**high)
    return [0.0, *inside[:: -(-len(inside) // MOST_RADII)], beyond]


def _variables(values: dict[str, Any], degrees: list[int], box: Box, units: str) -> dict[str, Any]:
    robust = values["margin_lower_bound"] > 0
    certified = (values["truncated_margin_lower_bound"] > 0) & robust  # (order, case, radius)
    first = np.where(certified.any(0), np.array(degrees)[certified.argmax(0)], 0)
    found: dict[str, tuple[Any, Any, str, str, str]] = {
        "robust": (("case", "radius"), robust, "1", "no input of the set flips the model", "bound"),
        "robust_radius": (
            ("case",),
            values["robust_radius"],
            units,
            "largest box in which the decision is certified",
            "bound",
        ),
        "robust_fraction": (("radius",), robust.mean(0), "1", "share of cases whose decision is certified", "bound"),
        "flipped_radius": (
            ("case",),
            values["flipped_radius"],
            units,
            "box in which a step against the gradient was seen to flip the decision; infinite: none was found",
            "measured",
        ),
        "margin": (
            ("case",),
            values["margin"],
            "logit",
            "margin of the decided class over the next, at the case itself",
            "exact",
        ),
        "margin_lower_bound": (
            ("case", "radius"),
            values["margin_lower_bound"],
            "logit",
            "bound from below on the model's smallest margin in the set",
            "bound",
        ),
        "certified_order": (
            ("case", "radius"),
            first,
            "1",
            "lowest of the orders that decides as the model everywhere in the set; 0: none",
            "bound",
        ),
        "certified_fraction": (
            ("order", "radius"),
            certified.mean(1),
            "1",
            "share of cases whose truncation is certified",
            "bound",
        ),
        "truncated_margin_lower_bound": (
            ("order", "case", "radius"),
            values["truncated_margin_lower_bound"],
            "logit",
            "bound from below on the smallest margin, in the set, of the operator cut at an order",
            "bound",
        ),
        "truncated_radius": (
            ("order", "case"),
            values["truncated_radius"],
            units,
            "box up to which an order is certified to decide as the model, as far as the radii show",
            "bound",
        ),
        "remainder_bound": (
            ("order", "case", "radius"),
            values["remainder_bound"],
            "logit",
            "bound on what an order leaves out of the margin in the set, largest over rivals",
            "bound",
        ),
        "half_width": (
            ("channel",),
            box.half_width.numpy(),
            "as in the data",
            "half width of the box at radius 1",
            "exact",
        ),
    }
    return {
        name: (dims, array, {"units": unit, "long_name": text, "claim": claim})
        for name, (dims, array, unit, text, claim) in found.items()
    }


def _attributes(
    setting: Setting, data: SequenceData, expansion: Expansion, robust_radius: NDArray[np.float64]
) -> dict[str, Any]:
    from oplens.results import provenance

    op = setting.op
    moved = ", less its own offset, which the model takes off" if setting.box.centred else ""
    return {
        **provenance(source=data.source),
        "family": expansion.family,
        "training_hash": op.training.digest,
        "set": "box around each case in the data, every channel and step at once within radius times the channel's half width"
        + moved,
        "global_box": _global_box(setting, robust_radius),
        "curvature": "bounded for all inputs"
        if setting.domain is None
        else f"bounded where pre-activations stay within the training range and {ROOM:.0%} of it beyond: no larger box is certified",
    }


def _global_box(setting: Setting, robust_radius: NDArray[np.float64]) -> str:
    """What is known of all inputs of the training set's size at once, which is next to nothing."""
    op = setting.op
    X, lengths = op.statistics.inputs()
    largest = max(
        float(op.model.preprocess(raw, steps)[0].abs().max())
        for _, raw, steps in chunks(X, lengths, op.model.config.d_input)
    )
    longest, everything = int(lengths.max()), Setting.of(op, Box.cube(op.model.config.d_input, largest))
    bias = op.model.encoder.bias[:, None] * everything.response(longest)[0].cumsum(-1)
    bound = everything.reach_after(longest).amax(-1) + bias.abs().amax(-1)
    low, high = op.statistics.range
    seen = float(torch.maximum(low.abs(), high.abs()).max())
    widest = float(robust_radius.max() * float(setting.box.width.min())) if setting.box.width.min() > 0 else 0.0
    reached = "no case here is certified that far" if widest < largest else "some case here is certified that far"
    return (
        f"For all inputs no larger than the largest training value ({largest:.3g} after preprocessing), pre-activations are bounded by up "
        f"to {float(bound.max()):.3g}, where training inputs reach {seen:.3g}; {reached} (largest certified half width {widest:.3g})."
    )


def _units(op: "ExplicitOperator", scale: Any) -> str:
    """What a radius counts."""
    preprocessing = op.model.config.preprocessing
    assert preprocessing is not None
    if scale is None:
        return "standard deviations" if any(value != 1 for value in preprocessing.scale) else "as in the data"
    return "as in the data" if np.ndim(scale) == 0 and float(scale) == 1 else "half widths"


def _radii(radius: Any) -> list[float]:
    try:
        values = np.asarray(radius, dtype=float)
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if values.ndim > 1 or values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
        raise ArgumentError(
            f"certify(radius={radius!r}): give finite radii of at least 0, in multiples of the box's half widths (standard deviations "
            "unless scale= says otherwise), or None for a range that suits the cases."
        )
    return [float(r) for r in np.atleast_1d(values)]


def _orders(orders: Any) -> list[int]:
    values = list(orders) if isinstance(orders, Sequence | np.ndarray) and not isinstance(orders, str) else []
    if not values or any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in values):
        raise ArgumentError(f"certify(orders={orders!r}): give whole numbers of at least 1, such as (2, 8, 16).")
    if max(values) > HIGHEST:
        raise ArgumentError(
            f"certify(orders={orders!r}): orders beyond {HIGHEST} take minutes and certify no more; lower them."
        )
    return sorted({int(k) for k in values})
