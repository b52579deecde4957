"""Monte Carlo of the running model: the independent answer that predictions are held against."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.explanation.training import BATCH_BYTES

if TYPE_CHECKING:
    from oplens.explanation.prediction.prediction import Setting


@dataclass(frozen=True)
class Simulated:
    """Targets of simulated cases, (cases, n_targets), with what they estimate."""

    values: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over cases."""
        return np.asarray(self.values.mean(0))

    @property
    def mean_error(self) -> NDArray[np.float64]:
        """Standard error of the mean."""
        return np.asarray(self.values.std(0) / math.sqrt(len(self.values)))

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance over cases."""
        return np.asarray(self.values.var(0))

    @property
    def variance_error(self) -> NDArray[np.float64]:
        """Standard error of the variance, from the fourth moment."""
        squares = (self.values - self.values.mean(0)) ** 2
        return np.asarray(squares.std(0) / math.sqrt(len(self.values)))

    @property
    def above_zero(self) -> NDArray[np.float64]:
        """Share of cases above zero."""
        return np.asarray((self.values > 0).mean(0))


def simulate(
    setting: "Setting", values: NDArray[np.float64], n_cases: int, generator: np.random.Generator
) -> Simulated:
    """Run the model on noisy copies of signals (signals, n_channels, length), each case drawing one of them at random."""
    _, n_channels, length = values.shape
    size = max(1, BATCH_BYTES // (8 * setting.op.model.config.d_model * length))
    found = []
    with torch.no_grad():
        for start in range(0, n_cases, size):
            count = min(size, n_cases - start)
            picked = values[generator.integers(len(values), size=count)]
            white = generator.standard_normal((count, n_channels, length))
            x = torch.from_numpy(picked + np.einsum("cd,bdt->bct", setting.root, white))
            found.append(setting.op.model(x.transpose(1, 2)) @ setting.directions.T)
    return Simulated(torch.cat(found).numpy())
