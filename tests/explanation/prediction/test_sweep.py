"""The frequency sweep against single predictions put together by hand, and against the running model."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from oplens import S4D, S4DConfig, expand
from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation import CentredLogits
from oplens.explanation.prediction import prediction as prediction_module
from oplens.explanation.prediction.sweep import sweep
from oplens.models import Preprocessing

RATE, STEPS = 32.0, 40


def operator(n_classes=2, sampling_rate=RATE, remove_offset=False, classes=()):
    torch.manual_seed(3)
    config = S4DConfig(
        d_input=2,
        n_classes=n_classes,
        d_model=5,
        d_state=6,
        dt_max=0.3,
        classes=classes,
        sampling_rate=sampling_rate,
        preprocessing=Preprocessing((0.1, -0.3), (0.7, 1.2), remove_offset),
    )
    return expand(S4D(config), np.random.default_rng(1).normal(size=(5, 2, STEPS)))


def test_a_sweep_is_the_mixture_of_single_predictions():
    op = operator()
    ds = sweep(op, [2.0, 9.5], 0.8, amplitude=(1.0, 0.5), offset=0.2, phases=3, orders=5)
    for k, frequency in enumerate((2.0, 9.5)):
        single = [
            op.predict(Sinusoid(frequency, STEPS, RATE, (1.0, 0.5), 2 * math.pi * p / 3, 0.2), 0.8, orders=5)
            for p in range(3)
        ]
        mean, variance, bound = (
            np.array([float(s[name]) for s in single])
            for name in ("target_mean", "target_variance", "target_variance_bound")
        )
        assert float(ds.target_mean[k]) == pytest.approx(mean.mean(), rel=1e-11)
        assert float(ds.target_variance[k]) == pytest.approx(variance.mean() + mean.var(), rel=1e-10)
        assert float(ds.target_variance_bound[k]) == pytest.approx(bound.mean() + mean.var(), rel=1e-10)
        assert float(ds.phase_variance[k]) == pytest.approx(mean.var(), rel=1e-8)
        chance = norm.cdf(mean / np.sqrt(variance)).mean()
        assert float(ds.probability_towards[k]) == pytest.approx(chance, rel=1e-10)
    assert ds.frequency.values.tolist() == [2.0, 9.5]
    assert ds.frequency.attrs["units"] == "Hz"


@pytest.mark.parametrize("remove_offset", [False, True])
def test_a_sweep_is_what_the_model_does(remove_offset):
    op = operator(remove_offset=remove_offset)
    ds = sweep(op, [0.0, 3.0, 8.0, 15.0], (0.9, 1.4), phases=2, orders=8, simulate=6000, seed=2)
    z = (ds.simulated_mean - ds.target_mean) / ds.simulated_mean_error
    assert float(abs(z).max()) < 4
    z = (ds.simulated_variance - ds.target_variance) / ds.simulated_variance_error
    assert float(abs(z).max()) < 4
    difference = abs(ds.simulated_share_towards - ds.probability_towards)  # Gaussian: near, not equal
    assert float(difference.max()) < 0.05


def test_class_centred_logits_have_one_curve_per_class():
    op = operator(3)
    ds = sweep(op, [4.0], 0.5, phases=1, orders=3, simulate=10)
    alone = op.predict(Sinusoid(4.0, STEPS, RATE), 0.5, target=CentredLogits(), orders=3)
    assert ds.target_mean.dims == ("stimulus", "class")
    np.testing.assert_allclose(ds.target_mean.values[0], alone.target_mean.values, rtol=1e-11)
    np.testing.assert_allclose(ds.target_variance.values[0], alone.target_variance.values, rtol=1e-10)
    assert "probability_towards" not in ds
    assert ds.simulated_mean.sizes == {"stimulus": 1, "class": 3}
    np.testing.assert_allclose(ds.simulated_mean.sum("class"), 0.0, atol=1e-12)


def test_signals_in_many_passes_are_signals_in_one(monkeypatch):
    op = operator()
    whole = sweep(op, [1.0, 2.0, 3.0], 0.8, phases=1)
    monkeypatch.setattr(prediction_module, "BATCH", 1)
    for name, values in sweep(op, [1.0, 2.0, 3.0], 0.8, phases=1).data_vars.items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-11, atol=1e-15)


def test_frequencies_are_in_cycles_per_step_where_no_rate_is_known():
    ds = sweep(operator(sampling_rate=None), [0.1], 0.5)
    assert ds.frequency.attrs["units"] == "cycles/step"
    op = operator(sampling_rate=None)
    alone = op.predict(Sinusoid(0.1, STEPS, 1.0), 0.5, orders=4)
    one = sweep(op, [0.1], 0.5, phases=1)
    assert float(one.target_mean[0]) == pytest.approx(float(alone.target_mean), rel=1e-12)


def test_the_length_is_that_of_training_unless_given():
    op = operator()
    assert sweep(op, [3.0], 0.5).attrs["n_steps"] == STEPS
    alone = op.predict(Sinusoid(3.0, 12, RATE), 0.5, orders=4)
    assert float(sweep(op, [3.0], 0.5, n_timepoints=12, phases=1).target_mean[0]) == pytest.approx(
        float(alone.target_mean)
    )


def test_classes_that_are_frequencies_mark_themselves():
    marks = json.loads(sweep(operator(classes=("15 Hz", "rest")), [3.0], 0.5, phases=1).attrs["marks"])
    assert marks == {"15 Hz": 15.0}
    given = sweep(operator(), [3.0], 0.5, phases=1, marks={"alpha": 10}).attrs["marks"]
    assert json.loads(given) == {"alpha": 10.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"frequencies": []}, "one or more"),
        ({"frequencies": "10"}, "one or more"),
        ({"frequencies": [[1.0], [2.0]]}, "flat sequence"),
        ({"frequencies": [1.0, float("nan")]}, "finite"),
        ({"frequencies": [1.0, 16.0]}, r"frequency 16 cannot be sampled; .* 32 steps per second, .* < 16"),
        ({"frequencies": [-1.0]}, "frequency -1"),
        ({"frequencies": None}, "one or more"),
        ({"noise": -1.0}, "at least 0"),
        ({"noise": (1.0, 1.0, 1.0)}, "3 standard deviations for 2"),
        ({"orders": 0}, "from 1 to 20"),
        ({"phases": 0}, "phases=0"),
        ({"n_timepoints": 0}, "n_timepoints=0"),
        ({"n_timepoints": 2.5}, "n_timepoints=2.5"),
        ({"simulate": 1}, "0 or at least 2"),
        ({"simulate": True}, "whole number"),
        ({"seed": -1}, "seed=-1"),
        ({"amplitude": float("inf")}, "finite"),
        ({"amplitude": (1.0, 2.0, 3.0)}, "3 values for 2 channels"),
        ({"amplitude": "a"}, "give one number"),
        ({"amplitude": None}, "give one number"),
        ({"offset": None}, "give one number"),
        ({"offset": [[1.0, 2.0]]}, "give one number"),
        ({"target": "10 Hz"}, "give Margin"),
        ({"marks": {"x": "high"}}, "names with their frequencies"),
        ({"marks": {"x": float("nan")}}, "names with their frequencies"),
    ],
)
def test_what_cannot_be_swept_is_a_sentence(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        sweep(operator(), **{"frequencies": [1.0], "noise": 1.0, **arguments})


def test_a_rate_that_is_not_known_is_named_in_the_refusal():
    with pytest.raises(ArgumentError, match=r"knows no sampling rate.* < 0.5"):
        sweep(operator(sampling_rate=None), [0.5], 1.0)


def test_a_stack_is_not_swept():
    config = S4DConfig(d_input=1, n_classes=2, d_model=3, d_state=4, architecture="reference", n_layers=2)
    with pytest.raises(ArgumentError, match="not Gaussian"):
        sweep(expand(S4D(config), np.zeros((2, 1, 8))), [0.1], 1.0)
