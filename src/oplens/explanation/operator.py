"""The central object: a trained model rewritten as an explicit operator, fitted once on training data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation import shares as terms
from oplens.explanation.batch import Batch
from oplens.explanation.decomposition import Decomposition
from oplens.explanation.parts import By, Pairs, Waves
from oplens.explanation.targets import Target
from oplens.explanation.training import Training, batches, digest, range_of
from oplens.models.s4d import S4D
from oplens.operators import diagonal
from oplens.operators.polynomial import Expansion

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False)
class ExplicitOperator:
    """A model as an explicit operator; made by :func:`oplens.expand`, or read by :meth:`load`.

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
    _moments: dict[Any, terms.Moments] = field(default_factory=dict, repr=False)
    _pair_moments: dict[Any, Tensor] = field(default_factory=dict, repr=False)

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

    def explain(
        self,
        X: Any,
        y: Any = None,
        by: "By | Pairs" = Waves(),  # noqa: B008 - frozen
        target: Target | None = None,
        *,
        X_train: Any = None,
        memory_limit: int = 2 * 2**30,
    ) -> "xr.Dataset":
        """Every decision as a sum of terms.

        Parameters
        ----------
        X : array (n_cases, n_channels, n_timepoints), list of (n_channels, n_timepoints), or SequenceData
            Raw values; the model's own preprocessing is applied.
        y : sequence of str, optional
            True labels; they become the coordinate `label`.
        by : Waves, LayerWaves, Channels, Bands, Windows, a tuple of them, or Pairs
        target : Target, optional
            Default: the margin of the second class over the first, or class-centred logits.
        X_train : optional
            Asked for only when the operator could not keep its training inputs (above 64 MB).
        memory_limit : int
            Bytes; a result that would not fit is refused before work starts.

        Returns
        -------
        xarray.Dataset
            As docs/schema.md says; `share` sums with `source_share`, `order_0` and `remainder` to `target`.

        Raises
        ------
        ArgumentError, DataError
            With a sentence, before work starts.

        Notes
        -----
        Accuracy: *exact* for the plain architecture, *conditional* (frozen gates and norm scales) for the reference;
        completeness to 1e-10 of the sum of absolute terms by three independent routes.
        Cost: O(order) forward passes, plus O(n_cases d_model P length) multiply-adds per order for waves.
        """
        from oplens.explanation.explain import explain

        return explain(self, X, y, by, target, X_train, memory_limit)

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Logits (n_cases, n_classes) of the operator alone, cut at its order; plain architecture.

        Notes
        -----
        Claim: *truncated*; equal to `truncated_logits` of the highest order.
        """
        from oplens.explanation.kernels import operator_logits

        return operator_logits(self, X)

    def kernels(self, length: int) -> "xr.Dataset":
        """First-order kernel `h1` (class, channel, time) and the factors of the higher ones, for cases of `length` steps.

        The second-order kernel is sum_h readout encoder encoder sum_s coefficient(2, s) response(s - t) response(s - t') / length: it is
        kept as these factors. Plain architecture.

        Examples
        --------
        >>> import numpy as np
        >>> from oplens import S4D, S4DConfig, expand
        >>> op = expand(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4)), np.ones((2, 2, 10)))
        >>> op.kernels(10).h1.shape
        (3, 2, 10)
        """
        from oplens.explanation.kernels import kernels

        return kernels(self, length)

    def certify(
        self, X: Any, y: Any = None, radius: Any = 0.0, orders: Sequence[int] = (2, 4, 8, 16, 20)
    ) -> "xr.Dataset":
        """Certificates per case: in which box the decision cannot flip, and which order decides as the model does all over it.

        Parameters
        ----------
        X, y
            As for :meth:`explain`.
        radius : float or sequence of float
            Half widths of the box around each case, in units of the preprocessed input (standard deviations as a rule).
        orders : sequence of int
            Degrees of the Chebyshev polynomials, fitted on the range of the training pre-activations widened by what the largest
            box adds.

        Returns
        -------
        xarray.Dataset
            `certified_order` and `robust` (case, radius), `remainder_bound` (order, case, radius), `margin_lower_bound`
            (case, radius), `robust_radius` (case), fractions; claim *bound*.

        Raises
        ------
        ArgumentError
            For the reference architecture, negative radii or orders below 1.

        Notes
        -----
        Cost: one forward and one adjoint pass, and one table of certified remainders per order (about a second each).

        Examples
        --------
        >>> import numpy as np, torch
        >>> from oplens import S4D, S4DConfig, expand
        >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4))
        >>> X = np.random.default_rng(0).normal(size=(4, 1, 30))
        >>> ds = expand(model, X).certify(X, radius=[0.0, 0.01], orders=(2, 8))
        >>> bool((ds.robust_radius > 0).all()), ds.certified_order.dims
        (True, ('case', 'radius'))
        """
        from oplens.explanation.certificates import certify

        return certify(self, X, y, radius, orders)

    def predict(self, signal: Any, noise: Any, target: Target | None = None, orders: int = 6) -> "xr.Dataset":
        """Mean and variance of the target for a known signal in Gaussian noise, without simulating one case; plain architecture.

        Parameters
        ----------
        signal : Sinusoid or array (n_channels, n_timepoints)
            In the units of the data.
        noise : float, sequence of float or matrix
            Standard deviation of noise that is white in time: one, one per channel, or the covariance over channels.
        target : Target, optional
            As for :meth:`explain`.
        orders : int
            Orders of the variance's expansion.

        Returns
        -------
        xarray.Dataset
            `target_mean` (*exact*), `target_variance` and `variance_by_order` (*truncated*: each order adds, so a bound from below).

        Notes
        -----
        The whole model is meant, not its polynomial. Cost: O(orders d_model^2 length^2).

        Examples
        --------
        >>> from oplens.data import Sinusoid, noisy_sinusoids
        >>> from oplens import S4D, S4DConfig, expand
        >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)), noisy_sinusoids(n_cases=4).X)
        >>> ds = op.predict(Sinusoid(15.0, n_timepoints=50, sampling_rate=100.0), noise=0.5)
        >>> bool(ds.target_variance > 0)
        True
        """
        from oplens.explanation.prediction import predict

        return predict(self, signal, noise, target, orders)

    def training_range(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest training pre-activation of every feature, (d_model,) each (computed once, then kept)."""
        return self._range

    def __eq__(self, other: object) -> bool:
        """Same configuration, weights, expansion and training set, bit for bit."""
        if not isinstance(other, ExplicitOperator):
            return NotImplemented
        mine, theirs = self._contents(), other._contents()
        if mine.keys() != theirs.keys():
            return False
        return all(_same(mine[key], theirs[key]) for key in mine)

    __hash__ = None  # type: ignore[assignment]

    def save(self, directory: str | Path) -> None:
        """Write the operator, its model and its training inputs into a directory."""
        from oplens.explanation.storage import save_operator

        save_operator(self, directory)

    @classmethod
    def load(cls, directory: str | Path) -> "ExplicitOperator":
        """Read a directory written by :meth:`save`."""
        from oplens.explanation.storage import load_operator

        return load_operator(directory)

    @cached_property
    def _range(self) -> tuple[Tensor, Tensor]:
        return range_of(self.model, *self.training_inputs())

    @property
    def pair_moments(self) -> dict[Any, Tensor]:
        """Training second moments of pairs, by partition (kept once computed)."""
        return self._pair_moments

    def batches(
        self, data: SequenceData, directions: NDArray[np.float64], arrays: int = 1
    ) -> Iterator[tuple[slice, Batch]]:
        """Cases in chunks that keep working memory bounded whatever their number."""
        yield from batches(self.model, data.X, data.lengths, directions, arrays)

    def moments(self, key: Any, decomposition: Decomposition, X_train: Any = None) -> terms.Moments:
        """Training moments of a decomposition (computed once, then kept)."""
        assert self.expansion is not None
        if self.expansion.family != "hermite":
            return terms.power_moments(decomposition, self.expansion)
        if key not in self._moments:
            self._moments[key] = self._fit_moments(decomposition, X_train)
        return self._moments[key]

    def training_inputs(self, X_train: Any = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Training inputs kept by the operator, or given again and checked against its hash."""
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

    def _contents(self) -> dict[str, Any]:
        contents: dict[str, Any] = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        contents["config"] = self.model.config
        for name in ("X", "lengths", "y", "source", "digest"):
            contents[f"training.{name}"] = getattr(self.training, name)
        if self.expansion is not None:
            for name in ("family", "centre", "variance", "coefficients"):
                contents[name] = getattr(self.expansion, name)
        return contents

    def _fit_moments(self, decomposition: Decomposition, X_train: Any) -> terms.Moments:
        assert self.expansion is not None
        X, lengths = self.training_inputs(X_train)
        none = np.zeros((1, self.model.config.n_classes))
        sums: list[Tensor] | None = None
        for _, batch in batches(self.model, X, lengths, none):
            values = terms.batch_moments(decomposition, self.expansion, batch)
            sums = list(values) if sums is None else [a + b for a, b in zip(sums, values, strict=True)]
        assert sums is not None
        mean, covariance, source_mean, source_covariance = (value / len(lengths) for value in sums)
        return terms.Moments(mean, covariance, source_mean, source_covariance)


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor | np.ndarray) or isinstance(theirs, Tensor | np.ndarray):
        if type(mine) is not type(theirs) or mine.shape != theirs.shape:
            return False
        return bool(np.array_equal(np.asarray(mine), np.asarray(theirs)))
    return bool(mine == theirs)
