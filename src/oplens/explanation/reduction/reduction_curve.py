"""How smaller models of few waves decide, against the number of waves kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation import training
from oplens.explanation.accounts.coordinates import mode_table
from oplens.explanation.reduction.reduction import Reduction, check_count, run, stored_waves
from oplens.explanation.targets import default_target
from oplens.models.s4d import S4D

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

MOST_RANKS = 50  # waves that a curve lists with their frequencies


def reduction_curve(
    op: "ExplicitOperator", X: Any, y: Any = None, kept: Sequence[int] | None = None, X_train: Any = None
) -> "xr.Dataset":
    """How the smaller models of :meth:`reduce` decide, against the number of waves kept, with the decoder as it was and fitted anew.

    Parameters
    ----------
    X : array (n_cases, n_channels, n_timepoints), list of (n_channels, n_timepoints), or SequenceData
        Cases to measure on; the models are made from the training cases.
    y : sequence of str, optional
        True labels.
    kept : sequence of int, optional
        Numbers of waves; default: powers of two up to all waves, and all.
    X_train : optional
        Asked for only when the operator could not keep its training inputs (above 64 MB).

    Returns
    -------
    xarray.Dataset
        Group `/reduction`: `accuracy`, `agreement` with the full model and `margin_r2` against its margin, the same with `refitted_`
        before them for `refit=True`, `n_parameters` (those of empty slots left out), `n_features`, `n_skips` (features kept for their
        skip alone), each (n_waves); `model_accuracy`, `model_parameters`; and the most important waves by rank: `importance`,
        `frequency`, `decay_time`, with `member`.

    Raises
    ------
    ArgumentError, DataError
        With a sentence, before work starts.

    Notes
    -----
    Claim: *measured* on these cases. Cost: that of one smaller model, and a forward pass of every further one over the training cases
    (at most 512) and X.

    Examples
    --------
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.data import noisy_sinusoids
    >>> from oplens.explanation.reduction.reduction_curve import reduction_curve
    >>> data = noisy_sinusoids(n_cases=8, n_timepoints=40)
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8, classes=data.classes)), data)
    >>> ds = reduction_curve(op, data, kept=(2, 16))
    >>> ds.n_waves.values.tolist(), float(ds.agreement[-1])
    ([2, 16], 1.0)
    """
    data = as_sequences(X)
    training.check_channels(op.model, data, "reduction_curve")
    labels = training.known_labels(
        y if y is not None else data.y, len(data.X), op.model.config.classes, "reduction_curve(y=...)"
    )
    total = stored_waves(op.model)
    counts = _powers_of_two(total) if kept is None else _counts(op, kept)
    reduction = Reduction.of(op, X_train, "reduction_curve")
    full = run(op.model, data)[1]
    measure = _Measure(np.array(op.model.config.classes), full, labels)
    rows: dict[str, list[float]] = {}
    for count in counts:
        model = reduction.cut(count)
        waves, features = reduction.kept(count)
        pooled = run(model, data)[0]
        found: dict[str, float] = {
            "n_parameters": _parameters(model) - 4 * (stored_waves(model) - count),
            "n_features": len(features),
            "n_skips": int(len(features) - np.asarray(waves.any((0, 2)))[features].sum()) if reduction.prunes else 0,
        }
        for prefix, (weight, bias) in zip(("", "refitted_"), reduction.decoders(model), strict=True):
            logits = pooled @ weight.numpy().T + bias.numpy()
            found |= {f"{prefix}{name}": value for name, value in measure.of(logits).items()}
        for name, value in found.items():
            rows.setdefault(name, []).append(value)
    return _dataset(op, data, reduction, counts, rows, measure.of(full).get("accuracy"))


@dataclass(frozen=True)
class _Measure:
    """What logits (n_cases, n_classes) are compared with: the full model's and the labels, if there are any."""

    classes: NDArray[np.str_]
    full: NDArray[np.float64]
    labels: NDArray[np.str_] | None

    def of(self, logits: NDArray[np.float64]) -> dict[str, float]:
        """Agreement, R^2 of the margin and accuracy."""
        directions = default_target(tuple(self.classes.tolist())).directions(tuple(self.classes.tolist()))
        decided = logits.argmax(1)
        found: dict[str, float] = {
            "agreement": float((decided == self.full.argmax(1)).mean()),
            "margin_r2": _r2(self.full @ directions.T, logits @ directions.T),
        }
        if self.labels is not None:
            found["accuracy"] = float((self.classes[decided] == self.labels).mean())
        return found


def _dataset(
    op: "ExplicitOperator",
    data: SequenceData,
    reduction: Reduction,
    counts: list[int],
    rows: dict[str, list[float]],
    right: float | None,
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
    texts |= {f"refitted_{name}": (f"{texts[name][0]}, decoder fitted anew", "measured") for name in list(texts)[:3]}
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
