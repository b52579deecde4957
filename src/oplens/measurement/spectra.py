"""How many directions a matrix uses: ranks from singular values, and the paper's formula from eigenvalues."""

from typing import Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, floats, precision

_SHAPE = "a matrix (rows, columns) or a stack of them"


def effective_rank(matrix: Any) -> Floats:
    """Effective rank: exp of the entropy of the normalised singular values.

    erank(A) = exp(-sum_i p_i log p_i), p_i = sigma_i / sum_j sigma_j, 0 log 0 = 0; between 1 and rank(A).

    Parameters
    ----------
    matrix : array, (..., rows, columns)

    Returns
    -------
    ndarray, (...)
        Units: directions. Invariant under rotations on either side and under scaling.

    Raises
    ------
    DataError
        A zero matrix (it has no normalised singular values), or NaN.

    Notes
    -----
    Claim: *measured*; exact up to rounding for the matrix given. Cost: O(rows columns min(rows, columns)).
    Source: Roy & Vetterli (2007), The effective rank: a measure of effective dimensionality, EUSIPCO.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(effective_rank(np.eye(5))), 12), round(float(effective_rank(np.diag([3.0, 1.0]))), 4)
    (5.0, 1.7548)
    """
    return entropy_rank(_singular("effective_rank", matrix))


def eigenvalue_effective_rank(matrix: Any) -> Floats:
    """The paper's "rank efetivo" r_eff as printed: exp of the entropy of normalised eigenvalues. Not a rank: see Notes.

    r_eff = exp(-sum_i p_i log p_i), p_i = lambda_i / sum_j lambda_j. Where eigenvalues are negative or complex the printed formula is
    undefined; their moduli are used, which changes nothing where it is defined.

    Parameters
    ----------
    matrix : array, (..., n, n)

    Returns
    -------
    ndarray, (...)
        NaN where all eigenvalues are 0.

    Notes
    -----
    Attention is not symmetric, and a causal matrix's eigenvalues are its diagonal: a head that copies the previous of 8 tokens has rank 7
    and gets 1 here, 6.94 from :func:`effective_rank`. Claim: *measured*; ill-conditioned, as eigenvalues
    of a matrix that is not normal are: a sevenfold 0 becomes (1e-16)^(1/7) = 0.005 under a rotation of the tokens. Those of triangular
    matrices are read off the diagonal, in O(n^2) instead of O(n^3).
    Source: the paper, section 4.2, metric 2.

    Examples
    --------
    >>> import numpy as np
    >>> previous = np.eye(8, k=-1)
    >>> previous[0, 0] = 1
    >>> float(eigenvalue_effective_rank(previous)), round(float(effective_rank(previous)), 2)
    (1.0, 6.94)
    """
    return entropy_rank(np.abs(eigenvalues("eigenvalue_effective_rank", matrix)), zero=np.nan)


def stable_rank(matrix: Any) -> Floats:
    """Stable rank norm(A)_F^2 / norm(A)_2^2: at most the rank, and moved little by small perturbations.

    Parameters
    ----------
    matrix : array, (..., rows, columns)

    Returns
    -------
    ndarray, (...)

    Notes
    -----
    Claim: *measured*. Cost: one singular value decomposition. Source: Rudelson & Vershynin (2007), J. ACM 54(4) 21.

    Examples
    --------
    >>> import numpy as np
    >>> float(stable_rank(np.diag([2.0, 1.0])))
    1.25
    """
    return stable(_singular("stable_rank", matrix))


def numerical_rank(matrix: Any, tolerance: float | None = None) -> Floats:
    """How many singular values exceed tolerance times the largest.

    Parameters
    ----------
    matrix : array, (..., rows, columns)
    tolerance : float, optional
        By default max(rows, columns) times the spacing of the dtype as given: float32 weights have float32's rank.

    Returns
    -------
    ndarray, (...)
        Whole numbers as float64.

    Notes
    -----
    Claim: *measured*. Cost: one singular value decomposition. Source: Golub & Van Loan, Matrix Computations, section 5.4.

    Examples
    --------
    >>> import numpy as np
    >>> float(numerical_rank(np.outer([1, 2, 3.0], [1, 1.0])))
    1.0
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ArgumentError(
            f"numerical_rank(tolerance={tolerance!r}): it is relative to the largest singular value; give 0 to 1."
        )
    sigma = _singular("numerical_rank", matrix)
    shape = np.shape(matrix)[-2:]
    return counted(sigma, max(shape) * precision(matrix) if tolerance is None else tolerance)


def entropy_rank(values: Floats, zero: float | None = None) -> Floats:
    """Exp of the entropy of values (..., n) >= 0 over their sum; `zero` where all are 0 (refused without it)."""
    total = values.sum(-1, keepdims=True)
    if zero is None and not (total > 0).all():
        raise DataError("effective rank: a matrix of zeros has no directions; leave it out.")
    p = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    found = np.exp(-(p * logs).sum(-1))
    return np.where(total[..., 0] > 0, found, np.nan if zero is None else zero)


def stable(sigma: Floats) -> Floats:
    """Stable rank from singular values, largest first, (..., k)."""
    if not (sigma[..., 0] > 0).all():
        raise DataError("stable rank: a matrix of zeros has no directions; leave it out.")
    return np.asarray(((sigma / sigma[..., :1]) ** 2).sum(-1))


def counted(sigma: Floats, tolerance: float | Floats) -> Floats:
    """Singular values, largest first, above tolerance times the largest."""
    return np.asarray((sigma > tolerance * sigma[..., :1]).sum(-1), dtype=float)


def eigenvalues(call: str, matrix: Any) -> Any:
    """Eigenvalues (..., n) of square matrices; a triangular one's are its diagonal, exactly."""
    array = floats(call, "matrix", matrix, tuple(range(2, 9)), _SHAPE)
    if array.shape[-1] != array.shape[-2] or array.shape[-1] == 0:
        raise ArgumentError(f"{call}(matrix of shape {array.shape}): only square matrices have eigenvalues.")
    diagonal = np.diagonal(array, axis1=-2, axis2=-1)
    lower = (np.triu(array, 1) == 0).all((-2, -1))
    triangular = lower | (np.tril(array, -1) == 0).all((-2, -1))
    found = diagonal.astype(complex)
    if not triangular.all():
        found[~triangular] = np.linalg.eigvals(array[~triangular])
    return found


def _singular(call: str, matrix: Any) -> Floats:
    """Singular values, largest first."""
    array = floats(call, "matrix", matrix, tuple(range(2, 9)), _SHAPE)
    if 0 in array.shape:
        raise ArgumentError(f"{call}(matrix of shape {array.shape}): the matrix is empty.")
    return np.asarray(np.linalg.svd(array, compute_uv=False))
