"""Verification: counts every wrong output, whatever the order of sums, and says when it drew a sample."""

import numpy as np
import pytest
import torch

from oplens.construction.bits import build_bits
from oplens.construction.depth2 import build_depth2
from oplens.construction.function import FunctionTable
from oplens.construction.lookup import build_lookup
from oplens.construction.verification import shuffle_order, verify
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig

DTYPES = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("weights", ["dense", "sparse"])
@pytest.mark.parametrize("build", [build_lookup, build_bits], ids=lambda f: f.__name__)
def test_constructions_pass_in_four_dtypes_and_four_orders(build, weights):
    table = FunctionTable.from_family("random", 2, 7, seed=1, labels=5)
    for causal in (False, True):
        found = verify(build(table, causal=causal, weights=weights)[0], table, DTYPES, shuffles=3)
        assert (found.mode, found.claim, found.strata, found.errors, found.passed) == (
            "exhaustive",
            "exact",
            1,
            0,
            True,
        )
        assert [check.dtype for check in found.checks] == [d for d in DTYPES for _ in range(4)]
        assert all(check.inputs == 128 and check.largest_error == 0 for check in found.checks)
        assert [check.order for check in found.checks[:4]] == ["as built", "shuffled 1", "shuffled 2", "shuffled 3"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_layers_pass_in_their_own_dtype(dtype):
    table = FunctionTable.from_family("random", 3, 5, seed=1, labels=5)
    assert verify(build_depth2(table, dtype)[0], table, shuffles=3).errors == 0


def test_a_dtype_that_weights_were_not_made_for_is_counted_wrong():
    """The constant of float64 leaves nothing of a bit in float32."""
    table = FunctionTable.from_family("parity", 2, 5)
    found = verify(build_depth2(table, "float64")[0], table, ["float64", "float32"], shuffles=0)
    assert found.checks[0].errors == 0
    assert found.checks[1].errors > 0
    assert found.checks[1].first_wrong is not None


def test_every_wrong_output_is_counted_in_every_order():
    table = FunctionTable.from_family("random", 2, 6, seed=4, labels=3)
    values = table.values.copy()
    wrong = [5, 17, 40]
    values[wrong] += [[1.0], [-2.0], [0.5]]
    found = verify(build_lookup(FunctionTable(2, 6, values))[0], table, shuffles=2)
    assert [check.errors for check in found.checks] == [3, 3, 3]
    assert found.errors == 9
    assert not found.passed
    for check in found.checks:
        assert check.largest_error == 2.0
        assert check.first_wrong == (0, 0, 0, 1, 0, 1)


def test_nan_is_an_error_that_stays_visible():
    table = FunctionTable.from_family("parity", 2, 3)
    model, _ = build_lookup(table)
    model.readout.bias.data.fill_(torch.nan)
    check = verify(model, table, shuffles=0).checks[0]
    assert check.errors == 8
    assert np.isnan(check.largest_error)


def test_values_between_numbers_of_a_dtype_are_compared_after_rounding():
    table = FunctionTable(2, 4, np.random.default_rng(0).normal(size=16))
    model, certificate = build_lookup(table, "float16")
    check = verify(model, table).checks[0]
    assert check.errors == 0
    assert check.largest_error == certificate.error_bound > 0


@pytest.mark.parametrize("weights", ["dense", "sparse"])
def test_another_order_is_the_same_function_from_other_sums(weights):
    config = TransformerConfig(
        2,
        vocabulary=3,
        d_model=14,
        n_layers=2,
        n_heads=2,
        d_head=3,
        d_value=2,
        d_ffn=(9, 5),
        norm="none",
        weights="dense",
    )
    torch.manual_seed(0)
    model = Transformer(config).double()
    model = model.to_sparse() if weights == "sparse" else model
    x = torch.randint(0, 3, (20, 6))
    shuffled = shuffle_order(model, np.random.default_rng(0))
    with torch.no_grad():
        before, after = model(x), shuffled(x)
        assert torch.allclose(before, after, atol=1e-13)
        assert not torch.equal(before, after)
        hidden = [m.trace(x).layers[0].activations for m in (model, shuffled)]
    assert not torch.allclose(hidden[0], hidden[1])
    assert torch.allclose(hidden[0].sort(-1).values, hidden[1].sort(-1).values)


def test_keys_stand_in_another_order(monkeypatch):
    """In an encoder the shuffled pass attends over permuted positions; in a decoder it cannot."""
    seen = []
    original = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda self, *a, **k: seen.append(1) or original(self, *a, **k))
    table = FunctionTable.from_family("parity", 2, 4)
    for causal, passes in ((False, 1), (True, 2)):
        seen.clear()
        assert verify(build_lookup(table, causal=causal)[0], table).passed
        assert len(seen) == passes


def test_beyond_the_budget_a_stratified_sample_is_drawn_and_said():
    table = FunctionTable.from_family("palindrome", 2, 12)  # 64 palindromes among 4096
    model, _ = build_bits(table, "float32")
    hidden = sum(layer.d_ffn for layer in model.config.layers)
    found = verify(model, table, budget=200 * hidden, shuffles=0)
    assert (found.mode, found.claim, found.strata) == ("sampled", "measured", 2)
    assert (found.total_inputs, found.hidden_units, found.checks[0].inputs) == (4096, hidden, 200)
    assert found.errors == 0
    assert "stratified sample (2 strata, seed 0)" in str(found)
    # Every palindrome is in the sample, since they are fewer than half of it: each is found to be wrong when it is.
    broken = build_bits(FunctionTable(2, 12, np.zeros(4096)), "float32")[0]
    assert verify(broken, table, budget=200 * hidden, shuffles=0).errors == 64
    assert verify(broken, table, shuffles=0).errors == 64  # in several batches
    again = [verify(broken, table, budget=20 * hidden, shuffles=0, seed=s).checks[0] for s in (1, 1, 2)]
    assert again[0] == again[1]
    assert again[0].errors == again[2].errors == 10
    assert again[0].first_wrong != again[2].first_wrong


def test_many_values_are_sampled_by_first_symbols():
    table = FunctionTable(2, 10, np.random.default_rng(0).permutation(1024))
    model, _ = build_bits(table, "float64")
    hidden = sum(layer.d_ffn for layer in model.config.layers)
    found = verify(model, table, budget=512 * hidden, shuffles=0)
    assert (found.strata, found.checks[0].inputs, found.errors) == (256, 512, 0)
    assert verify(model, table, budget=1, shuffles=0).checks[0].inputs == 256
    assert verify(model, table, budget=1024 * hidden, shuffles=0).mode == "exhaustive"


def test_progress_counts_every_pass_to_the_end():
    table = FunctionTable.from_family("parity", 2, 12)
    calls = []
    verify(
        build_bits(table)[0], table, ["float32", "float16"], progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (4 * 4096, 4 * 4096)
    assert len(calls) > 4
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_a_result_is_data():
    table = FunctionTable.from_family("parity", 2, 3)
    values = verify(build_lookup(table)[0], table, ["float32"]).to_dict()
    assert values["errors"] == 0
    assert values["passed"] is True
    assert values["checks"][1]["order"] == "shuffled 1"


def test_what_cannot_be_verified_is_refused_before_anything_runs():
    table = FunctionTable.from_family("parity", 2, 3)
    model, _ = build_lookup(table)
    normed = Transformer(TransformerConfig(1, vocabulary=2, d_model=12, n_heads=1, d_ffn=4))
    for call, message in (
        (lambda: verify(model, table.values), "ndarray"),
        (lambda: verify(model, FunctionTable.from_family("parity", 3, 3)), "maps 2 symbols to 1 numbers"),
        (lambda: verify(model, table.one_hot()), "3 symbols|2 numbers"),
        (lambda: verify(normed, table), "without norms"),
        (lambda: verify(model, table, []), "give a list of dtypes"),
        (lambda: verify(model, table, "float32"), "give a list of dtypes"),
        (lambda: verify(model, table, ["int8"]), "choose one of"),
        (lambda: verify(model, table, budget=0), "budget=0"),
        (lambda: verify(model, table, shuffles=-1), "shuffles=-1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    assert verify(normed, table, shuffles=0).errors == 8


@pytest.mark.slow
def test_sixteen_symbols_are_built_and_verified_on_all_65536_inputs():
    table = FunctionTable.from_family("parity", 2, 16)
    for build in (build_lookup, build_bits):
        model, certificate = build(table, "float32", weights="sparse")
        assert certificate.margin.met
        found = verify(model, table, shuffles=0)
        assert (found.mode, found.checks[0].inputs, found.errors) == ("exhaustive", 65536, 0)
