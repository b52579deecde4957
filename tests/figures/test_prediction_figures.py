"""Figures of predictions show the numbers of their Datasets, recomputed here by plain formulas."""

import base64
import json
import math

import numpy as np
import pytest
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.prediction import frequency_sweep, prediction_distribution

HOSTILE = "<b>15</b>%{x}&"


def as_json(figure):
    return json.loads(figure.to_json())


def numbers(value):
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
    return np.asarray(value)


def sweep(n_classes=0, simulated=True, marks=None, **attrs):
    frequency = np.array([5.0, 1.0, 3.0])
    rng = np.random.default_rng(0)
    shape = (3, n_classes) if n_classes else (3,)
    dims = ("stimulus", "class") if n_classes else ("stimulus",)
    names = ["target_mean", "target_variance"] + (["simulated_mean", "simulated_mean_error"] if simulated else [])
    values = {name: (dims, rng.normal(size=shape) ** (2 if "mean" not in name else 1)) for name in names}
    if simulated:
        values["simulated_mean_error"] = (dims, np.abs(values["simulated_mean_error"][1]))
    ds = xr.Dataset(values, coords={"frequency": ("stimulus", frequency, {"units": "Hz"})})
    if n_classes:
        ds = ds.assign_coords({"class": [f"c{k}" for k in range(n_classes)]})
    else:
        ds.attrs |= {"towards": HOSTILE, "against": "rest"}
    ds.attrs |= {"marks": json.dumps(marks or {}), **attrs}
    return ds


def discrimination(simulated=True):
    ds = xr.Dataset(
        {
            "target_mean": ("stimulus", [-2.0, -1.0, 1.5, 2.5]),
            "target_variance": ("stimulus", [0.25, 0.36, 0.49, 0.64]),
        },
        coords={"class": [HOSTILE, "20 Hz"], "label": ("stimulus", [HOSTILE] * 2 + ["20 Hz"] * 2)},
    )
    if simulated:
        ds["simulated_target"] = (("class", "case"), np.random.default_rng(0).normal([[-1.5], [2.0]], size=(2, 500)))
    return ds


def test_the_band_is_one_standard_deviation_about_the_mean_in_order_of_frequency():
    ds = sweep()
    low, high, line, points = as_json(frequency_sweep(ds))["data"]
    order = [1, 2, 0]
    mean, sd = ds.target_mean.values[order], np.sqrt(ds.target_variance.values[order])
    np.testing.assert_allclose(numbers(line["x"]), [1.0, 3.0, 5.0])
    np.testing.assert_allclose(numbers(line["y"]), mean, rtol=1e-6)
    np.testing.assert_allclose(numbers(low["y"]), mean - sd, rtol=1e-6)
    np.testing.assert_allclose(numbers(high["y"]), mean + sd, rtol=1e-6)
    np.testing.assert_allclose(numbers(points["y"]), ds.simulated_mean.values[order], rtol=1e-6)
    np.testing.assert_allclose(
        numbers(points["error_y"]["array"]), 2 * ds.simulated_mean_error.values[order], rtol=1e-6
    )


def test_everything_drawn_lies_within_the_axis():
    ds = sweep()
    low, high = as_json(frequency_sweep(ds))["layout"]["yaxis"]["range"]
    assert low < float((ds.simulated_mean - 2 * ds.simulated_mean_error).min())
    assert high > float((ds.simulated_mean + 2 * ds.simulated_mean_error).max())
    assert low < 0 < high


def test_without_simulation_no_dots_are_drawn():
    assert [trace.name for trace in frequency_sweep(sweep(simulated=False)).data] == [None, None, "predicted"]


def test_marks_inside_the_swept_range_are_lines_with_their_names():
    layout = as_json(frequency_sweep(sweep(marks={"alpha<i>": 2.0, "gamma": 40.0})))["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [2.0]
    assert "alpha&lt;i&gt;" in [note["text"] for note in layout["annotations"]]


def test_names_of_classes_are_shown_letter_by_letter():
    layout = as_json(frequency_sweep(sweep()))["layout"]
    assert "&lt;b&gt;15" in layout["yaxis"]["title"]["text"]
    assert any("&lt;b&gt;15" in note["text"] for note in layout["annotations"])
    assert "<b>" not in json.dumps(layout)
    assert "<b>" not in json.dumps(as_json(prediction_distribution(discrimination())))


def test_class_centred_sweeps_draw_the_class_asked_for():
    ds = sweep(3)
    line = as_json(frequency_sweep(ds, "c2"))["data"][2]
    np.testing.assert_allclose(numbers(line["y"]), ds.target_mean.values[[1, 2, 0], 2], rtol=1e-6)
    np.testing.assert_allclose(
        numbers(as_json(frequency_sweep(ds))["data"][2]["y"]), ds.target_mean.values[[1, 2, 0], 0], rtol=1e-6
    )
    with pytest.raises(ArgumentError, match="classes are c0, c1, c2"):
        frequency_sweep(ds, "c9")


def test_a_single_frequency_is_a_dot():
    assert frequency_sweep(sweep().isel(stimulus=[0])).data[2].mode == "markers"


def test_densities_are_mixtures_over_the_phases_of_a_class():
    ds = discrimination(simulated=False)
    one, two = as_json(prediction_distribution(ds))["data"]
    for trace, members in ((one, (0, 1)), (two, (2, 3))):
        x, y = numbers(trace["x"]).astype(float), numbers(trace["y"]).astype(float)
        expected = sum(
            np.exp(-((x - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v) / 2
            for m, v in ((float(ds.target_mean[k]), float(ds.target_variance[k])) for k in members)
        )
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-8)
        assert y.sum() * (x[1] - x[0]) == pytest.approx(1.0, abs=1e-3)


def test_histograms_are_densities_of_the_simulated_cases():
    data = as_json(prediction_distribution(discrimination()))["data"]
    bars = [trace for trace in data if trace["type"] == "bar"]
    for trace in bars:
        assert float((numbers(trace["y"]) * trace["width"]).sum()) == pytest.approx(1.0, rel=1e-5)
    centre = [float((numbers(t["x"]) * numbers(t["y"])).sum() / numbers(t["y"]).sum()) for t in bars]
    np.testing.assert_allclose(centre, discrimination().simulated_target.mean("case"), atol=0.03)


def test_a_margin_without_noise_is_a_needle_and_not_a_failure():
    ds = discrimination(simulated=False)
    ds["target_variance"] = ds.target_variance * 0.0
    x, y = (numbers(as_json(prediction_distribution(ds))["data"][1][k]) for k in "xy")
    assert np.isfinite(y).all()
    assert min(abs(x[y.argmax()] - 1.5), abs(x[y.argmax()] - 2.5)) < 0.05
