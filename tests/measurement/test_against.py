"""Errors against another model and against values, held to loops over single cases; and when the inputs are all there are."""

import copy
import itertools

import numpy as np
import pytest
import torch
import xarray as xr

from oplens.construction.function import FunctionTable
from oplens.construction.lookup import build_lookup
from oplens.construction.verification import verify
from oplens.data import as_sequences
from oplens.data.tokens import as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.measurement.against import errors_against
from oplens.models import S4D, S4DConfig, Transformer, TransformerConfig
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.report.scores import scores_section
from oplens.results import read_results, write_results

SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ffn": 8}


def transformer(seed=0, **changes):
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(**{"d_output": 3, "vocabulary": 5, **SIZES, **changes})).double()


def decoder(seed=0, vocabulary=5):
    return transformer(seed, d_output=vocabulary, vocabulary=vocabulary, causal=True, readout="position")


def nudged(model, size=0.05, seed=9):
    """A copy with noise on its weights."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return other


def ragged(seed, vocabulary=5, n_cases=7):
    rng = np.random.default_rng(seed)
    return [rng.integers(vocabulary, size=n).tolist() for n in rng.integers(1, 8, size=n_cases)]


def alone(model, row):
    with torch.no_grad():
        return model(torch.tensor([row]))[0].numpy()


@pytest.mark.parametrize("outputs", ["output", "probabilities"])
def test_two_decoders_over_ragged_cases(outputs):
    student = decoder()
    teacher, rows = nudged(student), ragged(0)
    ds = errors_against(
        TransformerRecorder.of(student),
        as_tokens(rows),
        TransformerRecorder.of(teacher, "teacher"),
        outputs=outputs,
        batch_size=3,
    )
    norms, sizes, same, sums = [], [], [], []
    for row in rows:
        T, f = (alone(model, row) for model in (student, teacher))
        if outputs == "probabilities":
            T, f = (np.exp(v) / np.exp(v).sum(-1, keepdims=True) for v in (T, f))
        norms.append([np.sqrt(((f[t] - T[t]) ** 2).sum()) for t in range(len(row))])
        sizes += [np.sqrt((f[t] ** 2).sum()) for t in range(len(row))]
        same.append([int(f[t].argmax() == T[t].argmax()) for t in range(len(row))])
    flat, n, N = [value for one in norms for value in one], len(rows), sum(map(len, rows))
    assert float(ds.eam) == pytest.approx(np.mean(flat), rel=1e-10)
    assert float(ds.largest) == pytest.approx(max(flat), rel=1e-10)
    assert int(ds.largest_case) == int(np.argmax([max(one) for one in norms]))
    assert float(ds.target_size) == pytest.approx(np.mean(sizes), rel=1e-10)
    agreement = sum(map(sum, same)) / N
    assert 0 < agreement < 1
    assert float(ds.agreement) == pytest.approx(agreement, rel=1e-12)
    K = N**2 / sum(len(row) ** 2 for row in rows)
    for name, value, parts in (("eam_error", np.mean(flat), norms), ("agreement_error", agreement, same)):
        sums = [sum(one) - value * len(one) for one in parts]
        assert float(ds[name]) == pytest.approx(np.sqrt(K / (K - 1) * np.square(sums).sum()) / N, rel=1e-8), name
    assert (ds.largest.claim, ds.eam.claim, int(ds.n_cases)) == ("bound", "measured", n)
    assert float(ds.exceedance) == pytest.approx(1 - 0.05 ** (1 / n))
    assert (ds.attrs["target"], ds.attrs["outputs"]) == ("teacher", outputs)
    assert "lower bound" in ds.attrs["scope"]


def test_probabilities_do_not_see_a_constant_that_is_added_to_all_logits():
    one = decoder()
    two = copy.deepcopy(one)
    with torch.no_grad():
        two.readout.bias += 3.0
    pair = TransformerRecorder.of(one), as_tokens(ragged(1)), TransformerRecorder.of(two)
    assert float(errors_against(*pair).eam) == pytest.approx(3 * np.sqrt(5), rel=1e-12)
    assert float(errors_against(*pair, outputs="probabilities").largest) < 1e-14


def test_a_copy_in_bfloat16_is_as_far_as_its_rounding():
    model = decoder()
    ds = errors_against(
        TransformerRecorder.of(model, dtype="bfloat16"),
        as_tokens(ragged(2)),
        TransformerRecorder.of(model, dtype="float64"),
    )
    assert 1e-4 < float(ds.eam / ds.target_size) < 0.05


@pytest.mark.parametrize("shape", [(), (3,)])
def test_values_per_case(shape):
    model = transformer(d_output=shape[0] if shape else 1)
    rows, rng = ragged(3), np.random.default_rng(3)
    values = rng.standard_normal((len(rows), *shape))
    ds = errors_against(TransformerRecorder.of(model), as_tokens(rows), values, batch_size=2)
    norms = [np.linalg.norm(np.atleast_1d(v) - alone(model, row)) for v, row in zip(values, rows, strict=True)]
    assert float(ds.eam) == pytest.approx(np.mean(norms), rel=1e-10)
    assert int(ds.largest_case) == int(np.argmax(norms))
    assert "agreement" not in ds
    assert ds.attrs["target"] == "given values"


def test_values_per_position_with_anything_in_the_padding():
    model, rows = decoder(), ragged(4)
    values = np.random.default_rng(4).standard_normal((len(rows), 9, 5))
    wrong = max(i for i, row in enumerate(rows) if len(row) > 3)
    values[wrong, : len(rows[wrong])] = alone(model, rows[wrong])
    values[wrong, 1] += 100.0  # one position far off, the others exact
    norms = [np.linalg.norm(values[i, t] - alone(model, row)[t]) for i, row in enumerate(rows) for t in range(len(row))]
    for i, row in enumerate(rows):
        values[i, len(row) :] = np.nan
    ds = errors_against(TransformerRecorder.of(model), as_tokens(rows), torch.from_numpy(values), batch_size=7)
    assert float(ds.eam) == pytest.approx(np.mean(norms), rel=1e-10)
    assert int(ds.largest_case) == wrong
    values[5, 0, 2] = np.nan
    with pytest.raises(DataError, match="NaN"):
        errors_against(TransformerRecorder.of(model), as_tokens(rows), values)


def test_a_model_of_series():
    torch.manual_seed(0)
    model = S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4, n_layers=1)).double()
    rng = np.random.default_rng(5)
    cases = [rng.standard_normal((2, n)) for n in (6, 9, 4)]
    other = nudged(model, 0.01)
    ds = errors_against(S4DRecorder.of(model), as_sequences(cases), S4DRecorder.of(other), batch_size=2)
    norms = []
    with torch.no_grad():
        for case in cases:
            f, T = (m.eval()(torch.from_numpy(case.T.copy())[None])[0] for m in (other, model))
            norms.append(float((f - T).norm()))
    assert float(ds.eam) == pytest.approx(np.mean(norms), rel=1e-8)
    assert ds.largest.claim == "bound"


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_every_sequence_once_is_exhaustive_in_any_order(batch_size):
    model = transformer(vocabulary=3)
    rows = list(itertools.product(range(3), repeat=3))
    order = np.random.default_rng(6).permutation(27)
    ds = errors_against(
        TransformerRecorder.of(model), as_tokens([rows[i] for i in order]), np.zeros((27, 3)), batch_size=batch_size
    )
    norms = [np.linalg.norm(alone(model, row)) for row in rows]
    assert float(ds.largest) == pytest.approx(max(norms), rel=1e-12)
    assert int(order[int(ds.largest_case)]) == int(np.argmax(norms))
    assert {ds[name].claim for name in ds} == {"exact"}
    assert set(ds) == {"eam", "largest", "n_cases", "target_size", "largest_case"}
    assert ds.attrs["scope"] == "all 27 sequences of 3 symbols out of 3"


@pytest.mark.parametrize("broken", [False, True])
def test_a_built_lookup_against_its_function_is_what_verification_finds(broken):
    table = FunctionTable.from_family("parity", vocabulary=2, length=6)
    model = build_lookup(table)[0]
    if broken:
        with torch.no_grad():
            model.readout.bias += 0.25
            next(iter(model.layers[-1].parameters())).mul_(0.9)
    inputs = as_tokens(list(itertools.product(range(2), repeat=6)))
    ds = errors_against(TransformerRecorder.of(model), inputs, table.values)
    check = verify(model, table, ["float64"], shuffles=0).checks[0]
    assert ds.attrs["scope"] == "all 64 sequences of 6 symbols out of 2"
    assert float(ds.largest) == pytest.approx(check.largest_error, abs=1e-12)
    assert (float(ds.largest) > 0.2) == broken


def test_the_group_is_written_read_and_told(tmp_path):
    """What is measured fits the schema of results and the page's section."""
    inputs = as_tokens(ragged(10))
    ds = errors_against(TransformerRecorder.of(decoder()), inputs, TransformerRecorder.of(decoder(1), "teacher"))
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/errors": ds})
    back = read_results(write_results(tree, tmp_path / "r.nc"))
    xr.testing.assert_equal(back["errors"].to_dataset(), ds)
    assert (ds.attrs["dtype"], ds.attrs["source"]) == ("float64", "Transformer against teacher on array")
    told = scores_section(back)[0].findings[-1]
    assert "misses teacher by" in told
    assert f"case {int(ds.largest_case)}" in told
    assert "lower bound" in told


def scope(rows, vocabulary=2, **options):
    model = TransformerRecorder.of(transformer(vocabulary=vocabulary))
    return errors_against(model, as_tokens(rows), np.zeros((len(rows), 3)), **options).attrs["scope"]


def test_what_is_not_exhaustive():
    rows = list(itertools.product(range(2), repeat=3))
    assert scope([*rows, (0,), (1,)]) == "all 10 sequences of 1 or 3 symbols out of 2"
    for given in (rows[:-1], rows[:-1] + rows[:1], rows + rows[:1], [*rows, (0,)], [(*row, 0) for row in rows]):
        assert "lower bound" in scope(given)
    assert "lower bound" in scope(rows, vocabulary=3)
    assert "lower bound" in scope([[0] * 70], vocabulary=5)  # 5^70 is beyond int64
    assert "lower bound" in scope(rows, exhaustive=False)
    many = list(itertools.product(range(2), repeat=11))
    assert "lower bound" in scope(many + many[:1], batch_size=512)  # given again in a later batch
    assert scope(rows, exhaustive=True).startswith("all 8")
    with pytest.raises(DataError, match="every sequence"):
        scope(rows[:-1], exhaustive=True)


def test_progress_counts_cases():
    seen = []
    rows = ragged(7)
    errors_against(
        TransformerRecorder.of(decoder()),
        as_tokens(rows),
        TransformerRecorder.of(decoder(1)),
        batch_size=3,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(3, 7), (6, 7), (7, 7)]


class Untouched:
    """Stands for a model that must not have run."""

    kind, vocabulary, d_input, max_length, name, predicts_next = "tokens", 5, None, None, "model", True

    def record(self, x, mask=None):
        raise AssertionError("the model ran before the refusal")


@pytest.mark.parametrize(
    ("target", "options", "error", "words"),
    [
        (np.zeros(6), {}, DataError, "there are 7 cases"),
        (np.zeros((7, 0)), {}, DataError, "there are 7 cases"),
        (np.zeros((7, 1, 1, 1)), {}, ArgumentError, "expected"),
        (["a"] * 7, {}, ArgumentError, "real numbers"),
        (np.zeros(7), {"outputs": "probabilities"}, ArgumentError, "as values"),
        (np.zeros(7), {"outputs": "logits"}, ArgumentError, "output, probabilities"),
        (np.zeros(7), {"batch_size": 0}, ArgumentError, "batch_size"),
        (np.zeros(7), {"level": 1.0}, ArgumentError, "between 0 and 1"),
        (np.zeros(7), {"exhaustive": "yes"}, ArgumentError, "True, False"),
        (np.zeros(7), {"exhaustive": True}, DataError, "every sequence"),
        (TransformerRecorder.of(decoder(vocabulary=4), "small"), {}, ArgumentError, "vocabulary 5, small has 4"),
        (TransformerRecorder.of(transformer(vocabulary=None, d_input=2), "real"), {}, ArgumentError, "real has series"),
        (TransformerRecorder.of(transformer(max_length=4), "short"), {}, DataError, "short takes at most 4"),
    ],
)
def test_refusals_before_the_model_runs(target, options, error, words):
    with pytest.raises(error, match=words):
        errors_against(Untouched(), as_tokens(ragged(8)), target, **options)


def test_inputs_of_the_other_kind_and_outputs_that_differ():
    rows = as_tokens(ragged(9))
    with pytest.raises(ArgumentError, match="model takes tokens"):
        errors_against(Untouched(), as_sequences(np.zeros((2, 1, 3))), np.zeros(2))
    with pytest.raises(DataError, match="different questions"):
        errors_against(TransformerRecorder.of(decoder()), rows, np.zeros((7, 5)))
    with pytest.raises(DataError, match="different questions"):
        errors_against(TransformerRecorder.of(transformer()), rows, TransformerRecorder.of(transformer(d_output=2)))
    with pytest.raises(DataError, match="values of 2 positions"):
        errors_against(TransformerRecorder.of(decoder()), rows, np.zeros((7, 2, 5)))
