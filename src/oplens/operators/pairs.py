r"""Sums over time of products of two waves, without forming a wave.

From s_n(t) = a_n s_n(t-1) + b_n u(t), summing s_n(t) s_m(t) over the steps of a sequence that starts at rest telescopes:

    (1 - a_n a_m) sum s_n s_m = a_n b_m X_n + a_m b_n X_m + b_n b_m U - a_n a_m S_n S_m

with X_n = sum u(t) s_n(t-1), U = sum u^2 and S_n the final state; likewise with conj(a_m). Both together give sum mu_n mu_m.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.operators import diagonal

NEARLY_UNDAMPED = 1e-6  # below this 1 - a_n a_m divides away what the identity knows; explicit waves are used


@dataclass(frozen=True)
class PairSums:
    """Of features `rows`: modes (batch, rows, P, P) sums of mu_n mu_m; skip (batch, rows, P) sums of mu_n D u; both (batch, rows) of (D u)^2."""

    rows: slice
    modes: Tensor
    skip: Tensor
    both: Tensor


def pair_sums(
    system: diagonal.DiagonalSystem, u: Tensor, lengths: Tensor, block_bytes: int = 32 * 2**20
) -> Iterator[PairSums]:
    r"""Yield sums over time of all products of two waves, a few features at a time.

    Parameters
    ----------
    system : DiagonalSystem
    u : Tensor, (batch, d_model, length) real
        Input, zero at and past `lengths`.
    lengths : Tensor, (batch,)
        Valid steps; sums run over them.
    block_bytes : int
        Working memory aimed at.

    Notes
    -----
    Accuracy: *exact*; error eps times memory (2e-12 at 2e5 steps). With real and imaginary parts apart, q = C b, p = a C X + U q / 2,
    r = a C S and the constant M = q_m / (1 - a_n a_m) + conj(q_m) / (1 - a_n conj(a_m)):
    sum mu_n mu_m = A + A' - B, A = 2 Re(p_n M_nm), B = 2 Re(r_n (x_m (D1 + D2) + i y_m (D1 - D2))), r = x + iy.
    Cost: O(batch d_model P (length + P)), against O(batch d_model P^2 length) of explicit waves.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> system = diagonal.DiagonalSystem(-one, one, one, torch.zeros(1, dtype=torch.float64))
    >>> sums = next(pair_sums(system, torch.ones(1, 1, 1, dtype=torch.float64), torch.tensor([1])))
    >>> sums.modes.item()  # one step: mu = 2 Re(C b u) = 2
    4.0
    """
    length = u.shape[-1]
    lagged = diagonal.correlate(u, u)
    ended = _from_the_end(u, lengths)
    block = max(1, block_bytes // max(1, 16 * system.n_modes * max(length, u.shape[0] * system.n_modes)))
    for start in range(0, system.d_model, block):
        rows = slice(start, min(start + block, system.d_model))
        part = diagonal.DiagonalSystem(system.log_a[rows], system.b[rows], system.C[rows], system.D[rows])
        yield _block(part, u[:, rows], lagged[:, rows], ended[:, rows], rows, lengths)


def _block(
    part: diagonal.DiagonalSystem, u: Tensor, lagged: Tensor, ended: Tensor, rows: slice, lengths: Tensor
) -> PairSums:
    a = part.a
    powers = diagonal.powers(part.log_a, u.shape[-1])
    energy = lagged[..., 0]
    # X_n = b_n sum_{l >= 1} R(l) a_n^(l-1) and S_n = b_n sum_l a_n^l u(end - l), as real matrix products
    X = part.b * _product(lagged[..., 1:], powers[..., :-1])
    S = part.b * _product(ended, powers)
    q = part.C * part.b
    p = a * part.C * X + energy[..., None] * q / 2
    r = a * part.C * S
    gap1 = 1 - a[:, :, None] * a[:, None, :]
    gap2 = 1 - a[:, :, None] * a[:, None, :].conj()
    unsafe = ((gap1.abs() < NEARLY_UNDAMPED) | (gap2.abs() < NEARLY_UNDAMPED)).flatten(1).any(1)
    D1, D2 = 1 / gap1, 1 / gap2
    M = q[:, None, :] * D1 + q[:, None, :].conj() * D2
    half = _real_outer(p, M)
    total, difference = D1 + D2, D1 - D2
    x, y = r.real[..., None, :], r.imag[..., None, :]
    # 2 Re(r_n (x_m total + i y_m difference)), r_n = x_n + i y_n
    xn, yn = r.real[..., :, None], r.imag[..., :, None]
    boundary = 2 * (x * (xn * total.real - yn * total.imag) - y * (xn * difference.imag + yn * difference.real))
    modes = half + half.transpose(-1, -2) - boundary
    if bool(unsafe.any()):
        modes[:, unsafe] = _explicit(part, u, unsafe, lengths)
    skip = 2 * part.D[:, None] * (part.C * (a * X + part.b * energy[..., None])).real
    return PairSums(rows, modes, skip, part.D**2 * energy)


def _product(values: Tensor, powers: Tensor) -> Tensor:
    """sum_l values (batch, rows, l) powers (rows, P, l), complex (batch, rows, P), by one real product."""
    both = torch.cat((powers.real, powers.imag), dim=1).transpose(1, 2)
    result = (values.transpose(0, 1) @ both).transpose(0, 1)
    real, imag = result.chunk(2, dim=-1)
    return torch.complex(real, imag)


def _real_outer(p: Tensor, M: Tensor) -> Tensor:
    """2 Re(p_n M_nm): (batch, rows, P, P)."""
    return 2 * (p.real[..., :, None] * M.real - p.imag[..., :, None] * M.imag)


def _from_the_end(u: Tensor, lengths: Tensor) -> Tensor:
    """u read backwards from every case's own last step; zero before its start."""
    index = lengths[:, None] - 1 - torch.arange(u.shape[-1])[None]
    gathered = torch.gather(u, -1, index.clamp(min=0)[:, None].expand_as(u))
    return gathered * (index >= 0)[:, None]


def _explicit(part: diagonal.DiagonalSystem, u: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """The obvious version, from waves, for the given features."""
    chosen = diagonal.DiagonalSystem(part.log_a[rows], part.b[rows], part.C[rows], part.D[rows])
    driven = u[:, rows]
    # Past its end a case's waves ring on although u is zero there.
    valid = (torch.arange(u.shape[-1])[None] < lengths[:, None]).to(u.dtype)
    total = torch.zeros(*driven.shape[:2], part.n_modes, part.n_modes, dtype=u.dtype)
    for start, s in diagonal.states(chosen, driven):
        mu = diagonal.waves(chosen, s) * valid[:, None, None, start : start + s.shape[-1]]
        total += mu @ mu.transpose(-1, -2)
    return total
