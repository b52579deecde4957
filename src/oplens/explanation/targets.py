"""Targets of an explanation: linear functionals of the logits. Softmax ignores a common offset, so single logits mean little."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError


class Target(ABC):
    """A linear functional of the logits, or one per class."""

    @abstractmethod
    def directions(self, classes: tuple[str, ...]) -> NDArray[np.float64]:
        """Weights on the logits, (n_targets, n_classes)."""

    @abstractmethod
    def describe(self) -> str:
        """What stands in a result's attribute `target`."""

    @property
    @abstractmethod
    def per_class(self) -> bool:
        """Whether results carry a `class` dimension."""


@dataclass(frozen=True)
class Margin(Target):
    """Logit of class `towards` minus logit of class `against`: positive favours `towards`.

    Examples
    --------
    >>> Margin("positivity", "negativity").directions(("negativity", "positivity")).tolist()
    [[-1.0, 1.0]]
    """

    towards: str
    against: str

    def directions(self, classes: tuple[str, ...]) -> NDArray[np.float64]:
        """(1, n_classes)."""
        row = np.zeros((1, len(classes)))
        for name, sign in ((self.towards, 1.0), (self.against, -1.0)):
            if name not in classes:
                raise ArgumentError(f"{self.describe()}: the model has no class {name!r}; it has {', '.join(classes)}.")
            row[0, classes.index(name)] += sign
        if self.towards == self.against:
            raise ArgumentError(f"{self.describe()}: a margin needs two different classes.")
        return row

    def describe(self) -> str:
        """Margin in words."""
        return f"margin: {self.towards} - {self.against}"

    @property
    def per_class(self) -> bool:
        """False: one number per case."""
        return False


@dataclass(frozen=True)
class CentredLogits(Target):
    """Every class's logit minus the mean over classes.

    Examples
    --------
    >>> CentredLogits().directions(("a", "b")).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """

    def directions(self, classes: tuple[str, ...]) -> NDArray[np.float64]:
        """(n_classes, n_classes)."""
        n = len(classes)
        return np.eye(n) - 1.0 / n

    def describe(self) -> str:
        """Class-centred logits in words."""
        return "class-centred logits"

    @property
    def per_class(self) -> bool:
        """True: one number per case and class."""
        return True


@dataclass(frozen=True)
class Outputs(Target):
    """Every output as it is: for models that filter or regress, whose outputs are no logits of classes.

    Examples
    --------
    >>> Outputs().directions(("y",)).tolist()
    [[1.0]]
    """

    def directions(self, classes: tuple[str, ...]) -> NDArray[np.float64]:
        """(n_classes, n_classes)."""
        return np.eye(len(classes))

    def describe(self) -> str:
        """Outputs in words."""
        return "outputs"

    @property
    def per_class(self) -> bool:
        """True: one number per case and output."""
        return True


def default_target(classes: tuple[str, ...]) -> Target:
    """The margin of the second class over the first when there are two, else class-centred logits."""
    return Margin(classes[1], classes[0]) if len(classes) == 2 else CentredLogits()
