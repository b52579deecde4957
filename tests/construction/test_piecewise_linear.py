"""Interpolants as transformers, against interpolation by sorting coordinates, one point at a time."""

import itertools
import math

import numpy as np
import pytest
import torch

from oplens.construction.gathering import gathering
from oplens.construction.piecewise_linear import build_piecewise_linear
from oplens.construction.real_functions import evaluate, sup_error
from oplens.errors import ArgumentError, DataError
from oplens.models.transformer import Transformer
from oplens.theory import piecewise_linear_rate


def interpolate(f, M, x):
    """Kuhn's simplex of each point: from the cell's lower corner along the axes in order of falling position in the cell."""
    found = []
    for point in x:
        corner = np.minimum(np.floor(M * point), M - 1)
        inside = M * point - corner
        vertex, value = corner.copy(), f(corner[None] / M)[0]
        for axis in np.argsort(-inside):
            before = f(vertex[None] / M)[0]
            vertex[axis] += 1
            value += inside[axis] * (f(vertex[None] / M)[0] - before)
        found.append(value)
    return np.array(found)


def rough(n, M, seed=0):
    """Random values at the nodes, of either sign and far from 0; between them whatever, it is never asked for."""
    table = np.random.default_rng(seed).uniform(-3, 8, (M + 1,) * n)
    return lambda x: table[tuple(np.rint(M * x).astype(int).T)]


def sawtooth(M):
    """The function of its class that interpolation on M cells serves worst: 0 at every node, as steep as allowed between them."""
    return lambda x: abs(M * x - np.round(M * x)).max(1) / M


def points(n, M, count=60, seed=0):
    """Random ones, on the faces of the cube, on nodes and on the boundaries of simplices."""
    rng = np.random.default_rng(seed)
    x = rng.random((count, n))
    x[:15] = np.where(rng.random((15, n)) < 0.6, rng.integers(0, 2, (15, n)), x[:15])
    x[15:25] = rng.integers(0, M + 1, (10, n)) / M
    x[25:30] = x[25:30, :1]
    return x


def freed(monkeypatch, f, n, M, **options):
    """Built without the check of Lipschitz constants, for functions that are known at nodes alone."""
    from oplens.construction import real_functions

    monkeypatch.setattr(real_functions.RealFunction, "check_lipschitz", lambda *_, **__: None)
    return build_piecewise_linear(f, n, M, ("max", 1e3), **options)


@pytest.mark.parametrize(("n", "M"), [(1, 1), (1, 7), (2, 1), (2, 5), (3, 1), (3, 4), (4, 2), (5, 1)])
def test_the_model_is_the_interpolant(monkeypatch, n, M):
    f = rough(n, M)
    model, certificate = freed(monkeypatch, f, n, M)
    x = points(n, M)
    expected = interpolate(f, M, x)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(evaluate(model, x), expected, atol=1e-10)
    parts = dict(certificate.error_parts)
    assert parts["gathering"] + parts["rounding"] < 1e-8


@pytest.mark.parametrize(("n", "M"), [(1, 20), (2, 6), (3, 3), (4, 2)])
def test_float32_stays_within_its_parts_of_the_interpolant(monkeypatch, n, M):
    f = rough(n, M, seed=1)
    model, certificate = freed(monkeypatch, f, n, M, dtype=torch.float32)
    x = points(n, M, 300, seed=1)
    worst = np.abs(evaluate(model, x) - interpolate(f, M, x)).max()
    parts = dict(certificate.error_parts)
    assert certificate.dtype == "float32"
    assert 1e-8 < worst <= parts["rounding"] + parts["gathering"] < 0.2


def test_rounding_of_hats_and_heights_alone():
    """One variable that is a float32 is gathered without rounding, so what is left is the rounding part's own."""
    f = rough(1, 16, seed=2)
    slope = 16 * np.abs(np.diff(f(np.arange(17)[:, None] / 16))).max()
    x = np.random.default_rng(0).random((3000, 1), dtype=np.float32).astype(np.float64)
    model, certificate = build_piecewise_linear(
        lambda x: interpolate(f, 16, x), 1, 16, ("l1", slope), dtype=torch.float32
    )
    worst = np.abs(evaluate(model, x) - interpolate(f, 16, x)).max()
    assert 1e-7 < worst <= dict(certificate.error_parts)["rounding"] < 500 * worst


def corner(x):
    """0 but for a ramp towards (1, 1), where it is steepest and largest."""
    return np.clip(2 * x.sum(1) - 2, 0, None)


@pytest.mark.parametrize(
    ("f", "M", "L", "share"), [(lambda x: abs(x[:, 0] - x[:, 1]), 4, 1.0, 0.2), (corner, 8, 2.0, 0.45)]
)
def test_errors_of_gathered_reals_cost_what_their_part_says(f, M, L, share):
    """Every gathered real made larger by 1 part in 1000, past 1 at the upper ends."""
    n = 2
    model, certificate = build_piecewise_linear(f, n, M, ("l1", L))
    x = points(n, M, 200, seed=5)
    before = evaluate(model, x)
    model.block(1).attention.output.values.data *= 1.001
    moved = np.abs(evaluate(model, x) - before).max()
    per_real = dict(certificate.error_parts)["gathering"] / gathering("test", n, 4, (0.0, 1.0), torch.float64).error(
        2.0**-53
    )
    assert share * 0.001 * per_real < moved <= 0.001 * per_real


SHOWN = {
    "abs(x1 - x2)": (lambda x: abs(x[:, 0] - x[:, 1]), 2, 6, ("l1", 1.0)),
    "max(x1, x2, x3)": (lambda x: x.max(1), 3, 4, ("max", 1.0)),
    "product of sines": (lambda x: np.sin(7 * x[:, 0]) * np.sin(5 * x[:, 1]), 2, 9, ("l2", 7.0)),
    "sawtooth, 1": (sawtooth(5), 1, 5, ("max", 1.0)),
    "sawtooth, 2": (sawtooth(4), 2, 4, ("max", 1.0)),
    "sawtooth, 3": (sawtooth(3), 3, 3, ("max", 1.0)),
    "sum of sawtooths": (lambda x: abs(4 * x - np.round(4 * x)).sum(1) / 4, 3, 4, ("l1", 1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SHOWN)
def test_the_measured_error_is_under_the_certificate(name, dtype):
    f, n, M, lipschitz = SHOWN[name]
    model, certificate = build_piecewise_linear(f, n, M, lipschitz, dtype=dtype)
    found = sup_error(model, f, points=1500)
    assert found.value <= certificate.error_bound
    if "sawtooth" in name:
        assert found.value > 0.49 * lipschitz[1] / M
        assert certificate.error_bound < 1.6 * found.value


def test_the_constant_for_l1_is_attained():
    """f is 0 at every node and n L/(2M) in the middle of every cell."""
    f, n, M, lipschitz = SHOWN["sum of sawtooths"]
    model, certificate = build_piecewise_linear(f, n, M, lipschitz)
    middle = np.full((1, n), 0.5 / M)
    assert abs(evaluate(model, middle) - f(middle))[0] == pytest.approx(dict(certificate.error_parts)["interpolation"])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_part_of_interpolation_is_the_sharpest_known(n):
    """In every norm no constant of norm equivalence would do better."""
    found = {}
    for norm in ("l1", "l2", "max"):
        _, certificate = build_piecewise_linear(lambda x: 0 * x[:, 0], n, 2, (norm, 6.0))
        found[norm] = dict(certificate.error_parts)["interpolation"]
    assert found == {
        "l1": pytest.approx(3 * n / 2),
        "l2": pytest.approx(3 * math.sqrt(n) / 2),
        "max": pytest.approx(piecewise_linear_rate(n, 6.0, 2).value),
    }
    assert found["l1"] <= n * found["max"] * (1 + 1e-12)
    assert found["l2"] <= math.sqrt(n) * found["max"] * (1 + 1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_no_choice_of_values_at_the_vertices_beats_the_constant(norm):
    """The error at x is at most L sum_k c_k norm(x - v_k), which a search over the simplex must not lift above the constant."""
    rng = np.random.default_rng(5)
    order = {"l1": 1, "l2": 2, "max": math.inf}[norm]
    for n in (1, 2, 3, 4):
        vertices = np.tril(np.ones((n + 1, n)), -1)
        bound = {"l1": n / 2, "l2": math.sqrt(n) / 2, "max": min(n / (n + 1), 0.75)}[norm]
        weights = np.concatenate((rng.dirichlet(np.full(n + 1, 0.5), 20000), [[0.5, *[0.0] * (n - 1), 0.5]]))
        x = weights @ vertices
        distance = np.linalg.norm(x[:, None] - vertices, order, axis=2)
        worst = (weights * distance).sum(1).max()
        assert worst <= bound + 1e-12
        assert worst > 0.6 * bound


def test_bounds_other_than_the_unit_interval():
    def f(x):
        return np.cos(x[:, 0]) + abs(x[:, 1])

    low, high, M = -2.0, 6.0, 5
    model, certificate = build_piecewise_linear(f, 2, M, ("l1", 1.0), (low, high))
    x = points(2, M, seed=3)
    expected = interpolate(lambda u: f(low + (high - low) * u), M, x)
    np.testing.assert_allclose(evaluate(model, low + (high - low) * x, (low, high)), expected, atol=1e-10)
    assert dict(certificate.error_parts)["interpolation"] == pytest.approx(2 / 2 * 1.0 * 8 / 5)
    assert sup_error(model, f, (low, high), points=1000).value <= certificate.error_bound


@pytest.mark.parametrize(("n", "M"), [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_counts_are_those_of_the_model(n, M):
    model, certificate = build_piecewise_linear(lambda x: x[:, 0] ** 2 + 0.1, n, M, ("l1", 2.0))
    bound = piecewise_linear_rate(n, 1.0, M)
    assert certificate.hidden[-1] == bound["nodes"] == (M + 1) ** n
    assert certificate.depth == 2 + bound["extra_layers"]
    assert certificate.attention_layers == sum(layer.n_heads for layer in model.config.layers) == 1
    state = model.state_dict()
    weights = [value for key, value in state.items() if "indices" not in key]
    assert certificate.sparse == sum(int((value != 0).sum()) for value in weights)
    dense = model.to_dense()
    assert certificate.dense == sum(value.numel() for value in dense.state_dict().values())
    x = points(n, M, seed=4)
    np.testing.assert_allclose(evaluate(dense, x), evaluate(model, x), atol=1e-13)


def test_units_that_nodes_share_are_one():
    """Pairs of coordinates meet in max(0, u_1), of M + 1 kinds, and u_2 - u_3, of 2M + 1."""
    _, certificate = build_piecewise_linear(lambda x: x.sum(1), 3, 4, ("l1", 1.0))
    assert certificate.hidden == (3, 5 + 9, 2 * 5**3, 5**3)


def test_a_saved_model_is_the_same_model(tmp_path):
    model, _ = build_piecewise_linear(sawtooth(3), 2, 4, ("max", 1.0))
    model.save_pretrained(tmp_path)
    x = points(2, 4)
    assert (evaluate(Transformer.from_pretrained(tmp_path), x) == evaluate(model, x)).all()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_simplex_of_the_cube_is_there(order):
    """A function that is linear on each simplex comes back exactly: the k-th largest of the coordinates."""

    def f(x):
        return np.sort(x, 1) @ np.array([2.0, -1.0, 0.5])

    model, _ = build_piecewise_linear(f, 3, 2, ("l1", 2.0))
    x = np.array([[0.9, 0.6, 0.2]])[:, order] / 2
    np.testing.assert_allclose(evaluate(model, x), f(x), atol=1e-12)


def never(x):
    raise AssertionError("f was called before the size was refused")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "n must be a whole number of at least 1"),
        ({"M": 0}, "M must be a whole number of at least 1"),
        ({"M": 1.5}, "M must be a whole number"),
        ({"n": 6, "M": 20}, r"needs about .* GiB, memory_limit is 2 GiB; .*lower M, or raise memory_limit"),
        ({"n": 400, "M": 20}, "exceeds 2"),
        ({"memory_limit": 1000}, "memory_limit is"),
        ({"dtype": torch.float16}, "choose torch.float64 or torch.float32"),
        ({"lipschitz": ("linf", 1.0)}, "one of l1, l2, max"),
        ({"n_frequencies": 0}, "n_frequencies must be"),
    ],
)
def test_sizes_and_arguments_are_refused_before_f_is_called(change, words):
    with pytest.raises(ArgumentError, match=words):
        build_piecewise_linear(**{"f": never, "n": 2, "M": 3, "lipschitz": ("l1", 1.0), **change})


def test_nan_of_f_is_refused():
    with pytest.raises(DataError, match="f is nan at"):
        build_piecewise_linear(lambda x: np.where(x[:, 0] == 1, np.nan, 0), 2, 3, ("l1", 1.0))


def test_a_constant_that_sampling_contradicts_is_refused():
    with pytest.raises(DataError, match=r"lipschitz=\('max', 1.0\)\).*times their distance in the max norm"):
        build_piecewise_linear(lambda x: abs(x[:, 0] - x[:, 1]), 2, 3, ("max", 1.0))


def test_float32_without_a_certificate_is_refused():
    with pytest.raises(ArgumentError, match="cells leaves no certificate; build in float64 or lower M"):
        build_piecewise_linear(lambda x: x[:, 0], 1, 400000, ("l1", 1.0), dtype=torch.float32)
