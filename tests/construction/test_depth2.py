"""Construction C: two layers of one head without a temperature, exact in every dtype that its gates allow."""

import numpy as np
import pytest
import torch

from oplens.construction.depth2 import _placement_margin, build_depth2
from oplens.construction.function import FunctionTable
from oplens.errors import ArgumentError
from table_models import DTYPES
from transformer_oracle import Oracle


def test_attention_is_uniform_whatever_comes_in():
    table = FunctionTable.from_family("parity", 2, 6)
    model, _ = build_depth2(table)
    trace = model.trace(torch.from_numpy(table.inputs()))
    assert trace.layers[0].weights is None
    assert torch.equal(trace.layers[1].weights, torch.full((64, 1, 6, 6), 1 / 6, dtype=torch.float64))
    assert not model.block(1).attention.query.weight.any()


def test_a_forward_pass_in_numpy_gives_the_same_values_and_bits_side_by_side():
    table = FunctionTable(3, 3, np.random.default_rng(1).normal(size=(27, 1)))
    model, _ = build_depth2(table, weights="sparse")
    oracle = Oracle(model)
    for row, x in enumerate(table.inputs()):
        output, _, layers = oracle.run(x)
        assert output.tolist() == table.values[row].tolist()
        assert layers[-1]["activations"][-1].tolist() == np.eye(27)[row].tolist()
        bits = [int(d) for symbol in x for d in format(symbol, "02b")]
        assert layers[-1]["attended"][-1, 8 + 2 + 6 : 8 + 2 + 12].tolist() == bits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1 + 1 / 16, 1 - 1 / 8])
def test_adding_the_constant_rounds_noise_away(dtype, factor):
    """With values off by a sixteenth or an eighth the gathered bits are still exactly 0 and 1; without the constant they are off."""
    table = FunctionTable.from_family("parity", 2, 11)
    model, _ = build_depth2(table, dtype)
    x = torch.tensor([[1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0]])
    gathered = slice(8 + 1 + 11, 8 + 1 + 22)
    with torch.no_grad():
        model.block(1).attention.value.weight.mul_(factor)
        assert model.trace(x).layers[1].attended[0, -1, gathered].tolist() == x[0].tolist()
        model.block(1).attention.output.bias.zero_()
        model.block(0).feedforward.down.bias.zero_()
        plain = model.trace(x).layers[1].attended[0, -1, gathered].double()
    np.testing.assert_allclose(plain.numpy(), factor * x[0].numpy(), rtol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_certified_distance_is_below_that_of_every_gate(dtype):
    table = FunctionTable.from_family("parity", 2, 7)
    model, certificate = build_depth2(table, dtype)
    x = torch.from_numpy(table.inputs())
    with torch.no_grad():
        embedded = model.embedding(x, None)
        before = model.block(0).feedforward.up(embedded).double().numpy().reshape(128, 7, 7, 2)  # case, i, slot, unit
    distances = []
    for case, i, p in np.ndindex(128, 7, 7):
        lower, upper = before[case, i, p]
        distances.append(upper if i == p and x[case, p] else -lower)
    assert min(distances) >= certificate.margin.delivered >= 0


def test_a_base_is_chosen_where_the_first_does_not_serve_and_a_given_one_is_refused_with_the_cure():
    table = FunctionTable.from_family("parity", 2, 7)
    model, certificate = build_depth2(table, "bfloat16")
    assert not _placement_margin("bfloat16", 7, 4, 10000.0).met
    assert model.config.frequency_base == 100.0
    assert "4 positional sinusoids of base 100" in certificate.hypotheses
    message = r"frequency_base=10000 the gates that place 7 positions have a distance of -0\.\d+.*frequency_base=100 leaves one"
    with pytest.raises(ArgumentError, match=message):
        build_depth2(table, "bfloat16", frequency_base=10000)
    with pytest.raises(ArgumentError, match="use float32 or float64"):
        build_depth2(table, "bfloat16", n_frequencies=1)


def test_sizes_are_counted_by_hand():
    V, n, beta, K, m = 3, 4, 2, 4, 2
    values = np.random.default_rng(0).integers(1, 9, (V**n, m))
    certificate = build_depth2(FunctionTable(V, n, values))[1]
    assert certificate.width == 2 * K + beta + 2 * n * beta + m
    assert certificate.hidden == (2 * n * beta, V**n)
    ones = [sum(bin(symbol).count("1") for symbol in x) for x in np.ndindex(*[V] * n)]
    expected = 2  # embedding: symbols 1 and 2 have one bit each
    # Per bit and unit: the bit, a bias, a weight out and 2K of the position, of which position 0's K sines are 0.
    expected += 2 * beta * (n * (1 + 1 + 1 + 2 * K) - K)
    expected += n * beta * (1 + 1 + 1 + 1)  # -C, value, mapping out, C
    expected += len(ones) * (n * beta + m) + sum(count != 1 for count in ones)
    assert certificate.sparse - certificate.readout == expected


def test_what_cannot_be_built_is_refused():
    table = FunctionTable.from_family("parity", 2, 5)
    with pytest.raises(ArgumentError, match="above the limit of 3,000"):
        build_depth2(table, memory_limit=3000)
    with pytest.raises(ArgumentError, match="frequency_base=-1"):
        build_depth2(table, frequency_base=-1)
    with pytest.raises(ArgumentError, match="expected a FunctionTable"):
        build_depth2(table.values)
