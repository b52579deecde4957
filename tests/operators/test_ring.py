"""The ring against dense matrices built from the formulas, eigenvalues, matrix exponentials, plain loops and an ODE solver."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from scipy.stats import pearsonr

from oplens.errors import ArgumentError
from oplens.models import S4D, S4DConfig
from oplens.operators import diagonal, oscillators, ring, travel
from oracles import discrete, random_poles, random_system, recurrence

ORDERINGS = ["frequency", "stored"]
SIZES = [1, 2, 3, 8, 16]


def dense_basis(P):
    N = 2 * P
    return np.array([[np.exp(2j * np.pi * (k + 0.5) * j / N) / math.sqrt(N) for k in range(N)] for j in range(N)])


def dense(values):
    """F diag(values, conjugates) F^H of one ring's P values; asserted real."""
    F = dense_basis(len(values))
    W = F @ np.diag(np.concatenate((values, np.conj(values[::-1])))) @ F.conj().T
    assert np.abs(W.imag).max() <= 1e-13 * max(np.abs(values).max(), 1e-300) * len(W)
    return W.real


def poles_of(seed, d_model=3, n_modes=8):
    return random_poles(np.random.default_rng(seed), d_model, n_modes)


def by_frequency(values):
    """The ordering in plain words: smaller absolute frequency first, ties as stored; of each pair the member turning forwards."""
    order = sorted(range(len(values)), key=lambda n: (abs(values[n].imag), n))
    return order, np.array([complex(values[n].real, abs(values[n].imag)) for n in order])


def lin(P, d_model=1):
    return torch.from_numpy(np.tile(-0.5 + 1j * np.pi * np.arange(P), (d_model, 1)))


def near(got, expected, scale, tolerance=1e-12):
    got = got.numpy() if isinstance(got, torch.Tensor) else got
    assert got.shape == np.shape(expected)
    error = np.abs(got - expected).max() / scale
    assert error < tolerance, error


@pytest.mark.parametrize("P", [1, 2, 5, 32])
def test_the_basis_is_the_formula_and_pairs_conjugates(P):
    F = ring.basis(P).numpy()
    near(F, dense_basis(P), 1, 1e-13)
    near(F.conj().T @ F, np.eye(2 * P), 1, 1e-14)
    near(F[:, ::-1], F.conj(), 1, 1e-15)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), P=st.sampled_from(SIZES), ordering=st.sampled_from(ORDERINGS))
def test_any_diagonal_system_becomes_a_ring_and_comes_back(seed, P, ordering):
    A = poles_of(seed, 2, P)
    R = ring.build_ring(torch.from_numpy(A), ordering)
    assert (R.ordering, R.unit, R.n_modes, R.n_sites) == (ordering, "model time", P, 2 * P)
    W = ring.skew_circulant(ring.coupling(R)).numpy()
    for h in range(2):
        scale = max(np.abs(A[h]).max(), 1)
        order, values = (list(range(P)), A[h]) if ordering == "stored" else by_frequency(A[h])
        assert R.order[h].tolist() == order
        assert R.conjugated[h].tolist() == [bool(A[h, n].imag < 0) and ordering == "frequency" for n in order]
        near(W[h], dense(values), scale)
        shifts = np.roll(W[h], (1, 1), (0, 1))[1:, 1:]
        np.testing.assert_array_equal(W[h][1:, 1:], shifts)  # along a diagonal nothing changes
        np.testing.assert_array_equal(W[h][0, 1:], -W[h][:0:-1, 0])  # but the sign does at the seam
        found, expected = np.linalg.eigvals(W[h]), np.concatenate((A[h], A[h].conj()))
        distance = np.abs(found[:, None] - expected)
        assert max(distance.min(0).max(), distance.min(1).max()) < 1e-12 * scale
    assert torch.equal(ring.build_ring(torch.from_numpy(A.conj()).conj(), ordering).rates, R.rates)  # a lazy view
    again = ring.Ring(ring.rates_of_coupling(ring.coupling(R)), R.inputs, R.order, R.conjugated, R.ordering, R.unit)
    near(ring.stored_poles(again), A, max(np.abs(A).max(), 1))


def test_coupling_at_s4d_lin_is_the_closed_form_and_model_weights_give_it():
    for P in (1, 2, 5, 32):
        near(ring.lin_coupling(P)[None], dense(lin(P)[0].numpy())[None, :, 0], math.pi * P, 1e-13)
        near(ring.coupling(ring.build_ring(lin(P)))[0], ring.lin_coupling(P).numpy(), math.pi * P, 1e-13)
    kernel = S4D(S4DConfig(1, 2, d_model=2, d_state=16)).double().layer(0).kernel
    A = torch.complex(-kernel.log_A_real.exp(), kernel.A_imag).detach()
    near(ring.coupling(ring.build_ring(A))[1], ring.lin_coupling(8).numpy(), 8 * math.pi, 1e-7)  # weights are float32


def test_signed_displacement_points_from_source_to_target_and_the_seam_turns_the_sign():
    R = ring.build_ring(torch.from_numpy(poles_of(1, 1, 4)))
    W = dense(by_frequency(poles_of(1, 1, 4)[0])[1])
    displacement, weights = ring.signed_coupling(R)
    assert displacement.tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
    for d, weight in zip(displacement.tolist(), weights[0].tolist(), strict=True):
        for source in range(8):
            sign = 1 if 0 <= source + d < 8 else -1
            assert abs(W[(source + d) % 8, source] - sign * weight) < 1e-12 * np.abs(W).max()


def test_a_ring_is_built_from_any_real_coupling():
    w = np.random.default_rng(0).normal(size=(2, 10))
    R = ring.ring_from_coupling(torch.from_numpy(w))
    near(ring.coupling(R), w, 1)
    for h in range(2):
        W = np.array([[w[h, j - k] if j >= k else -w[h, j - k + 10] for k in range(10)] for j in range(10)])
        near(ring.skew_circulant(ring.coupling(R))[h], W, 1)
        near(dense(ring.stored_poles(R)[h].numpy()), W, 1)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_the_input_enters_at_one_site_whatever_the_ordering(ordering):
    R = ring.build_ring(torch.from_numpy(poles_of(3)), ordering)
    expected = np.zeros((3, 16))
    expected[:, 0] = 4
    near(ring.injection(R), expected, 1, 1e-13)
    half = ring.analytic_injection(R)
    near(half, np.tile(dense_basis(8)[:, :8].sum(1), (3, 1)), 1, 1e-13)
    assert half.abs()[:, 1::2].min() > 0.2  # while r+ is fed at every odd site


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("P", [1, 4, 9])
def test_states_become_ring_trajectories_and_come_back(ordering, P):
    rng = np.random.default_rng(P)
    A = poles_of(P, 2, P)
    s = rng.normal(size=(3, 2, P, 5)) + 1j * rng.normal(size=(3, 2, P, 5))
    R = ring.build_ring(torch.from_numpy(A), ordering)
    half = ring.analytic_half(R, torch.from_numpy(s))
    for h in range(2):
        order = list(range(P)) if ordering == "stored" else by_frequency(A[h])[0]
        for k, n in enumerate(order):
            wave = s[:, h, n].conj() if ordering == "frequency" and A[h, n].imag < 0 else s[:, h, n]
            near(np.einsum("j,bjt->bt", dense_basis(P)[:, k].conj(), half[:, h].numpy()), wave, 1)
            assert np.abs(np.einsum("j,bjt->bt", dense_basis(P)[:, -1 - k].conj(), half[:, h].numpy())).max() < 1e-12
    near(ring.stored_states(R, half), s, 1)
    near(ring.stored_states(R, 2 * half.real), s, 1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), method=st.sampled_from(["zoh", "bilinear"]), ordering=st.sampled_from(ORDERINGS))
def test_the_ring_run_by_a_plain_loop_is_the_model(seed, method, ordering):
    """Real and aliased modes, negative frequencies: z from sites and readout weights equals z from the recurrence."""
    A, C, D, dt = random_system(seed, 2, 5)
    u = np.random.default_rng(seed).normal(size=(2, 2, 40))
    a, b = discrete(A, dt, method)
    z, states = recurrence((a, b, C, D), u)
    R = ring.build_step_ring(diagonal.discretise(*(torch.from_numpy(v) for v in (A, C, D, dt)), method), ordering)
    G = ring.skew_circulant(ring.propagator(R)).numpy()
    beta, weights = ring.injection(R).numpy(), ring.site_weights(R, torch.from_numpy(C)).numpy()
    r, sites, out = np.zeros((2, 2, 10)), np.empty((2, 2, 10, 40)), np.empty(u.shape)
    for t in range(40):
        r = np.einsum("hjk,bhk->bhj", G, r) + beta * u[:, :, t, None]
        sites[..., t] = r
        out[:, :, t] = (weights * r).sum(-1) + D * u[:, :, t]
    near(out, z, np.abs(z).max(), 1e-11)
    near(2 * ring.analytic_half(R, torch.from_numpy(states)).real, sites, np.abs(sites).max(), 1e-11)
    frequency = np.angle(a)
    wrapped = R.rates.imag.numpy()
    for h in range(2):
        assert R.order[h].tolist() == list(range(5)) or ordering == "frequency"
        expected = frequency[h][R.order[h]]
        near(wrapped[h], np.abs(expected) if ordering == "frequency" else expected, 1, 1e-10)
        assert ordering == "stored" or (np.diff(np.abs(expected)) > -1e-10).all()
    near(torch.exp(ring.stored_poles(R)), a, 1)


def test_the_discretised_ring_is_the_matrix_exponential():
    A, C, D, dt = random_system(5, 3, 4)
    A = A.real + 1j * (A.imag % 60 - 30)
    arrays = [torch.from_numpy(v) for v in (A, C, D, dt)]
    R = ring.build_ring(arrays[0])
    for h in range(3):
        W = dense(by_frequency(A[h])[1])
        block = np.zeros((9, 9))
        block[:8, :8], block[0, 8] = W, math.sqrt(8)
        step = expm(block * dt[h])  # the last column is the zero-order hold of the input profile
        near(ring.skew_circulant(ring.propagator(R, arrays[3]))[h], step[:8, :8], 1)
        per_step = ring.build_step_ring(diagonal.discretise(*arrays))
        near(ring.propagator(per_step)[h], step[:8, 0], 1)
        near(ring.injection(per_step)[h], step[:8, 8], 1)


def test_orderings_change_pictures_and_not_outputs():
    A, C, D, dt = random_system(8, 1, 6)
    u = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1, 30)))
    system = diagonal.discretise(*(torch.from_numpy(v) for v in (A, C, D, dt)))
    s = torch.cat([part for _, part in diagonal.states(system, u)], dim=-1)
    pictures, outputs = [], []
    for ordering in ORDERINGS:
        R = ring.build_ring(torch.from_numpy(A), ordering)
        half = ring.analytic_half(R, s)
        pictures.append(half.abs())
        outputs.append(torch.einsum("hj,bhjt->bht", ring.site_weights(R, system.C), 2 * half.real))
    assert (pictures[0] - pictures[1]).abs().max() > 1e-3 * pictures[0].max()
    near(outputs[0], outputs[1].numpy(), outputs[0].abs().max().item())
    z = diagonal.scan(system, u)[0] - system.D[:, None] * u
    near(outputs[0], z.numpy(), z.abs().max().item())


def test_dispersion_is_that_of_plane_waves_of_the_matrix():
    A = poles_of(11, 1, 6)
    R = ring.build_ring(torch.from_numpy(A))
    found, W = travel.dispersion(R), ring.skew_circulant(ring.coupling(R))[0].numpy()
    j = np.arange(12)
    for k in range(6):
        wave = np.exp(1j * found.wavenumber[k].item() * j)
        rate = -found.decay[0, k].item() + 1j * found.frequency[0, k].item()
        near(W @ wave, rate * wave, np.abs(A).max(), 1e-11)
        # A crest, where the phase kappa j + omega t is 0, is at j = velocity t.
        crest = found.phase_velocity[0, k].item() * 0.3
        assert abs(found.wavenumber[k].item() * crest + found.frequency[0, k].item() * 0.3) < 1e-9
    for k in range(5):
        slope = (found.frequency[0, k + 1] - found.frequency[0, k]) / (found.wavenumber[k + 1] - found.wavenumber[k])
        assert abs(found.group_velocity[0, k] + slope) < 1e-9 * (1 + abs(slope))
    steps = found.per_step(torch.tensor([0.25], dtype=torch.float64))
    assert steps.unit == "step"
    near(steps.group_velocity, found.group_velocity.numpy() / 4, found.group_velocity.abs().max().item(), 1e-14)
    near(steps.decay, found.decay.numpy() / 4, 1, 1e-14)


def test_s4d_lin_moves_minus_p_sites_per_unit_time_and_turns_in_two_over_dt_steps():
    P, dt = 32, torch.tensor([0.01, 0.04], dtype=torch.float64)
    R = ring.build_ring(lin(P, 2))
    near(travel.dispersion(R).group_velocity, np.full((2, P - 1), -P), P)
    past = travel.lag_map(R, dt)
    near(past.velocity, -P * dt.numpy(), 1)
    near(past.revolution, 2 / dt.numpy(), 200)
    near(past.resolution, 1 / (P * dt.numpy()), 1)
    near(past.earlier, np.full(2, math.exp(-2)), 1)
    j = np.arange(1, 2 * P)
    near(past.lag[:, 1:], (2 * P - j) / (P * dt.numpy()[:, None]), 200)
    assert past.lag[:, 0].tolist() == [0, 0]


def test_sites_hold_the_past_that_the_map_says():
    """Envelope of an impulse's response, site by site, from the dense propagator: peaks follow the map, and so do `peak_lags`."""
    P, dt = 32, 0.01
    R = ring.build_ring(lin(P))
    steps = int(2 / dt)
    W = dense(lin(P)[0].numpy())
    half = dense_basis(P)[:, :P].sum(1)
    G = expm(W * dt)
    first = expm(W * dt / 2) @ half * dt  # the midpoint of the impulse's step
    envelope = np.empty((2 * P, steps))
    for t in range(steps):
        envelope[:, t] = np.abs(first)
        first = G @ first
    predicted = travel.lag_map(R, torch.tensor([dt], dtype=torch.float64)).lag[0].numpy()
    measured = envelope.argmax(1)
    inner = slice(2, None)  # at sites 0 and 1 what enters outshines what has been around
    assert pearsonr(predicted[inner], measured[inner])[0] > 0.9999
    assert np.abs(predicted[inner] - measured[inner]).max() < 1.5
    peaks = travel.peak_lags(R, steps, torch.tensor([dt], dtype=torch.float64))[0].numpy()
    assert np.abs(peaks - measured).max() <= 1
    energy = (envelope**2).sum(0)
    assert energy[-1] / energy[0] == pytest.approx(math.exp(-2 * 0.5 * (steps - 1) * dt), rel=1e-9)


def test_the_map_turns_with_the_direction_of_travel_and_exists_for_rings_per_step():
    backwards = ring.build_ring(lin(4).flip(1), "stored")
    past = travel.lag_map(backwards, torch.tensor([0.1], dtype=torch.float64))
    near(past.lag, 2.5 * np.arange(8)[None], 1)
    A = lin(4)
    system = diagonal.discretise(A, A, torch.zeros(1), torch.tensor([0.1], dtype=torch.float64))
    per_step, model = ring.build_step_ring(system), ring.build_ring(A)
    found, expected = travel.lag_map(per_step), travel.lag_map(model, torch.tensor([0.1], dtype=torch.float64))
    near(found.lag, expected.lag.numpy(), 1)
    assert torch.equal(
        travel.peak_lags(per_step, 20), travel.peak_lags(model, 20, torch.tensor([0.1], dtype=torch.float64))
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), phase=st.floats(-1.5, 1.5))
def test_a_phase_delay_turns_every_pole_or_is_refused(seed, phase):
    A = poles_of(seed, 1, 5)
    R = ring.build_ring(torch.from_numpy(A))
    rates = by_frequency(A[0])[1] * np.exp(-1j * phase)
    largest = rates.real.max()
    if largest > 1e-9:
        with pytest.raises(ArgumentError, match=r"unstable, its largest Re lambda is"):
            travel.delay(R, phase)
    elif largest < -1e-9:
        delayed = travel.delay(R, phase)
        near(delayed.rates[0], rates, np.abs(A).max())
        near(ring.skew_circulant(ring.coupling(delayed))[0], dense(rates), np.abs(A).max())


def test_the_limit_of_the_phase_delay_is_where_a_wave_stops_decaying():
    A = np.array([[-0.5 + 3j, -0.25 + 40j, -2 + 0j, -0.75 - 6j]])
    R = ring.build_ring(torch.from_numpy(A), "stored")
    low, high = (limit.item() for limit in travel.delay_limits(torch.from_numpy(A)))
    assert math.tan(high) == pytest.approx(0.25 / 40, rel=1e-12)
    assert math.tan(-low) == pytest.approx(0.75 / 6, rel=1e-12)
    for limit, inside in ((low, 1e-6), (high, -1e-6)):
        assert travel.delay(R, limit + inside).rates.real.max() < 0
        with pytest.raises(ArgumentError, match=r"between -0\.124355 and 0\.00624992"):
            travel.delay(R, limit - inside)
    lin_ring = ring.build_ring(lin(32))
    assert math.tan(travel.delay_limits(lin_ring.rates)[1].item()) == pytest.approx(0.5 / (31 * math.pi), rel=1e-9)
    with pytest.raises(ArgumentError, match="no phase makes every wave decay"):
        travel.delay(ring.build_ring(torch.tensor([[0.5 + 1j, 0.5 - 1j]]), "stored"), 0.0)


@pytest.mark.parametrize("phase", [0.0, 0.01])
def test_oscillators_integrated_numerically_reproduce_the_state(phase):
    """Three revolutions with input held between steps, from a generic start: solve_ivp against the recurrence in 40-digit a and b."""
    rng = np.random.default_rng(2)
    A = np.array([[-0.5 + 0j, -0.5 + 3.3j, -0.6 - 6j, -0.4 + 9.5j]])
    dt, steps = 0.05, 120
    R = travel.delay(ring.build_ring(torch.from_numpy(A)), phase)
    turned = np.where(A.imag < 0, (A.conj() * np.exp(-1j * phase)).conj(), A * np.exp(-1j * phase))
    a, b = discrete(turned, np.array([dt]))
    u = rng.normal(size=steps)
    s = rng.normal(size=4) + 1j * rng.normal(size=4)
    system = oscillators.build_oscillators(R)
    start = ring.analytic_half(R, torch.from_numpy(s)[None, None, :, None])[0, ..., 0]
    psi = oscillators.phases(start)[0].numpy()
    worst = scale = 0.0
    for t in range(steps):
        value = torch.tensor([u[t]], dtype=torch.float64)

        def rhs(_, phases, value=value):
            return system.rates(torch.from_numpy(phases)[None], value)[0].numpy()

        solved = solve_ivp(rhs, (0, dt), psi, method="DOP853", rtol=1e-12, atol=1e-12)
        assert solved.success
        psi = solved.y[:, -1]
        s = a[0] * s + b[0] * u[t]
        sites = oscillators.analytic_sites(torch.from_numpy(psi))[None, None, :, None]
        worst = max(worst, np.abs(ring.stored_states(R, sites)[0, 0, :, 0].numpy() - s).max())
        scale = max(scale, np.abs(s).max())
    assert worst < 1e-8 * scale, worst


def test_oscillator_rates_are_the_double_sum():
    rng = np.random.default_rng(4)
    A = poles_of(4, 2, 3)
    system = oscillators.build_oscillators(ring.build_ring(torch.from_numpy(A)))
    psi, u = rng.normal(size=(2, 6)) + 1j * rng.normal(size=(2, 6)), rng.normal(size=2)
    found = system.rates(torch.from_numpy(psi), torch.from_numpy(u)).numpy()
    for h in range(2):
        W, half = dense(by_frequency(A[h])[1]), dense_basis(3)[:, :3].sum(1)
        for j in range(6):
            pull = sum(W[j, k] * np.exp(1j * (psi[h, k] - psi[h, j])) for k in range(6))
            expected = -1j * pull - 1j * half[j] * u[h] * np.exp(-1j * psi[h, j])
            assert abs(found[h, j] - expected) < 1e-11 * np.abs(W).max() * np.exp(np.abs(psi.imag).max() * 2)


def test_singular_starts_are_refused():
    R = ring.build_ring(lin(4))
    one = torch.ones(1, 1, 4, 1, dtype=torch.complex128)
    with pytest.raises(ArgumentError, match=r"singular start, r\+ is 0 at site 0 of feature 0"):
        oscillators.phases(ring.analytic_half(R, 0 * one)[0, ..., 0])
    # An impulse in model time leaves even sites at 0, up to rounding.
    with pytest.raises(ArgumentError, match="at site 2 of feature 0"):
        oscillators.phases(ring.analytic_half(R, one)[0, ..., 0])


BAD_SYSTEM = diagonal.DiagonalSystem(lin(2), lin(2), lin(2), torch.zeros(1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ring.build_ring(lin(2), "random"), "choose one of frequency, stored"),
        (lambda: ring.build_step_ring(BAD_SYSTEM, "random"), r"build_step_ring\(ordering='random'\)"),
        (lambda: ring.build_ring(lin(2)[0]), r"got torch.complex128 \(2,\)"),
        (lambda: ring.build_ring(lin(2).real), "expected complex poles"),
        (lambda: ring.build_ring(lin(2)[:, :0]), "P >= 1"),
        (lambda: ring.build_ring(lin(2) * math.nan), "NaN or infinity"),
        (lambda: ring.rates_of_coupling(torch.ones(1, 3)), "N even"),
        (lambda: ring.rates_of_coupling(lin(2)), "expected real weights"),
        (lambda: ring.analytic_half(ring.build_ring(lin(2)), lin(2)), "states of shape"),
        (lambda: ring.stored_states(ring.build_ring(lin(2)), torch.ones(1, 1, 3, 1)), "N=4"),
        (lambda: travel.lag_map(ring.build_ring(lin(2))), "needs dt"),
        (lambda: travel.lag_map(ring.build_ring(lin(2)), torch.tensor([0.0])), "positive steps"),
        (lambda: travel.lag_map(ring.build_step_ring(BAD_SYSTEM), torch.ones(1)), "leave dt out"),
        (lambda: travel.lag_map(ring.build_ring(lin(1)), torch.ones(1)), "one mode"),
        (lambda: travel.lag_map(ring.build_ring(lin(3).real + 0j), torch.ones(1)), "nothing travels on the ring"),
        (lambda: travel.peak_lags(ring.build_ring(lin(2)), 0, torch.ones(1)), "length=0"),
        (lambda: travel.delay(ring.build_ring(lin(2)), math.inf), "finite angle"),
        (lambda: travel.delay(ring.build_step_ring(BAD_SYSTEM), 0.0), "model time"),
        (lambda: travel.dispersion(ring.build_step_ring(BAD_SYSTEM)).per_step(torch.ones(1)), "per step already"),
        (lambda: oscillators.build_oscillators(ring.build_step_ring(BAD_SYSTEM)), "use build_ring"),
        (lambda: oscillators.phases(torch.ones(1, 4)), "complex"),
    ],
)
def test_what_cannot_work_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
