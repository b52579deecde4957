"""Means over rows that come in cases, with an error that knows that rows of one case are not independent; in constant memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from oplens.measurement.arrays import Floats

_LEAST = 0.02  # degrees of freedom of one case beside dust: an interval of any size, but finite


@dataclass(frozen=True)
class RatioTotals:
    """Ratio r = sum_c s_c / sum_c n_c over cases c, of totals s_c over n_c rows, elementwise; sums add in any order.

    The standard error is the ratio estimator's, over cases as independent draws:

        SE = sqrt(K/(K - 1) sum_c (s_c - r n_c)^2) / sum_c n_c,   K = (sum_c n_c)^2 / sum_c n_c^2

    K, the effective number of cases, stands where textbooks have C, which it is for cases of one size: with independent rows the sum of squares
    then is unbiased, and Student's interval has K - 1 degrees of freedom. Of sizes that spread by a factor e (e^2) around their median, 95 %
    intervals of 10 cases cover 94 (96) %, where C covers 87 (68) %: a long case draws the ratio to itself and leaves too small a residual.

    Kept are sums about the current ratio, so nothing cancels when batches are joined: with r' = r - d, residuals move by d n_c.

    Attributes
    ----------
    cases : ndarray of int
        Cases with at least one row.
    total, rows : ndarray
        sum s and sum n.
    squares, products, row_squares : ndarray
        Sums of e^2, e n and n^2, e = s - r n.

    Notes
    -----
    Source: Cochran (1977), Sampling Techniques, chapter 6 (the ratio estimator); K: Kish (1965), Survey Sampling; coverage: simulated
    here. Claim: *measured*.
    Cost: O(cases), memory that of one element.

    Examples
    --------
    >>> both = RatioTotals.of([3.0, 5.0], [1, 1]) + RatioTotals.of([4.0], [1])
    >>> float(both.mean), round(float(both.error), 6)  # with one row a case: the standard error of the mean, 1/sqrt(3)
    (4.0, 0.57735)
    """

    cases: Any
    total: Floats
    rows: Floats
    squares: Floats
    products: Floats
    row_squares: Floats

    @classmethod
    def of(cls, total: Any, rows: Any) -> "RatioTotals":
        """Of totals (cases, ...) over rows of the same shape."""
        s, n = np.broadcast_arrays(np.asarray(total, float), np.asarray(rows, float))
        sums, counts = s.sum(0), n.sum(0)
        e = s - _ratio(sums, counts) * n
        return cls((n > 0).sum(0), sums, counts, (e**2).sum(0), (e * n).sum(0), (n**2).sum(0))

    def __add__(self, other: "RatioTotals") -> "RatioTotals":
        """Both together."""
        total, rows = self.total + other.total, self.rows + other.rows
        joint = _ratio(total, rows)
        parts = [part._about(joint) for part in (self, other)]
        squares, products = (np.asarray(a + b) for a, b in zip(*parts, strict=True))
        return RatioTotals(
            self.cases + other.cases, total, rows, squares, products, self.row_squares + other.row_squares
        )

    def _about(self, ratio: Floats) -> tuple[Floats, Floats]:
        shift = _ratio(self.total, self.rows) - ratio
        squares = self.squares + 2 * shift * self.products + shift**2 * self.row_squares
        return squares, self.products + shift * self.row_squares

    @property
    def mean(self) -> Floats:
        """The ratio; NaN where there are no rows."""
        return np.where(self.rows > 0, _ratio(self.total, self.rows), np.nan)

    @property
    def effective_cases(self) -> Floats:
        """K: the number of cases of one size that are worth as much; 0 where there are no rows."""
        return _ratio(self.rows**2, self.row_squares)

    @property
    def error(self) -> Floats:
        """Standard error over cases; NaN below two cases."""
        few = self.cases < 2
        freedom = np.where(few, 1, np.maximum(self.effective_cases - 1, _LEAST))
        factor = (freedom + 1) / freedom
        found = np.sqrt(factor * np.maximum(self.squares, 0)) / np.where(few, 1, self.rows)
        return np.where(few, np.nan, found)

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Student interval around the mean, with K - 1 degrees of freedom; NaN below two cases."""
        from scipy.stats import t

        half = t.ppf(0.5 + level / 2, np.maximum(self.effective_cases - 1, _LEAST)) * self.error
        return self.mean - half, self.mean + half


def _ratio(total: Floats, rows: Floats) -> Floats:
    """0 where there are no rows, so that an empty part adds nothing."""
    return np.asarray(np.divide(total, rows, out=np.zeros_like(rows, dtype=float), where=rows > 0))
