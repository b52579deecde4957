"""Linear pieces counted exactly, the lookup transformer built and counted, optimal splits minimised numerically."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

from oplens.errors import ArgumentError
from oplens.theory import (
    depth_width,
    depth_width_exponential,
    linear_pieces,
    lookup_size,
    sawtooth_width,
    score_gap,
)


def pieces(layers, readout, low=Fraction(-1000), high=Fraction(1000)):
    """Exact breaks of a ReLU network of one input: affine maps on intervals, cut where a unit's argument changes sign."""
    current = [(low, high, [(Fraction(1), Fraction(0))])]  # interval and the layer's units there as slope, offset
    for weights, biases in layers:
        following = []
        for a, b, units in current:
            before = [
                (
                    sum(w * s for w, (s, _) in zip(row, units, strict=True)),
                    sum(w * c for w, (_, c) in zip(row, units, strict=True)) + bias,
                )
                for row, bias in zip(weights, biases, strict=True)
            ]
            zeros = sorted({-c / s for s, c in before if s != 0 and a < -c / s < b})
            for left, right in itertools.pairwise([a, *zeros, b]):
                middle = (left + right) / 2
                following.append(
                    (left, right, [(s, c) if s * middle + c > 0 else (Fraction(0), Fraction(0)) for s, c in before])
                )
        current = following
    slopes = [(sum(w * s for w, (s, _) in zip(readout, u, strict=True)), a) for a, _, u in current]
    return sum(1 for i, (s, _) in enumerate(slopes) if i == 0 or s != slopes[i - 1][0])


def random_network(rng, widths):
    layers, before = [], 1
    for width in widths:
        draw = rng.integers(-9, 10, (width, before + 1)).tolist()
        layers.append(([[Fraction(w, 3) for w in row[:-1]] for row in draw], [Fraction(row[-1]) for row in draw]))
        before = width
    return layers, [Fraction(int(w)) for w in rng.integers(1, 10, before)]


@pytest.mark.parametrize("widths", [(1,), (3,), (5,), (2, 2), (3, 2), (2, 3, 2), (2, 2, 2, 2)])
def test_no_network_has_more_pieces_than_claimed(widths):
    rng = np.random.default_rng(len(widths))
    most = max(pieces(*random_network(rng, widths)) for _ in range(60))
    bound = linear_pieces(list(widths)).value
    assert most <= bound == math.prod(w + 1 for w in widths)
    assert len(widths) > 1 or most == bound  # one layer attains it
    assert most > 1


def test_every_network_of_small_whole_weights_is_within_the_bound():
    """Widths (2, 1), all 3^7 networks with weights in {-1, 0, 1}."""
    most = 0
    for t in itertools.product((-1, 0, 1), repeat=7):
        w = [Fraction(x) for x in t]
        layers = [([[w[0]], [w[1]]], [w[2], w[3]]), ([[w[4], w[5]]], [w[6]])]
        most = max(most, pieces(layers, [Fraction(1)]))
    assert 3 <= most <= linear_pieces([2, 1]).value == 6


@pytest.mark.parametrize("folds", [1, 2, 3, 5])
def test_the_sawtooth_of_two_units_a_layer_has_exactly_its_pieces(folds):
    first = ([[Fraction(1)], [Fraction(1)]], [Fraction(0), Fraction(-1, 2)])
    later = ([[Fraction(2), Fraction(-4)]] * 2, [Fraction(0), Fraction(-1, 2)])
    layers = [first, *([later] * (folds - 1))]
    number = pieces(layers, [Fraction(2), Fraction(-4)], Fraction(0), Fraction(1))
    bound = sawtooth_width(folds, folds)
    assert number == bound["pieces"] == 2**folds <= linear_pieces([2] * folds).value
    assert bound.value <= bound["width_at_depth_folds"] == 2


def best_error(knots, x, y):
    """Least sup error at x of a continuous piecewise-linear function with these knots, by linear programming."""
    basis = np.array([np.interp(x, knots, unit) for unit in np.eye(len(knots))]).T
    one = np.ones((len(x), 1))
    A, b = np.block([[basis, -one], [-basis, -one]]), np.concatenate([y, -y])
    cost = np.r_[np.zeros(len(knots)), 1.0]
    return linprog(cost, A_ub=A, b_ub=b, bounds=[(None, None)] * len(knots) + [(0, None)]).fun


def test_fewer_pieces_than_the_sawtooth_has_cost_an_error_of_one_half():
    x = np.linspace(0, 1, 5)
    y = np.array([0.0, 1.0, 0.0, 1.0, 0.0])  # two folds, 4 pieces
    inner = np.linspace(0.05, 0.95, 10)
    for two in itertools.combinations(inner, 2):
        assert best_error(np.array([0, *two, 1]), x, y) >= 0.5 - 1e-9
    assert best_error(x, x, y) < 1e-9
    assert sawtooth_width(2, 1).value == 3  # (3 + 1) pieces; two units give three pieces and an error of 1/2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 400))
def test_sawtooth_width_is_the_least_that_its_inequality_allows(folds, depth):
    w = sawtooth_width(folds, depth).value
    assert (w + 1) ** depth >= 2**folds
    assert w == 1 or w**depth < 2**folds


def lookup_transformer(n, V, K, f, temperature):
    """Construction A in full precision: outputs of f for all words, and how many non-zero weights it took."""
    frequencies = 10000.0 ** (-np.arange(K) / K)
    positions = np.arange(n)
    depth = math.ceil(math.log2(n))
    width = [math.ceil(n / 2 ** (depth - layer)) for layer in range(depth + 1)]
    nonzeros = V
    words = np.array(list(itertools.product(range(V), repeat=n)))
    own = np.eye(V)[words]
    for layer in range(depth):
        w, shift = width[layer], width[layer + 1] - width[layer]
        angle = (positions[:, None] - shift - positions[None])[..., None] * frequencies
        weight = np.exp(temperature * np.cos(angle).sum(-1))
        weight /= weight.sum(-1, keepdims=True)
        nonzeros += 4 * K + 2 * K + 2 * V**w  # rotated queries, keys, values in and out
        fetched = np.einsum("ij,bjc->bic", weight, own)
        strings = list(itertools.product(range(V), repeat=width[layer + 1]))
        code = {string: i for i, string in enumerate(itertools.product(range(V), repeat=w))}
        last, first = np.zeros((len(strings), V**w)), np.zeros((len(strings), V**w))
        for i, string in enumerate(strings):
            last[i, code[string[-w:]]] = first[i, code[string[:w]]] = 4
        sums = own @ last.T + fetched @ first.T
        gate = np.maximum(sums - 6, 0) - np.maximum(sums - 7, 0)
        nonzeros += 2 * (
            np.count_nonzero(last) + np.count_nonzero(first) + len(strings)
        )  # two ReLUs: weights and biases
        out = np.array([f(s) for s in strings], dtype=float) if layer == depth - 1 else np.eye(len(strings))
        nonzeros += 2 * np.count_nonzero(out)
        own = gate @ out
    return words, own[:, -1], nonzeros


@pytest.mark.parametrize(
    ("n", "V", "K", "m"), [(2, 2, 4, 1), (3, 2, 4, 1), (4, 2, 3, 2), (5, 2, 4, 1), (7, 2, 8, 1), (4, 3, 4, 1)]
)
def test_lema_1_holds_with_a_skip_connection_and_has_the_size_claimed(n, V, K, m):
    bound = lookup_size(n, V, K, m)

    def f(word):
        value = 1 + sum((i + 1) * s for i, s in enumerate(word)) % 5
        return [value * (j + 1) for j in range(m)]

    words, outputs, nonzeros = lookup_transformer(n, V, K, f, bound["temperature"])
    np.testing.assert_allclose(outputs, [f(tuple(w)) for w in words], rtol=0, atol=1e-12)
    assert nonzeros == bound.value
    _, cold, _ = lookup_transformer(n, V, K, f, bound["temperature"] / 8)
    assert n == 2 or np.abs(cold - outputs).max() > 0.1  # the temperature is not slack by a factor of eight
    assert bound.stated.values == (("depth", bound["depth"]), ("width", V**n))


def test_lookup_size_of_the_checked_example():
    bound = lookup_size(4, 4, 4, 1)
    assert [bound[name] for name in ("nonzeros", "depth", "residual_width", "ffn_width")] == [2268, 2, 49, 256]


@pytest.mark.parametrize(("K", "n", "gap"), [(4, 2048, 0.208), (16, 8192, 0.686), (64, 8192, 1.906)])
def test_score_gap_against_a_plain_minimum(K, n, gap):
    m = np.arange(1, n)[:, None]
    plain = (1 - np.cos(m * 10000.0 ** (-np.arange(K) / K))).sum(1).min()
    assert score_gap(K, n) == pytest.approx(plain, rel=1e-10)
    assert round(plain, 3) == gap


positive = st.floats(0.2, 5.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e3, 1e12), positive, positive, positive, positive)
def test_power_law_split_is_the_minimum(B, alpha, p, gamma, q):
    best = depth_width(B, alpha, p, gamma, q)
    assert best["depth"] * best["width"] ** 2 == pytest.approx(B, rel=1e-12)

    def error(log_depth):
        L = math.exp(log_depth)
        return alpha * L**-p + gamma * math.sqrt(B / L) ** -q

    at = math.log(best["depth"])
    assert best.value == pytest.approx(error(at), rel=1e-12)
    assert all(error(at + step) > best.value * (1 - 1e-12) for step in (-1, -0.1, -1e-3, 1e-3, 0.1, 1))
    ten = depth_width(10 * B, alpha, p, gamma, q)
    assert math.log10(ten["depth"] / best["depth"]) == pytest.approx(best["depth_exponent"])
    assert math.log10(ten["width"] / best["width"]) == pytest.approx(best["width_exponent"])


def test_observacao_2_spends_more_than_its_budget():
    for B in (1e3, 1e6, 1e12):
        stated = dict(depth_width(B, 1.0, 1.0, 1.0, 1.0).stated.values)
        assert (
            stated["depth"] * stated["width"] ** 2 / B
            == pytest.approx(stated["L d^2 / B"])
            == pytest.approx(B ** (2 / 3))
        )
    equal = depth_width(1e6, 1.0, 1.5, 3.0, 1.5)
    assert equal["depth_exponent"] == equal["width_exponent"] == pytest.approx(1 / 3)
    assert depth_width(1e6, 1.0, 1.0, 1.0, 2.0)["depth_exponent"] == 0.5


@settings(max_examples=60, deadline=None)
@given(st.floats(1e6, 1e15), positive, st.floats(0.02, 1.0), positive, st.floats(0.2, 4.0))
def test_exponential_split_is_the_minimum(B, a, b, gamma, beta):
    def error(L):
        return a * math.exp(-b * L) + gamma * math.sqrt(B / L) ** -beta

    grid = np.geomspace(1, 1e4, 4000)
    values = np.array([error(L) for L in grid])
    i = int(values.argmin())
    try:
        best = depth_width_exponential(B, a, b, gamma, beta)
    except ArgumentError:
        assert i == 0 or values[i] > values[0] * (1 - 1e-6)
        return
    assume(0 < i < len(grid) - 1)
    found = minimize_scalar(error, bounds=(grid[i - 1], grid[i + 1]), method="bounded", options={"xatol": 1e-10})
    assert best.value <= found.fun * (1 + 1e-12)
    assert best["depth"] == pytest.approx(found.x, rel=1e-3)
    assert best.value == pytest.approx(error(best["depth"]), rel=1e-12)


def test_with_an_exponential_law_depth_grows_as_the_logarithm_of_the_budget():
    b, beta = 0.15, 1.0
    depths = [depth_width_exponential(10.0**k, 0.82, b, 1.0, beta)["depth"] for k in (20, 40, 60)]
    slope = (depths[2] - depths[1]) / (20 * math.log(10))
    assert slope == pytest.approx(beta / (2 * b), rel=2e-2)
