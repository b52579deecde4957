"""Preprocessing against numpy case by case, and configurations that cannot work."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError
from oplens.models import S4D, Preprocessing, S4DConfig


def ragged(seed, n_channels=3):
    rng = np.random.default_rng(seed)
    cases = [
        rng.normal(rng.normal(0, 50, (n_channels, 1)), 3, (n_channels, int(length)))
        for length in rng.integers(1, 30, 6)
    ]
    X = np.zeros((6, n_channels, 30))
    for case, x in enumerate(cases):
        X[case, :, : x.shape[1]] = x
    return cases, X, np.array([x.shape[1] for x in cases])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), remove_offset=st.booleans())
def test_standardising_uses_valid_steps_only(seed, remove_offset):
    cases, X, lengths = ragged(seed)
    found = Preprocessing.standardise(X, lengths, remove_offset)
    if remove_offset:
        cases = [x - x.mean(1, keepdims=True) for x in cases]
    together = np.concatenate(cases, axis=1)
    np.testing.assert_allclose(found.mean, 0 if remove_offset else together.mean(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.scale, together.std(1), rtol=1e-12)
    model = S4D(S4DConfig(3, 2, d_model=2, d_state=2, preprocessing=found)).double()
    x, mask = model.preprocess(torch.from_numpy(X.transpose(0, 2, 1).copy()), torch.from_numpy(lengths))
    for case, values in enumerate(cases):
        prepared = (values - np.array(found.mean)[:, None]) / np.array(found.scale)[:, None]
        np.testing.assert_allclose(x[case, : lengths[case]].numpy().T, prepared, atol=1e-11)
        assert not x[case, lengths[case] :].any()
    assert mask.sum(1).tolist() == lengths.tolist()


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, 1e6 + 0.1, -3e-7])
def test_a_dead_channel_keeps_scale_one(value):
    X = np.random.default_rng(0).normal(size=(7, 2, 50))
    X[:, 1] = value
    found = Preprocessing.standardise(X, np.full(7, 50))
    assert found.scale[1] == 1
    assert found.scale[0] == pytest.approx(X[:, 0].std())


def test_a_channel_of_tiny_unit_is_not_dead():
    """Volts where microvolts were expected."""
    X = np.random.default_rng(0).normal(0, 1e-6, size=(5, 1, 40))
    assert Preprocessing.standardise(X, np.full(5, 40)).scale[0] == pytest.approx(X.std(), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e-15, 1e-30, 1e20])
def test_standardised_data_do_not_depend_on_the_unit(scale):
    X = np.random.default_rng(0).normal(2, 1, size=(5, 2, 40))
    found = Preprocessing.standardise(X * scale, np.full(5, 40))
    np.testing.assert_allclose(np.array(found.scale) / scale, X.std((0, 2)), rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int16, torch.int64], ids=str)
def test_inputs_of_any_real_dtype_enter_a_model(dtype):
    model = S4D(S4DConfig(2, 2, d_model=3, d_state=4, preprocessing=Preprocessing((1.0, 2.0), (2.0, 4.0))))
    x = torch.tensor([[[3, 5], [7, -4]]]).to(dtype)
    prepared, _ = model.preprocess(x, None)
    assert prepared.dtype == torch.float32
    assert prepared.tolist() == [[[1.0, 0.75], [3.0, -1.5]]]


def test_a_large_offset_is_removed_before_it_costs_digits():
    model = S4D(S4DConfig(1, 2, d_model=3, d_state=4, preprocessing=Preprocessing((1e9,), (1.0,))))
    x = torch.tensor([[[1e9 + 0.25], [1e9 - 0.5]]], dtype=torch.float64)
    assert model.preprocess(x, None)[0].flatten().tolist() == [0.25, -0.5]


def test_dictionaries_give_the_configuration_back():
    config = S4DConfig(2, 2, classes=("a", "b"), sampling_rate=100, preprocessing=Preprocessing((1, 2), (3, 4), True))
    assert S4DConfig.from_dict(config.to_dict()) == config
    assert S4DConfig.from_dict({"d_input": 2, "n_classes": 3}) == S4DConfig(2, 3)
    assert config.preprocessing == Preprocessing((1.0, 2.0), (3.0, 4.0), True)
    assert S4DConfig(np.int64(2), 2).d_input == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Preprocessing((0.0,), (1.0, 1.0)), "1 means but 2 scales"),
        (lambda: Preprocessing((0.0,), (0.0,)), "must be positive"),
        (lambda: Preprocessing((0.0,), (-1.0,)), "must be positive"),
        (lambda: Preprocessing((float("inf"),), (1.0,)), "not finite"),
        (lambda: Preprocessing((0.0,), (float("nan"),)), "not finite"),
        (lambda: Preprocessing(0.0, 1.0), "one number per channel"),
        (lambda: Preprocessing(("a",), (1.0,)), "one number per channel"),
        (lambda: Preprocessing((0.0,), (1.0,), 1), "True or False"),
        (lambda: S4DConfig(0, 2), "d_input=0"),
        (lambda: S4DConfig(2, 0), "n_classes=0"),
        (lambda: S4DConfig(2, 2, d_model=2.0), "expected an integer"),
        (lambda: S4DConfig(2, 2, d_state=7), "even"),
        (lambda: S4DConfig(2, 2, dropout=-0.1), "at least 0"),
        (lambda: S4DConfig(2, 2, dropout=float("nan")), "at least 0"),
        (lambda: S4DConfig(2, 2, dt_min=0), "needs 0 < dt_min"),
        (lambda: S4DConfig(2, 2, n_layers=2), "plain architecture has one"),
        (lambda: S4DConfig(2, 2, prenorm=True), "plain architecture has one"),
        (lambda: S4DConfig(2, 2, channels=("a",)), "1 names of channels"),
        (lambda: S4DConfig(2, 2, classes="ab"), "sequence of names"),
        (lambda: S4DConfig(2, 2, sampling_rate=float("inf")), "positive rate"),
        (lambda: S4DConfig(2, 2, preprocessing=Preprocessing.identity(3)), "holds 3 channels"),
        (lambda: S4DConfig(2, 2, preprocessing="none"), "expected a Preprocessing"),
        (lambda: S4DConfig.from_dict({"d_input": 2, "n_classes": 2, "layers": 3}), "unknown keys layers"),
        (lambda: S4DConfig.from_dict({"n_classes": 2}), "'d_input' is missing"),
    ],
)
def test_what_cannot_work_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
