"""One pass of a model over data: every measure per layer and head, in batches, in constant memory."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import fraction, precision, whole
from oplens.measurement.arrays import points as real_points
from oplens.measurement.batches import Batch, Inputs
from oplens.measurement.language import PredictionTotals, token_log_probabilities
from oplens.measurement.layers import HeadTotals, LayerPoints, affordable
from oplens.measurement.maps import LONGEST, choose_case, choose_heads, map_dataset
from oplens.measurement.sentences import headline, own_notes
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

    from oplens.models.recording import Recorder, Recording

_RANK_OPERATIONS = 1e12  # of decompositions, minutes on one core
_LOGITS = 2**22  # scores turned into log-probabilities at a time


def measure(
    recorder: "Recorder",
    inputs: Any,
    *,
    batch_size: int = 4,
    maps: int = 12,
    sample: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    similarity: bool = True,
    ranks_cases: int | None = None,
    title: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xr.DataTree":
    """Measure a model on data: attention per head, representations per layer, similarity of layers, predictions, maps of some heads.

    Parameters
    ----------
    recorder : Recorder
        :func:`oplens.models.load_recorder`.
    inputs : Tokens, SequenceData, or an array that either is made of
        Tokens (n_cases, length) for a model of tokens, (n_cases, n_channels, n_timepoints) for a model of series.
    batch_size : int
        Cases that run at once; no number depends on it beyond rounding.
    maps : int
        Heads whose attention in one case is kept; 0: none.
    sample : int
        Points of each layer, drawn uniformly, for dimensions from neighbours.
    seed : int
        Of that sample.
    level : float
        Of the intervals.
    similarity : bool
        CKA of all pairs of layers.
    ranks_cases : int, optional
        So many of the first cases have the ranks of their attention measured. Default: all, or as many as 1e12 operations allow and at
        least two.
    title : str, optional
    progress : callable, optional
        Called with the cases done and their total after every batch.

    Returns
    -------
    xarray.DataTree
        `/attention` (without attention: absent), `/representations`, `/similarity`, `/predictions` (for models of the next token; for
        classifiers with labelled data), `/attention_maps`.

    Raises
    ------
    ArgumentError, DataError
        Inputs that the model cannot take, before it runs; attention that is no distribution, NaN in a layer.

    Notes
    -----
    Claim: *measured*, *fitted* where a law is fitted; intervals are over cases as independent draws. Padding takes part in nothing. What
    has no value, such as the dimension of a constant layer, is NaN, and the group's attribute `undefined` says why.

    Memory: one batch, and per layer O(d^2 + sample d), d^2 per pair of layers; cases are not kept. Cost: the model, O(n_heads length^3) a
    layer and case for ranks, O(d^2) a pair of layers and position for similarity. Where moments of all pairs exceed 1 GiB or 5e12
    multiplications, similarity is measured on the sample. Nothing is written and nothing kept between calls: an interrupt leaves no half
    a result, and the next call starts anew.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens.models import Transformer, TransformerConfig
    >>> from oplens.models.own_recorders import TransformerRecorder
    >>> model = Transformer(TransformerConfig(d_output=3, vocabulary=5, d_model=16, n_heads=2, d_ffn=8))
    >>> tokens = np.random.default_rng(0).integers(0, 5, (6, 10))
    >>> tree = measure(TransformerRecorder.of(model), tokens, maps=2, sample=50)
    >>> sorted(tree.children), dict(tree["attention"].sizes)
    (['attention', 'attention_maps', 'representations', 'similarity'], {'layer': 2, 'head': 2})
    """
    call = "measure"
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("maps", maps, 0),
        ("sample", sample, 1),
        ("seed", seed, 0),
    ):
        whole(call, name, value, least)
    level = fraction(call, "level", level)
    if not isinstance(similarity, bool):
        raise ArgumentError(f"{call}(similarity={similarity!r}): give True or False.")
    data = Inputs.of(call, recorder, inputs)
    n_ranked = data.n_cases if ranks_cases is None else whole(call, "ranks_cases", ranks_cases, 0)
    totals, done = Totals(sample, seed, similarity), 0
    for batch in data.batches(batch_size):
        recording = recorder.record(batch.x, None if bool(batch.mask.all()) else batch.mask)
        if not done:
            _check(call, recorder, recording)
            if ranks_cases is None:
                n_ranked = _ranked(recorder, recording, data.lengths)
        totals = totals.add(recorder, recording, batch, n_ranked - done, int(data.lengths.sum()))
        done += len(batch.lengths)
        if progress is not None:
            progress(done, data.n_cases)
    groups = totals.groups(data, level)
    if "attention" in groups:
        groups["attention"].attrs["ranked_cases"] = min(n_ranked, data.n_cases)
        if maps:
            groups |= _maps(recorder, data, groups["attention"], maps)
    return _tree(recorder, data, groups, seed, title)


@dataclass(frozen=True)
class Totals:
    """All that is added up over batches.

    Attributes
    ----------
    sample, seed : int
    similarity : bool
    heads : dict of int to HeadTotals
        By layer, from 1.
    points : LayerPoints or None
    predictions : PredictionTotals or None
    right, judged : int
        Cases classified rightly, and those with a label.
    """

    sample: int
    seed: int
    similarity: bool
    heads: dict[int, HeadTotals] | None = None
    points: LayerPoints | None = None
    predictions: PredictionTotals | None = None
    right: int = 0
    judged: int = 0

    def add(self, recorder: "Recorder", recording: "Recording", batch: Batch, n_ranked: int, n_points: int) -> "Totals":
        """After one batch as well; `n_ranked` of its first cases have their ranks measured."""
        heads = dict(self.heads or {})
        for layer, weights in enumerate(recording.attentions, 1):
            if weights is not None:
                with _located(f"attention of layer {layer}"):
                    visible = partial(recorder.visible, layer - 1)
                    part = HeadTotals.of(weights, batch.lengths, n_ranked, recorder.causal, visible)
                    heads[layer] = heads[layer] + part if layer in heads else part
        points = []
        for layer, hidden in enumerate(recording.hidden):
            with _located(f"layer {layer}"):
                points.append(real_points("measure", "hidden states", hidden, recording.mask))
        spacing = precision(recording.hidden[0])
        if self.points is None:
            pairs = self.similarity and affordable([x.shape[1] for x in points], n_points)
            clouds = LayerPoints.of(points, self.sample, self.seed, pairs, spacing)
        else:
            clouds = self.points.add(points, spacing)
        return replace(
            self,
            heads=heads,
            points=clouds,
            **self._answers(recorder, recording, batch),
        )

    def _answers(self, recorder: "Recorder", recording: "Recording", batch: Batch) -> dict[str, Any]:
        if recorder.predicts_next:
            with _located("predictions"):
                part = _predicted(recording, batch)
            return {"predictions": part if self.predictions is None else self.predictions + part}
        classes = recorder.facts.get("classes")
        if batch.labels is None or recording.output.ndim != 2 or not classes:
            return {}
        if not set(batch.labels) <= set(classes):
            return {}
        found = [classes[k] for k in recording.output.argmax(-1).tolist()]
        right = sum(a == b for a, b in zip(found, batch.labels, strict=True))
        return {"right": self.right + right, "judged": self.judged + len(found)}

    def groups(self, data: Inputs, level: float) -> "dict[str, xr.Dataset]":
        """Everything as Datasets."""
        assert self.points is not None, "there is at least one batch"
        groups: dict[str, xr.Dataset] = {}
        if self.heads:
            groups["attention"] = _attention(self.heads, level)
        groups["representations"] = self.points.dimensions(level)
        if self.similarity:
            groups["similarity"] = self.points.similarity()
        if self.predictions is not None and self.predictions.per_token.rows > 0:
            groups["predictions"] = self.predictions.statistics(level)
        elif self.judged and self.judged == data.n_cases:
            groups["predictions"] = _accuracy(self.right, self.judged, level)
        return groups


def _check(call: str, recorder: "Recorder", recording: "Recording") -> None:
    """Refuse a recorder that breaks its protocol: the wrong rows would be added up without a sign."""
    if len(recording.hidden) != recorder.n_layers + 1:
        raise DataError(
            f"{call}: {recorder.name} gave {len(recording.hidden)} hidden states for {recorder.n_layers} layers; the embedding and one per "
            "layer are expected."
        )
    if len(recording.attentions) not in (0, recorder.n_layers):
        raise DataError(
            f"{call}: {recorder.name} gave attention of {len(recording.attentions)} of {recorder.n_layers} layers; expected one entry per "
            "layer, None where there is none."
        )


def _ranked(recorder: "Recorder", recording: "Recording", lengths: Any) -> int:
    """Cases whose ranks the budget allows, at least two: an interval needs them."""
    matrices = sum(weights.shape[1] for weights in recording.attentions if weights is not None)
    # Singular values, about 3 n^3; eigenvalues of a triangular matrix are its diagonal, of another about 22 n^3.
    costs = np.cumsum(matrices * (3.0 if recorder.causal else 25.0) * lengths.astype(float) ** 3)
    return max(2, int(np.searchsorted(costs, _RANK_OPERATIONS, side="right")))


def _predicted(recording: "Recording", batch: Batch) -> PredictionTotals:
    """Next-token log-probabilities of a batch, so many positions at a time that their scores stay small."""
    scores, ids = recording.output, batch.x.numpy()
    logs = np.zeros((len(ids), max(ids.shape[1] - 1, 1)))
    counts = np.zeros(logs.shape, dtype=bool)
    step = max(1, _LOGITS // scores.shape[-1])
    for case, length in enumerate(batch.lengths):
        for start in range(0, length - 1, step):
            stop = min(start + step, length - 1)
            rows = slice(start, stop + 1)
            found, _ = token_log_probabilities(scores[case : case + 1, rows], ids[case : case + 1, rows])
            logs[case, start:stop], counts[case, start:stop] = found[0], True
    text = counts.copy()
    if batch.text_mask is not None:
        text[:, : ids.shape[1] - 1] &= batch.text_mask[:, 1:]
    return PredictionTotals.of(logs, counts, batch.n_bytes, text)


def _attention(heads: dict[int, HeadTotals], level: float) -> "xr.Dataset":
    """Layers side by side; NaN where one has fewer heads than another."""
    import xarray as xr

    parts = {layer: found.statistics(level) for layer, found in sorted(heads.items())}
    most = max(part.sizes["head"] for part in parts.values())
    wide = [part.reindex(head=np.arange(most)) for part in parts.values()]
    ds = xr.concat(
        wide, dim="layer", combine_attrs="override", data_vars="all", coords="minimal", compat="override", join="exact"
    )
    return ds.assign_coords(layer=list(parts))


def _accuracy(right: int, judged: int, level: float) -> "xr.Dataset":
    """With the Wilson interval, which holds near 0 and 1 and for few cases."""
    import xarray as xr
    from scipy.stats import binomtest

    interval = binomtest(right, judged).proportion_ci(level, method="wilson")
    return xr.Dataset(
        {
            "accuracy": variable((), right / judged, "share of cases classified as they are labelled"),
            "accuracy_low": variable(
                (), float(interval.low), f"lower end of the {level:.0%} Wilson interval of accuracy"
            ),
            "accuracy_high": variable(
                (), float(interval.high), f"upper end of the {level:.0%} Wilson interval of accuracy"
            ),
            "n_cases": variable((), judged, "labelled cases", claim="exact"),
        },
        attrs={"level": level},
    )


def _maps(recorder: "Recorder", data: Inputs, attention: "xr.Dataset", count: int) -> "dict[str, xr.Dataset]":
    """Attention of the heads that stand out, in one case that runs once more, cut to what can be drawn."""
    heads = choose_heads(attention, count)
    if not heads:
        return {}
    case = choose_case(data.lengths)
    batch = data.beginning(case, LONGEST)
    recording = recorder.record(batch.x, None)
    length, whole_length = batch.lengths[0], int(data.lengths[case])
    cut = f", its first {length} of {whole_length} positions run alone" if length < whole_length else ""
    return {"attention_maps": map_dataset(heads, recording.attentions, data.labels(case, LONGEST), f"case {case}{cut}")}


def _tree(
    recorder: "Recorder", data: Inputs, groups: "dict[str, xr.Dataset]", seed: int, title: str | None
) -> "xr.DataTree":
    import xarray as xr

    from oplens.results import provenance

    model = {**recorder.facts, "name": recorder.name, "causal": recorder.causal, "n_layers": recorder.n_layers}
    source = f"{recorder.name} on {data.data.source}"
    dtype = str(recorder.facts.get("dtype", "float64"))
    for name, ds in groups.items():
        random = seed if name in ("representations", "similarity") else None
        ds.attrs = {**provenance(source=source, dtype=dtype, seed=random), **ds.attrs}
    root = {
        "title": title or f"{recorder.name} on {data.data.name}",
        "model": json.dumps(model),
        "data": json.dumps(data.facts),
        "headline": headline(groups, data.n_cases),
        "notes": json.dumps([*recorder.notes, *own_notes(groups, data, recorder)]),
        **provenance(source=source, dtype=dtype),
    }
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=root), **{f"/{name}": ds for name, ds in groups.items()}})


@contextlib.contextmanager
def _located(where: str) -> Iterator[None]:
    """Say where in the model an array was refused."""
    try:
        yield
    except (ArgumentError, DataError) as error:
        raise type(error)(f"{where}: {error}") from None
