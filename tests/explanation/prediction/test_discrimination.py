"""Accuracy before simulation against the running model; distributions in closed form are in test_margins.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.data import Sinusoid, noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.explanation import Margin
from oplens.explanation.prediction import simulation
from oplens.explanation.prediction.discrimination import discriminate
from oplens.explanation.prediction.prediction import Setting

RATE, STEPS, NOISE = 64.0, 64, 1.0


def tone(frequency, **more):
    return Sinusoid(frequency, n_timepoints=STEPS, sampling_rate=RATE, **more)


@pytest.fixture(scope="module")
def trained():
    """Random systems with a decoder fitted by least squares: it tells 15 from 20 Hz, and takes no time."""
    train = noisy_sinusoids(n_cases=400, n_timepoints=STEPS, sampling_rate=RATE, noise=NOISE, seed=0)
    torch.manual_seed(0)
    config = S4DConfig(
        d_input=1,
        n_classes=2,
        d_model=12,
        d_state=16,
        dt_min=0.02,
        dt_max=0.2,
        classes=train.classes,
        sampling_rate=RATE,
    )
    model = S4D(config).double()
    with torch.no_grad():
        model.encoder.weight *= 2
        pooled = model.trace(torch.from_numpy(train.X).transpose(1, 2)).pooled.numpy()
        A = np.column_stack([pooled, np.ones(len(pooled))])
        fit = np.linalg.solve(A.T @ A + 1e-3 * np.eye(13), A.T @ np.where(train.y == "20 Hz", 0.5, -0.5))
        model.decoder.weight.copy_(torch.from_numpy(np.outer([-1.0, 1.0], fit[:-1])))
        model.decoder.bias.copy_(torch.from_numpy(np.array([-1.0, 1.0]) * fit[-1]))
    return expand(model, train)


@pytest.fixture(scope="module")
def predicted(trained):
    """Noise at which decisions are wrong often enough to be counted."""
    signals = {"15 Hz": tone(15.0), "20 Hz": tone(20.0)}
    return discriminate(trained, signals, NOISE, orders=8, phases=3, simulate=20_000, seed=1)


def scores(ds):
    """z of the simulated means, variances and accuracies of both classes."""
    n = ds.sizes["case"]
    p = ds.class_accuracy.clip(1e-6, 1 - 1e-6)
    return {
        "mean": (ds.simulated_mean - ds.class_mean) / ds.simulated_mean_error,
        "variance": (ds.simulated_variance - ds.class_variance) / ds.simulated_variance_error,
        "accuracy": (ds.simulated_accuracy - p) / np.sqrt(p * (1 - p) / n),
    }


def test_mean_variance_and_accuracy_are_those_of_the_running_model(predicted):
    for name, z in scores(predicted).items():
        assert float(abs(z).max()) < 4, name
    assert 0.6 < float(predicted.balanced_accuracy) < 0.97  # errors are common enough to count


def test_the_simulation_is_of_the_model_itself(trained, predicted):
    """Counted once more without the library's simulation: margins of the model on freshly drawn cases."""
    rng = np.random.default_rng(5)
    model = trained.model
    for k, frequency in enumerate((15.0, 20.0)):
        phases = 2 * np.pi * rng.integers(3, size=4000) / 3
        x = np.sin(2 * np.pi * frequency * np.arange(STEPS) / RATE + phases[:, None]) + NOISE * rng.normal(
            size=(4000, STEPS)
        )
        with torch.no_grad():
            logits = model(torch.from_numpy(x[..., None])).numpy()
        margin = logits[:, 1] - logits[:, 0]
        z = (margin.mean() - float(predicted.class_mean[k])) / (margin.std() / math.sqrt(4000))
        assert abs(z) < 4
        right = (margin > 0) == bool(k)
        p = float(predicted.class_accuracy[k])
        assert abs(right.mean() - p) < 4 * math.sqrt(p * (1 - p) / 4000)


def test_two_exact_orders_beat_the_gaussian_where_they_differ(predicted):
    error = abs(predicted.class_accuracy - predicted.simulated_accuracy)
    gaussian = abs(predicted.class_accuracy_gaussian - predicted.simulated_accuracy)
    far = abs(predicted.class_accuracy - predicted.class_accuracy_gaussian) > 3 * predicted.simulated_accuracy_error
    assert bool(far.any())
    assert bool((error < gaussian)[far].all())
    difference = predicted.balanced_accuracy - predicted.balanced_accuracy_gaussian
    assert float(predicted.gaussian_correction) == pytest.approx(float(difference), abs=1e-15)


def test_true_accuracies_lie_within_their_bounds(predicted):
    assert bool((predicted.class_accuracy_lower_bound < predicted.simulated_accuracy).all())
    assert bool((predicted.simulated_accuracy < predicted.class_accuracy_upper_bound).all())


def test_without_noise_the_sign_of_the_margin_decides(trained):
    ds = discriminate(trained, {"15 Hz": tone(15.0), "20 Hz": tone(15.0)}, 0.0)
    assert sorted(ds.class_accuracy.values.tolist()) == [0.0, 1.0]
    assert sorted(ds.class_accuracy_gaussian.values.tolist()) == [0.0, 1.0]
    assert float(ds.balanced_accuracy) == 0.5


def test_each_signal_is_predicted_as_alone(trained, predicted):
    for k, signal in enumerate([replace(tone(f), phase=2 * np.pi * p / 3) for f in (15.0, 20.0) for p in range(3)]):
        alone = trained.predict(signal, NOISE, orders=8)
        for name in ("target_mean", "target_variance", "target_variance_bound"):
            assert float(predicted[name][k]) == pytest.approx(float(alone[name]), rel=1e-11)
        assert predicted.label.values[k] == f"{signal.frequency:g} Hz"
        assert float(predicted.phase[k]) == pytest.approx(signal.phase)


def test_classes_keep_the_models_order_whatever_the_callers(trained):
    one = discriminate(trained, {"20 Hz": tone(20.0), "15 Hz": tone(15.0)}, 1.0)
    assert one["class"].values.tolist() == ["15 Hz", "20 Hz"]
    assert one.attrs["towards"] == "20 Hz"
    assert float(one.target_mean[1]) == pytest.approx(float(trained.predict(tone(20.0), 1.0).target_mean))


def test_two_of_three_classes_are_compared_by_their_own_margin():
    torch.manual_seed(0)
    config = S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4, classes=("a", "b", "c"))
    X = np.random.default_rng(0).normal(size=(4, 2, 20))
    op = expand(S4D(config), X)
    ds = discriminate(op, {"c": X[0], "a": X[1]}, (0.5, 0.8), simulate=8000)
    assert ds.attrs["target"] == "margin: c - a"
    assert "frequency" not in ds.coords
    for name, z in scores(ds).items():
        assert float(abs(z).max()) < 4, name


def test_the_same_seed_simulates_the_same_cases(trained):
    signals = {"15 Hz": tone(15.0), "20 Hz": tone(20.0)}
    one, two, other = (discriminate(trained, signals, 1.0, simulate=5, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(one.simulated_target, two.simulated_target)
    assert not np.array_equal(one.simulated_target, other.simulated_target)
    assert one.attrs["seed"] == 3


def test_simulated_noise_has_the_asked_covariance():
    torch.manual_seed(0)
    op = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=2, d_state=2)), np.ones((2, 2, 4)))
    covariance = np.array([[2.0, 1.2], [1.2, 1.0]])
    setting = Setting.of(op, 4, torch.from_numpy(covariance), Margin(*op.model.config.classes[::-1]))
    np.testing.assert_allclose(setting.root @ setting.root.T, covariance, atol=1e-14)
    found = simulation.simulate(setting, np.zeros((1, 2, 4)), 7, np.random.default_rng(0))
    assert found.values.shape == (7, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"signals": [tone(15.0), tone(20.0)]}, "by the classes they belong to"),
        ({"signals": {"15 Hz": tone(15.0)}}, "two signals"),
        ({"signals": {"15 Hz": tone(15.0), "17 Hz": tone(17.0)}}, "no class '17 Hz'"),
        ({"signals": {"15 Hz": tone(15.0), "20 Hz": np.zeros((1, 70))}}, "64 and 70 steps"),
        ({"signals": {"15 Hz": tone(15.0), "20 Hz": np.zeros((1, 64))}, "phases": 2}, "no phase to turn"),
        ({"signals": {"15 Hz": tone(15.0), "20 Hz": replace(tone(20.0), sampling_rate=100.0)}}, "sampled at 100 Hz"),
        ({"noise": -0.1}, "at least 0"),
        ({"orders": 1}, "from 2 to 20"),
        ({"phases": 0}, r"phases=0\): give a whole number, at least 1"),
        ({"simulate": 1}, "0 or at least 2"),
        ({"simulate": 2.5}, "whole number"),
        ({"seed": -1}, "seed=-1"),
        ({"memory_limit": 1000}, "quadratic form would hold"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(trained, arguments, words):
    call = {"signals": {"15 Hz": tone(15.0), "20 Hz": tone(20.0)}, "noise": 1.0, **arguments}
    with pytest.raises(ArgumentError, match=words):
        discriminate(trained, **call)
