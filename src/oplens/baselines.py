r"""What simple features achieve on the same cases: the numbers a reader needs beside a model's accuracy.

Every baseline is a multinomial logistic regression on standardised features, its strength C chosen by cross-validation on the
training set, except the majority class and the one that is picked with hindsight, which says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.data import SequenceData
from oplens.errors import ArgumentError, DataError
from oplens.results import provenance

WINDOW = 64
SHORT_WINDOWS = 8
HINDSIGHT = "best two channel means (hindsight)"

_STRENGTHS = tuple(10.0**k for k in range(-3, 3))
_FOLDS = 5
_SEED = 0
# Pairs of more channels than this would take minutes; the search then keeps the channels that are best alone.
_HINDSIGHT_CHANNELS = 16

_TIE = 1e-9

Features = Callable[[SequenceData], NDArray[np.float64]]


@dataclass(frozen=True)
class _Row:
    name: str
    accuracy: float
    cv_accuracy: float
    hindsight: bool = False


def window_means(data: SequenceData, n_windows: int) -> NDArray[np.float64]:
    """Means over `n_windows` even parts of a case's own steps, (n_cases, n_channels n_windows).

    A case with fewer steps than windows repeats steps, so no window is empty and padding never enters.
    """
    rows = []
    for case in data.cases():
        edges = np.arange(n_windows + 1) * case.shape[1] // n_windows
        rows.append([case[:, a : max(a + 1, b)].mean(axis=1) for a, b in pairwise(edges)])
    return np.array(rows).transpose(0, 2, 1).reshape(data.n_cases, -1)


def step_window_means(data: SequenceData, n_timepoints: int, window: int = WINDOW) -> NDArray[np.float64]:
    """Means over windows of `window` steps, (n_cases, n_channels n_windows); the last window may be shorter.

    Cases of unequal length have no common steps: each is divided into as many even parts as the longest training case,
    of `n_timepoints` steps, has windows.
    """
    n_windows = -(-n_timepoints // window)
    if int(data.lengths.min()) != n_timepoints or data.n_timepoints != n_timepoints:
        return window_means(data, n_windows)
    parts = [data.X[:, :, k * window : (k + 1) * window].mean(axis=2) for k in range(n_windows)]
    return np.stack(parts, axis=2).reshape(data.n_cases, -1)


def band_powers(data: SequenceData, n_bands: int) -> NDArray[np.float64]:
    r"""Mean power in octave bands below Nyquist, (n_cases, n_channels n_bands), highest band first.

    Band j holds the frequencies (2^-(j+2), 2^-(j+1)] cycles per step of the Hann-windowed periodogram of the case's own steps,
    its mean removed: the offset is in no band.
    """
    rows = []
    for case in data.cases():
        length = case.shape[1]
        window = np.hanning(length + 2)[1:-1]
        spectrum = np.fft.rfft((case - case.mean(axis=1, keepdims=True)) * window, axis=1)
        power = np.abs(spectrum) ** 2 / (window**2).sum()
        frequency = np.arange(power.shape[1]) / length
        row = np.zeros((case.shape[0], n_bands))
        for band in range(n_bands):
            inside = (frequency > 0.25 / 2**band) & (frequency <= 0.5 / 2**band)
            if inside.any():
                row[:, band] = power[:, inside].mean(axis=1)
        rows.append(row.ravel())
    return np.array(rows)


def evaluate(train: SequenceData, test: SequenceData, model_accuracy: float | None = None) -> xr.Dataset:
    """Return the accuracy of the baselines on the test cases, and one sentence that compares them with the model.

    Parameters
    ----------
    train : SequenceData
        Labelled; every regression and every choice is made on it.
    test : SequenceData
        Where it has no labels, only the accuracies of the training folds are given.
    model_accuracy : float, optional
        The model's share of correct test cases.

    Returns
    -------
    xarray.Dataset
        Group `/baselines` of `docs/schema.md`: `accuracy`, `cv_accuracy` (baseline), coordinate `hindsight`, `model_accuracy`,
        attribute `headline`; `hindsight_channels` names the pair that the hindsight baseline uses.

    Raises
    ------
    DataError
        When `train` has no labels or a single class, or the channels differ in number.
    ArgumentError
        When `model_accuracy` is no share, or is given without test labels.

    Notes
    -----
    *Measured*. `cv_accuracy` is that of the chosen C on the folds it was chosen by, so slightly too high. Where cases have fewer
    than 512 steps, `8 window means` is added, because there few 64-step windows exist.

    Examples
    --------
    >>> from oplens.data import noisy_sinusoids
    >>> train, test = (noisy_sinusoids(n_cases=60, seed=seed) for seed in (0, 1))
    >>> table = evaluate(train, test, model_accuracy=1.0)
    >>> float(table["accuracy"].sel(baseline="majority class"))
    0.5
    """
    _check(train, test, model_accuracy)
    assert train.y is not None
    longest, shortest = int(train.lengths.max()), int(train.lengths.min())
    n_bands = max(1, int(np.log2(max(shortest, 2) / 2)) + 1)
    features: dict[str, Features] = {
        "channel means": SequenceData.means,
        f"{WINDOW}-step window means": lambda data: step_window_means(data, longest),
    }
    if longest < SHORT_WINDOWS * WINDOW:
        features[f"{SHORT_WINDOWS} window means"] = lambda data: window_means(data, SHORT_WINDOWS)
    floor = _power_floor(train, n_bands)
    features["band powers"] = lambda data: np.log10(np.maximum(band_powers(data, n_bands), floor))
    rows = [_regression(name, of, train, test) for name, of in features.items()]
    rows.append(_majority(train, test))
    attributes: dict[str, Any] = {}
    if test.y is not None and train.n_channels > 1:
        row, pair = _hindsight(train, test)
        rows.append(row)
        attributes["hindsight_channels"] = ", ".join(train.channels[i] for i in pair)
    attributes["headline"] = headline(
        {row.name: row.accuracy for row in rows},
        model_accuracy,
        test.n_cases,
        hindsight=tuple(row.name for row in rows if row.hindsight),
    )
    return _dataset(rows, model_accuracy, attributes, f"{train.source}; {test.source}")


def headline(
    accuracies: dict[str, float], model_accuracy: float | None, n_cases: int, hindsight: tuple[str, ...] = ()
) -> str:
    """One sentence: which baseline beats or ties the model, else how far the model is ahead.

    Examples
    --------
    >>> headline({"channel means": 0.88, "majority class": 0.5}, 0.85, 100)
    'The baseline "channel means" (88.0%) beats the model (85.0%), on 100 test cases; 95% interval of the model 76.7% to 90.7%.'
    >>> headline({"channel means": 0.88}, 0.95, 100)
    'The model (95.0%) is 7.0 points ahead of the best baseline, "channel means" (88.0%), on 100 test cases; \
95% interval of the model 88.8% to 97.8%.'
    """
    known = {name: value for name, value in accuracies.items() if np.isfinite(value)}
    if not known:
        return "The test cases have no labels, so no baseline can be compared with the model."
    best = max(known, key=lambda name: known[name])
    if model_accuracy is None:
        return f'The best baseline on {n_cases} test cases is "{best}" ({known[best]:.1%}).'
    from scipy.stats import binomtest

    interval = binomtest(round(model_accuracy * n_cases), n_cases).proportion_ci(method="wilson")
    where = f"on {n_cases} test cases; 95% interval of the model {interval.low:.1%} to {interval.high:.1%}."
    lead = model_accuracy - known[best]
    if lead > _TIE:
        return (
            f'The model ({model_accuracy:.1%}) is {100 * lead:.1f} points ahead of the best baseline, "{best}" '
            f"({known[best]:.1%}), {where}"
        )
    text = f'The baseline "{best}" ({known[best]:.1%}) {_verb(lead)} the model ({model_accuracy:.1%})'
    plain = max((name for name in known if name not in hindsight), key=lambda name: known[name], default=best)
    if best in hindsight and model_accuracy - known[plain] <= _TIE:
        text += (
            f', and "{plain}" ({known[plain]:.1%}), chosen without hindsight, {_verb(model_accuracy - known[plain])} it'
        )
    return f"{text}, {where}"


def _verb(lead: float) -> str:
    return "ties with" if lead >= -_TIE else "beats"


def _check(train: SequenceData, test: SequenceData, model_accuracy: float | None) -> None:
    if train.y is None:
        raise DataError(
            "baselines.evaluate: the training cases have no labels; baselines are fitted on labelled cases."
        )
    if len(set(train.y.tolist())) < 2:
        raise DataError(
            f"baselines.evaluate: all training cases are {str(train.y[0])!r}; at least two classes are needed."
        )
    if train.n_channels != test.n_channels:
        raise DataError(
            f"baselines.evaluate: the training cases have {train.n_channels} channels, the test cases {test.n_channels}."
        )
    if model_accuracy is None:
        return
    if not 0 <= model_accuracy <= 1:
        raise ArgumentError(f"baselines.evaluate(model_accuracy={model_accuracy!r}): expected a share between 0 and 1.")
    if test.y is None:
        raise ArgumentError(
            "baselines.evaluate: model_accuracy was given, but the test cases have no labels to compare by."
        )


def _regression(name: str, features: Features, train: SequenceData, test: SequenceData) -> _Row:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    assert train.y is not None
    folds = min(_FOLDS, int(np.unique(train.y, return_counts=True)[1].min()))
    X, model, cv_accuracy = features(train), _logistic(1.0), float("nan")
    if folds > 1:
        splits = StratifiedKFold(folds, shuffle=True, random_state=_SEED)
        search = GridSearchCV(model, {"logisticregression__C": _STRENGTHS}, cv=splits, refit=False)
        search.fit(X, train.y)
        model, cv_accuracy = _logistic(search.best_params_["logisticregression__C"]), float(search.best_score_)
    return _Row(name, _accuracy(model.fit(X, train.y), features, test), cv_accuracy)


def _logistic(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000))


def _accuracy(model: Any, features: Features, test: SequenceData) -> float:
    if test.y is None:
        return float("nan")
    return float(np.mean(model.predict(features(test)) == test.y))


def _majority(train: SequenceData, test: SequenceData) -> _Row:
    assert train.y is not None
    labels, counts = np.unique(train.y, return_counts=True)
    accuracy = float("nan") if test.y is None else float(np.mean(test.y == labels[counts.argmax()]))
    return _Row("majority class", accuracy, float(counts.max() / counts.sum()))


def _hindsight(train: SequenceData, test: SequenceData) -> tuple[_Row, tuple[int, int]]:
    """The two channels whose means separate the test set best: what looking at the answers first would give."""
    assert train.y is not None
    X, X_test = SequenceData.means(train), SequenceData.means(test)

    def score(chosen: tuple[int, ...]) -> float:
        return float(np.mean(_logistic(1.0).fit(X[:, chosen], train.y).predict(X_test[:, chosen]) == test.y))

    channels = list(range(train.n_channels))
    if len(channels) > _HINDSIGHT_CHANNELS:
        channels = sorted(sorted(channels, key=lambda i: -score((i,)))[:_HINDSIGHT_CHANNELS])
    scores = {pair: score(pair) for pair in combinations(channels, 2)}
    pair = max(scores, key=lambda p: scores[p])
    folds = _regression(HINDSIGHT, lambda data: SequenceData.means(data)[:, pair], train, test).cv_accuracy
    return _Row(HINDSIGHT, scores[pair], folds, hindsight=True), pair


def _power_floor(train: SequenceData, n_bands: int) -> NDArray[np.float64]:
    """A billionth of each feature's largest power, so that a silent case is far from the others but not infinitely far."""
    largest = band_powers(train, n_bands).max(axis=0)
    return np.where(largest > 0, 1e-9 * largest, 1.0)


def _dataset(rows: list[_Row], model_accuracy: float | None, attributes: dict[str, Any], source: str) -> xr.Dataset:
    def variable(values: Any, long_name: str) -> tuple[tuple[str, ...], Any, dict[str, str]]:
        dims = ("baseline",) if np.ndim(values) else ()
        return dims, values, {"units": "1", "long_name": long_name, "claim": "measured"}

    variables = {"cv_accuracy": variable([row.cv_accuracy for row in rows], "accuracy on held-out training folds")}
    if any(np.isfinite(row.accuracy) for row in rows):
        variables["accuracy"] = variable([row.accuracy for row in rows], "accuracy on the test cases")
    if model_accuracy is not None:
        variables["model_accuracy"] = variable(float(model_accuracy), "accuracy of the model on the test cases")
    coordinates = {
        "baseline": ("baseline", [row.name for row in rows]),
        "hindsight": ("baseline", [row.hindsight for row in rows], {"long_name": "chosen by looking at test labels"}),
    }
    return xr.Dataset(variables, coordinates, {**provenance(source=source, seed=_SEED), **attributes})
