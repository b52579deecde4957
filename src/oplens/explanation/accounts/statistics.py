"""What accounts need of the training set: its inputs, and moments and ranges of pre-activations, computed once and kept."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts import shares as terms
from oplens.explanation.accounts.decomposition import Decomposition
from oplens.explanation.training import Training, batches, digest, range_of
from oplens.models.s4d import S4D
from oplens.operators.polynomial import Expansion


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of a model's pre-activations over a training set; `pairs` holds second moments of pairs by partition."""

    model: S4D
    expansion: Expansion | None
    training: Training
    pairs: dict[Any, Tensor] = field(default_factory=dict, repr=False)
    _moments: dict[Any, terms.Moments] = field(default_factory=dict, repr=False)

    @cached_property
    def range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest training pre-activation of every feature, (d_model,) each."""
        return range_of(self.model, *self.inputs())

    def inputs(self, X_train: Any = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Training inputs and lengths as the operator kept them, or given again and checked against its hash."""
        if self.training.X is not None:
            return self.training.X, self.training.lengths
        if X_train is None:
            raise ArgumentError(
                f"explain: the operator's training set ({self.training.source}) was above 64 MB and is not kept in it; a new "
                "partition needs its moments: pass X_train=."
            )
        data = as_sequences(X_train)
        X = data.X.astype(np.float32)
        if digest(X, data.lengths) != self.training.digest:
            raise ArgumentError(
                "explain(X_train=...): these are not the inputs the operator was fitted on (hashes differ)."
            )
        return X, data.lengths

    def moments(self, key: Any, decomposition: Decomposition, X_train: Any = None) -> terms.Moments:
        """Training moments of the partition `key`."""
        assert self.expansion is not None
        if self.expansion.family != "hermite":
            return terms.power_moments(decomposition, self.expansion)
        if key not in self._moments:
            self._moments[key] = self._fit(decomposition, X_train)
        return self._moments[key]

    def _fit(self, decomposition: Decomposition, X_train: Any) -> terms.Moments:
        assert self.expansion is not None
        X, lengths = self.inputs(X_train)
        none = np.zeros((1, self.model.config.n_classes))
        sums: list[Tensor] | None = None
        for _, batch in batches(self.model, X, lengths, none):
            values = terms.batch_moments(decomposition, self.expansion, batch)
            sums = list(values) if sums is None else [a + b for a, b in zip(sums, values, strict=True)]
        assert sums is not None
        mean, covariance, source_mean, source_covariance = (value / len(lengths) for value in sums)
        return terms.Moments(mean, covariance, source_mean, source_covariance)
