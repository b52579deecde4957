"""Smaller models against the network written out in numpy without the waves that were left out, and what a reader is told of them."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from account_oracles import Oracle, Weights, gelu, respond
from oplens import S4D, S4DConfig, expand
from oplens.data import as_sequences, noisy_sinusoids
from oplens.errors import ArgumentError, DataError
from oplens.explanation import LayerWaves, Waves
from oplens.explanation.reduction.reduction import RIDGE, Reduction, reduce, run
from oplens.explanation.reduction.reduction_curve import reduction_curve
from oplens.models import Preprocessing
from oplens.results import recomputed_completeness

LENGTHS = [17, 9, 13, 17, 16, 11, 17, 8]


def small(n_classes=2, seed=1, **more):
    torch.manual_seed(seed)
    preprocessing = Preprocessing((0.3, -0.2), (1.5, 0.7))
    config = S4DConfig(2, n_classes, 3, 8, dt_max=0.4, preprocessing=preprocessing, sampling_rate=50.0, **more)
    model = S4D(config)
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(2, n)) * rng.uniform(0.5, 2) + rng.normal(size=(2, 1)) for n in LENGTHS]
    return expand(model, X, order=1), X


def trained_inputs(X):
    return [x.astype(np.float32).astype(float) for x in X]


def importances(op, X):
    """Spreads of full shares of waves (H, P) and of skips (H,), from their definition in loops over time."""
    directions = (
        np.array([[-1.0, 1.0]]) if op.model.config.n_classes == 2 else np.eye(op.model.config.n_classes) - 1 / 3
    )
    oracle = Oracle(op.model, X, "hermite", 1, directions)
    waves, skips = [], []
    for x in trained_inputs(X):
        waves.append(oracle.terms(x, {"waves": True})[0]["full_share"])
        # Of the skip the oracle keeps the sum over features; one feature at a time is a model whose other readouts are 0.
        row = []
        for h in range(op.model.config.d_model):
            alone = S4D(op.model.config).double()
            state = {name: value.clone() for name, value in op.model.state_dict().items()}
            state["decoder.weight"][:, [g for g in range(op.model.config.d_model) if g != h]] = 0
            alone.load_state_dict(state)
            single = dataclasses.replace(op, model=alone.eval())
            lone = Oracle(single.model, X[:1], "hermite", 1, directions)
            lone.train, lone.m, lone.v, lone.d = oracle.train, oracle.m, oracle.v, oracle.d
            row.append(lone.terms(x, {"waves": True})[0]["source_full_share"][:, 1])
        skips.append(np.stack(row, axis=-1))
    return np.sqrt((np.std(waves, axis=0) ** 2).mean(0)), np.sqrt((np.std(skips, axis=0) ** 2).mean(0))


def without(op, X, keep, features):
    """Logits of the network with the waves of `keep` (H, P) and the features of `features`, in loops; the bias is the full model's."""
    weights = Weights(op.model)
    a, b, C, D = weights.system()
    rows = []
    for x in X:
        u = weights["encoder.weight"] @ weights.preprocess(x) + weights["encoder.bias"][:, None]
        modes, skip = respond((a, b, C * keep, D), u[None])
        pooled = gelu(modes[0].sum(1) + skip[0]).mean(-1)
        rows.append(weights["decoder.weight"][:, features] @ pooled[features] + weights["decoder.bias"])
    return np.array(rows)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("k", [1, 2, 5, 9, 12])
def test_a_smaller_model_is_the_network_without_the_other_waves(k, n_classes):
    op, X = small(n_classes)
    waves, skips = importances(op, X)
    order = np.argsort(-waves, axis=None)
    keep = np.zeros(waves.size, bool)
    keep[order[:k]] = True
    keep = keep.reshape(waves.shape)
    features = np.flatnonzero(keep.any(-1) | (skips >= waves.reshape(-1)[order[k - 1]]))
    model = reduce(op, k)
    assert model.config.d_model == len(features)
    assert model.config.d_state == 2 * max(1, keep.sum(-1).max())
    full = without(op, trained_inputs(X), np.ones_like(keep), np.arange(3))
    cut = without(op, trained_inputs(X), keep, features)
    expected = without(op, X, keep, features) + (full - cut).mean(0)
    np.testing.assert_allclose(run(model, as_sequences(X))[1], expected, atol=1e-10)


def test_the_skip_alone_keeps_a_feature_where_it_varies_as_much():
    op, X = small()
    loud = S4D(op.model.config).double()
    loud.load_state_dict(op.model.state_dict())
    with torch.no_grad():
        loud.layer(0).kernel.C[1] *= 1e-3
        loud.layer(0).D[1] = 30.0
    op = expand(loud, X, order=1)
    waves, skips = importances(op, X)
    assert skips[1] > waves.max() > 10 * waves[1].max()
    model = reduce(op, 1)
    index = int(np.flatnonzero(model.layer(0).D.detach().numpy() == 30.0)[0])
    assert not model.layer(0).kernel.C[index].any()
    curve = reduction_curve(op, X, kept=[1])
    assert curve.n_skips.values.tolist() == [model.config.d_model - 1]
    assert curve.n_features.values.tolist() == [model.config.d_model]


ARCHITECTURES = [
    {},
    {"discretisation": "bilinear"},
    {"coupling": 2, "phase_delay": 0.01},
    {"architecture": "reference"},
    {"architecture": "reference", "n_layers": 2, "prenorm": True},
    {"architecture": "reference", "n_layers": 2, "coupling": 1},
]


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("more", ARCHITECTURES, ids=str)
def test_all_waves_kept_are_the_model_itself(more, refit):
    op, X = small(3, **more)
    model = reduce(op, op.model.config.n_layers * 12, refit=refit)
    np.testing.assert_allclose(run(model, as_sequences(X))[1], run(op.model, as_sequences(X))[1], atol=1e-11)


@pytest.mark.parametrize("more", ARCHITECTURES[3:], ids=str)
def test_layers_lose_their_least_waves_and_no_feature(more):
    op, X = small(2, **more)
    layers = op.model.config.n_layers
    share = op.explain(trained_inputs(X), by=LayerWaves()).layer_share.values
    spread = share.std(0)
    k = 7
    kept = spread >= np.sort(spread, axis=None)[-k]
    model = reduce(op, k)
    assert model.config.d_model == 3
    assert [int((model.layer(i).kernel.C != 0).any(-1).sum()) for i in range(layers)] == kept.sum((1, 2)).tolist()
    # The same weights with C = 0 in place: the architecture itself does the rest.
    silent = S4D(op.model.config).double().eval()
    silent.load_state_dict(op.model.state_dict())
    with torch.no_grad():
        for i in range(layers):
            silent.layer(i).kernel.C[torch.from_numpy(~kept[i])] = 0
    data, train = as_sequences(X), as_sequences(trained_inputs(X))
    shift = (run(op.model, train)[1] - run(silent, train)[1]).mean(0)
    np.testing.assert_allclose(run(model, data)[1], run(silent, data)[1] + shift, atol=1e-10)


def test_a_refitted_decoder_is_a_ridge_regression_of_what_is_missing():
    op, X = small(3)
    train = as_sequences(trained_inputs(X))
    plain, refitted = reduce(op, 4), reduce(op, 4, refit=True)
    pooled, own = run(plain, train)
    missing = run(op.model, train)[1] - own
    scaled = (pooled - pooled.mean(0)) / pooled.std(0)
    ridge = Ridge(alpha=RIDGE * len(X)).fit(scaled, missing)
    np.testing.assert_allclose(run(refitted, train)[1], own + ridge.predict(scaled), atol=1e-9)
    assert (np.abs(run(refitted, train)[1] - own - missing) ** 2).sum() < 0.9 * (missing**2).sum()
    for name, value in refitted.state_dict().items():
        assert name.startswith("decoder") or torch.equal(value, plain.state_dict()[name]), name


def test_a_smaller_model_is_an_ordinary_one(tmp_path):
    op, X = small()
    model = reduce(op, 5)
    model.save_pretrained(tmp_path / "small")
    again = S4D.from_pretrained(tmp_path / "small")
    assert again.config == model.config
    np.testing.assert_array_equal(run(again, as_sequences(X))[1], run(model, as_sequences(X))[1])
    ds = expand(model, X, order=3).explain(X, by=Waves())
    assert recomputed_completeness(ds) < 1e-10
    before = model.layer(0).kernel.C.detach().clone()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(torch.from_numpy(X[0].T.copy())[None]), torch.tensor([1])).backward()
    optimiser.step()
    assert not torch.equal(model.layer(0).kernel.C, before)


def test_making_a_smaller_model_draws_no_random_numbers():
    op, _ = small()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    reduce(op, 4, refit=True)
    assert torch.equal(torch.rand(2), expected)


def test_the_curve_measures_the_models_of_every_size():
    op, _ = small(3)
    rng = np.random.default_rng(5)
    test = [rng.normal(size=(2, 12)) + 0.5 for _ in range(20)]
    labels = np.array(op.model.config.classes)[rng.integers(0, 3, 20)]
    ds = reduction_curve(op, test, labels, kept=[3, 12, 1])
    assert ds.n_waves.values.tolist() == [1, 3, 12]
    full = run(op.model, as_sequences(test))[1]
    centred = full - full.mean(1, keepdims=True)
    for (position, k), refit in itertools.product(enumerate([1, 3, 12]), (False, True)):
        model, prefix = reduce(op, k, refit=refit), "refitted_" * refit
        logits = run(model, as_sequences(test))[1]
        decided = np.array(op.model.config.classes)[logits.argmax(1)]
        assert float(ds[f"{prefix}accuracy"][position]) == (decided == labels).mean()
        assert float(ds[f"{prefix}agreement"][position]) == (logits.argmax(1) == full.argmax(1)).mean()
        gap = logits - logits.mean(1, keepdims=True) - centred
        r2 = 1 - (gap**2).sum() / ((centred - centred.mean(0)) ** 2).sum()
        np.testing.assert_allclose(float(ds[f"{prefix}margin_r2"][position]), r2, rtol=1e-9, atol=1e-12)
        features = model.config.d_model
        # encoder 2 + 1, D, dt and readout 3 for each feature; 4 numbers for each wave; 3 biases of the decoder
        assert int(ds.n_parameters[position]) == features * (2 + 1 + 1 + 1 + 3) + 4 * k + 3
    assert int(ds.model_parameters) == 3 * 8 + 4 * 12 + 3
    assert float(ds.model_accuracy) == (np.array(op.model.config.classes)[full.argmax(1)] == labels).mean()
    assert "accuracy" not in reduction_curve(op, test, kept=[2])


def test_the_curve_names_the_most_important_waves():
    op, X = small()
    ds = reduction_curve(op, X)
    assert ds.n_waves.values.tolist() == [1, 2, 4, 8, 12]
    waves, _ = importances(op, X)
    order = np.argsort(-waves, axis=None)
    np.testing.assert_allclose(ds.importance, waves.reshape(-1)[order], rtol=1e-8)
    a = Weights(op.model).system()[0].reshape(-1)[order]
    np.testing.assert_allclose(ds.frequency, 50 * np.abs(np.angle(a)) / (2 * math.pi), atol=1e-9)
    np.testing.assert_allclose(ds.decay_time, -1 / (50 * np.log(np.abs(a))), rtol=1e-9)
    assert ds.member.values[0] == f"feature {order[0] // 4}, wave {order[0] % 4}"
    assert (ds.frequency.attrs["units"], ds.decay_time.attrs["units"]) == ("Hz", "s")
    deep, X = small(architecture="reference", n_layers=2)
    first = str(reduction_curve(deep, X, kept=[1]).member.values[0])
    layer = np.unravel_index(Reduction.of(deep, None, "test").order[0], (2, 3, 4))[0]
    assert first.startswith(f"layer {layer + 1}, feature ")


def test_few_resonant_waves_separate_15_from_20_hz():
    from oplens.estimator import S4DClassifier

    train = noisy_sinusoids(n_cases=60, n_timepoints=100, seed=0)
    test = noisy_sinusoids(n_cases=100, n_timepoints=100, seed=1)
    classifier = S4DClassifier(random_state=3, d_model=8, d_state=32, max_epochs=30).fit(train)
    ds = reduction_curve(expand(classifier, train), test, kept=[2, 128])
    assert float(ds.model_accuracy) >= 0.98
    assert float(ds.accuracy[0]) >= 0.97, "two waves of 128"
    assert np.abs(np.sort(ds.frequency.values[:2]) - [15, 20]).max() < 1.5
    assert int(ds.n_parameters[0]) * 10 < int(ds.model_parameters)


def test_large_training_sets_are_thinned_evenly(monkeypatch):
    op, _ = small()
    monkeypatch.setattr("oplens.explanation.reduction.reduction.MOST_CASES", 3)
    cases = Reduction.of(op, None, "test").cases
    np.testing.assert_array_equal(cases.lengths, [LENGTHS[i] for i in (0, 3, 6)])


def test_a_training_set_that_was_not_kept_is_asked_for():
    op, X = small()
    bare = dataclasses.replace(op, training=dataclasses.replace(op.training, X=None))
    with pytest.raises(ArgumentError, match=r"reduce: the operator's training set .* pass X_train="):
        reduce(bare, 3)
    with pytest.raises(ArgumentError, match="not the inputs the operator was fitted on"):
        reduce(bare, 3, X_train=[x + 1 for x in X])
    expected = reduce(op, 3).state_dict()
    for name, value in reduce(bare, 3, X_train=X).state_dict().items():
        np.testing.assert_allclose(value, expected[name], atol=1e-12)


def test_what_cannot_be_kept_is_a_sentence():
    op, X = small()
    for k, words in (
        (0, "at least 1 must stay"),
        (-2, "the model has 12"),
        (13, "choose k from 1 to 12"),
        (2.0, "no whole number"),
        (True, "no whole number"),
        ("3", "no whole number"),
    ):
        with pytest.raises(ArgumentError, match=words):
            reduce(op, k)
        with pytest.raises(ArgumentError, match=words):
            reduction_curve(op, X, kept=[k])
    for kept in ([], 4, "12"):
        with pytest.raises(ArgumentError, match="give numbers of waves"):
            reduction_curve(op, X, kept=kept)
    with pytest.raises(ArgumentError, match="give True"):
        reduce(op, 2, refit=1)
    with pytest.raises(ArgumentError, match="reduction_curve: the model has 2 input channels"):
        reduction_curve(op, np.zeros((2, 3, 10)))
    with pytest.raises(ArgumentError, match=r"reduction_curve\(y=...\): expected one label"):
        reduction_curve(op, X, ["a"])
    with pytest.raises(ArgumentError, match=r"reduction_curve\(y=...\): there are labels strange"):
        reduction_curve(op, X, ["strange"] * len(X))
    with pytest.raises(DataError):
        reduction_curve(op, [])
    torch.manual_seed(0)
    single = expand(S4D(S4DConfig(2, 1, 3, 8)), X)
    with pytest.raises(ArgumentError, match="one class has nothing to decide"):
        reduce(single, 2)
