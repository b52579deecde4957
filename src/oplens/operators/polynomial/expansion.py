r"""The readout as a polynomial per feature: what the account of a decision by orders is made of.

Two kinds. Taylor and Hermite use the basis H_k of `closed_forms`, whose blocks are the orders. Chebyshev and empirical expansions are
polynomials in w = z - centre (variance 0 in the same basis), with coefficients that depend on the degree: they carry the
orthogonal series they come from, by which they are evaluated stably and cut at a lower degree.

Source: design of this library (derived afresh; the Carleman embedding of arXiv 2604.20595 is Taylor at 0).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.polynomial import fits
from oplens.operators.polynomial.activations import Activation, activation
from oplens.operators.polynomial.closed_forms import check_order
from oplens.operators.polynomial.series import Series

FAMILIES = ("hermite", "taylor")  # fitted from the mean and variance of the pre-activations
SERIES_FAMILIES = ("chebyshev", "empirical")  # fitted from an interval, or from the pre-activations themselves


@dataclass(frozen=True)
class Expansion:
    """A readout polynomial per feature.

    Attributes
    ----------
    family : str
    centre, variance : Tensor, (d_model,)
    coefficients : Tensor, (d_model, order + 1)
        In the basis H_k of that centre and variance; powers of z - centre where the variance is 0.
    readout : str or Activation
        Name of the activation expanded, or the activation itself, as polynomials of each feature's own are.
    series : Series or None
        For Chebyshev and empirical expansions: the same polynomial by orthogonal blocks, exactly what `evaluate`, `truncated` and
        certificates use; `coefficients` are its powers.
    """

    family: str
    centre: Tensor
    variance: Tensor
    coefficients: Tensor
    readout: "str | Activation" = "gelu"
    series: Series | None = None

    @property
    def order(self) -> int:
        """Degree of the polynomial."""
        return int(self.coefficients.shape[-1]) - 1

    @property
    def activation(self) -> Activation:
        """The readout that is expanded."""
        return activation(self.readout)

    @property
    def convergence_radius(self) -> Tensor:
        """(d_model,): distance from the centre within which higher orders of a Taylor expansion approach the readout; else infinite.

        Examples
        --------
        >>> import torch
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> [round(Expansion.fit("taylor", 3, zero, zero, g).convergence_radius.item(), 2) for g in ("gelu", "gelu_tanh", "silu", "tanh")]
        [inf, 2.83, 3.14, 1.57]
        """
        if self.family != "taylor":
            return torch.full_like(self.centre, math.inf)
        return self.activation.radius(self.centre)

    @classmethod
    def fit(
        cls, family: str, order: int, mean: Tensor, variance: Tensor, readout: "str | Activation" = "gelu"
    ) -> "Expansion":
        """Hermite about the given Gaussian, or Taylor at 0 (mean and variance are then not used).

        Raises
        ------
        ArgumentError
            An order below 1, an unknown family or readout; Taylor of ReLU, which bends at 0; Hermite of ReLU for a constant at 0.

        Examples
        --------
        >>> import torch
        >>> one = torch.ones(3, dtype=torch.float64)
        >>> Expansion.fit("hermite", 2, one, one).order
        2
        """
        if family not in FAMILIES:
            raise ArgumentError(f"expand(family={family!r}): unknown family; choose one of {', '.join(FAMILIES)}.")
        if family == "taylor":
            return cls.taylor(order, torch.zeros_like(mean), readout)
        return cls(family, mean, variance, fits.hermite(activation(readout), mean, variance, order), readout)

    @classmethod
    def taylor(cls, order: int, centre: Tensor, readout: "str | Activation" = "gelu") -> "Expansion":
        """Taylor at any centre (d_model,); see `convergence_radius` for where it can be of use.

        Examples
        --------
        >>> import torch
        >>> Expansion.taylor(3, torch.zeros(1, dtype=torch.float64), "sigmoid").coefficients.tolist()
        [[0.5, 0.25, 0.0, -0.020833333333333332]]
        """
        check_order(order)
        series = activation(readout).taylor(centre, order)
        return cls("taylor", centre, torch.zeros_like(centre), series, readout)

    @classmethod
    def chebyshev(cls, order: int, lo: Tensor, hi: Tensor, readout: "str | Activation" = "gelu") -> "Expansion":
        """Chebyshev series on [lo, hi] (d_model,) each, cut at `order`.

        An interval narrower than a thousandth of its distance from 0 (at least 1) is widened to that, so that a feature which
        never moves has an expansion too.

        Examples
        --------
        >>> import torch
        >>> two = torch.full((1,), 2.0, dtype=torch.float64)
        >>> expansion = Expansion.chebyshev(8, -two, two)
        >>> z = torch.linspace(-2, 2, 9, dtype=torch.float64)[None, None]
        >>> bool((expansion.evaluate(z) - expansion.activation.value(z)).abs().max() < 1e-4)
        True
        """
        check_order(order)
        fits.check_interval(lo, hi, "chebyshev")
        centre = lo + (hi - lo) / 2
        radius = torch.maximum((hi - lo) / 2, 5e-4 * torch.clamp(centre.abs(), min=1.0))
        coefficients = fits.chebyshev(activation(readout), centre, radius, order)
        return cls._of_series("chebyshev", Series.chebyshev(centre, radius, coefficients), readout)

    @classmethod
    def empirical(cls, order: int, samples: "fits.Samples", readout: "str | Activation" = "gelu") -> "Expansion":
        """Least squares on observed pre-activations, by polynomials orthogonal under them.

        Parameters
        ----------
        order : int
        samples : callable
            Each call gives the same pairs again: z (batch, d_model, length) and weights (batch, length), not negative, 0 where
            padded. It is called order + 2 times, so nothing needs to be kept in memory.
        readout : str or Activation

        Examples
        --------
        >>> import torch
        >>> z = torch.randn(1, 1, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> weights = torch.full((1, 500), 1 / 500, dtype=torch.float64)
        >>> expansion = Expansion.empirical(2, lambda: [(z, weights)])
        >>> residual = expansion.activation.value(z) - expansion.evaluate(z)
        >>> max(abs((weights * residual * z**k).sum().item()) for k in range(3)) < 1e-14
        True
        """
        check_order(order)
        return cls._of_series("empirical", fits.empirical(activation(readout), samples, order), readout)

    @classmethod
    def _of_series(cls, family: str, series: Series, readout: "str | Activation") -> "Expansion":
        return cls(family, series.centre, torch.zeros_like(series.centre), series.powers(), readout, series)

    def recurrence(self) -> Series:
        """The polynomial as a series of its own orthogonal blocks, whatever the family."""
        return self.series or Series.hermite(self.centre, self.variance, self.coefficients)

    def truncated(self, order: int) -> "Expansion":
        """The same family's expansion of a lower degree: the one `order` would have given at the start.

        Examples
        --------
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> high = Expansion.chebyshev(6, -3 * one, one)
        >>> low = Expansion.chebyshev(2, -3 * one, one)
        >>> bool((high.truncated(2).coefficients - low.coefficients).abs().max() < 1e-15)
        True
        """
        check_order(order)
        if order > self.order:
            raise ArgumentError(
                f"truncated(order={order}): the expansion was fitted to order {self.order}; fit it higher."
            )
        if self.series is not None:
            return self._of_series(self.family, self.series.truncated(order), self.readout)
        return Expansion(self.family, self.centre, self.variance, self.coefficients[:, : order + 1], self.readout)

    def basis(self, w: Tensor, order: int) -> list[Tensor]:
        """H_0..H_order at w (batch, d_model, length); negative indices are never asked for."""
        variance = self.variance[:, None]
        values = [torch.ones_like(w), w]
        for k in range(1, order):
            values.append(w * values[k] - k * variance * values[k - 1])
        return values[: order + 1]

    def evaluate(self, z: Tensor) -> Tensor:
        """The polynomial at z (batch, d_model, length)."""
        if self.series is not None:
            return self.series.evaluate(z)
        values = self.basis(z - self.centre[:, None], self.order)
        return sum((self.coefficients[:, k, None] * value for k, value in enumerate(values)), torch.zeros_like(z))

    def divided_difference(self, z: Tensor) -> Tensor:
        """(g(z) - g(m)) / (z - m), continued by g' at z = m; for GELU it equals Phi(z) at m = 0."""
        return self.activation.quotient(z, self.centre[:, None])
