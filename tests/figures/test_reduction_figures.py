"""Figures of smaller models show the numbers of the Dataset."""

import numpy as np
import pytest
import xarray as xr

from oplens.figures.reduction import accuracy_by_waves, shown_frequencies, wave_importance


def curve(labelled=True, refitted=False):
    """An invented group `/reduction`."""
    lines = {
        "agreement": [0.6, 0.8, 0.9, 0.99, 1.0],
        "margin_r2": [-3.0, 0.1, 0.8, 0.95, 1.0],
        "n_parameters": [17, 50, 300, 800, 8898],
    }
    if labelled:
        lines["accuracy"] = [0.55, 0.78, 0.9, 0.88, 0.89]
    if refitted:
        lines |= {
            f"refitted_{name}": lines[name][::-1] for name in ("agreement", "margin_r2", "accuracy") if name in lines
        }
    variables = {name: ("n_waves", values) for name, values in lines.items()}
    if labelled:
        variables["model_accuracy"] = ((), 0.89)
    variables |= {
        "importance": ("rank", [2.0, 1.5, 0.4]),
        "frequency": ("rank", [20.06, 3e-6, 0.2], {"units": "Hz"}),
        "decay_time": ("rank", [0.5, 6.0, 0.1], {"units": "s"}),
    }
    coords = {
        "n_waves": [1, 4, 32, 128, 2048],
        "rank": [1, 2, 3],
        "member": ("rank", ["feature 3, wave 1", "<b>", "x"]),
    }
    return xr.Dataset(variables, coords=coords)


@pytest.mark.parametrize("refitted", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
def test_lines_hold_accuracy_and_r2(labelled, refitted):
    ds = curve(labelled, refitted)
    figure = accuracy_by_waves(ds)
    traces = {trace.name: trace for trace in figure.data}
    upper, variable = ("accuracy", "accuracy") if labelled else ("same decisions", "agreement")
    assert list(traces) == [
        name
        for name in (upper, f"{upper}, refitted", "margin R²", "margin R², refitted")
        if refitted or "refitted" not in name
    ]
    for trace in figure.data:
        np.testing.assert_allclose(trace.x, ds.n_waves)
    np.testing.assert_allclose(traces[upper].y, ds[variable], rtol=1e-6)
    np.testing.assert_allclose(traces["margin R²"].y, [-0.25, 0.1, 0.8, 0.95, 1.0], rtol=1e-6)
    assert "−3.000" in traces["margin R²"].customdata[0], "what is cut off is told on hover"
    assert "8,898 parameters" in traces[upper].customdata[-1]
    if refitted:
        np.testing.assert_allclose(traces[f"{upper}, refitted"].y, ds[variable][::-1], rtol=1e-6)
        assert traces[f"{upper}, refitted"].line.dash == "dash"
    levels = [(shape.y0, shape.y1) for shape in figure.layout.shapes]
    assert levels == ([(0.89, 0.89)] if labelled else [])
    low, high = figure.layout.yaxis.range
    assert low < min(trace.y.min() for trace in figure.data if trace.yaxis == "y") < high
    assert figure.layout.yaxis2.range[0] < -0.25


def test_many_sizes_keep_labels_apart():
    ds = xr.concat([curve()] * 4, "n_waves", data_vars="minimal").assign_coords(n_waves=2 ** np.arange(20))
    shown = accuracy_by_waves(ds).layout.xaxis
    assert len(shown.ticktext) <= 7
    assert shown.ticktext[-1] == "524,288"


def test_bars_are_named_by_frequency():
    figure = wave_importance(curve(), top=2)
    np.testing.assert_allclose(figure.data[0].x, [2.0, 1.5])
    assert figure.layout.yaxis.ticktext == ("20.1 Hz", "0 Hz")
    assert figure.data[0].customdata[1].startswith("&lt;b&gt;<br>")
    assert "decays in 0.5 s" in figure.data[0].customdata[0]
    steps = curve()
    steps["frequency"].attrs["units"] = "cycles/step"
    assert wave_importance(steps).layout.yaxis.ticktext[2] == "0.200 c/step"


def test_frequencies_near_nothing_are_nothing():
    assert shown_frequencies(np.array([0.0, 0.0])) == ["0", "0"]
    assert shown_frequencies([1e-4, 5e-5]) == ["0.000100", "5.00e-05"]
