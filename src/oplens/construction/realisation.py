r"""One kernel as the stored numbers of one feature of an S4D: rates, angles, output weights, skip.

A feature with step dt = 1 and zero-order hold has the kernel

    k(t) = D [t = 0] + sum_n 2 Re(C_n b_n a_n^t),   a_n = exp(x_n), b_n = (a_n - 1)/x_n, x_n = -exp(log_A_real_n) + i A_imag_n

dt = 1 costs no rounding (log_dt = 0) and gives parameters of ordinary size. A pole p of a pair needs x = log p and C b = residue, a real
one half its residue, a negative one the angle pi.

Rounding the stored rates moves the poles, so the weights are made for the poles as they are stored: of an exponential sum they minimise
the L2 error over all lags (normal equations with inner products 1/(1 - a b), solved in balls), which without rounding are the residues
themselves; of a finite kernel nearly the L1 error. Poles that coincide are no diagonal system: m of them become p + delta exp(i pi (2j+1)/m),
whose product differs from (z - p)^m by delta^m alone, with the delta that leaves the smallest error.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from flint import acb, arb, arb_mat, ctx
from numpy.typing import NDArray

from oplens.construction.exponential_sums import Waves, comb, fit_columns, fit_waves, ladder
from oplens.construction.filters import ExponentialSum, FiniteKernel, Kernel
from oplens.construction.kernel_balls import PRECISION, KernelBalls, Term
from oplens.construction.weights import rounded
from oplens.errors import ArgumentError
from oplens.models.s4d import S4D

_SPREADS = tuple(10.0 ** (-k / 2) for k in range(1, 15))  # delta in units of 1 - abs(p)
_CROWDED = 0.01  # distance, in the same units, up to which poles are a crowd
_TAIL = 6  # lengths of a finite kernel over which its weights are fitted
_SPAN = 3  # and over which candidates are compared, their rest beyond bounded
_RCONDS = (1e-14, 1e-10, 1e-7, 1e-4)  # the later ones where rounded weights would no longer cancel
_SHORT = 1024  # lags up to which more than one candidate is tried
_CANCELLED = 64 * 2.0**-53  # of the sum of all waves' sizes: the rounding of a run, roughly


@dataclass(frozen=True)
class Parameters:
    """Stored numbers of one feature, each representable in the dtype: (n_modes,) and a float; dt is exp(log_dt)."""

    log_decay: NDArray[np.float64]
    angle: NDArray[np.float64]
    C: NDArray[np.complex128]
    D: float
    exact: bool = False  # nothing but rounding stands between these numbers and the kernel
    log_dt: float = 0.0

    @property
    def n_modes(self) -> int:
        """Modes, those with C = 0 among them."""
        return len(self.log_decay)

    @property
    def numbers(self) -> tuple[object, ...]:
        """All of them, hashable."""
        return (self.log_decay.tobytes(), self.angle.tobytes(), self.C.tobytes(), self.D, self.log_dt)

    @property
    def balls(self) -> KernelBalls:
        """The kernel of these numbers in exact arithmetic; modes with C = 0 are left out."""
        with ctx.workprec(PRECISION):
            dt, terms = arb(self.log_dt).exp(), []
            for x, c in zip(_exponents(self.log_decay, self.angle), self.C.tolist(), strict=True):
                if c:
                    a, b = _discretised(x * dt)
                    terms.append(Term(a, (acb(c.real, c.imag) * b * dt,)))
            return KernelBalls(arb(self.D), tuple(_real(term) for term in terms))


def stored_parameters(model: S4D, feature: int) -> Parameters:
    """The numbers of one feature as they are stored."""
    layer = model.layer(0)
    kernel = layer.kernel
    with torch.no_grad():
        C = torch.view_as_complex(kernel.C[feature].double().contiguous()).numpy()
        return Parameters(
            kernel.log_A_real[feature].double().numpy(),
            kernel.A_imag[feature].double().numpy(),
            C,
            float(layer.D[feature]),
            log_dt=float(kernel.log_dt[feature]),
        )


def realise(kernel: Kernel, n_modes: int | None, tolerance: float | None, dtype: str) -> Parameters:
    """Parameters of a kernel with as many modes as it needs, at most `n_modes`; a finite one to a tolerance where that is given instead.

    Raises
    ------
    ArgumentError
        If an exponential sum needs more modes, a finite kernel has neither number nor tolerance, or the tolerance is not reached.
    """
    return _realise(kernel, n_modes, tolerance, dtype)


@lru_cache(maxsize=64)
def _realise(kernel: Kernel, n_modes: int | None, tolerance: float | None, dtype: str) -> Parameters:
    if isinstance(kernel, FiniteKernel):
        return _finite(kernel, n_modes, tolerance, dtype)
    return _exponential(kernel, n_modes, dtype)


def l1_distance(kernel: Kernel, parameters: Parameters) -> float:
    """Upper bound of the L1 norm of the kernel less that of the parameters."""
    return kernel.balls.minus(parameters.balls).norms()[0]


def _exponential(kernel: ExponentialSum, n_modes: int | None, dtype: str) -> Parameters:
    balls = kernel.balls
    with ctx.workprec(PRECISION):
        crowds = _crowds(balls.terms)
        candidates = [[term.pole for term in balls.terms]] if _simple(balls) else []
        if any(times > 1 for _, times, _ in crowds):
            candidates += [_spread(crowds, delta) for delta in _SPREADS]
        tried = [(_weigh(balls, poles, dtype), index) for index, poles in enumerate(candidates)]
        known = [(balls.minus(found.balls).norms(2048)[0], index, found) for found, index in tried if found is not None]
    if not known:
        raise ArgumentError(
            f"build_ssm: {dtype} cannot hold this kernel: its poles round to each other, or its weights overflow; build in float64, or give "
            "a smaller kernel or fewer repetitions of a pole."
        )
    _, index, found = min(known, key=lambda item: item[:2])
    found = replace(found, exact=index == 0 and _simple(balls))
    if n_modes is not None and n_modes < found.n_modes:
        raise ArgumentError(
            f"build_ssm(n_modes={n_modes}): a kernel of {kernel.n_poles} poles needs {found.n_modes} modes; leave n_modes out, or give "
            "FiniteKernel(kernel.response(length)) to have it approximated by fewer."
        )
    return found


def _simple(balls: KernelBalls) -> bool:
    return all(len(term.coefficients) == 1 for term in balls.terms)


def _crowds(terms: tuple[Term, ...]) -> list[tuple[acb, int, bool]]:
    """Poles that coincide or nearly do, as (centre, how many, whether about the real axis)."""
    left, crowds = list(terms), []
    while left:
        members = [left.pop(0)]
        centre = members[0].pole
        reach = float(((1 - abs(centre)) * _CROWDED).mid())
        members += [term for term in left if float(abs(term.pole - centre).mid()) < reach]
        left = [term for term in left if term not in members]
        real = any(bool(term.pole.imag.is_zero()) for term in members)
        counts = [len(m.coefficients) * (2 if real and not m.pole.imag.is_zero() else 1) for m in members]
        total = sum(counts)
        centre = sum((m.pole * n for m, n in zip(members, counts, strict=True)), acb(0)) / total
        crowds.append((acb(centre.real) if real else centre, total, real))
    return crowds


def _spread(crowds: list[tuple[acb, int, bool]], delta: float) -> list[acb]:
    """Upper and real poles, those of a crowd on a circle about its centre."""
    poles: list[acb] = []
    for centre, m, real in crowds:
        radius = delta * (1 - abs(centre)) if m > 1 else arb(0)
        for j in range(m):
            angle = arb.pi() * (2 * j + 1) / m
            if m == 1 or (real and 2 * j + 1 == m):
                poles.append(centre - radius)
            elif not real or 2 * j + 1 < m:
                poles.append(centre + radius * acb(angle.cos(), angle.sin()))
    return poles


def _weigh(balls: KernelBalls, poles: list[acb], dtype: str) -> Parameters | None:
    """Rates and angles of the poles, rounded, and the weights that serve the rounded ones best.

    None where rounding makes two poles equal, or weights overflow.
    """
    logs = [pole.log() for pole in poles]
    log_decay = rounded(np.array([float((-x.real).log().mid()) for x in logs]), dtype)
    angle = rounded(np.array([float(x.imag.mid()) for x in logs]), dtype)
    real = np.array([bool(pole.imag.is_zero()) for pole in poles], dtype=bool)
    stored = [_discretised(x) for x in _exponents(log_decay, angle)]
    try:
        weights, direct = _project(balls, [a for a, _ in stored], real)
    except ZeroDivisionError:  # a singular matrix
        return None
    C = _round([_complex(c / b) for c, (_, b) in zip(weights, stored, strict=True)], dtype)
    D = float(rounded(np.array([float(direct.mid())]), dtype)[0])
    return Parameters(log_decay, angle, C, D) if np.isfinite(C).all() and math.isfinite(D) else None


def _project(balls: KernelBalls, a: list[acb], real: NDArray[np.bool_]) -> tuple[list[acb], arb]:
    """Weights c and D of least L2 error: D [t = 0] + sum_n 2 Re(c_n a_n^t), c_n real where `real`.

    Columns are 2 Re a^t, -2 Im a^t and the unit impulse; with X = 1/(1 - a b) and Y = 1/(1 - conj(a) b) their inner products are
    2 Re(X + Y), -2 Im(X + Y), 2 Re(Y - X), and those with k are 2 Re K(a), -2 Im K(a), K(w) = sum_t k(t) w^t.
    """
    columns = [(i, False) for i in range(len(a))] + [(i, True) for i in range(len(a)) if not real[i]]
    size = len(columns) + 1

    def inner(p: tuple[int, bool], q: tuple[int, bool]) -> arb:
        if p[1] and not q[1]:
            p, q = q, p
        x, y = 1 / (1 - a[p[0]] * a[q[0]]), 1 / (1 - a[p[0]].conjugate() * a[q[0]])
        if not q[1]:
            return 2 * (x + y).real
        return 2 * (y - x).real if p[1] else -2 * (x + y).imag

    gram = [[inner(p, q) for q in columns] + [arb(0 if p[1] else 2)] for p in columns]
    gram.append([arb(0 if q[1] else 2) for q in columns] + [arb(1)])
    transfer = [balls.at(value) for value in a]
    right = [-2 * transfer[i].imag if turned else 2 * transfer[i].real for i, turned in columns]
    right.append(balls.at(acb(0)).real)
    solution = arb_mat(gram).solve(arb_mat(size, 1, right))
    weights = [acb(solution[i, 0]) for i in range(len(a))]
    for place, (i, turned) in enumerate(columns):
        if turned:
            weights[i] = acb(weights[i].real, solution[place, 0])
    return weights, solution[size - 1, 0]


def _finite(kernel: FiniteKernel, n_modes: int | None, tolerance: float | None, dtype: str) -> Parameters:
    if tolerance is None:
        if n_modes is None:
            raise ArgumentError(
                "build_ssm: a finite impulse response is a sum of decaying waves only approximately; say with n_modes how many, or with "
                "tolerance how large the L1 error of its kernel may be."
            )
        return _fitted(kernel, n_modes, dtype)
    sizes = [n for n in ladder(len(kernel.values)) if n_modes is None or n <= n_modes]
    tried: dict[int, tuple[float, Parameters]] = {}

    def error(n: int) -> float:
        if n not in tried:
            found = _fitted(kernel, n, dtype)
            tried[n] = (l1_distance(kernel, found), found)
        return tried[n][0]

    good = next((n for n in sizes if error(n) <= tolerance), None)
    if good is None:
        least = min(tried, key=lambda n: tried[n][0])
        raise ArgumentError(
            f"build_ssm(tolerance={tolerance:g}): the best of up to {sizes[-1]} modes has an L1 error of {tried[least][0]:.4g} ({least} "
            f"modes; the kernel's own L1 norm is {kernel.balls.norms()[0]:.4g}); allow more, or smooth the ends of the template."
        )
    bad = max((n for n in sizes if n < good), default=0)
    _bisect(error, bad, good, tolerance)
    return tried[min(n for n, (value, _) in tried.items() if value <= tolerance)][1]


def _bisect(error: Callable[[int], float], bad: int, good: int, tolerance: float) -> None:
    while good - bad > 1:
        middle = (bad + good) // 2
        if error(middle) <= tolerance:
            good = middle
        else:
            bad = middle


def _fitted(kernel: FiniteKernel, n_modes: int, dtype: str) -> Parameters:
    """The candidate whose stored numbers are nearest, what float64 does to weights that cancel counted."""
    values = np.array(kernel.values)
    scale = float(np.abs(values).max())
    tried = [
        _stored(values / scale, scale, waves, c, dtype) for waves, c in _candidates(values / scale, n_modes, dtype)
    ]
    known = [item for item in tried if item is not None]
    if not known:
        raise ArgumentError(f"build_ssm: the kernel's values overflow {dtype}; scale it down, and its output up.")
    return min(known, key=lambda item: item[1])[0]


def _candidates(
    values: NDArray[np.float64], n_modes: int, dtype: str
) -> Iterator[tuple[Waves, NDArray[np.complex128]]]:
    """Rounded waves with their weights."""
    enough = math.ceil((len(values) - 1) / 2)
    waves = _rounded(fit_waves(values, min(n_modes, enough)), dtype)
    target = np.pad(values, (0, (_TAIL - 1) * len(values)))
    for rcond in _RCONDS if len(values) <= _SHORT else _RCONDS[:1]:
        yield waves, waves.weights(fit_columns(target, waves, rcond=rcond))
    if enough <= n_modes and len(values) <= _SHORT:
        for digits in range(1, 15):
            waves, c = comb(values, n_modes, 10.0**-digits)
            yield _rounded(waves, dtype), c


def _rounded(waves: Waves, dtype: str) -> Waves:
    return Waves(rounded(waves.log_decay, dtype), rounded(waves.angle, dtype), waves.real)


def _stored(
    values: NDArray[np.float64], scale: float, waves: Waves, c: NDArray[np.complex128], dtype: str
) -> tuple[Parameters, float] | None:
    """The numbers that are stored, and their L1 distance in units of the scale, measured in float64; None where they overflow."""
    with ctx.workprec(PRECISION):
        b = np.array([_complex(_discretised(x)[1]) for x in _exponents(waves.log_decay, waves.angle)])
    C = _round((c * scale / b).tolist(), dtype)
    if not np.isfinite(C).all():
        return None
    # Lag 0 belongs to the skip, which makes it exact up to its own rounding.
    direct = values[0] * scale - 2 * math.fsum((C * b).real)
    made = Parameters(waves.log_decay, waves.angle, C, float(rounded(np.array([direct]), dtype)[0]))
    held, size, length = C * b / scale, np.abs(waves.poles), _SPAN * len(values)
    columns = np.concatenate((held.real, held.imag[~waves.real]))
    error = np.abs(waves.basis(length) @ columns - np.pad(values, (0, length - len(values))))[1:].sum()
    rest = (2 * np.abs(held) * size**length / (1 - size)).sum()
    return made, float(error + rest + _CANCELLED * (np.abs(held) / (1 - size)).sum())


def _exponents(log_decay: NDArray[np.float64], angle: NDArray[np.float64]) -> list[acb]:
    return [acb(-arb(r).exp(), arb(theta)) for r, theta in zip(log_decay.tolist(), angle.tolist(), strict=True)]


def _discretised(x: acb) -> tuple[acb, acb]:
    """exp(x) and (exp(x) - 1)/x."""
    a = x.exp()
    return a, (a - 1) / x


def _real(term: Term) -> Term:
    """Of a real pole only the real part of its coefficient acts."""
    if not term.pole.imag.is_zero():
        return term
    return Term(term.pole, tuple(acb(c.real) for c in term.coefficients))


def _complex(value: acb) -> complex:
    return complex(float(value.real.mid()), float(value.imag.mid()))


def _round(values: list[complex], dtype: str) -> NDArray[np.complex128]:
    found = torch.view_as_real(torch.tensor(values, dtype=torch.complex128)).numpy() if values else np.zeros((0, 2))
    return rounded(found, dtype).view(np.complex128)[..., 0]
