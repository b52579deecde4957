"""Kernels, gains and waves of built filters, against recurrences, direct sums and the filter's own poles."""

import numpy as np
import pytest
import torch

from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.kernel_drawing import kernel_groups
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.construction.ssm import build_ssm
from oplens.construction.ssm_certificate import kernel_errors
from oplens.construction.volterra import volterra
from oplens.errors import ArgumentError
from oplens.figures.construction_filters import filter_waves, gain_comparison, kernel_comparison
from oplens.report.blocks import Limits
from oplens.report.construction_filters import filter_section

POLE = 0.9 * np.exp(0.5j)
B, A = [1.0, 0.5], [1.0, -2 * POLE.real, abs(POLE) ** 2]


def groups(kernel1, kernel2=None, spoil=None, **options):
    model, certificate = build_ssm(kernel1, kernel2, **options)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    series = volterra("test", kernel1, kernel2, 0.0)
    found = kernel_groups(model, series, kernel_errors(model, series))
    return found["construction_kernels"], found["construction_waves"], certificate


def recurrence(length):
    """Impulse response of B, A by its difference equation."""
    y = []
    for t in range(length):
        x = [1.0 if t - k == 0 else 0.0 for k in range(2)]
        past = [y[t - k] if t >= k else 0.0 for k in (1, 2)]
        y.append(B[0] * x[0] + B[1] * x[1] - A[1] * past[0] - A[2] * past[1])
    return np.array(y)


def test_a_filter_is_drawn_as_its_recurrence():
    kernels, waves, _ = groups(ExponentialSum.from_ba(B, A), sampling_rate=50.0)
    expected = recurrence(kernels.sizes["lag"])
    np.testing.assert_allclose(kernels.wanted.values[0], expected, atol=1e-14)
    np.testing.assert_allclose(kernels.built.values[0], expected, atol=1e-14)
    w = 2 * np.pi * kernels.frequency.values / 50.0
    gain = np.abs((B[0] + B[1] * np.exp(-1j * w)) / (1 + A[1] * np.exp(-1j * w) + A[2] * np.exp(-2j * w)))
    np.testing.assert_allclose(kernels.wanted_gain.values[0], gain, rtol=1e-10)
    np.testing.assert_allclose(kernels.built_gain.values[0], gain, rtol=1e-10)
    assert waves.frequency.values[0, 0] == pytest.approx(0.5 / (2 * np.pi) * 50)
    assert waves.decay_time.values[0, 0] == pytest.approx(-1 / (50 * np.log(0.9)))
    residue = (B[0] * POLE + B[1]) / (POLE - POLE.conjugate())  # r of r/(1 - p/z)
    assert waves["size"].values[0, 0] == pytest.approx(2 * abs(residue), rel=1e-9)
    assert kernels.label.values.tolist() == ["first order"]


def test_a_broken_weight_is_seen_in_kernel_gain_and_waves():
    def slow(model):
        model.layer(0).kernel.log_A_real.add_(0.3)

    good = groups(ExponentialSum.from_ba(B, A))
    kernels, waves, _ = groups(ExponentialSum.from_ba(B, A), spoil=slow)
    np.testing.assert_array_equal(kernels.wanted, good[0].wanted)
    assert np.abs(kernels.built - kernels.wanted).max() > 0.05
    assert np.abs(kernels.built_gain - kernels.wanted_gain).max() > 0.5
    assert float(waves.decay_time[0, 0]) == pytest.approx(float(good[1].decay_time[0, 0]) * np.exp(-0.3))
    (section,) = (filter_section(kernels, waves, Limits()),)
    assert float(kernels.error[0] / kernels.norm[0]) > 0.1
    assert f"{float(kernels.error[0] / kernels.norm[0]):.3g} of the one asked for" in section.findings[1]


def test_the_kernels_that_add_most_are_drawn_and_named():
    t = np.arange(8)
    rows = [FiniteKernel(tuple((k + 1.0) * np.exp(-t / (k + 2)))) for k in range(8)]
    second = SecondOrderKernel(tuple(rows), tuple([0.1] * 7 + [-3.0]))
    kernels, waves, _ = groups([[ExponentialSum([0.5], [100.0])]], second, n_modes=4)
    assert kernels.sizes["feature"] == 6
    assert kernels.attrs["n_features"] == 9
    assert kernels.feature.values[:2].tolist() == [9, 1], "squares of a norm of 28 times 3, then a norm of 200"
    assert kernels.label.values[:2].tolist() == ["squared, times -3", "first order"]
    assert waves.feature.values.tolist() == kernels.feature.values.tolist()
    assert int(np.isnan(waves["size"].values[1]).sum()) == 3, "slots of the first filter that are empty"
    section = filter_section(kernels, waves, Limits())
    assert section.findings[0].startswith("9 filters; the 6 that add most, which are shown, have 21 decaying waves")
    assert len(section.switch.choices[0].options) == 6
    assert len(filter_section(kernels, waves, Limits(cases=4)).switch.choices[0].options) == 2


def test_channels_and_outputs_are_named():
    fast, slow = ExponentialSum([0.5], [1.0]), ExponentialSum([0.9], [1.0])
    kernels, _, _ = groups([[fast, None], [slow, slow]], outputs=("up", "<b>"))
    assert sorted(kernels.label.values.tolist()) == [
        "<b>, first order, channel 1",
        "<b>, first order, channel 2",
        "up, first order, channel 1",
    ]


def test_figures_draw_the_groups():
    kernels, waves, _ = groups(ExponentialSum.butterworth(3, 0.2))
    wanted, built, difference = kernel_comparison(kernels).data
    np.testing.assert_allclose(wanted.y, kernels.wanted[0], rtol=1e-6)
    np.testing.assert_allclose(built.y, kernels.built[0], rtol=1e-6)
    np.testing.assert_allclose(difference.y, kernels.built[0] - kernels.wanted[0], atol=1e-20)
    assert difference.yaxis == "y2"
    wanted, built = gain_comparison(kernels).data
    top = float(kernels.wanted_gain.max())
    np.testing.assert_allclose(wanted.y, np.maximum(kernels.wanted_gain[0], 1e-8 * top), rtol=1e-5)
    np.testing.assert_allclose(built.x, kernels.frequency, rtol=1e-6)
    dots = filter_waves(waves).data[0]
    kept = ~np.isnan(waves["size"].values[0])
    np.testing.assert_allclose(dots.x, waves.frequency.values[0, kept], rtol=1e-6)
    np.testing.assert_allclose(dots.y, waves.decay_time.values[0, kept], rtol=1e-6)
    assert np.argmax(dots.marker["size"]) == np.argmax(waves["size"].values[0, kept])
    for draw, ds in ((kernel_comparison, kernels), (gain_comparison, kernels), (filter_waves, waves)):
        with pytest.raises(ArgumentError, match="holds kernels 0 to 0"):
            draw(ds, 1)
