"""The figure of movement under noise shows the numbers of the Dataset, and nothing where there is none."""

import numpy as np
import pytest
import xarray as xr

from oplens.figures.robustness import movement_under_noise, three


def sweep(**changes):
    """An invented group `/robustness`."""
    sigma = np.array([0.001, 0.01, 0.1, 1.0])
    lines = {
        "deviation": sigma * 2 + sigma**2,
        "deviation_low": sigma * 1.5,
        "deviation_high": sigma * 4,
        "first_order": sigma * 2,
        "first_order_bound": sigma * 2.2,
        "remainder": sigma**2,
        "paper_claim": sigma * 700,
    }
    variables = {name: ("sigma", values) for name, values in lines.items()} | {"linear_until": ((), 0.2)}
    variables |= {name: (variables[name][0], value) for name, value in changes.items()}
    return xr.Dataset(variables, coords={"sigma": sigma}, attrs={"noise": "absolute"})


def test_lines_hold_the_numbers():
    ds = sweep()
    figure = movement_under_noise(ds)
    traces = {trace.name: trace for trace in figure.data if trace.name}
    names = {
        "measured": "deviation",
        "first order": "first_order",
        "bound of it": "first_order_bound",
        "beyond first order": "remainder",
        "paper's formula": "paper_claim",
    }
    assert list(traces) == list(names)
    for name, variable in names.items():
        np.testing.assert_allclose(traces[name].x, ds.sigma)
        np.testing.assert_allclose(traces[name].y, ds[variable])
    assert traces["paper's formula"].customdata[-1] == "σ = 1<br>paper's formula 700"
    band = figure.data[0]
    np.testing.assert_allclose(band.x, [*ds.sigma, *ds.sigma[::-1]])
    np.testing.assert_allclose(band.y, [*ds.deviation_high, *ds.deviation_low[::-1]])
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    low, high = figure.layout.yaxis.range
    assert low < np.log10(1e-6)
    assert high > np.log10(700)
    assert figure.layout.xaxis.ticktext == ("0.001", "0.01", "0.1", "1")
    assert "10<sup>−6</sup>" in figure.layout.yaxis.ticktext, "powers from 0.000001 to 1000 are written alike"
    assert "rms" not in figure.layout.xaxis.title.text
    assert "rms" in movement_under_noise(ds.assign_attrs(noise="relative")).layout.xaxis.title.text


@pytest.mark.parametrize(("until", "side"), [(0.2, "right"), (0.002, "left")])
def test_the_end_of_linearity_is_marked(until, side):
    figure = movement_under_noise(sweep(linear_until=until))
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(until, until)]
    (words,) = figure.layout.annotations
    assert words.text == f"linear up to {until:g}"
    assert words.x == pytest.approx(np.log10(until))
    assert words.xanchor == side


@pytest.mark.parametrize("until", [0.0, np.inf])
def test_no_end_is_no_mark(until):
    assert not movement_under_noise(sweep(linear_until=until)).layout.shapes


def test_what_a_logarithm_cannot_show_is_left_out():
    ds = sweep(paper_claim=np.zeros(4), remainder=[0.0, 1e-16, 1e-3, 1e-1], deviation_low=[-1.0, 0.01, 0.1, 1.0])
    figure = movement_under_noise(ds)
    traces = {trace.name: trace for trace in figure.data if trace.name}
    assert "paper's formula" not in traces
    np.testing.assert_allclose(traces["beyond first order"].y, [np.nan, np.nan, 1e-3, 1e-1])
    assert min(figure.data[0].y) == pytest.approx(1e-5 * float(ds.deviation[0]))
    assert all(np.isfinite(figure.layout.yaxis.range))
    linear = movement_under_noise(sweep(remainder=np.zeros(4), paper_claim=np.full(4, np.nan)))
    assert [trace.name for trace in linear.data if trace.name] == ["measured", "first order", "bound of it"]


def test_a_model_that_does_not_move_has_axes():
    still = sweep(**{name: np.zeros(4) for name in sweep().data_vars if name != "linear_until"})
    figure = movement_under_noise(still)
    assert all(np.isfinite(figure.layout.yaxis.range))
    one = movement_under_noise(sweep().isel(sigma=slice(1)))
    assert one.layout.xaxis.range[0] < -3 < one.layout.xaxis.range[1]


def test_numbers_keep_three_digits():
    assert [three(v) for v in (1e6, -0.5, 0.0, np.inf, 999.7, 0.1)] == ["1.0e6", "−0.500", "0", "∞", "1,000", "0.100"]
