"""Figures of kernels show the numbers of the Dataset, for margins, for one class of several, and for raw kernels of all classes."""

import numpy as np
import pytest
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.kernels import first_kernel, kernel_gain, response, second_kernel

RNG = np.random.default_rng(0)
CHANNELS = ["C3", "<b>C4", "Cz"]


def group(per_class=False, n_channels=3, scale=1.0):
    """An invented group `/kernels`."""
    lead, shape = (("class",), (3,)) if per_class else ((), ())
    coords = {
        "channel": CHANNELS[:n_channels],
        "time": ("time", np.arange(9) / 4, {"units": "s"}),
        "frequency": ("stimulus", np.geomspace(0.3, 40, 12), {"units": "Hz"}),
        "member": ("pair", ["C3", "C3"]),
        "member_2": ("pair", ["<b>C4", "C3"]),
        "position": ("position", np.arange(5) / 4, {"units": "s"}),
        "position_2": ("position_2", np.arange(5) / 4, {"units": "s"}),
    }
    if per_class:
        coords["class"] = ["a", "b", "c"]
    variables = {
        "h1": ((*lead, "channel", "time"), scale * RNG.normal(size=(*shape, n_channels, 9))),
        "linear_gain": ((*lead, "channel", "stimulus"), scale * RNG.uniform(size=(*shape, n_channels, 12))),
        "square_gain": ((*lead, "channel", "stimulus"), scale * RNG.normal(size=(*shape, n_channels, 12))),
        "h2": ((*lead, "pair", "position", "position_2"), scale * RNG.normal(size=(*shape, 2, 5, 5))),
    }
    return xr.Dataset(
        variables, coords=coords, attrs={"target": "class-centred logits" if per_class else "margin: a - <i>b"}
    )


def drawn(figure):
    return np.asarray(figure.data[0].z)


@pytest.mark.parametrize("per_class", [False, True])
def test_maps_hold_the_values_of_the_chosen_class(per_class):
    ds = group(per_class)
    side, index = ("b", (1,)) if per_class else (None, ())
    np.testing.assert_allclose(drawn(first_kernel(ds, side)), ds.h1.values[*index], rtol=1e-6)
    np.testing.assert_allclose(drawn(kernel_gain(ds, 2, side)), ds.square_gain.values[*index], rtol=1e-6)
    np.testing.assert_allclose(drawn(kernel_gain(ds, 1, side)), ds.linear_gain.values[*index], rtol=1e-6)
    np.testing.assert_allclose(drawn(second_kernel(ds, 1, side)), ds.h2.values[*index, 1], rtol=1e-6)
    np.testing.assert_allclose(drawn(first_kernel(ds)), ds.h1.values[0] if per_class else ds.h1.values, rtol=1e-6)


def test_colours_are_symmetric_about_nothing_and_sizes_start_at_it():
    ds = group(scale=1e-5)
    for figure, name in ((first_kernel(ds), "h1"), (kernel_gain(ds), "square_gain"), (second_kernel(ds, 0), "h2")):
        values = ds[name].values[0] if name == "h2" else ds[name].values
        top = np.abs(values).max()
        np.testing.assert_allclose([figure.data[0].zmin, figure.data[0].zmax], [-top, top])
        assert figure.data[0].colorbar.ticktext[2] == f"{top:.3g}".replace("-", "−")
    gain = kernel_gain(ds, 1).data[0]
    np.testing.assert_allclose([gain.zmin, gain.zmax], [0, ds.linear_gain.values.max()])


def test_names_are_shown_letter_by_letter():
    ds = group()
    assert first_kernel(ds).layout.yaxis.ticktext[1] == "&lt;b&gt;C4"
    assert "&lt;i&gt;b" in first_kernel(ds).layout.title.text
    assert second_kernel(ds, 0).layout.xaxis.title.text == "&lt;b&gt;C4, time (s)"
    assert second_kernel(ds, 0).layout.yaxis.title.text == "C3, time (s)"


def test_one_channel_is_a_line():
    ds = group(n_channels=1)
    line = first_kernel(ds).data[0]
    assert line.type == "scatter"
    np.testing.assert_allclose(line.y, ds.h1.values[0], rtol=1e-6)
    np.testing.assert_allclose(line.x, ds.time, rtol=1e-6)
    np.testing.assert_allclose(kernel_gain(ds).data[0].x, ds.frequency, rtol=1e-6)


def test_raw_kernels_become_margins_or_centred_logits():
    from oplens import S4D, S4DConfig, expand
    from oplens.explanation.responses.second_order import second_order_kernel

    for n_classes in (2, 3):
        model = S4D(S4DConfig(2, n_classes, 3, 4, classes=("x", "y", "z")[:n_classes]))
        kernels = expand(model, np.random.default_rng(1).normal(size=(3, 2, 12))).kernels(12)
        raw = kernels.h1.values
        if n_classes == 2:
            np.testing.assert_allclose(drawn(first_kernel(kernels)), raw[1] - raw[0], rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(drawn(first_kernel(kernels, "x")), raw[0] - raw[1], rtol=1e-5, atol=1e-9)
            assert first_kernel(kernels, "x").layout.title.text.startswith("margin: x - y")
            stretch = second_order_kernel(kernels, "channel 1", "channel 2", points=4)
            np.testing.assert_allclose(drawn(second_kernel(stretch)), stretch.h2, rtol=1e-5, atol=1e-12)
            assert second_kernel(stretch).layout.xaxis.title.text.startswith("channel 2")
        else:
            np.testing.assert_allclose(drawn(first_kernel(kernels, "z")), raw[2] - raw.mean(0), rtol=1e-5, atol=1e-9)


def test_responses_stand_from_slow_to_fast_and_the_least_read_are_left_out():
    lag = np.arange(64)
    sizes, frequencies = np.array([0.01, 5.0, 1.0, 2.0]), np.array([0.05, 0.2, 0.01, 0.1])
    waves = sizes[:, None] * np.cos(2 * np.pi * frequencies[:, None] * lag) * 0.97**lag
    ds = xr.Dataset(
        {"response": (("feature", "lag"), waves), "readout": (("class", "feature"), [[1.0, 0.5, 1.0, 1.0], [-1.0, 0, 0, 0]])},
        coords={"feature": [10, 11, 12, 13], "lag": ("lag", lag / 10, {"units": "s"})},
    )  # fmt: skip
    figure = response(ds, top=3)
    assert figure.layout.yaxis.ticktext == ("feature 12", "feature 13", "feature 11")
    np.testing.assert_allclose(
        drawn(figure), waves[[2, 3, 1]] / np.abs(waves[[2, 3, 1]]).max(1, keepdims=True), rtol=1e-6
    )


def test_ticks_of_frequencies_are_round():
    assert kernel_gain(group()).layout.xaxis.ticktext == ("0.3", "1", "3", "10", "30")


def test_what_cannot_be_drawn_is_a_sentence():
    with pytest.raises(ArgumentError, match="holds the gain of order 1, 2"):
        kernel_gain(group(), 3)
    with pytest.raises(ArgumentError, match="gain of order 1"):
        kernel_gain(group().drop_vars("square_gain"))
    with pytest.raises(ArgumentError, match="no second-order kernel"):
        second_kernel(group().drop_vars("h2"))
    for pair in (2, -1, True):
        with pytest.raises(ArgumentError, match="pairs 0 to 1"):
            second_kernel(group(), pair)
    with pytest.raises(ArgumentError, match="holds the classes a, b, c"):
        first_kernel(group(per_class=True), "d")
