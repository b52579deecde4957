r"""Symmetric second-order kernels as weighted squares of filters, which is what a state-space model with readout z^2 computes.

    h(t1, t2) = sum_j s_j g_j(t1) g_j(t2)   so   sum_{t1, t2} h(t1, t2) x(t - t1) x(t - t2) = sum_j s_j ((g_j * x)(t))^2

A sum over pairs of poles, sum_ab M_ab p_a^t1 p_b^t2, is a quadratic form in the real functions Re p^t, Im p^t; the eigenvectors of its
matrix give the filters, all with the same poles. A matrix over lags is decomposed likewise, into finite kernels. What eigenvalues left
out or rounded leave behind is bounded in L1 (`left_over`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.construction.filters import ExponentialSum, FiniteKernel, Kernel
from oplens.construction.rational import conjugate_pairs, real_array
from oplens.errors import ArgumentError
from oplens.theory.statement import count, number

_ROUNDING = 2.0**-53


@dataclass(frozen=True)
class SecondOrderKernel:
    """h(t1, t2) = sum_j weights[j] filters[j](t1) filters[j](t2), of all channels the mixtures `mixing`.

    Parameters
    ----------
    filters : sequence of ExponentialSum or FiniteKernel
    weights : sequence of float
        Real, of either sign.
    mixing : array (n_filters, n_channels), optional
        Filter j acts on sum_d mixing[j, d] x_d; the first channel alone when omitted.
    left_over : float
        Bound on the L1 norm, over lags and channels, of the kernel that was meant less this one; the constructors give it.

    Examples
    --------
    >>> h = SecondOrderKernel.from_matrix([[1.0, 0.5], [0.5, 0.0]])
    >>> len(h.filters), bool(np.allclose(h.response(2), [[1.0, 0.5], [0.5, 0.0]]))
    (2, True)
    """

    filters: tuple[Kernel, ...]
    weights: tuple[float, ...]
    mixing: tuple[tuple[float, ...], ...] | None = None
    left_over: float = 0.0

    def __post_init__(self) -> None:
        call = "SecondOrderKernel"
        filters = tuple(self.filters)
        if not filters or not all(isinstance(item, Kernel) for item in filters):
            raise ArgumentError(f"{call}: give at least one filter, each an ExponentialSum or a FiniteKernel.")
        weights = tuple(number(call, "weights", value, -math.inf) for value in self.weights)
        if len(weights) != len(filters):
            raise ArgumentError(f"{call}: {len(filters)} filters but {len(weights)} weights; give one for each.")
        if self.mixing is not None:
            mixing = real_array(call, "mixing", self.mixing)
            if mixing.ndim != 2 or len(mixing) != len(filters) or not mixing.shape[1]:
                raise ArgumentError(
                    f"{call}: expected mixing of shape ({len(filters)}, n_channels), got {mixing.shape}."
                )
            object.__setattr__(self, "mixing", tuple(tuple(row) for row in mixing.tolist()))
        object.__setattr__(self, "filters", filters)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "left_over", number(call, "left_over", self.left_over))

    @property
    def n_channels(self) -> int:
        """Channels that it reads."""
        return 1 if self.mixing is None else len(self.mixing[0])

    def response(self, length: int) -> NDArray[np.float64]:
        """h (length, length) over lags, of the mixed input."""
        rows = np.stack([item.response(length) for item in self.filters])
        return np.asarray(np.einsum("j,js,jt->st", np.array(self.weights), rows, rows))

    @classmethod
    def from_exponentials(cls, poles: Any, matrix: Any, mixing: Any = None) -> "SecondOrderKernel":
        """h(t1, t2) = sum_ab matrix[a, b] poles[a]^t1 poles[b]^t2, real and symmetric, of the channels' mixture `mixing` (n_channels,).

        Members of pairs that differ in their last digits are made conjugate.

        Raises
        ------
        ArgumentError
            If h is not real or not symmetric, or does not fade.
        """
        call = "SecondOrderKernel.from_exponentials"
        try:
            M = np.asarray(matrix, dtype=np.complex128)
            given = np.asarray(poles, dtype=np.complex128)
        except (TypeError, ValueError):
            raise ArgumentError(f"{call}: expected a row of complex poles and a complex matrix.") from None
        if given.ndim != 1 or not len(given) or M.shape != (len(given),) * 2 or not np.isfinite(M).all():
            raise ArgumentError(
                f"{call}: expected poles (n,) and a finite matrix (n, n), got {given.shape} and {M.shape}."
            )
        if len(set(given.tolist())) < len(given):
            raise ArgumentError(f"{call}: a pole is given twice; add its rows and columns of the matrix.")
        size = float(np.abs(M).max())
        if not np.abs(M - M.T).max() <= 1e-12 * size or not size:
            raise ArgumentError(
                f"{call}: the matrix is 0 or not symmetric; (M + M.T)/2 gives the same outputs, so give that."
            )
        upper, change = _real_basis(call, given)
        S = change.T @ M @ change
        if not np.abs(S.imag).max() <= 1e-12 * size:
            raise ArgumentError(
                f"{call}: the kernel is not real; conjugate poles need conjugate entries of the matrix."
            )
        values, vectors = _eigen((S.real + S.real.T) / 2)
        filters = tuple(_filter(upper, column) for column in vectors.T)
        # Norms of Re p^t, Im p^t are at most 1/(1 - abs(p)).
        gaps = [1 - math.nextafter(abs(p), 2) for p in upper]
        norms = np.concatenate(
            [[1 / gap if gap > 0 else math.inf] * (1 if p.imag == 0 else 2) for p, gap in zip(upper, gaps, strict=True)]
        )
        rest = _rest(S, values, vectors) + 16 * _ROUNDING * (np.abs(change).T @ np.abs(M) @ np.abs(change))
        return _mixed(call, filters, values, mixing, float(norms @ rest @ norms))

    @classmethod
    def from_matrix(cls, matrix: Any, rank: int | None = None, mixing: Any = None) -> "SecondOrderKernel":
        """H[t1, t2] over lags 0..n-1, decomposed into finite kernels; the `rank` largest eigenvalues in size, or all.

        `mixing` (n_channels,) as in :meth:`from_exponentials`.

        Notes
        -----
        Accuracy: `left_over` is a *bound*, rounding included. Cost: O(n^3).
        """
        call = "SecondOrderKernel.from_matrix"
        H = real_array(call, "matrix", matrix)
        if H.ndim != 2 or H.shape[0] != H.shape[1] or len(H) < 2 or len(H) > 2048:
            raise ArgumentError(f"{call}: expected a square matrix of 2 to 2048 lags, got shape {H.shape}.")
        size = float(np.abs(H).max())
        if not np.abs(H - H.T).max() <= 1e-12 * size or not size:
            raise ArgumentError(
                f"{call}: the matrix is 0 or not symmetric; (H + H.T)/2 gives the same outputs, so give that."
            )
        values, vectors = _eigen(H, None if rank is None else count(call, "rank", rank, most=len(H)))
        rest = _rest(H, values, vectors)
        filters = tuple(FiniteKernel(tuple(column)) for column in vectors.T)
        return _mixed(call, filters, values, mixing, float(rest.sum()))


def _mixed(
    call: str, filters: tuple[Kernel, ...], weights: NDArray[np.float64], mixing: Any, rest: float
) -> SecondOrderKernel:
    """All filters on one mixture of channels; `rest` is the L1 norm of what they leave of the mixture's kernel."""
    rows, gain = None, 1.0
    if mixing is not None:
        row = real_array(call, "mixing", mixing)
        if row.ndim != 1 or not len(row):
            raise ArgumentError(f"{call}: expected mixing of shape (n_channels,), got {row.shape}.")
        rows, gain = (tuple(row.tolist()),) * len(filters), float(np.abs(row).sum())
    return SecondOrderKernel(filters, tuple(weights.tolist()), rows, rest * gain**2 * (1 + 1e-9))


def _eigen(S: NDArray[np.float64], rank: int | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues by descending size that are more than rounding, at most `rank`, and their vectors in columns."""
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[np.abs(values[order]) > len(S) * _ROUNDING * np.abs(values).max()][:rank]
    return values[order], vectors[:, order]


def _rest(S: Any, values: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound on abs(S - V diag(values) V^T), entry by entry, the rounding of this very difference included."""
    size = np.abs(vectors * values) @ np.abs(vectors).T + np.abs(S)
    rounding = (len(values) + 4) * 2 * _ROUNDING
    return np.asarray(np.abs(S - (vectors * values) @ vectors.T) + rounding * size)


def _real_basis(call: str, poles: NDArray[np.complex128]) -> tuple[list[complex], NDArray[np.complex128]]:
    """Real and upper poles, and B with p_a^t = sum_k B[a, k] e_k(t), e = (..., Re p^t, Im p^t, ...)."""
    paired, _ = conjugate_pairs(call, tuple(poles.tolist()), (1 + 0j,) * len(poles))
    upper = [p for p in paired if p.imag >= 0]
    B = np.zeros((len(poles), len(poles)), dtype=np.complex128)
    column = 0
    for p in upper:
        B[int(np.argmin(np.abs(poles - p))), column] = 1
        if p.imag > 0:
            lower = int(np.argmin(np.abs(poles - p.conjugate())))
            B[int(np.argmin(np.abs(poles - p))), column + 1] = 1j
            B[lower, column], B[lower, column + 1] = 1, -1j
            column += 1
        column += 1
    return upper, B


def _filter(upper: list[complex], column: NDArray[np.float64]) -> ExponentialSum:
    """sum of alpha Re p^t + beta Im p^t: residue (alpha - i beta)/2 at p."""
    poles: list[complex] = []
    residues: list[complex] = []
    place = 0
    for p in upper:
        if p.imag == 0:
            poles.append(p)
            residues.append(complex(column[place]))
            place += 1
            continue
        residue = complex(column[place], -column[place + 1]) / 2
        poles += [p, p.conjugate()]
        residues += [residue, residue.conjugate()]
        place += 2
    return ExponentialSum(tuple(poles), tuple(residues))
