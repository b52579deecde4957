"""How alike two representations of the same inputs are, up to rotation and scale."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import points, precision
from oplens.measurement.moments import PairMoments
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class CKATotals:
    """Linear CKA of two representations over as many batches as are added; constant memory, no mean over batches.

    Attributes
    ----------
    both, own_x, own_y : PairMoments

    Notes
    -----
    Claim: *measured*. Cost: O(n (d_x + d_y)^2), memory O((d_x + d_y)^2).

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((40, 3))
    >>> rotated = 2 * x @ np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0.0]])
    >>> totals = CKATotals.of(x[:10], rotated[:10]) + CKATotals.of(x[10:], rotated[10:])
    >>> round(float(totals.statistics().cka), 12)
    1.0
    """

    both: PairMoments
    own_x: PairMoments
    own_y: PairMoments

    @classmethod
    def of(cls, x: Any, y: Any, mask: Any = None) -> "CKATotals":
        """Of representations of the same points.

        Parameters
        ----------
        x, y : array, (n_points, d_x) and (n_points, d_y), or (batch, length, d)
            Row i of both belongs to the same input.
        mask : array, the leading axes, optional
            True where a position is real.
        """
        X, Y = points("CKATotals.of", "x", x, mask), points("CKATotals.of", "y", y, mask)
        if len(X) != len(Y):
            raise ArgumentError(
                f"CKATotals.of: {len(X)} points of x and {len(Y)} of y; give the same inputs to both models."
            )
        one, two = precision(x), precision(y)
        return cls(PairMoments.of(X, Y, max(one, two)), PairMoments.of(X, X, one), PairMoments.of(Y, Y, two))

    def __add__(self, other: "CKATotals") -> "CKATotals":
        """Both together."""
        return CKATotals(self.both + other.both, self.own_x + other.own_x, self.own_y + other.own_y)

    def statistics(self) -> "xr.Dataset":
        r"""Linear CKA and its debiased form.

        CKA = norm(X'Y)_F^2 / (norm(X'X)_F norm(Y'Y)_F), centred. With fewer points than features it nears 1 for unrelated
        representations. `cka_unbiased` puts the unbiased HSIC_1 in all three places: 0 on average for independent ones, possibly negative.

        Returns
        -------
        xarray.Dataset
            `cka`, `cka_unbiased` (NaN where an own HSIC_1 is not positive: too few points), `n_points`.

        Raises
        ------
        DataError
            Fewer than 4 points; one side is constant.

        Notes
        -----
        Invariant under rotation, scaling and shift of either side, not under other linear maps. The correction takes points as
        independent. Source: Kornblith et al. (2019), ICML; HSIC_1: Song et al. (2012), JMLR 13, used for
        CKA by Nguyen, Raghu & Kornblith (2021), ICLR, there averaged over minibatches, here over all points at once.
        """
        import xarray as xr

        call = "CKATotals.statistics"
        own = [float(np.linalg.norm(part.cross)) for part in (self.own_x, self.own_y)]
        unbiased = [part.unbiased_cross(call) for part in (self.both, self.own_x, self.own_y)]
        for name, part in (("x", self.own_x), ("y", self.own_y)):
            if part.constant:
                raise DataError(
                    f"{call}: {name} is the same at all {part.count} points; nothing can be similar to a constant."
                )
        plain = float(((self.both.cross / own[0] ** 0.5 / own[1] ** 0.5) ** 2).sum())
        positive = unbiased[1] > 0 and unbiased[2] > 0
        debiased = unbiased[0] / (unbiased[1] ** 0.5 * unbiased[2] ** 0.5) if positive else np.nan
        return xr.Dataset(
            {
                "cka": variable((), plain, "linear CKA, biased up for few points"),
                "cka_unbiased": variable((), debiased, "linear CKA from unbiased HSIC"),
                "n_points": variable((), self.both.count, "points compared", claim="exact"),
            }
        )


def linear_cka(x: Any, y: Any, mask: Any = None, unbiased: bool = True) -> float:
    """Linear CKA of two representations given at once; by default from the unbiased HSIC_1.

    Parameters
    ----------
    x, y, mask
        As for :meth:`CKATotals.of`.
    unbiased : bool
        False: the plain form, near 1 for anything when points are fewer than features.

    Returns
    -------
    float

    Notes
    -----
    Claim: *measured*. Source: :meth:`CKATotals.statistics`.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).standard_normal((2, 50, 200))  # unrelated
    >>> round(linear_cka(x, y, unbiased=False), 1), linear_cka(x, y) < 0.1
    (0.8, True)
    """
    if not isinstance(unbiased, bool):
        raise ArgumentError(f"linear_cka(unbiased={unbiased!r}): give True or False.")
    return float(CKATotals.of(x, y, mask).statistics()["cka_unbiased" if unbiased else "cka"])
