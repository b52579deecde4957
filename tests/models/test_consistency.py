"""The check a user runs: it is quiet when modes agree and shows where they do not."""

import numpy as np
import pytest
import torch

from oplens.data import as_sequences
from oplens.errors import ArgumentError, DataError
from oplens.models import S4D, Preprocessing, S4DConfig, check_consistency
from oplens.operators import diagonal


def build(architecture="plain", n_layers=1):
    torch.manual_seed(0)
    preprocessing = Preprocessing((1.0, -2.0), (2.0, 0.5))
    return S4D(
        S4DConfig(2, 3, d_model=4, d_state=8, n_layers=n_layers, architecture=architecture, preprocessing=preprocessing)
    )


def cases(lengths=(30, 7, 19)):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, length)) for length in lengths]


@pytest.mark.parametrize(("architecture", "n_layers"), [("plain", 1), ("reference", 2)])
def test_modes_agree_to_rounding(architecture, n_layers, capsys):
    found = check_consistency(build(architecture, n_layers), cases())
    assert [(d.dtype, d.mode) for d in found.differences] == [
        ("float32", "recurrence"),
        ("float32", "step"),
        ("float64", "recurrence"),
        ("float64", "step"),
    ]
    assert all(len(d.layers) == n_layers for d in found.differences)
    assert 0 < found.worst("float64") < 1e-12
    assert found.worst("float64") < found.worst("float32") < 1e-4
    printed = capsys.readouterr().out
    for word in ("float32", "float64", "recurrence", "step", f"layer {n_layers - 1}", "logits"):
        assert word in printed


def test_a_float64_model_is_compared_once():
    assert [d.dtype for d in check_consistency(build().double(), cases()).differences] == ["float64", "float64"]


def test_the_difference_is_the_one_it_names(monkeypatch):
    """With every single step off by 1 % of D u, the layer differs by max |0.01 D u| / max |z|."""
    model = build().double().requires_grad_(False)
    step = diagonal.step
    monkeypatch.setattr(
        diagonal, "step", lambda s, u, state: (step(s, u, state)[0] + 0.01 * s.D * u, step(s, u, state)[1])
    )
    X = np.stack([case[:, :7] for case in cases()])
    found = check_consistency(model, X)
    trace = model.eval().trace(torch.from_numpy(X.transpose(0, 2, 1).copy()))
    expected = (0.01 * model.s4_layers[0].D * trace.layers[0].u).abs().max() / trace.layers[0].z.abs().max()
    difference = {d.mode: d for d in found.differences}
    assert difference["step"].layers[0] == pytest.approx(float(expected), rel=1e-5)
    assert difference["recurrence"].layers[0] < 1e-13
    assert found.worst() >= difference["step"].layers[0]


def test_padding_counts_as_no_difference(monkeypatch):
    step, calls = diagonal.step, []

    def wrong_past_seven(system, u, state):
        calls.append(1)
        z, state = step(system, u, state)
        return z + (len(calls) > 7), state

    monkeypatch.setattr(diagonal, "step", wrong_past_seven)
    model = build().double()
    X = np.random.default_rng(0).normal(size=(3, 2, 20))
    assert check_consistency(model, X, np.array([7, 3, 5])).worst() < 1e-12
    calls.clear()
    assert check_consistency(model, X, np.array([7, 8, 5])).worst() > 1e-3


def test_the_difference_knows_no_unit():
    X = np.stack([case[:, :7] for case in cases()])
    small, large = (check_consistency(model, X).worst("float32") for model in (build(), scaled(build(), 1e6)))
    assert large < 30 * small + 1e-6


def scaled(model, factor):
    with torch.no_grad():
        model.encoder.weight.mul_(factor)
        model.encoder.bias.mul_(factor)
    return model


def test_every_layout_gives_the_same_answer():
    model, data = build(), as_sequences(cases())
    padded = data.X.copy()
    answers = [
        check_consistency(model, X, lengths) for X, lengths in ((cases(), None), (data, None), (padded, data.lengths))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_many_cases_are_taken_in_parts():
    X = np.random.default_rng(1).normal(size=(40, 2, 12))
    model = build()
    whole = check_consistency(model, X).worst("float32")
    assert whole >= max(check_consistency(model, X[i : i + 20]).worst("float32") for i in (0, 20)) / 2


def test_training_mode_is_left_as_it_was():
    model = build().train()
    check_consistency(model, cases())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("X", "lengths", "error", "words"),
    [
        (np.zeros((2, 3, 9)), None, ArgumentError, "3 channels.*d_input=2"),
        (np.zeros((2, 2, 9)), [9], ArgumentError, "2 integers between 1 and 9"),
        (np.zeros((2, 2, 9)), [9, 10], ArgumentError, "2 integers between 1 and 9"),
        (np.zeros((2, 2, 9)), [9.0, 3.0], ArgumentError, "2 integers"),
        (np.full((2, 2, 9), np.nan), None, DataError, "NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(X, lengths, error, words):
    with pytest.raises(error, match=words):
        check_consistency(build(), X, lengths)


def test_what_is_no_model_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"model=ndarray\): give an S4D; a fitted classifier's is its model_"):
        check_consistency(np.zeros((2, 2, 9)), build())


def test_an_uncompared_dtype_is_refused():
    with pytest.raises(ArgumentError, match="float64"):
        check_consistency(build().double(), cases()).worst("float32")
