"""The page's section on kernels tells the largest gains in numbers and shows what the group holds."""

import re

import numpy as np
import pytest
import torch
import xarray as xr

from oplens import S4D, S4DConfig, expand
from oplens.explanation.responses.second_order import summarise_kernels
from oplens.report.blocks import Limits
from oplens.report.kernels import kernel_section


def tree(n_classes=2, n_channels=2, order=2, rate=10.0):
    torch.manual_seed(0)
    classes = ("rest", "<i>move", "other")[:n_classes]
    model = S4D(S4DConfig(n_channels, n_classes, 4, 6, dt_max=0.5, classes=classes, sampling_rate=rate))
    op = expand(model, np.random.default_rng(0).normal(size=(4, n_channels, 30)), order=order)
    return xr.DataTree.from_dict({"/": xr.Dataset(), "/kernels": summarise_kernels(op)})


def told(finding):
    """The signed number of a sentence."""
    return float(re.search(r"([+−]\d+\.\d+)", finding)[1].replace("−", "-"))


def test_findings_are_the_extremes_of_the_gain():
    results = tree()
    ds = results["kernels"].to_dataset()
    (section,) = kernel_section(results, Limits())
    gain = ds.square_gain.values
    for value, finding, side in zip((gain.max(), gain.min()), section.findings[:2], ("<i>move", "rest"), strict=True):
        channel, stimulus = np.argwhere(gain == value)[0]
        assert f"{float(ds.frequency[stimulus]):.3g} Hz in channel {channel + 1} speaks most for {side}" in finding
        assert told(finding) == pytest.approx(value, abs=0.006)
    offsets = ds.h1.values.sum(1)
    largest = np.abs(offsets).argmax()
    assert f"channel {largest + 1} for a whole case" in section.findings[2]
    assert told(section.findings[2]) == pytest.approx(offsets[largest], abs=0.006)


def test_a_side_that_no_sinusoid_speaks_for_is_not_told():
    ds = tree()["kernels"].to_dataset()
    for sign, side in ((1, "<i>move"), (-1, "rest")):
        (section,) = kernel_section(ds.assign(square_gain=sign * abs(ds.square_gain)), Limits())
        assert [f"speaks most for {side}" in finding for finding in section.findings] == [True, False]


def test_offsets_count_every_step_of_a_block():
    ds = tree()["kernels"].to_dataset()
    blocks = ds.isel(time=slice(0, 8)).assign_attrs(block=4, n_steps=30)
    blocks["h1"] = 100 * blocks.h1
    h1 = blocks.h1.values
    offsets = h1[:, :7].sum(1) * 4 + h1[:, 7] * 2
    (section,) = kernel_section(blocks, Limits())
    assert told(section.findings[-1]) == pytest.approx(offsets[np.abs(offsets).argmax()], abs=0.006)
    assert "means over 4 steps" in section.pictures[2].caption


def test_a_margin_switches_pairs_and_classes_switch_classes():
    (section,) = kernel_section(tree(), Limits())
    assert [picture.id for picture in section.pictures] == [
        "kernels-gain-2",
        "kernels-gain-1",
        "kernels-h1",
        "kernels-h2",
    ]
    assert set(section.pictures[3].variants) == {"0", "1", "2"}
    assert [picture.switch for picture in section.pictures] == [None, None, None, "switch-by-kernels"]
    (section,) = kernel_section(tree(3), Limits())
    assert section.findings == []
    assert all(set(picture.variants) == {"rest", "<i>move", "other"} for picture in section.pictures)
    assert {picture.switch for picture in section.pictures} == {"switch-by-kernels"}
    (section,) = kernel_section(tree(3), Limits(variants=3))
    assert section.switch is None
    assert all(len(picture.variants) == 1 for picture in section.pictures)


def test_one_channel_and_one_order_ask_nothing():
    (section,) = kernel_section(tree(n_channels=1), Limits())
    assert section.switch is None
    assert "for channel 1." in section.pictures[3].caption
    (section,) = kernel_section(tree(order=1, rate=None), Limits())
    assert [picture.id for picture in section.pictures] == ["kernels-gain-1", "kernels-h1"]
    assert len(section.findings) == 1


@pytest.mark.parametrize("name", ["waves", "kernel"])
def test_no_group_is_no_section(name):
    assert kernel_section(xr.DataTree.from_dict({name: xr.Dataset()}), Limits()) == []
