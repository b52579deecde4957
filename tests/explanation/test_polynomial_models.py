"""Explanations of models with polynomial readouts, and of models that answer at every step.

Oracles are written here: kernels as plain double sums, pre-activations by single steps, moments of polynomials by Gauss-Hermite nodes.
"""

import json
import math

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial
from numpy.polynomial.hermite_e import hermegauss
from scipy.signal import lfilter

from oplens.data import Sinusoid
from oplens.errors import ArgumentError
from oplens.explanation import (
    Bands,
    CentredLogits,
    Channels,
    LayerWaves,
    Margin,
    Outputs,
    Pairs,
    Waves,
    Windows,
    choose_cases,
    expand,
    second_order_kernel,
    summarise,
    summarise_kernels,
)
from oplens.explanation.certificates.boxes import Box
from oplens.explanation.certificates.certified_margins import Setting
from oplens.explanation.certificates.remainders import Remainders
from oplens.explanation.interventions.truncation import Truncation
from oplens.explanation.steps import readout_of
from oplens.models import S4D, Preprocessing, S4DConfig
from oplens.operators.polynomial import (
    Expansion,
    RemainderTable,
    certified_remainder,
    extremes,
    hermite_of_polynomial,
    polynomial_activation,
)
from oplens.results import recomputed_completeness

PREPROCESSING = Preprocessing((0.3, -0.2), (1.5, 0.8), remove_offset=True)
FAMILIES = ("hermite", "taylor", "chebyshev", "empirical")


def build(degree=3, pooling="mean", n_classes=3, seed=0, **more):
    torch.manual_seed(seed)
    readout = {"readout": "polynomial", "degree": degree} if degree else {}
    settings = {"dt_min": 0.05, "dt_max": 0.6, "preprocessing": PREPROCESSING, **readout, "pooling": pooling, **more}
    model = S4D(S4DConfig(2, n_classes, d_model=3, d_state=6, **settings)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "polynomial":
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.requires_grad_(False).eval()


def cases(seed, lengths):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.6, 1.3, size=(2, n)) for n in lengths]


TRAIN, TEST = cases(0, (29, 23, 29, 17)), cases(1, (27, 19, 22))


def preactivation(model, x):
    """z (d_model, length) of a raw case (d_input, length), step by step."""
    w, p = {k: v.numpy() for k, v in model.state_dict().items()}, model.config.preprocessing
    x = x - x.mean(1, keepdims=True) if p.remove_offset else x
    u = (
        w["encoder.weight"] @ ((x - np.array(p.mean)[:, None]) / np.array(p.scale)[:, None])
        + w["encoder.bias"][:, None]
    )
    layer = "s4_layers.0."
    C = w[layer + "kernel.C"][..., 0] + 1j * w[layer + "kernel.C"][..., 1]
    pole = -np.exp(w[layer + "kernel.log_A_real"]) + 1j * w[layer + "kernel.A_imag"]
    dt = np.exp(w[layer + "kernel.log_dt"])[:, None]
    s, z = np.zeros(pole.shape, complex), np.empty_like(u)
    for t in range(u.shape[1]):
        s = np.exp(pole * dt) * s + np.expm1(pole * dt) / pole * u[:, t, None]
        z[:, t] = 2 * (C * s).real.sum(1) + w[layer + "D"] * u[:, t]
    return z


def read(model, z):
    """The readout of z (d_model, ...)."""
    return np.stack([Polynomial(a)(row) for a, row in zip(model.polynomial.numpy(), z, strict=True)])


def answers(model, x):
    """(length, n_classes) before any pooling."""
    return read(model, preactivation(model, x)).T @ model.decoder.weight.numpy().T + model.decoder.bias.numpy()


def run(model, x):
    return model(torch.from_numpy(np.ascontiguousarray(x.T))[None])[0].numpy()


# What a polynomial's own expansions are


@pytest.mark.parametrize("order", [2, 4, 7])
def test_hermite_coefficients_are_gaussian_moments(order):
    rng = np.random.default_rng(0)
    a, m, v = rng.normal(size=(3, 5)), rng.normal(size=3), rng.uniform(0, 2, 3)
    found = hermite_of_polynomial(*map(torch.from_numpy, (a, m, v)), order).numpy()
    nodes, weights = hermegauss(30)
    weights = weights / weights.sum()
    for h in range(3):
        for k in range(order + 1):
            derivative = Polynomial(a[h]).deriv(k) if k else Polynomial(a[h])
            expected = weights @ derivative(m[h] + math.sqrt(v[h]) * nodes) / math.factorial(k)
            assert abs(found[h, k] - expected) < 1e-12 * (1 + abs(expected))
    assert not found[:, 5:].any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("degree", [1, 3, 8])
def test_every_family_ends_at_the_degree(family, degree):
    """With order at or above the degree the operator is the model, and below it is not."""
    op = expand(build(degree), TRAIN, family=family, order=degree + 2)
    ds = op.explain(TEST, by=Channels(), target=CentredLogits())
    scale = float(ds.sum_abs_terms.max())
    assert float(abs(ds.remainder).max()) < 1e-12 * scale
    assert float(abs(ds.truncated_logits.isel(order=-1) - ds.logits).max()) < 1e-12 * scale
    assert float(abs(ds.truncated_logits.isel(order=degree - 1) - ds.logits).max()) < 1e-12 * scale
    assert recomputed_completeness(ds) < 1e-12
    if degree > 1:
        assert float(abs(ds.truncated_logits.isel(order=degree - 2) - ds.logits).max()) > 1e-6 * scale
    assert np.abs(op(TEST) - ds.logits.values).max() < 1e-11 * scale


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_orders_leave_what_they_say(family):
    model = build(5)
    op = expand(model, TRAIN, family=family, order=2)
    ds = op.explain(TEST, by=Waves(), target=CentredLogits())
    directions, W = np.eye(3) - 1 / 3, model.decoder.weight.numpy()
    for case, x in enumerate(TEST):
        z = preactivation(model, x)
        p = op.expansion.evaluate(torch.from_numpy(z)[None])[0].numpy()
        expected = directions @ W @ (read(model, z) - p).mean(-1)
        assert np.abs(ds.remainder[case].values - expected).max() < 1e-11 * float(ds.sum_abs_terms.max())
        assert np.abs(expected).max() > 1e-3
    assert recomputed_completeness(ds) < 1e-12


def test_bounds_hold_and_vanish_at_the_degree():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 6))
    g = polynomial_activation(torch.from_numpy(a))
    lo, hi = torch.tensor([-2.0, -1.0, 0.5, -3.0]).double(), torch.tensor([1.0, 4.0, 0.5, 0.0]).double()
    for order in (1, 3, 4, 5, 7):
        expansion = Expansion.fit("hermite", order, (lo + hi) / 2, (hi - lo) ** 2 / 8, g)
        x = np.linspace(lo.numpy(), hi.numpy(), 4001).T
        gap = np.abs(read_rows(a, x) - expansion.evaluate(torch.from_numpy(x)).numpy()).max(1)
        bound = certified_remainder(expansion, lo, hi).numpy()
        table = RemainderTable.of(expansion, lo - 1, hi + 1, n_bins=32).bound(lo[:, None], hi[:, None])[:, 0].numpy()
        tables = Remainders.of(expansion, (order,), lo - 1, hi + 1).bound(lo[:, None], hi[:, None])
        assert (gap <= bound + 1e-12).all()
        assert (gap <= table + 1e-12).all()
        assert (gap <= tables[0][:, 0, 0].numpy() + 1e-12).all()
        second = np.abs(curvature_left(a, expansion, x)).max(1)
        assert (second <= tables[1][:, 0, 0].numpy() * (1 + 1e-9) + 1e-11).all()
        if order >= 5:
            assert bound.max() < 1e-12
            assert float(tables[0].max()) < 1e-8
        else:
            wide = [0, 1, 3]
            assert (bound[wide] < 1.03 * gap[wide]).all()
            assert (tables[0][wide, 0, 0].numpy() < 1.3 * gap[wide]).all()


def read_rows(a, x):
    return np.stack([Polynomial(row)(values) for row, values in zip(a, x, strict=True)])


def curvature_left(a, expansion, x):
    """Second derivative of what an expansion leaves, by its powers."""
    centre = expansion.centre.numpy()
    rows = []
    for h, row in enumerate(a):
        basis = [Polynomial([1.0]), Polynomial([0.0, 1.0])]
        for k in range(1, expansion.order):
            basis.append(basis[1] * basis[k] - k * expansion.variance[h].item() * basis[k - 1])
        p = sum((c * b for c, b in zip(expansion.coefficients[h].tolist(), basis, strict=False)), Polynomial([0.0]))
        rows.append(Polynomial(row).deriv(2)(x[h]) - p.deriv(2)(x[h] - centre[h]))
    return np.array(rows)


def test_extremes_are_bounds_near_the_truth():
    rng = np.random.default_rng(0)
    a, lo = rng.normal(size=(5, 7)), rng.normal(size=(20, 5))
    hi = lo + rng.uniform(0, 2, size=lo.shape)
    low, high = (v.numpy() for v in extremes(*map(torch.from_numpy, (a, lo, hi))))
    for i in range(20):
        for h in range(5):
            p = Polynomial(a[h])
            roots = p.deriv().roots()
            inside = roots[(abs(roots.imag) < 1e-9) & (roots.real > lo[i, h]) & (roots.real < hi[i, h])].real
            values = p(np.concatenate(([lo[i, h], hi[i, h]], inside)))
            assert low[i, h] <= values.min()
            assert values.max() <= high[i, h]
            assert high[i, h] - low[i, h] <= 1.03 * np.ptp(values) + 1e-11 * np.abs(a[h]).sum() * 3**6


# Other accounts of models that pool


def test_layer_waves_are_gradients_with_the_quotient_frozen():
    """g(z) = g(0) + z q(z): with q held fixed, C times the gradient on C adds up to each wave."""
    model = build(3)
    ds = expand(model, TRAIN).explain(TEST, by=LayerWaves(), target=Margin("class 2", "class 0"))
    assert recomputed_completeness(ds) < 1e-12
    for case, x in enumerate(TEST):
        running = build(3).requires_grad_(True)
        trace = running.trace(torch.from_numpy(np.ascontiguousarray(x.T))[None])
        z = trace.layers[0].z
        a = running.polynomial.detach()
        q = sum(a[:, k] * z.detach() ** (k - 1) for k in range(1, 4))
        logits = running.decoder((a[:, 0] + z * q).mean(1))[0]
        C = running.layer(0).kernel.C
        gradient = torch.autograd.grad(logits[2] - logits[0], C)[0]
        expected = (gradient * C).sum(-1).detach().numpy()  # waves and what the bias drives through them
        bias = build(3)
        with torch.no_grad():
            bias.encoder.weight.zero_()
        alone = bias.trace(torch.from_numpy(np.ascontiguousarray(x.T))[None])
        assert alone.layers[0].z.abs().max() > 0
        found = ds.layer_share[case, 0].values
        assert np.abs(found - expected).max() < 1e-11 * float(ds.sum_abs_terms.max())
    assert ds.attrs["account"].startswith("conditional: readout factors")


@pytest.mark.parametrize("at", [None, -1, 4])
@pytest.mark.parametrize("orders", [1, 2, 4])
def test_moments_in_noise_are_those_of_polynomials(orders, at):
    """Mean by Gauss-Hermite nodes step by step, variance by Isserlis from the covariance of noise sent through the model."""
    model = build(3, "mean" if at is None else "none", preprocessing=None)
    signal, noise = Sinusoid(0.1, 9, 1.0, amplitude=(1.0, 0.5)), (0.6, 0.9)
    ds = expand(model, TRAIN).predict(signal, noise, target=Margin("class 1", "class 0"), orders=orders, at=at)
    x = signal.values(2)
    mean, steps = preactivation(model, x), x.shape[1]
    columns = [preactivation(model, x + noise[d] * unit(d, t, steps)) - mean for d in range(2) for t in range(steps)]
    A = np.array(columns).reshape(2 * steps, -1).T
    R = A @ A.T
    pool = np.full(steps, 1 / steps) if at is None else np.eye(steps)[at]
    w = np.outer(model.decoder.weight[1] - model.decoder.weight[0], pool).ravel()
    a = np.repeat(model.polynomial.numpy(), steps, 0)
    nodes, weights = hermegauss(20)
    weights = weights / weights.sum()
    z = mean.ravel()[:, None] + np.sqrt(np.diag(R))[:, None] * nodes
    expected = w @ np.array([Polynomial(row)(values) @ weights for row, values in zip(a, z, strict=True)])
    expected += float(model.decoder.bias[1] - model.decoder.bias[0])
    assert abs(float(ds.target_mean) - expected) < 1e-11 * (1 + abs(expected))
    variance = []
    for k in range(1, 4):
        rows = [Polynomial(row).deriv(k)(values) @ weights for row, values in zip(a, z, strict=True)]
        c = w * np.array(rows) / math.factorial(k)
        variance.append(math.factorial(k) * c @ (R**k) @ c)
    found, whole = ds.variance_by_order.values, sum(variance)
    assert np.abs(found[:3] - variance[:orders]).max() < 1e-11 * whole
    assert not found[3:].any()
    assert float(ds.target_variance) <= whole * (1 + 1e-11)
    assert float(ds.target_variance_bound) >= whole * (1 - 1e-11)
    if orders >= 3:
        assert abs(float(ds.target_variance_bound) - whole) < 1e-10 * whole
    assert ds.target_variance.attrs["units"] == ("logit^2" if at is None else "output^2")


def unit(channel, step, steps):
    x = np.zeros((2, steps))
    x[channel, step] = 1
    return x


@pytest.mark.parametrize("degree", [2, 4])
def test_certificates_hold_in_their_boxes(degree):
    model, rng = build(degree), np.random.default_rng(3)
    op = expand(model, TRAIN, order=degree)
    radii = [0.003, 0.03, 0.3]
    ds = op.certify(TEST, radius=radii, orders=(1, degree))
    assert int((ds.robust_radius > 0).sum()) > 0
    half = ds.half_width.values
    for case, raw in enumerate(TEST):
        before = run(model, raw)
        for k, radius in enumerate(radii):
            corners = raw + radius * half[:, None] * rng.choice([-1.0, 1.0], size=(60, *raw.shape))
            after = model(torch.from_numpy(corners).transpose(1, 2)).numpy()
            rest = np.delete(after[:, [before.argmax()]] - after, before.argmax(), 1)
            assert rest.min() >= float(ds.margin_lower_bound[case, k]) - 1e-12
            z = np.stack([preactivation(model, x) for x in corners[:4]])
            for order, bound in zip((1, degree), ds.remainder_bound[:, case, k].values, strict=True):
                p = op.expansion.truncated(order).evaluate(torch.from_numpy(z)).numpy()
                g = np.stack([read(model, value) for value in z])
                missed = (g - p).mean(-1) @ (model.decoder.weight[before.argmax()] - model.decoder.weight).numpy().T
                assert np.abs(missed).max() <= bound + 1e-12
    whole = ds.remainder_bound.sel(order=degree, radius=radii[:1])
    assert float(whole.max()) < 1e-6
    # Where the operator is the model, it decides as the model does wherever that is certified not to flip.
    assert bool((ds.certified_order.values[ds.robust.values] > 0).all())
    bounded = (
        "bounded for all inputs" if degree == 2 else "bounded where pre-activations stay within the training range"
    )
    assert ds.attrs["curvature"].startswith(bounded)


def test_nothing_is_certified_where_curvature_is_not_bounded():
    """A case far outside the training range: g'' of a cubic has no bound that holds there."""
    model = build(3)
    ds = expand(model, TRAIN).certify([8 * TEST[0]], radius=[0.0, 1e-6])
    assert ds.robust_radius.item() == 0
    assert ds.margin_lower_bound.values[0, 1] == -np.inf
    assert abs(ds.margin_lower_bound.values[0, 0] - ds.margin.item()) < 1e-6 * abs(ds.margin.item())
    quadratic = expand(build(2), TRAIN).certify([8 * TEST[0]], radius=[0.0, 1e-6])
    assert quadratic.robust_radius.item() > 0


@pytest.mark.parametrize("degree", [2, 4])
def test_no_change_is_smaller_than_its_bound(degree):
    model = build(degree, n_classes=2, seed=3)
    op = expand(model, TRAIN, order=2)
    ds = op.steer(TEST)
    found = ds.reached.values
    assert found.any()
    assert (ds.norm_lower_bound.values[found] <= ds.norm.values[found] * (1 + 1e-9)).all()
    assert (ds.norm_lower_bound.values > 0).all()
    assert (ds.norm_lower_bound.values[found] > 0.05 * ds.norm.values[found]).all()
    for case in np.flatnonzero(found):
        after = run(model, TEST[case] + ds.delta.values[case][:, : TEST[case].shape[1]])
        to = model.config.classes.index(str(ds.to.values[case]))
        assert after[to] >= after[1 - to] - 1e-9


@pytest.mark.parametrize("towards", [0, 1])
@pytest.mark.parametrize("rise", [0.05, 5.0])
def test_the_bound_on_changes_holds_along_gradients(rise, towards):
    """No change of that norm along or near the gradient raises a target by more than the bound says."""
    model = build(4, n_classes=2)
    op = expand(model, TRAIN, order=2)
    x = model.preprocess(torch.from_numpy(TEST[0].T.copy())[None], None)[0].transpose(1, 2)
    direction = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()[towards, None]
    at = x.clone().requires_grad_(True)
    bare = build(4, n_classes=2, preprocessing=None)
    start = (bare(at.transpose(1, 2)) * direction).sum()
    gradient = torch.autograd.grad(start, at)[0]
    wanted = torch.tensor([rise]).double()
    bound = Truncation(op, 2, x.shape[-1]).lower_bound(x, direction, gradient.norm()[None], wanted)
    assert 0 < bound < wanted / gradient.norm()
    risen = []
    for seed in range(20):
        noise = torch.from_numpy(np.random.default_rng(seed).normal(size=x.shape))
        step = gradient / gradient.norm() + 0.1 * seed * noise / noise.norm()
        moved = x + step / step.norm() * bound
        risen.append(((bare(moved.transpose(1, 2)) * direction).sum() - start).item())
    assert max(risen) <= rise
    if rise < 0.1:  # hardly bent: nearly attained
        assert max(risen) > 0.9 * rise


def test_the_bound_on_changes_knows_how_far_features_bend():
    """One step, one channel, all of the readout in its fourth power: the bound is the true smallest change but for sampling."""
    model = S4D(S4DConfig(1, 2, d_model=1, d_state=2, readout="polynomial", degree=4)).double().requires_grad_(False)
    model.encoder.weight.fill_(1.0)
    model.encoder.bias.zero_()
    model.polynomial.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]]))
    model.decoder.weight.copy_(torch.tensor([[0.0], [1.0]]))
    gain = abs(preactivation(model, np.ones((1, 1)))[0, 0])
    op = expand(model, np.ones((2, 1, 3)))
    zero, direction = torch.zeros(1, 1, 1).double(), torch.tensor([[-1.0, 1.0]]).double()
    found = Truncation(op, 2, 1).lower_bound(zero, direction, torch.zeros(1).double(), torch.ones(1).double())
    # z^4 <= 12 z^2 z^2 / 2 = 6 z^4: the bound on g'' takes its largest value for all of the way
    assert found.item() == pytest.approx(6**-0.25 / gain, rel=0.05)
    assert found.item() < 1 / gain


def test_curvature_is_bounded_closely_where_it_is_bounded():
    model = build(5)
    setting = Setting.of(expand(model, TRAIN), Box.of(model.config, None))
    low, high = (end.numpy() for end in setting.domain)
    z = np.concatenate([preactivation(model, x) for x in TRAIN], 1)
    room = 0.5 * np.ptp(z, axis=1)
    assert np.abs(low - (z.min(1) - room)).max() < 1e-4
    assert np.abs(high - (z.max(1) + room)).max() < 1e-4
    convex, concave = (value.numpy() for value in setting.curvature)
    for h, a in enumerate(model.polynomial.numpy()):
        second = Polynomial(a).deriv(2)(np.linspace(low[h], high[h], 20001))
        slack = 0.03 * np.ptp(second)
        assert second.max() <= convex[h] <= second.max() + slack
        assert -second.min() <= concave[h] <= -second.min() + slack


def test_a_certified_margin_is_attained():
    """One channel, one step and a concave readout: the worst corner of the box is where the bound says."""
    model = S4D(S4DConfig(1, 2, d_model=1, d_state=2, readout="polynomial", degree=2)).double().requires_grad_(False)
    model.encoder.weight.fill_(1.0)
    model.polynomial.copy_(torch.tensor([[2.0, 0.7, -0.9]]))
    model.decoder.weight.copy_(torch.tensor([[0.0], [1.0]]))
    model.decoder.bias.copy_(torch.tensor([-1.0, 0.0]))
    op = expand(model, np.array([[[-1.0, 0.5, 1.0]]]))
    x, radius = np.array([[[0.2]]]), 0.3
    ds = op.certify(x, radius=radius)
    corners = [run(model, x[0] + side * radius) for side in (-1, 1)]
    assert ds.margin_lower_bound.item() == pytest.approx(min(y[1] - y[0] for y in corners), rel=1e-6)
    assert ds.robust_radius.item() > 0


def test_a_power_series_ends_at_the_degree():
    model = build(3)
    ds = expand(model, TRAIN).homogeneous(TEST, order=3, target=CentredLogits())
    terms = ds.homogeneous_order.values  # (order, case, class)
    start = np.mean(np.concatenate(TRAIN, 1), 1)
    for case, x in enumerate(TEST):
        origin = np.repeat(
            (np.concatenate([t.astype(np.float32) for t in TRAIN], 1).astype(float).mean(1))[:, None], x.shape[1], 1
        )
        assert np.abs(origin[:, 0] - start).max() < 1e-6
        nodes = np.linspace(0, 1, 4)
        values = np.array([(np.eye(3) - 1 / 3) @ run(model, origin + e * (x - origin)) for e in nodes])
        expected = np.linalg.solve(np.vander(nodes, 4, increasing=True), values)
        assert np.abs(terms[:, case] - expected).max() < 1e-9 * np.abs(expected).max()
    assert float(abs(ds.remainder).max()) < 1e-11 * float(ds.sum_abs_terms.max())
    assert np.isinf(ds.convergence_radius.values).all()


def test_ablated_waves_are_the_model_without_them():
    model = build(3)
    ds = expand(model, TRAIN, order=3).ablate(TEST, parts=[(1, 0), (2, 2)], target=CentredLogits())
    without = [build(3) for _ in range(2)]
    with torch.no_grad():
        for other, (h, n) in zip(without, [(1, 0), (2, 2)], strict=True):
            other.layer(0).kernel.C[h, n] = 0
    directions = np.eye(3) - 1 / 3
    for case, x in enumerate(TEST):
        bias = preactivation(model, x) - driven(model, x)
        for rank, (other, (h, _)) in enumerate(zip(without, [(1, 0), (2, 2)], strict=True)):
            z = preactivation(model, x)
            left = z.copy()
            left[h] = driven(other, x)[h] + bias[h]
            expected = directions @ model.decoder.weight.numpy() @ (read(model, left) - read(model, z)).mean(-1)
            assert np.abs(ds.actual_change[case].isel(rank=rank).values - expected).max() < 1e-12
    assert float(abs(ds.predicted_change.isel(order=-1) - ds.actual_change).max()) < 1e-11


def driven(model, x):
    """z without what the encoder's bias drives."""
    with torch.no_grad():
        bias = model.encoder.bias.clone()
        model.encoder.bias.zero_()
        z = preactivation(model, x)
        model.encoder.bias.copy_(bias)
    return z


def test_smaller_models_keep_their_own_polynomials(tmp_path):
    model = build(3)
    op = expand(model, TRAIN)
    small = op.reduce(1)
    rows = model.polynomial.tolist()
    assert 1 <= small.config.d_model < 3
    for own, encoder in zip(small.polynomial.tolist(), small.encoder.weight.tolist(), strict=True):
        assert model.encoder.weight[rows.index(own)].tolist() == encoder
    small.save_pretrained(tmp_path)
    assert torch.equal(S4D.from_pretrained(tmp_path).polynomial, small.polynomial)
    whole = op.reduce(9)
    for x in TEST:
        assert np.abs(whole(torch.from_numpy(x.T.copy())[None])[0].detach().numpy() - run(model, x)).max() < 1e-10


# Models that answer at every step


BY = [Waves(), Channels(), (Channels(), Bands([(0.0, 0.1), (0.1, 0.5)])), Windows(2), (Waves(), Channels())]


@pytest.mark.parametrize("by", BY, ids=repr)
@pytest.mark.parametrize("at", [-1, 0, 11])
def test_one_answer_is_a_sum(by, at):
    model = build(2, "none", n_classes=2)
    op = expand(model, TRAIN, order=2)
    ds = op.explain(TEST, by=by, at=at)
    assert recomputed_completeness(ds) < 1e-11
    assert float(abs(ds.remainder).max()) < 1e-12 * float(ds.sum_abs_terms.max())
    for case, x in enumerate(TEST):
        expected = answers(model, x)[at]
        assert np.abs(ds.target[case].values - expected).max() < 1e-11 * np.abs(expected).max()
        assert ds.step.values[case] == (x.shape[1] + at if at < 0 else at)
    assert (ds.attrs["at"], ds.attrs["target"], ds.target.attrs["units"]) == (at, "outputs", "output")


def test_shares_at_a_step_are_those_of_its_waves():
    """Hermite terms of orders 1 and 2 written out: c_1 nu and c_2 (nu w - Cov)."""
    model = build(2, "none", n_classes=1, preprocessing=None)
    with torch.no_grad():
        model.encoder.bias.zero_()
    op = expand(model, TRAIN, order=2)
    ds = op.explain(TEST, at=7)
    waves = [waves_of(model, x.astype(np.float32).astype(float)) for x in TRAIN]
    z = [value.sum(1) + skip for value, skip in waves]
    centre = np.mean([value.mean(-1) for value in z], 0)
    variance = np.mean([((value - centre[:, None]) ** 2).mean(-1) for value in z], 0)
    mean = np.mean([value.mean(-1) for value, _ in waves], 0)  # (H, P)
    covariance = np.mean(
        [((w - mean[..., None]) * (v - centre[:, None])[:, None]).mean(-1) for (w, _), v in zip(waves, z, strict=True)],
        0,
    )
    a, W = model.polynomial.numpy(), model.decoder.weight.numpy()[0]
    c1, c2 = a[:, 1] + 2 * a[:, 2] * centre, a[:, 2]
    assert variance.min() > 0
    for case, x in enumerate(TEST):
        own, skip = waves_of(model, x)
        w = (own.sum(1) + skip)[:, 7] - centre
        nu = own[..., 7] - mean
        first, second = (W * c1)[:, None] * nu, (W * c2)[:, None] * (nu * w[:, None] - covariance)
        for order, expected in ((0, first), (1, second)):
            assert np.abs(ds.share[order, case, 0].values - expected).max() < 1e-11 * float(ds.sum_abs_terms.max())


def waves_of(model, x):
    """Waves (H, P, L) and skip (H, L) of a case of a model without encoder bias."""
    w, layer = {k: v.numpy() for k, v in model.state_dict().items()}, "s4_layers.0."
    C = w[layer + "kernel.C"][..., 0] + 1j * w[layer + "kernel.C"][..., 1]
    pole = -np.exp(w[layer + "kernel.log_A_real"]) + 1j * w[layer + "kernel.A_imag"]
    dt = np.exp(w[layer + "kernel.log_dt"])[:, None]
    u = w["encoder.weight"] @ x
    s, out = np.zeros(pole.shape, complex), np.empty((*pole.shape, x.shape[1]))
    for t in range(x.shape[1]):
        s = np.exp(pole * dt) * s + np.expm1(pole * dt) / pole * u[:, t, None]
        out[..., t] = 2 * (C * s).real
    return out, w[layer + "D"][:, None] * u


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("by", [Waves(), Channels()], ids=repr)
def test_pairs_at_a_step_add_up_to_parts(by, order):
    model = build(3, "none", n_classes=1)
    op = expand(model, TRAIN, order=order)
    parts, pairs = op.explain(TEST, by=by, at=-2), op.explain(TEST, by=Pairs(by), at=-2)
    assert (pairs.attrs["at"], pairs.pair_share.attrs["units"]) == (-2, "output")
    names = [d for d in pairs.pair_share.dims if d.endswith("_2")]
    rows = pairs.pair_share.sum(names) + pairs.pair_source_share.sum("source")
    expected = parts.share.sel(order=slice(2, None))
    assert float(abs(rows - expected).max()) < 1e-11 * float(parts.sum_abs_terms.max())


def test_gelu_at_every_step_is_explained_too():
    model = build(None, "none", n_classes=1)
    ds = expand(model, TRAIN, order=4).explain(TEST, at=-1)
    assert recomputed_completeness(ds) < 1e-11
    assert float(abs(ds.remainder).max()) > 1e-6
    for case, x in enumerate(TEST):
        assert abs(ds.target.values[case, 0] - run(model, x)[-1, 0]) < 1e-12
    assert "predicted" not in ds.coords


def test_the_operator_alone_answers_at_every_step():
    model = build(3, "none")
    found = expand(model, TRAIN, order=3)(TEST)
    assert found.shape == (3, 27, 3)
    for case, x in enumerate(TEST):
        expected = answers(model, x)
        assert np.abs(found[case, : x.shape[1]] - expected).max() < 1e-11 * np.abs(expected).max()
        assert not found[case, x.shape[1] :].any()


# Round trips: what a filter is built from, and what its explanation returns


def volterra(decay, frequency, gains, signs):
    """A model y(t) = c + sum_l g(l) x(t-l) + sum_j s_j (sum_l g_j(l) x(t-l))^2 with g_j(l) = 2 Re(gain_j a^l), g the first of them.

    Two features carry the first filter: one linear, one squared; every further one is squared.
    """
    n = len(gains)
    model = S4D(
        S4DConfig(1, 1, d_model=n + 1, d_state=2 * len(decay), readout="polynomial", degree=2, pooling="none")
    ).double()
    a = np.exp(-np.array(decay) + 1j * np.array(frequency))
    with torch.no_grad():
        model.encoder.weight.fill_(1)
        model.encoder.bias.zero_()
        layer = model.layer(0)
        layer.D.zero_()
        layer.kernel.log_dt.zero_()
        layer.kernel.log_A_real.copy_(torch.from_numpy(np.log(decay)).expand(n + 1, -1))
        layer.kernel.A_imag.copy_(torch.from_numpy(np.array(frequency)).expand(n + 1, -1))
        pole = np.log(a)
        rows = np.array([gains[0], *gains]) * pole / np.expm1(pole)  # C b = gain, b = (exp(lambda) - 1) / lambda
        layer.kernel.C.copy_(torch.from_numpy(np.stack((rows.real, rows.imag), -1)))
        model.polynomial.copy_(torch.tensor([[0.0, 1.0, 0.0], *([[0.0, 0.0, 1.0]] * n)]))
        model.decoder.weight.copy_(torch.from_numpy(np.array([[1.0, *signs]])))
        model.decoder.bias.fill_(0.25)
    return model.requires_grad_(False).eval(), a


DECAY, FREQUENCY = [0.05, 0.2, 0.11], [0.9, 0.35, 0.0]
GAINS = [[0.3 + 0.1j, -0.2j, 0.1], [0.05, 0.2 - 0.3j, -0.15], [0.1j, 0.02, 0.07]]
SIGNS = [0.7, -1.2, 0.4]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", [2, 4])
def test_a_volterra_filter_gives_its_kernels_back(family, order):
    model, a = volterra(DECAY, FREQUENCY, GAINS, SIGNS)
    X = np.random.default_rng(0).normal(size=(6, 1, 80))
    L = 40
    ds = expand(model, X, family=family, order=order).kernels(L)
    g = np.array(
        [[2 * sum((c * p**lag).real for c, p in zip(row, a, strict=True)) for lag in range(L)] for row in GAINS]
    )
    h2 = np.array([[sum(s * g[j, m] * g[j, n] for j, s in enumerate(SIGNS)) for n in range(L)] for m in range(L)])
    assert np.abs(ds.h1.values[0, 0] - g[0]).max() < 1e-10 * np.abs(g[0]).max()
    assert np.abs(ds.h2.values[0, 0, 0] - h2).max() < 1e-10 * np.abs(h2).max()
    assert abs(ds.h0.item() - 0.25) < 1e-10
    assert np.abs(ds.coefficient.values[3:]).max(initial=0) < 1e-10
    assert ds.attrs["every_step"] == "the same at every step"
    assert ds.lag.values.tolist() == list(range(L))
    for variable in ds.data_vars.values():
        assert {"units", "long_name", "claim"} <= set(variable.attrs)


def test_a_volterra_filter_answers_as_its_sums_do():
    model, a = volterra(DECAY, FREQUENCY, GAINS, SIGNS)
    x = np.random.default_rng(1).normal(size=50)
    g = np.array([2 * (np.array(row)[:, None] * a[:, None] ** np.arange(50)).real.sum(0) for row in GAINS])
    found = run(model, x[None])[:, 0]
    linear = np.convolve(x, g[0])[:50]
    squares = np.zeros(50)
    for t in range(50):
        for m in range(t + 1):
            for n in range(t + 1):
                squares[t] += sum(s * g[j, m] * g[j, n] for j, s in enumerate(SIGNS)) * x[t - m] * x[t - n]
    assert np.abs(found - (0.25 + linear + squares)).max() < 1e-10 * np.abs(found).max()


def test_a_linear_recursive_filter_is_lfilter():
    """One feature, one pair of poles: y(t) = 2 rho cos(theta) y(t-1) - rho^2 y(t-2) + b_0 x(t) + b_1 x(t-1)."""
    model, a = volterra([0.1], [0.7], [[0.4 - 0.2j]], [0.0])
    with torch.no_grad():
        model.decoder.bias.zero_()
    pole, gain = a[0], 0.4 - 0.2j
    # 2 Re(gain / (1 - pole / z)) as a quotient of polynomials in 1/z
    numerator = [2 * gain.real, -2 * (gain * np.conj(pole)).real]
    denominator = [1, -2 * pole.real, abs(pole) ** 2]
    x = np.random.default_rng(2).normal(size=300)
    expected = lfilter(numerator, denominator, x)
    assert np.abs(run(model, x[None])[:, 0] - expected).max() < 1e-10 * np.abs(expected).max()
    op = expand(model, x[None, None], order=1)
    assert np.abs(op(x[None, None])[0, :, 0] - expected).max() < 1e-10 * np.abs(expected).max()
    impulse = np.zeros(64)
    impulse[0] = 1
    h1 = op.kernels(64).h1.values[0, 0]
    assert np.abs(h1 - lfilter(numerator, denominator, impulse)).max() < 1e-10
    assert "h2" not in op.kernels(64)


def test_kernels_with_a_bias_are_those_of_the_last_step():
    """Two channels, a bias and a constant: the series itself at the last step, kernel by kernel."""
    model = build(3, "none", preprocessing=None)
    x = TEST[1]
    L = x.shape[1]
    ds = expand(model, TRAIN, order=3).kernels(L)
    past = x[:, ::-1]
    y = ds.h0.values + np.einsum("cdl,dl->c", ds.h1.values, past)
    y = y + np.einsum("cdelm,dl,em->c", ds.h2.values, past, past)
    zeta = np.einsum("hl,hd,dl->h", ds.response.values, ds.encoder.values, past)
    y = y + ds.readout.values @ (ds.coefficient.values[3] * zeta**3)
    expected = answers(model, x)[-1]
    assert np.abs(y - expected).max() < 1e-10 * np.abs(expected).max()
    assert np.abs(ds.h2.values - ds.h2.values.transpose(0, 2, 1, 4, 3)).max() < 1e-15 * np.abs(ds.h2.values).max() * 10
    assert ds.attrs["every_step"].startswith(f"of step {L - 1} alone")


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_an_operator_survives_its_folder(pooling, tmp_path):
    op = expand(build(3, pooling), TRAIN, order=4)
    op.save(tmp_path)
    loaded = type(op).load(tmp_path)
    assert loaded == op
    asked = {} if pooling == "mean" else {"at": -1}
    assert loaded.explain(TEST, **asked).equals(op.explain(TEST, **asked))
    assert loaded.expansion.activation.name == "polynomial"
    assert json.loads((tmp_path / "model" / "config.json").read_text())["config"]["pooling"] == pooling


# Refusals


REFUSED = {
    "steer": lambda op: op.steer(TEST),
    "ablate": lambda op: op.ablate(TEST, by=Channels()),
    "reduce": lambda op: op.reduce(2),
    "reduction_curve": lambda op: op.reduction_curve(TEST),
    "certify": lambda op: op.certify(TEST),
    "summarise": lambda op: summarise(op, op.explain(TEST, at=-1), TEST),
    "choose_cases": lambda op: choose_cases(op, op.explain(TEST, at=-1), TEST),
    "discriminate": lambda op: op.discriminate(
        {"class 0": Sinusoid(0.1, 9, 1.0), "class 1": Sinusoid(0.2, 9, 1.0)}, 0.5
    ),
    "sweep": lambda op: op.sweep([0.1, 0.2], 0.5),
    "ray": lambda op: op.ray(TEST),
    "homogeneous": lambda op: op.homogeneous(TEST),
    "convergence": lambda op: op.convergence(TEST),
    "ring": lambda op: op.ring(TEST),
    "explain(by=LayerWaves())": lambda op: op.explain(TEST, by=LayerWaves(), at=-1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_accounts_of_one_decision_refuse_answers_at_every_step(name):
    op = expand(build(2, "none", n_classes=2), TRAIN)
    with pytest.raises(ArgumentError, match=r"answers at every step \(pooling='none'\)") as caught:
        REFUSED[name](op)
    assert str(caught.value).startswith(name.split("(")[0])
    assert any(cure in str(caught.value) for cure in ("kernels(length)", "features=", "by=Waves()"))


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (None, r"explain: the model answers at every step.*at=-1"),
        (19, r"at=19\): case 1 has 19 steps, 0 to 18"),
        (-20, r"at=-20\): case 1 has 19 steps.*-1 to -19"),
        (1.0, r"at=1.0\): give one step as a whole number"),
        (True, r"at=True\): give one step"),
        ("last", "give one step as a whole number"),
    ],
)
def test_steps_that_no_case_has_are_refused(at, words):
    with pytest.raises(ArgumentError, match=words):
        expand(build(2, "none"), TRAIN).explain(TEST, at=at)


def test_predictions_need_a_step_of_the_signal():
    op = expand(build(2, "none", n_classes=1), TRAIN)
    assert op.predict(Sinusoid(0.1, 9, 1.0), 0.5, at=8).target_mean.dims == ("class",)
    for at, words in ((None, "predict: the model answers at every step"), (9, r"predict\(at=9\): case 0 has 9 steps")):
        with pytest.raises(ArgumentError, match=words):
            op.predict(Sinusoid(0.1, 9, 1.0), 0.5, at=at)
    with pytest.raises(ArgumentError, match=r"predict\(at=0\): the model decides by a mean"):
        expand(build(2), TRAIN).predict(Sinusoid(0.1, 9, 1.0), 0.5, at=0)


def test_a_mean_has_no_step():
    with pytest.raises(ArgumentError, match=r"explain\(at=-1\): the model decides by a mean over all steps"):
        expand(build(2), TRAIN).explain(TEST, at=-1)


def test_kernels_by_lag_are_not_read_as_kernels_of_a_case():
    op = expand(build(2, "none", n_classes=2), TRAIN)
    for call in (
        lambda: summarise_kernels(op),
        lambda: second_order_kernel(op.kernels(8), "channel 1"),
    ):
        with pytest.raises(ArgumentError, match="kernels are of lags"):
            call()


def test_kernels_too_large_to_hold_are_refused():
    with pytest.raises(
        ArgumentError, match=r"kernels\(length=20000\): the result would take .* as many lags as the model remembers"
    ):
        expand(build(2, "none"), TRAIN).kernels(20000)


def test_one_output_needs_a_target_of_its_own_where_it_is_pooled():
    model = build(2, n_classes=1)
    op = expand(model, TRAIN)
    with pytest.raises(ArgumentError, match=r"such as Outputs\(\)"):
        op.explain(TEST)
    ds = op.explain(TEST, target=Outputs())
    for case, x in enumerate(TEST):
        assert abs(ds.target.values[case, 0] - answers(model, x).mean()) < 1e-11


def test_rings_of_named_features_are_of_any_model():
    model = build(2, "none", n_classes=2)
    ds = expand(model, TRAIN).ring(TEST, features=[0, 2])
    assert float(ds.ring_residual.max()) < 1e-10


def test_coefficients_that_are_no_polynomial_are_refused():
    for wrong in (torch.ones(3), torch.ones(3, 1), torch.full((2, 2), float("nan"))):
        with pytest.raises(ArgumentError, match="degree 1 or more"):
            polynomial_activation(wrong)


def test_the_readout_of_a_model_is_its_own():
    assert readout_of(build(None)).name == "gelu"
    model = build(4)
    z = torch.randn(2, 3, 5, dtype=torch.float64)
    found = readout_of(model)
    assert torch.allclose(found.value(z), model.readout(z.transpose(1, 2)).transpose(1, 2), atol=1e-13)
    for k in (1, 2, 5):
        expected = np.stack(
            [Polynomial(a).deriv(k)(z[:, h].numpy()) for h, a in enumerate(model.polynomial.numpy())], 1
        )
        assert np.abs(found.derivative(z, k).numpy() - expected).max() < 1e-12
    m = torch.tensor([0.3, -1.0, 2.0]).double()[:, None]
    quotient = (found.value(z) - found.value(m)) / (z - m)
    assert torch.allclose(found.quotient(z, m), quotient, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.select(torch.tensor([2])).value(z[:, 2:]), found.value(z)[:, 2:])
