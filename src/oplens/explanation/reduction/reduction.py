r"""An ordinary smaller model that keeps the waves which matter most.

A wave matters by how much its exact share of the decision (oplens.explanation.accounts.shares) varies over the training cases: what it adds to
every case alike is no reason to decide either way, and the decoder's bias takes it over. So

    importance of a wave = root mean square over targets of the standard deviation over training cases of its full share

and the k waves of largest importance stay. In the plain architecture a feature without a kept wave stays for its skip D_h alone where
that varies at least as much as the weakest kept wave, and vanishes otherwise. Poles, C, D, encoder and decoder of what stays are those
of the full model; its P is the largest number of waves kept in one feature, and the slots others leave empty hold waves with C = 0.
The decoder's bias is shifted so that the mean training logits stay what they were.

`refit` adds a ridge regression: the decoder's weights are moved (a correction, drawn towards 0) so that the training logits come
closest to the full model's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData
from oplens.errors import ArgumentError
from oplens.explanation import training
from oplens.explanation.accounts.decomposition import WaveDecomposition, decompose
from oplens.explanation.parts import LayerWaves, Waves
from oplens.explanation.steps import check_pooled
from oplens.explanation.targets import default_target
from oplens.models.s4d import S4D

if TYPE_CHECKING:
    from oplens.explanation.operator import ExplicitOperator

MOST_CASES = 512  # training cases that importance and bias are taken from, spread evenly over the set
RIDGE = 1e-3  # of the number of cases, predictors standardised

Array = NDArray[np.float64]


def reduce(op: "ExplicitOperator", k: int, refit: bool = False, X_train: Any = None) -> S4D:
    """Smaller model of the k waves whose shares vary most over the training cases.

    Parameters
    ----------
    k : int
        Waves to keep, over all features (and layers), at least 1.
    refit : bool
        Move the decoder's weights by a ridge regression so that the training logits come closest to the full model's.
    X_train : optional
        Asked for only when the operator could not keep its training inputs (above 64 MB).

    Returns
    -------
    S4D
        Ordinary float64 model in evaluation mode: it can be saved, loaded, trained and expanded. With all waves kept its logits are
        those of the full model. A model trained as rings becomes one whose poles are the parameters.

    Raises
    ------
    ArgumentError
        k below 1, above the number of waves, or not whole; a model with one class.

    Notes
    -----
    Accuracy: what the smaller model decides is *measured* (`reduction_curve`); nothing bounds it beforehand. In the reference
    architecture waves vanish inside layers and features stay: the residual stream goes through all of them.
    Cost: as one explanation of at most 512 training cases by waves.
    Source: derived for this library; ranking by mean absolute shares, by the change that leaving a wave out alone makes, and
    repeatedly by halves were measured beside it (docs/accuracy.md).

    Examples
    --------
    >>> import torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.data import noisy_sinusoids
    >>> from oplens.explanation.reduction.reduction import reduce
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8)), noisy_sinusoids(n_cases=8, n_timepoints=40))
    >>> small = reduce(op, 3)
    >>> int((small.layer(0).kernel.C != 0).any(-1).sum()), small.config.d_model <= 4
    (3, True)
    """
    count = check_count(op, k, "reduce")
    check_refit(refit, "reduce")
    return Reduction.of(op, X_train, "reduce").model(count, refit)


@dataclass(frozen=True)
class Reduction:
    """What smaller models of every size share: waves in the order of their importance, and the full model on the training cases.

    Attributes
    ----------
    importance : ndarray, (n_layers, d_model, P)
        Standard deviation over training cases of every wave's full share, logit.
    skip : ndarray, (d_model,)
        The same of every feature's skip; asked for in the plain architecture only.
    order : ndarray, (n_waves,)
        Flat indices of `importance`, largest first, equal ones as stored.
    logits : ndarray, (n_cases, n_classes)
        Of the full model on `cases`.
    """

    source: S4D
    cases: SequenceData
    importance: Array
    skip: Array
    order: NDArray[np.int64]
    logits: Array

    @classmethod
    def of(cls, op: "ExplicitOperator", X_train: Any, call: str) -> "Reduction":
        """Rank the waves of an operator's model."""
        check_pooled(op, call)
        if len(op.model.config.classes) < 2:
            raise ArgumentError(f"{call}: a model with one class has nothing to decide, so no wave matters more.")
        cases = _training_cases(op, X_train, call)
        if op.model.config.architecture == "plain":
            importance, skip = _plain_importance(op, cases, X_train)
        else:
            importance, skip = _layer_importance(op, cases), np.zeros(0)
        order = np.argsort(-importance, axis=None, kind="stable")
        return cls(op.model, cases, importance, skip, order, run(op.model, cases)[1])

    @property
    def prunes(self) -> bool:
        """Whether features can vanish; a residual stream runs through all of them."""
        return self.source.config.architecture == "plain"

    def kept(self, k: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Mask of the k most important waves (n_layers, d_model, P), and the features that stay."""
        mask = np.zeros(self.importance.size, dtype=bool)
        mask[self.order[:k]] = True
        waves: NDArray[np.bool_] = mask.reshape(self.importance.shape)
        if not self.prunes:
            return waves, np.arange(self.source.config.d_model)
        weakest = self.importance.reshape(-1)[self.order[k - 1]]
        return waves, np.flatnonzero(waves.any((0, 2)) | (self.skip >= weakest))

    def cut(self, k: int) -> S4D:
        """The full model without the other waves, its decoder's weights and bias as they were."""
        return _cut(self.source, *self.kept(k))

    def decoders(self, model: S4D) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Weights and bias for a cut model's decoder: with the mean training logits only, and fitted anew to every case's."""
        pooled, own = run(model, self.cases)
        missing = self.logits - own
        shift = missing.mean(0)
        mean, scale = pooled.mean(0), pooled.std(0)
        scale = np.where(scale > 1e-12 * np.abs(pooled).max(0), scale, np.inf)  # what never varies predicts nothing
        Q = (pooled - mean) / scale
        gram = Q.T @ Q + RIDGE * len(Q) * np.eye(Q.shape[1])
        change: Array = np.linalg.solve(gram, Q.T @ (missing - shift)) / scale[:, None]  # (d_model, n_classes)
        weight, bias = model.decoder.weight.detach(), model.decoder.bias.detach()
        fitted = torch.from_numpy(np.ascontiguousarray(change.T)), torch.from_numpy(shift - mean @ change)
        return (weight, bias + torch.from_numpy(shift)), (weight + fitted[0], bias + fitted[1])

    def model(self, k: int, refit: bool) -> S4D:
        """The smaller model of k waves."""
        model = self.cut(k)
        weight, bias = self.decoders(model)[refit]
        model.decoder.weight.copy_(weight)
        model.decoder.bias.copy_(bias)
        return model.requires_grad_(True).eval()


def run(model: S4D, data: SequenceData) -> tuple[Array, Array]:
    """Pooled features (n_cases, d_model) and logits (n_cases, n_classes) of a model."""
    pooled, logits = [], []
    with torch.no_grad():
        for _, raw, lengths in training.chunks(data.X, data.lengths, model.config.d_model):
            trace = model.trace(raw, lengths)
            pooled.append(trace.pooled)
            logits.append(trace.logits)
    return torch.cat(pooled).numpy(), torch.cat(logits).numpy()


def _training_cases(op: "ExplicitOperator", X_train: Any, call: str) -> SequenceData:
    """Training cases as the operator was fitted on them, at most MOST_CASES spread over the set."""
    if op.training.X is None and X_train is None:
        raise ArgumentError(
            f"{call}: the operator's training set ({op.training.source}) was above 64 MB and is not kept in it, and waves are "
            "ranked on it: pass X_train=."
        )
    X, lengths = op.statistics.inputs(X_train)
    rows = np.arange(0, len(X), math.ceil(len(X) / MOST_CASES))
    config = op.model.config
    return SequenceData(
        X=X[rows].astype(np.float64),
        lengths=lengths[rows],
        y=None,
        channels=config.channels,
        classes=config.classes,
        sampling_rate=config.sampling_rate,
        name="training set",
        source=op.training.source,
    )


def _plain_importance(op: "ExplicitOperator", cases: SequenceData, X_train: Any) -> tuple[Array, Array]:
    """Standard deviations over cases of the full shares of waves (1, d_model, P) and skips (d_model,)."""
    assert op.expansion is not None
    config = op.model.config
    decomposition = decompose((Waves(),), config, op.system)
    assert isinstance(decomposition, WaveDecomposition)
    skip = decomposition.sources.index("skip")
    moments = op.statistics.moments((Waves(),), decomposition, X_train)
    directions = default_target(config.classes).directions(config.classes)
    found = []
    for _, batch in training.batches(op.model, cases.X, cases.lengths, directions):
        weight = batch.weights[0]  # the plain architecture has one: pooling, the same for all targets
        q = weight.omega * op.expansion.divided_difference(batch.z)
        parts, sources = decomposition.moments(batch, q)
        total = q.sum(-1)
        waves = parts - total[..., None] * moments.mean
        skips = sources[..., skip] - total * moments.source_mean[:, skip]
        found.append({"waves": waves, "skips": skips})
    values = training.gather(found, {})
    readout = np.sqrt(((directions @ op.model.decoder.weight.numpy()) ** 2).mean(0))  # (d_model,)
    return (readout[:, None] * values["waves"].std(0))[None], readout * values["skips"].std(0)


def _layer_importance(op: "ExplicitOperator", cases: SequenceData) -> Array:
    """The same of the layer waves of the reference architecture, (n_layers, d_model, P)."""
    sums: list[Array] = []
    for rows in _slices(cases.n_cases, 32):
        share = op.explain(cases.select(np.arange(cases.n_cases)[rows]), by=LayerWaves()).layer_share
        values = (
            share.values if "class" in share.dims else share.values[:, None]
        )  # (case, target, layer, feature, wave)
        new = [values.sum(0), (values**2).sum(0)]
        sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
    mean, square = (value / cases.n_cases for value in sums)
    spread: Array = np.sqrt((square - mean**2).clip(min=0).mean(0))
    return spread


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, start + size)


def _cut(source: S4D, waves: NDArray[np.bool_], features: NDArray[np.int64]) -> S4D:
    """The same weights without what is not kept: float64, on the CPU."""
    width = max(1, int(waves.sum(-1).max()))
    config = replace(source.config, d_model=len(features), d_state=2 * width, coupling=None, phase_delay=None)
    with torch.device("meta"):  # shapes only: no random numbers are drawn
        model = S4D(config)
    index = torch.from_numpy(features)
    state = {name: value.double() for name, value in source.state_dict().items() if ".kernel." not in name}
    if source.config.architecture == "plain":
        for name in ("encoder.weight", "encoder.bias", "s4_layers.0.D", "polynomial"):
            if name in state:
                state[name] = state[name][index]
        state["decoder.weight"] = state["decoder.weight"][:, index]
    for number in range(config.n_layers):
        for name, value in _kernel(source, number, waves[number][features], index, width).items():
            state[f"s4_layers.{number}.kernel.{name}"] = value
    model = model.double().to_empty(device="cpu")
    model.load_state_dict({name: value.clone() for name, value in state.items()})
    return model.requires_grad_(False).eval()


def _kernel(source: S4D, number: int, waves: NDArray[np.bool_], index: Tensor, width: int) -> dict[str, Tensor]:
    """Kernel parameters of a layer: kept waves first, in the order they were stored, then slots with C = 0 at removed poles."""
    layer = source.layer(number)
    slots = torch.from_numpy(np.argsort(~waves, axis=-1, kind="stable")[:, :width].copy())
    used = torch.from_numpy(np.take_along_axis(waves, slots.numpy(), axis=-1))
    poles = layer.poles().detach()[index].gather(1, slots)
    C = layer.kernel.C.detach().double()[index]
    C = C.gather(1, slots[..., None].expand(-1, -1, 2))
    return {
        "log_dt": layer.kernel.log_dt.detach().double()[index],
        "C": torch.where(used[..., None], C, torch.zeros_like(C)),
        "log_A_real": torch.log((-poles.real).clamp(min=torch.finfo(torch.float64).tiny)),
        "A_imag": poles.imag.contiguous(),
    }


def stored_waves(model: S4D) -> int:
    """Waves of all features and layers, empty slots included."""
    return model.config.n_layers * model.config.d_model * model.config.n_modes


def check_count(op: "ExplicitOperator", k: Any, call: str) -> int:
    """A number of waves that can be kept, or a sentence."""
    total = stored_waves(op.model)
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise ArgumentError(f"{call}: k={k!r} is no whole number; give how many waves to keep, 1 to {total}.")
    if not 1 <= k <= total:
        raise ArgumentError(
            f"{call}: k={k} waves cannot be kept; the model has {total}, and at least 1 must stay: choose k from 1 to {total}."
        )
    return int(k)


def check_refit(refit: Any, call: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(refit, bool):
        raise ArgumentError(f"{call}(refit={refit!r}): give True (the decoder is fitted anew) or False.")
