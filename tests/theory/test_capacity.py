"""Real parameters: the network that holds any table in about 2^(n/2) of them, and the VC dimension of small families, counted."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from oplens.theory import real_parameters, sup_parameters, vc_dimension


class Network:
    """ReLU layers with named units in exact arithmetic; every non-zero weight and bias counts as a parameter."""

    def __init__(self):
        self.layers = []

    def layer(self, **units):
        """Each unit is (weights on the layer before, bias)."""
        self.layers.append(units)

    def count(self):
        units = [unit for layer in self.layers for unit in layer.values()]
        return sum((bias != 0) + sum(w != 0 for w in weights.values()) for weights, bias in units)

    def __call__(self, inputs):
        state = inputs
        for layer in self.layers:
            state = {
                name: max(Fraction(0), sum((w * state[source] for source, w in weights.items()), Fraction(bias)))
                for name, (weights, bias) in layer.items()
            }
        return state["out"]


def table_network(table, n, h):
    """f(x) for the table of 2^n bits: 2^h hinges select a weight, whose binary digit number `low` is read by doubling."""
    m = n - h
    digits = 2**m
    words = [sum(Fraction(table[j * digits + k], 2 ** (k + 1)) for k in range(digits)) for j in range(2**h)]
    net = Network()
    high = {f"x{i}": 2 ** (h - 1 - i) for i in range(h)}
    low = {f"x{h + i}": 2 ** (m - 1 - i) for i in range(m)}
    net.layer(high=(high, 0), low=(low, 0))
    net.layer(low=({"low": 1}, 0), **{f"u{j}": ({"high": 1}, -j) for j in range(2**h - 1)})
    slopes = [b - a for a, b in itertools.pairwise(words)]
    bends = [b - a for a, b in itertools.pairwise([Fraction(0), *slopes])]
    net.layer(low=({"low": 1}, 0), r=({f"u{j}": a for j, a in enumerate(bends)}, words[0]))
    for k in range(digits):
        before = {"out": 1, "found": 1} if k else {}
        scale = 2 ** (digits - k)
        net.layer(
            top=({"r": scale}, 1 - Fraction(scale, 2)),
            cut=({"r": scale}, -Fraction(scale, 2)),
            r=({"r": 1}, 0),
            e1=({"low": 1}, 1 - k),
            e2=({"low": 1}, -k),
            e3=({"low": 1}, -1 - k),
            low=({"low": 1}, 0),
            out=(before, 0),
        )
        net.layer(
            found=({"top": 1, "cut": -1, "e1": 1, "e2": -2, "e3": 1}, -1),
            r=({"r": 2, "top": -1, "cut": 1}, 0),
            low=({"low": 1}, 0),
            out=({"out": 1}, 0),
        )
    net.layer(out=({"out": 1, "found": 1}, 0))
    return net


def check_table(table, n, h):
    net = table_network(table, n, h)
    for index, bits in enumerate(itertools.product((0, 1), repeat=n)):
        assert net({f"x{i}": Fraction(b) for i, b in enumerate(bits)}) == table[index]
    return net.count()


def test_every_boolean_function_of_three_bits_fits_the_construction_exactly():
    for code in range(256):
        table = [code >> i & 1 for i in range(8)]
        assert check_table(table, 3, 3) <= real_parameters(3, 2)["parameters_upper"]


@pytest.mark.parametrize(("n", "h"), [(1, 0), (1, 1), (2, 1), (5, 4), (6, 4), (6, 5), (8, 6)])
def test_teorema_1_is_false_for_real_parameters_by_a_network_of_fewer(n, h):
    """Counted: non-zeros of the network that realises random tables, never more than the formula says."""
    rng = np.random.default_rng(n)
    tables = rng.integers(0, 2, (3, 2**n)).tolist()
    counts = [check_table(table, n, h) for table in tables]
    formula = n + 3 * 2**h + 25 * 2 ** (n - h) + 1
    assert max(counts) <= formula
    assert max(counts) >= 0.6 * formula  # the formula is not slack by a factor that would hide an error
    bound = real_parameters(n, 2)
    assert bound["parameters_upper"] == min(n + 3 * 2**k + 25 * 2 ** (n - k) + 1 for k in range(n + 1)) <= formula


def test_teorema_1_is_exceeded_from_some_length_on_whatever_its_constant():
    for constant, n in ((1.0, 22), (1e-3, 50), (1e-9, 100), (1e-30, 300)):
        bound = real_parameters(n, 2)
        assert bound["parameters_upper"] < constant * bound.stated.value
    # and yet bits are not saved: length of the longest weight times their number exceeds 2^n
    for n in (10, 40, 200):
        bound = real_parameters(n, 2)
        assert bound["parameters_upper"] * bound["bits_upper"] >= sup_parameters(n, 1).value


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 50))
def test_lower_bound_is_the_smallest_count_that_satisfies_its_inequality(n, k):
    P = real_parameters(n, k).value
    assert 4 * P * (k * P + 2) >= 2**n
    assert P == 1 or 4 * (P - 1) * (k * (P - 1) + 2) < 2**n
    assert real_parameters(n, k)["parameters_upper"] >= P


def separable(points, labels):
    signs = 2 * labels - 1
    rows = -signs[:, None] * np.column_stack([points, np.ones(len(points))])
    return linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None)).status == 0


@pytest.mark.parametrize(("n", "number"), [(1, 4), (2, 14), (3, 104)])
def test_a_real_threshold_unit_shatters_n_plus_one_inputs_and_the_bound_allows_it(n, number):
    """P = n + 1 real parameters, t = 2n + 1 operations; the counts of threshold functions are the known ones."""
    cube = np.array(list(itertools.product((0.0, 1.0), repeat=n)))
    functions = [np.array(f) for f in itertools.product((0, 1), repeat=2**n)]
    found = np.array([f for f in functions if separable(cube, f)])
    assert len(found) == number
    shattered = max(
        size
        for size in range(1, 2**n + 1)
        for chosen in itertools.combinations(range(2**n), size)
        if len({tuple(row) for row in found[:, chosen]}) == 2**size
    )
    assert shattered == n + 1 <= vc_dimension(n + 1, 2 * n + 1).value
    if number < 2 ** (2**n):
        assert shattered < 2**n
    else:
        assert real_parameters(n, math.ceil((2 * n + 1) / (n + 1))).value <= n + 1


@pytest.mark.parametrize("digits", [1, 3, 6])
def test_one_real_parameter_shatters_as_many_inputs_as_it_makes_steps(digits):
    """x -> digit number x of one parameter: P = 1, VC dimension `digits`, within the bound of its operations."""
    shattered = {
        tuple(math.floor(Fraction(code, 2**digits) * 2**k * 2) % 2 for k in range(digits)) for code in range(2**digits)
    }
    assert len(shattered) == 2**digits
    assert digits <= vc_dimension(1, 4 * digits).value == 4 * (4 * digits + 2)
