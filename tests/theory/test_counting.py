"""Counting bounds against enumeration: every small network of a family, every Boolean function, every model on a grid."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.theory import (
    mean_parameters,
    random_labels,
    representable_fraction,
    sparse_parameters,
    sup_parameters,
)


def inputs(n):
    return np.array(list(itertools.product((0, 1), repeat=n)), dtype=float)


def grid(values, P):
    return np.array(list(itertools.product(values, repeat=P)))


def tables(outputs):
    """Truth tables that rows of outputs (models, 2^n) realise with sup error below 1/2."""
    near = np.abs(outputs - np.round(outputs)) < 0.5
    valid = near.all(1) & np.isin(np.round(outputs), (0, 1)).all(1)
    return {tuple(row) for row in np.round(outputs[valid]).astype(int)}


def relu_network(theta, x, width):
    """w . x + c, ReLU, then v . h + d: P = width (n + 2) + 1."""
    n = x.shape[1]
    w = theta[:, : width * n].reshape(-1, width, n)
    c, v, d = np.split(theta[:, width * n :], [width, 2 * width], axis=1)
    hidden = np.maximum(np.einsum("mwn,xn->mwx", w, x) + c[:, :, None], 0)
    return np.einsum("mw,mwx->mx", v, hidden) + d


def attention_network(theta, x):
    """Softmax over the bits with score a x_i, value v x_i, skip u (the last bit), bias: P = 4."""
    a, v, u, d = theta.T[:, :, None, None]
    weight = np.exp(a * x)
    mean = (weight * x).sum(-1) / weight.sum(-1)
    return v[..., 0] * mean + u[..., 0] * x[:, -1] + d[..., 0]


def lookup_network(theta, x):
    """One ReLU per input, its output weight the free parameter; parameters are repeated when there are fewer than inputs."""
    signs = 2 * x - 1
    gates = np.maximum(x @ signs.T - x.sum(1)[None] + 1, 0)
    return theta[:, np.arange(len(x)) % theta.shape[1]] @ gates.T


FAMILIES = [
    (n, b, P, network)
    for n in (1, 2, 3)
    for b, P, network in (
        (1, n + 3, lambda t, x: relu_network(t, x, 1)),
        (2, n + 3, lambda t, x: relu_network(t, x, 1)),
        (1, 2 * n + 5, lambda t, x: relu_network(t, x, 2)),
        (2, 4, attention_network),
        (3, 4, attention_network),
        (1, 2**n, lookup_network),
        (1, 2**n - 1, lookup_network),
        (1, max(1, 2**n - 3), lookup_network),
    )
]
LEVELS = {1: (-1, 1), 2: (-2, -1, 0, 1), 3: (-4, -2, -1, -0.5, 0, 0.5, 1, 2)}


@pytest.mark.parametrize("index", range(len(FAMILIES)))
def test_no_quantised_micro_network_beats_the_count(index):
    n, b, P, network = FAMILIES[index]
    levels = (0, 1) if network is lookup_network else LEVELS[b]
    found = tables(network(grid(levels, P), inputs(n)))
    assert found, "a family that realises nothing tests nothing"
    log2_fraction = math.log2(len(found)) - 2**n
    assert log2_fraction <= representable_fraction(n, b, P).value
    if len(found) == 2 ** (2**n):
        assert sup_parameters(n, b).value <= P
    else:
        assert len(found) < 2 ** (2**n)
    if network is lookup_network:  # the bound is attained: it could not be any larger
        assert log2_fraction == representable_fraction(n, b, P).value == min(0, P - 2**n)
        assert (len(found) == 2 ** (2**n)) == (sup_parameters(n, 1).value <= P)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 64), st.integers(1, 10**6))
def test_sup_bound_and_fraction_agree_on_where_everything_fits(n, b, P):
    bound = sup_parameters(n, b)
    assert (bound.value - 1) * b < 2**n <= bound.value * b
    fraction = representable_fraction(n, b, P).value
    assert (fraction < 0) == (bound.value > P)
    assert min(0, b * P - 2**n) <= fraction <= min(0, b * P - 2**n) * (1 - 1e-14)
    assert n > 50 or fraction == min(0, b * P - 2**n)


def models_on_a_grid(points, steps):
    return np.array(list(itertools.product(np.linspace(0, 1, steps + 1), repeat=points)))


@pytest.mark.parametrize(("n", "steps", "error"), [(1, 8, 0.1), (1, 8, 0.25), (2, 8, 0.0625), (2, 8, 0.125), (2, 8, 0.2), (2, 8, 0.3), (3, 2, 0.0625), (3, 2, 0.125), (3, 2, 0.25), (3, 2, 0.375)])  # fmt: skip
def test_one_model_serves_no_more_functions_than_claimed(n, steps, error):
    functions, models = grid((0, 1), 2**n), models_on_a_grid(2**n, steps)
    distance = np.abs(models[:, None, :] - functions[None]).mean(-1)
    most = (distance <= error + 1e-12).sum(1).max()
    bound = mean_parameters(n, 1, error)
    assert math.log2(most) <= 2**n - bound["bits"] + 1e-12
    assert 2**n - bound["bits"] <= 2**n - bound["bits_rounding"] + 1e-12


def smallest_cover(serves):
    """Fewest rows of a Boolean matrix whose union is everything, by exhaustion."""
    rows = [int("".join(map(str, row.astype(int))), 2) for row in serves]
    rows = [r for r in set(rows) if not any(r != o and r | o == o for o in rows)]
    full = 2 ** serves.shape[1] - 1
    reached, size = {0}, 0
    while full not in reached:
        reached, size = {a | r for a in reached for r in rows}, size + 1
    return size


@pytest.mark.parametrize("error", [0.05, 0.125, 0.2, 0.25, 0.3, 0.4])
def test_the_smallest_family_that_serves_every_function_of_two_bits(error):
    functions, models = grid((0, 1), 4), models_on_a_grid(4, 4)
    serves = np.abs(models[:, None, :] - functions[None]).mean(-1) <= error + 1e-12
    fewest = smallest_cover(np.unique(serves[serves.any(1)], axis=0))
    assert mean_parameters(2, 1, error).value <= math.ceil(math.log2(fewest))
    # all 2^bP functions are needed where only the function itself is within the error
    assert error > 0.05 or fewest == 16 == 2 ** mean_parameters(2, 1, error).value


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.floats(0.0, 0.499))
def test_mean_bound_equals_its_formula_and_is_never_below_the_one_by_rounding(n, error):
    with mpmath.workdps(40):
        e = mpmath.mpf(error)
        h = 0 if e == 0 else -e * mpmath.log(e, 2) - (1 - e) * mpmath.log(1 - e, 2)
        sharp = (1 - h) * 2**n
        double = 2 * e
        rounding = (
            0
            if double >= 0.5
            else 2**n * (1 + (double * mpmath.log(double, 2) if e else 0) + (1 - double) * mpmath.log(1 - double, 2))
        )
        bound = mean_parameters(n, 1, error)
        assert bound["bits"] >= sharp * (1 - mpmath.mpf(1e-13))
        assert n <= 12 or abs(bound["bits"] - sharp) <= 1e-13 * 2**n
        assert abs(bound["bits_rounding"] - rounding) <= 1e-13 * 2**n
        assert bound["bits"] >= bound["bits_rounding"] * (1 - 1e-12)
        assert bound.value <= sup_parameters(n, 1).value


@pytest.mark.parametrize(("P", "b"), [(5, 1), (6, 2), (4, 3), (8, 1)])
def test_sparse_models_are_as_many_as_the_formula_counts(P, b):
    """Enumerated: choose(P, j) (2^b - 1)^j models with exactly j non-zeros, the count that the next test leans on."""
    nonzeros = (grid(range(2**b), P) != 0).sum(1)
    for s in range(P + 1):
        assert (nonzeros <= s).sum() == sparse_models(P, b, s)
    n = int(math.log2(b * P))
    assert (nonzeros <= sparse_parameters(n, b, P).value - 1).sum() < 2 ** (2**n)


def sparse_models(P, b, s):
    return sum(math.comb(P, j) * (2**b - 1) ** j for j in range(s + 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 16), st.integers(1, 40))
def test_fewer_nonzeros_than_claimed_make_too_few_models(n, b, factor):
    P = -(-(2**n) // b) * factor
    s = sparse_parameters(n, b, P).value
    assert sparse_models(P, b, s - 1) < 2 ** (2**n)
    assert factor < 4 or sparse_models(P, b, min(P, 3 * s + 3)) >= 2 ** (2**n)  # about three times as many would not


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(1, 32), st.integers(0, 20))
def test_sparse_bound_is_the_smallest_that_satisfies_its_inequality(n, b, extra):
    P = -(-(2**n) // b) + extra * 2**n // 7
    s = sparse_parameters(n, b, P).value

    def room(k):
        return k * (b + mpmath.log(mpmath.e * P / k, 2))

    with mpmath.workdps(30):
        assert room(s) >= 2**n * (1 - mpmath.mpf(2e-12))
        assert s == 1 or room(s - 1) < 2**n


@pytest.mark.parametrize("error", [0.0, 0.2, 0.4])
def test_random_labels_against_every_labelling(error):
    """The two-unit threshold network on five inputs: the labellings it fits, counted."""
    x = np.array([[-2.0], [-1.0], [0.5], [1.0], [3.0]])
    outputs = relu_network(grid((-1, 1), 7), x, 2)
    fitted = np.unique(outputs > 0.5, axis=0)
    labellings = grid((0, 1), 5)
    wrong = (labellings[:, None] != fitted[None]).mean(-1).min(1)
    fraction = (wrong <= error + 1e-12).mean()
    assert fraction > 0
    assert math.log2(fraction) <= random_labels(5, 1, 7, error).value
    # a table of three bits on five inputs: exactly 2^(3-5) of the labellings without error
    codes = {tuple(row[[0, 1, 2, 0, 1]]) for row in grid((0, 1), 3)}
    near = (labellings[:, None] != np.array(sorted(codes))[None]).sum(-1).min(1) <= math.floor(error * 5)
    assert math.log2(near.mean()) <= random_labels(5, 1, 3, error).value
    assert error > 0 or math.log2(near.mean()) == random_labels(5, 1, 3).value


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 5), st.floats(0, 0.49))
def test_random_labels_count_the_hamming_ball(N, b, P, error):
    ball = sum(math.comb(N, k) for k in range(math.floor(error * N * (1 + 1e-12)) + 1))
    expected = min(0.0, b * P + math.log2(ball) - N)
    assert expected - 1e-12 <= random_labels(N, b, P, error).value <= expected + 1e-12


def test_a_share_of_the_labels_is_that_many_labels_whatever_its_rounding():
    """0.29 of 100 labels is 29 labels; 0.29 * 100 is 28.999999999999996."""
    for N in range(1, 121):
        for wrong in range((N + 1) // 2):
            ball = sum(math.comb(N, k) for k in range(wrong + 1))
            assert random_labels(N, 1, 1, wrong / N).value >= min(0.0, 1 + math.log2(ball) - N) - 1e-12


def test_a_large_hamming_ball_is_bounded_by_its_entropy():
    N, error = 5000, 0.11
    ball = sum(math.comb(N, k) for k in range(math.floor(error * N) + 1))
    given_value = random_labels(N, 1, 1, error).value
    assert math.log2(ball) + 1 - N <= given_value <= math.log2(ball) + 1 - N + 10


def test_theorem_1_as_printed_is_offered_beside_the_count_and_is_weaker_for_short_parameters():
    for n in (4, 10, 30):
        printed = sup_parameters(n, 1).stated.value
        with mpmath.workdps(30):
            assert printed == pytest.approx(float(mpmath.mpf(2) ** n / (n * mpmath.log(n))), rel=1e-14)
        assert printed < sup_parameters(n, 1).value  # b = 1 < n log n: its own proof gives more
    assert sup_parameters(1, 1).stated.value is None  # log 1 = 0
