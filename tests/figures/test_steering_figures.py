"""Figures of steering and ablation show the numbers of their Datasets, recomputed here by plain indexing."""

import base64
import json

import numpy as np
import pytest
import torch
import xarray as xr

from oplens import S4D, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation import CentredLogits, Channels, Windows
from oplens.explanation.interventions.ablation import ablate
from oplens.explanation.interventions.steering import steer
from oplens.figures.steering import ablation_scatter, change_sizes, predicted_against_achieved, steering_overlay

HOSTILE = '</script><img src=x onerror=alert(1)>%{x}<b>"&'


@pytest.fixture(scope="module")
def op():
    torch.manual_seed(0)
    config = S4DConfig(3, 2, 4, 8, dt_min=0.05, dt_max=0.4, channels=("C3", HOSTILE, "Cz"), sampling_rate=50.0)
    model = S4D(config).double()
    X = np.random.default_rng(0).normal(size=(7, 3, 40))
    with torch.no_grad():
        model.decoder.weight *= 3
        model.decoder.bias -= model(torch.from_numpy(X).transpose(1, 2)).mean(0)
    return expand(model, X)


@pytest.fixture(scope="module")
def steered(op):
    return steer(op, op.training.X.astype(float))


@pytest.fixture(scope="module")
def ablated(op):
    return ablate(op, op.training.X.astype(float), by=(Channels(), Windows(2)))


def drawn(figure):
    return json.loads(figure.to_json())


def numbers(value):
    """What a browser decodes: plotly writes typed arrays as base64."""
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
    return np.asarray(value)


def test_the_overlay_draws_signal_changed_signal_and_magnified_change(steered):
    figure = drawn(steering_overlay(steered, 2, channels=2))
    row = steered.isel(case=2)
    keep = np.sort(np.argsort(-row.channel_energy.values)[:2])
    signal, delta = row.signal.values[keep], row.delta.values[keep]
    centred = signal - signal.mean(1, keepdims=True)
    step = np.quantile(np.ptp(centred, axis=1), 0.75)
    labels = figure["layout"]["yaxis"]["ticktext"]
    factor = float(labels[1].removeprefix("change × "))
    assert step / 2 / np.ptp(delta, axis=1).max() / 2.5 < factor <= step / 2 / np.ptp(delta, axis=1).max()
    for place in range(2):
        expected = (centred[place], centred[place] + delta[place], factor * delta[place])
        for k, at in enumerate((2 * place, 2 * place, 2 * place + 1)):
            trace = figure["data"][3 * place + k]
            np.testing.assert_allclose(numbers(trace["y"]), expected[k] / step - 0.75 * at, atol=1e-5)
            np.testing.assert_allclose(numbers(trace["x"]), np.arange(40) / 50.0, atol=1e-6)
    said = figure["layout"]["title"]["text"]
    assert f"{row.to.item()} over {row.against.item()}" in said
    assert f"{float(row.start_target):+.2f}".replace("-", "−") in said


def test_names_of_channels_are_shown_letter_by_letter(steered):
    figure = steering_overlay(steered, 0, channels=3)
    assert "<img" not in " ".join(figure.layout.yaxis.ticktext)


def test_the_overlay_of_short_cases_ends_with_them(op):
    X = op.training.X.astype(float)
    ds = steer(op, [X[0], X[1][:, :17]])
    trace = drawn(steering_overlay(ds, 1, channels=3))["data"][0]
    assert len(numbers(trace["x"])) == len(numbers(trace["y"])) == 17
    assert abs(numbers(trace["y"]).mean()) < 1e-6


def test_long_signals_keep_their_peaks(steered):
    time = np.arange(5000.0)
    signal = np.zeros((1, 3, 5000))
    signal[0, :, 3333] = 7.0
    variables = {
        name: ("case", steered[name].values[:1])
        for name in ("start_target", "predicted_target", "achieved_target", "norm")
    }
    long = xr.Dataset(
        {
            **variables,
            "signal": (("case", "channel", "time"), signal),
            "delta": (("case", "channel", "time"), 0.1 * signal),
            "channel_energy": (("case", "channel"), np.full((1, 3), 1 / 3)),
        },
        coords={
            "case": [0],
            "time": time,
            "channel": ["a", "b", "c"],
            "n_steps": ("case", [5000]),
            "to": ("case", ["x"]),
            "against": ("case", ["y"]),
        },
    )
    trace = drawn(steering_overlay(long, 0))["data"][0]
    y = numbers(trace["y"])
    assert len(y) < 1000
    assert numbers(trace["x"])[np.argmax(y)] == 3333


def test_predictions_are_drawn_as_changes_of_the_margin(steered):
    first, refined = drawn(predicted_against_achieved(steered))["data"]
    start = steered.start_target.values
    for trace, prefix in ((first, "first_"), (refined, "")):
        np.testing.assert_allclose(numbers(trace["x"]), steered[f"{prefix}predicted_target"].values - start, atol=1e-6)
        np.testing.assert_allclose(numbers(trace["y"]), steered[f"{prefix}achieved_target"].values - start, atol=1e-6)


def test_unrefined_changes_are_drawn_once(op):
    ds = steer(op, op.training.X.astype(float), refine=False)
    assert len(drawn(predicted_against_achieved(ds))["data"]) == 1


def test_sizes_stand_in_order_above_their_bounds(steered):
    bars, bound, found = drawn(change_sizes(steered))["data"]
    order = np.argsort(steered.norm.values)
    np.testing.assert_allclose(numbers(found["y"]), steered.norm.values[order], rtol=1e-6)
    np.testing.assert_allclose(numbers(bound["y"]), steered.norm_lower_bound.values[order], rtol=1e-6)
    drawn_bars = np.array([np.nan if v is None else v for v in numbers(bars["y"])], dtype=float).reshape(-1, 3)
    np.testing.assert_allclose(drawn_bars[:, 0], steered.norm_lower_bound.values[order], rtol=1e-6)
    np.testing.assert_allclose(drawn_bars[:, 1], steered.norm.values[order], rtol=1e-6)
    without = drawn(change_sizes(steered.drop_vars("norm_lower_bound")))["data"]
    assert [trace["name"] for trace in without] == ["found"]


def test_ablation_draws_a_dot_per_case_and_part(ablated):
    share, cut = drawn(ablation_scatter(ablated))["data"]
    actual = ablated.actual_change.transpose("case", "rank").values.ravel()
    for trace, values in ((share, ablated.share_change), (cut, ablated.predicted_change.sel(order=2))):
        np.testing.assert_allclose(numbers(trace["x"]), values.transpose("case", "rank").values.ravel(), atol=1e-6)
        np.testing.assert_allclose(numbers(trace["y"]), actual, atol=1e-6)
    assert share["text"][1] == "C3 · window 1, case 0"
    only = drawn(ablation_scatter(ablated.drop_vars("predicted_change")))["data"]
    assert [trace["name"] for trace in only] == ["minus its share"]


def test_ablation_of_class_centred_logits_and_of_many_parts(op, monkeypatch):
    ds = ablate(op, op.training.X.astype(float), by=Channels(), target=CentredLogits())
    trace = drawn(ablation_scatter(ds))["data"][1]
    expected = ds.predicted_change.sel(order=2).transpose("case", "rank", "class").values.ravel()
    np.testing.assert_allclose(numbers(trace["x"]), expected, atol=1e-6)
    monkeypatch.setattr("oplens.figures.steering.MARKERS", 10)
    few = drawn(ablation_scatter(ds))["data"][1]
    np.testing.assert_allclose(numbers(few["x"]), expected[::5], atol=1e-6)
    assert few["text"][1] == trace["text"][5]


def test_what_cannot_be_drawn_is_refused_with_a_sentence(steered):
    with pytest.raises(ArgumentError, match="holds no signals"):
        steering_overlay(steered.drop_vars("delta"), 0)
    with pytest.raises(ArgumentError, match="case=99"):
        steering_overlay(steered, 99)
    with pytest.raises(ArgumentError, match="no change reaches"):
        change_sizes(steered.assign(norm=0 * steered.norm))
