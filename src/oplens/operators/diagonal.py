r"""Diagonal linear state-space systems in discrete time.

One system per hidden feature h, with P stored modes (their conjugates are implied, hence the factor 2 Re):

    s_n(t) = a_n s_n(t-1) + b_n u(t)
    z(t)   = sum_n 2 Re(C_n s_n(t)) + D u(t)

The same z three ways: :func:`convolve` (FFT), :func:`scan` (chunked recurrence carrying the state) and :func:`step`.
Source: the S4D reference (Gu et al. 2022, arXiv 2206.11893, eq. 6 and section 3); there `exp(z) - 1` is formed by
subtraction, which loses four digits near 0 in single precision; here it is `expm1`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators import DISCRETISATIONS


@dataclass(frozen=True)
class DiagonalSystem:
    """A discrete diagonal system: shapes (d_model, P) complex for `log_a, b, C`, (d_model,) real for `D`."""

    log_a: Tensor
    b: Tensor
    C: Tensor
    D: Tensor

    @property
    def a(self) -> Tensor:
        """Transition per step, (d_model, P) complex."""
        return torch.exp(self.log_a)

    @property
    def d_model(self) -> int:
        """Number of hidden features."""
        return int(self.log_a.shape[0])

    @property
    def n_modes(self) -> int:
        """Stored modes per feature, P = d_state / 2."""
        return int(self.log_a.shape[1])


def expm1_ratio(x: Tensor) -> Tensor:
    """(exp(x) - 1) / x for complex x, 1 at 0; relative error a few eps (the real part of expm1 is split to avoid cancellation)."""
    real, imag = x.real, x.imag
    half = torch.sin(imag / 2)
    numerator = torch.complex(torch.expm1(real) * torch.cos(imag) - 2 * half * half, torch.exp(real) * torch.sin(imag))
    # Below 1e-12 the quotient equals its first two Taylor terms to the last bit, and 0/0 cannot occur.
    tiny = x.abs() < 1e-12
    return torch.where(tiny, 1 + x / 2, numerator / torch.where(tiny, torch.ones_like(x), x))


def discretise(A: Tensor, C: Tensor, D: Tensor, dt: Tensor, method: str = "zoh") -> DiagonalSystem:
    r"""Discretise s' = A s + u with the input acting at its own step.

    Zero-order hold: a = exp(A dt), b = (exp(A dt) - 1) / A. Bilinear: a = (1 + A dt/2) / (1 - A dt/2), b = dt / (1 - A dt/2).

    Parameters
    ----------
    A, C : Tensor, (d_model, P) complex
        Continuous-time poles (per unit model time) and output weights.
    D : Tensor, (d_model,)
        Skip weights.
    dt : Tensor, (d_model,)
        Step, model time per sample.
    method : {"zoh", "bilinear"}

    Raises
    ------
    ArgumentError
        If the method is unknown.

    Notes
    -----
    Accuracy: *exact* up to a few eps. Source: arXiv 2206.11893, section 3.1 (B = 1).

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[-1.0 + 0j]], dtype=torch.complex128)
    >>> system = discretise(A, torch.ones_like(A), torch.zeros(1), torch.ones(1, dtype=torch.float64))
    >>> f"{system.a.real.item():.6f}"
    '0.367879'
    """
    x = A * dt[:, None]
    if method == "zoh":
        return DiagonalSystem(x, dt[:, None] * expm1_ratio(x), C, D)
    if method == "bilinear":
        return DiagonalSystem(_log_bilinear(x), dt[:, None] / (1 - x / 2), C, D)
    raise ArgumentError(f"discretise(method={method!r}): unknown method; choose one of {', '.join(DISCRETISATIONS)}.")


def _log_bilinear(x: Tensor) -> Tensor:
    """log((1 + x/2) / (1 - x/2)) with a small *relative* error, so that a^t stays accurate for slow modes; finite at x = -2, where a = 0."""
    w = x / 2
    ratio = 4 * w.real / ((1 - w.real) ** 2 + w.imag**2)  # |a|^2 - 1
    fast = ratio < -0.5
    log1p = torch.log1p(torch.where(fast, torch.zeros_like(ratio), ratio)) / 2
    # The floor keeps a = 0 out of the logarithm: 0 * log 0 would be NaN at the first step.
    quotient = torch.log((1 + w).abs().clamp(min=1e-37)) - torch.log((1 - w).abs())
    angle = torch.atan2(x.imag, 1 - w.real**2 - w.imag**2)
    return torch.complex(torch.where(fast, quotient, log1p), angle)


def powers(log_a: Tensor, length: int) -> Tensor:
    """a ** t for t < length as (d_model, P, length) complex, by splitting t into two digits (O(sqrt(length)) exponentials)."""
    _check_length(length)
    block = math.isqrt(length - 1) + 1
    fine = torch.exp(log_a[..., None] * _steps(block, log_a))
    coarse = torch.exp(log_a[..., None] * (block * _steps(-(-length // block), log_a)))
    return (coarse[..., :, None] * fine[..., None, :]).flatten(-2)[..., :length]


def kernel(system: DiagonalSystem, length: int, skip: bool = False) -> Tensor:
    r"""Impulse response K[t] = sum_n 2 Re(C_n b_n a_n^t), (d_model, length) real.

    With t = block i + j the sum over modes is one real batched matrix product of exp(log a block i) and exp(log a j), so no
    tensor of d_model x P x length exponentials is formed.

    Parameters
    ----------
    length : int
        Number of steps, at least 1.
    skip : bool
        Add D at lag 0, which makes it the response of the whole pre-activation.

    Notes
    -----
    Accuracy: *exact*; rounding grows as eps times length (the phase of a^t). Cost: O(d_model P length) multiply-adds and
    O(d_model P sqrt(length)) exponentials, against O(d_model P length) exponentials of the textbook formula.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> kernel(DiagonalSystem(-one, one, one / 2, torch.zeros(1)), 3)[0, 2].item() == torch.exp(torch.tensor(-2.0, dtype=torch.float64)).item()
    True
    """
    _check_length(length)
    # Fine blocks a little longer than coarse ones measured fastest: the fine factor is reused by every row.
    block = min(length, 1 << (math.isqrt(length) * 2 - 1).bit_length() - 1)
    count = -(-length // block)
    fine = torch.exp(system.log_a[..., None] * _steps(block, system.log_a))
    coarse = (
        2
        * (system.C * system.b)[..., None]
        * torch.exp(system.log_a[..., None] * (block * _steps(count, system.log_a)))
    )
    left = torch.cat((coarse.real, -coarse.imag), dim=1)
    right = torch.cat((fine.real, fine.imag), dim=1)
    values = (left.transpose(1, 2) @ right).flatten(1)[:, :length]
    if not skip:
        return values
    return torch.cat((values[:, :1] + system.D[:, None], values[:, 1:]), dim=1)


def mode_kernels(system: DiagonalSystem, length: int) -> Tensor:
    """Impulse response of every mode, 2 Re(C_n b_n a_n^t): (d_model, P, length) real; sums over modes to :func:`kernel`."""
    return 2 * ((system.C * system.b)[..., None] * powers(system.log_a, length)).real


def fft_length(length: int) -> int:
    """A fast FFT length at which a circular convolution of two sequences of this length does not wrap."""
    from scipy.fft import next_fast_len

    return int(next_fast_len(max(2 * length - 1, 1), real=True))


def convolve(u: Tensor, response: Tensor) -> Tensor:
    """Causal convolution of u (..., d_model, length) with a response (d_model, length), by real FFT; same shape as u."""
    length = u.shape[-1]
    n = fft_length(length)
    product = torch.fft.rfft(u, n=n) * torch.fft.rfft(response[..., :length], n=n)
    return torch.fft.irfft(product, n=n)[..., :length]


def correlate(q: Tensor, u: Tensor) -> Tensor:
    """R[l] = sum_t q(t) u(t - l) for 0 <= l < length, over the last axis of broadcastable q and u."""
    return correlate_spectra(spectrum(q), spectrum(u), u.shape[-1])


def spectrum(u: Tensor) -> Tensor:
    """Transform of u (..., length) at which products do not wrap; for correlations that share a factor."""
    return torch.fft.rfft(u, n=fft_length(u.shape[-1]))


def correlate_spectra(q: Tensor, u: Tensor, length: int) -> Tensor:
    """:func:`correlate` of signals given by their :func:`spectrum`."""
    return torch.fft.irfft(q * u.conj(), n=fft_length(length))[..., :length]


def adjoint(q: Tensor, response: Tensor) -> Tensor:
    """v(t) = sum_{t' >= t} response[t' - t] q(t'): the transpose of :func:`convolve`, same shapes."""
    return convolve(q.flip(-1), response).flip(-1)


def scan(system: DiagonalSystem, u: Tensor, state: Tensor | None = None, chunk: int = 64) -> tuple[Tensor, Tensor]:
    r"""Pre-activation by the chunked recurrence, carrying the state from chunk to chunk.

    Within a chunk of T steps the local response is a triangular Toeplitz product, the incoming state adds 2 Re(C a^(i+1) s), and
    the outgoing state is a^T s + sum_j a^(T-1-j) b u(j). No FFT is involved.

    Parameters
    ----------
    u : Tensor, (batch, d_model, length) real
    state : Tensor, (batch, d_model, P) complex, optional
        State before the first step; zero when omitted.
    chunk : int
        Steps per chunk, at least 1.

    Returns
    -------
    z : Tensor, (batch, d_model, length)
    state : Tensor, (batch, d_model, P)

    Notes
    -----
    Accuracy: *exact*. Cost: O(batch d_model length (chunk + P)); memory beyond the output
    O(d_model (batch + chunk) (chunk + P)).
    """
    _check_chunk(chunk)
    batch, d_model, length = u.shape
    chunk = min(chunk, max(length, 1))
    if state is None:
        state = torch.zeros(batch, d_model, system.n_modes, dtype=system.log_a.dtype, device=u.device)
    toeplitz = _toeplitz(kernel(system, chunk, skip=True))
    decay = powers(system.log_a, chunk + 1)
    readout = 2 * system.C[..., None] * decay[..., 1:]
    inject = (system.b[..., None] * decay[..., :-1]).flip(-1)
    out = torch.empty_like(u)
    for start in range(0, length, chunk):
        part = u[..., start : start + chunk]
        size = part.shape[-1]
        local = torch.einsum("bhj,hij->bhi", part, toeplitz[:, :size, :size])
        out[..., start : start + size] = local + _real_product(state, readout[..., :size])
        pushed = torch.einsum("bhj,hpj->bhp", part.to(inject.dtype), inject[..., chunk - size :])
        state = state * decay[..., size] + pushed
    return out, state


def step(system: DiagonalSystem, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step: u (batch, d_model), state (batch, d_model, P) -> z (batch, d_model) and the next state."""
    state = system.a * state + system.b * u[..., None]
    return 2 * (system.C * state).real.sum(-1) + system.D * u, state


def states(
    system: DiagonalSystem, u: Tensor, state: Tensor | None = None, chunk: int = 64
) -> Iterator[tuple[int, Tensor]]:
    """Yield (start, s) with s (batch, d_model, P, steps) complex, chunk after chunk, so the whole trajectory is never held.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.complex128)
    >>> system = DiagonalSystem(-one, one, one, torch.zeros(1, dtype=torch.float64))
    >>> [(start, tuple(s.shape)) for start, s in states(system, torch.ones(1, 1, 5, dtype=torch.float64), chunk=3)]
    [(0, (1, 1, 1, 3)), (3, (1, 1, 1, 2))]
    """
    _check_chunk(chunk)
    batch, d_model, length = u.shape
    if state is None:
        state = torch.zeros(batch, d_model, system.n_modes, dtype=system.log_a.dtype, device=u.device)
    decay = powers(system.log_a, min(chunk, max(length, 1)) + 1)
    for start in range(0, length, chunk):
        part = u[..., start : start + chunk]
        size = part.shape[-1]
        s = system.b[..., None] * part[:, :, None, :]
        shift = 1
        while shift < size:  # doubling: after the pass with shift k, s holds sums over the last 2k inputs
            s = torch.cat((s[..., :shift], s[..., shift:] + decay[..., shift, None] * s[..., :-shift]), dim=-1)
            shift *= 2
        s = s + state[..., None] * decay[..., 1 : size + 1]
        state = s[..., -1]
        yield start, s


def waves(system: DiagonalSystem, s: Tensor) -> Tensor:
    """mu_n(t) = 2 Re(C_n s_n(t)) of states (batch, d_model, P, steps): real, same shape."""
    return 2 * (system.C[..., None] * s).real


def _real_product(state: Tensor, weights: Tensor) -> Tensor:
    """Re sum_p state (b,h,p) weights (h,p,t) as real matrix products over features."""
    left = torch.cat((state.real, -state.imag), dim=-1).transpose(0, 1)
    right = torch.cat((weights.real, weights.imag), dim=1)
    return (left @ right).transpose(0, 1)


def _toeplitz(response: Tensor) -> Tensor:
    """Lower-triangular Toeplitz matrices (d_model, T, T) with entry [i, j] = response[i - j]."""
    size = response.shape[-1]
    index = torch.arange(size, device=response.device)
    lag = index[:, None] - index[None, :]
    return torch.where(lag >= 0, response[:, lag.clamp(min=0)], response.new_zeros(()))


def _steps(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=like.real.dtype, device=like.device)


def _check_length(length: int) -> None:
    if length < 1:
        raise ArgumentError(f"kernel(length={length}): a response needs at least one step.")


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise ArgumentError(f"scan(chunk={chunk}): a chunk needs at least one step.")
