"""Certificates against attacks, exhaustive corners and dense evaluation: a bound that an input breaks is a bug."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.data import load_example, noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.explanation.certificates import _reach, _table
from oplens.models import Preprocessing


def small_model(n_classes=2, d_input=2, seed=0, length=24, cases=7, scale=1.0):
    torch.manual_seed(seed)
    model = S4D(S4DConfig(d_input=d_input, n_classes=n_classes, d_model=5, d_state=8, dt_max=0.4)).double()
    X = scale * np.random.default_rng(seed).normal(size=(cases, d_input, length))
    return model, X


def margins(model, x, decided):
    """Decided logit minus each rival's, rivals in class order without the decided one: (cases, n_classes - 1)."""
    logits = model(x)
    own = logits.gather(1, decided[:, None])
    keep = torch.arange(logits.shape[1])[None] != decided[:, None]
    return (own - logits)[keep].reshape(len(logits), -1)


def attacked(model, X, decided, radius, steps=60, restarts=3):
    """Smallest margins that projected sign-gradient descent finds in the box, and the inputs that reach them."""
    start = torch.from_numpy(X).transpose(1, 2)
    best = margins(model, start, decided).amin(1)
    best_x = start.clone()
    generator = torch.Generator().manual_seed(0)
    for attempt in range(restarts):
        noise = torch.rand(start.shape, generator=generator, dtype=torch.float64) * 2 - 1
        x = start + (radius * noise.sign() if attempt else 0 * noise)
        for step in range(steps):
            x = x.detach().requires_grad_(True)
            worst = margins(model, x, decided).amin(1)
            (gradient,) = torch.autograd.grad(worst.sum(), x)
            size = radius if step < 3 else radius * 2 / (step + 1)
            moved = x - size * gradient.sign()
            x = torch.minimum(torch.maximum(moved, start - radius), start + radius).detach()
            with torch.no_grad():
                reached = margins(model, x, decided).amin(1)
            better = reached < best
            best = torch.where(better, reached, best)
            best_x[better] = x[better]
    return best, best_x


def polynomial_margins(model, op, x, decided, order, widest):
    """Margins of the operator cut at `order`, from a plain time loop and Chebyshev polynomials fitted with numpy."""
    low, high = op.training_range()
    reach = _reach(op, x.shape[1]) * widest
    low, high = (low - reach).numpy(), (high + reach).numpy()
    z = model.trace(x, mode="step").layers[0].z.detach().numpy()
    values = np.empty_like(z)
    for h in range(z.shape[-1]):
        nodes = np.cos((np.arange(400) + 0.5) * np.pi / 400)
        at = (high[h] + low[h]) / 2 + (high[h] - low[h]) / 2 * nodes
        gelu = at * 0.5 * np.array([math.erfc(-v / math.sqrt(2)) for v in at])
        # Many nodes: the interpolant of degree 399 is the Chebyshev series to rounding, cut at `order`.
        series = np.polynomial.chebyshev.chebfit(nodes, gelu, 60)[: order + 1]
        scaled = (z[..., h] - (high[h] + low[h]) / 2) / ((high[h] - low[h]) / 2)
        values[..., h] = np.polynomial.chebyshev.chebval(scaled, series)
    pooled = torch.from_numpy(values.mean(1))
    logits = pooled @ model.decoder.weight.T + model.decoder.bias
    own = logits.gather(1, decided[:, None])
    keep = torch.arange(logits.shape[1])[None] != decided[:, None]
    return (own - logits)[keep].reshape(len(logits), -1)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_attack_flips_a_robust_decision_or_gets_below_the_bound(n_classes, seed):
    model, X = small_model(n_classes, seed=seed)
    op = expand(model, X)
    radii = [0.0, 0.01, 0.05, 0.2, 1.0]
    ds = op.certify(X, radius=radii, orders=(2,))
    decided = model(torch.from_numpy(X).transpose(1, 2)).argmax(1)
    seen_robust = 0
    for index, radius in enumerate(radii):
        found, _ = attacked(model, X, decided, radius)
        bound = torch.from_numpy(ds.margin_lower_bound.values[:, index])
        assert bool((found.detach() >= bound).all())
        robust = ds.robust.values[:, index]
        assert not np.any(robust & (found.detach().numpy() <= 0))
        seen_robust += int(robust.sum())
    assert seen_robust > len(X)


def test_the_robust_radius_is_where_the_bound_reaches_zero():
    model, X = small_model(3)
    op = expand(model, X)
    radius = op.certify(X, orders=(2,)).robust_radius.values
    for case, r in enumerate(radius):
        at = op.certify(X[case : case + 1], radius=[0.999 * r, 1.001 * r], orders=(2,)).margin_lower_bound.values[0]
        assert at[0] > 0 > at[1]


def test_the_reach_of_a_pre_activation_is_attained():
    model, X = small_model()
    op = expand(model, X)
    reach = _reach(op, X.shape[-1])
    base = torch.from_numpy(X[:1]).transpose(1, 2)
    for h in range(model.config.d_model):
        # The worst input for the last step: the sign of each input's effect on z_h(last), by autograd.
        x = base.clone().requires_grad_(True)
        z = model.trace(x).layers[0].z[0, -1, h]
        (effect,) = torch.autograd.grad(z, x)
        worst = model.trace(base + 0.3 * effect.sign()).layers[0].z[0, -1, h]
        assert float((abs(worst - z) / (0.3 * reach[h])).detach()) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_where_truncation_is_certified_the_operator_decides_as_the_model_at_every_attacked_point(n_classes):
    model, X = small_model(n_classes, seed=3)
    op = expand(model, X)
    radii, orders = [0.0, 0.02, 0.1], (2, 6, 12)
    ds = op.certify(X, radius=radii, orders=orders)
    decided = model(torch.from_numpy(X).transpose(1, 2)).argmax(1)
    certified = 0
    for r, radius in enumerate(radii):
        _, x = attacked(model, X, decided, radius, steps=30)
        corners = torch.from_numpy(X).transpose(1, 2) + radius * torch.randn(x.shape, dtype=torch.float64).sign()
        for points in (x, corners, torch.from_numpy(X).transpose(1, 2)):
            true = margins(model, points, decided).detach()
            for k, order in enumerate(orders):
                cut = polynomial_margins(model, op, points, decided, order, max(radii))
                gap = (cut - true).abs().amax(1).detach().numpy()
                assert np.all(gap <= ds.remainder_bound.values[k, :, r] + 1e-12)
                lowest = ds.certified_order.values[:, r]
                sure = (lowest > 0) & (lowest <= order)
                agreed = ((cut > 0) == (true > 0)).all(1).numpy()
                assert np.all(agreed[sure])
                certified += int(sure.sum())
    assert certified > 20


def test_bounds_grow_with_the_radius_and_certificates_shrink():
    model, X = small_model(seed=5)
    ds = expand(model, X).certify(X, radius=[0.0, 0.01, 0.1, 0.5], orders=(4, 10))
    assert np.all(np.diff(ds.margin_lower_bound.values, axis=1) < 0)
    assert np.all(np.diff(ds.remainder_bound.values, axis=2) >= 0)
    assert np.all(np.diff(ds.certified_fraction.values, axis=1) <= 0)


def test_one_case_alone_has_the_same_certificate_and_padding_none():
    data = load_example("JapaneseVowels", "test").select(list(range(6)))
    torch.manual_seed(0)
    preprocessing = Preprocessing.standardise(data.X, data.lengths)
    model = S4D(S4DConfig(d_input=12, n_classes=9, d_model=4, d_state=6, preprocessing=preprocessing))
    op = expand(model, data)
    whole = op.certify(data, radius=[0.0, 0.01], orders=(4,))
    for case in range(6):
        alone = op.certify(data.select([case]), radius=[0.0, 0.01], orders=(4,))
        for name in ("margin_lower_bound", "robust_radius", "remainder_bound"):
            np.testing.assert_allclose(alone[name].isel(case=0), whole[name].isel(case=case), rtol=1e-11)


def test_a_trained_model_is_certified_on_most_cases_at_some_radius():
    from oplens import S4DClassifier

    train = noisy_sinusoids(n_cases=60, n_timepoints=64, sampling_rate=64.0, noise=0.3, seed=0)
    classifier = S4DClassifier(d_model=8, d_state=8, max_epochs=30).fit(train)
    ds = expand(classifier, train).certify(train, radius=[0.0, 1e-3], orders=(8, 20))
    assert float(ds.certified_fraction.sel(order=20).isel(radius=1)) >= 0.5
    assert "no case here is certified that far" in ds.attrs["global_box"]


def test_a_case_far_outside_the_training_range_gets_no_truncation_certificate():
    model, X = small_model()
    op = expand(model, X)
    ds = op.certify(50 * X, orders=(8,))
    assert np.all(ds.certified_order.values == 0)
    assert np.isinf(ds.remainder_bound.values).any()
    assert np.isfinite(ds.margin_lower_bound.values).all()


def test_tables_hold_the_polynomial_of_the_widened_training_range():
    model, X = small_model()
    op = expand(model, X)
    table = _table(op, 4, torch.full((5,), 0.5, dtype=torch.float64))
    low, high = op.training_range()
    assert bool((table.lo < low - 0.5).all())
    assert bool((table.hi > high + 0.5).all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"radius": -0.1}, "at least 0"),
        ({"radius": float("nan")}, "finite"),
        ({"radius": []}, "finite"),
        ({"orders": (0, 2)}, "at least 1"),
        ({"orders": ()}, "at least 1"),
        ({"orders": (2.5,)}, "whole numbers"),
        ({"orders": (True,)}, "whole numbers"),
    ],
)
def test_what_cannot_be_certified_is_a_sentence(call, words):
    model, X = small_model()
    with pytest.raises(ArgumentError, match=words):
        expand(model, X).certify(X, **call)


def test_a_training_set_too_large_to_keep_is_named(monkeypatch):
    X = np.random.default_rng(0).normal(size=(4, 1, 30))
    monkeypatch.setattr("oplens.explanation.training.TRAINING_LIMIT", 0)
    op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)), X)
    with pytest.raises(ArgumentError, match=r"certify.*not kept.*fewer training cases"):
        op.certify(X)


def test_the_reference_architecture_is_refused():
    model = S4D(S4DConfig(d_input=2, n_classes=2, d_model=3, d_state=4, architecture="reference"))
    X = np.zeros((2, 2, 10))
    with pytest.raises(ArgumentError, match="gates and norms move"):
        expand(model, X).certify(X)


def test_the_same_cases_padded_further_have_the_same_hash():
    from oplens.explanation.training import digest

    X = np.random.default_rng(0).normal(size=(3, 2, 9)).astype(np.float32)
    lengths = np.array([9, 4, 7])
    padded = np.concatenate((X, np.zeros((3, 2, 5), dtype=np.float32)), axis=2)
    assert digest(X, lengths) == digest(padded, lengths)
    assert digest(X, lengths) != digest(X, np.array([9, 5, 7]))
