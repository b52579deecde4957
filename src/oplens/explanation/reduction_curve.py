"""How smaller models of few waves decide, against the number of waves kept."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation import training
from oplens.explanation.explain import mode_table
from oplens.explanation.reduction import Reduction, check_count, check_refit, run, stored_waves
from oplens.explanation.targets import default_target
from oplens.models.s4d import S4D

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

MOST_RANKS = 50  # waves that a curve lists with their frequencies


def reduction_curve(
    op: "ExplicitOperator",
    X: Any,
    y: Any = None,
    kept: Sequence[int] | None = None,
    refit: bool = False,
    X_train: Any = None,
) -> "xr.Dataset":
    """How the smaller models decide, against the number of waves kept.

    Parameters
    ----------
    op : ExplicitOperator
    X : array (n_cases, n_channels, n_timepoints), list of (n_channels, n_timepoints), or SequenceData
        Cases to measure on; the models are made from the training cases.
    y : sequence of str, optional
        True labels.
    kept : sequence of int, optional
        Numbers of waves; default: powers of two up to all waves, and all.
    refit, X_train
        As for :func:`reduce`.

    Returns
    -------
    xarray.Dataset
        Group `/reduction`: `accuracy`, `agreement` with the full model, `margin_r2` against its margin, `n_parameters` (those of empty
        slots left out), `n_features`, `n_skips` (features kept for their skip alone), each (n_waves); `model_accuracy`,
        `model_parameters`; and the most important waves by rank: `importance`, `frequency`, `decay_time`, with `member`.

    Raises
    ------
    ArgumentError, DataError
        With a sentence, before work starts.

    Notes
    -----
    Claim: *measured* on these cases. Cost: that of :func:`reduce` once, and a forward pass of every smaller model over the training
    cases and X.

    Examples
    --------
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.data import noisy_sinusoids
    >>> from oplens.explanation.reduction_curve import reduction_curve
    >>> data = noisy_sinusoids(n_cases=8, n_timepoints=40)
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8)), data)
    >>> ds = reduction_curve(op, data, kept=(2, 16))
    >>> ds.n_waves.values.tolist(), float(ds.agreement[-1])
    ([2, 16], 1.0)
    """
    data = as_sequences(X)
    training.check_channels(op.model, data, "reduction_curve")
    labels = training.labels_of(y if y is not None else data.y, len(data.X), "reduction_curve(y=...)")
    total = stored_waves(op.model)
    counts = _powers_of_two(total) if kept is None else _counts(op, kept)
    check_refit(refit, "reduction_curve")
    reduction = Reduction.of(op, X_train, "reduction_curve")
    classes = np.array(op.model.config.classes)
    directions = default_target(op.model.config.classes).directions(op.model.config.classes)
    _, full = run(op.model, data)
    decided = full.argmax(1)
    rows: dict[str, list[float]] = {
        name: [] for name in ("agreement", "margin_r2", "n_parameters", "n_features", "n_skips")
    }
    if labels is not None:
        rows["accuracy"] = []
    for count in counts:
        model = reduction.model(count, refit)
        waves, features = reduction.kept(count)
        _, logits = run(model, data)
        rows["agreement"].append(float((logits.argmax(1) == decided).mean()))
        rows["margin_r2"].append(_r2(full @ directions.T, logits @ directions.T))
        rows["n_parameters"].append(_parameters(model) - 4 * (stored_waves(model) - count))
        rows["n_features"].append(len(features))
        rows["n_skips"].append(
            int(features.size - np.asarray(waves.any((0, 2)))[features].sum()) if reduction.prunes else 0
        )
        if labels is not None:
            rows["accuracy"].append(float((classes[logits.argmax(1)] == labels).mean()))
    right = None if labels is None else float((classes[decided] == labels).mean())
    return _dataset(op, data, reduction, counts, rows, right, refit)


def _dataset(
    op: "ExplicitOperator",
    data: SequenceData,
    reduction: Reduction,
    counts: list[int],
    rows: dict[str, list[float]],
    right: float | None,
    refit: bool,
) -> "xr.Dataset":
    import xarray as xr

    from oplens.results import provenance

    texts = {
        "accuracy": ("accuracy of the smaller model", "measured"),
        "agreement": ("decided as the full model decides", "measured"),
        "margin_r2": ("R^2 of the smaller model's margin against the full model's", "measured"),
        "n_parameters": ("parameters, those of empty slots left out", "exact"),
        "n_features": ("hidden features left", "exact"),
        "n_skips": ("features kept for their skip alone", "exact"),
    }
    whole = ("n_parameters", "n_features", "n_skips")
    variables: dict[str, Any] = {
        name: (
            ("n_waves",),
            np.array(values, dtype=int if name in whole else float),
            {"units": "1", "long_name": texts[name][0], "claim": texts[name][1]},
        )
        for name, values in rows.items()
    }
    text = {"units": "1", "long_name": "parameters of the full model", "claim": "exact"}
    variables["model_parameters"] = ((), _parameters(op.model), text)
    if right is not None:
        variables["model_accuracy"] = (
            (),
            right,
            {"units": "1", "long_name": "accuracy of the full model", "claim": "measured"},
        )
    variables |= _ranked(op, reduction)
    ranks = len(variables["importance"][1])
    coords: dict[str, Any] = {
        "n_waves": ("n_waves", np.array(counts), {"units": "1", "long_name": "waves kept", "claim": "exact"}),
        "rank": ("rank", np.arange(1, ranks + 1)),
        "member": ("rank", np.array([_name(reduction, i) for i in reduction.order[:ranks]], dtype=object)),
    }
    config = op.model.config
    attrs = {
        **provenance(source=data.source),
        "architecture": config.architecture,
        "target": default_target(config.classes).describe(),
        "criterion": "standard deviation of the full share over training cases",
        "refit": "decoder" if refit else "none",
        "total_waves": int(reduction.importance.size),
        "training_hash": op.training.digest,
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _ranked(op: "ExplicitOperator", reduction: Reduction) -> dict[str, Any]:
    """Importance, frequency and decay time of the first waves, (rank,)."""
    config = op.model.config
    rate = config.sampling_rate
    tables = [
        mode_table(op.model.layer(number).system(), rate or 1.0, config.discretisation)
        for number in range(config.n_layers)
    ]
    frequency, decay = (np.stack([table[i] for table in tables]).reshape(-1) for i in (0, 1))
    first = reduction.order[:MOST_RANKS]
    return {
        "importance": (
            ("rank",),
            reduction.importance.reshape(-1)[first],
            {
                "units": "logit",
                "long_name": "standard deviation over training cases of the wave's full share",
                "claim": "measured",
            },
        ),
        "frequency": (
            ("rank",),
            frequency[first],
            {"units": "Hz" if rate else "cycles/step", "long_name": "frequency of the wave", "claim": "exact"},
        ),
        "decay_time": (
            ("rank",),
            decay[first],
            {"units": "s" if rate else "steps", "long_name": "decay time of the wave", "claim": "exact"},
        ),
    }


def _name(reduction: Reduction, flat: int) -> str:
    layer, feature, wave = np.unravel_index(flat, reduction.importance.shape)
    name = f"feature {feature}, wave {wave}"
    return name if reduction.prunes else f"layer {layer + 1}, {name}"


def _parameters(model: S4D) -> int:
    return sum(value.numel() for value in model.parameters())


def _r2(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    spread = ((truth - truth.mean(0)) ** 2).sum()
    return float("nan") if spread == 0 else float(1 - ((truth - estimate) ** 2).sum() / spread)


def _powers_of_two(total: int) -> list[int]:
    return [*(2**i for i in range(total.bit_length()) if 2**i < total), total]


def _counts(op: "ExplicitOperator", kept: Any) -> list[int]:
    if isinstance(kept, str) or not isinstance(kept, Sequence | np.ndarray) or len(kept) == 0:
        raise ArgumentError(f"reduction_curve(kept={kept!r}): give numbers of waves, such as (4, 16, 64).")
    return sorted({check_count(op, k, "reduction_curve(kept=...)") for k in kept})
