"""Weights of rings against dense matrices written from the formulas, and what no weight may do: let a wave grow."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.operators import diagonal, ring, trainable
from oplens.operators.travel import delay_limits
from oracles import random_poles


def weights_of(seed, modes, reach, features=2, scale=3.0):
    rng = np.random.default_rng(seed)
    draw = [rng.normal(-1, 1, features)] + [
        rng.normal(0, scale, (features, n)) for n in (min(reach, modes - 1) + 1, reach)
    ]
    return [torch.from_numpy(values) for values in draw]


def dense_ring(log_decay, damping, coupling, modes):
    """W = S - Q Q^T - delta of one feature, entry by entry; what would pass the seam changes sign."""
    N = 2 * modes
    S, Q = np.zeros((N, N)), np.zeros((N, N))
    for source in range(N):
        for m, weight in enumerate(damping):
            Q[(source + m) % N, source] += weight if source + m < N else -weight
        for d, weight in enumerate(coupling, start=1):
            S[(source + d) % N, source] += weight if source + d < N else -weight
            if d < modes:  # the opposite site is met by either way once
                S[(source - d) % N, source] += -weight if source - d >= 0 else weight
    return S - Q @ Q.T - math.exp(log_decay) * np.eye(N)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), modes=st.sampled_from([1, 2, 3, 8, 16]), share=st.floats(0, 1))
def test_poles_are_the_eigenvalues_of_the_dense_ring_at_their_wavenumbers(seed, modes, share):
    reach = 1 + round(share * (modes - 1))
    weights = weights_of(seed, modes, reach)
    found = trainable.coupled_poles(*weights, modes).numpy()
    N = 2 * modes
    for h in range(2):
        W = dense_ring(*(values[h].numpy() for values in weights), modes)
        scale = np.abs(W).sum(0).max()
        for j in range(N):
            for k in range(N):
                assert W[j, k] == 0 or min((j - k) % N, (k - j) % N) <= reach, "a site hears one beyond the reach"
        eigenvalues = np.linalg.eigvals(W)
        both = np.concatenate((found[h], found[h].conj()))
        distance = np.abs(eigenvalues[:, None] - both)
        assert max(distance.min(0).max(), distance.min(1).max()) < 1e-12 * scale
        for k in range(modes):
            wave = np.exp(2j * np.pi * (k + 0.5) * np.arange(N) / N)
            assert np.abs(W @ wave - found[h, k] * wave).max() < 1e-12 * scale
        ours = ring.skew_circulant(ring.coupling(ring.build_ring(torch.from_numpy(found), "stored")))[h].numpy()
        assert np.abs(ours - W).max() < 1e-12 * scale


def formula(initialisation, modes):
    n, N = np.arange(modes), 2 * modes
    if initialisation == "lin":
        return -0.5 + 1j * np.pi * n
    if initialisation == "inv":
        return (-0.5 + 1j * N / np.pi * (N / (2 * n + 1) - 1))[::-1]  # by increasing frequency
    return -(n + 1.0) + 0j


@pytest.mark.parametrize("initialisation", ["lin", "inv", "real"])
@pytest.mark.parametrize("modes", [1, 2, 5, 16])
def test_rings_start_as_the_dense_matrix_of_the_initialisation_cut_at_the_reach(initialisation, modes):
    N = 2 * modes
    F = np.array([[np.exp(2j * np.pi * (k + 0.5) * j / N) / math.sqrt(N) for k in range(N)] for j in range(N)])
    poles = formula(initialisation, modes)
    W = (F @ np.diag(np.concatenate((poles, poles.conj()[::-1]))) @ F.conj().T).real
    distance = np.abs(np.arange(N)[:, None] - np.arange(N))
    distance = np.minimum(distance, N - distance)
    for reach in {1, max(modes // 2, 1), modes}:
        cut = np.where(distance <= reach, W, 0)
        expected = np.array([F[:, k].conj() @ cut @ F[:, k] for k in range(modes)])
        scale = np.abs(poles).max()
        start = trainable.initial_coupling(initialisation, N, reach)
        weights = [torch.from_numpy(np.atleast_1d(v)[None]) for v in (start.log_decay, start.damping, start.coupling)]
        found = trainable.coupled_poles(weights[0][0], *weights[1:], modes)
        for values in (found, trainable.initial_ring_poles(initialisation, N, reach)):
            assert np.abs(values[0].numpy() - expected).max() < 2e-7 * scale  # starts are kept in single precision
        assert (found - trainable.initial_ring_poles(initialisation, N, reach)).abs().max() < 1e-12 * scale
    assert np.abs(expected - poles).max() < 1e-12 * scale, "all weights are the initialisation itself"
    whole = trainable.initial_ring_poles(initialisation, N, None)[0].numpy()
    assert np.abs(whole - poles).max() < 2e-7 * scale
    if initialisation == "lin":
        closed = ring.lin_coupling(modes)[1 : modes + 1]
        assert np.abs(start.coupling - closed.numpy()).max() < 2e-7 * scale


def test_no_weights_let_a_wave_grow():
    """200 draws over 16 orders of magnitude, positions far beyond where a sigmoid is 0 or 1, both discretisations."""
    rng = np.random.default_rng(0)
    least = math.inf
    for draw in range(200):
        modes = int(rng.integers(1, 12))
        reach = int(rng.integers(1, modes + 1))
        size = 10 ** rng.uniform(-8, 8, 2)
        weights = [
            rng.uniform(-300, 40, 3),
            size[0] * rng.normal(size=(3, min(reach, modes - 1) + 1)),
            size[1] * rng.normal(size=(3, reach)),
        ]
        dtype = torch.float32 if draw % 2 else torch.float64
        log_decay, damping, coupling = (torch.tensor(values, dtype=dtype).clamp(-80) for values in weights)
        poles = trainable.coupled_poles(log_decay, damping, coupling, modes)
        assert (poles.real <= -torch.exp(log_decay.double())[:, None]).all()
        position = torch.tensor(rng.normal(size=3) * 10 ** rng.uniform(-1, 5))
        delayed = trainable.delayed_poles(poles, position)
        assert (delayed.real < 0).all()
        least = min(least, float((-delayed.real / delayed.abs()).min()))
        for method in ("zoh", "bilinear"):
            system = diagonal.discretise(delayed, delayed, torch.zeros(3), torch.full((3,), 0.01), method)
            assert (system.log_a.real <= 0).all()
            assert torch.isfinite(system.b.abs()).all()
    assert least < 1e-20, "the draws were to come near the edge"


def turned(poles, position):
    """exp(-i phi) poles in 60 digits."""
    with mpmath.workdps(60):
        left = [mpmath.atan2(-p.real, p.imag) for p in poles], [mpmath.atan2(-p.real, -p.imag) for p in poles]
        low, high = -min(left[1]), min(left[0])
        share = mpmath.mpf(trainable.MARGIN)
        share += (1 - 2 * share) / (1 + mpmath.exp(-mpmath.mpf(position)))
        phase = low + (high - low) * share
        values = [mpmath.mpc(p.real, p.imag) * mpmath.expj(-phase) for p in poles]
        return float(phase), [(float(v.real), float(v.imag)) for v in values]


@pytest.mark.parametrize("position", [-60.0, -14.0, -1.5, 0.0, 0.7, 5.0, 14.0, 60.0])
def test_delayed_poles_keep_every_digit_of_their_decay(position):
    every_kind = random_poles(np.random.default_rng(3), 4, 6)
    every_kind = np.where(every_kind.real > -1e-100, every_kind - 1e-3, every_kind)
    for poles in (*every_kind, np.array([-1e-14 + 1j, -0.5 + 90j, -3 - 0.1j]), np.array([-0.5 + 0j])):
        A, at = torch.from_numpy(poles[None]), torch.tensor([position], dtype=torch.float64)
        phase, expected = turned(poles, position)
        assert trainable.phase_delay(A, at).item() == pytest.approx(phase, rel=1e-12, abs=1e-15)
        found = trainable.delayed_poles(A, at)[0]
        real, imag = np.array(expected).T
        np.testing.assert_allclose(found.real.numpy(), real, rtol=1e-9)
        assert np.abs(found.imag.numpy() - imag).max() < 1e-14 * np.abs(poles).max()


def test_a_phase_is_found_inside_its_limits_and_nowhere_else():
    poles = torch.from_numpy(np.array([[-0.5 + 3j, -0.25 + 40j, -2 + 0j], [-0.5 - 9j, -1 + 0j, -1 + 2j]]))
    low, high = (float(limit) for limit in (delay_limits(poles)[0].max(), delay_limits(poles)[1].min()))
    assert math.tan(high) == pytest.approx(0.25 / 40)
    assert math.tan(-low) == pytest.approx(0.5 / 9)
    for phase in (low + 1e-5, -1e-3, 0.0, high - 1e-5):
        position = trainable.position_of(poles, phase)
        np.testing.assert_allclose(trainable.phase_delay(poles, position), phase, rtol=1e-12, atol=1e-14)
        expected = poles * complex(math.cos(phase), -math.sin(phase))
        assert (trainable.delayed_poles(poles, position) - expected).abs().max() < 1e-14 * 40
    for phase in (low, high, low - 0.1, high + 0.1, 3.0, math.nan):
        assert trainable.position_of(poles, phase) is None


def test_limits_keep_their_digits_where_a_wave_hardly_decays():
    for decay, frequency in ((1e-13, 1e3), (0.5, 3.0), (2.0, 0.0)):
        for sign in (1, -1):
            low, high = delay_limits(torch.tensor([[complex(-decay, sign * frequency)]], dtype=torch.complex128))
            near = high if sign > 0 else -low
            assert near.item() == pytest.approx(float(mpmath.atan2(decay, frequency)), rel=1e-14)
            assert (high - low).item() == pytest.approx(math.pi, rel=1e-14)


@pytest.mark.parametrize(("modes", "reach"), [(1, 1), (3, 1), (4, 3), (4, 4)])
def test_gradients_of_the_weights_are_those_of_differences(modes, reach):
    weights = weights_of(modes + reach, modes, reach, scale=1.0)
    position = torch.tensor([0.4, -3.0], dtype=torch.float64)
    inputs = [values.clone().requires_grad_() for values in (*weights, position)]

    def both(log_decay, damping, coupling, position):
        poles = trainable.coupled_poles(log_decay, damping, coupling, modes)
        return torch.view_as_real(poles), torch.view_as_real(trainable.delayed_poles(poles, position))

    assert torch.autograd.gradcheck(both, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)
