"""Predicted mean and variance against simulation of the model itself; the dense sums are in test_wiener.py."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DClassifier, S4DConfig, expand
from oplens.data import Sinusoid, noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.explanation import CentredLogits
from oplens.models import Preprocessing

DRAWS = 20_000


def simulate(model, values, covariance, draws=DRAWS, seed=0):
    """Logits of the running model on noisy copies of the signal (n_channels, n_timepoints): (draws, n_classes)."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(covariance)
    logits = []
    with torch.no_grad():
        for _ in range(draws // 1000):
            noise = np.einsum("cd,bdt->bct", root, rng.normal(size=(1000, *values.shape)))
            logits.append(model(torch.from_numpy(values + noise).transpose(1, 2)).numpy())
    return np.concatenate(logits)


def against_simulation(found, mean, variance):
    """abs(z) of the simulated mean and variance (standard error from the fourth moment)."""
    n = len(found)
    z_mean = (found.mean(0) - mean) / (found.std(0) / math.sqrt(n))
    centred = (found - found.mean(0)) ** 2
    z_variance = (centred.mean(0) - variance) / (centred.std(0) / math.sqrt(n))
    return np.abs(z_mean), np.abs(z_variance)


def operator(n_classes=2, seed=0, remove_offset=False, sampling_rate=None):
    torch.manual_seed(seed)
    preprocessing = Preprocessing((0.2, -0.1), (1.3, 0.6), remove_offset)
    config = S4DConfig(
        d_input=2,
        n_classes=n_classes,
        d_model=4,
        d_state=6,
        dt_max=0.3,
        preprocessing=preprocessing,
        sampling_rate=sampling_rate,
    )
    model = S4D(config).double()
    return model, expand(model, np.random.default_rng(1).normal(size=(5, 2, 40)))


@pytest.mark.parametrize(("noise", "remove_offset"), [(0.3, False), (1.5, False), (1.5, True)])
def test_a_margin_in_noise_is_predicted_as_simulated(noise, remove_offset):
    model, op = operator(remove_offset=remove_offset)
    signal = Sinusoid(3.0, n_timepoints=40, sampling_rate=40.0, amplitude=(1.0, 0.5), phase=0.7, offset=0.4)
    covariance = noise**2 * np.array([[1.0, 0.4], [0.4, 2.0]])
    ds = op.predict(signal, noise=covariance, orders=8)
    found = simulate(model, signal.values(2), covariance)
    z = against_simulation(found[:, 1] - found[:, 0], float(ds.target_mean), float(ds.target_variance))
    assert max(z[0], z[1]) < 4
    assert float(ds.variance_by_order[-1]) < 1e-2 * float(ds.target_variance)
    assert 1 < float(ds.target_variance_bound / ds.target_variance) < 1.05


def test_class_centred_logits_are_predicted_as_simulated():
    model, op = operator(3, seed=2)
    values = np.random.default_rng(3).normal(size=(2, 25))
    ds = op.predict(values, noise=(0.5, 0.2), target=CentredLogits(), orders=8)
    found = simulate(model, values, np.diag([0.25, 0.04]))
    found = found - found.mean(1, keepdims=True)
    z = against_simulation(found, ds.target_mean.values, ds.target_variance.values)
    assert max(z[0].max(), z[1].max()) < 4


def test_a_trained_model_on_15_hz_is_predicted_as_simulated():
    train = noisy_sinusoids(n_cases=60, n_timepoints=64, sampling_rate=64.0, noise=0.5, seed=0)
    classifier = S4DClassifier(d_model=8, d_state=8, max_epochs=15).fit(train)
    op = expand(classifier, train)
    signal = Sinusoid(15.0, n_timepoints=64, sampling_rate=64.0, phase=1.0)
    ds = op.predict(signal, noise=0.5, orders=8)
    found = simulate(classifier.model_.double(), signal.values(1), np.array([[0.25]]))
    z = against_simulation(found[:, 1] - found[:, 0], float(ds.target_mean), float(ds.target_variance))
    assert max(z[0], z[1]) < 4


def test_order_one_is_the_exact_variance_of_a_linear_readout_in_small_noise():
    model, op = operator()
    values = np.random.default_rng(0).normal(size=(2, 30))
    x = torch.from_numpy(values.T[None].copy()).requires_grad_(True)
    logits = model(x)[0]
    (gradient,) = torch.autograd.grad(logits[1] - logits[0], x)
    sigma = 1e-5
    ds = op.predict(values, noise=sigma, orders=2)
    assert float(ds.target_variance) == pytest.approx(sigma**2 * float((gradient**2).sum()), rel=1e-6)


def test_an_offset_of_the_signal_is_nothing_to_a_model_that_removes_it():
    _, op = operator(remove_offset=True)
    values = np.random.default_rng(0).normal(size=(2, 30))
    one, other = (op.predict(v, noise=0.8) for v in (values, values + np.array([[3.0], [-7.0]])))
    np.testing.assert_allclose(other.target_mean, one.target_mean, rtol=1e-11)
    np.testing.assert_allclose(other.variance_by_order, one.variance_by_order, rtol=1e-9)


def test_noise_on_a_single_step_without_its_mean_is_no_noise():
    _, op = operator(remove_offset=True)
    assert float(op.predict(np.ones((2, 1)), noise=5.0).target_variance) == 0.0


def test_no_noise_is_the_model_itself():
    model, op = operator()
    values = np.random.default_rng(0).normal(size=(2, 30))
    ds = op.predict(values, noise=0.0)
    logits = model(torch.from_numpy(values.T[None].copy()))[0].detach().numpy()
    assert float(ds.target_mean) == pytest.approx(logits[1] - logits[0], abs=1e-12)
    assert float(ds.target_variance) == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"noise": -1.0}, "at least 0"),
        ({"noise": (1.0, 2.0, 3.0)}, "3 standard deviations for 2"),
        ({"noise": [[1.0, 2.0], [2.0, 1.0]]}, "negative eigenvalue"),
        ({"noise": [[1.0, 0.5], [0.4, 1.0]]}, "symmetric"),
        ({"noise": float("nan")}, "finite"),
        ({"noise": "loud"}, "standard deviations"),
        ({"noise": 1.0, "signal": 5.0}, r"got \(\)"),
        ({"noise": 1.0, "signal": "sine"}, r"got \(\)"),
        ({"noise": 1.0, "signal": [[1.0, 2.0], [1.0]]}, "different numbers of samples"),
        ({"noise": 1.0, "signal": Sinusoid(3.0, 10, 50.0)}, "reads 40 Hz"),
        ({"noise": 1.0, "orders": 0}, "from 1 to 20"),
        ({"noise": 1.0, "target": "class 1"}, "give Margin"),
        ({"noise": 1.0, "signal": np.zeros((3, 10))}, r"\(2, n_timepoints\)"),
        ({"noise": 1.0, "signal": np.full((2, 10), np.nan)}, "NaN"),
    ],
)
def test_what_cannot_be_predicted_is_a_sentence(arguments, words):
    _, op = operator(sampling_rate=40.0)
    call = {"signal": np.zeros((2, 10)), **arguments}
    with pytest.raises(ArgumentError, match=words):
        op.predict(**call)


@pytest.mark.parametrize(
    "arguments",
    [
        {"frequency": 20.0},
        {"frequency": -1.0},
        {"n_timepoints": 0},
        {"sampling_rate": 0.0},
        {"amplitude": float("inf")},
        {"amplitude": "loud"},
        {"phase": None},
    ],
)
def test_a_sinusoid_that_cannot_be_sampled_is_a_sentence(arguments):
    with pytest.raises(ArgumentError, match=r"\.$"):
        Sinusoid(**{"frequency": 3.0, "n_timepoints": 10, "sampling_rate": 40.0, **arguments})


def test_models_that_are_not_gaussian_inside_are_refused():
    X = np.zeros((2, 2, 10))
    reference = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=3, d_state=4, architecture="reference")), X)
    with pytest.raises(ArgumentError, match="not Gaussian"):
        reference.predict(X[0], noise=1.0)
    single = expand(S4D(S4DConfig(d_input=2, n_classes=1, d_model=3, d_state=4)), X)
    with pytest.raises(ArgumentError, match="nothing to decide"):
        single.predict(X[0], noise=1.0)
