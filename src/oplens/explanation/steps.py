r"""Which steps an explained number is read from: all of a case alike, or the one step asked for of a model that answers at each.

Every account is of  constant + sum_t p(t) W g(z(t)),  a linear functional of the activations. Pooling by mean has p(t) = 1 / length on a
case's valid steps; the answer y(s) of a model without pooling has p(t) = 1 at t = s. What is fitted on training data (centres, moments)
weighs all valid steps alike in both.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4D
from oplens.operators.polynomial import Activation, activation, polynomial_activation

if TYPE_CHECKING:
    from oplens.explanation.operator import ExplicitOperator


def readout_of(model: S4D) -> Activation:
    """What a model's pre-activations go through, for values laid out as (..., d_model, n).

    Examples
    --------
    >>> from oplens.models import S4DConfig
    >>> readout_of(S4D(S4DConfig(1, 1, d_model=3, d_state=2, readout="polynomial", degree=2))).polynomial.shape
    torch.Size([3, 3])
    """
    return activation("gelu") if model.config.readout == "gelu" else polynomial_activation(model.polynomial)


def pooling(mask: Tensor, lengths: Tensor, at: int | None = None) -> Tensor:
    """p (batch, length): the mean over valid steps (mask), or one step, counted from the start, or from a case's own end if negative.

    Examples
    --------
    >>> mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    >>> pooling(mask, torch.tensor([3, 2]), at=-1).tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if at is None:
        return mask / mask.sum(-1, keepdim=True)
    step = lengths + at if at < 0 else torch.full_like(lengths, at)
    return (torch.arange(mask.shape[-1])[None] == step[:, None]).to(mask.dtype)


def step_of(lengths: NDArray[np.int64], at: int) -> NDArray[np.int64]:
    """The step meant by `at` in every case."""
    found: NDArray[np.int64] = lengths + at if at < 0 else np.full_like(lengths, at)
    return found


def check_at(config: S4DConfig, at: Any, lengths: NDArray[np.int64], call: str) -> int | None:
    """The step asked for, or a sentence; None for models that pool, which have none."""
    if config.pooling == "mean":
        if at is not None:
            raise ArgumentError(
                f"{call}(at={at!r}): the model decides by a mean over all steps, so no step of it can be asked for; leave `at` out, or give "
                "a model with pooling='none'."
            )
        return None
    if at is None:
        raise ArgumentError(
            f"{call}: the model answers at every step (pooling='none'), and each answer is a sum of its own; say which is meant: at=-1 for "
            "the last step of every case, or at=t counted from 0."
        )
    if isinstance(at, bool) or not isinstance(at, int | np.integer):
        raise ArgumentError(
            f"{call}(at={at!r}): give one step as a whole number, counted from 0, or from the end as -1."
        )
    least = int(lengths.argmin())
    if not -int(lengths[least]) <= at < int(lengths[least]):
        raise ArgumentError(
            f"{call}(at={int(at)}): case {least} has {int(lengths[least])} steps, 0 to {int(lengths[least]) - 1} (or -1 to "
            f"-{int(lengths[least])} from its end); give a step that every case has."
        )
    return int(at)


def check_pooled(op: "ExplicitOperator", call: str, cure: str = "") -> None:
    """Refuse models that answer at every step where an account is of one decision per case."""
    if op.model.config.pooling == "none":
        cure = cure or "explain(X, at=-1) takes one answer apart, kernels(length) gives the model by lag"
        raise ArgumentError(
            f"{call}: the model answers at every step (pooling='none'), and this account is of one decision per case; {cure}."
        )
