r"""Steering: the smallest change of each case's preprocessed input that takes a margin where it is wanted.

First by the operator alone. T is the margin logit(to) - logit(against), `rise` what it lacks of the wanted value:

    order 1    T rises by b.delta                      delta = rise b / norm(b)^2
    order 2    T rises by b.delta + delta'Q delta / 2     delta = (mu - Q)^-1 b      (oplens.operators.quadratic)

with b and Q confined to the allowed subspace (oplens.explanation.interventions.confinement). An operator of higher order is cut to degree 1 or 2
about its training distribution. Then, since the cut operator is not the model, the change is refined on the running model
(oplens.explanation.interventions.search). For the reference architecture, which has no operator of its own, order 1 is the model's gradient.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts.explain import check_memory
from oplens.explanation.interventions.confinement import Confinement, Subspace, confinement, subspace
from oplens.explanation.interventions.search import Problem, of_preprocessed
from oplens.explanation.interventions.search import refine as refine_change
from oplens.explanation.interventions.truncation import Truncation
from oplens.explanation.parts import By
from oplens.explanation.steps import check_pooled
from oplens.explanation.targets import Margin, Target
from oplens.explanation.training import check_channels, chunks, labels_of
from oplens.operators.quadratic import Spectrum, smallest_change, spectrum

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

LANCZOS = 120  # vectors per case at most
LANCZOS_BYTES = 512 * 2**20  # of them all: cases are solved in groups that fit
EIGENPAIRS = 24  # at each end of the spectrum of Q
VANISHED = 1e-10  # a projected gradient this small, relative to the whole one, is rounding


@dataclass(frozen=True)
class Aim:
    """What is wanted of every case: margins rows . logits (cases, R, n_classes) of at least `margin`; the first is the target."""

    to: NDArray[np.int64]
    against: NDArray[np.int64]
    rows: Tensor
    margin: float

    def select(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Rows and wanted values of some cases."""
        rows = self.rows[torch.from_numpy(index)]
        return rows, torch.full(rows.shape[:2], self.margin, dtype=torch.float64)


@dataclass(frozen=True)
class Settings:
    """What `steer` was asked for, checked."""

    order: int
    anchor: str
    refine: bool
    confinement: Confinement


def steer(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    to: str | None = None,
    by: By | None = None,
    order: int | None = None,
    margin: float = 0.0,
    *,
    window: Sequence[float] | None = None,
    hold: Sequence[tuple[int, int]] | None = None,
    waves: Sequence[tuple[int, int]] | None = None,
    target: Target | None = None,
    refine: bool = True,
    anchor: str = "model",
    memory_limit: int = 2 * 2**30,
) -> "xr.Dataset":
    """The smallest change of each case that takes its margin where it is wanted: what would flip the decision.

    Parameters
    ----------
    X, y
        As for :meth:`explain`.
    to : str, optional
        Class to reach, above all others; default: every case's runner-up.
    by : Channels, Bands or a tuple of both, with their members named
        Nothing else may change, for example `by=(Channels(("Cz",)), Bands([(8, 13)]))`.
    order : {1, 2}, optional
        Order of the operator that proposes the change (an operator of higher order is cut to it); default 2, and 1 for the
        reference architecture, where the model's own gradient stands for it.
    margin : float
        Logits by which the wanted class must lead, at least 0.
    window : (start, stop), optional
        Fractions of a case between which it may change; with bands, at least half of the change's energy is in them.
    hold : sequence of (feature, wave), optional
        Waves whose pooled order-1 shares must not change (plain architecture).
    waves : sequence of (feature, wave), optional
        The other way round: the shares of all others, and of the skips, must not change.
    target : Margin, optional
        Instead of `to`: this margin alone, whatever a third class does.
    refine : bool
        Go on from the operator's change to the smallest one found for the running model.
    anchor : {"model", "operator"}
        Whether the operator's change is added to the running model's margin, or to the operator's own.
    memory_limit : int
        Bytes.

    Returns
    -------
    xarray.Dataset
        `delta` and `signal` (case, channel, time) in units of the data, `norm`, `norm_lower_bound` (certified: no smaller change
        does it), `predicted_target`, `achieved_target`, `flipped`, `reached`, `reachable`, `reach` (case), the same before
        refinement (`first_...`), and where the change's energy lies; see docs/schema.md.

    Raises
    ------
    ArgumentError, DataError
        With a sentence, before work starts.

    Notes
    -----
    Norms are Euclidean, of the preprocessed input. The unrefined change is *exact* for the cut operator and *truncated* for the
    model; the refined one is a local minimum, *measured*; the lower bound is a *bound* (plain architecture).
    Cost: about ten products with the operator's second derivative per case, and a dozen passes of the model to refine.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> _ = torch.manual_seed(0)
    >>> X = np.random.default_rng(0).normal(size=(4, 1, 30))
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=4)), X)
    >>> ds = op.steer(X)
    >>> bool(ds.flipped.all()), bool((ds.norm_lower_bound <= ds.norm).all())
    (True, True)
    """
    from oplens.explanation.interventions.changes import assemble

    check_pooled(op, "steer")
    data = as_sequences(X)
    config = op.model.config
    check_channels(op.model, data, "steer")
    labels = labels_of(y if y is not None else data.y, len(data.X), "steer(y=...)")
    settings = Settings(
        _order(op, order), _anchor(op, anchor), _flag(refine), confinement(config, by, window, hold, waves)
    )
    check_memory(5 * data.X.size, memory_limit, "steer", "steer fewer cases at a time")
    logits = _logits(op, data)
    aim = _aim(config.classes, logits, to, target, _margin(margin))
    groups = [np.flatnonzero(data.lengths == steps) for steps in np.unique(data.lengths)]
    # Every length's subspace first: a window or band that no step or frequency of a case lies in is refused before work starts.
    spaces = [
        subspace(settings.confinement, config, op.system, op.model.encoder.weight, int(data.lengths[index[0]]))
        for index in groups
    ]
    found = [_steer_group(op, data, index, aim, space, settings) for index, space in zip(groups, spaces, strict=True)]
    return assemble(op, data, labels, logits, aim, settings, list(zip(groups, found, strict=True)))


def _steer_group(
    op: "ExplicitOperator", data: SequenceData, index: NDArray[np.int64], aim: Aim, space: Subspace, settings: Settings
) -> dict[str, Tensor]:
    """Cases of one length: changes and what they do, one entry per variable, cases first."""
    steps = space.shape[1]
    raw = torch.from_numpy(data.X[index][..., :steps]).transpose(1, 2)
    x = op.model.preprocess(raw, None)[0].transpose(1, 2)
    rows, wanted = aim.select(index)
    problem = Problem(of_preprocessed(op.model), x, rows, wanted, space.project)
    zero = torch.zeros(len(x), x.shape[1] * steps, dtype=torch.float64)
    start, whole = (value[:, 0] for value in replace(problem, project=lambda row: row).gradients(zero))
    account = _account(op, x, rows[:, 0], start, whole, space, settings)
    first, reachable, reach = account.solve(wanted[:, 0] - account.start)
    delta = refine_change(problem, first) if settings.refine else first
    found = {
        "delta": delta.unflatten(1, tuple(x.shape[1:])),
        "size": x.flatten(1).norm(dim=1),
        "start_target": start,
        "predicted_target": account.start + account.change(delta),
        "first_norm": first.norm(dim=1),
        "first_predicted_target": account.start + account.change(first),
        "first_logits": problem.logits(first),
        "reachable": reachable,
        "reach": account.start + reach,
    }
    if op.model.config.architecture == "plain":
        slope = space.project(whole).norm(dim=1)
        found["norm_lower_bound"] = _lower_bound(op, x, rows[:, 0], wanted[:, 0] - start, slope, space, settings)
    return found


@dataclass(frozen=True)
class _Account:
    """The operator's (or tangent's) account of a group: where it starts, how it changes, and the smallest change of given rise."""

    start: Tensor
    change: Callable[[Tensor], Tensor]
    solve: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def _account(
    op: "ExplicitOperator",
    x: Tensor,
    direction: Tensor,
    start: Tensor,
    slope: Tensor,
    space: Subspace,
    settings: Settings,
) -> _Account:
    if op.model.config.architecture != "plain":
        tangent = space.project(slope)
        return _Account(start, lambda delta: (slope * delta).sum(1), lambda rise: _linear(tangent, slope, rise))
    cut = Truncation(op, settings.order, x.shape[-1])
    whole, own = cut.gradient(x, direction), cut.value(x, direction)
    b = space.project(whole)

    def change(delta: Tensor) -> Tensor:
        return cut.value(x + delta.unflatten(1, tuple(x.shape[1:])), direction) - own

    def solve(rise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if settings.order == 1:
            return _linear(b, whole, rise)
        return _quadratic(cut, b, whole, direction, rise, space)

    return _Account(start if settings.anchor == "model" else own, change, solve)


def _linear(b: Tensor, whole: Tensor, rise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Order 1: delta = rise b / norm(b)^2, whether b is there at all, and the largest rise."""
    there = b.norm(dim=1) > VANISHED * whole.norm(dim=1)
    size = (b**2).sum(1).where(there, torch.ones_like(rise))
    delta = torch.where(there, rise.clamp(min=0) / size, 0.0)[:, None] * b
    return delta, there | (rise <= 0), torch.where(there, torch.inf, 0.0)


def _quadratic(
    cut: Truncation, b: Tensor, whole: Tensor, direction: Tensor, rise: Tensor, space: Subspace
) -> tuple[Tensor, Tensor, Tensor]:
    """Order 2, direction by direction: opposite ones share one Q, and so one spectrum."""
    b = torch.where((b.norm(dim=1) > VANISHED * whole.norm(dim=1))[:, None], b, 0.0)
    delta, reachable, reach = torch.zeros_like(b), torch.ones(len(b), dtype=torch.bool), torch.zeros_like(rise)
    known: dict[tuple[float, ...], Spectrum] = {}
    group = max(1, LANCZOS_BYTES // (8 * LANCZOS * b.shape[1]))
    for row in torch.unique(direction, dim=0):
        sign = float(torch.sign(row[row != 0][0]))
        key = tuple((sign * row).tolist())

        def product(rows: Tensor, row: Tensor = row) -> Tensor:
            return space.project(cut.product(space.project(rows), row))

        cases = torch.nonzero((direction == row).all(1))[:, 0]
        if key not in known:
            own = spectrum(product, b.shape[1], min(EIGENPAIRS, len(cases)))
            scale = float(cut.product(whole[cases[:1]], row).norm() / whole[cases[:1]].norm().clamp(min=1e-300))
            values = torch.where(own.values.abs() > VANISHED * scale, own.values, 0.0)
            known[key] = Spectrum(sign * values, own.vectors)
        pairs = Spectrum(sign * known[key].values, known[key].vectors)
        for some in cases.split(group):
            found = smallest_change(product, pairs, b[some], rise[some], max_steps=LANCZOS)
            delta[some], reachable[some], reach[some] = found.delta, found.reachable, found.reach
    return space.project(delta), reachable, reach


def _lower_bound(
    op: "ExplicitOperator",
    x: Tensor,
    direction: Tensor,
    rise: Tensor,
    slope: Tensor,
    space: Subspace,
    settings: Settings,
) -> Tensor:
    """Norm below which no allowed change reaches the rise: the root r of slope r + c r^2 / 2 = rise."""
    cut, bend = Truncation(op, settings.order, space.shape[1]), torch.zeros_like(rise)
    if (op.model.config.degree or 0) > 2:
        rise = rise.clamp(min=0) * (1 - 1e-9)
        return cut.lower_bound(x, direction, slope, rise, settings.confinement.channels)
    for row in torch.unique(direction, dim=0):
        bend[(direction == row).all(1)] = cut.curvature(row, settings.confinement.channels)
    rise = rise.clamp(min=0) * (1 - 1e-9)  # rounding of the margin itself
    root = slope + torch.sqrt(slope**2 + 2 * bend * rise)
    return torch.where(root > 0, 2 * rise / root.clamp(min=1e-300), torch.where(rise > 0, torch.inf, 0.0))


def _logits(op: "ExplicitOperator", data: SequenceData) -> NDArray[np.float64]:
    """Logits (n_cases, n_classes) of the running model."""
    with torch.no_grad():
        found = [op.model(raw, lengths) for _, raw, lengths in chunks(data.X, data.lengths, op.model.config.d_model)]
    return np.asarray(torch.cat(found).numpy())


def _aim(
    classes: tuple[str, ...], logits: NDArray[np.float64], to: str | None, target: Target | None, margin: float
) -> Aim:
    """Every case's target class and rivals."""
    if len(classes) < 2:
        raise ArgumentError("steer: a model with one class has nothing to decide.")
    ranked = np.argsort(-logits, axis=1, kind="stable")
    if target is not None:
        return _aim_at(classes, len(logits), to, target, margin)
    if to is not None and to not in classes:
        raise ArgumentError(f"steer(to={to!r}): the model has no such class; it has {', '.join(classes)}.")
    towards = ranked[:, 1] if to is None else np.full(len(logits), classes.index(to))
    against = np.where(ranked[:, 0] == towards, ranked[:, 1], ranked[:, 0])
    rows = np.zeros((len(logits), len(classes) - 1, len(classes)))
    for case, (own, rival) in enumerate(zip(towards, against, strict=True)):
        others = [int(rival), *(c for c in range(len(classes)) if c not in (own, rival))]
        rows[case, :, own] = 1
        rows[case, np.arange(len(others)), others] = -1
    return Aim(towards, against, torch.from_numpy(rows), margin)


def _aim_at(classes: tuple[str, ...], n_cases: int, to: str | None, target: Target, margin: float) -> Aim:
    if not isinstance(target, Margin):
        raise ArgumentError(
            f"steer(target={target!r}): give Margin(towards, against), or to= for a class above all others."
        )
    if to is not None:
        raise ArgumentError(f"steer(to={to!r}, target={target!r}): choose one.")
    row = torch.from_numpy(target.directions(classes))
    towards, against = (np.full(n_cases, classes.index(name)) for name in (target.towards, target.against))
    return Aim(towards, against, row.expand(n_cases, 1, -1), margin)


def _order(op: "ExplicitOperator", order: int | None) -> int:
    plain = op.model.config.architecture == "plain"
    if order is None:
        return 2 if plain and op.order >= 2 else 1
    if isinstance(order, bool) or not isinstance(order, int) or order not in (1, 2):
        raise ArgumentError(
            f"steer(order={order!r}): a change is found by order 1 or 2 of the operator; higher ones add no formula."
        )
    if order == 2 and not plain:
        raise ArgumentError(
            "steer(order=2): the reference architecture's gates and norms are computed from each input, so it has no quadratic "
            "operator; order=1 follows the model's own gradient, and refine=True corrects it."
        )
    if order > op.order and plain:
        raise ArgumentError(
            f"steer(order={order}): the operator was expanded to order {op.order}; expand(order=2) first."
        )
    return order


def _anchor(op: "ExplicitOperator", anchor: str) -> str:
    if anchor not in ("model", "operator"):
        raise ArgumentError(
            f"steer(anchor={anchor!r}): 'model' adds the operator's change to the running model's target, 'operator' takes the "
            "operator's own target."
        )
    return "model" if op.model.config.architecture != "plain" else anchor


def _flag(value: bool) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"steer(refine={value!r}): give True or False.")
    return value


def _margin(margin: float) -> float:
    if isinstance(margin, bool) or not isinstance(margin, int | float | np.number) or not 0 <= float(margin) < math.inf:
        raise ArgumentError(f"steer(margin={margin!r}): give a finite number of at least 0, in logit units.")
    return float(margin)
