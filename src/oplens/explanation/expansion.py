"""From a model and training data to its operator."""

from typing import Any

import numpy as np

from oplens.data import as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.operator import ExplicitOperator
from oplens.explanation.training import Training, check_channels, check_family, fit_expansion, labels_of
from oplens.models.s4d import S4D


def expand(model: Any, X_train: Any, y_train: Any = None, family: str = "hermite", order: int = 2) -> ExplicitOperator:
    """Rewrite a trained model as an explicit operator, fitted once on training data.

    Parameters
    ----------
    model : S4D or S4DClassifier
        A fitted classifier stands for its model.
    X_train : array (n_cases, n_channels, n_timepoints), list of (n_channels, n_timepoints), or SequenceData
    y_train : sequence of str, optional
        Labels; kept for the baselines beside an explanation.
    family : {"hermite", "taylor", "chebyshev", "empirical"}
        Hermite is adapted to the pre-activations of the training data (each case weighs the same, population form); Taylor is
        the paper's expansion at 0, good for pre-activations below about 1 in size; Chebyshev has nearly the smallest sup error on the
        range they reach; empirical is least squares on them. The orders of the last two are powers about one centre, and
        `truncated_logits` at order k is their own polynomial of degree k, not the sum of the first k orders.
    order : int
        Degree, at least 1.

    Returns
    -------
    ExplicitOperator

    Raises
    ------
    ArgumentError, DataError
        With a sentence.

    Notes
    -----
    Accuracy: orders are *truncated* (the remainder is shown), everything else *exact* or *conditional*. A stack of two or more
    layers has no order axis: its operator holds the conditional accounts only. Of a model whose readout is a polynomial every family
    is the model itself from the polynomial's degree on: the remainder is 0, and `kernels` are what the model was built from. Source:
    the idea is that of arXiv 2604.20595; the formulas were derived for this library (docs/formulas.md).

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens.models import S4D, S4DConfig
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=8, classes=("left", "right")))
    >>> X = np.random.default_rng(0).normal(size=(6, 2, 50))
    >>> ds = expand(model, X).explain(X)
    >>> terms = ds.share.sum(("order", "feature", "wave")) + ds.source_share.sum(("order", "source"))
    >>> bool(abs(ds.order_0 + terms + ds.remainder - ds.target).max() < 1e-12)
    True
    """
    check_family(family, order)
    model = _model_of(model)
    data = as_sequences(X_train)
    check_channels(model, data, "expand")
    labels = labels_of(y_train if y_train is not None else data.y, len(data.X), "expand(y_train=...)")
    training = Training.of(data, labels)
    double = model.as_float64()
    expansion = None
    if model.config.n_layers == 1:
        expansion = fit_expansion(double, data.X.astype(np.float32), data.lengths, family, order)
    return ExplicitOperator(double, expansion, training)


def _model_of(model: Any) -> S4D:
    if isinstance(model, S4D):
        return model
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if isinstance(model, BaseEstimator):
        try:
            check_is_fitted(model, "model_")
        except NotFittedError as error:
            raise ArgumentError(f"expand(model={type(model).__name__}): it is not fitted; call fit first.") from error
        inner = vars(model)["model_"]
        if isinstance(inner, S4D):
            return inner
    raise ArgumentError(
        f"expand(model={type(model).__name__}): give an S4D model, a fitted S4DClassifier, or load_checkpoint(...) a file first."
    )
