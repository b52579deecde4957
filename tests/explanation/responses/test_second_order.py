"""The second-order kernel against the Hessian of the operator, and the gains against the operator run on sinusoids of all phases."""

import numpy as np
import pytest
import torch

from oplens import S4D, Margin, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation.responses.second_order import second_order_kernel, summarise_kernels
from oplens.models import Preprocessing

LENGTH = 23


def operator(n_classes=2, order=2, family="hermite", length=LENGTH, **more):
    torch.manual_seed(2)
    preprocessing = Preprocessing((0.4, -0.1), (2.0, 0.5))
    model = S4D(
        S4DConfig(
            2, n_classes, 4, 6, dt_max=0.5, preprocessing=preprocessing, channels=("a", "b"), sampling_rate=10.0, **more
        )
    )
    X = np.random.default_rng(0).normal(size=(5, 2, length)) * [[2.0], [0.5]] + [[0.4], [-0.1]]
    return expand(model, X, family=family, order=order)


def raw(op, x):
    """Raw input whose preprocessed values are x (n_cases, 2, length)."""
    p = op.model.config.preprocessing
    return x * np.array(p.scale)[:, None] + np.array(p.mean)[:, None]


def hessian(op, direction, length):
    """Hessian of the target at zero preprocessed input, (d, t, d', t'), of the operator stepped in time by torch."""
    order, system, expansion = op.order, op.system, op.expansion

    def target(x):
        u = op.model.encoder.weight @ x + op.model.encoder.bias[:, None]
        state = torch.zeros(4, 3, dtype=torch.complex128)
        total = torch.zeros(4, dtype=torch.float64)
        for t in range(length):
            state = system.a * state + system.b * u[:, t, None]
            w = 2 * (system.C * state).real.sum(-1) + system.D * u[:, t] - expansion.centre
            values = [torch.ones_like(w), w]
            for k in range(1, order):
                values.append(w * values[k] - k * expansion.variance * values[k - 1])
            total = total + sum(expansion.coefficients[:, k] * values[k] for k in range(order + 1))
        return direction @ (op.model.decoder.weight @ (total / length))

    return torch.autograd.functional.hessian(target, torch.zeros(2, length, dtype=torch.float64)).numpy()


@pytest.mark.parametrize(("family", "order"), [("hermite", 2), ("hermite", 4), ("taylor", 3)])
def test_any_stretch_is_half_the_hessian(family, order):
    op = operator(order=order, family=family)
    kernels = op.kernels(LENGTH)
    full = hessian(op, torch.tensor([-1.0, 1.0], dtype=torch.float64), LENGTH)
    steps = [0, 3, 4, 17, 22]
    for d, channel in enumerate("ab"):
        for e, channel_2 in enumerate("ab"):
            found = second_order_kernel(kernels, channel, channel_2, points=steps)
            np.testing.assert_allclose(2 * found.h2, full[d, :, e][np.ix_(steps, steps)], atol=1e-13)
            np.testing.assert_allclose(found.position, np.array(steps) / 10)
    back = second_order_kernel(kernels, "b", target=Margin("class 0", "class 1"), points=steps)
    np.testing.assert_allclose(-2 * back.h2, full[1, :, 1][np.ix_(steps, steps)], atol=1e-13)
    assert back.attrs["channel_2"] == "b"


def test_every_class_has_its_own_kernel():
    op = operator(3)
    found = second_order_kernel(op.kernels(LENGTH), "a", "b", points=[2, 9])
    assert found.h2.dims == ("class", "position", "position_2")
    for index in range(3):
        direction = torch.eye(3, dtype=torch.float64)[index] - 1 / 3
        full = hessian(op, direction, LENGTH)
        np.testing.assert_allclose(2 * found.h2[index], full[0, :, 1][np.ix_([2, 9], [2, 9])], atol=1e-13)


def test_a_page_holds_the_same_numbers_and_the_largest_pairs():
    op = operator()
    with torch.no_grad():  # then h2 of (a, b) is 0.7 times that of (a, a), but stands there twice
        op.model.encoder.weight[:, 1] = 0.7 * op.model.encoder.weight[:, 0]
    ds = summarise_kernels(op, points=7)
    kernels = op.kernels(LENGTH)
    np.testing.assert_allclose(ds.h1, kernels.h1.values[1] - kernels.h1.values[0], atol=1e-15)
    steps = np.rint(ds.position.values * 10).astype(int)
    np.testing.assert_array_equal(np.diff(steps), np.diff(steps)[0])
    assert abs((steps[0] + steps[-1]) / 2 - (LENGTH - 1) / 2) <= 0.5
    sizes = []
    for index in range(ds.sizes["pair"]):
        pair = str(ds.member.values[index]), str(ds.member_2.values[index])
        own = second_order_kernel(kernels, *pair, points=steps).h2.values
        np.testing.assert_allclose(ds.h2[index], own, atol=1e-16)
        size = float(ds.h2_size.sel(channel=pair[0], channel_2=pair[1]))
        np.testing.assert_allclose(size, np.sqrt((own**2).sum()), rtol=1e-10)
        sizes.append(size * (1 if pair[0] == pair[1] else 2))
    assert [*zip(ds.member.values, ds.member_2.values, strict=True)] == [("a", "b"), ("a", "a"), ("b", "b")]
    assert sizes == sorted(sizes, reverse=True)
    np.testing.assert_allclose(ds.h2_size, ds.h2_size.values.T)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_gains_are_what_sinusoids_change(n_classes):
    op = operator(n_classes)
    ds = summarise_kernels(op)
    directions = np.array([[-1.0, 1.0]]) if n_classes == 2 else np.eye(3) - 1 / 3
    phases = 2 * np.pi * np.arange(8) / 8
    for stimulus in (0, 40, 111, 159):
        omega = 2 * np.pi * float(ds.frequency[stimulus]) / 10
        for d in range(2):
            x = np.zeros((8, 2, LENGTH))
            x[:, d] = np.cos(omega * np.arange(LENGTH) + phases[:, None])
            plus, minus, none = (op(raw(op, sign * x)) @ directions.T for sign in (1, -1, 0))
            # At order 2 the operator is exactly quadratic: its even and odd parts are its orders.
            square = ((plus + minus) / 2 - none).mean(0)
            linear = np.sqrt(2 * (((plus - minus) / 2) ** 2).mean(0))
            lead = () if n_classes == 2 else (slice(None),)
            np.testing.assert_allclose(np.atleast_1d(ds.square_gain.values[*lead, d, stimulus]), square, atol=1e-12)
            np.testing.assert_allclose(np.atleast_1d(ds.linear_gain.values[*lead, d, stimulus]), linear, atol=1e-12)


def test_long_cases_are_told_by_means_over_blocks(monkeypatch):
    monkeypatch.setattr("oplens.explanation.responses.second_order.LONGEST", 10)
    op = operator()
    ds = summarise_kernels(op)
    h1 = op.kernels(LENGTH).h1.values[1] - op.kernels(LENGTH).h1.values[0]
    expected = np.stack([h1[:, i : i + 3].mean(1) for i in range(0, LENGTH, 3)], axis=1)
    np.testing.assert_allclose(ds.h1, expected, atol=1e-15)
    np.testing.assert_allclose(ds.time[:2], [0.1, 0.4])
    assert ds.attrs["block"] == 3


def test_steps_lie_near_where_kernels_oscillate_fast():
    def spacing(step):
        op = operator(length=200, initialisation="lin")
        with torch.no_grad():
            for name, value in (
                ("log_dt", np.log(step)),
                ("log_A_real", np.log(0.05 / step)),
                ("A_imag", 2 * np.pi * 0.2 / step),
            ):
                getattr(op.model.layer(0).kernel, name).fill_(value)
        return np.diff(second_order_kernel(op.kernels(200), "a", points=8).position.values * 10)

    assert (spacing(0.01) == 2).all(), "0.2 cycles per step are sampled at every other step"
    op = operator(length=200)
    with torch.no_grad():
        op.model.layer(0).kernel.A_imag.fill_(0.0)
        op.model.layer(0).kernel.log_A_real.fill_(np.log(0.05))
    np.testing.assert_allclose(np.diff(second_order_kernel(op.kernels(200), "a", points=8).position.values * 10), 25)


def test_chunks_of_features_do_not_matter(monkeypatch):
    op = operator()
    whole = second_order_kernel(op.kernels(LENGTH), "a", "b").h2
    monkeypatch.setattr("oplens.explanation.responses.second_order._BYTES", 1)
    np.testing.assert_allclose(second_order_kernel(op.kernels(LENGTH), "a", "b").h2, whole, atol=1e-16)


def test_what_cannot_be_shown_is_a_sentence():
    op = operator()
    kernels = op.kernels(LENGTH)
    with pytest.raises(ArgumentError, match="no channel 'c'; it has a, b"):
        second_order_kernel(kernels, "a", "c")
    for points in (0, [], [23], [-1], [0.5], True, "ab"):
        with pytest.raises(ArgumentError, match=r"points=.*: give"):
            second_order_kernel(kernels, "a", points=points)
    with pytest.raises(ArgumentError, match="expand the model with order=2"):
        second_order_kernel(operator(order=1).kernels(LENGTH), "a")
    with pytest.raises(ArgumentError, match="holds no readout, response"):
        second_order_kernel(kernels.drop_vars(["readout", "response"]), "a")
    with pytest.raises(ArgumentError, match="no class 'left'"):
        second_order_kernel(kernels, "a", target=Margin("left", "class 1"))
    with pytest.raises(ArgumentError, match="one class has nothing to decide"):
        summarise_kernels(operator(1))
    assert sorted(summarise_kernels(operator(order=1)).data_vars) == ["h1", "linear_gain"]
    with pytest.raises(ArgumentError, match="whole number of steps"):
        summarise_kernels(op, length=0)
