r"""The smallest change of given effect on a quadratic:  min norm(delta)  subject to  b.delta + delta'Q delta / 2 = rise > 0.

Q is symmetric and the same for a whole batch of (b, rise). With the multiplier mu = top + s, top = max(lambda_max(Q), 0), s > 0,

    delta = (mu - Q)^-1 b,      rise(s) = sum_i c_i^2 (mu - theta_i / 2) / (mu - theta_i)^2        (theta_i, c_i: eigenvalues of Q, b in them)

falls from rise(0+) to 0, so one s reaches every rise below rise(0+) (in the form delta = l (1 - l Q)^-1 b: l = 1 / mu). Above it:
lambda_max > 0 is the hard case, in which an eigenvector of lambda_max is added; with Q negative semidefinite nothing reaches further.
Small problems use all eigenpairs. Large ones use the extreme ones, which every b shares, and for the rest of each b Lanczos
vectors; the shifted system is positive definite on them, so few are needed.

Source: the trust-region subproblem with its roles exchanged (More and Sorensen 1983; Gould, Lucidi, Roma, Toint 1999 for Lanczos).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oplens.errors import ArgumentError

Product = Callable[[Tensor], Tensor]  # (batch, n) to (batch, n): rows times a symmetric Q

DENSE = 600  # unknowns up to which all eigenpairs are found
CHECK = 3  # Lanczos steps between two looks at how far it is
SHIFTS = 64  # halvings of an interval of 69 in log(s): the last bit
NULL = 1e-13  # eigenvalues, and components of b, that are rounding of the largest
TINY = 1e-100  # a multiplier that leaves room to divide by it
NARROW = 1e-30  # smallest s looked for, relative to the largest; below it the case is hard


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of Q: values (k,) and orthonormal vectors (n, k), all of them or the extreme ones."""

    values: Tensor
    vectors: Tensor

    @property
    def whole(self) -> bool:
        """Whether no eigenpair is missing."""
        return self.vectors.shape[0] == self.vectors.shape[1]


@dataclass(frozen=True)
class Change:
    """What :func:`smallest_change` finds for every b of a batch.

    Attributes
    ----------
    delta : Tensor, (batch, n)
        Smallest change; where the rise is out of reach, the change that rises furthest.
    reachable : Tensor, (batch,) bool
    reach : Tensor, (batch,)
        Largest rise there is; infinite where it is unbounded.
    residual : Tensor, (batch,)
        norm((mu - Q) delta - b) / norm(b) that the Lanczos vectors leave, 0 with all eigenpairs.
    """

    delta: Tensor
    reachable: Tensor
    reach: Tensor
    residual: Tensor


def spectrum(product: Product, size: int, count: int = 24) -> Spectrum:
    """All eigenpairs of Q up to 600 unknowns, else the `count` largest and `count` smallest (by ARPACK).

    Notes
    -----
    Cost: `size` products and O(size^3) where all are found; some hundred products otherwise.

    Examples
    --------
    >>> Q = torch.diag(torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64))
    >>> [round(v, 9) for v in spectrum(lambda rows: rows @ Q, 3).values.tolist()]
    [-1.0, 2.0, 3.0]
    """
    if size <= DENSE:
        dense = product(torch.eye(size, dtype=torch.float64))
        return Spectrum(*torch.linalg.eigh((dense + dense.T) / 2))
    from scipy.sparse.linalg import LinearOperator, eigsh

    def times(v: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(np.ascontiguousarray(v.reshape(1, -1)))).numpy()[0]

    start = np.random.default_rng(0).normal(size=size)  # fixed, so that the same question has the same answer
    if not np.any(times(start)):
        return Spectrum(torch.zeros(0, dtype=torch.float64), torch.zeros(size, 0, dtype=torch.float64))
    matrix = LinearOperator((size, size), matvec=times, dtype=np.float64)
    ends = [eigsh(matrix, k=count, which=which, v0=times(start)) for which in ("SA", "LA")]
    values, vectors = (np.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True))
    # Two runs know nothing of each other: eigenvalue 0, of which there may be many, could come from both.
    vectors, kept = _orthonormal(vectors)
    return Spectrum(torch.from_numpy(values[kept]), torch.from_numpy(vectors))


def smallest_change(
    product: Product, known: Spectrum, b: Tensor, rise: Tensor, tolerance: float = 1e-12, max_steps: int = 300
) -> Change:
    r"""Solve the problem of the module for every row of b.

    Parameters
    ----------
    product : callable
        Rows (batch, n) times Q.
    known : Spectrum
        Of :func:`spectrum`.
    b : Tensor, (batch, n)
    rise : Tensor, (batch,)
        Wanted; rows with a rise of at most 0 need no change.
    tolerance : float
        Residual at which Lanczos stops, relative to norm(b).
    max_steps : int
        Lanczos vectors per row at most.

    Notes
    -----
    Accuracy: *exact* to the tolerance. Cost: one product per Lanczos vector (a dozen where the multiplier is not extreme).

    Examples
    --------
    >>> Q = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    >>> b, wanted = torch.tensor([[0.0, 0.1]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    >>> found = smallest_change(lambda rows: rows @ Q, spectrum(lambda rows: rows @ Q, 2), b, wanted)
    >>> delta = found.delta[0]
    >>> round(float(b[0] @ delta + delta @ Q @ delta / 2), 12)
    2.0
    """
    if b.ndim != 2 or rise.shape != b.shape[:1]:
        raise ArgumentError(
            f"smallest_change: b is {tuple(b.shape)} and rise {tuple(rise.shape)}; expected (batch, n) and (batch,)."
        )
    scale = b.norm(dim=1).clamp(min=1e-300)
    part = b @ known.vectors
    if known.whole:
        found = _secular(known.values.expand_as(part), part, rise)
        return Change(found.weights @ known.vectors.T, found.reachable, found.reach, torch.zeros_like(rise))
    return _by_lanczos(product, known, b - part @ known.vectors.T, part, rise, scale, tolerance, max_steps)


@dataclass(frozen=True)
class _Secular:
    """Coefficients of delta (batch, m) in the eigenvectors, and what is reachable."""

    weights: Tensor
    reachable: Tensor
    reach: Tensor


def _secular(theta: Tensor, c: Tensor, rise: Tensor) -> _Secular:
    """The scalar equation in s for every row: eigenvalues theta and components c, both (batch, m)."""
    size = theta.abs().amax(-1)
    top = theta.amax(-1)
    rising = top > NULL * size
    base = torch.where(rising, top, 0.0)
    gap = base[:, None] - theta
    # Where Q has a null space (a projector's, say), rounding of b in it over rounding of an eigenvalue 0 would be of any size.
    flat = (gap <= NULL * size[:, None]) & (c.abs() <= NULL * c.norm(dim=1, keepdim=True))
    c = torch.where(flat & ~rising[:, None], 0.0, c)
    want = rise.clamp(min=0.0)
    high = torch.maximum(base, 1.5 * (c**2).sum(-1) / want.clamp(min=1e-100)).clamp(min=TINY)
    low = NARROW * high
    hard = _rise(theta, c, gap, low) < want
    a, z = low.log(), high.log()
    for _ in range(SHIFTS):
        middle = (a + z) / 2
        above = _rise(theta, c, gap, middle.exp()) >= want
        a, z = torch.where(above, middle, a), torch.where(above, z, middle)
    weights = c / (((a + z) / 2).exp()[:, None] + gap)
    weights = torch.where(hard[:, None], _furthest(theta, c, gap, rising, want), weights)
    away = gap > 0
    reach = torch.where(
        away, c**2 / (2 * gap.where(away, torch.ones_like(gap))), torch.where(c == 0, 0.0, torch.inf)
    ).sum(-1)
    reach = torch.where(rising, torch.inf, reach)
    weights = torch.where(rise[:, None] > 0, weights, 0.0)
    return _Secular(weights, ~hard | rising | (rise <= 0), reach)


def _rise(theta: Tensor, c: Tensor, gap: Tensor, s: Tensor) -> Tensor:
    shifted = s[:, None] + gap
    return ((c / shifted) ** 2 * (shifted + theta / 2)).sum(-1)


def _furthest(theta: Tensor, c: Tensor, gap: Tensor, rising: Tensor, want: Tensor) -> Tensor:
    """Weights at s = 0: the change that rises furthest, and in the hard case the eigenvector of the largest eigenvalue on top."""
    away = gap > 0
    weights = torch.where(away, c / gap.where(away, torch.ones_like(gap)), 0.0)
    reached = (c * weights + theta * weights**2 / 2).sum(-1)
    first = torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[1]).to(theta.dtype)
    top = theta.amax(-1).clamp(min=1e-300)
    missing = (2 * (want - reached).clamp(min=0.0) / top).sqrt()
    return weights + torch.where(rising, missing, 0.0)[:, None] * first


def _by_lanczos(
    product: Product,
    known: Spectrum,
    b: Tensor,
    part: Tensor,
    rise: Tensor,
    scale: Tensor,
    tolerance: float,
    max_steps: int,
) -> Change:
    """Lanczos vectors of b, which is orthogonal to the known eigenvectors; rows leave the batch as they converge."""
    size = b.norm(dim=1)
    basis = [_unit(b, size)]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    alive = torch.arange(len(b))
    delta, reachable = torch.zeros_like(b), torch.ones(len(b), dtype=torch.bool)
    reach, residual = torch.zeros_like(rise), torch.zeros_like(rise)
    for step in range(1, max_steps + 1):
        image = product(basis[-1])
        diagonal.append((image * basis[-1]).sum(-1))
        # Twice is enough: without it Lanczos vectors lose their orthogonality, and eigenvalues appear that Q does not have.
        for _ in range(2):
            image = image - (image @ known.vectors) @ known.vectors.T
            for vector in basis:
                image = image - (image * vector).sum(-1, keepdim=True) * vector
        beside.append(image.norm(dim=1))
        basis.append(_unit(image, beside[-1]))
        last = step == max_steps or step >= b.shape[1] - known.vectors.shape[1]
        if step % CHECK and not last:
            continue
        theta, vectors = torch.linalg.eigh(_tridiagonal(diagonal, beside[:-1]))
        c = size[alive, None] * vectors[:, 0]
        values = torch.cat((known.values.expand(len(alive), -1), theta), dim=1)
        found = _secular(values, torch.cat((part[alive], c), dim=1), rise[alive])
        inside = torch.einsum("bij,bj->bi", vectors, found.weights[:, part.shape[1] :])
        left = beside[-1] * inside[:, -1].abs() / scale[alive]
        done = (left <= tolerance) | last
        rows = alive[done]
        krylov = torch.stack([vector[done] for vector in basis[:-1]], dim=1)
        outside = found.weights[done, : part.shape[1]] @ known.vectors.T
        delta[rows] = outside + torch.einsum("bm,bmn->bn", inside[done], krylov)
        reachable[rows], reach[rows], residual[rows] = found.reachable[done], found.reach[done], left[done]
        if bool(done.all()):
            break
        alive = alive[~done]
        basis = [vector[~done] for vector in basis]
        diagonal, beside = [v[~done] for v in diagonal], [v[~done] for v in beside]
    return Change(delta, reachable, reach, residual)


def _unit(vector: Tensor, size: Tensor) -> Tensor:
    """A row of size 0 stays 0: there is nothing left to find in its direction."""
    return torch.where(size[:, None] > 0, vector / size.clamp(min=1e-300)[:, None], 0.0)


def _tridiagonal(diagonal: list[Tensor], beside: list[Tensor]) -> Tensor:
    matrix = torch.diag_embed(torch.stack(diagonal, dim=-1))
    if beside:
        off = torch.stack(beside, dim=-1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix


def _orthonormal(vectors: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Gram-Schmidt, twice: columns that earlier ones already span are left out."""
    kept: list[int] = []
    basis = np.zeros((vectors.shape[0], 0))
    for index in range(vectors.shape[1]):
        column = vectors[:, index]
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
        size = np.linalg.norm(column)
        if size > 1e-6:
            basis = np.column_stack((basis, column / size))
            kept.append(index)
    return basis, kept
