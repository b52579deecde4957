"""Linear dimensions of a cloud of representations: the paper's d_int and the participation ratio, with its bias removed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, points, precision
from oplens.measurement.moments import PairMoments
from oplens.measurement.spectra import counted, entropy_rank, stable
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class PointCloud:
    """A cloud of points kept as second moments; parts add in any order, in constant memory.

    Attributes
    ----------
    moments : PairMoments
        Of the points with themselves.
    factor : ndarray, (at most d, d)
        R with R'R the centred scatter, by QR: singular values keep all their digits, where those of a scatter matrix lose half.

    Notes
    -----
    Two factors are joined as QR of both stacked above sqrt(n m/(n + m)) (mean - mean'). Cost: O(n d^2), memory O(d^2).

    Examples
    --------
    >>> import numpy as np
    >>> batch = np.array([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    >>> cloud = PointCloud.of(batch, mask=[[1, 1, 0]]) + PointCloud.of([[-1.0, 0.0], [0.0, -1.0]])
    >>> cloud.count, round(float(cloud.dimensions().participation_ratio), 12)
    (4, 2.0)
    """

    moments: PairMoments
    factor: Floats

    @classmethod
    def of(cls, x: Any, mask: Any = None, spacing: float | None = None) -> "PointCloud":
        """Of some points.

        Parameters
        ----------
        x : array, (n_points, n_features) or (batch, length, n_features)
        mask : array, (batch, length), optional
            True where a position is real.
        spacing : float, optional
            Relative spacing of the numbers x was computed in; default that of its dtype. What is within rounding counts as nothing.
        """
        kept = points("PointCloud.of", "x", x, mask)
        moments = PairMoments.of(kept, kept, precision(x) if spacing is None else spacing)
        return cls(moments, _triangle(kept - moments.mean_x))

    def __add__(self, other: "PointCloud") -> "PointCloud":
        """Both together."""
        moments = self.moments + other.moments
        n, m = self.count, other.count
        between = np.sqrt(n * m / max(n + m, 1)) * (self.moments.mean_x - other.moments.mean_x)
        return PointCloud(moments, _triangle(np.vstack([self.factor, other.factor, between])))

    @property
    def count(self) -> int:
        """Points, without padding."""
        return self.moments.count

    def singular_values(self, centred: bool) -> Floats:
        """Singular values of the (n_points, n_features) matrix, largest first, with or without its mean."""
        rows = self.factor if centred else np.vstack([self.factor, np.sqrt(self.count) * self.moments.mean_x])
        return np.asarray(np.linalg.svd(rows, compute_uv=False))

    def dimensions(self) -> "xr.Dataset":
        r"""All linear dimensions of the cloud.

        d_int = (sum sigma)^2 / sum sigma^2 of the uncentred matrix, as the paper prints it: (nuclear / Frobenius norm)^2, a lower bound
        on the rank. Participation ratio: tr(C)^2 / tr(C^2) = (sum sigma^2)^2 / sum sigma^4, centred. On a square Gaussian cloud the
        first is 0.72 d, the second 0.50 d, for the same cloud of dimension d.

        The plain ratio is biased down when there are few points. `participation_ratio_corrected` divides two estimates that are
        unbiased for any distribution (:class:`PairMoments`); their ratio is consistent, but not
        exactly unbiased: 50.6 +- 0.2 for 50 from 20 Gaussian points, where the plain ratio gives 13.6.

        Returns
        -------
        xarray.Dataset
            `d_int`, `d_int_centred`, `participation_ratio`, `participation_ratio_corrected`, `effective_rank`, `stable_rank`,
            `numerical_rank` and `n_points`; all centred unless said.

        Raises
        ------
        DataError
            Fewer than 4 points, all points equal up to rounding.

        Notes
        -----
        Claim: *measured*. The correction takes points as independent; positions of one text are not, so its error is larger than it
        would be for as many independent points. NaN where the estimate of tr(C^2) is not positive: too few points.
        Source: d_int: the paper, section 4.2, metric 3. Participation ratio: Gao et al. (2017), bioRxiv 214262. Unbiased traces:
        Himeno & Yamada (2014), J. Multivariate Anal. 130; rederived and checked by enumeration here.
        """
        import xarray as xr

        call = "PointCloud.dimensions"
        square, traces = self.moments.unbiased_cross(call), self.moments.unbiased_trace_product(call)
        sigma, raw = self.singular_values(centred=True), self.singular_values(centred=False)
        if self.moments.constant:
            raise DataError(
                f"{call}: all {self.count} points are equal up to rounding; a single point has no dimension."
            )
        size = max(self.count, len(self.moments.mean_x))
        # Rounding is relative to the numbers, their mean included; it moves no singular value by more than spacing/2 norm(X)_F.
        floor = max(size * np.finfo(float).eps * raw[0], 4 * self.moments.spacing * float(np.linalg.norm(raw)))
        values: dict[str, tuple[Any, str]] = {
            "d_int": (_nuclear(raw), "d_int of the paper: (sum of singular values)^2 / sum of squares, not centred"),
            "d_int_centred": (_nuclear(sigma), "d_int of the centred points"),
            "participation_ratio": (_nuclear(sigma**2), "participation ratio, biased down for few points"),
            "participation_ratio_corrected": (
                traces / square if square > 0 else np.nan,
                "participation ratio from unbiased traces",
            ),
            "effective_rank": (entropy_rank(sigma), "effective rank of the centred points"),
            "stable_rank": (stable(sigma), "stable rank of the centred points"),
            "numerical_rank": (counted(sigma, floor / sigma[0]), "numerical rank of the centred points"),
            "n_points": (self.count, "points measured"),
        }
        return xr.Dataset({name: variable((), value, text) for name, (value, text) in values.items()})


def d_int(x: Any, mask: Any = None) -> float:
    """The paper's "dimensão intrínseca" of representations: (sum sigma)^2 / sum sigma^2 of their singular values, not centred.

    Parameters
    ----------
    x : array, (n_points, n_features) or (batch, length, n_features)
    mask : array, (batch, length), optional

    Returns
    -------
    float
        Between 1 and the rank; a linear dimension, whatever its name says: a curve that fills R^3 has 3.

    Notes
    -----
    Claim: *measured*. Source: the paper, section 4.2, metric 3; see :meth:`PointCloud.dimensions`.

    Examples
    --------
    >>> round(d_int([[3.0, 0.0], [0.0, 1.0]]), 12)
    1.6
    """
    sigma = PointCloud.of(x, mask).singular_values(centred=False)
    if not sigma.max(initial=0) > 0:
        raise DataError("d_int: there are no points, or all are 0; they have no singular values to compare.")
    return float(_nuclear(sigma))


def participation_ratio(x: Any, mask: Any = None, corrected: bool = True) -> float:
    """Participation ratio tr(C)^2 / tr(C^2) of the covariance C, by default from unbiased estimates of both traces.

    Parameters
    ----------
    x : array, (n_points, n_features) or (batch, length, n_features)
    mask : array, (batch, length), optional
    corrected : bool
        False: the ratio of the sample covariance, which is biased down, to about n PR/(n + PR) from n points.

    Returns
    -------
    float

    Notes
    -----
    Claim: *measured*. Source and conditions: :meth:`PointCloud.dimensions`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((60, 50))  # C = I, so the ratio is 50
    >>> round(participation_ratio(x, corrected=False)), round(participation_ratio(x))
    (27, 51)
    """
    if not isinstance(corrected, bool):
        raise ArgumentError(f"participation_ratio(corrected={corrected!r}): give True or False.")
    found = PointCloud.of(x, mask).dimensions()
    return float(found["participation_ratio_corrected" if corrected else "participation_ratio"])


def _nuclear(values: Floats) -> Floats:
    """(sum v)^2 / sum v^2, scaled first so that squares neither overflow nor vanish."""
    v = values / values.max()
    return np.asarray(v.sum() ** 2 / (v**2).sum())


def _triangle(rows: Floats) -> Floats:
    return np.asarray(np.linalg.qr(rows, mode="r"))
