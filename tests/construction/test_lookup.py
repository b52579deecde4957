"""Construction A: exact at every input in four dtypes, of the size that theory gives, and refused where rounding would win."""

import math

import numpy as np
import pytest
import torch

from oplens.construction.certificate import Certificate, Margin
from oplens.construction.function import FunctionTable
from oplens.construction.lookup import Halving, build_lookup
from oplens.construction.scores import delivered_gap, plan_scores, required_gap
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_counts import count_parameters, count_weights
from oplens.theory import lookup_size, score_gap
from transformer_oracle import Oracle

DTYPES = ("float64", "float32", "float16", "bfloat16")


def outputs(model, table):
    with torch.no_grad():
        return model(torch.from_numpy(table.inputs())).double().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("vocabulary", "length"), [(2, 1), (7, 1), (2, 2), (2, 3), (3, 3), (5, 2), (2, 5), (2, 6), (2, 7), (2, 9)]
)
def test_every_input_gets_its_value_to_the_last_bit(vocabulary, length, dtype):
    values = np.random.default_rng(length).integers(-9, 10, (vocabulary**length, 2)) / 4
    table = FunctionTable(vocabulary, length, values)
    for causal, weights in ((False, "dense"), (True, "sparse")):
        model, certificate = build_lookup(table, dtype, causal=causal, weights=weights)
        assert model.config.causal is causal
        assert model.config.weights == weights
        assert next(model.parameters()).dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(outputs(model, table), values)
        assert (certificate.claim, certificate.error_bound, certificate.dtype) == ("exact", 0.0, dtype)
        assert length == 1 or certificate.margin.met


def test_the_function_itself_agrees_at_every_input():
    def balanced(x):
        depth = 0
        for symbol in x:
            depth += 1 - 2 * symbol
            if depth < 0:
                return 0
        return int(depth == 0)

    model, _ = build_lookup(FunctionTable.from_function(balanced, 2, 8), "bfloat16")
    for row in range(256):
        x = tuple(row >> (7 - i) & 1 for i in range(8))
        with torch.no_grad():
            assert model(torch.tensor([x])).item() == balanced(x)


def test_a_forward_pass_in_numpy_gives_the_same_values():
    table = FunctionTable(3, 3, np.random.default_rng(1).normal(size=(27, 1)))
    model, _ = build_lookup(table, weights="sparse")
    oracle = Oracle(model)
    for row, x in enumerate(table.inputs()):
        output, _, layers = oracle.run(x)
        assert output.tolist() == table.values[row].tolist()
        # The last position's hidden units: 2 and 1 for the string that is there, 0 for all others.
        expected = np.zeros((27, 2))
        expected[row] = 2, 1
        np.testing.assert_array_equal(layers[-1]["activations"][-1], expected.ravel())


def test_real_arithmetic_temperature_is_exact_up_to_the_gate_only():
    """At ln(4 (n-1)) / gap, a little above, the answer is right in float64 up to what softmax leaves; well below, it is not."""
    found = {}
    for factor in (1.02, 0.5):
        table = FunctionTable.from_family("random", 2, 5, seed=2, labels=9)
        model, _ = build_lookup(table)
        wanted = factor * math.log(4 * 4) / score_gap(4, 5)
        for index in range(model.config.n_layers):
            query = model.block(index).attention.query
            query.weight.data *= wanted / build_lookup(table)[1].temperature
        found[factor] = np.abs(outputs(model, table) - table.values).max()
    assert found[1.02] < 1e-10
    assert found[0.5] > 0.1


@pytest.mark.parametrize(("vocabulary", "length", "K", "m"), [(4, 4, 4, 1), (2, 2, 1, 1), (3, 5, 2, 2), (2, 7, 4, 3)])
def test_sizes_are_those_of_theory(vocabulary, length, K, m):
    values = np.random.default_rng(0).integers(1, 9, (vocabulary**length, m))
    model, certificate = build_lookup(FunctionTable(vocabulary, length, values), n_frequencies=K)
    theory = lookup_size(length, vocabulary, K, m)
    assert certificate.sparse - certificate.readout == theory["nonzeros"]
    assert certificate.readout == m
    assert certificate.depth == certificate.attention_layers == theory["depth"] == math.ceil(math.log2(length))
    assert certificate.width == model.config.d_model == theory["residual_width"]
    assert certificate.hidden[-1] == 2 * theory["ffn_width"]
    assert certificate.sparse == count_weights(model).nonzeros == sum(int((p != 0).sum()) for p in model.parameters())
    assert certificate.dense == count_parameters(model.config).total


def test_sizes_at_four_symbols_of_four_are_the_printed_ones():
    table = FunctionTable(4, 4, np.ones(256))
    for weights in ("dense", "sparse"):
        _, certificate = build_lookup(table, weights=weights)
        assert certificate.sparse - certificate.readout == 2268
        assert certificate.dense_uniform == 106_374


def test_halves_overlap_where_a_length_is_no_power_of_two():
    for n in range(1, 40):
        halving = Halving.of(n)
        assert halving.widths[0] == 1
        assert halving.widths[-1] == n
        for width, shift, following in zip(halving.widths, halving.shifts, halving.widths[1:], strict=False):
            assert 1 <= shift <= width
            assert width + shift == following
    assert Halving.of(12).shifts == (1, 1, 3, 6)


def least_gap(model, table):
    """From the model's own queries and keys, scores in float64."""
    least = math.inf
    with torch.no_grad():
        embedded = model.embedding(torch.zeros(1, table.length, dtype=torch.int64), None)
        for index, shift in enumerate(Halving.of(table.length).shifts):
            attention = model.block(index).attention
            q, k = (layer(embedded)[0].double() for layer in (attention.query, attention.key))
            score = (q @ k.T / math.sqrt(8)).numpy()
            for i in range(shift, table.length):
                least = min(least, score[i, i - shift] - np.delete(score[i], i - shift).max())
    return least


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_delivered_gap_is_below_every_gap_that_a_model_has(dtype):
    """Rounding of scores is what the certificate takes off, and is not zero."""
    table = FunctionTable.from_family("parity", 2, 9)
    model, certificate = build_lookup(table, dtype)
    least, delivered = least_gap(model, table), certificate.margin.delivered
    assert certificate.margin.required <= delivered < least
    # What is taken off is a few roundings of the largest score, and no more.
    assert least - delivered < 20 * torch.finfo(getattr(torch, dtype)).eps * 4 * certificate.temperature


def test_weights_made_in_few_digits_are_judged_as_they_are_stored():
    table = FunctionTable.from_family("parity", 2, 9)
    model, certificate = build_lookup(table, "bfloat16")
    judged = next(margin for margin in certificate.margins if margin.dtype == "float64").delivered
    assert judged == pytest.approx(least_gap(model.double(), table), abs=1e-9)
    assert abs(judged - certificate.temperature * score_gap(4, 9)) > 0.01  # rotations are off by what bfloat16 rounds


def test_required_gaps_are_those_of_the_design():
    for dtype, first in zip(DTYPES, (37.4, 17.3, 8.3, 6.2), strict=True):
        assert required_gap(dtype, 2, "rounds") - 0.05 == pytest.approx(first, abs=0.05)
        assert required_gap(dtype, 12, "rounds") - required_gap(dtype, 2, "rounds") == pytest.approx(math.log(11))
    assert required_gap("float64", 12, "clips") - 0.05 == pytest.approx(math.log(44))


def test_one_temperature_serves_all_dtypes_by_default():
    table = FunctionTable.from_family("parity", 2, 6)
    model, certificate = build_lookup(table)
    assert certificate.certified_dtypes == DTYPES
    for dtype in DTYPES:
        np.testing.assert_array_equal(outputs(build_lookup(table)[0].to(getattr(torch, dtype)), table), table.values)
    assert next(model.parameters()).dtype == torch.float64


def test_a_dtype_whose_margin_cannot_be_met_is_refused_with_the_numbers():
    """One sinusoid of one radian comes back to itself after 44 = 7.003 turns: in bfloat16 the two cannot be told apart."""
    halving = Halving.of(46)
    assert delivered_gap("bfloat16", 46, halving.shifts, 1.0, 1, 10000.0) < 0
    with pytest.raises(
        ArgumentError, match=r"score gap needed is 10\.\d+ for 46 positions.*n_frequencies=1.*inverse temperature"
    ):
        plan_scores("build_lookup", "bfloat16", 46, halving.shifts, 1, 10000.0, "rounds")
    table = FunctionTable.from_family("parity", 2, 7)
    message = r"build_lookup\(dtype=bfloat16\).*score gap needed is 8\.08 for 7 positions.*frequency_base=1e\+30.*frequency_base=10000 delivers it"
    with pytest.raises(ArgumentError, match=message):
        build_lookup(table, "bfloat16", n_frequencies=8, frequency_base=1e30)
    assert build_lookup(table, "bfloat16", n_frequencies=8, frequency_base=10000)[1].margin.met
    # The same weights hold their claim in float64, and say that they do not in bfloat16.
    certificate = build_lookup(table, n_frequencies=8, frequency_base=1e30)[1]
    assert certificate.margin.met
    assert "bfloat16" not in certificate.certified_dtypes


def test_values_that_are_no_numbers_of_the_dtype_leave_their_rounding_as_the_bound():
    table = FunctionTable(2, 3, np.linspace(0.1, 0.9, 8))
    for dtype in ("float32", "float16", "bfloat16"):
        model, certificate = build_lookup(table, dtype)
        assert certificate.claim == "bound"
        error = np.abs(outputs(model, table) - table.values).max()
        assert error == certificate.error_bound > 0
        assert dict(certificate.error_parts)["arithmetic"] == 0
    assert build_lookup(table)[1].claim == "exact"


def test_a_saved_model_is_the_same(tmp_path):
    table = FunctionTable.from_family("palindrome", 2, 5)
    build_lookup(table, "float16", weights="sparse")[0].save_pretrained(tmp_path)
    np.testing.assert_array_equal(outputs(Transformer.from_pretrained(tmp_path), table), table.values)


REFUSED = {
    "dtype": ({"dtype": "int8"}, "choose one of float64"),
    "weights": ({"weights": "thick"}, "choose dense, sparse"),
    "frequencies": ({"n_frequencies": 0}, "n_frequencies=0"),
    "base": ({"frequency_base": 1.0}, "frequency_base=1.0"),
    "memory, dense": (
        {"weights": "dense", "memory_limit": 1000},
        r"dense weights need about [\d,]+ bytes.*limit of 1,000.*sparse",
    ),
    "memory, sparse": (
        {"weights": "sparse", "memory_limit": 1000},
        f"{lookup_size(4, 2, 4)['nonzeros'] + 1} sparse weights need about",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        build_lookup(FunctionTable.from_family("parity", 2, 4), **options)


def test_values_that_overflow_are_refused():
    with pytest.raises(ArgumentError, match=r"the value 40000 needs numbers up to 80000, float16 ends at 65504"):
        build_lookup(FunctionTable(2, 1, np.array([1, 40000])), "float16")
    with pytest.raises(ArgumentError, match="expected a FunctionTable"):
        build_lookup([0, 1])


def test_a_certificate_says_all_of_it():
    certificate = build_lookup(FunctionTable.from_family("parity", 2, 4), "float16")[1]
    values = certificate.to_dict()
    assert values["error_bound"] == 0
    assert values["hidden"] == [8, 32]
    judged = next(item for item in values["margins"] if item["dtype"] == "float16")
    assert judged["margin"] == judged["delivered"] - judged["required"] > 0
    text = str(certificate)
    assert all(
        part in text for part in ("lookup in float16, exact", "inverse temperature", "bfloat16: score gap", "(met)")
    )
    with pytest.raises(ArgumentError, match="choose one of exact, bound"):
        Certificate("x", "measured", "float64", "", (), (), 1, 1, 1, (1,), 1, 1, 1)
    with pytest.raises(ArgumentError, match=r"sum to 0\.5, not to 0"):
        Certificate("x", "exact", "float64", "", (), (("a", 0.5),), 1, 1, 1, (1,), 1, 1, 1)
    with pytest.raises(ArgumentError, match="error parts b"):
        Certificate("x", "bound", "float64", "", (), (("a", 0.5), ("b", math.nan)), 1, 1, 1, (1,), 1, 1, 1)
    assert not Margin("float16", "score gap", 2.0, 1.5).met
