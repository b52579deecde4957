"""What each head of a layer attends to: entropy, distance, first position; padding and masks left out, batches added up."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Bools, Floats, floats, fraction, plain, precision, validity
from oplens.measurement.ratios import RatioTotals
from oplens.measurement.spectra import counted, eigenvalues, entropy_rank, stable
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

_NEGATIVE = 1e-8  # an eigenvalue's rounding in float64, far below what a negative one is in practice


@dataclass(frozen=True)
class Rows:
    """Checked attention of one layer.

    Attributes
    ----------
    weights : ndarray, (batch, n_heads, length, length)
        0 wherever hidden and in rows left out.
    visible : ndarray of bool, broadcastable to it
    kept : ndarray of bool, (batch, n_heads, length)
        Rows that are no padding and see something.
    real : ndarray of bool, (batch, length)
    """

    weights: Floats
    visible: Bools
    kept: Bools
    real: Bools

    @classmethod
    def of(cls, call: str, weights: Any, mask: Any, causal: bool, visible: Any) -> "Rows":
        """Refuse what is no attention over the visible positions."""
        A = floats(
            call, "weights", weights, (4,), "(batch, n_heads, length, length), one layer of self-attention", False
        )
        batch, _, length, keys = A.shape
        if length != keys or 0 in A.shape:
            raise ArgumentError(
                f"{call}(weights of shape {A.shape}): expected (batch, n_heads, length, length); an empty or chunked result means the "
                "attention in use returns no weights: load the model with attn_implementation='eager'."
            )
        if not isinstance(causal, bool | np.bool_):
            raise ArgumentError(f"{call}(causal={causal!r}): give True or False.")
        real = validity(call, mask, (batch, length), "(batch, length)")
        seen = real[:, None, None, :] & np.ones((length, 1), bool)
        if causal:
            seen = seen & np.tri(length, dtype=bool)
        if visible is not None:
            seen = seen & _pattern(call, visible, A.shape)
        kept = np.broadcast_to(real[:, None, :] & seen.any(-1), A.shape[:3])
        A = np.where(kept[..., None], A, 0.0)
        _check(call, A, seen, kept, _tolerance(precision(weights)))
        return cls(np.where(seen, A, 0.0), seen, kept, real)


@dataclass(frozen=True)
class AttentionTotals:
    """Attention statistics of one layer, per head, over as many batches as are added; constant memory.

    Attributes
    ----------
    entropy_sum, entropy, normalised_entropy, distance, first_mass, previous_mass : RatioTotals, (n_heads,)
    left_out : ndarray of int, (n_heads,)
        Real query rows that see nothing.

    Notes
    -----
    Claim: *measured*. Standard errors are over cases, not rows. Cost: O(batch n_heads length^2); memory of one batch.

    Examples
    --------
    >>> import numpy as np
    >>> uniform = np.tril(np.ones((3, 3))) / np.array([[1], [2], [3]])
    >>> ds = AttentionTotals.of(uniform[None, None], causal=True).statistics()
    >>> round(float(ds.normalised_entropy[0]), 12), round(float(ds.entropy_sum[0]), 4), round(float(ds.distance[0]), 4)
    (1.0, 1.7918, 0.5)
    """

    entropy_sum: RatioTotals
    entropy: RatioTotals
    normalised_entropy: RatioTotals
    distance: RatioTotals
    first_mass: RatioTotals
    previous_mass: RatioTotals
    left_out: Any

    @classmethod
    def of(cls, weights: Any, mask: Any = None, *, causal: bool, visible: Any = None) -> "AttentionTotals":
        """Of the weights of one layer.

        Parameters
        ----------
        weights : array, (batch, n_heads, length, length)
            After the softmax, in evaluation mode; rows are queries. What stands in padded rows is ignored, NaN included.
        mask : array, (batch, length), optional
            True or 1 where a position is real; padding on either side.
        causal : bool
            Whether position i sees 0 to i only. It has no default: it decides what entropy is normalised by.
        visible : array of bool, broadcastable to the weights, optional
            Any further pattern, such as a sliding window.

        Raises
        ------
        DataError
            Scores in place of weights, rows that do not sum to 1, weight on hidden positions.
        """
        found = Rows.of("AttentionTotals.of", weights, mask, causal, visible)
        A, kept = found.weights, found.kept
        length = A.shape[-1]
        logs = np.log(A, out=np.zeros_like(A), where=A > 0)
        entropy = -(A * logs).sum(-1)
        positions = np.arange(length)
        distance = (A * np.abs(positions[:, None] - positions)).sum(-1)
        first = found.real.argmax(-1)
        mass = np.take_along_axis(A, first[:, None, None, None], -1)[..., 0]
        follows = kept[..., 1:] & np.diagonal(found.visible, -1, -2, -1)
        before = np.where(follows, np.diagonal(A, -1, -2, -1), 0.0)
        n_visible = np.broadcast_to(found.visible.sum(-1), kept.shape)
        choice = kept & (n_visible > 1)
        share = np.divide(entropy, np.log(np.maximum(n_visible, 2)), out=np.zeros_like(entropy), where=choice)
        rows = kept.sum(-1)
        present = (rows > 0).astype(float)
        return cls(
            RatioTotals.of(entropy.sum(-1), present),
            RatioTotals.of(entropy.sum(-1), rows),
            RatioTotals.of(share.sum(-1), choice.sum(-1)),
            RatioTotals.of(distance.sum(-1), rows),
            RatioTotals.of(mass.sum(-1), rows),
            RatioTotals.of(before.sum(-1), follows.sum(-1)),
            (found.real[:, None] & ~kept).sum((0, 2)),
        )

    def __add__(self, other: "AttentionTotals") -> "AttentionTotals":
        """Both together."""
        _same_heads(self.entropy, other.entropy)
        return AttentionTotals(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def statistics(self, level: float = 0.95) -> "xr.Dataset":
        """Per head: each measure with its standard error, `_low` and `_high` of the interval over cases.

        Returns
        -------
        xarray.Dataset
            Over `head`: `entropy_sum` (the paper's H_l, -sum_ij A log A, mean over cases: a sum over rows, between 0 and n log n),
            `entropy` (per row, nats), `normalised_entropy` (over log of the visible positions, rows with a choice only), `distance`
            (mean of abs(i - j), positions), `first_mass` (weight on the first real position), `previous_mass` (weight on the position before,
            over rows that see one); `n_rows`, `n_left_out`.

        Notes
        -----
        Low entropy does not mean local attention: a head that always looks at the first position has entropy 0. Read all of them.
        Intervals are Student's over cases; NaN below two cases.
        """
        import xarray as xr

        level = fraction("statistics", "level", level)
        texts = {
            "entropy_sum": ("H_l of the paper: sum of -A log A over all rows of a case", "nat"),
            "entropy": ("entropy of a row of attention", "nat"),
            "normalised_entropy": ("entropy of a row over the log of its visible positions", "1"),
            "distance": ("mean distance between query and key", "position"),
            "first_mass": ("attention on the first position", "1"),
            "previous_mass": ("attention on the previous position, of rows that see one", "1"),
        }
        variables = _described({name: (getattr(self, name), *text) for name, text in texts.items()}, level)
        variables["n_rows"] = variable("head", self.entropy.rows, "query rows measured", claim="exact")
        variables["n_left_out"] = variable("head", self.left_out, "real rows that see nothing, left out", claim="exact")
        return xr.Dataset(variables, coords={"head": np.arange(len(self.entropy.total))}, attrs={"level": level})


@dataclass(frozen=True)
class AttentionRanks:
    """Ranks of the attention matrices of one layer, per head, over as many batches as are added; constant memory.

    Padding is cut out of each case's matrix (rows and columns of zeros change no singular value, and padded ones are zeros here).

    Attributes
    ----------
    effective_rank, relative_rank, stable_rank, numerical_rank, eigenvalue_effective_rank : RatioTotals, (n_heads,)
    undefined : RatioTotals
        Where an eigenvalue is negative or complex, the paper's formula has no value and moduli stand in.

    Notes
    -----
    Claim: *measured*. Cost: O(batch n_heads length^3). Source: see :func:`oplens.measurement.effective_rank`.

    Examples
    --------
    >>> import numpy as np
    >>> previous = np.eye(8, k=-1)
    >>> previous[0, 0] = 1
    >>> ds = AttentionRanks.of(previous[None, None], causal=True).statistics()
    >>> float(ds.eigenvalue_effective_rank[0]), round(float(ds.effective_rank[0]), 2), float(ds.numerical_rank[0])
    (1.0, 6.94, 7.0)
    """

    effective_rank: RatioTotals
    relative_rank: RatioTotals
    stable_rank: RatioTotals
    numerical_rank: RatioTotals
    eigenvalue_effective_rank: RatioTotals
    undefined: RatioTotals

    @classmethod
    def of(cls, weights: Any, mask: Any = None, *, causal: bool, visible: Any = None) -> "AttentionRanks":
        """Arguments and refusals as for :meth:`AttentionTotals.of`."""
        found = Rows.of("AttentionRanks.of", weights, mask, causal, visible)
        rows = found.kept.sum(-1)
        here = rows > 0
        A = np.where(
            here[..., None, None], found.weights, np.eye(found.weights.shape[-1])
        )  # stand-ins, given no weight
        sigma = np.linalg.svd(A, compute_uv=False)
        spectrum = eigenvalues("AttentionRanks.of", A)
        modulus = np.abs(spectrum)
        spacing = precision(weights)
        rounding = max(_NEGATIVE, 4 * spacing)
        bad = ((spectrum.real < -rounding) | (np.abs(spectrum.imag) > rounding)).any(-1).astype(float)
        printed = entropy_rank(modulus, zero=np.nan)
        sizes = np.maximum(rows, 1)
        tolerance = found.real.sum(-1)[:, None, None] * spacing  # of the case alone: padding changes no rank
        effective = entropy_rank(sigma)
        some = here & np.isfinite(printed)
        return cls(
            RatioTotals.of(np.where(here, effective, 0), here),
            RatioTotals.of(np.where(here, effective / sizes, 0), here),
            RatioTotals.of(np.where(here, stable(sigma), 0), here),
            RatioTotals.of(np.where(here, counted(sigma, tolerance), 0), here),
            RatioTotals.of(np.where(some, printed, 0), some),
            RatioTotals.of(np.where(here, bad, 0), here),
        )

    def __add__(self, other: "AttentionRanks") -> "AttentionRanks":
        """Both together."""
        _same_heads(self.effective_rank, other.effective_rank)
        return AttentionRanks(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def statistics(self, level: float = 0.95) -> "xr.Dataset":
        """Per head: mean over cases of each rank, its standard error and interval.

        Returns
        -------
        xarray.Dataset
            Over `head`: `effective_rank` (singular values), `relative_rank` (that over the case's length), `stable_rank`,
            `numerical_rank`, `eigenvalue_effective_rank` (the paper's r_eff as printed) and `undefined` (share of cases where it is not).
        """
        import xarray as xr

        level = fraction("statistics", "level", level)
        texts = {
            "effective_rank": "effective rank of attention, from singular values",
            "relative_rank": "effective rank of attention over the length",
            "stable_rank": "stable rank of attention",
            "numerical_rank": "numerical rank of attention",
            "eigenvalue_effective_rank": "r_eff of the paper, from eigenvalues",
            "undefined": "share of cases with negative or complex eigenvalues, where r_eff is undefined and moduli are used",
        }
        variables = _described({name: (getattr(self, name), text, "1") for name, text in texts.items()}, level)
        heads = np.arange(len(self.effective_rank.total))
        return xr.Dataset(variables, coords={"head": heads}, attrs={"level": level})


def _described(lines: dict[str, tuple[RatioTotals, str, str]], level: float) -> dict[str, Any]:
    variables = {}
    for name, (totals, text, units) in lines.items():
        low, high = totals.interval(level)
        variables[name] = variable("head", totals.mean, text, units)
        variables[f"{name}_error"] = variable("head", totals.error, f"standard error over cases: {text}", units)
        variables[f"{name}_low"] = variable("head", low, f"lower end of the interval: {text}", units)
        variables[f"{name}_high"] = variable("head", high, f"upper end of the interval: {text}", units)
    return variables


def _tolerance(spacing: float) -> float:
    """Rounding of the dtype that the softmax ran in: rows of 16-bit weights miss 1 by up to 1 %, of float32 by far less than 1e-4."""
    if spacing > 1e-5:
        return 2e-2
    return 1e-4 if spacing > 1e-10 else 1e-9


def _pattern(call: str, visible: Any, shape: tuple[int, ...]) -> Bools:
    array = plain(call, "visible", visible)
    if array.dtype.kind != "b":
        raise ArgumentError(f"{call}(visible of {array.dtype}): give booleans, True where a key may be seen.")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ArgumentError(
            f"{call}(visible of shape {array.shape}): it does not broadcast to the weights' {shape}."
        ) from None


def _check(call: str, A: Floats, seen: Bools, kept: Bools, tolerance: float) -> None:
    """A: 0 in rows left out."""
    inside = np.abs(A - 0.5) <= 0.5 + tolerance  # False for NaN
    if not inside.all():
        worst = A[~inside].flat[0]
        raise DataError(
            f"{call}(weights): holds {worst:g}; these are scores, masked or not, or a row is broken. Give the weights after the softmax."
        )
    hidden = np.where(seen, 0.0, A).sum(-1)
    if (hidden > tolerance).any():
        raise DataError(
            f"{call}(weights): a row puts {hidden.max():.3g} of its weight on padding or hidden positions; the mask, `causal` or "
            "`visible` differs from what the model used, or a finite mask value lost to large scores."
        )
    miss = np.abs(A.sum(-1) - 1)[kept]
    if miss.size and miss.max() > tolerance:
        raise DataError(
            f"{call}(weights): a row sums to 1 only within {miss.max():.3g}; this is no distribution, so it has no entropy. Put the model "
            "in evaluation mode (dropout scales weights); families such as BigBird return rows that do not sum to 1 at all."
        )


def _same_heads(one: RatioTotals, two: RatioTotals) -> None:
    if one.total.shape != two.total.shape:
        raise ArgumentError(
            f"attention: {one.total.shape[0]} heads and {two.total.shape[0]} heads cannot be added; both batches must be of one layer."
        )
