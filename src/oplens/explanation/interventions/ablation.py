r"""Ablation: what the model does without a part, beside what the operator and the part's share predict.

A part i is scaled to `keep` of itself: its pre-activation zeta_i becomes keep zeta_i (waves), or its input x_i becomes keep x_i (channels,
bands, windows), one part at a time. Three numbers for every case and part:

    actual       the model run with it, minus the model as it is
    predicted    the operator cut after each order, with it minus as it is (plain architecture)
    by share     -(1 - keep) times the part's share: what would change if shares were independent

The last two differ where the part meets others or itself: at order 2 a share holds half of what two parts do together, and removing
either of them removes it all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts.decomposition import InputDecomposition, WaveDecomposition, decompose
from oplens.explanation.accounts.explain import concrete
from oplens.explanation.interventions.search import of_preprocessed
from oplens.explanation.parts import By, LayerWaves, Pairs, Waves
from oplens.explanation.steps import check_pooled, readout_of
from oplens.explanation.targets import Target, default_target
from oplens.explanation.training import batches, chunks, gather, known_labels
from oplens.models.s4d import S4D, Trace
from oplens.operators import diagonal

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

FEW = 64  # parts ablated when none are named: all of them up to this many, else those of the largest shares


@dataclass(frozen=True)
class _Inputs:
    """What an input decomposition asks for to give the parts of x themselves: an encoder that leaves them as they are."""

    x: Tensor
    mask: Tensor
    lengths: Tensor
    encoder: Tensor
    drive: Tensor


def ablate(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    by: By = Waves(),  # noqa: B008 - frozen
    parts: Sequence[Any] | int | None = None,
    keep: float = 0.0,
    target: Target | None = None,
    *,
    X_train: Any = None,
    memory_limit: int = 2 * 2**30,
) -> "xr.Dataset":
    """The model run without a part, one part at a time, beside what the operator and the part's share foretell.

    Parameters
    ----------
    X, y, target, X_train, memory_limit
        As for :meth:`explain`.
    by : Waves, or Channels, Bands, Windows and their products
    parts : sequence or int, optional
        Parts by their place in every dimension, such as `[(3, 17)]` (feature, wave) or `["Cz"]`; or how many of the largest
        mean absolute share. Default: all up to 64, else the 64 largest.
    keep : float
        What is left of a part, any finite number: 0 removes it, 0.5 halves it.

    Returns
    -------
    xarray.Dataset
        `actual_change`, `share_change` (case, [class], rank), `predicted_change` and `share_change_by_order` (order, case,
        [class], rank), in logits; `agreement`, `accuracy` (rank), R^2 of the predictions; coordinate `member` (rank) names the parts.

    Raises
    ------
    ArgumentError, DataError
        For waves of stacks, pairs, products of waves and parts of the input, parts that do not exist, a model with one class.

    Notes
    -----
    `actual_change` is *exact*. `predicted_change` is the operator cut after each order, run without the part (*truncated*, plain
    architecture). Minus the share is what would change if parts did not interact. Cost: a pass of the model per part of the input;
    per wave, one convolution of one feature.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import Channels, S4D, S4DConfig, expand
    >>> X = np.random.default_rng(0).normal(size=(4, 2, 30))
    >>> ds = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=4)), X).ablate(X, by=Channels())
    >>> ds.actual_change.dims, ds.member.values.tolist()
    (('case', 'rank'), ['channel 1', 'channel 2'])
    """
    check_pooled(op, "ablate")
    _check(op, by, keep)
    split = concrete(op, by)
    decomposition = decompose(split, op.model.config, op.system)
    if not isinstance(decomposition, WaveDecomposition | InputDecomposition):
        raise ArgumentError(f"ablate(by={by!r}): ablate waves, or parts of the input, not products of the two.")
    data = as_sequences(X)
    count = _count(parts)
    named = None if parts is None or isinstance(parts, int) else _indices(op, decomposition, split, parts)
    known_labels(y if y is not None else data.y, len(data.X), op.model.config.classes, "ablate(y=...)")
    ds = op.explain(data, y, by=by, target=target, X_train=X_train, memory_limit=memory_limit)
    shape = (op.model.config.d_model, *decomposition.shape) if decomposition.per_feature else decomposition.shape
    chosen = _largest(ds["full_share"].values, len(shape), count) if named is None else named
    target = default_target(op.model.config.classes) if target is None else target
    directions = torch.from_numpy(target.directions(op.model.config.classes))
    members = [tuple(int(i) for i in np.unravel_index(index, shape)) for index in chosen]
    if isinstance(decomposition, WaveDecomposition):
        runs = _without_waves(op, data, members, keep)
    else:
        runs = _without_inputs(op, data, decomposition, chosen, keep)
    found = gather(runs, {"truncated": 1})
    return _dataset(op, ds, found, directions.numpy(), chosen, _labels(ds, members, len(shape)), keep, target)


def _without_waves(
    op: "ExplicitOperator", data: SequenceData, members: list[tuple[int, ...]], keep: float
) -> Iterator[dict[str, Tensor]]:
    """Changes of the logits (batch, rank, n_classes), and of the cut operator's (order, batch, rank, n_classes), chunk by chunk."""
    plain, readout = op.model.config.architecture == "plain", readout_of(op.model)
    for _, batch in batches(op.model, data.X, data.lengths, np.zeros((1, op.model.config.n_classes))):
        kernels = diagonal.mode_kernels(op.system, batch.x.shape[-1])
        actual, cut = [], []
        trace = None if plain else of_preprocessed(op.model).trace(batch.x.transpose(1, 2), batch.lengths)
        for h, n in members:
            removed = (1 - keep) * diagonal.convolve(batch.u[:, h], kernels[h, n])
            if trace is not None:
                z = batch.z.clone()
                z[:, h] -= removed
                actual.append(_continued(op.model, trace, z.transpose(1, 2)) - trace.logits)
                continue
            # Only this feature moves, and logits are a sum over features.
            before, after = batch.z[:, h], batch.z[:, h] - removed
            own = readout.select(torch.tensor([h]))
            moved = _pooled((own.value(after[:, None]) - own.value(before[:, None]))[:, 0], batch.pool)
            weight = op.model.decoder.weight[:, h]
            actual.append(moved[:, None] * weight)
            orders = [_pooled(p, batch.pool)[:, None] * weight for p in _orders(op, h, before, after)]
            cut.append(torch.stack(orders))
        found = {"actual": torch.stack(actual, dim=1)}
        yield found | ({"truncated": torch.stack(cut, dim=2)} if cut else {})


def _orders(op: "ExplicitOperator", h: int, before: Tensor, after: Tensor) -> list[Tensor]:
    """Of one feature, the change of the readout's polynomial cut after each order: (batch, length) each."""
    assert op.expansion is not None
    found = []
    for k in range(1, op.order + 1):
        own = op.expansion.truncated(k).recurrence().select(torch.tensor([h]))
        found.append((own.evaluate(after[:, None]) - own.evaluate(before[:, None]))[:, 0])
    return found


def _without_inputs(
    op: "ExplicitOperator", data: SequenceData, decomposition: InputDecomposition, chosen: list[int], keep: float
) -> Iterator[dict[str, Tensor]]:
    """The same for parts of the input: the whole model runs on what is left."""
    config, model = op.model.config, of_preprocessed(op.model)
    plain = config.architecture == "plain"
    eye, one = torch.eye(config.d_input, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        for _, raw, lengths in chunks(data.X, data.lengths, config.d_model):
            x, mask = op.model.preprocess(raw, lengths)
            inputs = _Inputs(x.transpose(1, 2), mask, lengths, eye, one)
            whole = model.trace(x, lengths)
            found: dict[int, tuple[Tensor, Tensor | None]] = {}
            # Only an encoder and a drive are asked of a batch here.
            for index, (E, v) in enumerate(decomposition.driving(cast(Any, inputs))):
                if index not in chosen:
                    continue
                left = x - (1 - keep) * torch.einsum("dc,bcl->bld", E, v)
                trace = model.trace(left, lengths)
                cut = _cut_changes(op, whole, trace) if plain else None
                found[index] = (trace.logits - whole.logits, cut)
            yield _stacked([found[index] for index in chosen])


def _stacked(found: list[tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
    stacked = {"actual": torch.stack([actual for actual, _ in found], dim=1)}
    cut = [value for _, value in found if value is not None]
    return stacked | ({"truncated": torch.stack(cut, dim=2)} if cut else {})


def _cut_changes(op: "ExplicitOperator", whole: Trace, left: Trace) -> Tensor:
    """Change of the cut operator's logits, (order, batch, n_classes)."""
    assert op.expansion is not None
    pool = whole.mask / whole.mask.sum(-1, keepdim=True)
    rows = []
    for k in range(1, op.order + 1):
        p = op.expansion.truncated(k)
        moved = p.evaluate(left.layers[0].z.transpose(1, 2)) - p.evaluate(whole.layers[0].z.transpose(1, 2))
        rows.append((pool[:, None] * moved).sum(-1) @ op.model.decoder.weight.T)
    return torch.stack(rows)


def _continued(model: S4D, trace: Trace, z: Tensor) -> Tensor:
    """Logits of a one-layer reference model from its pre-activation (batch, length, d_model) on."""
    with torch.no_grad():
        halves = model.layer(0).convolution(functional.gelu(z).transpose(1, 2)).transpose(1, 2)
        mixed, gate = halves.chunk(2, dim=-1)
        hidden = trace.encoded + mixed * torch.sigmoid(gate)
        if not model.config.prenorm:
            hidden = model.norm(0)(hidden)
        keep = trace.mask[..., None]
        logits: Tensor = model.decoder((hidden * keep).sum(1) / keep.sum(1))
    return logits


def _pooled(values: Tensor, pool: Tensor) -> Tensor:
    return (values * pool).sum(-1)


def _dataset(
    op: "ExplicitOperator",
    ds: "xr.Dataset",
    found: dict[str, NDArray[np.float64]],
    directions: NDArray[np.float64],
    chosen: list[int],
    members: list[str],
    keep: float,
    target: Target,
) -> "xr.Dataset":
    import xarray as xr

    lead = ("case", "class") if target.per_class else ("case",)
    axes = (*lead, "rank")

    def aimed(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., case, rank, n_classes) as (..., case, [class], rank)."""
        turned = np.moveaxis(values @ directions.T, -1, -2)
        return turned if target.per_class else turned[..., 0, :]

    claim = "exact" if op.model.config.architecture == "plain" else "conditional"
    flat = _flat(ds["full_share"].values, len(axes) - 1)[..., chosen]
    variables: dict[str, Any] = {
        "actual_change": (
            axes,
            aimed(found["actual"]),
            "change of the target when the model runs without the part",
            "exact",
        ),
        "share_change": (
            axes,
            -(1 - keep) * flat,
            "minus the part's share of the whole readout, by what is removed",
            claim,
        ),
    }
    if "share" in ds:
        orders = _flat(ds["share"].values, len(axes))[..., chosen]
        text = "minus the part's share at an order, by what is removed"
        variables["share_change_by_order"] = (("order", *axes), -(1 - keep) * orders, text, claim)
    if "truncated" in found:
        text = "change of the operator's target, cut after each order, without the part"
        variables["predicted_change"] = (("order", *axes), aimed(found["truncated"]), text, "truncated")
    described = {
        name: (dims, value, {"units": "logit", "long_name": text, "claim": word})
        for name, (dims, value, text, word) in variables.items()
    }
    described |= _scores(ds, found["actual"], described)
    coords: dict[str, Any] = {
        str(name): ds.coords[name] for name in ds.coords if set(ds.coords[name].dims) <= {"case", "class", "order"}
    }
    coords["rank"] = ("rank", np.arange(1, len(chosen) + 1))
    coords["member"] = ("rank", np.array(members, dtype=object))
    attrs = {**ds.attrs, "keep": keep, "parts": f"{len(members)} of {_size(ds)}, one at a time"}
    used = {dim for dims, *_ in described.values() for dim in dims}
    coords = {name: value for name, value in coords.items() if name not in ("class", "order") or name in used}
    return xr.Dataset(described, coords=coords, attrs=attrs)


def _scores(ds: "xr.Dataset", change: NDArray[np.float64], described: dict[str, Any]) -> dict[str, Any]:
    """Decisions without each part, and how well changes were predicted over all cases and parts."""
    logits = ds["logits"].values
    decided = logits.argmax(1)
    after = (logits[:, None] + change).argmax(-1)  # (case, rank)
    found: dict[str, Any] = {
        "agreement": (("rank",), (after == decided[:, None]).mean(0), "share of cases decided as with the part")
    }
    if "label" in ds.coords:
        classes = ds["class"].values.astype(str)
        right = classes[after] == ds["label"].values.astype(str)[:, None]
        found["accuracy"] = (("rank",), right.mean(0), "accuracy of the model without the part")
        whole = (classes[decided] == ds["label"].values.astype(str)).mean()
        found["model_accuracy"] = ((), whole, "accuracy of the model as it is")
    actual = described["actual_change"][1]
    found["share_r2"] = (
        (),
        _r2(actual, described["share_change"][1]),
        "R^2 of the actual changes given minus the shares",
    )
    if "predicted_change" in described:
        r2 = [_r2(actual, row) for row in described["predicted_change"][1]]
        found["change_r2"] = (("order",), np.array(r2), "R^2 of the actual changes given the operator's")
    return {
        name: (dims, value, {"units": "1", "long_name": text, "claim": "measured"})
        for name, (dims, value, text) in found.items()
    }


def _r2(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """1 - squared error over the changes' own squares: changes are measured from none. 1 where nothing changes and none is predicted."""
    size, miss = float((truth**2).sum()), float(((truth - estimate) ** 2).sum())
    if size > 0:
        return 1 - miss / size
    return 1.0 if miss == 0 else -np.inf


def _flat(values: NDArray[np.float64], lead: int) -> NDArray[np.float64]:
    return values.reshape(*values.shape[:lead], -1)


def _size(ds: "xr.Dataset") -> int:
    """Number of parts of a partition."""
    return int(np.prod([size for dim, size in ds["full_share"].sizes.items() if dim not in ("case", "class")]))


def _largest(share: NDArray[np.float64], n_dims: int, count: int | None) -> list[int]:
    """Indices of the parts of largest mean absolute share: all of few, in their own order, else the largest, largest first."""
    size = np.abs(share.reshape(-1, *share.shape[share.ndim - n_dims :])).mean(0).ravel()
    if count is None and size.size <= FEW:
        return list(range(size.size))
    order = np.argsort(-size, kind="stable")[: FEW if count is None else count]
    return [int(index) for index in order]


def _labels(ds: "xr.Dataset", members: list[tuple[int, ...]], n_dims: int) -> list[str]:
    dims = [str(dim) for dim in ds["full_share"].dims[-n_dims:]]
    names = [
        [str(v) if dim in ("channel", "band") else f"{dim} {v}" for v in ds[dim].values] if dim in ds.coords else None
        for dim in dims
    ]
    return [
        " · ".join(f"{dim} {i}" if own is None else own[i] for dim, own, i in zip(dims, names, member, strict=True))
        for member in members
    ]


def _indices(
    op: "ExplicitOperator",
    decomposition: WaveDecomposition | InputDecomposition,
    split: tuple[Any, ...],
    parts: Sequence[Any],
) -> list[int]:
    """Named parts, one entry per dimension each (channels by name or number), as flat indices."""
    config = op.model.config
    dims = (("feature",) if decomposition.per_feature else ()) + tuple(decomposition.dims)
    shape = ((config.d_model,) if decomposition.per_feature else ()) + tuple(decomposition.shape)
    channels = next((part.names for part in split if type(part).__name__ == "Channels"), None) or config.channels
    found = []
    for part in parts:
        entry = tuple(part) if isinstance(part, tuple | list) else (part,)
        if len(entry) != len(dims):
            raise ArgumentError(f"ablate(parts=...): {part!r} names no part; give ({', '.join(dims)}).")
        index = []
        for dim, size, value in zip(dims, shape, entry, strict=True):
            number = channels.index(value) if dim == "channel" and value in channels else value
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < size:
                known = ", ".join(channels) if dim == "channel" else f"0 to {size - 1}"
                raise ArgumentError(f"ablate(parts=...): there is no {dim} {value!r}; there are {known}.")
            index.append(int(number))
        found.append(int(np.ravel_multi_index(index, shape)))
    if not found:
        raise ArgumentError("ablate(parts=[]): name at least one part, or leave parts out.")
    return found


def _count(parts: Sequence[Any] | int | None) -> int | None:
    if isinstance(parts, bool) or (isinstance(parts, int) and parts < 1) or isinstance(parts, str | float):
        raise ArgumentError(f"ablate(parts={parts!r}): give the parts as a list, or how many of the largest to ablate.")
    return parts if isinstance(parts, int) else None


def _check(op: "ExplicitOperator", by: Any, keep: float) -> None:
    if isinstance(by, Pairs):
        raise ArgumentError("ablate(by=Pairs(...)): a pair is no part that could be taken out; ablate its members.")
    if isinstance(by, LayerWaves) or (isinstance(by, Waves) and op.expansion is None):
        raise ArgumentError(
            f"ablate(by={by!r}): waves of stacks feed gates of later layers; ablate channels, bands or windows."
        )
    if isinstance(keep, bool) or not isinstance(keep, int | float | np.number) or not np.isfinite(keep):
        raise ArgumentError(f"ablate(keep={keep!r}): give a finite number; 0 removes a part, 0.5 halves it.")
    if len(op.model.config.classes) < 2:
        raise ArgumentError("ablate: a model with one class has nothing to decide.")
