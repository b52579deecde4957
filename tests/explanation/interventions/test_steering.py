"""Steering against dense algebra written here, against the operator and the model run on the changed data, and against attacks."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation import Bands, CentredLogits, Channels, LayerWaves, Margin, Waves, Windows
from oplens.explanation.interventions import truncation as truncations
from oplens.explanation.interventions.steering import steer
from oplens.models import Preprocessing
from oplens.operators import quadratic


def trained(seed=0, n_classes=2, d_input=2, d_model=4, length=20, cases=6, rate=None, offset=False, **more):
    torch.manual_seed(seed)
    scale = Preprocessing((0.3,) * d_input, tuple(0.5 + 0.5 * d for d in range(d_input)), False)
    if offset:
        scale = Preprocessing((0.0,) * d_input, scale.scale, True)
    config = S4DConfig(
        d_input, n_classes, d_model, 8, dt_min=0.05, dt_max=0.4, sampling_rate=rate, preprocessing=scale, **more
    )
    model = S4D(config).double()
    X = np.random.default_rng(seed).normal(size=(cases, d_input, length))
    with torch.no_grad():  # no training, but as after it: the classes balance on the data
        model.decoder.weight *= 3
        model.decoder.bias -= model(torch.from_numpy(X).transpose(1, 2)).mean(0)
    return model, X


def pre_activations(model, delta, x):
    """z (d_model, length) of preprocessed x + delta by a plain time loop; differentiable."""
    system = model.layer(0).system()
    a, b, C, D = system.a, system.b, system.C, system.D
    u = model.encoder.weight @ (x + delta) + model.encoder.bias[:, None]
    state, z = torch.zeros_like(a), []
    for t in range(u.shape[1]):
        state = a * state + b * u[:, t, None]
        z.append(2 * (C * state).real.sum(-1) + D * u[:, t])
    return torch.stack(z, dim=-1)


def cut_margin(model, op, order, delta, x, row):
    """The operator's margin cut at `order`, from the loop and Hermite polynomials by their definition."""
    w = pre_activations(model, delta, x) - op.expansion.centre[:, None]
    s2 = op.expansion.variance[:, None]
    blocks = [torch.ones_like(w), w, w**2 - s2][: order + 1]
    c = op.expansion.coefficients
    value = sum(c[:, k, None] * block for k, block in enumerate(blocks))
    return row @ (model.decoder.weight @ value.mean(-1) + model.decoder.bias)


def preprocessed(model, X):
    return model.preprocess(torch.from_numpy(X).transpose(1, 2), None)[0].transpose(1, 2)


def rows_of(ds, model):
    classes = list(model.config.classes)
    rows = np.zeros((ds.sizes["case"], len(classes)))
    for k in range(len(rows)):
        rows[k, classes.index(ds.to.values[k])] += 1
        rows[k, classes.index(ds.against.values[k])] -= 1
    return torch.from_numpy(rows)


def scaled(ds, model):
    """The change in units of the preprocessed input."""
    return ds.delta.values / np.array(model.config.preprocessing.scale)[:, None]


def oracle(model, op, order, x, row, rise, basis=None):
    """Dense gradient and Hessian by automatic differentiation of the loop, then l by bisection on the dense resolvent."""
    zero = torch.zeros_like(x)
    function = lambda delta: cut_margin(model, op, order, delta, x, row)  # noqa: E731
    b = torch.autograd.functional.jacobian(function, zero).reshape(-1).numpy()
    Q = torch.autograd.functional.hessian(function, zero).reshape(len(b), len(b)).numpy()
    basis = np.eye(len(b)) if basis is None else basis
    b, Q = basis.T @ b, basis.T @ Q @ basis
    largest = np.linalg.eigvalsh(Q)[-1]
    low, high = 0.0, 1 / largest if largest > 1e-14 else 1e12
    for _ in range(200):
        middle = (low + high) / 2
        delta = middle * np.linalg.solve(np.eye(len(b)) - middle * Q, b)
        low, high = (middle, high) if b @ delta + delta @ Q @ delta / 2 < rise else (low, middle)
    return (basis @ delta).reshape(x.shape)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("anchor", ["model", "operator"])
@pytest.mark.parametrize("dense", [True, False])
def test_the_change_is_the_smallest_of_the_dense_quadratic(order, anchor, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(quadratic, "DENSE", 10)
        monkeypatch.setattr("oplens.explanation.interventions.steering.EIGENPAIRS", 3)
    model, X = trained()
    op = expand(model, X, order=3)
    ds = steer(op, X, order=order, margin=0.4, anchor=anchor, refine=False)
    x, rows, delta = preprocessed(model, X), rows_of(ds, model), scaled(ds, model)
    logits = model(torch.from_numpy(X).transpose(1, 2)).detach()
    moved = 0
    for k in range(len(X)):
        own = float(cut_margin(model, op, order, torch.zeros_like(x[k]), x[k], rows[k]).detach())
        start = float(rows[k] @ logits[k]) if anchor == "model" else own
        after = float(cut_margin(model, op, order, torch.from_numpy(delta[k]), x[k], rows[k]).detach())
        assert float(ds.predicted_target[k]) == pytest.approx(start + after - own, abs=1e-10)
        if start >= 0.4:  # the operator thinks itself there already
            assert float(ds.norm[k]) == 0
            continue
        expected = oracle(model, op, order, x[k], rows[k], 0.4 - start)
        np.testing.assert_allclose(delta[k], expected, atol=1e-9 * np.linalg.norm(expected))
        assert float(ds.predicted_target[k]) == pytest.approx(0.4, abs=1e-10)
        assert float(ds.norm[k]) == pytest.approx(np.linalg.norm(expected), rel=1e-9)
        moved += 1
    assert moved >= 4


def test_predictions_are_the_operators_and_achievements_the_models():
    model, X = trained(1)
    op = expand(model, X)
    ds = steer(op, X, margin=0.2, anchor="operator", refine=False)
    rows = rows_of(ds, model).numpy()
    np.testing.assert_allclose(ds.predicted_target, (rows * op(X + ds.delta.values)).sum(1), atol=1e-10)
    with torch.no_grad():
        before, after = (model(torch.from_numpy(v).transpose(1, 2)).numpy() for v in (X, X + ds.delta.values))
    np.testing.assert_allclose(ds.achieved_target, (rows * after).sum(1), atol=1e-12)
    np.testing.assert_allclose(ds.start_target, (rows * before).sum(1), atol=1e-12)
    np.testing.assert_array_equal(ds.flipped, before.argmax(1) != after.argmax(1))
    np.testing.assert_allclose(ds.first_achieved_target, ds.achieved_target, atol=1e-10)
    np.testing.assert_array_equal(ds.first_flipped, ds.flipped)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("order", [1, 2])
def test_refined_changes_flip_the_running_model_and_are_stationary(n_classes, order):
    model, X = trained(2, n_classes=n_classes)
    ds = steer(expand(model, X), X, order=order, margin=0.3)
    assert bool(ds.flipped.all())
    assert bool(ds.reached.all())
    logits = model(torch.from_numpy(X + ds.delta.values).transpose(1, 2))
    delta, scale = scaled(ds, model), np.array(model.config.preprocessing.scale)
    for k in range(len(X)):
        at = torch.from_numpy((X + ds.delta.values)[k : k + 1]).transpose(1, 2).requires_grad_(True)
        logits = model(at)[0]
        own = model.config.classes.index(ds.to.values[k])
        gaps = logits[own] - logits
        rivals = [c for c in range(n_classes) if c != own]
        active = [c for c in rivals if float(gaps[c].detach()) < 0.3 + 1e-3]
        assert min(float(gaps[c].detach()) for c in rivals) >= 0.3
        assert active  # it goes no further than it must
        gradients = [
            torch.autograd.grad(gaps[c], at, retain_graph=True)[0][0].T.numpy() * scale[:, None] for c in active
        ]
        # Karush-Kuhn-Tucker: the change is a combination of the gradients of the constraints that bind, weights not negative.
        columns = np.stack([g.ravel() for g in gradients], axis=1)
        weights, *_ = np.linalg.lstsq(columns, delta[k].ravel(), rcond=None)
        assert np.linalg.norm(columns @ weights - delta[k].ravel()) < 0.05 * np.linalg.norm(delta[k])
        assert weights.min() > 0


def test_no_change_below_the_lower_bound_reaches_what_is_wanted():
    model, X = trained(3, d_model=6)
    op = expand(model, X)
    for margin in (0.0, 0.5):
        ds = steer(op, X, margin=margin)
        assert bool((ds.norm_lower_bound <= ds.norm).all())
        assert float((ds.norm_lower_bound / ds.norm).min()) > 0.05
        rows, scale = rows_of(ds, model), np.array(model.config.preprocessing.scale)[:, None]
        x = torch.from_numpy(X)
        for k in range(len(X)):
            radius = float(ds.norm_lower_bound[k])
            at = torch.from_numpy(scaled(ds, model)[k : k + 1])
            for _ in range(60):  # projected gradient ascent on the sphere of that radius
                at = (radius * at / at.norm()).requires_grad_(True)
                value = model((x[k : k + 1] + at * torch.from_numpy(scale)).transpose(1, 2))[0] @ rows[k]
                assert float(value.detach()) < margin
                (gradient,) = torch.autograd.grad(value, at)
                at = (at + radius * gradient / gradient.norm()).detach()


def test_the_curvature_bound_holds_for_every_input_and_is_not_far():
    model, X = trained(4, length=12)
    op = expand(model, X)
    row = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    bound = truncations.Truncation(op, 2, 12).curvature(row)
    largest = -math.inf
    for seed in range(12):
        x = 3 * torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * (seed / 12)

        def margin(delta, x=x):
            z = pre_activations(model, delta, x)
            return row @ (model.decoder.weight @ torch.nn.functional.gelu(z).mean(-1))

        hessian = torch.autograd.functional.hessian(margin, torch.zeros_like(x)).reshape(24, 24)
        largest = max(largest, float(torch.linalg.eigvalsh(hessian)[-1]))
    assert 0.1 * bound < largest <= bound


def test_wide_models_bound_the_eigenvalue_by_a_row_sum(monkeypatch):
    model, X = trained(5, d_input=3)
    op = expand(model, X)
    row = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    by_eigenvalue = truncations.Truncation(op, 2, 20).curvature(row)
    monkeypatch.setattr(truncations, "SMALL", 2)
    by_sum = truncations.Truncation(op, 2, 20).curvature(row)
    assert by_eigenvalue <= by_sum <= 3 * by_eigenvalue


def one_sided(sign, **more):
    """A model of one-signed curvature: every feature weighs the margin the same way, and its readout bends upwards."""
    model, X = trained(6, **more)
    with torch.no_grad():
        model.decoder.weight[0] = -sign * torch.rand(model.config.d_model, dtype=torch.float64) / 2
        model.decoder.weight[1] = sign * torch.rand(model.config.d_model, dtype=torch.float64) / 2
        model.decoder.bias -= model(torch.from_numpy(X).transpose(1, 2)).mean(0)
    return model, X


def test_out_of_reach_says_how_far_it_gets():
    model, X = one_sided(-1)
    op = expand(model, X)
    assert float(op.expansion.coefficients[:, 2].min()) > 0
    x = preprocessed(model, X)
    ds = steer(op, X, to="class 1", margin=1e3, refine=False)
    assert not bool(ds.reachable.any())
    for k in range(len(X)):
        zero = torch.zeros_like(x[k])
        row = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        function = lambda delta, k=k, row=row: cut_margin(model, op, 2, delta, x[k], row)  # noqa: E731
        b = torch.autograd.functional.jacobian(function, zero).reshape(-1)
        Q = torch.autograd.functional.hessian(function, zero).reshape(40, 40)
        furthest = torch.linalg.solve(Q, -b)
        assert float(ds.reach[k]) == pytest.approx(float(ds.start_target[k]) + float(b @ furthest) / 2, rel=1e-6)
        assert float(ds.predicted_target[k]) == pytest.approx(float(ds.reach[k]), rel=1e-6)
    near = steer(op, X, to="class 1", margin=float(max(0.0, ds.reach.values.max() - 1e-3)), refine=False)
    assert bool(near.reachable.any())


def test_the_other_way_of_one_sided_curvature_is_always_reachable():
    model, X = one_sided(1)
    ds = steer(expand(model, X), X, to="class 1", margin=50.0, refine=False)
    assert bool(ds.reachable.all())
    np.testing.assert_allclose(ds.predicted_target, 50.0, rtol=1e-10)


def test_channels_confine_the_change():
    model, X = trained(7, d_input=3)
    op = expand(model, X)
    ds = steer(op, X, by=Channels(("channel 2",)), refine=False)
    assert float(abs(ds.delta.sel(channel=["channel 1", "channel 3"])).max()) == 0
    x, rows = preprocessed(model, X), rows_of(ds, model)
    basis = np.eye(60)[:, 20:40]
    for k in range(len(X)):
        expected = oracle(model, op, 2, x[k], rows[k], -float(ds.start_target[k]), basis)
        np.testing.assert_allclose(scaled(ds, model)[k], expected, atol=1e-8 * np.linalg.norm(expected))
    refined = steer(op, X, by=Channels(("channel 2",)))
    assert float(abs(refined.delta.sel(channel=["channel 1", "channel 3"])).max()) == 0
    assert bool((refined.norm_lower_bound <= refined.norm).all())
    np.testing.assert_allclose(refined.channel_energy.sel(channel="channel 2")[refined.flipped], 1)


def test_bands_confine_the_change_to_their_bins():
    model, X = trained(8, rate=20.0)
    op = expand(model, X)
    ds = steer(op, X, by=Bands([(2, 4), (8, 10)]), margin=0.1)
    spectrum = abs(np.fft.rfft(scaled(ds, model)))
    allowed = [2, 3, 8, 9, 10]  # 1 Hz apart; a band that ends at Nyquist includes it
    outside = np.delete(spectrum, allowed, axis=-1)
    assert outside.max() < 1e-12 * spectrum.max()
    assert spectrum[..., 10].max() > 1e-6
    assert bool(ds.reached.any())
    # The same as a dense basis of these sines and cosines.
    unrefined = steer(op, X, by=Bands([(2, 4), (8, 10)]), margin=0.1, refine=False)
    t = np.arange(20) / 20
    waves = [f(2 * np.pi * k * t) for k in allowed for f in (np.cos, np.sin) if not (k == 10 and f is np.sin)]
    basis = np.kron(np.eye(2), np.linalg.qr(np.stack(waves, axis=1))[0])
    x, rows = preprocessed(model, X), rows_of(ds, model)
    for k in np.flatnonzero(unrefined.reachable.values):
        expected = oracle(model, op, 2, x[k], rows[k], 0.1 - float(ds.start_target[k]), basis)
        np.testing.assert_allclose(scaled(unrefined, model)[k], expected, atol=1e-8 * np.linalg.norm(expected))


def test_a_window_confines_the_change_in_time():
    model, X = trained(9)
    ds = steer(expand(model, X), X, window=(0.75, 1))
    assert float(abs(ds.delta[..., :15]).max()) == 0
    assert float(abs(ds.delta[..., 15:]).max()) > 0
    np.testing.assert_allclose(ds.window_energy[:, 6:].sum("window")[ds.norm > 0], 1)


def test_bands_in_a_window_keep_half_of_their_energy_in_the_bands():
    model, X = trained(10, length=40, rate=40.0)
    ds = steer(expand(model, X), X, by=(Channels(("channel 1",)), Bands([(4, 8)])), window=(0.5, 1), refine=False)
    delta = scaled(ds, model)
    assert abs(delta[..., :20]).max() == 0
    assert abs(delta[:, 1]).max() == 0
    energy = abs(np.fft.rfft(delta[:, 0])) ** 2
    energy[:, 1:-1] *= 2
    moved = ds.norm.values > 0
    share = energy[:, 4:8].sum(1)[moved] / energy.sum(1)[moved]
    assert moved.any()
    assert share.min() >= 0.5


def test_held_waves_keep_their_order_1_shares():
    model, X = trained(11, length=30)
    op = expand(model, X)
    held = [(0, 0), (0, 1), (2, 3)]
    for options in ({"hold": held}, {"hold": held, "by": Channels(("channel 2",))}):
        ds = steer(op, X, **options, refine=True)
        before, after = (op.explain(values).share.sel(order=1) for values in (X, X + ds.delta.values))
        change = abs(after - before)
        for h, n in held:
            assert float(change.sel(feature=h, wave=n).max()) < 1e-12
        assert float(change.max()) > 1e-3
        assert bool(ds.flipped.any())


def test_waves_of_nearly_one_frequency_are_both_held():
    model, X = trained(11, length=30)
    with torch.no_grad():
        kernel = model.layer(0).kernel
        kernel.A_imag[1, 1], kernel.log_A_real[1, 1] = kernel.A_imag[1, 0] + 1e-3, kernel.log_A_real[1, 0]
    op = expand(model, X)
    ds = steer(op, X, hold=[(1, 0), (1, 1)])
    before, after = (op.explain(values).share.sel(order=1, feature=1) for values in (X, X + ds.delta.values))
    assert float(abs(after - before)[..., :2].max()) < 1e-12
    assert float(ds.norm.min()) > 0.01


def test_only_named_waves_change_at_order_1():
    model, X = trained(12, length=30)
    op = expand(model, X)
    ds = steer(op, X, waves=[(1, 2), (3, 0)], order=1, margin=0.2, refine=False)
    before, after = (op.explain(values) for values in (X, X + ds.delta.values))
    change = abs(after.share - before.share).sel(order=1)
    named = change.sel(feature=1, wave=2) + change.sel(feature=3, wave=0)
    assert float((change.sum(("feature", "wave")) - named).max()) < 1e-9
    skips = (after.source_share - before.source_share).sel(order=1, source="skip")
    assert float(abs(skips).max()) < 1e-9
    assert float(named.max()) > 1e-3
    np.testing.assert_allclose(ds.predicted_target, np.maximum(0.2, ds.start_target), atol=1e-9)


def test_cases_of_unequal_length_are_steered_as_if_alone():
    model, X = trained(13)
    cases = [X[k][:, : 20 - 3 * k] for k in range(4)]
    op = expand(model, cases)
    together = steer(op, cases, margin=0.1)
    for k, case in enumerate(cases):
        alone = steer(op, [case], margin=0.1)
        np.testing.assert_allclose(together.delta[k, :, : case.shape[1]], alone.delta[0], atol=1e-9)
        assert float(abs(together.delta[k, :, case.shape[1] :]).sum()) == 0
        for name in ("achieved_target", "predicted_target", "start_target", "first_norm", "norm_lower_bound"):
            assert float(together[name][k]) == pytest.approx(float(alone[name][0]), abs=1e-9)
        assert float(together.window_energy[k].sum()) == pytest.approx(1)
        assert float(together.band_energy[k].sum()) == pytest.approx(1)


def test_a_model_without_offsets_is_steered_without_offsets():
    model, X = trained(14, offset=True)
    op = expand(model, X)
    for options in ({}, {"window": (0.5, 1)}):
        ds = steer(op, X, anchor="operator", refine=False, **options)
        assert float(abs(ds.delta.mean("time")).max()) < 1e-12
        rows = rows_of(ds, model).numpy()
        np.testing.assert_allclose(ds.predicted_target, (rows * op(X + ds.delta.values)).sum(1), atol=1e-10)
        assert float(ds.norm.max()) > 0


def test_a_wanted_class_above_all_others():
    model, X = trained(15, n_classes=4, cases=8)
    op = expand(model, X)
    ds = steer(op, X, to="class 2", margin=0.1)
    with torch.no_grad():
        after = model(torch.from_numpy(X + ds.delta.values).transpose(1, 2)).numpy()
    rest = np.delete(after, 2, axis=1)
    assert bool((after[:, 2] - rest.max(1) >= 0.1).all())
    assert not set(ds.to.values[ds.predicted.values == "class 2"]) - {"class 2"}
    against = steer(op, X, target=Margin("class 2", "class 0"), margin=0.1)
    assert set(against.against.values) == {"class 0"}
    np.testing.assert_array_less(0.1 - 1e-9, against.achieved_target)
    assert float((against.norm - ds.norm).max()) <= 1e-3 * float(ds.norm.max())


def test_cases_that_are_there_already_stay():
    model, X = trained(16)
    op = expand(model, X)
    ds = steer(op, X, to="class 0")
    there = ds.predicted.values == "class 0"
    assert 0 < there.sum() < len(X) or there.all() or not there.any()
    both = steer(op, X, to="class 1")
    stay = both.predicted.values == "class 1"
    assert (there != stay).all()
    for result, already in ((ds, there), (both, stay)):
        assert not result.flipped.values[already].any()
        assert float(abs(result.norm[already]).sum()) == 0
        assert float(result.norm_lower_bound[already].sum()) == 0
        assert bool(result.reached.all())


@pytest.mark.parametrize("layers", [1, 2])
def test_stacks_follow_the_running_models_gradient(layers):
    model, X = trained(17, architecture="reference", n_layers=layers)
    op = expand(model, X)
    ds = steer(op, X, margin=0.1)
    with torch.no_grad():
        logits = model(torch.from_numpy(X + ds.delta.values).transpose(1, 2)).numpy()
    rows = rows_of(ds, model).numpy()
    np.testing.assert_allclose(ds.achieved_target, (rows * logits).sum(1), atol=1e-12)
    assert bool(ds.flipped.all())
    assert "norm_lower_bound" not in ds
    first = steer(op, X, margin=0.1, refine=False)
    at = torch.from_numpy(X).transpose(1, 2).requires_grad_(True)
    (gradient,) = torch.autograd.grad((model(at) * rows_of(ds, model)).sum(), at)
    gradient = gradient.transpose(1, 2).numpy() * np.array(model.config.preprocessing.scale)[:, None]
    expected = gradient * ((0.1 - first.start_target.values) / (gradient**2).sum((1, 2)))[:, None, None]
    np.testing.assert_allclose(scaled(first, model), expected, atol=1e-10)
    np.testing.assert_allclose(first.predicted_target, 0.1, atol=1e-10)


def test_a_search_that_runs_aground_begins_again_in_stages(monkeypatch):
    """Of this strongly bent model the first descent ends at three times the norm that wanting a little more at a time finds."""
    model, X = trained(4, architecture="reference")
    op = expand(model, X)
    ds = steer(op, X, margin=0.1)
    monkeypatch.setattr("oplens.explanation.interventions.search.STAGES", 0)
    without = steer(op, X, margin=0.1)
    assert bool(ds.reached.all())
    assert float((without.norm / ds.norm).max()) > 3
    assert float((without.norm / ds.norm).min()) > 1 - 1e-3


def test_a_search_that_fails_says_so():
    model, X = trained(0, architecture="reference")
    ds = steer(expand(model, X), X, margin=0.1)
    np.testing.assert_array_equal(ds.reached, ds.achieved_target >= 0.1)
    assert not bool(ds.reached.all())
    assert bool((ds.achieved_target > ds.start_target).all())


def test_a_channel_the_model_ignores_reaches_nothing():
    model, X = trained(18)
    with torch.no_grad():
        model.encoder.weight[:, 1] = 0
    for order in (1, 2):
        ds = steer(expand(model, X), X, by=Channels(("channel 2",)), order=order)
        assert not bool(ds.reachable.any())
        np.testing.assert_allclose(ds.reach, ds.start_target, atol=1e-12)
        assert float(abs(ds.delta).max()) == 0
        assert not bool(ds.flipped.any())
        assert bool(np.isinf(ds.norm_lower_bound).all())
        assert not any(bool(np.isnan(ds[name]).any()) for name in ds.data_vars)


def test_every_family_steers_by_its_own_polynomial_of_degree_2():
    model, X = trained(19)
    for family in ("taylor", "chebyshev", "empirical"):
        op = expand(model, X, family=family, order=4)
        ds = steer(op, X, anchor="operator", margin=0.1, refine=False)
        low = expand(model, X, family=family, order=2)
        rows = rows_of(ds, model).numpy()
        np.testing.assert_allclose(ds.predicted_target, (rows * low(X + ds.delta.values)).sum(1), atol=1e-9)


def test_variables_are_described_and_nothing_is_undefined():
    model, X = trained(20)
    ds = steer(expand(model, X), X, y=["class 0"] * len(X))
    for name, variable in ds.data_vars.items():
        assert {"units", "long_name", "claim"} <= set(variable.attrs), name
        assert not bool(np.isnan(variable).any()), name
    assert ds.delta.claim == "measured"
    assert ds.predicted_target.claim == "truncated"
    assert ds.norm_lower_bound.claim == "bound"
    assert set(ds.label.values) == {"class 0"}
    for part in ("channel", "band", "window"):
        np.testing.assert_allclose(ds[f"{part}_energy"].sum(part), 1)
    np.testing.assert_allclose(ds.relative_norm, ds.norm / np.sqrt((preprocessed(model, X).numpy() ** 2).sum((1, 2))))
    np.testing.assert_allclose(ds.rms, np.sqrt((ds.delta**2).mean("time")))


REFUSED = [
    ({"to": "class 7"}, "no such class"),
    ({"order": 3}, "order 1 or 2"),
    ({"order": True}, "order 1 or 2"),
    ({"margin": -1.0}, "at least 0"),
    ({"margin": math.inf}, "at least 0"),
    ({"margin": "1"}, "at least 0"),
    ({"refine": 1}, "True or False"),
    ({"anchor": "both"}, "'model' adds"),
    ({"by": Channels(("Cz",))}, "no channel 'Cz'"),
    ({"by": Channels()}, "name what may change"),
    ({"by": Bands()}, "name what may change"),
    ({"by": Windows(4)}, r"window=\(start, stop\)"),
    ({"by": Waves()}, "waves of one feature share"),
    ({"by": LayerWaves()}, "only Channels, Bands"),
    ({"by": Bands([(0.01, 0.02)])}, "no frequency in there"),
    ({"window": (0.5, 0.5)}, "empty or beyond"),
    ({"window": (0.5, 1.5)}, "empty or beyond"),
    ({"window": 0.5}, "give \\(start, stop\\)"),
    ({"window": (0.51, 0.52)}, "no step in there"),
    ({"by": Bands([(0.2, 0.21)]), "window": (0.9, 1)}, "half of its energy"),
    ({"hold": [(0, 9)]}, "no wave 9 of feature 0"),
    ({"hold": [3]}, "give pairs"),
    ({"hold": [(0.5, 1)]}, "give pairs"),
    ({"hold": []}, "at least one wave"),
    ({"hold": [(0, 0)], "waves": [(0, 1)]}, "choose one"),
    ({"target": CentredLogits()}, "give Margin"),
    ({"target": Margin("class 1", "class 0"), "to": "class 0"}, "choose one"),
    ({"memory_limit": 100}, "above the limit"),
    ({"y": ["class 0"]}, "one label for each"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_work_is_refused_with_a_sentence(options, sentence):
    model, X = trained()
    op = expand(model, X)
    with pytest.raises(ArgumentError, match=sentence):
        steer(op, X, **options)


def test_other_models_refuse_what_they_cannot_do():
    model, X = trained(architecture="reference")
    op = expand(model, X)
    with pytest.raises(ArgumentError, match="no quadratic operator"):
        steer(op, X, order=2)
    with pytest.raises(ArgumentError, match="gates weigh"):
        steer(op, X, hold=[(0, 0)])
    deep, X = trained(architecture="reference", n_layers=2)
    with pytest.raises(ArgumentError, match="waves of a stack"):
        steer(expand(deep, X), X, hold=[(0, 0)])
    plain, X = trained()
    with pytest.raises(ArgumentError, match="expanded to order 1"):
        steer(expand(plain, X, order=1), X, order=2)
    single, X = trained(n_classes=1)
    with pytest.raises(ArgumentError, match="one class"):
        steer(expand(single, X), X)
    with pytest.raises(ArgumentError, match="input channels"):
        steer(expand(plain, X), X[:, :1])
