"""Boxes: reaches that an input attains, second-order bounds above exhaustive corners, refusals."""

import itertools
import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation.certificates import boxes
from oplens.explanation.certificates.boxes import MOST_CONCAVE, MOST_CONVEX, Box
from oplens.explanation.certificates.certified_margins import Setting
from oplens.models import Preprocessing
from oplens.operators import diagonal


def model_of(d_input=2, length=12, remove_offset=False, seed=0, d_model=3):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    preprocessing = Preprocessing(tuple(rng.normal(size=d_input)), tuple(rng.uniform(0.5, 4, d_input)), remove_offset)
    config = S4DConfig(
        d_input=d_input, n_classes=3, d_model=d_model, d_state=6, dt_max=0.5, preprocessing=preprocessing
    )
    model = S4D(config).double()
    X = 3 * rng.normal(size=(4, d_input, length))
    return model, X


@pytest.mark.parametrize("remove_offset", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7, (0.3, 2.0)])
@pytest.mark.parametrize("steps", [12, 7])
def test_an_input_of_the_box_moves_every_pre_activation_as_far_as_said(remove_offset, scale, steps):
    model, X = model_of(remove_offset=remove_offset)
    op = expand(model, X)
    box = Box.of(model.config, scale)
    reach = Setting.of(op, box).reach_after(steps)
    base = torch.from_numpy(X[:1]).transpose(1, 2)
    lengths = torch.tensor([steps])
    widths = 0.3 * box.half_width  # of the data, radius 0.3
    for h, t in itertools.product(range(3), (0, 3, steps - 1)):
        # The farthest input: the sign of each raw value's effect on z_h(t), by autograd through the whole preprocessing.
        x = base.clone().requires_grad_(True)
        z = model.trace(x, lengths).layers[0].z[0, t, h]
        (effect,) = torch.autograd.grad(z, x)
        farthest = model.trace(base + widths * effect.sign(), lengths).layers[0].z[0, t, h]
        assert float((abs(farthest - z) / (0.3 * reach[h, t])).detach()) == pytest.approx(1.0, abs=1e-10)


def bends_of(setting, length, rows):
    encoder = setting.op.model.encoder.weight
    return setting.box.bend(encoder, setting.response(length)[1], setting.reach_after(length), rows)


def second_order_form(model, box, row, length):
    """The quadratic form sum_h b_h mean_t (what eta moves)^2 as a dense matrix over (channel, step), from plain loops."""
    system = model.layer(0).system()
    impulse = diagonal.kernel(system, length, skip=True).detach().numpy()
    encoder = model.encoder.weight.detach().numpy()
    d_input = encoder.shape[1]
    total = np.zeros((d_input * length, d_input * length))
    for h in range(len(row)):
        limit = abs(row[h]) * (MOST_CONCAVE if row[h] > 0 else MOST_CONVEX) / 2
        matrix = np.zeros((length, d_input, length))
        for t in range(length):
            for lag in range(t + 1):
                matrix[t, :, t - lag] = impulse[h, lag] * encoder[h] * box.width.numpy()
        if box.centred:
            matrix -= matrix.mean(-1, keepdims=True)
        flat = matrix.reshape(length, -1)
        total += limit * flat.T @ flat / length
    return total


def largest_on_corners(form):
    """max over all corners of the cube, by enumeration."""
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=len(form) - 1)))
    corners = np.concatenate((np.ones((len(corners), 1)), corners), axis=1)
    return float(np.einsum("ci,ij,cj->c", corners, form, corners, optimize=True).max())


@pytest.mark.parametrize("remove_offset", [False, True])
@pytest.mark.parametrize(("d_input", "length"), [(1, 12), (2, 7), (3, 5)])
def test_the_bend_is_above_every_corner_and_not_far(remove_offset, d_input, length):
    for seed in range(4):
        model, X = model_of(d_input, length, remove_offset, seed)
        setting = Setting.of(expand(model, X), Box.of(model.config, None))
        W = model.decoder.weight.detach()
        bends = bends_of(setting, length, W[0] - W)
        assert float(bends[0]) == 0.0
        for rival in (1, 2):
            row = (W[0] - W[rival]).numpy()
            found = largest_on_corners(second_order_form(model, setting.box, row, length))
            assert found <= float(bends[rival])
            assert float(bends[rival]) <= 3.2 * found
            # The plain bound that this one replaces: every pre-activation at its farthest at once, whatever the sign of its weight.
            farthest = (
                setting.reach_after(length)[:, -1 if not remove_offset else slice(None)]
                .reshape(len(row), -1)
                .amax(-1)
                .numpy()
            )
            assert float(bends[rival]) < (MOST_CONVEX / 2 * np.abs(row) * farthest**2).sum()


def test_neighbouring_frequencies_that_share_their_gain_only_loosen_the_bend(monkeypatch):
    model, X = model_of(2, 200)
    setting = Setting.of(expand(model, X), Box.of(model.config, None))
    rows = (model.decoder.weight[:1] - model.decoder.weight[1:2]).detach()
    fine = bends_of(setting, 200, rows)
    monkeypatch.setattr(boxes, "EIGENVALUE_WORK", 8 * 20)
    coarse = bends_of(setting, 200, rows)
    assert float(fine) < float(coarse) < 2 * float(fine)


def test_curvature_limits_are_those_of_gelu():
    z = torch.linspace(-6, 6, 100001, dtype=torch.float64)
    bend = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (2 - z * z)
    assert float(bend.max()) == pytest.approx(MOST_CONVEX, rel=1e-8)
    assert float(bend.min()) == pytest.approx(-MOST_CONCAVE, rel=1e-8)
    assert float(bend.max()) <= MOST_CONVEX
    assert float(-bend.min()) <= MOST_CONCAVE


def test_channels_that_stay_as_they_are_add_nothing():
    model, X = model_of(2)
    op = expand(model, X)
    one = Setting.of(op, Box.of(model.config, (1.5, 0.0)))
    encoder = model.encoder.weight.detach()
    rows = (model.decoder.weight[:1] - model.decoder.weight[1:]).detach()
    alone = Box(torch.ones(1), one.box.width[:1], False)
    response, spectrum = one.response(12)
    reach = alone.reach(encoder[:, :1], response)
    torch.testing.assert_close(bends_of(one, 12, rows), alone.bend(encoder[:, :1], spectrum, reach, rows))
    torch.testing.assert_close(one.box.reach(encoder, response), reach)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf"), (0.0, 0.0), "wide", [[1.0, 2.0]], (1.0, -0.5)])
def test_half_widths_that_are_none_are_named(scale):
    with pytest.raises(ArgumentError, match=r"certify\(scale=.*half width at radius 1"):
        Box.of(model_of()[0].config, scale)


def test_half_widths_of_other_channels_are_counted():
    with pytest.raises(ArgumentError, match="3 half widths for 2 channels"):
        Box.of(model_of()[0].config, (1.0, 2.0, 3.0))
