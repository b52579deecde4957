"""S4D as a scikit-learn classifier on aeon's arrays."""

import dataclasses
import math
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError, DataError
from oplens.models import Preprocessing, S4DConfig

PREPROCESSING = ("standardise", "none")


class S4DClassifier(ClassifierMixin, BaseEstimator):
    r"""Classify sequences with an S4D model, logits = W mean_t GELU(z(t)) + bias, trained by AdamW.

    The defaults were chosen by cross-validation on three training sets (`benchmarks/choose_recipe.py`). There, training on all
    cases for a fixed number of epochs beat early stopping, which costs a fifth of the cases; ``patience=20`` turns it on.

    Parameters
    ----------
    d_model, d_state, architecture, n_layers, prenorm, discretisation, dropout, dt_min, dt_max, initialisation
        The model; see :class:`oplens.models.S4DConfig`. Explanations of the plain architecture are exact.
    coupling : int or None
        Train every feature as a ring of `d_state` sites that hear each other up to so many sites away (1 to ``d_state / 2``), by its
        coupling weights instead of its poles.
    phase_delay : float or None
        Angle in radians by which the sites of every ring first hear each other late; learned afterwards. None: no delay.
    lr, lr_ssm : float
        Learning rate at the start, and that of the steps and poles (or ring weights) of the diagonal systems, which see no weight decay.
    weight_decay, label_smoothing : float
    offset_jitter : float
        While training, shift every case's channels by random constants of so many of the channel's standard deviations, anew in
        each epoch: offsets drift between recordings, and a model that leans on them may fail on the next one.
    schedule : {"cosine", "constant"}
        Learning rate over the `max_epochs`.
    max_epochs, batch_size : int
    patience : int or None
        Stop when the loss on held-out training cases has not improved for so many epochs, and keep the best epoch's weights.
        None trains for `max_epochs` on all cases and keeps the last weights.
    validation_fraction : float
        Share of the training cases held out when `patience` is given, stratified by class; at least as many as classes.
    preprocessing : {"standardise", "none"} or Preprocessing
        Fitted on the cases that are trained on; part of the model ever after.
    remove_offset : bool
        Subtract every case's own channel means first, so that only its oscillations are left.
    sampling_rate : float, optional
        Hz; taken from the data when they are a `SequenceData`.
    channels : sequence of str, optional
        Channel names; taken from the data when they are a `SequenceData`.
    checkpoint_dir : path, optional
        Folder for a checkpoint after each epoch. A killed `fit`, called again with the same data and parameters, continues and
        ends with the same weights bit for bit (same machine, same number of threads); a finished one is not repeated.
    random_state : int, RandomState or None
        Seed of weights, batches, dropout and the held-out part.
    verbose : int
        1 shows a progress bar on standard error.

    Attributes
    ----------
    classes_ : ndarray, (n_classes,)
        Labels, sorted as scikit-learn does; column i of `predict_proba` and logit i of the model belong to ``classes_[i]``.
    model_ : S4D
        The trained model (float32, evaluation mode) with names and preprocessing; ``model_.save_pretrained(dir)`` keeps it.
    history_ : list of dict
        Per epoch: `train_loss` (with label smoothing), and `valid_loss` and `valid_accuracy` on the held-out cases.
    best_epoch_, n_iter_ : int
        Epoch (from 1) the weights are of, and epochs trained.

    Notes
    -----
    Padding changes no logit: of a list of unequal cases every sum runs over a case's own steps. Predictions are computed in
    float64, as explanations are.

    Examples
    --------
    >>> from oplens.data import noisy_sinusoids
    >>> data = noisy_sinusoids(n_cases=40, n_timepoints=50, seed=0)
    >>> classifier = S4DClassifier(d_model=4, d_state=8, max_epochs=2).fit(data.X, data.y)
    >>> classifier.predict_proba(data.X[:3]).shape
    (3, 2)
    """

    def __init__(
        self,
        *,
        d_model: int = 64,
        d_state: int = 64,
        architecture: str = "plain",
        n_layers: int = 1,
        prenorm: bool = False,
        discretisation: str = "zoh",
        dropout: float = 0.0,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        initialisation: str = "lin",
        coupling: int | None = None,
        phase_delay: float | None = None,
        lr: float = 0.01,
        lr_ssm: float = 0.003,
        weight_decay: float = 0.01,
        label_smoothing: float = 0.1,
        offset_jitter: float = 0.5,
        schedule: str = "cosine",
        max_epochs: int = 100,
        batch_size: int = 16,
        patience: int | None = None,
        validation_fraction: float = 0.2,
        preprocessing: str | Preprocessing = "standardise",
        remove_offset: bool = False,
        sampling_rate: float | None = None,
        channels: tuple[str, ...] | None = None,
        checkpoint_dir: str | Path | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: int = 0,
    ) -> None:
        self.d_model = d_model
        self.d_state = d_state
        self.architecture = architecture
        self.n_layers = n_layers
        self.prenorm = prenorm
        self.discretisation = discretisation
        self.dropout = dropout
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.initialisation = initialisation
        self.coupling = coupling
        self.phase_delay = phase_delay
        self.lr = lr
        self.lr_ssm = lr_ssm
        self.weight_decay = weight_decay
        self.label_smoothing = label_smoothing
        self.offset_jitter = offset_jitter
        self.schedule = schedule
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.preprocessing = preprocessing
        self.remove_offset = remove_offset
        self.sampling_rate = sampling_rate
        self.channels = channels
        self.checkpoint_dir = checkpoint_dir
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: object, y: ArrayLike | None = None) -> Self:
        """Train on labelled sequences.

        Parameters
        ----------
        X : ndarray (n_cases, n_channels, n_timepoints), list of ndarray (n_channels, length), or SequenceData
        y : array-like, (n_cases,)
            Labels of any sortable type; may be left out when `X` is a `SequenceData` with labels.

        Raises
        ------
        DataError
            When the data cannot be trained on.
        ArgumentError
            When a parameter cannot work, or training diverges.
        """
        from oplens.estimator.training import train

        data = as_sequences(X)
        labels = _labels(data, y, "fit")
        classes, targets = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise DataError(
                f"S4DClassifier.fit: y holds only one class, {str(classes[0])!r}; a classifier needs at least two."
            )
        plan = self._plan()
        training, validation = self._split(data, targets.astype(np.int64), classes, plan.seed)
        outcome = train(
            self._config(data, training[0], classes),
            training,
            validation,
            plan,
            checkpoint_dir=None if self.checkpoint_dir is None else Path(self.checkpoint_dir),
            verbose=self.verbose,
        )
        self.classes_ = classes
        self.n_features_in_ = data.n_channels
        self.model_ = outcome.model
        self.history_ = outcome.history
        self.best_epoch_ = outcome.best_epoch
        self.n_iter_ = len(outcome.history)
        return self

    def predict(self, X: object) -> NDArray[Any]:
        """Return the most probable class of each case, (n_cases,)."""
        chosen = self._logits(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """Return class probabilities (n_cases, n_classes), the softmax of the model's logits."""
        logits = self._logits(X)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
        return probabilities

    def decision_function(self, X: object) -> NDArray[np.float64]:
        """Return the logits (n_cases, n_classes); for two classes the margin of the second over the first, (n_cases,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def score(self, X: object, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of cases whose class is predicted; `y` may be left out when `X` is a `SequenceData` with labels."""
        check_is_fitted(self)
        labels = _labels(as_sequences(X), y, "score")
        return float(np.average(self.predict(X) == labels, weights=sample_weight))

    def _logits(self, X: object) -> NDArray[np.float64]:
        from oplens.estimator.training import Cases

        check_is_fitted(self)
        data = as_sequences(X)
        config = self.model_.config
        if data.n_channels != config.d_input:
            raise DataError(
                f"S4DClassifier.predict: X has {data.n_channels} channels, but the model was trained on {config.d_input} "
                f"({', '.join(config.channels)})."
            )
        cases = Cases(data, np.zeros(data.n_cases, dtype=np.int64))
        model = self.model_.as_float64()
        with torch.no_grad():
            parts = [model(**cases.batch(index)[0]) for index in torch.arange(data.n_cases).split(64)]
        logits: NDArray[np.float64] = torch.cat(parts).numpy()
        return logits

    def _plan(self) -> Any:
        from oplens.estimator.training import SCHEDULES, Plan

        for name in ("lr", "lr_ssm"):
            _require(name, getattr(self, name), lambda v: v > 0, "a positive number")
        for name in ("weight_decay", "offset_jitter"):
            _require(name, getattr(self, name), lambda v: v >= 0, "0 or more")
        _require("label_smoothing", self.label_smoothing, lambda v: 0 <= v < 1, "at least 0 and below 1")
        for name in ("max_epochs", "batch_size"):
            _require(name, getattr(self, name), lambda v: v >= 1 and v == int(v), "a whole number of at least 1")
        if self.patience is not None:
            _require(
                "patience", self.patience, lambda v: v >= 1 and v == int(v), "a whole number of at least 1, or None"
            )
            _require("validation_fraction", self.validation_fraction, lambda v: 0 < v < 1, "between 0 and 1")
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"S4DClassifier(schedule={self.schedule!r}): choose one of {', '.join(SCHEDULES)}.")
        if self.checkpoint_dir is not None and not isinstance(self.random_state, int | np.integer):
            raise ArgumentError(
                f"S4DClassifier(checkpoint_dir={str(self.checkpoint_dir)!r}, random_state={self.random_state!r}): a run can "
                "only be continued with the same seed; give random_state a whole number."
            )
        return Plan(
            lr=float(self.lr),
            lr_ssm=float(self.lr_ssm),
            weight_decay=float(self.weight_decay),
            label_smoothing=float(self.label_smoothing),
            offset_jitter=float(self.offset_jitter),
            schedule=self.schedule,
            max_epochs=int(self.max_epochs),
            batch_size=int(self.batch_size),
            patience=None if self.patience is None else int(self.patience),
            seed=self._seed(),
        )

    def _seed(self) -> int:
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as error:
            raise ArgumentError(
                f"S4DClassifier(random_state={self.random_state!r}): give a whole number from 0 to 2**32 - 1, a RandomState or None."
            ) from error

    def _split(
        self, data: SequenceData, targets: NDArray[np.int64], classes: NDArray[Any], seed: int
    ) -> tuple[tuple[SequenceData, NDArray[np.int64]], tuple[SequenceData, NDArray[np.int64]] | None]:
        """Cases to train on and cases to stop by."""
        if self.patience is None:
            return (data, targets), None
        counts = np.bincount(targets)
        if counts.min() < 2:
            raise DataError(
                f"S4DClassifier.fit: class {str(classes[counts.argmin()])!r} has a single case, so none can be held out for early "
                "stopping; add cases, or train without it by patience=None."
            )
        size = max(len(classes), math.ceil(self.validation_fraction * len(targets)))
        size = min(size, len(targets) - len(classes))
        splitter = StratifiedShuffleSplit(n_splits=1, test_size=size, random_state=seed)
        kept, held = next(splitter.split(np.zeros(len(targets)), targets))
        kept, held = np.sort(kept), np.sort(held)
        return (data.select(kept), targets[kept]), (data.select(held), targets[held])

    def _config(self, data: SequenceData, training: SequenceData, classes: NDArray[Any]) -> S4DConfig:
        preprocessing = self.preprocessing
        if isinstance(preprocessing, Preprocessing):
            if self.remove_offset and not preprocessing.remove_offset:
                raise ArgumentError(
                    "S4DClassifier(remove_offset=True): the given Preprocessing says remove_offset=False; say it there, "
                    "with means and scales of offset-free signals."
                )
        elif preprocessing == "standardise":
            preprocessing = Preprocessing.standardise(training.X, training.lengths, self.remove_offset)
        elif preprocessing == "none":
            preprocessing = dataclasses.replace(
                Preprocessing.identity(data.n_channels), remove_offset=bool(self.remove_offset)
            )
        else:
            raise ArgumentError(
                f"S4DClassifier(preprocessing={preprocessing!r}): choose one of {', '.join(PREPROCESSING)}, or give a "
                "Preprocessing."
            )
        return S4DConfig(
            d_input=data.n_channels,
            n_classes=len(classes),
            d_model=self.d_model,
            d_state=self.d_state,
            n_layers=self.n_layers,
            architecture=self.architecture,
            prenorm=self.prenorm,
            discretisation=self.discretisation,
            dropout=self.dropout,
            dt_min=self.dt_min,
            dt_max=self.dt_max,
            initialisation=self.initialisation,
            coupling=self.coupling,
            phase_delay=self.phase_delay,
            channels=data.channels if self.channels is None else tuple(self.channels),
            classes=tuple(str(c) for c in classes),
            sampling_rate=data.sampling_rate if self.sampling_rate is None else float(self.sampling_rate),
            preprocessing=preprocessing,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def _labels(data: SequenceData, y: ArrayLike | None, caller: str) -> NDArray[Any]:
    """Labels as a one-dimensional array, one per case."""
    if y is None:
        if data.y is None:
            raise DataError(
                f"S4DClassifier.{caller}: requires y to be passed, but the target y is None; X carries no labels either."
            )
        return data.y
    numbers = np.asarray(y)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        position = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(
            f"S4DClassifier.{caller}: Input y contains NaN or infinity, first at case {position}; leave out cases without a label."
        )
    if any(label is None for label in numbers.ravel().tolist()):
        raise DataError(f"S4DClassifier.{caller}: y holds None; leave out cases without a label.")
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise DataError(f"S4DClassifier.{caller}: {error}") from error
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if len(labels) != data.n_cases:
        raise DataError(
            f"S4DClassifier.{caller}: X has {data.n_cases} cases but y has {len(labels)} labels; give one label per case."
        )
    return labels


def _require(name: str, value: Any, holds: Any, expected: str) -> None:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and holds(value)):
        raise ArgumentError(f"S4DClassifier({name}={value!r}): expected {expected}.")
