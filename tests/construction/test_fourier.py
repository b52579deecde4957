"""Fejér-Korovkin means as transformers, against the kernel's own convolution sum and cosines interpolated by numpy."""

import itertools
import math

import numpy as np
import pytest
import torch

from oplens.construction.fourier import build_fourier, ridges
from oplens.construction.gathering import gathering
from oplens.construction.real_functions import evaluate, sup_error
from oplens.errors import ArgumentError, DataError
from oplens.models.transformer import Transformer
from oplens.theory import fourier_rate


def kernel(D, t):
    """1 + 2 sum rho_k cos(k t), term by term."""
    p = math.pi / (D + 2)
    total = np.ones_like(t)
    for k in range(1, D + 1):
        rho = ((D + 2 - k) * math.cos(k * p) + math.sin(k * p) / math.tan(p)) / (D + 2)
        total = total + 2 * rho * np.cos(k * t)
    return total


def mean_of(f, n, D, M, x):
    """(1/(2M))^n sum over all 2M midpoints per axis of the circle, f(abs(theta)/pi) prod_j K(pi x_j - theta_j)."""
    nodes = (np.arange(-M, M) + 0.5) * math.pi / M
    total = np.zeros(len(x))
    for theta in itertools.product(nodes, repeat=n):
        weight = np.ones(len(x))
        for j in range(n):
            weight = weight * kernel(D, math.pi * x[:, j] - theta[j])
        total += f(np.abs([theta]) / math.pi)[0] * weight
    return total / (2 * M) ** n


def rough(n):
    """Smooth on no scale that the constructions see; l1 constant below 40."""
    rng = np.random.default_rng(n)
    wave, phase = rng.uniform(-9, 9, (4, n)), rng.uniform(0, 6, 4)
    return lambda x: np.sin(x @ wave.T + phase).sum(1) + 2


def points(n, count=80, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((count, n))
    x[:15] = rng.integers(0, 2, (15, n))
    return x


@pytest.mark.parametrize(
    ("n", "D", "M"), [(1, 1, 2), (1, 5, 4), (1, 9, 11), (2, 1, 2), (2, 4, 3), (2, 5, 9), (3, 2, 2), (3, 3, 4)]
)
def test_ridges_add_up_to_the_convolution(n, D, M):
    f, x = rough(n), points(n)
    grid = np.stack(np.meshgrid(*[(np.arange(M) + 0.5) / M] * n, indexing="ij"), -1)
    kappa, a = ridges(f(grid.reshape(-1, n)).reshape((M,) * n), D)
    assert len(kappa) == fourier_rate(n, 1.0, D)["waves"]
    assert len({tuple(k) for k in kappa} | {tuple(-k) for k in kappa}) == (2 * D + 1) ** n
    np.testing.assert_allclose(np.cos(math.pi * x @ kappa.T) @ a, mean_of(f, n, D, M, x), atol=1e-10)


@pytest.mark.parametrize("D", [1, 2, 7, 12])
def test_the_kernel_is_a_density_with_the_first_moment_the_rate_needs(D):
    """Also of the midpoint sums with the fewest nodes allowed, wherever the kernel stands; with one node less it fails."""
    t = np.linspace(-math.pi, math.pi, 4001)
    assert kernel(D, t).min() > -1e-12
    M = -(-(D + 2) // 2)
    for shift in (0.0, 0.3, 1.1):
        for nodes in (M, M + 3):
            theta = (np.arange(2 * nodes) + 0.5) * math.pi / nodes - shift
            weights = kernel(D, theta) / (2 * nodes)
            assert weights.sum() == pytest.approx(1, abs=1e-12)
            assert weights @ np.cos(theta) == pytest.approx(math.cos(math.pi / (D + 2)), abs=1e-12)
    if D > 1:
        theta = (np.arange(2 * (M - 1)) + 0.5) * math.pi / (M - 1)
        assert abs(kernel(D, theta) @ np.cos(theta) / (2 * (M - 1)) - math.cos(math.pi / (D + 2))) > 1e-3


def chords(kappa, a, step, x):
    """Sum of ridges with every cosine interpolated between knots from 0 outwards, by numpy's own interpolation."""
    total = np.full(len(x), a[0])
    for k, amplitude in zip(kappa[1:], a[1:], strict=True):
        sides = []
        for sign in (-1, 1):
            end = math.pi * sum(max(sign * entry, 0) for entry in k)
            sides.append(sign * np.linspace(0, end, math.ceil(end / step) + 1))
        knots = np.concatenate((sides[0][:0:-1], sides[1]))
        total += amplitude * np.interp(math.pi * x @ k, knots, np.cos(knots))
    return total


BUILT = [(1, 1, 0.7), (1, 8, 0.2), (2, 3, 0.3), (2, 6, 0.05), (3, 2, 0.4)]


@pytest.mark.parametrize(("n", "D", "step"), BUILT)
def test_the_model_is_the_mean_with_piecewise_linear_cosines(n, D, step):
    f, x = rough(n), points(n, seed=1)
    model, certificate = build_fourier(f, n, D, ("l1", 40.0), step=step)
    M = D + 2
    grid = np.stack(np.meshgrid(*[(np.arange(M) + 0.5) / M] * n, indexing="ij"), -1)
    kappa, a = ridges(f(grid.reshape(-1, n)).reshape((M,) * n), D)
    found = evaluate(model, x)
    np.testing.assert_allclose(found, chords(kappa, a, step, x), atol=1e-10)
    parts = dict(certificate.error_parts)
    assert parts["coefficients"] + parts["gathering"] + parts["rounding"] < 1e-8
    off = np.abs(found - np.cos(math.pi * x @ kappa.T) @ a).max()
    assert 0.01 * parts["cosines"] < off <= parts["cosines"] <= np.abs(a[1:]).sum() * step**2 / 8


@pytest.mark.parametrize(("n", "D", "step"), BUILT)
def test_float32_stays_within_its_parts_of_the_float64_model(n, D, step):
    x = points(n, 300, seed=2)
    double, _ = build_fourier(rough(n), n, D, ("l1", 40.0), step=step)
    single, certificate = build_fourier(rough(n), n, D, ("l1", 40.0), step=step, dtype=torch.float32)
    worst = np.abs(evaluate(double, x) - evaluate(single, x)).max()
    parts = dict(certificate.error_parts)
    assert certificate.dtype == "float32"
    assert 1e-8 < worst <= parts["gathering"] + parts["rounding"] < 0.1


def test_rounding_of_units_and_ridges_alone():
    """One variable at dyadic points is gathered without rounding, so what is left is the rounding part's own."""
    x = np.arange(1025)[:, None] / 1024
    double, _ = build_fourier(rough(1), 1, 8, ("l1", 40.0), step=0.1)
    single, certificate = build_fourier(rough(1), 1, 8, ("l1", 40.0), step=0.1, dtype=torch.float32)
    worst = np.abs(evaluate(double, x) - evaluate(single, x)).max()
    assert 1e-7 < worst <= dict(certificate.error_parts)["rounding"] < 300 * worst


def test_errors_of_gathered_reals_cost_what_their_part_says():
    """Every gathered real made larger by 1 part in 1000, past 1 at the upper ends."""
    model, certificate = build_fourier(rough(2), 2, 5, ("l1", 40.0), step=0.1)
    x = points(2, 400, seed=5)
    before = evaluate(model, x)
    model.block(1).attention.output.values.data *= 1.001
    moved = np.abs(evaluate(model, x) - before).max()
    per_real = dict(certificate.error_parts)["gathering"] / gathering("test", 2, 4, (0.0, 1.0), torch.float64).error(
        2.0**-53
    )
    assert 0.02 * 0.001 * per_real < moved <= 0.001 * per_real


def sawtooth(M):
    return lambda x: abs(M * x - np.round(M * x)).sum(1) / M


SHOWN = {
    "abs(x1 - x2)": (lambda x: abs(x[:, 0] - x[:, 1]), 2, 6, ("l1", 1.0)),
    "max(x1, x2, x3)": (lambda x: x.max(1), 3, 3, ("max", 1.0)),
    "product of sines": (lambda x: np.sin(7 * x[:, 0]) * np.sin(5 * x[:, 1]), 2, 8, ("l2", 7.0)),
    "sawtooth, 1": (sawtooth(4), 1, 10, ("l1", 1.0)),
    "sawtooth, 2": (sawtooth(2), 2, 6, ("l1", 1.0)),
    "sawtooth, 3": (sawtooth(1), 3, 3, ("l1", 1.0)),
    "sawtooth in the max norm": (lambda x: abs(2 * x - np.round(2 * x)).max(1) / 2, 2, 6, ("max", 1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SHOWN)
def test_the_measured_error_is_under_the_certificate(name, dtype):
    f, n, D, lipschitz = SHOWN[name]
    model, certificate = build_fourier(f, n, D, lipschitz, dtype=dtype)
    found = sup_error(model, f, points=1500)
    assert found.value <= certificate.error_bound
    parts = dict(certificate.error_parts)
    assert parts["mean"] == fourier_rate(n, lipschitz[1], D, lipschitz[0]).value
    assert parts["cosines"] <= 0.1 * parts["mean"] * (1 + 1e-9)
    if "sawtooth" in name:
        assert certificate.error_bound < 4 * found.value


def test_the_fewest_nodes_are_within_the_same_bound():
    f, n, D, lipschitz = SHOWN["abs(x1 - x2)"]
    for nodes in (4, 5, 20):
        model, certificate = build_fourier(f, n, D, lipschitz, nodes=nodes)
        assert sup_error(model, f, points=800).value <= certificate.error_bound


def test_bounds_other_than_the_unit_interval():
    def f(x):
        return np.cos(x[:, 0]) + abs(x[:, 1])

    low, high = -2.0, 6.0
    model, certificate = build_fourier(f, 2, 5, ("l1", 1.0), (low, high), step=0.02)
    x = points(2, seed=3)
    expected = mean_of(lambda u: f(low + (high - low) * u), 2, 5, 7, x)
    parts = dict(certificate.error_parts)
    assert np.abs(evaluate(model, low + (high - low) * x, (low, high)) - expected).max() <= parts["cosines"] + 1e-9
    assert parts["mean"] == pytest.approx(fourier_rate(2, 8.0, 5).value)
    assert sup_error(model, f, (low, high), points=800).value <= certificate.error_bound


def test_counts_are_those_of_the_model_and_of_the_design():
    """n = 2, D = 6, h = .05: pi norm1(kappa)/h ReLUs for 84 cosines are 34,306 before each side of 0 is rounded up."""
    model, certificate = build_fourier(lambda x: abs(x[:, 0] - x[:, 1]), 2, 6, ("l1", 1.0), step=0.05)
    kappa = [k for k in itertools.product(range(-6, 7), repeat=2) if k > (0, 0)]
    units = sum(math.ceil(math.pi * sum(max(s * j, 0) for j in k) / 0.05) for k in kappa for s in (1, -1))
    assert certificate.hidden == (2, units)
    assert 34306 <= units < 34306 + 2 * 84
    assert certificate.depth == 2
    assert certificate.attention_layers == 1
    weights = [value for key, value in model.state_dict().items() if "indices" not in key]
    assert certificate.sparse == sum(int((value != 0).sum()) for value in weights)


def test_a_constant_function_is_a_constant():
    model, certificate = build_fourier(lambda x: 0 * x[:, 0] + 2.5, 2, 3, ("l1", 0.0))
    np.testing.assert_allclose(evaluate(model, points(2)), 2.5, atol=1e-12)
    assert certificate.error_bound < 1e-9


def test_a_saved_model_is_the_same_model(tmp_path):
    model, _ = build_fourier(rough(2), 2, 3, ("l1", 40.0), step=0.3)
    model.save_pretrained(tmp_path)
    x = points(2)
    assert (evaluate(Transformer.from_pretrained(tmp_path), x) == evaluate(model, x)).all()


def never(x):
    raise AssertionError("f was called before the size was refused")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "n must be a whole number of at least 1"),
        ({"D": 0}, "D must be a whole number of at least 1"),
        ({"step": 0.0}, "radians between knots"),
        ({"step": 1.5}, "radians between knots"),
        ({"nodes": 2}, r"at least \(D\+2\)/2"),
        ({"nodes": 10**5}, "10000000000 nodes"),
        ({"n": 8, "D": 9}, r"needs about .* GiB, memory_limit is 2 GiB; .*lower D"),
        ({"n": 400}, "exceeds 2"),
        ({"step": 1e-9}, "enlarge step, or raise memory_limit"),
        ({"dtype": torch.bfloat16}, "choose torch.float64 or torch.float32"),
        ({"lipschitz": ("l1", None)}, "finite number"),
    ],
)
def test_sizes_and_arguments_are_refused_before_f_is_called(change, words):
    with pytest.raises(ArgumentError, match=words):
        build_fourier(**{"f": never, "n": 2, "D": 3, "lipschitz": ("l1", 1.0), **change})


def test_a_step_that_the_coefficients_ask_for_is_refused_before_weights_are_made():
    with pytest.raises(ArgumentError, match="or give a step above"):
        build_fourier(lambda x: x[:, 0], 1, 60, ("l1", 1.0), memory_limit=3 * 10**6)


def test_nan_and_contradicted_constants_are_refused():
    with pytest.raises(DataError, match="f is nan at"):
        build_fourier(lambda x: np.where(x[:, 0] > 0.7, np.nan, 0.0), 2, 3, ("l1", 1.0))
    with pytest.raises(DataError, match="times their distance in the l2 norm"):
        build_fourier(lambda x: x.sum(1), 2, 3, ("l2", 1.4))
