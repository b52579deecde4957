r"""A diagonal system as an anti-periodic ring of N = 2P sites, exactly.

The P stored modes and their conjugates are diagonalised by the half-integer Fourier basis

    F[j, k] = exp(2 pi i (k + 1/2) j / N) / sqrt(N),      the conjugate of wavenumber k is wavenumber N - 1 - k

so W = F diag(lambda) F^H is real and skew-circulant: W[j, k] = w(j - k) with w(d - N) = -w(d), a coupling that depends on the signed
displacement only and changes sign where it crosses the seam between sites N - 1 and 0. In model time

    dr/dt = W r + beta u,   beta = F 1 = sqrt(N) at site 0 and 0 elsewhere;     r = 2 Re r+,   r+ = F[:, :P] s (the analytic half)

A periodic ring of even N would need real eigenvalues at two wavenumbers, which conjugate pairs do not offer. A mode on the real axis
is counted twice by 2 Re in the model, and takes wavenumbers k and N - 1 - k here: the same thing.

**Ordering.** Which mode sits at which wavenumber is a choice; pictures depend on it, outputs do not. `"frequency"` gives wavenumber
k < P the mode of k-th smallest abs frequency, and of each conjugate pair the member of positive frequency, so that all of r+ turns
one way (`conjugated` tells where that is not the stored member). `"stored"` keeps modes as they are.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators import diagonal

ORDERINGS = ("frequency", "stored")


@dataclass(frozen=True)
class Ring:
    """Rings of d_model features; wavenumber k < P carries stored mode `order[h, k]`, or its conjugate where `conjugated`.

    Parameters
    ----------
    rates : Tensor, (d_model, P) complex128
        Eigenvalue of W at wavenumber k (per model time, or per step).
    inputs : Tensor, (d_model, P) complex128
        Input weight at wavenumber k: 1 in model time, b per step.
    order : Tensor, (d_model, P) int64
    conjugated : Tensor, (d_model, P) bool
    ordering : {"frequency", "stored"}
    unit : {"model time", "step"}
        What `rates` are per.
    """

    rates: Tensor
    inputs: Tensor
    order: Tensor
    conjugated: Tensor
    ordering: str
    unit: str

    @property
    def n_modes(self) -> int:
        """Stored modes per feature, P."""
        return int(self.rates.shape[1])

    @property
    def n_sites(self) -> int:
        """Sites of each ring, N = 2P."""
        return 2 * self.n_modes


def basis(n_modes: int) -> Tensor:
    """F (N, N) complex128, unitary; column k < P belongs to r+.

    Examples
    --------
    >>> F = basis(3)
    >>> bool((F[:, 1].conj() - F[:, 4]).abs().max() < 1e-15), bool((F @ F.mH - torch.eye(6)).abs().max() < 1e-15)
    (True, True)
    """
    sites = 2 * n_modes
    # Reduced to one turn in integers: the angle of a large product would lose digits.
    turns = (torch.arange(sites)[:, None] * (2 * torch.arange(sites) + 1)) % (2 * sites)
    return torch.polar(torch.full((sites, sites), sites**-0.5, dtype=torch.float64), turns.double() * (math.pi / sites))


def build_ring(poles: Tensor, ordering: str = "frequency") -> Ring:
    r"""Ring in model time: dr/dt = W r + beta u.

    Parameters
    ----------
    poles : Tensor, (d_model, P) complex
        lambda_n per unit model time. Frequencies are those of the poles, not wrapped: use :func:`build_step_ring` where modes alias.
    ordering : {"frequency", "stored"}

    Raises
    ------
    ArgumentError
        If poles are not a finite complex matrix, or the ordering is unknown.

    Notes
    -----
    Accuracy: *exact*; poles come back from the coupling to a few eps of the largest.

    Examples
    --------
    >>> poles = torch.tensor([[-0.5 + 0j, -0.5 - 9j, -0.5 + 3j]])
    >>> ring = build_ring(poles)
    >>> ring.order.tolist(), ring.conjugated.tolist(), ring.n_sites
    ([[0, 2, 1]], [[False, False, True]], 6)
    >>> bool((stored_poles(ring) - poles).abs().max() == 0)
    True
    """
    return _assign("build_ring", poles, torch.ones_like(poles), ordering, "model time")


def build_step_ring(system: diagonal.DiagonalSystem, ordering: str = "frequency") -> Ring:
    r"""Ring of a discrete system: r(t) = G r(t-1) + beta u(t), G = :func:`propagator`, beta = :func:`injection`.

    Rates are log a with the angle wrapped to (-pi, pi], so aliased modes are ordered by the frequency they are heard at.

    Notes
    -----
    Accuracy: *exact*. beta is no longer confined to site 0: within a step what enters travels, (expm(W) - 1) W^-1 of it.

    Examples
    --------
    >>> system = diagonal.discretise(
    ...     torch.tensor([[-1 + 2j, -1 + 6j]]), torch.ones(1, 2) + 0j, torch.zeros(1), torch.ones(1)
    ... )
    >>> build_step_ring(system).order.tolist(), build_step_ring(system).conjugated.tolist()  # 6 is heard as 6 - 2 pi
    ([[1, 0]], [[True, False]])
    """
    log_a = system.log_a.to(torch.complex128)
    angle = log_a.imag - 2 * math.pi * torch.round(log_a.imag / (2 * math.pi))
    angle = torch.where(angle <= -math.pi, angle + 2 * math.pi, angle)
    return _assign("build_step_ring", torch.complex(log_a.real, angle), system.b, ordering, "step")


def ring_from_coupling(weights: Tensor) -> Ring:
    """Ring in model time of a given real coupling w(0), ..., w(N-1), (d_model, N); any real skew-circulant W is one of these."""
    rates = rates_of_coupling(weights)
    return _assign("ring_from_coupling", rates, torch.ones_like(rates), "stored", "model time")


def rates_of_coupling(weights: Tensor) -> Tensor:
    """Eigenvalues (d_model, P) at wavenumbers k < P of coupling weights (d_model, N): sum_d w(d) exp(-2 pi i (k + 1/2) d / N).

    Examples
    --------
    >>> ring = build_ring(torch.tensor([[-0.5 + 1j, -0.25 + 2j]]))
    >>> bool((rates_of_coupling(coupling(ring)) - ring.rates).abs().max() < 1e-15)
    True
    """
    if weights.ndim != 2 or weights.is_complex() or weights.shape[1] < 2 or weights.shape[1] % 2:
        raise ArgumentError(
            f"rates_of_coupling: expected real weights of shape (d_model, N) with N even, got {weights.dtype} {tuple(weights.shape)}."
        )
    sites = weights.shape[1]
    return math.sqrt(sites) * (weights.to(torch.complex128) @ basis(sites // 2)[:, : sites // 2].conj())


def stored_poles(ring: Ring) -> Tensor:
    """Rates in the order and of the conjugate members that the system stores, (d_model, P); a step ring's are log a, wrapped."""
    return _to_stored(ring, ring.rates)


def coupling(ring: Ring) -> Tensor:
    """Coupling w(d) for displacements d = 0, ..., N-1, (d_model, N) real: the first column of W."""
    return _column(ring.rates)


def propagator(ring: Ring, time: Tensor | None = None) -> Tensor:
    """First column (d_model, N) of expm(W time), skew-circulant and real too; `time` (d_model,) in the ring's unit, 1 when omitted."""
    return _column(torch.exp(ring.rates if time is None else ring.rates * time[:, None]))


def signed_coupling(ring: Ring) -> tuple[Tensor, Tensor]:
    """Displacements d = -P, ..., P-1 (target minus source), (N,), and w(d), (d_model, N), with w(d - N) = -w(d).

    On a path across the seam the weight has the opposite sign.
    """
    weights, half = coupling(ring), ring.n_modes
    return torch.arange(-half, half), torch.cat((-weights[:, half:], weights[:, :half]), dim=1)


def skew_circulant(column: Tensor) -> Tensor:
    """Dense matrices (d_model, N, N) of first columns (d_model, N): entry [j, k] is w(j - k), with w(d - N) = -w(d).

    Examples
    --------
    >>> skew_circulant(torch.tensor([[1.0, 2.0]])).tolist()
    [[[1.0, -2.0], [2.0, 1.0]]]
    """
    site = torch.arange(column.shape[1])
    displacement = site[:, None] - site[None, :]
    return torch.where(displacement < 0, -1, 1) * column[:, displacement % column.shape[1]]


def lin_coupling(n_modes: int) -> Tensor:
    """W at S4D-Lin in closed form, (N,): w(d) = pi / (2P sin(pi d / N)) (P (-1)^d + (1 - (-1)^d) / 2), w(0) = -1/2."""
    d = torch.arange(1, 2 * n_modes)
    sign = 1.0 - 2.0 * (d % 2).double()
    sine = torch.sin(math.pi * d.double() / (2 * n_modes))
    rest = math.pi / (2 * n_modes * sine) * (n_modes * sign + (1 - sign) / 2)
    return torch.cat((rest.new_tensor([-0.5]), rest))


def injection(ring: Ring) -> Tensor:
    """Input profile beta (d_model, N) real of r: in model time sqrt(N) at site 0 and zero elsewhere, for any ordering."""
    return 2 * analytic_injection(ring).real


def analytic_injection(ring: Ring) -> Tensor:
    """Input profile beta+ = F[:, :P] inputs of r+, (d_model, N) complex; beta = 2 Re beta+, but beta+ itself is spread over the ring."""
    return ring.inputs @ basis(ring.n_modes)[:, : ring.n_modes].T


def analytic_half(ring: Ring, states: Tensor) -> Tensor:
    r"""Ring trajectory r+ = F[:, :P] s of stored states; r = 2 Re r+ is what W and beta drive.

    Parameters
    ----------
    states : Tensor, (batch, d_model, P, length) complex
        As :func:`oplens.operators.diagonal.states` yields them.

    Returns
    -------
    Tensor, (batch, d_model, N, length) complex

    Examples
    --------
    >>> ring = build_ring(torch.tensor([[-0.5 + 1j, -0.5 - 2j]]))
    >>> s = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)[None, None, :, None]
    >>> r = 2 * analytic_half(ring, s).real
    >>> bool((stored_states(ring, r) - s).abs().max() < 1e-15)
    True
    """
    if states.ndim != 4 or states.shape[1:3] != ring.rates.shape:
        raise ArgumentError(
            f"analytic_half: expected states of shape (batch, d_model={ring.rates.shape[0]}, P={ring.n_modes}, length), got {tuple(states.shape)}."
        )
    ordered = _to_wavenumbers(ring, states.movedim(-1, 1).to(torch.complex128))
    return torch.einsum("jk,bthk->bhjt", basis(ring.n_modes)[:, : ring.n_modes], ordered)


def stored_states(ring: Ring, r: Tensor) -> Tensor:
    """States s (batch, d_model, P, length) of ring trajectories (batch, d_model, N, length): r+ and r = 2 Re r+ give the same ones."""
    if r.ndim != 4 or r.shape[1:3] != (ring.rates.shape[0], ring.n_sites):
        raise ArgumentError(
            f"stored_states: expected sites of shape (batch, d_model={ring.rates.shape[0]}, N={ring.n_sites}, length), got {tuple(r.shape)}."
        )
    waves = torch.einsum("jk,bhjt->bthk", basis(ring.n_modes)[:, : ring.n_modes].conj(), r.to(torch.complex128))
    return _to_stored(ring, waves).movedim(1, -1)


def site_weights(ring: Ring, C: Tensor) -> Tensor:
    """Output weights on the ring, (d_model, N) real, of stored output weights C (d_model, P): z = sum_j weights_j r_j + D u, *exact*."""
    return 2 * (_to_wavenumbers(ring, C.to(torch.complex128)) @ basis(ring.n_modes)[:, : ring.n_modes].mH).real


def _assign(caller: str, poles: Tensor, inputs: Tensor, ordering: str, unit: str) -> Ring:
    if ordering not in ORDERINGS:
        raise ArgumentError(f"{caller}(ordering={ordering!r}): choose one of {', '.join(ORDERINGS)}.")
    if poles.ndim != 2 or not poles.is_complex() or 0 in poles.shape:
        raise ArgumentError(
            f"{caller}: expected complex poles of shape (d_model >= 1, P >= 1), got {poles.dtype} {tuple(poles.shape)}."
        )
    poles, inputs = poles.to(torch.complex128), inputs.to(torch.complex128)
    if not bool(torch.isfinite(poles).all()):
        raise ArgumentError(f"{caller}: poles hold NaN or infinity; a ring needs finite ones.")
    order = torch.arange(poles.shape[1]).expand(poles.shape)
    conjugated = torch.zeros(poles.shape, dtype=torch.bool)
    if ordering == "frequency":
        # Stable, so that equal frequencies stay in stored order.
        order = torch.sort(poles.imag.abs(), dim=1, stable=True).indices
        conjugated = poles.imag.gather(1, order) < 0
    ring = Ring(poles, inputs, order, conjugated, ordering, unit)
    return Ring(_to_wavenumbers(ring, poles), _to_wavenumbers(ring, inputs), order, conjugated, ordering, unit)


def _to_wavenumbers(ring: Ring, stored: Tensor) -> Tensor:
    """Values (..., d_model, P) of stored modes as values at wavenumbers k < P."""
    ordered = stored.gather(-1, ring.order.expand(stored.shape))
    return torch.where(ring.conjugated, ordered.conj(), ordered)


def _to_stored(ring: Ring, values: Tensor) -> Tensor:
    """Inverse of :func:`_to_wavenumbers`."""
    values = torch.where(ring.conjugated, values.conj(), values)
    return values.gather(-1, ring.order.argsort(dim=1).expand(values.shape))


def _column(eigenvalues: Tensor) -> Tensor:
    """First column (d_model, N) of F diag(eigenvalues, conjugates) F^H."""
    n_modes = eigenvalues.shape[1]
    return 2 * (eigenvalues @ basis(n_modes)[:, :n_modes].T).real / math.sqrt(2 * n_modes)
