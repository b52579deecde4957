"""CRM, meta-approximation and one-pass memory against enumeration of all small cases."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError
from oplens.theory import crm_interval, lookup_size, meta_approximation, one_pass_memory, sup_parameters


def functions_by_size(n, bits):
    """CRM of every Boolean function of n bits in a nested family: a table of P b-bit entries, later ones 0."""
    size = {}
    for P in range(-(-(2**n) // bits) + 1):
        for entries in itertools.product(range(2**bits), repeat=P):
            bit_list = [e >> i & 1 for e in entries for i in range(bits)]
            table = tuple((bit_list + [0] * 2**n)[: 2**n])
            size.setdefault(table, P)
    return size


@pytest.mark.parametrize(("n", "bits"), [(2, 1), (2, 2), (3, 1), (3, 2), (3, 4)])
def test_crm_of_every_function_of_a_nested_family_lies_in_the_interval(n, bits):
    size = functions_by_size(n, bits)
    tasks = 2 ** (2**n)
    assert len(size) == tasks
    worst = max(size.values())
    for q in (0.01, 0.1, 0.5, 0.9):
        interval = crm_interval(2.0**n, bits, found=worst, fraction=q)
        assert interval.value <= worst == interval["parameters_upper"]
        below = sum(interval["parameters_typical"] > P for P in size.values())
        assert below <= q * tasks
    assert crm_interval(2.0**n, bits, found=worst).value == worst  # this family attains the bound


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4000), st.integers(1, 64), st.floats(1e-6, 0.999))
def test_typical_size_is_the_least_that_counting_allows(tasks, b, q):
    interval = crm_interval(float(tasks), b, found=tasks, fraction=q)
    assert interval.value == -(-tasks // b)
    P = interval["parameters_typical"]
    assert interval.value + 1 >= P
    assert b * (P - 1) <= tasks + math.log2(q) or P == 0
    assert P == 0 or b * P > (tasks + math.log2(q)) * (1 - 1e-11)


def test_definicao_3_is_satisfied_by_zero_for_every_task_that_can_be_solved():
    """As printed: the least N_min such that some T with N >= N_min parameters solves the task; sizes that solve it: P and all above."""
    size = functions_by_size(2, 1)
    for least in size.values():
        solving = range(least, 20)
        printed = min(N_min for N_min in range(20) if any(N_min <= N for N in solving))
        assert printed == crm_interval(4.0, 1, found=4).stated.value == 0
        assert all(any(N_min <= N for N in solving) for N_min in range(20))  # and by padding every N_min serves


def test_the_lookup_construction_closes_the_interval_from_above():
    for n in (3, 6, 12):
        upper = lookup_size(n, 2, 4).value
        interval = crm_interval(2.0**n, 16, found=upper)
        assert interval.value == sup_parameters(n, 16).value < interval["parameters_upper"]
    with pytest.raises(ArgumentError, match="not every task is served"):
        crm_interval(4096.0, 16, found=255)


@pytest.mark.parametrize(("n", "tasks", "values"), [(1, 1, 1), (1, 2, 1), (1, 3, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 3, 2), (2, 3, 3), (3, 1, 2), (3, 2, 2), (3, 2, 3)])  # fmt: skip
def test_families_that_share_h_are_counted(n, tasks, values):
    """All tables of tasks by inputs with at most k distinct columns; the bound never claims more bits than there are tables."""
    columns = list(itertools.product((0, 1), repeat=tasks))
    number = sum(len(set(table)) <= values for table in itertools.product(columns, repeat=2**n))
    bound = meta_approximation(n, 2, tasks, values)
    assert bound["bits"] <= math.log2(number) + 1e-12
    assert bound["bits"] >= 0.5 * math.log2(number)
    few = min(values, 2**n, len(columns))
    counted = sum(
        len(set(table[:few])) == few and set(table[few:]) <= set(table[:few])
        for table in itertools.product(columns, repeat=2**n)
    )
    assert bound["bits"] == pytest.approx(math.log2(counted), rel=1e-12)
    assert bound["bits"] == math.log2(number) or values > 1


@pytest.mark.parametrize("values", [1, 2, 3])
def test_units_with_h_shared_suffice(values):
    """One unit per input names h(x); each task has one unit per value: built and counted for every h and g of two bits."""
    n, tasks = 2, 2
    for h in itertools.product(range(values), repeat=2**n):
        for g in itertools.product(itertools.product((0, 1), repeat=values), repeat=tasks):
            named = np.eye(values)[list(h)]  # weights of V^n one-hot units into k values
            assert np.array_equal(named @ np.array(g).T, [[g[t][h[x]] for t in range(tasks)] for x in range(2**n)])
    bound = meta_approximation(n, 2, tasks, values)
    assert bound.value == 2**n + values * tasks
    assert bound["units_separate"] == 2**n * tasks


def partitions(items):
    if not items:
        yield []
        return
    first, *rest = items
    for part in partitions(rest):
        yield [[first], *part]
        for i, block in enumerate(part):
            yield [*part[:i], [first, *block], *part[i + 1 :]]


def least_states(table, n, t):
    """Fewest memory states after t symbols: the smallest partition of prefixes on which f(prefix + suffix) depends on the block only."""
    rest = 2 ** (n - t)
    rows = [tuple(table[p * rest : (p + 1) * rest]) for p in range(2**t)]
    return min(
        len(part) for part in partitions(list(range(2**t))) if all(len({rows[p] for p in block}) == 1 for block in part)
    )


def test_memory_of_every_function_of_three_bits_is_the_least_over_all_partitions_of_prefixes():
    everywhere = list(partitions(list(range(4))))
    assert len(everywhere) == 15
    for code in range(256):
        table = [code >> i & 1 for i in range(8)]
        least = [least_states(table, 3, t) for t in range(3)] + [len(set(table))]
        bound = one_pass_memory(table, 2)
        assert bound["states"] == max(least)
        assert bound.value == math.ceil(math.log2(max(least)))
        assert least[bound["step"]] == max(least)


def run(table, V, n):
    """The streaming machine whose memory is the residual function: it computes f and never holds more than the states counted."""
    states = [{tuple(table)}]
    for _ in range(n):
        size = len(next(iter(states[-1]))) // V
        states.append({f[i * size : (i + 1) * size] for f in states[-1] for i in range(V)})
    for index, word in enumerate(itertools.product(range(V), repeat=n)):
        memory = tuple(table)
        for symbol in word:
            size = len(memory) // V
            memory = memory[symbol * size : (symbol + 1) * size]
        assert memory == (table[index],)
    return max(map(len, states))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_the_residual_machine_computes_the_function_in_the_memory_claimed(V, n, seed):
    table = np.random.default_rng(seed).integers(0, 3, V**n).tolist()
    assert one_pass_memory(table, V)["states"] == run(table, V, n)


def test_memory_of_named_functions():
    def of(function, n=8):
        return one_pass_memory([int(function(word)) for word in itertools.product((0, 1), repeat=n)], 2)

    assert of(lambda w: sum(w) % 2).value == 1
    assert of(lambda w: 0).value == 0
    assert of(lambda w: 2 * sum(w) >= 8)["states"] == 5  # counts 0..4 once half are read
    assert of(lambda w: w == w[::-1]).value == 4
    assert of(lambda w: sum(b << i for i, b in enumerate(w)))["states"] == 256
