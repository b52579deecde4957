"""How well the operator tells the model, what it holds beyond channel means, and which cases are shown one by one."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.steps import check_pooled
from oplens.explanation.targets import Target, default_target
from oplens.explanation.training import batches, labels_of
from oplens.results import recomputed_completeness

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

N_CHOSEN = 12
RULE = (
    "a third each: decided right with the largest margin, decided with the smallest margin, decided wrong with the largest margin; "
    "where there are too few of a kind, cases nearest the median margin fill up"
)


def summarise(
    op: "ExplicitOperator", ds: "xr.Dataset", X: Any, y: Any = None, target: Target | None = None
) -> "xr.Dataset":
    """Agreement with the model, accuracy per order, R^2 of margins, and what the margin holds beyond the channel means.

    Parameters
    ----------
    op : ExplicitOperator
    ds : Dataset
        Of `op.explain(X, y, ...)` by any partition.
    X, y
        The explained sequences and their labels.

    Returns
    -------
    xarray.Dataset
        Group `/summary` of docs/schema.md.

    Notes
    -----
    Claim: *measured* on these cases, the regressions' scores too: they are trained on the training set, and no interval is given.
    """
    import xarray as xr

    check_pooled(op, "summarise")
    data = as_sequences(X)
    _check_cases(ds, data, "summarise")
    labels = labels_of(y if y is not None else data.y, len(data.X), "summarise(y=...)")
    target = target or default_target(op.model.config.classes)
    directions = target.directions(op.model.config.classes)
    model_logits = ds["logits"].values
    margins = model_logits @ directions.T
    variables: dict[str, Any] = {}
    classes = np.array(op.model.config.classes)
    decided = classes[model_logits.argmax(-1)]
    if "truncated_logits" in ds:
        truncated = ds["truncated_logits"].values
        choices = classes[truncated.argmax(-1)]
        variables["agreement"] = ("order", (choices == decided).mean(1), "decided as the model decides", "measured")
        r2 = [_r2(margins, t @ directions.T) for t in truncated]
        variables["margin_r2"] = ("order", np.array(r2), "R^2 of the truncated against the model's margin", "measured")
        if labels is not None:
            accuracy = (choices == labels).mean(1)
            variables["accuracy"] = ("order", accuracy, "of the operator cut after each order", "measured")
            right = (decided == labels).mean()
            relative = accuracy / right if right > 0 else np.full(accuracy.shape, np.nan)
            variables["relative_accuracy"] = ("order", relative, "divided by the model's accuracy", "measured")
    if labels is not None:
        variables["model_accuracy"] = ((), (decided == labels).mean(), "accuracy of the model", "measured")
    residual = recomputed_completeness(ds)
    variables["completeness"] = ((), residual, "largest residual over sum of absolute terms", "measured")
    cancellation = np.median(ds["cancellation_ratio"].values)
    variables["cancellation"] = ((), cancellation, "median cancellation ratio", "measured")
    variables.update(_beyond_means(op, data, labels, ds, directions))
    coords: dict[str, Any] = {name: ds[name] for name in ("order",) if name in ds.coords and "truncated_logits" in ds}
    if "accuracy_beyond_means" in variables:
        coords["quantity"] = ("quantity", np.array(["channel means", "channel means + explained margin"], dtype=object))
    described = {
        name: (dims, value, {"units": "1", "long_name": text, "claim": claim})
        for name, (dims, value, text, claim) in variables.items()
    }
    return xr.Dataset(described, coords=coords, attrs={**ds.attrs, "partition": "none"})


def choose_cases(op: "ExplicitOperator", ds: "xr.Dataset", X: Any, count: int = N_CHOSEN) -> "xr.Dataset":
    """The cases shown one by one, by a stated rule, with their raw signals: group `/inputs` of docs/schema.md."""
    import xarray as xr

    check_pooled(op, "choose_cases")
    data = as_sequences(X)
    _check_cases(ds, data, "choose_cases")
    classes = list(op.model.config.classes)
    logits = ds["logits"].values
    ordered = np.sort(logits, axis=-1)
    gap = ordered[:, -1] - ordered[:, -2]
    predicted = ds["predicted"].values.astype(str)
    labels = ds["label"].values.astype(str) if "label" in ds.coords else None
    chosen = _choose(gap, None if labels is None else predicted == labels, count)
    index = np.array([case for case, _ in chosen], dtype=int)
    longest = int(data.lengths[index].max())
    signal = data.X[index, :, :longest].astype(np.float32)
    signal[np.broadcast_to(np.arange(longest) >= data.lengths[index][:, None, None], signal.shape)] = np.nan
    rate = op.model.config.sampling_rate
    time = np.arange(longest) / (rate or 1.0)
    units = "s" if rate else "steps"
    coords: dict[str, Any] = {
        "case": ("case", index),
        "channel": ("channel", np.array(op.model.config.channels, dtype=object)),
        "time": ("time", time, {"units": units, "long_name": "time", "claim": "exact"}),
        "predicted": ("case", predicted[index].astype(object)),
        "why": ("case", np.array([why for _, why in chosen], dtype=object)),
    }
    if labels is not None:
        coords["label"] = ("case", labels[index].astype(object))
    text = {"units": "as in the data", "long_name": "raw signal", "claim": "measured"}
    attrs = {**ds.attrs, "rule": RULE, "classes": ", ".join(classes)}
    return xr.Dataset({"signal": (("case", "channel", "time"), signal, text)}, coords=coords, attrs=attrs)


def _beyond_means(
    op: "ExplicitOperator",
    data: SequenceData,
    labels: NDArray[np.str_] | None,
    ds: "xr.Dataset",
    directions: NDArray[np.float64],
) -> dict[str, Any]:
    """R^2 of the margin given the channel means, and logistic regressions on means with and without the explained margin."""
    from sklearn.linear_model import LinearRegression

    train = op.training.sequences(op.model.config)
    if train is None:
        return {}
    explained, model_margins = training_margins(op, train, directions)
    means, train_means = data.means(), train.means()
    fitted = LinearRegression().fit(train_means, model_margins)
    predicted = np.asarray(fitted.predict(means)).reshape(len(means), -1)
    r2 = _r2(ds["logits"].values @ directions.T, predicted)
    found: dict[str, Any] = {
        "channel_mean_r2": (
            (),
            r2,
            "R^2 of the model's margin given the channel means, fitted on training data",
            "measured",
        )
    }
    trained = op.training.y
    if labels is None or trained is None or len(np.unique(trained)) < 2:
        return found
    held = ds["truncated_logits"].values[-1] if "truncated_logits" in ds else ds["logits"].values
    pairs = (
        (train_means, means),
        (np.hstack((train_means, explained)), np.hstack((means, held @ directions.T))),
    )
    scores = np.array([_logistic_score(a, trained, b, labels) for a, b in pairs])
    text = "accuracy of logistic regressions fitted on training data"
    found["accuracy_beyond_means"] = ("quantity", scores, text, "measured")
    return found


def training_margins(
    op: "ExplicitOperator", train: SequenceData, directions: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Explained (of the highest order) and the model's own targets of the training cases, (n_cases, n_targets)."""
    from oplens.explanation.accounts.shares import class_orders

    explained, model = [], []
    for _, batch in batches(op.model, train.X, train.lengths, directions):
        logits = batch.logits.numpy()
        own = class_orders(batch, op.expansion)[-1].numpy() if op.expansion is not None else logits
        explained.append(own @ directions.T)
        model.append(logits @ directions.T)
    return np.concatenate(explained), np.concatenate(model)


def _logistic_score(X: NDArray[Any], y: NDArray[Any], X_test: NDArray[Any], y_test: NDArray[Any]) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    return float(model.fit(X, y).score(X_test, y_test))


def _r2(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """1 - squared error / variance about the mean, over all targets; NaN when nothing varies."""
    spread = ((truth - truth.mean(0)) ** 2).sum()
    return float("nan") if spread == 0 else float(1 - ((truth - estimate) ** 2).sum() / spread)


def _check_cases(ds: "xr.Dataset", data: SequenceData, call: str) -> None:
    if ds.sizes.get("case") != len(data.X):
        raise ArgumentError(
            f"{call}: the explanation holds {ds.sizes.get('case', 'no')} cases, X holds {len(data.X)}; give the sequences explained."
        )


def _choose(gap: NDArray[np.float64], right: NDArray[np.bool_] | None, count: int) -> list[tuple[int, str]]:
    """Indices and reasons; see RULE."""
    if count < 1:
        raise ArgumentError(f"choose_cases(count={count}): choose at least one case.")
    third = max(count // 3, 1)
    order = np.argsort(gap, kind="stable")
    kinds = [("closest call", order)]
    if right is None:
        kinds.insert(0, ("largest margin", order[::-1]))
    else:
        kinds.insert(0, ("right, largest margin", order[::-1][right[order[::-1]]]))
        kinds.append(("wrong, largest margin", order[::-1][~right[order[::-1]]]))
    middle = np.argsort(np.abs(gap - np.median(gap)), kind="stable")
    chosen: dict[int, str] = {}
    for why, candidates in kinds:
        fresh = [int(case) for case in candidates if int(case) not in chosen]
        chosen.update(dict.fromkeys(fresh[: min(third, count - len(chosen))], why))
    for case in middle:
        if len(chosen) >= min(count, len(gap)):
            break
        chosen.setdefault(int(case), "median margin")
    return list(chosen.items())
