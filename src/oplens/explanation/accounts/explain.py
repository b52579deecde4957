"""From an operator and sequences to a Dataset of terms (docs/schema.md)."""

import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts.coordinates import case_coords, part_coords
from oplens.explanation.accounts.decomposition import Decomposition, decompose
from oplens.explanation.accounts.shares import Moments, Shares, class_orders, remainder, shares
from oplens.explanation.batch import Batch
from oplens.explanation.parts import Bands, By, LayerWaves, Pairs, Waves, normalise
from oplens.explanation.steps import check_at, check_pooled
from oplens.explanation.targets import Outputs, Target, default_target
from oplens.explanation.training import batches, check_channels, gather, labels_of, spread_of
from oplens.operators import diagonal
from oplens.operators.polynomial import Expansion

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator


BY_ORDER = ("share", "source_share", "truncated_logits")  # orders before cases
FOREIGN_SCALE = 300.0  # millivolts for microvolts are 1000; recordings of one device differ by tens at most


def explain(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    by: "By | Pairs" = Waves(),  # noqa: B008 - frozen
    target: Target | None = None,
    *,
    at: int | None = None,
    X_train: Any = None,
    memory_limit: int = 2 * 2**30,
) -> "xr.Dataset":
    """Every decision as a sum of terms.

    Parameters
    ----------
    X : array (n_cases, n_channels, n_timepoints), list of (n_channels, n_timepoints), or SequenceData
        Raw values; the model's own preprocessing is applied.
    y : sequence of str, optional
        True labels; they become the coordinate `label`.
    by : Waves, LayerWaves, Channels, Bands, Windows, a tuple of them, or Pairs
    target : Target, optional
        Default: the margin of the second class over the first, or class-centred logits; the outputs themselves where the model
        answers at every step.
    at : int, optional
        For models that answer at every step (pooling='none'), and needed there: the step whose answer is explained, counted from 0,
        or from each case's own end if negative.
    X_train : optional
        Asked for only when the operator could not keep its training inputs (above 64 MB).
    memory_limit : int
        Bytes; a result that would not fit is refused before work starts.

    Returns
    -------
    xarray.Dataset
        As docs/schema.md says; `share` sums with `source_share`, `order_0` and `remainder` to `target`.

    Raises
    ------
    ArgumentError, DataError
        With a sentence, before work starts.

    Notes
    -----
    Accuracy: *exact* for the plain architecture, *conditional* (frozen gates and norm scales) for the reference;
    completeness to 1e-10 of the sum of absolute terms by three independent routes.
    Cost: O(order) forward passes, plus O(n_cases d_model P length) multiply-adds per order for waves.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> X = np.random.default_rng(0).normal(size=(3, 2, 20))
    >>> expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=2, d_state=4)), X).explain(X).share.dims
    ('order', 'case', 'feature', 'wave')
    >>> volterra = S4D(S4DConfig(d_input=2, n_classes=1, d_model=2, d_state=4, readout="polynomial", degree=2, pooling="none"))
    >>> ds = expand(volterra, X).explain(X, at=-1)  # the last answer of every case
    >>> ds.share.dims, ds.step.values.tolist(), bool(abs(ds.remainder).max() < 1e-12)
    (('order', 'case', 'class', 'feature', 'wave'), [19, 19, 19], True)
    """
    data = as_sequences(X)
    check_channels(op.model, data, "explain")
    _warn_of_units(op, data)
    labels = labels_of(y if y is not None else data.y, len(data.X), "explain(y=...)")
    at = check_at(op.model.config, at, data.lengths, "explain")
    target = _target(op, target, at)
    if isinstance(by, Pairs):
        from oplens.explanation.accounts.pairs import explain_pairs

        return explain_pairs(op, data, labels, by, target, X_train, memory_limit, at)
    parts = concrete(op, by)
    if isinstance(parts[0], LayerWaves) or (op.expansion is None):
        from oplens.explanation.accounts.stacks import explain_stack

        check_pooled(op, f"explain(by={parts[0]!r})", "use by=Waves(), whose full shares are exact")
        return explain_stack(op, data, labels, parts, target, memory_limit)
    return _explain_orders(op, data, labels, parts, target, X_train, memory_limit, at)


def _target(op: "ExplicitOperator", target: Any, at: int | None) -> Target:
    classes = op.model.config.classes
    if target is None and at is not None:
        return Outputs()
    if len(classes) < 2 and target is None:
        raise ArgumentError(
            "explain: a model with one class has nothing to decide; pass a target of your own, such as Outputs()."
        )
    target = default_target(classes) if target is None else target
    if not isinstance(target, Target):
        raise ArgumentError(
            f"explain(target={target!r}): give Margin(towards, against) or CentredLogits(); the classes are {', '.join(classes)}."
        )
    return target


def _warn_of_units(op: "ExplicitOperator", data: SequenceData) -> None:
    """Warn when the sequences are hundreds of times larger or smaller than the training set, as volts for microvolts are."""
    if op.training.X is None:
        return
    own = spread_of(data.X, data.lengths)
    trained = op.training.spread
    alive = (own > 0) & (trained > 0)
    ratio = float(np.median(own[alive] / trained[alive])) if alive.any() else 1.0
    if not 1 / FOREIGN_SCALE < ratio < FOREIGN_SCALE:
        warnings.warn(
            f"explain: the sequences vary {ratio:.1g} times as much as the training set; are both in the same units (volts, "
            "microvolts)?",
            UserWarning,
            stacklevel=4,
        )


def concrete(op: "ExplicitOperator", by: By) -> tuple[Any, ...]:
    """A product in canonical order with default bands fixed by the training set, so that no case's own length moves them."""
    rate, length = op.model.config.sampling_rate or 1.0, int(op.training.lengths.max())
    return tuple(Bands(part.resolve(rate, length)) if isinstance(part, Bands) else part for part in normalise(by))


def _explain_orders(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    parts: tuple[Any, ...],
    target: Target,
    X_train: Any,
    memory_limit: int,
    at: int | None,
) -> "xr.Dataset":
    import xarray as xr

    assert op.expansion is not None
    system = op.system
    decomposition = decompose(parts, op.model.config, system)
    directions = target.directions(op.model.config.classes)
    features = op.model.config.d_model if decomposition.per_feature else 1
    values = (op.order + 1) * len(data.X) * len(directions) * features * decomposition.n_parts
    check_memory(values, memory_limit, "explain", "explain fewer cases at a time, or coarser parts")
    moments = op.statistics.moments(parts, decomposition, X_train)
    arrays = _arrays(op, decomposition, data.X.shape[-1], len(directions))
    towards = torch.from_numpy(directions)
    parted = batches(op.model, data.X, data.lengths, directions, arrays, at)
    terms = (_terms(op, system, batch, decomposition, moments, towards) for _, batch in parted)
    per_case = gather(terms, dict.fromkeys(BY_ORDER, 1))
    claim = "exact" if op.model.config.architecture == "plain" else "conditional"
    variables = {**_variables(per_case, decomposition, target, claim), **expansion_variables(op.expansion)}
    coords = {**case_coords(op, data, labels, per_case["logits"], at), **part_coords(op, decomposition, parts)}
    coords["order"] = ("order", np.arange(1, op.order + 1))
    coords["source"] = ("source", list(decomposition.sources))
    coords["class"] = ("class", list(op.model.config.classes))
    ds = xr.Dataset(variables, coords=coords, attrs=attributes(op, parts, target, data, claim, at=at))
    return in_units(complete(ds, ("order_0", "share", "source_share", "remainder")), at)


def in_units(ds: "xr.Dataset", at: int | None) -> "xr.Dataset":
    """What a step is answered with is no logit."""
    for variable in ds.data_vars.values():
        if at is not None and variable.attrs.get("units") == "logit":
            variable.attrs["units"] = "output"
    return ds


def _arrays(op: "ExplicitOperator", decomposition: Decomposition, length: int, n_targets: int) -> int:
    """Working arrays of (d_model, length) per case beyond the usual ones: readout weights of classes, bands of the input, cells."""
    config = op.model.config
    weights = config.n_classes + n_targets if config.architecture == "reference" else 0
    bands = dict(zip(decomposition.dims, decomposition.shape, strict=True)).get("band", 0)
    return weights + bands * config.d_input // config.d_model + decomposition.n_parts // length


def _terms(
    op: "ExplicitOperator",
    system: diagonal.DiagonalSystem,
    batch: Batch,
    decomposition: Decomposition,
    moments: Moments,
    directions: Tensor,
) -> dict[str, Tensor]:
    """Everything an explanation holds of one batch."""
    assert op.expansion is not None
    result = shares(batch, decomposition, op.expansion, moments)
    # The remainder takes a route of its own: the recurrence, where the terms correlate and the model convolves.
    scanned, _ = diagonal.scan(system, batch.u_all)
    return {
        **{field.name: getattr(result, field.name) for field in fields(Shares)},
        "remainder": remainder(batch, scanned, op.expansion),
        "target": batch.logits @ directions.T,
        "logits": batch.logits,
        "truncated_logits": class_orders(batch, op.expansion),
    }


def _variables(
    values: dict[str, NDArray[np.float64]], decomposition: Decomposition, target: Target, claim: str
) -> dict[str, tuple[Any, ...]]:
    """Arrays as xarray variables; the target axis is dropped for a margin, named `class` otherwise."""
    lead = ("case", "class") if target.per_class else ("case",)
    parts = (("feature",) if decomposition.per_feature else ()) + decomposition.dims
    axes = {
        "share": (("order", *lead, *parts), "term of a part at an order", claim),
        "source_share": (("order", *lead, "source"), "terms that are no part", claim),
        "order_0": (lead, "constant of the expansion and decoder bias", claim),
        "remainder": (lead, "what the truncation leaves, pointwise from the recurrence", claim),
        "full_share": ((*lead, *parts), "exact share of a part through the whole readout", claim),
        "source_full_share": ((*lead, "source"), "exact shares that are no part", claim),
        "full_constant": (lead, "constant of the exact shares", claim),
        "target": (lead, "explained number, from the model's own convolution", "exact"),
    }
    variables: dict[str, tuple[Any, ...]] = {}
    for name, (dims, text, word) in axes.items():
        array = values[name]
        if not target.per_class:
            array = array.squeeze(axis=2 if name in BY_ORDER else 1)
        variables[name] = (dims, array, {"units": "logit", "long_name": text, "claim": word})
    variables["logits"] = (
        ("case", "class"),
        values["logits"],
        {"units": "logit", "long_name": "logits of the model", "claim": "exact"},
    )
    variables["truncated_logits"] = (
        ("order", "case", "class"),
        values["truncated_logits"],
        {"units": "logit", "long_name": "logits of the operator cut after each order", "claim": "truncated"},
    )
    return variables


def complete(ds: "xr.Dataset", terms: tuple[str, ...]) -> "xr.Dataset":
    """Add the sum of absolute terms, what the sum of terms misses of the target, and the cancellation ratio."""
    import xarray as xr

    lead = ds["target"].dims
    total, absolute = xr.zeros_like(ds["target"]), xr.zeros_like(ds["target"])
    for name in terms:
        over = [dim for dim in ds[name].dims if dim not in lead]
        total = total + ds[name].sum(over)
        absolute = absolute + abs(ds[name]).sum(over, skipna=False)
    target = ds["target"]
    undefined = ~np.isfinite((absolute + abs(target)).values)
    if undefined.any():
        case = int(np.argwhere(undefined)[0, target.dims.index("case")])
        raise ArgumentError(
            f"explain: the terms of case {case} leave double precision; its values are too far from the training data, or the order "
            f"is too high ({ds.attrs.get('order', 0)}): rescale the data, or lower the order."
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # a target of exactly 0 cancels without limit
        ratio = absolute / abs(target)
    ds = ds.assign(sum_abs_terms=absolute, completeness_residual=total - target, cancellation_ratio=ratio)
    texts = {
        "sum_abs_terms": ("logit", "sum of absolute terms"),
        "completeness_residual": ("logit", "sum of all terms minus target"),
        "cancellation_ratio": ("1", "sum of absolute terms / |target|"),
    }
    for name, (units, text) in texts.items():
        ds[name].attrs = {"units": units, "long_name": text, "claim": "measured"}
    return ds


def expansion_variables(expansion: Expansion) -> dict[str, tuple[Any, ...]]:
    """Where every feature's readout was expanded: without it the orders cannot be read."""
    # Taylor's centre is chosen; the others are moments of the training pre-activations, without an interval, so not "fitted".
    text = {"units": "1", "claim": "exact" if expansion.family == "taylor" else "measured"}
    scale = np.sqrt(expansion.variance.numpy())
    return {
        "centre": ("feature", expansion.centre.numpy(), {**text, "long_name": "centre of the expansion"}),
        "scale": ("feature", scale, {**text, "long_name": "scale of the expansion (0 for Taylor)"}),
    }


def attributes(
    op: "ExplicitOperator",
    parts: tuple[Any, ...],
    target: Target,
    data: SequenceData,
    claim: str,
    frozen: str = "gates and norm scales",
    at: int | None = None,
) -> dict[str, Any]:
    """Attributes of a partition's Dataset; `frozen` names the factors that a conditional account holds fixed."""
    from oplens.results import provenance

    config = op.model.config
    asked = {} if at is None else {"at": at}
    account = "exact" if claim == "exact" else f"{claim}: {frozen} frozen at their values on each input"
    return {
        **provenance(source=data.source),
        "family": op.family,
        "order": op.order,
        "partition": ", ".join(map(repr, parts)),
        "target": target.describe(),
        "architecture": config.architecture,
        "training_hash": op.training.digest,
        "sampling_rate": config.sampling_rate if config.sampling_rate is not None else "unknown",
        "account": account,
        "wave_ordering": "as stored in the model",
        **asked,
    }


def check_memory(values: int, limit: int, call: str, cure: str, what: str = "result") -> None:
    """Say the number of values and bytes of a result that would not fit, before work starts."""
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number) or not limit > 0:
        raise ArgumentError(f"{call}(memory_limit={limit!r}): give a number of bytes above 0, such as 2 * 2**30.")
    size = values * 8
    if size > limit:
        raise ArgumentError(
            f"{call}: the {what} would hold {values:,} values ({size / 2**30:.1f} GiB), above the limit of "
            f"{limit / 2**30:.1f} GiB; {cure}, or raise memory_limit."
        )
