"""Construction B: exact on bits in four dtypes, at the temperature of real arithmetic, in a narrow residual stream."""

import math

import numpy as np
import pytest
import torch

from oplens.construction.bits import bits_of, build_bits
from oplens.construction.function import FunctionTable
from oplens.construction.lookup import build_lookup
from oplens.errors import ArgumentError
from table_models import DTYPES
from transformer_oracle import Oracle


def test_bits_are_binary_digits():
    for beta in (1, 3, 5):
        for number in range(2**beta):
            assert "".join(map(str, bits_of(np.array(number), beta))) == format(number, f"0{beta}b")


def test_a_forward_pass_in_numpy_gives_the_same_values_and_one_hidden_unit():
    table = FunctionTable(3, 3, np.random.default_rng(1).normal(size=(27, 1)))
    model, _ = build_bits(table, weights="sparse")
    oracle = Oracle(model)
    for row, x in enumerate(table.inputs()):
        output, _, layers = oracle.run(x)
        assert output.tolist() == table.values[row].tolist()
        assert layers[-1]["activations"][-1].tolist() == np.eye(27)[row].tolist()
        # The bits of the newest symbol first, exact whatever softmax left over.
        bits = [int(d) for symbol in x[::-1] for d in format(symbol, "02b")]
        assert layers[-2]["hidden"][-1, 8 : 8 + 6].tolist() == bits


@pytest.mark.parametrize(("vocabulary", "length", "m"), [(4, 4, 1), (5, 3, 2), (2, 7, 1)])
def test_sizes_are_counted_by_hand(vocabulary, length, m):
    beta, K, depth = math.ceil(math.log2(vocabulary)), 4, math.ceil(math.log2(length))
    values = np.random.default_rng(0).integers(1, 9, (vocabulary**length, m))
    certificate = build_bits(FunctionTable(vocabulary, length, values))[1]
    ones = [sum(bin(symbol).count("1") for symbol in x) for x in np.ndindex(*[vocabulary] * length)]
    expected = sum(bin(symbol).count("1") for symbol in range(vocabulary))  # embedding
    expected += 6 * K * depth + 2 * (length - 1) * beta  # scores; values and their mapping out
    expected += (
        8 * (length - 1) * beta - 2 * (length - 1) * beta
    )  # two clipping units per bit: weight, bias, weight out
    expected += len(ones) * (length * beta + m) + sum(
        count != 1 for count in ones
    )  # a bias of 1 - |c| is 0 where |c| = 1
    assert certificate.sparse - certificate.readout == expected
    assert (
        certificate.sparse
        <= vocabulary**length * (length * beta + 1 + m) + 6 * K * depth + 8 * length * beta + vocabulary * beta + m
    )
    assert certificate.width == 2 * K + (2 * length - 1) * beta + m
    assert (certificate.depth, certificate.attention_layers) == (depth + 1, depth)
    assert certificate.hidden[-1] == vocabulary**length


def test_the_temperature_is_that_of_real_arithmetic():
    table = FunctionTable.from_family("parity", 2, 9)
    bits, lookup = build_bits(table)[1], build_lookup(table)[1]
    assert bits.margin.required == pytest.approx(math.log(4 * 8) + 0.05)
    assert bits.temperature < lookup.temperature / 5
    assert bits.certified_dtypes == DTYPES


def test_without_its_clips_softmax_would_show():
    """The clip is what makes 1 of 1 - e: fetched coordinates are not whole, and what they become is."""
    table = FunctionTable.from_family("parity", 2, 4)
    model, _ = build_bits(table)
    with torch.no_grad():
        trace = model.trace(torch.tensor([[1, 1, 0, 1]]))
    raw = trace.layers[0].attended[0, -1, 8 + 4 : -1]
    assert 1e-3 < float((raw - raw.round()).abs().max()) < 0.25
    clean = trace.layers[1].hidden[0, -1, 8 : 8 + 4]
    assert clean.tolist() == [1, 0, 1, 1]


def test_what_cannot_be_built_is_refused():
    table = FunctionTable.from_family("parity", 2, 7)
    with pytest.raises(
        ArgumentError, match=r"build_bits\(dtype=bfloat16\).*score gap needed is 3\.\d+ for 7 positions"
    ):
        build_bits(table, "bfloat16", n_frequencies=8, frequency_base=1e30)
    with pytest.raises(ArgumentError, match="choose one of float64"):
        build_bits(table, "float8")
    with pytest.raises(ArgumentError, match="above the limit of 5,000"):
        build_bits(table, memory_limit=5000)
    with pytest.raises(ArgumentError, match=r"n_frequencies=1\.5"):
        build_bits(table, n_frequencies=1.5)
    with pytest.raises(ArgumentError, match=r"float16 ends at 65504"):
        build_bits(FunctionTable(2, 1, np.array([1, 70000])), "float16")
    build_bits(FunctionTable(2, 1, np.array([1, 40000])), "float16")  # no doubled value here, unlike construction A
