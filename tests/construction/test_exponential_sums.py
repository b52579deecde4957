"""Finite kernels by few waves: against kernels that are such waves, the Hankel matrix's own bounds, and finite differences."""

import numpy as np
import pytest
from scipy.linalg import hankel, svdvals

from oplens.construction import exponential_sums
from oplens.construction.exponential_sums import Waves, comb, fit_columns, fit_waves, hankel_waves, l1_error, ladder


def chirp(length=96):
    """A Gaussian-windowed chirp."""
    t = np.arange(length)
    return np.exp(-0.5 * ((t - length / 2) / (length / 8)) ** 2) * np.cos(
        2 * np.pi * (0.02 * t + 0.08 / length * t * t)
    )


def by_hand(waves, columns, length):
    """sum 2 Re(c p^t), wave by wave."""
    total = np.zeros(length)
    turning = iter(columns[len(waves) :])
    for pole, real, c in zip(waves.poles, waves.real, columns, strict=False):
        weight = c if real else c + 1j * next(turning)
        total += 2 * (weight * pole ** np.arange(length)).real
    return total


def test_a_kernel_of_three_waves_is_found_again():
    t = np.arange(400)
    poles = np.array([0.95 * np.exp(0.5j), 0.9 * np.exp(1.5j), 0.8])
    kernel = (2 * (1 - 0.5j) * poles[0] ** t).real + (2 * 0.7j * poles[1] ** t).real + 1.3 * 0.8**t
    found = hankel_waves(kernel, 3)
    assert len(found) == 3
    for pole in poles:
        assert np.abs(found.poles - pole).min() < 1e-8
    columns = fit_columns(kernel, found)
    assert np.abs(by_hand(found, columns, 400) - kernel)[1:].max() < 1e-7
    refined = fit_waves(kernel, 3)
    assert l1_error(kernel, refined) < 1e-6


def test_the_basis_and_its_weights_are_the_waves():
    waves = Waves.of([0.9 * np.exp(0.3j), -0.5, 0.7])
    assert waves.real.tolist() == [False, True, True]
    columns = np.array([1.0, 2.0, -3.0, 0.5])
    np.testing.assert_allclose(waves.basis(50) @ columns, by_hand(waves, columns, 50), rtol=0, atol=1e-14)
    weights = waves.weights(columns)
    assert weights.tolist() == [1 + 0.5j, 2 + 0j, -3 + 0j]


@pytest.mark.parametrize("n_modes", [2, 5, 9])
def test_truncation_is_near_what_any_system_of_that_size_can_do(n_modes):
    kernel = chirp()
    waves = hankel_waves(kernel, n_modes)
    target = np.pad(kernel, (0, 6 * len(kernel)))
    order = 2 * n_modes
    singular = svdvals(hankel(kernel[1:]))
    # The L2 error of a kernel is at least that of its Hankel matrix's first column; here: no order-n system has a Hankel norm below
    # sigma_(n+1), and balanced truncation's transfer function is within twice the sum of those left out (Glover 1984).
    basis = waves.basis(len(target))
    columns = np.linalg.lstsq(basis[1:], target[1:], rcond=1e-14)[0]
    error = basis @ columns - target
    error[0] = 0
    norm = svdvals(hankel(error[1 : len(kernel)], np.zeros(len(kernel) - 1)))[0]
    assert len(waves) <= n_modes
    assert np.abs(error).sum() >= norm
    assert np.abs(error).sum() > singular[order]
    assert np.sqrt((error**2).sum()) < 2 * singular[order:].sum()


def test_refining_lowers_the_error_and_keeps_every_wave_decaying():
    kernel = chirp()
    target = np.pad(kernel, (0, 5 * len(kernel)))
    errors = []
    for n_modes in (4, 8, 12):
        start, refined = hankel_waves(kernel, n_modes), fit_waves(kernel, n_modes)
        assert (np.abs(refined.poles) < 1).all()
        errors.append(l1_error(target, refined))
        assert errors[-1] < 0.95 * l1_error(target, start)
        # Least squares alone leave larger absolute errors than the weights that follow them.
        squares = exponential_sums._refine(target[: 3 * len(kernel)], start, np.ones(3 * len(kernel)), 40)
        assert errors[-1] < 0.97 * l1_error(target, squares)
    assert errors[0] > 5 * errors[1] > 50 * errors[2]


def test_weights_have_nearly_the_least_absolute_error():
    from scipy.optimize import linprog

    kernel = chirp(48)
    waves = hankel_waves(kernel, 3)
    target = np.pad(kernel, (0, 48))
    basis, wanted = waves.basis(96)[1:], target[1:]
    n, m = basis.shape[1], len(wanted)
    cost = np.concatenate((np.zeros(n), np.ones(m)))
    both = np.block([[basis, -np.eye(m)], [-basis, -np.eye(m)]])
    least = linprog(
        cost, A_ub=both, b_ub=np.concatenate((wanted, -wanted)), bounds=[(None, None)] * n + [(0, None)] * m
    )
    assert least.fun <= l1_error(target, waves) * (1 + 1e-9) < 1.02 * least.fun
    plain = np.abs(basis @ np.linalg.lstsq(basis, wanted)[0] - wanted).sum()
    assert l1_error(target, waves) < plain


def test_the_jacobian_of_variable_projection_descends(monkeypatch):
    """Kaufman's Jacobian gives the gradient of the squared error itself: against finite differences."""
    from scipy import optimize

    seen = {}

    def catch(function, start, jac, bounds, **_):
        seen.update(function=function, start=start, jac=jac)
        return optimize.OptimizeResult(x=start)

    monkeypatch.setattr(optimize, "least_squares", catch)
    target = np.pad(chirp(40), (0, 40))
    waves = Waves.of([0.9 * np.exp(0.4j), 0.8 * np.exp(1.1j), 0.7])
    exponential_sums._refine(target, waves, np.linspace(1, 2, 80), 1)
    x = seen["start"]
    gradient = seen["jac"](x).T @ seen["function"](x)
    for i in range(len(x)):
        step = np.zeros(len(x))
        step[i] = 1e-6
        up, down = (0.5 * (seen["function"](x + s) ** 2).sum() for s in (step, -step))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-7)
    assert len(x) == 3 + 2


def test_long_kernels_take_few_vectors_of_the_same_matrix(monkeypatch):
    kernel = chirp(300)
    dense = hankel_waves(kernel, 6)
    monkeypatch.setattr(exponential_sums, "_DENSE", 100)
    few = hankel_waves(kernel, 6)
    np.testing.assert_allclose(np.sort_complex(few.poles), np.sort_complex(dense.poles), atol=1e-9)


def test_no_more_waves_than_lags_are_tried():
    assert ladder(10) == (1, 2, 3, 4, 5)
    assert ladder(11) == (1, 2, 3, 4, 5)
    assert ladder(9000)[-1] == 128
    assert ladder(2) == (1,)
    assert len(hankel_waves(np.array([1.0, 2.0, 0.5]), 5)) <= 5


@pytest.mark.parametrize("length", [2, 6, 7])
@pytest.mark.parametrize("n_modes", [3, 4])
def test_a_comb_is_the_kernel_and_comes_back_smaller(n_modes, length):
    values = np.random.default_rng(length).normal(size=length)
    waves, weights = comb(values, n_modes, 1e-3)
    assert np.all((waves.angle > 0) & (waves.angle < np.pi))
    columns = np.concatenate((weights.real, weights.imag))
    found = by_hand(waves, columns, 6 * n_modes + 1)
    period = 2 * n_modes
    tail = np.pad(values[1:], (0, period - length + 1))
    expected = np.concatenate((tail, -1e-3 * tail, 1e-6 * tail))
    assert np.abs(found[1:] - expected).max() < 1e-12
