"""Diagonal systems against 40-digit discretisations, scipy, and a plain recurrence."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.signal import cont2discrete

from oplens.errors import ArgumentError
from oplens.operators import diagonal
from oracles import discrete, random_system, recurrence
from recorders import LargestTensor

# Powers of two, primes, squares (the split of the kernel), and their neighbours.
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 256, 257, 896, 997, 1024, 2048, 4093, 4096, 5000]


def build(seed, method="zoh", d_model=3, n_modes=4):
    A, C, D, dt = random_system(seed, d_model, n_modes)
    system = diagonal.discretise(*(torch.from_numpy(v) for v in (A, C, D, dt)), method)
    return system, (*discrete(A, dt, method), C, D)


def close(got, expected, tolerance=1e-10):
    got = got.detach().numpy() if isinstance(got, torch.Tensor) else got
    assert got.shape == expected.shape
    error = np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300)
    assert error < tolerance, error


def drive(seed, length, batch=2, d_model=3):
    return np.random.default_rng(seed + 1).normal(size=(batch, d_model, length))


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
@pytest.mark.parametrize("seed", range(4))
def test_discretisation_is_correct_to_the_last_digits(method, seed):
    system, (a, b, _, _) = build(seed, method, 6, 12)
    assert np.abs(system.a.numpy() - a).max() < 4e-14
    np.testing.assert_allclose(system.b.numpy(), b, rtol=4e-14)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_discretisation_equals_scipy(method):
    for pole, dt in [(-0.5 + 3.1j, 0.1), (-0.5 - 97j, 0.05), (-2.0 + 0j, 0.7), (-1e-8 + 1j, 0.01)]:
        matrix = np.array([[pole.real, -pole.imag], [pole.imag, pole.real]])
        a, b, *_ = cont2discrete((matrix, np.array([[1.0], [0.0]]), np.eye(2), np.zeros((2, 1))), dt, method)
        one = torch.ones(1, 1, dtype=torch.complex128)
        system = diagonal.discretise(pole * one, one, torch.zeros(1), torch.tensor([dt], dtype=torch.float64), method)
        assert abs(system.a.item() - (a[0, 0] + 1j * a[1, 0])) < 1e-13
        assert abs(system.b.item() - (b[0, 0] + 1j * b[1, 0])) < 1e-13 * dt * 10


@pytest.mark.parametrize("t", [1, 100, 20000])
def test_bilinear_powers_of_slow_modes_keep_their_digits(t):
    pole, dt = -1e-4 + 0.02j, 0.001
    one = torch.ones(1, 1, dtype=torch.complex128)
    system = diagonal.discretise(pole * one, one, torch.zeros(1), torch.full((1,), dt, dtype=torch.float64), "bilinear")
    with mpmath.workdps(40):
        w = mpmath.mpmathify(pole) * mpmath.mpf(dt) / 2
        expected = ((1 + w) / (1 - w)) ** t
    assert abs(torch.exp(system.log_a * t).item() - complex(expected)) < 1e-15 * (4 + t * abs(pole) * dt)


def test_a_bilinear_pole_that_cancels_gives_a_finite_kernel():
    one = torch.ones(1, 1, dtype=torch.complex128)
    system = diagonal.discretise(-2 * one, one, torch.zeros(1), torch.ones(1, dtype=torch.float64), "bilinear")
    assert diagonal.kernel(system, 4).tolist() == [pytest.approx([1, 0, 0, 0], abs=1e-30)]


def test_an_unknown_method_is_refused():
    one = torch.ones(1, 1, dtype=torch.complex128)
    with pytest.raises(ArgumentError, match=r"'foh'.*zoh, bilinear"):
        diagonal.discretise(one, one, torch.zeros(1), torch.ones(1), "foh")


@pytest.mark.parametrize("centre", [0, 1, -1, 2, 7])
@pytest.mark.parametrize("offset", [1e-14, 1e-12, 3e-12, 1e-8, 1e-3, 0.5])
def test_expm1_ratio_near_its_zeros(centre, offset):
    for direction in (1, 1j, -1, -1j, (-1 + 1j) / 2):
        z = offset * direction + 2j * np.pi * centre
        got = diagonal.expm1_ratio(torch.tensor(z, dtype=torch.complex128)).item()
        with mpmath.workdps(50):
            expected = complex(mpmath.expm1(mpmath.mpmathify(z)) / mpmath.mpmathify(z))
        assert abs(got - expected) <= 1e-15 * abs(expected), (z, got, expected)


@pytest.mark.parametrize("z", [0j, 5e-324 + 0j, -5e-324 - 5e-324j, -800 + 3j, -1e300 + 0j, -3 + 1e5j])
def test_expm1_ratio_at_extremes(z):
    with mpmath.workdps(60):
        expected = complex(mpmath.expm1(mpmath.mpmathify(z)) / mpmath.mpmathify(z)) if z else 1
    assert diagonal.expm1_ratio(torch.tensor(z, dtype=torch.complex128)).item() == pytest.approx(
        expected, rel=1e-14, abs=0
    )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_every_mode_equals_the_plain_recurrence(length, method):
    system, (a, b, C, D) = build(length, method)
    u = drive(length, length)
    z, s = recurrence((a, b, C, D), u)
    impulse = np.zeros((1, 3, length))
    impulse[..., 0] = 1
    response, impulse_states = recurrence((a, b, C, D), impulse)
    full = diagonal.kernel(system, length, skip=True)
    close(full, response[0])
    close(diagonal.mode_kernels(system, length), 2 * (C[..., None] * impulse_states[0]).real)
    close(diagonal.convolve(torch.from_numpy(u), full), z)
    for chunk in {1, 7, 64, length} if length < 300 else {100, 256}:
        got, last = diagonal.scan(system, torch.from_numpy(u), chunk=chunk)
        close(got, z)
        close(last, s[..., -1])
        pieces = list(diagonal.states(system, torch.from_numpy(u), chunk=chunk))
        assert [start for start, _ in pieces] == list(range(0, length, chunk))
        close(torch.cat([piece for _, piece in pieces], dim=-1), s)
    waves = diagonal.waves(system, torch.from_numpy(s)).numpy()
    close(waves.sum(2) + D[:, None] * u, z, 1e-11)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 700), cut=st.floats(0, 1), chunk=st.integers(1, 90))
@example(seed=1, length=1, cut=0.0, chunk=1)
@example(seed=2, length=64, cut=0.5, chunk=64)
def test_a_sequence_may_be_cut_anywhere(seed, length, cut, chunk):
    system, (a, b, C, D) = build(seed, d_model=2, n_modes=3)
    u = drive(seed, length, d_model=2)
    z, s = recurrence((a, b, C, D), u)
    at = round(cut * length)
    first, state = diagonal.scan(system, torch.from_numpy(u[..., :at].copy()), chunk=chunk)
    second, state = diagonal.scan(system, torch.from_numpy(u[..., at:].copy()), state, chunk=chunk)
    close(torch.cat((first, second), -1), z)
    close(state, s[..., -1])
    if 0 < at < length:
        middle = torch.from_numpy(s[..., at - 1])
        tail = [piece for _, piece in diagonal.states(system, torch.from_numpy(u[..., at:].copy()), middle, chunk)]
        close(torch.cat(tail, -1), s[..., at:])


@pytest.mark.parametrize("length", [1, 2, 31, 200])
def test_single_steps_equal_the_plain_recurrence(length):
    system, (a, b, C, D) = build(length)
    u = drive(length, length)
    z, s = recurrence((a, b, C, D), u)
    state = torch.zeros(2, 3, 4, dtype=torch.complex128)
    for t in range(length):
        got, state = diagonal.step(system, torch.from_numpy(u[..., t]), state)
        close(got, z[..., t], 1e-12)
    close(state, s[..., -1], 1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 97, 512])
def test_adjoint_is_the_transpose_and_correlate_the_sum_it_says(length):
    rng = np.random.default_rng(length)
    u, q = rng.normal(size=(2, 2, 3, length))
    response = rng.normal(size=(3, length))
    v = diagonal.adjoint(torch.from_numpy(q), torch.from_numpy(response)).numpy()
    dense = np.zeros((3, length, length))
    for i in range(length):
        for j in range(i + 1):
            dense[:, i, j] = response[:, i - j]
    close(v, np.einsum("hij,bhi->bhj", dense, q), 1e-12)
    close(
        diagonal.convolve(torch.from_numpy(u), torch.from_numpy(response)), np.einsum("hij,bhj->bhi", dense, u), 1e-12
    )
    expected = np.stack([(q[..., lag:] * u[..., : length - lag]).sum(-1) for lag in range(length)], -1)
    close(diagonal.correlate(torch.from_numpy(q), torch.from_numpy(u)), expected, 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000))
def test_the_fft_is_long_enough_not_to_wrap(length):
    assert diagonal.fft_length(length) >= 2 * length - 1


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_kernel_has_the_right_derivatives(method):
    A, C, D, dt = (torch.from_numpy(v) for v in random_system(11, 2, 2))
    A = torch.complex(
        -torch.ones(2, 2, dtype=torch.float64) * torch.tensor([0.5, 1.5]),
        torch.tensor([[0.0, 3.0], [-7.0, 40.0]], dtype=torch.float64),
    )
    inputs = [v.clone().requires_grad_() for v in (A, C, D, dt)]
    assert torch.autograd.gradcheck(lambda *v: diagonal.kernel(diagonal.discretise(*v, method), 7, skip=True), inputs)


def test_a_pole_at_zero_has_a_finite_derivative():
    zero = torch.zeros(1, 1, dtype=torch.complex128, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.complex128)
    for method, expected in (("zoh", 2 * 0.3**2 / 2), ("bilinear", 2 * 0.3**2 / 2)):
        system = diagonal.discretise(zero, one, torch.zeros(1), torch.full((1,), 0.3, dtype=torch.float64), method)
        (slope,) = torch.autograd.grad(diagonal.kernel(system, 1).sum(), zero)
        assert slope.item() == pytest.approx(expected, rel=1e-12)


def test_no_tensor_of_a_kernel_grows_with_modes_times_length():
    """state-spaces/s4 #51: O(H N L) memory is what long sequences run out of."""
    (system, _), length = build(0, d_model=2, n_modes=64), 4096
    with LargestTensor() as naive:
        diagonal.mode_kernels(system, length)
    assert naive.elements >= 2 * 64 * length
    with LargestTensor() as ours:
        diagonal.kernel(system, length)
    assert ours.elements < 2 * 64 * length / 10


@pytest.mark.parametrize("call", [lambda s: diagonal.kernel(s, 0), lambda s: diagonal.mode_kernels(s, -1)])
def test_an_empty_kernel_is_refused(call):
    with pytest.raises(ArgumentError, match="at least one step"):
        call(build(0)[0])


@pytest.mark.parametrize(
    "call", [lambda s, u: diagonal.scan(s, u, chunk=0), lambda s, u: next(diagonal.states(s, u, chunk=0))]
)
def test_an_empty_chunk_is_refused(call):
    with pytest.raises(ArgumentError, match="at least one step"):
        call(build(0)[0], torch.zeros(1, 3, 5, dtype=torch.float64))
