"""From an operator and sequences to the whole result a report is made of: partitions, pairs, summary, baselines, chosen cases."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.views import VIEWS, Subject, check_views, default_views

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation import Bands, ExplicitOperator, Windows


def default_partitions(
    op: "ExplicitOperator", bands: "Bands | None" = None, windows: "Windows | None" = None
) -> list[Any]:
    """Return what a report shows when nothing else is asked for: waves, channels x bands, windows, and pairs of the first two.

    Stacks of two or more layers have waves of layers instead, and no pairs. `bands` are octaves and `windows` eight by default.

    Examples
    --------
    >>> from oplens.assembly import group_name
    >>> from oplens.explanation import Bands, Channels
    >>> group_name((Channels(), Bands()))
    'channels_bands'
    """
    from oplens.explanation import Bands, Channels, LayerWaves, Pairs, Waves, Windows

    split, windows = (Channels(), bands or Bands()), windows or Windows(8)
    if op.expansion is None:
        return [LayerWaves(), split, windows]
    partitions: list[Any] = [Waves(), split, windows]
    if op.order >= 2:
        partitions += [Pairs(Waves(), mean="class"), Pairs(split, mean="class")]
    return partitions


def group_name(by: Any) -> str:
    """Name of a partition's group in a result file, as docs/schema.md says."""
    from oplens.explanation import Pairs
    from oplens.explanation.parts import LayerWaves, normalise

    if isinstance(by, Pairs):
        return f"pairs_{group_name(by.by)}"
    names = ["layer_waves" if isinstance(part, LayerWaves) else type(part).__name__.lower() for part in normalise(by)]
    return "_".join(names)


def assemble(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    *,
    partitions: Sequence[Any] | None = None,
    views: Sequence[str] | None = None,
    train: SequenceData | None = None,
    title: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> "xr.DataTree":
    """Explain sequences by several partitions and gather everything that a report needs.

    Parameters
    ----------
    op : ExplicitOperator
    X : array (n_cases, n_channels, n_timepoints), list, or SequenceData
    y : sequence of str, optional
        Labels; without them accuracies and class means are left out.
    partitions : sequence of parts, tuples of parts or Pairs, optional
        Default: :func:`default_partitions`. Class means of pairs become the cases' largest pairs when there are no labels.
    views : sequence of str, optional
        What the file holds of the operator besides partitions; default: :func:`oplens.views.default_views`, all: `oplens.views.VIEWS`.
    train : SequenceData, optional
        Labelled training set for the baselines; default: the one the operator keeps.
    title : str, optional
    progress : callable, optional
        Called with a line of text before each step.

    Returns
    -------
    xarray.DataTree
        As docs/schema.md says; write it with :func:`oplens.write_results`, show it with :func:`oplens.render`.

    Examples
    --------
    >>> import torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.data import noisy_sinusoids
    >>> data = noisy_sinusoids(n_cases=40, n_timepoints=60, seed=0)
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4, classes=data.classes))
    >>> sorted(assemble(expand(model, data), data, views=["ring"]).children)
    ['baselines', 'channels_bands', 'inputs', 'pairs_channels_bands', 'pairs_waves', 'ring', 'summary', 'waves', 'windows']
    """
    import xarray as xr

    from oplens.explanation import choose_cases, summarise
    from oplens.explanation.training import known_labels, labels_of

    if partitions is not None and (isinstance(partitions, str) or not isinstance(partitions, Sequence)):
        raise ArgumentError(
            f"assemble(partitions={partitions!r}): give a list, such as [Waves(), (Channels(), Bands())]."
        )
    if op.model.config.pooling == "none":
        raise ArgumentError(
            "assemble: the model answers at every step, and a page is of one decision per case; op.explain(X, at=-1) takes one answer "
            "apart, op.kernels(length) gives the kernels that all answers share."
        )
    say = progress or (lambda _: None)
    data = as_sequences(X)
    labels = labels_of(data.y if y is None else y, data.n_cases, "assemble(y=...)")
    known_labels(labels, data.n_cases, op.model.config.classes, f"assemble: {data.source}")
    wanted_views = default_views(op) if views is None else check_views(op, views, "assemble")
    groups: dict[str, xr.Dataset] = {}
    first: xr.Dataset | None = None
    for name, wanted in _named(partitions or default_partitions(op), labels).items():
        say(f"explaining {data.n_cases} cases by {name.replace('_', ' ')}")
        groups[name] = op.explain(data, labels, by=wanted)
        if first is None and "completeness_residual" in groups[name]:
            first = groups[name]
    if first is None:
        raise ArgumentError(
            "assemble(partitions=...): pairs alone cannot be summarised; add a partition such as Waves()."
        )
    say("summarising")
    groups["summary"] = summarise(op, first, data, labels)
    groups["inputs"] = choose_cases(op, first, data)
    named = replace(data, y=labels, classes=op.model.config.classes)  # arrays come without the names of classes
    subject = Subject(op, named, labels, first["predicted"].values.tolist(), groups["inputs"]["case"].values.tolist())
    for name in wanted_views:
        say(VIEWS[name].words)
        groups |= VIEWS[name].make(subject)
    headline = _baselines(op, data, labels, train, groups, say)
    root = xr.Dataset(attrs=_root_attributes(op, data, labels, title, headline))
    return xr.DataTree.from_dict({"/": root, **{f"/{name}": ds for name, ds in groups.items()}})


def _named(partitions: Sequence[Any], labels: Any) -> dict[str, Any]:
    """Partitions by the names of their groups, which must differ."""
    found: dict[str, Any] = {}
    for by in partitions:
        name = group_name(by)
        if name in found:
            raise ArgumentError(
                f"assemble(partitions=...): {found[name]!r} and {by!r} would both be the group {name!r}; put one of them into "
                "another result."
            )
        found[name] = _fitting(by, labels)
    return found


def _fitting(by: Any, labels: Any) -> Any:
    """Class means need labels; without them the largest pairs of every case are kept instead."""
    from oplens.explanation import Pairs

    if not isinstance(by, Pairs) or by.mean is None or labels is not None:
        return by
    return Pairs(by.by, top=100)


def _baselines(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: Any,
    train: SequenceData | None,
    groups: dict[str, "xr.Dataset"],
    say: Callable[[str], None],
) -> str:
    from oplens.baselines import evaluate

    train = train if train is not None else op.training.sequences(op.model.config)
    if train is None or train.y is None:
        return "No labelled training set was given, so no baseline stands beside the model."
    say("fitting baselines")
    accuracy = float(groups["summary"]["model_accuracy"]) if "model_accuracy" in groups["summary"] else None
    known = SequenceData(
        data.X, data.lengths, labels, data.channels, op.model.config.classes, data.sampling_rate, data.name, data.source
    )
    groups["baselines"] = evaluate(train, known, accuracy)
    return str(groups["baselines"].attrs["headline"])


def _root_attributes(
    op: "ExplicitOperator", data: SequenceData, labels: Any, title: str | None, headline: str
) -> dict[str, Any]:
    from oplens.results import provenance

    config = op.model.config
    counts = {} if labels is None else {name: int((labels == name).sum()) for name in config.classes}
    described = {
        "name": data.name,
        "cases": data.n_cases,
        "channels": list(config.channels),
        "length": int(data.lengths.max()),
        "shortest": int(data.lengths.min()),
        "sampling_rate": config.sampling_rate,
        "class_counts": counts,
        "training_cases": len(op.training.lengths),
        "training_source": op.training.source,
    }
    model = {**config.to_dict(), "n_parameters": sum(p.numel() for p in op.model.parameters())}
    return {
        **provenance(source=data.source),
        "title": title or f"{data.name}: what the model computes",
        "model": json.dumps(model),
        "data": json.dumps(described),
        "headline": headline,
    }
