"""Homogeneous orders against Cauchy's integral and winding numbers of a network at complex eps, repeated derivatives, closed forms."""

import math

import numpy as np
import pytest
import torch

from account_oracles import derivative
from oplens.errors import ArgumentError, DataError
from oplens.explanation import CentredLogits, Margin, expand
from oplens.explanation.rays import singularities
from oplens.explanation.rays.homogeneous import convergence, homogeneous, target_series
from oplens.explanation.rays.rays import ray
from oplens.explanation.rays.singularities import Nearest, disc_is_free
from oplens.models import load_checkpoint
from oplens.operators import diagonal
from ray_oracles import RayNetwork, ray_cases, ray_model

ARCHITECTURES = [(n, pre, "reference") for n in (1, 2, 3, 4) for pre in (False, True)] + [(1, False, "plain")]
TRAIN = ray_cases(7, (16, 19, 12))
MEAN = np.concatenate([c.astype(np.float32).astype(float) for c in TRAIN], axis=1).mean(1)[:, None]
GENTLE = 0.08  # drive of the input at which the series of these models converge beyond eps = 1


@pytest.mark.parametrize(("n_layers", "prenorm", "architecture"), ARCHITECTURES)
def test_orders_equal_cauchys_integral(n_layers, prenorm, architecture):
    model = ray_model(n_layers, prenorm, architecture, drive=GENTLE)
    cases, order = ray_cases(), 7
    target = Margin("z", "x") if prenorm or n_layers == 4 else CentredLogits()
    ds = homogeneous(expand(model, TRAIN), cases, order, target=target)
    assert ds.sizes["case"] == 3, ds.attrs["refused"]
    for index, raw in enumerate(cases):
        network = RayNetwork(model, raw, MEAN)
        expected = network.taylor(order, 0.5) @ target.directions(model.config.classes).T  # (order + 1, targets)
        found = ds["homogeneous_order"].isel(case=index).values.reshape(order + 1, -1)
        scale = np.abs(expected).max(0)
        # Coefficients fall as radius^-k: compared at eps = 1/2, where each still counts.
        assert (np.abs(found - expected) * 0.5 ** np.arange(order + 1)[:, None] < 1e-12 * scale).all()
        value = (network([0, 1.0])[-1] @ target.directions(model.config.classes).T).real
        left = np.ravel(ds["remainder"].isel(case=index).values)
        np.testing.assert_allclose(left, value - expected.sum(0), rtol=0, atol=1e-11 * scale.max())
        np.testing.assert_allclose(np.ravel(ds["target"].isel(case=index).values), value, rtol=1e-11)
        residual = ds["completeness_residual"].isel(case=index)
        assert float((abs(residual) / ds["sum_abs_terms"].isel(case=index)).max()) < 1e-13


def plain_layer_norm(x, _, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


@pytest.mark.parametrize("prenorm", [False, True])
def test_first_orders_equal_repeated_derivatives(prenorm, monkeypatch):
    """Through torch's own graph of the model, at a drive where the series diverges at eps = 1: derivatives need no radius."""
    # torch's own layer_norm (2.13) has a wrong third derivative: its saved statistics are constants there.
    monkeypatch.setattr(torch.nn.functional, "layer_norm", plain_layer_norm)
    model = ray_model(2, prenorm).requires_grad_(False)
    raw = torch.from_numpy(ray_cases()[1].T)[None]
    start, lengths = torch.from_numpy(MEAN.T).expand_as(raw), torch.tensor([raw.shape[1]])
    found, _, _ = target_series(model, start, raw, lengths, 4)
    for c in range(3):
        eps = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value = model(start + eps * (raw - start), lengths)[0, c]
        for k in range(5):
            expected = float(value.detach()) / math.factorial(k)
            assert float(found[k, 0, c]) == pytest.approx(expected, rel=1e-10)
            (value,) = torch.autograd.grad(value, eps, create_graph=True)


def test_the_plain_model_has_closed_forms():
    """m_k = W mean_t g^(k)(z_0) (z - z_0)^k / k!: GELU is entire, so every case has orders whatever its size."""
    model = ray_model(1, architecture="plain", n_classes=2)
    cases = ray_cases()
    ds = homogeneous(expand(model, TRAIN), cases, 12)
    assert np.isinf(ds["convergence_radius"]).all()
    assert set(ds["nearest"].values) == {"none"}
    for index, raw in enumerate(cases):
        network = RayNetwork(model, raw, MEAN)
        length = raw.shape[1]
        lag = np.arange(length)[:, None] - np.arange(length)[None]
        toeplitz = np.where(lag[..., None] >= 0, network.response(0, length)[np.maximum(lag, 0)], 0.0)
        E, W = network.p["encoder.weight"], network.p["decoder.weight"][1] - network.p["decoder.weight"][0]
        base = np.einsum("ijh,jh->ih", toeplitz, network.start @ E.T + network.p["encoder.bias"])
        move = np.einsum("ijh,jh->ih", toeplitz, (network.end - network.start) @ E.T)
        expected = np.array([W @ (derivative(base, k) * move**k).mean(0) / math.factorial(k) for k in range(13)])
        expected[0] += network.p["decoder.bias"][1] - network.p["decoder.bias"][0]
        found = ds["homogeneous_order"].isel(case=index).values
        assert np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("n_layers", "prenorm", "drive"), [(1, False, 0.6), (1, True, 0.8), (2, False, 0.3), (2, True, 0.6), (3, True, 0.3)]
)
def test_the_radius_is_where_the_first_zero_lies(n_layers, prenorm, drive):
    """By the argument principle: no variance or gate denominator has a zero inside, one has just outside."""
    model = ray_model(n_layers, prenorm, drive=drive, seed=2)
    ds = convergence(expand(model, TRAIN), ray_cases())
    for index, raw in enumerate(ray_cases()):
        network, radius = RayNetwork(model, raw, MEAN), float(ds["convergence_radius"][index])
        # Gates crowd where a pre-norm's variance vanishes: there the series find the nearest one 15 % too far out.
        assert not any(network.windings(0.85 * radius if prenorm else 0.96 * radius).values())
        outside = network.windings(1.02 * radius)
        assert outside[str(ds["nearest"].values[index])] > 0, (radius, ds["nearest"].values[index], outside)


def test_gates_alone_can_be_what_is_nearest():
    model = ray_model(1, False, drive=0.3, seed=1)
    model.layer(0).convolution.weight.data[4:] *= 20
    model.layer(0).convolution.bias.data[4:] = 0
    ds = convergence(expand(model, TRAIN), ray_cases())
    assert set(ds["nearest"].values) == {"gate of layer 0"}
    for index, raw in enumerate(ray_cases()):
        network, radius = RayNetwork(model, raw, MEAN), float(ds["convergence_radius"][index])
        assert not any(network.windings(0.9 * radius).values())  # zeros of the variance crowd around a gate's pole
        assert network.windings(1.01 * radius)["gate of layer 0"] > 0


def test_steps_past_the_end_of_a_case_have_no_zeros():
    nearest = Nearest(torch.tensor([2, 3]))
    argument = torch.zeros(4, 2, 3, 1, dtype=torch.float64)  # y = rate eps reaches i pi at pi / rate
    argument[1, :, :, 0] = torch.tensor([1.0, 2.0, 4.0])
    nearest.gate(5, argument)
    assert nearest.radius == pytest.approx([math.pi / 2, math.pi / 4], rel=1e-12)
    variance = torch.zeros(4, 2, 3, dtype=torch.float64)
    variance[0] = 1
    variance[2] = torch.tensor([1.0, 4.0, 16.0])  # 1 + (rate eps)^2
    nearest.norm(6, variance)
    assert nearest.radius == pytest.approx([1 / 2, 1 / 4], rel=1e-12)
    assert nearest.place == ["LayerNorm of layer 6"] * 2


def test_the_square_root_follows_its_branch():
    """Around a zero the scale turns half as fast as the variance, and takes the sign that continues it."""
    model, phases = ray_model(1), [torch.zeros(()), torch.zeros(())]
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 4)) * 100).to(torch.complex128)
    first = singularities._norm(model, 0, values, [phases[0]], [])
    for angle in np.linspace(0, 2 * np.pi, 30)[1:]:
        after = []
        turned = singularities._norm(model, 0, values * np.exp(1j * angle), [phases[0]], after)
        phases[0] = after[0]
        assert (turned - first).abs().max() < 1e-5  # numerator and scale turn together
        assert float(phases[0]) == pytest.approx(2 * angle, abs=1e-5)


@pytest.mark.parametrize("account", [homogeneous, ray])
def test_the_remainder_has_a_route_of_its_own(account, monkeypatch):
    """From the recurrence: where that is off, the terms no longer sum to the target."""
    scan = diagonal.scan
    monkeypatch.setattr(diagonal, "scan", lambda *a: (scan(*a)[0] * (1 + 1e-4), None))
    residual = abs(account(OP, ray_cases(), 6)["completeness_residual"])
    assert float(residual.max()) > 1e-6


def test_no_radius_above_1_rests_on_the_series_alone():
    """Here the series see no zero up to 1.04, but gates have theirs from 0.905 on: the circle itself is searched."""
    model, raw = ray_model(1, True, drive=0.6, seed=2), ray_cases()[2]
    network = RayNetwork(model, raw, MEAN)
    lengths = torch.tensor([raw.shape[1]])
    ends = [torch.from_numpy(v.T.copy())[None] for v in (np.broadcast_to(MEAN, raw.shape), raw)]
    _, (alone,), _ = target_series(model.as_float64(), *ends, lengths, 32)
    assert alone > 1.02
    radius = float(convergence(expand(model, TRAIN), [raw])["convergence_radius"][0])
    assert not any(network.windings(0.98 * radius).values())
    assert any(network.windings(1.001 * radius).values())
    with pytest.raises(ArgumentError, match=r"case 0: 0\.91"):
        homogeneous(expand(model, TRAIN), [raw])


@pytest.mark.parametrize(("n_layers", "prenorm"), [(1, True), (2, False), (2, True), (3, False)])
def test_a_disc_is_free_where_the_argument_principle_counts_nothing(n_layers, prenorm):
    model, raw = ray_model(n_layers, prenorm, drive=0.6, seed=4), ray_cases()[1]
    network = RayNetwork(model, raw, MEAN)
    first, last = torch.from_numpy(network.start.copy()), torch.from_numpy(network.end.copy())
    low, high = 0.05, 4.0
    for _ in range(8):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if any(network.windings(middle).values()) else (middle, high)
    assert disc_is_free(model.as_float64(), first, last, 0.98 * low)
    assert not disc_is_free(model.as_float64(), first, last, 1.02 * high)
    assert not disc_is_free(model.as_float64(), first, last, 1e6)  # exp leaves double precision there


def test_the_first_norm_of_a_prenorm_model_is_exact():
    """Its variance is a quadratic in eps at every step, so its zeros are known in closed form."""
    model = ray_model(1, True, drive=1.0, seed=3)
    model.layer(0).convolution.weight.data.zero_()  # gates that never move
    ds = convergence(expand(model, TRAIN), ray_cases())
    for index, raw in enumerate(ray_cases()):
        network = RayNetwork(model, raw, MEAN)
        E, e = network.p["encoder.weight"], network.p["encoder.bias"]
        base, move = network.start @ E.T + e, (network.end - network.start) @ E.T
        a, b = base - base.mean(-1, keepdims=True), move - move.mean(-1, keepdims=True)
        quadratics = np.stack([(b * b).mean(-1), 2 * (a * b).mean(-1), (a * a).mean(-1) + 1e-5], axis=-1)
        expected = min(np.abs(np.roots(q)).min() for q in quadratics)
        assert float(ds["convergence_radius"][index]) == pytest.approx(expected, rel=1e-10)
        assert str(ds["nearest"].values[index]) == "LayerNorm of layer 0"


def mixed_cases():
    """Two cases near the baseline, between them two far away."""
    near, far = ray_cases(1, (12, 15)), ray_cases(2, (14, 10))
    return [MEAN + 0.1 * (near[0] - MEAN), 3 * far[0], MEAN + 0.05 * (near[1] - MEAN), 2 * far[1]]


def test_cases_that_diverge_get_no_orders():
    op, cases = expand(ray_model(2, drive=0.6), TRAIN), mixed_cases()
    radii = convergence(op, cases)
    assert (radii["convergence_radius"].values > 1).tolist() == [True, False, True, False]
    ds = homogeneous(op, cases, 6, y=["x", "y", "z", "x"])
    assert ds["case"].values.tolist() == [0, 2]
    assert ds["label"].values.tolist() == ["x", "z"]
    assert ds["homogeneous_order"].dims == ("order", "case", "class")
    np.testing.assert_array_equal(ds["convergence_radius"], radii["convergence_radius"][[0, 2]])
    assert ds.attrs["refused"].startswith("2 of 4 cases; case 1: ")
    assert "case 3: " in ds.attrs["refused"]
    # What is given converges: each order of magnitude of the radius shows in the remainder.
    more = homogeneous(op, cases, 20)
    assert (abs(more["remainder"]) < 1e-2 * abs(ds["remainder"])).all()
    with pytest.raises(ArgumentError, match=r"in every case \(2 of 2 cases; case 0: 0\.\d+.*use ray\(X\)"):
        homogeneous(op, cases[1::2])


def test_entire_series_that_still_grow_get_no_orders():
    """Far from the baseline the plain model's orders alternate in size beyond any use, though its radius has no limit."""
    op, cases = expand(ray_model(1, architecture="plain", n_classes=2), TRAIN), ray_cases()
    far = [cases[0], MEAN + 30 * (cases[1] - MEAN)]
    radii = convergence(op, far)
    assert np.isinf(radii["convergence_radius"]).all()
    assert (radii["growth_radius"].values > 1).tolist() == [True, False]
    ds = homogeneous(op, far)
    assert ds["case"].values.tolist() == [0]
    assert ds.attrs["refused"].startswith("1 of 2 cases; case 1: 0.")
    with pytest.raises(ArgumentError, match="still grows at order 32, in every case"):
        homogeneous(op, far[1:])


def test_orders_are_the_powers_of_the_ray_where_both_exist():
    op, cases = expand(ray_model(2, drive=GENTLE), TRAIN), ray_cases()
    powers, orders = ray(op, cases, 11)["power_order"], homogeneous(op, cases, 3)["homogeneous_order"]
    np.testing.assert_allclose(powers.values[:3], orders.values[:3], rtol=0, atol=1e-6)


def test_a_case_that_is_the_baseline_does_not_move():
    op, raw = expand(ray_model(2), TRAIN), ray_cases()[0]
    ds = homogeneous(op, [raw], 5, baseline=raw)
    assert np.isinf(ds["convergence_radius"].values).all()
    assert np.isinf(ds["growth_radius"].values).all()
    assert not ds["homogeneous_order"].values[1:].any()
    assert float(abs(ds["remainder"]).max()) < 1e-13


def test_coefficients_beyond_double_precision_have_no_radius():
    ds = convergence(expand(ray_model(2), TRAIN), [1e12 * ray_cases()[0]])
    assert float(ds["convergence_radius"].max()) < 1e-9
    assert float(ds["growth_radius"].max()) < 1e-9


def test_one_case_chunks_and_order_do_not_matter(monkeypatch):
    op, cases = expand(ray_model(3, drive=GENTLE), TRAIN), ray_cases()
    whole = homogeneous(op, cases, 5)
    names = ("homogeneous_order", "convergence_radius", "remainder")
    for i, case in enumerate(cases):
        alone = homogeneous(op, [case], 5)
        for name in names:
            np.testing.assert_allclose(alone[name].isel(case=0), whole[name].isel(case=i), rtol=1e-9, atol=1e-13)
    monkeypatch.setattr("oplens.explanation.training.BATCH_BYTES", 1)
    again = homogeneous(op, cases[::-1], 5).isel(case=slice(None, None, -1))
    for name in names:
        np.testing.assert_allclose(again[name].values, whole[name].values, rtol=1e-9, atol=1e-13)


def test_radii_of_the_golden_stack(shared_data):
    """Between .07 and .22 from a preprocessed zero; the growth of the last coefficients says the same within a third."""
    folder = shared_data / "golden" / "s4d_reference"
    with np.load(folder / "scp1_2layer_stride2_expected.npz") as expected:
        X = expected["inputs"].astype(np.float64).transpose(0, 2, 1)[:2]
    op = expand(load_checkpoint(folder / "scp1_2layer_stride2.pth", preprocessing="none"), X)
    ds = convergence(op, X, "zero")
    radius, growth = ds["convergence_radius"].values, ds["growth_radius"].values
    assert radius == pytest.approx([0.0786, 0.1478], rel=0.01)  # by winding numbers: 0.075 < the first < 0.08
    assert np.abs(growth / radius - 1).max() < 1 / 3
    with pytest.raises(ArgumentError, match=r"2 of 2 cases; case 0: 0\.079"):
        homogeneous(op, X, baseline="zero")


OP = expand(ray_model(2, drive=GENTLE), TRAIN)


@pytest.mark.parametrize("order", [0, -1, 41, True, 2.0, "8"])
def test_orders_that_cannot_work_get_a_sentence(order):
    with pytest.raises(ArgumentError, match=r"homogeneous\(order=.*give a whole number from 1 to 40"):
        homogeneous(OP, ray_cases(), order)


@pytest.mark.parametrize("call", [homogeneous, convergence])
def test_baselines_and_cases_that_cannot_work_get_a_sentence(call):
    for baseline, words in (
        ([1.0], r"got shape \(1,\)"),
        ([math.inf, 0.0], "NaN or infinite"),
        (np.zeros((2, 3)), "3 steps"),
    ):
        with pytest.raises(ArgumentError, match=rf"{call.__name__}\(baseline=.*{words}"):
            call(OP, ray_cases(), baseline=baseline)
    with pytest.raises(DataError, match="NaN"):
        call(OP, np.full((1, 2, 5), math.nan))


def test_words_and_claims_travel():
    ds = homogeneous(OP, ray_cases(), 3)
    assert {ds[name].attrs["claim"] for name in ("homogeneous_order", "remainder")} == {"truncated"}
    assert {ds[name].attrs["claim"] for name in ("convergence_radius", "growth_radius")} == {"measured"}
    assert ds.attrs["refused"] == "none"
    assert ds.attrs["ray_start"] == "mean of every channel over the training set"
