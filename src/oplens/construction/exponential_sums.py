r"""A finite impulse response by a sum of few decaying waves, small in the L1 norm of what is left over, all lags counted.

    k(t) ~ sum_n 2 Re(c_n p_n^t) for t >= 1, p_n = exp(-exp(rho_n) + i theta_n);     lag 0 is free: a direct term makes it exact

1. Balanced truncation: of the Hankel matrix k(i + j + 1) = V Lambda V^T the largest eigenvalues span nearly the best space there is
   (Adamyan, Arov, Krein: no system of n poles has a Hankel-norm error below the next singular value); shifting that space by one step
   gives n poles inside the unit circle.
2. Variable projection: least squares over decay rates and angles, weights eliminated (Golub & Pereyra 1973, Kaufman's Jacobian).
3. The same with lags weighed by 1/sqrt(abs(error)), a few times: least squares becomes least absolute errors.

With N = 2 n poles and no more than N + 1 lags there is a closed form instead: poles r exp(i pi (2 k + 1)/N), whose sums come back after N
lags r^N times as large and with the other sign. What it leaves out shrinks with r as what rounding does to it grows (:func:`comb`).

The result is *measured* here, in float64; a certificate sums the error of stored weights in ball arithmetic.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DENSE = 1024  # lags up to which the whole Hankel matrix is decomposed
_SLOWEST, _FASTEST = math.log(1e-6), math.log(30.0)  # decay rates per step
_SPAN = 3  # lags that are fitted, in lengths of the kernel: what lies beyond is counted, and small where this is
_ROUNDS = 3  # reweighted passes
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Waves:
    """Decaying waves: pole exp(-exp(log_decay) + i angle), each (n_modes,); a real one counts once, others with their conjugates."""

    log_decay: Array
    angle: Array
    real: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.log_decay)

    @property
    def poles(self) -> NDArray[np.complex128]:
        """(n_modes,), the upper members of pairs."""
        return np.asarray(np.exp(-np.exp(self.log_decay) + 1j * self.angle))

    @classmethod
    def of(cls, poles: Any) -> "Waves":
        """From upper and real poles."""
        found = np.atleast_1d(np.asarray(poles, dtype=np.complex128))
        return cls(np.log(-np.log(np.abs(found))), np.angle(found).astype(np.float64), found.imag == 0)

    def basis(self, length: int) -> Array:
        """Columns 2 Re p^t of all and -2 Im p^t of those that turn, (length, n_modes + pairs)."""
        exponent = (-np.exp(self.log_decay) + 1j * self.angle)[None] * np.arange(length)[:, None]
        waves = np.exp(exponent)
        return np.concatenate((2 * waves.real, -2 * waves.imag[:, ~self.real]), axis=1)

    def weights(self, columns: Array) -> NDArray[np.complex128]:
        """Complex weights c (n_modes,) of coefficients of :meth:`basis`."""
        weights = columns[: len(self)].astype(np.complex128)
        weights[~self.real] += 1j * columns[len(self) :]
        return weights


def fit_waves(values: Array, n_modes: int) -> Waves:
    """At most `n_modes` waves for the kernel `values` (length,).

    Notes
    -----
    Accuracy: *measured*; of the kernels tried, refining lowers the L1 error of balanced truncation by 10 to 70 %. Cost: a
    decomposition of a length x length matrix (of `n_modes` of its vectors beyond 1024), then about 70 of 3 length x 2 n_modes.

    Examples
    --------
    >>> kernel = 0.9 ** np.arange(60.0) * np.cos(0.4 * np.arange(60))
    >>> found = fit_waves(kernel, 1)
    >>> bool(abs(found.poles[0] - 0.9 * np.exp(0.4j)) < 0.02)
    True
    """
    waves = hankel_waves(values, n_modes)
    target = np.pad(values, (0, (_SPAN - 1) * len(values)))
    best, least = waves, l1_error(target, waves)
    weighting = np.ones(len(target))
    for index in range(1 + _ROUNDS):
        waves = _refine(target, waves, weighting, 40 if index == 0 else 10)
        columns = fit_columns(target, waves)
        error = np.abs(waves.basis(len(target)) @ columns - target)
        error[0] = 0
        if error.sum() < least:
            best, least = waves, float(error.sum())
        if not error.any():
            break
        weighting = 1 / np.sqrt(error + 0.01 * error.mean())
        weighting /= weighting.max()
    return best


def comb(values: Array, n_modes: int, forgotten: float) -> tuple[Waves, NDArray[np.complex128]]:
    """Waves and weights (n_modes,) of exactly `values` at lags 1 to N = 2 n_modes; N lags later -`forgotten` times as much comes back.

    Examples
    --------
    >>> waves, weights = comb(np.array([0.0, 0.0, 1.0, 3.0]), 2, 1e-3)
    >>> (2 * weights * waves.poles ** np.arange(1, 9)[:, None]).real.sum(1).round(9).tolist()
    [0.0, 1.0, 3.0, 0.0, -0.0, -0.001, -0.003, -0.0]
    """
    n = 2 * n_modes
    assert len(values) <= n + 1, "later lags would stand on earlier ones"
    rate, t = -math.log(forgotten) / n, np.arange(1, len(values))
    turned = np.zeros(n, dtype=np.complex128)
    turned[t % n] = values[1:] * np.exp(rate * t - 1j * math.pi * t / n)
    angle = math.pi * (2 * np.arange(n_modes) + 1) / n
    waves = Waves(np.full(n_modes, math.log(rate)), angle, np.zeros(n_modes, dtype=np.bool_))
    return waves, np.asarray(np.fft.fft(turned)[:n_modes] / n)


def fit_columns(target: Array, waves: Waves, rounds: int = 20, rcond: float = 1e-14) -> Array:
    """Coefficients of the waves' basis with nearly the least L1 error at lags from 1 on, by reweighted least squares.

    Combinations of waves smaller than `rcond` of the largest are left alone: they would cost weights that cancel.
    """
    basis, wanted = waves.basis(len(target))[1:], target[1:]
    weighting: Array = np.ones(len(wanted))
    best: Array = np.zeros(basis.shape[1])
    least = math.inf
    for _ in range(rounds):
        columns: Array = np.linalg.lstsq(basis * weighting[:, None], wanted * weighting, rcond=rcond)[0].astype(
            np.float64
        )
        error = np.abs(basis @ columns - wanted)
        if error.sum() < least:
            best, least = columns, float(error.sum())
        if not error.any():
            break
        weighting = 1 / np.sqrt(error + 1e-3 * error.mean())
    return best


def l1_error(target: Array, waves: Waves) -> float:
    """L1 error over the lags of `target`, lag 0 left out."""
    columns = fit_columns(target, waves)
    return float(np.abs(waves.basis(len(target)) @ columns - target)[1:].sum())


def ladder(length: int) -> tuple[int, ...]:
    """Numbers of modes that a search for a tolerance tries; with one per two lags the closed form leaves next to nothing."""
    enough = math.ceil((length - 1) / 2)
    return tuple(n for n in _LADDER if n < enough) + ((enough,) if enough <= _LADDER[-1] else ())


def hankel_waves(values: Array, n_modes: int) -> Waves:
    """At most `n_modes` waves by balanced truncation of the kernel's shift."""
    tail = values[1:]
    order = min(2 * n_modes, len(tail))
    sizes, vectors = _hankel_vectors(tail, order)
    while True:
        kept = sizes[:order] > 1e-15 * sizes[0]
        scaled = vectors[:, :order][:, kept] * np.sqrt(sizes[:order][kept])
        # O = V sqrt(S); A = O^+ (O shifted up by one row).
        shift = (scaled[:-1].T @ scaled[1:]) / sizes[:order][kept][:, None]
        poles = np.linalg.eigvals(shift)
        poles = poles[np.abs(poles) > np.exp(-np.exp(_FASTEST))]
        upper = poles[poles.imag > 1e-12 * np.abs(poles)]
        real = poles[np.abs(poles.imag) <= 1e-12 * np.abs(poles)].real
        if len(upper) + len(real) <= n_modes or order == 1:
            break
        order -= 1
    waves = Waves.of(np.concatenate((upper, real + 0j)) if len(poles) else [0.5 + 0j])
    return Waves(np.clip(waves.log_decay, _SLOWEST, _FASTEST), waves.angle, waves.real)


def _hankel_vectors(tail: Array, order: int) -> tuple[Array, Array]:
    """The `order` largest singular values of the Hankel matrix tail[i + j], descending, and its eigenvectors."""
    if len(tail) <= _DENSE or 3 * order > len(tail):
        from scipy.linalg import eigh, hankel

        values, vectors = eigh(hankel(tail))
    else:
        values, vectors = _largest(tail, order)
    largest = np.argsort(-np.abs(values), kind="stable")[:order]
    return np.abs(values[largest]), vectors[:, largest]


def _largest(tail: Array, order: int) -> tuple[Array, Array]:
    """The same by Lanczos: a product with a Hankel matrix is a correlation."""
    from scipy.fft import irfft, next_fast_len, rfft
    from scipy.sparse.linalg import LinearOperator, eigsh

    length = len(tail)
    n = next_fast_len(2 * length, real=True)
    spectrum = rfft(tail, n)

    def product(x: Array) -> Array:
        # sum_j tail[i + j] x[j]
        return np.asarray(irfft(spectrum * rfft(np.ravel(x), n).conj(), n)[:length])

    operator = LinearOperator((length, length), matvec=product, dtype=np.float64)
    values, vectors = eigsh(operator, k=order, which="LM", v0=np.cos(np.arange(length)))
    return np.asarray(values), np.asarray(vectors)


def _refine(target: Array, waves: Waves, weighting: Array, evaluations: int) -> Waves:
    """Variable projection over decay rates and the angles of those that turn."""
    from scipy.optimize import least_squares

    n, turning = len(waves), ~waves.real
    t = np.arange(len(target))
    weighting = weighting.copy()
    weighting[0] = 0
    wanted = target * weighting
    last: dict[bytes, tuple[Array, ...]] = {}

    def unpack(x: Array) -> Waves:
        angle = waves.angle.copy()
        angle[turning] = x[n:]
        return Waves(x[:n], angle, waves.real)

    def project(x: Array) -> tuple[Array, ...]:
        key = x.tobytes()
        if key not in last:
            basis = unpack(x).basis(len(target)) * weighting[:, None]
            u, s, v = np.linalg.svd(basis, full_matrices=False)
            kept = s > 1e-13 * s[0]
            u = u[:, kept]
            inner = u.T @ wanted
            last.clear()
            last[key] = (u, v[kept].T @ (inner / s[kept]), wanted - u @ inner)
        return last[key]

    def jacobian(x: Array) -> Array:
        now = unpack(x)
        u, columns, _ = project(x)
        exponent = -np.exp(now.log_decay) + 1j * now.angle
        slope = 2 * t[:, None] * now.weights(columns) * np.exp(exponent[None] * t[:, None])
        moved = np.concatenate((-slope.real * np.exp(now.log_decay), -slope.imag[:, turning]), axis=1)
        moved *= weighting[:, None]
        return np.asarray(u @ (u.T @ moved) - moved)

    low = np.concatenate((np.full(n, _SLOWEST), np.zeros(int(turning.sum()))))
    high = np.concatenate((np.full(n, _FASTEST), np.full(int(turning.sum()), math.pi)))
    start = np.clip(np.concatenate((waves.log_decay, waves.angle[turning])), low + 1e-9, high - 1e-9)
    found = least_squares(
        lambda x: project(x)[2], start, jac=jacobian, bounds=(low, high), x_scale="jac", max_nfev=evaluations
    )
    return unpack(np.asarray(found.x))
