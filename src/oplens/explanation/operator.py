"""The central object: a trained model rewritten as an explicit operator, fitted once on training data."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from oplens.explanation.accounts.explain import explain
from oplens.explanation.accounts.statistics import Statistics
from oplens.explanation.certificates.certificates import certify
from oplens.explanation.interventions.ablation import ablate
from oplens.explanation.interventions.steering import steer
from oplens.explanation.prediction.discrimination import discriminate
from oplens.explanation.prediction.prediction import predict
from oplens.explanation.prediction.sweep import sweep
from oplens.explanation.rays.homogeneous import convergence, homogeneous
from oplens.explanation.rays.rays import ray
from oplens.explanation.reduction.reduction import reduce
from oplens.explanation.reduction.reduction_curve import reduction_curve
from oplens.explanation.responses.kernels import kernels, operator_logits
from oplens.explanation.rings.rings import ring
from oplens.explanation.training import Training
from oplens.models.s4d import S4D
from oplens.operators import diagonal
from oplens.operators.polynomial import Expansion


@dataclass(frozen=True, eq=False)
class ExplicitOperator:
    """A model as an explicit operator; made by :func:`oplens.expand`, or read by :meth:`load`.

    One method per question, each described where its work is done. For every architecture: `explain` a decision as a sum, `steer`,
    `ablate`, `reduce` and its `reduction_curve`, `ring`, `ray`, `homogeneous`, `convergence`. For the plain architecture: calling it
    (logits of the operator alone) and its `kernels`, `certify`, and `predict`, `discriminate` and `sweep` before any simulation. They
    are many because the questions are; none keeps a state beyond `statistics`.

    Attributes
    ----------
    model : S4D
        Frozen float64 copy.
    expansion : Expansion or None
        The readout's polynomial per feature; None for stacks of two or more layers, which have no order axis.
    training : Training
        What it was fitted on.
    """

    model: S4D
    expansion: Expansion | None
    training: Training

    explain = explain
    __call__ = operator_logits
    kernels = kernels
    certify = certify
    predict = predict
    discriminate = discriminate
    sweep = sweep
    steer = steer
    ablate = ablate
    reduce = reduce
    reduction_curve = reduction_curve
    ring = ring
    ray = ray
    homogeneous = homogeneous
    convergence = convergence

    @property
    def family(self) -> str:
        """Family of the expansion, `none` for deep stacks."""
        return self.expansion.family if self.expansion else "none"

    @property
    def order(self) -> int:
        """Degree of the expansion, 0 for deep stacks."""
        return self.expansion.order if self.expansion else 0

    @property
    def system(self) -> diagonal.DiagonalSystem:
        """Discrete diagonal system of the first layer."""
        return self.model.layer(0).system()

    @cached_property
    def statistics(self) -> Statistics:
        """Moments and ranges of the training pre-activations that accounts need, computed once."""
        return Statistics(self.model, self.expansion, self.training)

    def save(self, directory: str | Path) -> None:
        """Write the operator, its model and its training inputs into a directory."""
        from oplens.explanation.storage import save_operator

        save_operator(self, directory)

    @classmethod
    def load(cls, directory: str | Path) -> "ExplicitOperator":
        """Read a directory written by :meth:`save`."""
        from oplens.explanation.storage import load_operator

        return load_operator(directory)

    def __eq__(self, other: object) -> bool:
        """Same configuration, weights, expansion and training set, bit for bit."""
        if not isinstance(other, ExplicitOperator):
            return NotImplemented
        mine, theirs = self._contents(), other._contents()
        if mine.keys() != theirs.keys():
            return False
        return all(_same(mine[key], theirs[key]) for key in mine)

    __hash__ = None  # type: ignore[assignment]

    def _contents(self) -> dict[str, Any]:
        contents: dict[str, Any] = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        contents["config"] = self.model.config
        for name in ("X", "lengths", "y", "source", "digest"):
            contents[f"training.{name}"] = getattr(self.training, name)
        if self.expansion is not None:
            for name in ("family", "centre", "variance", "coefficients"):
                contents[name] = getattr(self.expansion, name)
        return contents


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor | np.ndarray) or isinstance(theirs, Tensor | np.ndarray):
        if type(mine) is not type(theirs) or mine.shape != theirs.shape:
            return False
        return bool(np.array_equal(np.asarray(mine), np.asarray(theirs)))
    return bool(mine == theirs)
