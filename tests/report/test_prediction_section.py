"""The section on predictions says the numbers of its Datasets, and nothing where there is nothing to say."""

import dataclasses
import re

import numpy as np
import pytest
import torch
import xarray as xr

from oplens import S4D, S4DConfig, expand
from oplens.data import Sinusoid, noisy_sinusoids
from oplens.explanation import CentredLogits
from oplens.explanation.prediction.discrimination import discriminate
from oplens.explanation.prediction.sweep import sweep
from oplens.report.blocks import Limits
from oplens.report.prediction import prediction_section, scores


@pytest.fixture(scope="module")
def op():
    torch.manual_seed(1)
    data = noisy_sinusoids(n_cases=8, n_timepoints=32, sampling_rate=64.0)
    config = S4DConfig(d_input=1, n_classes=2, d_model=3, d_state=6, classes=data.classes, sampling_rate=64.0)
    model = S4D(config).double()
    middle = expand(model, data).predict(Sinusoid(17.0, 32, 64.0), noise=1.0).target_mean
    with torch.no_grad():
        model.decoder.bias[0] += float(middle)  # so that decisions are made on either side
    return expand(model, data)


@pytest.fixture(scope="module")
def two(op):
    signals = {name: Sinusoid(f, 32, 64.0) for name, f in (("15 Hz", 15.0), ("20 Hz", 20.0))}
    return discriminate(op, signals, 1.0, simulate=500)


@pytest.fixture(scope="module")
def swept(op):
    return sweep(op, [5.0, 15.0, 25.0], 0.5, simulate=50)


def tree(**groups):
    found = {f"/prediction/{name}": ds for name, ds in groups.items()}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), **found})


def words(section):
    tables = [cell for table in section.tables for row in table.rows for cell in row]
    return " ".join([*section.findings, *(p.caption for p in section.pictures), *tables])


def test_a_file_without_predictions_has_no_such_section(two):
    assert prediction_section(xr.DataTree.from_dict({"/waves": two}), Limits()) == []
    assert prediction_section(tree(other=two), Limits()) == []


def test_findings_state_accuracies_with_and_without_the_gaussian_assumption(two):
    (section,) = prediction_section(tree(discrimination=two), Limits())
    said = section.findings[0]
    for name in ("balanced_accuracy", "balanced_accuracy_gaussian", "balanced_accuracy_lower_bound"):
        assert f"{100 * float(two[name]):.1f} %" in said
    assert "15 Hz from 20 Hz" in said
    assert "standard deviation 1.0 over 32 steps" in said
    assert section.key == ("decides 20 Hz", "decides 15 Hz")


def test_scores_are_differences_in_standard_errors(two):
    found = {(name, word): z for name, word, *_, z in scores(two)}
    assert len(found) == 6
    for k, name in enumerate(("15 Hz", "20 Hz")):
        single = two.isel({"class": k})
        expected = (single.simulated_mean - single.class_mean) / single.simulated_mean_error
        assert found[name, "mean"] == pytest.approx(float(expected))
        p = float(single.class_accuracy)
        expected = (float(single.simulated_accuracy) - p) / np.sqrt(p * (1 - p) / 500)
        assert found[name, "accuracy"] == pytest.approx(expected)
    (section,) = prediction_section(tree(discrimination=two), Limits())
    worst = max(abs(z) for z in found.values())
    assert f"up to {worst:.1f} standard errors, as chance allows" in section.findings[1]
    shown = [row[-1] for row in section.tables[1].rows]
    assert shown == [f"{z:+.1f}".replace("-", "−") for z in found.values()]


def test_a_simulation_that_contradicts_is_called_so(two):
    off = two.assign(class_mean=two.class_mean + 8 * two.simulated_mean_error)
    (section,) = prediction_section(tree(discrimination=off), Limits())
    assert "more than chance allows: the prediction is off here" in section.findings[1]


def test_certain_accuracies_are_not_scored_as_infinite(two):
    sure = two.assign(
        class_accuracy=xr.ones_like(two.class_accuracy), simulated_accuracy=xr.ones_like(two.class_accuracy)
    )
    assert [z for _, word, *_, z in scores(sure) if word == "accuracy"] == [0.0, 0.0]
    assert "over 99.9 %" in words(
        prediction_section(tree(discrimination=two.assign(balanced_accuracy=0.99999)), Limits())[0]
    )


def test_without_simulation_nothing_is_compared(two):
    plain = two.drop_vars([name for name in two.data_vars if "simulated" in name]).drop_dims("case")
    (section,) = prediction_section(tree(discrimination=plain), Limits())
    assert len(section.findings) == len(section.tables) == 1
    assert "simulated" not in words(section)


def test_a_sweep_names_the_frequencies_that_count(swept):
    (section,) = prediction_section(tree(sweep=swept), Limits())
    mean = swept.target_mean.values
    assert f"highest at {swept.frequency.values[mean.argmax()]:.3g} Hz" in section.findings[0]
    assert f"lowest at {swept.frequency.values[mean.argmin()]:.3g} Hz" in section.findings[0]
    z = abs((swept.simulated_mean - swept.target_mean) / swept.simulated_mean_error).values
    assert f"{100 * (z < 2).mean():.1f} % lie within" in section.findings[1]
    assert section.key is None
    assert section.switch is None


def test_a_sweep_of_three_classes_is_switched_by_class():
    config = S4DConfig(d_input=1, n_classes=3, d_model=2, d_state=4, sampling_rate=64.0)
    op = expand(S4D(config), np.random.default_rng(0).normal(size=(3, 1, 20)))
    ds = sweep(op, [5.0, 15.0], 0.5, phases=1, target=CentredLogits(), simulate=9)
    (section,) = prediction_section(tree(sweep=ds), Limits())
    assert list(section.pictures[0].variants) == ["class 0", "class 1", "class 2"]
    assert section.pictures[0].switch == section.switch.id
    assert "class 2 at" in section.findings[0]
    (few,) = prediction_section(tree(sweep=ds), dataclasses.replace(Limits(), variants=1))
    assert len(few.pictures[0].variants) == 1


def test_both_stand_in_one_section_with_their_claims(two, swept):
    (section,) = prediction_section(tree(discrimination=two, sweep=swept), Limits())
    assert [p.id for p in section.pictures] == ["prediction-margins", "prediction-sweep"]
    assert len(section.findings) == 4
    captions = " ".join([*(p.caption for p in section.pictures), *(t.caption for t in section.tables)])
    assert set(re.findall(r"claim: (\w+)", captions)) == {"exact", "truncated", "measured", "bound"}
