"""Packing bounds: the functions themselves are built, their distances measured, and families of models counted against them."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.theory import barron, error_floor, packing, packing_mean


def mcshane(nodes, values, lipschitz, x):
    """The smallest L-Lipschitz function (max norm) above the values at the nodes, clipped to their range."""
    distance = np.abs(x[:, None] - nodes[None]).max(-1)
    return np.clip((values - lipschitz * distance).max(1), values.min(), values.max())


@pytest.mark.parametrize(
    ("n", "lipschitz", "error"), [(1, 1.0, 0.3), (1, 2.0, 0.26), (1, 1.0, 0.1), (2, 1.0, 0.3), (2, 3.0, 0.8)]
)
def test_the_packing_exists(n, lipschitz, error):
    """2^(k^n) functions of the class, pairwise more than 2 eps apart: no model is within eps of two of them."""
    bound = packing(n, lipschitz, error, bits=1)
    k = bound["points_per_axis"]
    assert bound.value == bound["bits"] == k**n
    nodes = np.array(list(itertools.product(np.linspace(0, 1, k), repeat=n)))
    height = lipschitz / (2 * (k - 1))
    assert height > error
    fine = np.array(list(itertools.product(np.linspace(0, 1, 4 * (k - 1) + 1), repeat=n)))
    functions = np.array(
        [mcshane(nodes, height * np.array(s), lipschitz, fine) for s in itertools.product((-1, 1), repeat=len(nodes))]
    )
    assert len(functions) == 2 ** bound["bits"]
    assert np.abs(functions).max() <= lipschitz / 2 + 1e-12
    gaps = np.abs(fine[:, None] - fine[None]).max(-1)
    for f in functions:
        assert (np.abs(f[:, None] - f[None]) <= lipschitz * gaps + 1e-12).all()
    apart = np.abs(functions[:, None] - functions[None]).max(-1)[np.triu_indices(len(functions), 1)]
    assert apart.min() > 2 * error


@pytest.mark.parametrize(("error", "most"), [(0.3, 5), (0.26, 5), (0.2, 25)])
def test_no_smaller_family_serves_a_discretised_lipschitz_class(error, most):
    """All functions on a grid that holds the packing, all midpoints as models: a family found by search is never below the bound."""
    x, levels = np.linspace(0, 1, 5), np.linspace(-0.5, 0.5, 5)
    every = np.array(list(itertools.product(levels, repeat=len(x))))
    functions = every[np.abs(np.diff(every, axis=1)).max(1) <= 0.25]
    assert 2 ** packing(1, 1.0, error, bits=1).value <= covering(functions, error) <= most


def covering(functions, error):
    """An upper bound of the family needed: greedy cover with every midpoint model."""
    models = np.unique((functions[:, None] + functions[None]).reshape(-1, functions.shape[1]) / 2, axis=0)
    serves = np.abs(models[:, None] - functions[None]).max(-1) <= error
    left, used = np.ones(len(functions), dtype=bool), 0
    while left.any():
        best = (serves & left).sum(1).argmax()
        left &= ~serves[best]
        used += 1
    return used


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.floats(1e-3, 1e3), st.floats(1e-3, 0.999), st.integers(1, 64))
def test_packing_counts_without_rounding_and_shrinks_with_the_error(n, lipschitz, ratio, b):
    error = ratio * lipschitz / 2
    bound = packing(n, lipschitz, error, b)
    quotient = Fraction(lipschitz) / (2 * Fraction(error))
    k = bound["points_per_axis"]
    assert k - 1 < quotient <= k
    assert (bound.value - 1) * b < k**n <= bound.value * b
    assert bound["bits_tents"] == (k - 1) ** n < bound["bits"]
    assert packing(n, lipschitz, error / 2, b).value >= bound.value


def test_contribution_1_is_false_at_a_fixed_accuracy():
    """Any polynomial size is overtaken: parameters n^degree per layer, log2 n layers, 32 bits, at eps = L/6."""
    for degree in (3, 6, 12):
        n = next(
            n for n in range(2, 600) if packing(n, 1.0, 1 / 6, 32).value > 1000 * n**degree * math.ceil(math.log2(n))
        )
        later = 2 * n
        assert packing(later, 1.0, 1 / 6, 32).value > 1e6 * later**degree * math.ceil(math.log2(later))


@pytest.mark.parametrize(("n", "k"), [(1, 2), (1, 4), (2, 2), (2, 3)])
def test_one_model_has_few_signs_right_in_mean_square(n, k):
    """Random and adversarial real-valued models on the grid: how many of all sign functions each is near to."""
    K = k**n
    height = 1 / (2 * (k - 1))
    signs = height * np.array(list(itertools.product((-1.0, 1.0), repeat=K)))
    rng = np.random.default_rng(k)
    models = [
        signs[0],
        0 * signs[0],
        *(height * rng.uniform(-1, 1, (300, K))),
        *(height * rng.choice([-1.0, 0.0, 0.5, 1.0], (300, K))),
    ]
    for error in np.array([0.2, 0.4, 0.6, 0.7]) * height:
        most = max((np.sqrt(((signs - m) ** 2).mean(1)) <= error).sum() for m in models)
        bound = packing_mean(n, 1.0, error, bits=1)
        wrong = (error / height) ** 2
        formula = K * (1 + wrong * math.log2(wrong) + (1 - wrong) * math.log2(1 - wrong))
        assert formula <= K - math.log2(most) + 1e-12
        assert bound["bits"] >= formula - 1e-9  # the best grid is at least as good as this one
        best = bound["points_per_axis"]
        x = (2 * error * (best - 1)) ** 2
        assert bound["bits"] == pytest.approx(best**n * (1 + x * math.log2(x) + (1 - x) * math.log2(1 - x)), rel=1e-12)


def test_the_rate_stated_for_bounded_derivatives_is_false():
    """2.1 (Barron): c/sqrt(m) for every function of derivative at most 1. A network of m units in n dimensions has m(n+2) parameters."""
    for n, constant, bits in ((6, 1.0, 64), (10, 10.0, 64), (30, 100.0, 1024)):
        failed = False
        for m in np.logspace(2, 60, 117):
            error = constant / math.sqrt(m)
            if error < 0.35:
                failed = failed or packing_mean(n, 1.0, error, bits).value > m * (n + 2)
        assert failed
    assert barron(1.0, 1.0, 100).stated.value == 0.1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 10**11), st.integers(1, 200), st.integers(1, 64))
def test_error_floor_inverts_the_packing_bound(n, per_layer, depth, b):
    capacity = b * depth * per_layer
    floor = error_floor(n, 1.0, per_layer, depth, b).value
    k = round(1 / (2 * floor))
    assert k**n <= capacity < (k + 1) ** n
    if k > 1:
        assert packing(n, 1.0, floor * (1 + 1e-9), 1).value <= capacity
    below = floor * (1 - 1e-9)
    assert packing(n, 1.0, below, 1).value > capacity


@pytest.mark.parametrize("k", [2**50 + 1, 2**50 + 3, 3**31, 10**15 + 7])
def test_the_root_in_the_floor_is_exact_where_a_float_s_is_not(k):
    assert error_floor(2, 1.0, k**2, 1, 1).value == 1 / (2 * k)
    assert error_floor(2, 1.0, k**2 - 1, 1, 1).value == 1 / (2 * (k - 1)) != 1 / (2 * k)


def test_the_exponential_law_of_observacao_1_passes_below_the_floor():
    n, per_layer, bits = 24, 10**6, 32
    floors = {depth: error_floor(n, 1.0, per_layer, depth, bits) for depth in (12, 24, 48, 96)}
    assert all(bound.stated.value < bound.value for bound in floors.values())
    assert floors[12].stated.value == pytest.approx(0.82 * math.exp(-1.8) + 0.018)
    # and its limit 0 at c = 0 as well: for every rate some depth is too good to be true
    assert any(
        0.82 * math.exp(-0.01 * depth) < error_floor(n, 1.0, per_layer, depth, bits).value for depth in (200, 400, 800)
    )
