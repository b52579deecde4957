"""Predictivity per layer: features against loops, a layer that the responses were made from, and what chance gives the best of several."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import xarray as xr

from oplens.data import as_sequences
from oplens.data.responses import Responses
from oplens.data.tokens import as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.measurement import neural_predictivity, predictivity
from oplens.measurement.best_layer import against_best, resampled_predictivity
from oplens.measurement.neural import layer_features, measure_neural, stimulus_tokens
from oplens.models import S4D, S4DConfig, Transformer, TransformerConfig
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.report.neural import neural_section
from oplens.results import read_results, write_results


def recorder(n_layers=3, d_model=16):
    torch.manual_seed(0)
    config = TransformerConfig(d_output=3, vocabulary=20, d_model=d_model, n_layers=n_layers, n_heads=2, d_ffn=32)
    model = Transformer(config).double()
    with torch.no_grad():  # as initialised, layers are near copies of the embedding
        for parameter in model.layers.parameters():
            parameter.mul_(4.0)
    return TransformerRecorder.of(model)


def ragged(n_cases, seed=0, longest=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(20, size=n).tolist() for n in rng.integers(3, longest, size=n_cases)]


def recording(values, **more):
    values = values[..., None] if values.ndim == 2 else values
    names = tuple(map(str, range(values.shape[1])))
    return Responses(values, names, "Hz", "made up", **{"case": np.arange(len(values)), **more})


def states(model, rows):
    """Hidden states of each case alone: layers of (length, d_model)."""
    return [[h[0].numpy() for h in model.record(torch.tensor([row])).hidden] for row in rows]


@pytest.mark.parametrize("pool", ["mean", "last", "first"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_features_are_those_of_each_case_alone(pool, batch_size):
    model, rows = recorder(), ragged(11)
    case = np.array([4, 0, 9, 4, 10])
    found = layer_features(
        model, as_tokens(rows), recording(np.zeros((5, 2)), case=case), pool=pool, batch_size=batch_size
    )
    alone = states(model, rows)
    assert len(found) == 4
    for layer, X in enumerate(found):
        for i, c in enumerate(case):
            h = alone[c][layer]
            expected = {"mean": h.mean(0), "last": h[-1], "first": h[0]}[pool]
            np.testing.assert_allclose(X[i], expected, rtol=1e-10, atol=1e-12)


def test_a_position_stands_for_a_stimulus():
    model, rows = recorder(), ragged(6, seed=1)
    case = np.array([2, 2, 5, 0])
    position = np.array([0, len(rows[2]) - 1, 1, 2])
    found = layer_features(
        model, as_tokens(rows), recording(np.zeros((4, 1)), case=case, position=position), batch_size=3
    )
    alone = states(model, rows)
    for layer, X in enumerate(found):
        expected = [alone[c][layer][t] for c, t in zip(case, position, strict=True)]
        np.testing.assert_allclose(X, expected, rtol=1e-10, atol=1e-12)


def test_features_of_a_model_of_series():
    torch.manual_seed(1)
    model = S4DRecorder.of(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4)).double())
    rng = np.random.default_rng(2)
    cases = [rng.standard_normal((2, n)) for n in (5, 8, 3)]
    found = layer_features(model, as_sequences(cases), recording(np.zeros((3, 1))), batch_size=2)
    for i, case in enumerate(cases):
        hidden = model.record(torch.from_numpy(case.T.copy())[None]).hidden
        for layer, X in enumerate(found):
            np.testing.assert_allclose(X[i], hidden[layer][0].mean(0).numpy(), rtol=1e-10, atol=1e-12)


class Counted:
    """Passes everything on and counts the cases that run."""

    def __init__(self, model):
        self.model, self.cases = model, 0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def record(self, x, mask=None):
        self.cases += len(x)
        return self.model.record(x, mask)


def test_inputs_that_are_no_stimulus_are_not_run():
    model = Counted(recorder())
    layer_features(model, as_tokens(ragged(20)), recording(np.zeros((3, 1)), case=np.array([7, 6, 7])), batch_size=4)
    assert model.cases == 4


def made_from(layer, n=150, noise=1.0, seed=3, repeats=6, neurons=5):
    """Unit signals from one layer's features, every neuron from its own random direction, and noise on each repeat."""
    model, rows = recorder(), ragged(n, seed)
    rng = np.random.default_rng(seed)
    X = np.array([one[layer].mean(0) for one in states(model, rows)])
    signal = (X - X.mean(0)) / X.std(0) @ rng.standard_normal((X.shape[1], neurons))
    signal /= signal.std(0)
    return model, as_tokens(rows), recording(signal[..., None] + noise * rng.standard_normal((n, neurons, repeats)))


def test_the_layer_that_the_responses_come_from_wins_and_reaches_its_ceiling():
    model, tokens, data = made_from(2)
    ds = measure_neural(model, tokens, data, permutations=39, alphas=(1.0, 10.0, 100.0))
    assert int(ds.mean_predictivity.argmax("layer")) == 2
    assert ds.layer.values.tolist() == [0, 1, 2, 3]
    # Noise of variance 1 over 6 repeats: reliability 1/(1 + 1/6), ceiling .926.
    assert float(ds.noise_ceiling.mean()) == pytest.approx(np.sqrt(6 / 7), abs=0.02)
    assert float(ds.median_normalised_predictivity[2]) == pytest.approx(1.0, abs=0.06)
    assert (ds.median_normalised_predictivity[[0, 1, 3]] < ds.median_normalised_predictivity[2] - 0.02).all()
    assert float(ds.p_value[2]) == float(ds.p_value_corrected[2]) == 1 / 40
    assert abs(float(ds.null_mean[2])) < 0.1
    assert (int(ds.n_stimuli), int(ds.n_repeats)) == (150, 6)


def test_every_layer_is_the_single_measure_to_the_digit():
    model, tokens, data = made_from(1, n=60)
    data = dataclasses.replace(data, group=np.arange(60) // 3)
    options = {"folds": 4, "permutations": 29, "halves": 7, "alphas": (1.0, 30.0), "seed": 5}
    ds = measure_neural(model, tokens, data, **options)
    for layer, X in enumerate(layer_features(model, tokens, data)):
        alone = neural_predictivity(X, data.values, groups=data.group, **options)
        for name in alone:
            found = ds[name] if name == "noise_ceiling" else ds[name].isel(layer=layer)
            np.testing.assert_array_equal(found.values, alone[name].values, err_msg=name)
            assert ds[name].claim == alone[name].claim
    assert (ds.attrs["grouped"], ds.attrs["permutations"], ds.attrs["seed"]) == (1, 29, 5)


def test_the_corrected_p_counts_permutations_in_which_any_layer_does_as_well(monkeypatch):
    """The null is seen layer by layer; the correction is then its definition, written out."""
    seen, real = [], predictivity.null_predictivity
    monkeypatch.setattr(predictivity, "null_predictivity", lambda *args: seen.append(real(*args)) or seen[-1])
    model, tokens, data = made_from(1, n=45, noise=12.0, repeats=2)
    ds = measure_neural(model, tokens, data, permutations=50, alphas=(10.0,), folds=3)
    for layer, r in enumerate(ds.mean_predictivity.values):
        any_layer = sum(max(null[k] for null in seen) >= r for k in range(50))
        assert float(ds.p_value_corrected[layer]) == pytest.approx((1 + any_layer) / 51, rel=1e-12)
    assert (ds.p_value_corrected >= ds.p_value).all()
    assert (ds.p_value_corrected > ds.p_value).any()


def test_noise_seldom_gives_the_best_layer_a_small_corrected_p():
    """Without a relation the smallest corrected p is uniform on k/10; the smallest of the plain ones is below .2 more often."""
    model, tokens = recorder(), as_tokens(ragged(18, seed=4))
    small = {"p_value": 0, "p_value_corrected": 0}
    for seed in range(50):
        noise = np.random.default_rng(seed).standard_normal((18, 1))
        ds = measure_neural(model, tokens, recording(noise), permutations=9, alphas=(10.0,), folds=2, seed=seed)
        for name in small:
            small[name] += float(ds[name].min()) <= 0.2
    assert abs(small["p_value_corrected"] / 50 - 0.2) < 4 * np.sqrt(0.16 / 50)
    assert small["p_value"] > small["p_value_corrected"]


def test_what_the_group_says_of_itself():
    model, tokens, data = made_from(1, n=30)
    lines = []
    data = dataclasses.replace(data, notes=("1 of 6 neurons were left out: they have missing values.",))
    ds = measure_neural(model, tokens, data, permutations=2, folds=2, alphas=(1.0,), pool="last", progress=lines.append)
    assert ds.attrs["pool"] == "last over real positions"
    assert (ds.attrs["responses"], ds.attrs["response_units"]) == ("made up", "Hz")
    assert ds.attrs["notes"] == list(data.notes)
    assert ds.attrs["source"] == "Transformer on made up"
    assert (ds.attrs["dtype"], ds.attrs["seed"], ds.label.values.tolist()) == ("float64", 0, list("01234"))
    assert [line for line in lines if "layer" in line][-1] == "predicting neurons from layer 3 of 3"
    assert lines[:2] == ["recording states: 50 % of 30 stimuli", "recording states: 100 % of 30 stimuli"]
    no_repeats = dataclasses.replace(data, values=data.values[..., :1])
    single = measure_neural(model, tokens, no_repeats, permutations=2, folds=2, alphas=(1.0,))
    assert {"noise_ceiling", "normalised_predictivity"}.isdisjoint(single)
    for name, variable in {**ds.data_vars, **single.data_vars}.items():
        assert {"units", "long_name", "claim"} <= set(variable.attrs), name
        assert "layer" in variable.dims or name in ("noise_ceiling", "n_stimuli", "n_repeats")


def test_intervals_are_of_held_out_predictions_with_the_same_stimuli_drawn_for_every_layer():
    """From the single measure's folds and fits; draws by the fourth of the seed's children."""
    model, tokens, data = made_from(2, n=48, noise=2.0, repeats=3)
    data = dataclasses.replace(data, group=np.arange(48) // 3)
    options = {"folds": 4, "permutations": 2, "alphas": (1.0, 30.0), "seed": 5, "resamples": 150}
    ds = measure_neural(model, tokens, data, level=0.9, **options)
    split, *_, draws = np.random.SeedSequence(5).spawn(4)
    Y, drawn = data.values.mean(-1), []
    for X in layer_features(model, tokens, data):
        parts = []
        for train, test in predictivity.divide("", data.group, 4, split):
            P = predictivity.RidgeFold.of(X, train, test, (1.0, 30.0)).predict(Y)[0]
            parts.append((P, Y[test], data.group[test]))
        drawn.append(resampled_predictivity(*map(list, zip(*parts, strict=True)), 150, draws))
    expected = against_best(ds.mean_predictivity.values, np.array(drawn), 0.9, 16 - 4)
    assert len(expected) == 5
    for name, (_, value, _) in expected.items():
        np.testing.assert_allclose(ds[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert (ds.attrs["level"], ds.attrs["resamples"]) == (0.9, 150)
    spread = float(ds.mean_predictivity_high[2] - ds.mean_predictivity_low[2])
    assert -float(ds.difference_to_best_low[2]) < spread / 2  # the layers err together


def test_a_layer_that_all_responses_come_from_is_told_apart_until_noise_hides_it():
    kept = []
    for noise in (0.3, 20.0):
        model, tokens, data = made_from(2, n=90, noise=noise)
        ds = measure_neural(model, tokens, data, permutations=1, alphas=(1.0, 10.0))
        kept.append((ds.difference_to_best_high == 0).values.tolist())
        assert float(ds.difference_to_best.max()) == 0
    assert kept[0] == [False, False, True, False]
    assert kept[1][2]
    assert sum(kept[1]) > 1


def test_folds_too_small_to_be_drawn_again_have_no_intervals_and_say_so():
    model, tokens, data = made_from(1, n=24)
    data = dataclasses.replace(data, group=np.arange(24) // 4, notes=("one",))
    ds = measure_neural(model, tokens, data, permutations=1, folds=3, alphas=(1.0,))
    assert not [name for name in ds if name.endswith("_low") or "best" in name]
    assert {"level", "resamples"}.isdisjoint(ds.attrs)
    assert ds.attrs["notes"][0] == "one"
    assert "a fold holds 2 of the 6 stimuli or groups" in ds.attrs["notes"][1]
    assert "difference_to_best" in measure_neural(model, tokens, data, permutations=1, folds=2, alphas=(1.0,))


class Letters:
    """A tokenizer of three letters with a token before and after every text."""

    name, size, before, after, special = "letters", 20, (1,), (2,), frozenset((1, 2))

    def encode(self, text):
        return [3 + " ab".index(letter) for letter in text], list(range(1, len(text) + 1))

    def pieces(self, tokens):
        return [b" ab"[t - 3 : t - 2] if t > 2 else b"" for t in tokens]


def test_texts_of_a_recording_become_inputs_once_each():
    tokenizer = Letters()
    data = recording(np.zeros((4, 1)), text=("b a", "a", "b a", "ab"), case=np.array([9, 8, 7, 6]))
    tokens, data = stimulus_tokens(data, tokenizer, max_length=6)
    assert tokens.n_cases == 3
    for i, text in enumerate(("b a", "a", "b a", "ab")):
        row = tokens.ids[data.case[i], : tokens.lengths[data.case[i]]].tolist()
        assert row == [*tokenizer.before, *tokenizer.encode(text)[0], *tokenizer.after]
    assert len(set(data.case.tolist())) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no `text`"),
        (("a", ""), "stimulus 1 has no tokens"),
        (("a", "aaaaa"), "stimulus 1 has 7 tokens, the model takes 6"),
    ],
)
def test_texts_that_cannot_be_inputs(text, words):
    with pytest.raises(DataError, match=words):
        stimulus_tokens(recording(np.zeros((2, 1)), text=text), Letters(), max_length=6)


def test_texts_of_a_recording_are_held_to_the_inputs():
    """With its own texts as inputs it runs; with other inputs beside it, it is refused before it does."""
    model, rng = recorder(), np.random.default_rng(8)
    texts = tuple("".join("ab "[k] for k in rng.integers(3, size=5)) + "a" for _ in range(12))
    data = recording(rng.standard_normal((12, 2)), text=texts)
    tokenizer = Letters()
    tokens, placed = stimulus_tokens(data, tokenizer)
    options = {"permutations": 1, "folds": 2, "alphas": (1.0,)}
    assert measure_neural(model, tokens, placed, **options).sizes["neuron"] == 2
    bare = as_tokens([tokenizer.encode(text)[0] for text in texts], tokenizer)
    assert measure_neural(model, bare, data, **options).sizes["neuron"] == 2
    rows = [tokenizer.encode(text)[0] for text in texts]
    rows[7] = rows[7][:-1]
    with pytest.raises(DataError, match="input 7 is not the text that made up holds for stimulus 7"):
        measure_neural(Untouched(), as_tokens(rows, tokenizer), data, **options)
    word = dataclasses.replace(data, position=np.ones(12, dtype=int))  # a text is then a part of its input
    assert measure_neural(model, as_tokens(rows, tokenizer), word, **options).sizes["neuron"] == 2


def test_the_group_is_written_read_and_told(tmp_path):
    """What is measured fits the schema of results and the page's section."""
    model, tokens, data = made_from(2, n=60)
    data = dataclasses.replace(data, neurons=("a", "<b>", "c", "d", "é"), notes=("1 of 6 neurons were left out: x.",))
    ds = measure_neural(model, tokens, data, permutations=19, alphas=(1.0, 10.0))
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/neural": ds})
    back = read_results(write_results(tree, tmp_path / "r.nc"))
    xr.testing.assert_equal(back["neural"].to_dataset(), ds)
    section = neural_section(back)[0]
    best = int(ds.mean_predictivity.argmax("layer"))
    assert f"Of 4 layers, layer {best} predicts the 5 neurons best" in section.findings[0]
    assert "p = 0.05" in section.findings[1]
    assert section.notes == ["1 of 6 neurons were left out: x."]


class Untouched:
    """Stands for a model that must not have run."""

    kind, vocabulary, max_length, name = "tokens", 20, None, "model"

    def record(self, x, mask=None):
        raise AssertionError("the model ran before the refusal")


@pytest.mark.parametrize(
    ("change", "options", "error", "words"),
    [
        (
            {"case": np.array([0, 1, 8, 3, 4, 5, 6, 7])},
            {},
            DataError,
            "stimulus 2 of made up is input 8, but there are 8",
        ),
        (
            {"position": np.array([0, len(ragged(8)[1]), 0, 0, 0, 0, 0, 0])},
            {},
            DataError,
            "stimulus 1 .* stands at position . of input 1",
        ),
        ({}, {"pool": "max"}, ArgumentError, "mean, last, first"),
        ({}, {"batch_size": 0}, ArgumentError, "batch_size"),
        ({}, {"permutations": 0}, ArgumentError, "permutations"),
        ({}, {"resamples": 99}, ArgumentError, "resamples=99"),
        ({}, {"level": 95}, ArgumentError, "level=95"),
        ({}, {"folds": 4}, DataError, "Give fewer folds"),
        ({}, {"folds": 9}, ArgumentError, "fewer folds"),
        ({}, {"alphas": (0.0,)}, ArgumentError, "positive"),
        ({}, {"seed": -1}, ArgumentError, "seed"),
        ({"group": np.array([0, 0, 0, 0, 1, 1, 1, 2])}, {}, DataError, "have 1 of the 20 orders .* one size"),
    ],
)
def test_refusals_before_the_model_runs(change, options, error, words):
    with pytest.raises(error, match=words):
        measure_neural(
            Untouched(), as_tokens(ragged(8)), recording(np.arange(8.0)[:, None], **change), **{"folds": 2, **options}
        )


def test_neurons_that_respond_the_same_to_everything_are_said_and_cannot_be_all():
    model, tokens, data = made_from(1, n=30)
    noise = np.random.default_rng(0).standard_normal(data.values[:, :2].shape)
    noise -= noise.mean(2, keepdims=True)  # repeats differ, their means do not
    still = 7.0 + np.concatenate((np.zeros_like(noise[:, :1]), noise[:, :1]), axis=1)
    some = dataclasses.replace(data, values=np.concatenate((data.values[:, :3], still), axis=1))
    ds = measure_neural(model, tokens, some, permutations=2, folds=2, alphas=(1.0,))
    assert "2 of 5 neurons respond the same to all stimuli; their predictivity counts as 0." in ds.attrs["notes"]
    with pytest.raises(DataError, match="every neuron of made up responds the same to all 8 stimuli"):
        measure_neural(Untouched(), as_tokens(ragged(8)), recording(np.full((8, 2), 0.1)), folds=2)


def test_memory_is_refused_after_the_first_batch():
    model = Counted(recorder())
    data = recording(np.zeros((40, 1)))
    size = 8 * 4 * 40 * 16  # 3 layers and the embedding
    with pytest.raises(DataError, match="40 stimuli in 4 layers"):
        layer_features(model, as_tokens(ragged(40)), data, memory_limit=size - 1, batch_size=5)
    assert model.cases == 5
    assert len(layer_features(model, as_tokens(ragged(40)), data, memory_limit=size)) == 4


def test_order_of_stimuli_changes_nothing_but_their_order():
    model, tokens, data = made_from(2, n=30)
    order = np.random.default_rng(7).permutation(30)
    mixed = dataclasses.replace(data, values=data.values[order], case=data.case[order])
    for one, two in itertools.zip_longest(layer_features(model, tokens, data), layer_features(model, tokens, mixed)):
        np.testing.assert_array_equal(one[order], two)
