"""Certificates against attacks on the model as it is called, raw values and preprocessing included: a bound that an input breaks is a bug."""

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.data import SequenceData, load_example, noisy_sinusoids, read_ts
from oplens.errors import ArgumentError
from oplens.explanation.certificates.certificates import certify
from oplens.models import Preprocessing


def small_model(n_classes=2, d_input=2, seed=0, length=24, cases=7, remove_offset=False, standard=False):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(cases, d_input, length))
    preprocessing = None
    if standard:
        X = X * rng.uniform(5, 50, size=(1, d_input, 1)) + rng.normal(size=(cases, d_input, 1)) * 40
        preprocessing = Preprocessing.standardise(X, np.full(cases, length), remove_offset)
    config = S4DConfig(
        d_input=d_input, n_classes=n_classes, d_model=5, d_state=8, dt_max=0.4, preprocessing=preprocessing
    )
    return balanced(S4D(config).double(), X), X


def balanced(model, X):
    """The same model with biases that make its mean logits equal: untrained ones decide by their biases, which no input moves."""
    with torch.no_grad():
        model.decoder.bias -= model(torch.from_numpy(X).transpose(1, 2)).mean(0)
    return model


def decisions(model, data):
    x = torch.from_numpy(data.X).transpose(1, 2)
    return model(x, torch.from_numpy(data.lengths)).argmax(1).detach()


def margins(logits, decided):
    """Decided logit minus each rival's, rivals in class order without the decided one: (cases, n_classes - 1)."""
    own = logits.gather(1, decided[:, None])
    keep = torch.arange(logits.shape[1])[None] != decided[:, None]
    return (own - logits)[keep].reshape(len(logits), -1)


def attacked(model, data, radius, half_width, steps=40, restarts=3):
    """Smallest margins that projected sign-gradient descent finds in the box of the raw data, and the inputs that reach them.

    radius is one number or one per case; the first restart starts at the case, the others at corners of the box.
    """
    start, lengths = torch.from_numpy(data.X).transpose(1, 2), torch.from_numpy(data.lengths)
    decided = decisions(model, data)
    inside = (torch.arange(start.shape[1]) < lengths[:, None])[..., None]
    radius = torch.as_tensor(radius, dtype=torch.float64).expand(len(start))
    width = radius[:, None, None] * torch.as_tensor(half_width, dtype=torch.float64) * inside
    best, best_x = torch.full((len(start),), torch.inf, dtype=torch.float64), start.clone()
    generator = torch.Generator().manual_seed(0)
    for attempt in range(restarts):
        corner = (torch.rand(start.shape, generator=generator, dtype=torch.float64) * 2 - 1).sign()
        eta = corner if attempt else torch.zeros_like(start)
        for step in range(steps + 1):
            eta = eta.detach().requires_grad_(True)
            x = start + width * eta
            worst = margins(model(x, lengths), decided).amin(1)
            better = worst.detach() < best
            best = torch.where(better, worst.detach(), best)
            best_x[better] = x.detach()[better]
            (gradient,) = torch.autograd.grad(worst.sum(), eta)
            eta = (eta - 2 * (1 - step / steps) * gradient.sign()).clamp(-1, 1)
    return best, best_x


def as_data(X, lengths=None, y=None):
    """Cases of these lengths, padded with zeros."""
    lengths = np.full(len(X), X.shape[-1]) if lengths is None else np.asarray(lengths)
    X = np.where(np.arange(X.shape[-1]) < lengths[:, None, None], X, 0.0)
    names = tuple(f"channel {i + 1}" for i in range(X.shape[1]))
    return SequenceData(X, lengths, y, names, (), None, "test", "test")


KINDS = {
    "plain": {},
    "standardised": {"standard": True},
    "offsets removed": {"standard": True, "remove_offset": True},
}


@pytest.mark.parametrize(
    ("kind", "n_classes", "scale"),
    [
        ("plain", 2, None),
        ("standardised", 3, (3.0, 0.0)),
        ("standardised", 2, 2.0),
        ("offsets removed", 3, None),
        ("offsets removed", 2, (3.0, 0.5)),
    ],
)
def test_no_attack_flips_a_robust_decision_or_gets_below_the_bound(kind, n_classes, scale):
    model, X = small_model(n_classes, seed=n_classes, **KINDS[kind])
    data = as_data(X, [24, 24, 17, 9, 24, 5, 13])
    op = expand(model, data)
    radii = [0.0, 0.003, 0.03, 0.3] if kind == "plain" or scale is None else [0.0, 0.1, 1.0, 10.0]
    ds = certify(op, data, radius=radii, orders=(2,), scale=scale)
    seen_robust = 0
    for index, radius in enumerate(radii):
        found, _ = attacked(model, data, radius, ds.half_width.values, steps=25)
        bound = ds.margin_lower_bound.values[:, index]
        assert np.all(found.numpy() >= bound)
        robust = ds.robust.values[:, index]
        assert not np.any(robust & (found.numpy() <= 0))
        assert np.array_equal(robust, ds.robust_radius.values >= radius)
        seen_robust += int(robust.sum())
    assert seen_robust > 1.5 * len(X)
    # What was seen to flip the decision does, and lies beyond what is certified.
    flips = ds.flipped_radius.values
    assert np.all(flips > ds.robust_radius.values)
    assert np.isfinite(flips).mean() > 0.5


def test_a_flipped_decision_is_flipped_by_the_model_itself():
    model, X = small_model(3, seed=4, standard=True, remove_offset=True)
    data = as_data(X, [24, 20, 17, 9, 24, 5, 13])
    ds = certify(expand(model, data), data, orders=(1,))
    decided = decisions(model, data)
    x = torch.from_numpy(data.X).transpose(1, 2).requires_grad_(True)
    lengths = torch.from_numpy(data.lengths)
    logits = model(x, lengths)
    slope, finite = [], np.isfinite(ds.flipped_radius.values)
    for rival in range(3):
        margin = logits.gather(1, decided[:, None])[:, 0] - logits[:, rival]
        slope.append(
            torch.autograd.grad(margin.sum(), x, retain_graph=True)[0] * torch.from_numpy(ds.half_width.values)
        )
    steep = torch.stack(slope).abs().sum((2, 3))
    gaps = torch.stack([logits.gather(1, decided[:, None])[:, 0] - logits[:, rival] for rival in range(3)])
    nearest = torch.where(gaps > 0, gaps / steep, torch.inf).argmin(0)
    step = torch.stack(slope)[nearest, torch.arange(len(X))].sign() * torch.from_numpy(ds.half_width.values)
    moved = x.detach() - torch.from_numpy(ds.flipped_radius.values)[:, None, None].nan_to_num(posinf=0.0) * step
    assert np.all((model(moved, lengths).argmax(1) != decided).numpy()[finite])
    assert finite.sum() >= 4


def test_attacks_need_little_more_than_the_certified_radius():
    """Bisection over the radius of the strongest attack: what is certified is not far below what can be had."""
    data = noisy_sinusoids(n_cases=12, n_timepoints=64, sampling_rate=64.0, noise=0.3, seed=0)
    torch.manual_seed(1)
    config = S4DConfig(d_input=1, n_classes=2, d_model=5, d_state=8, dt_max=0.4, classes=data.classes)
    op = expand(balanced(S4D(config).double(), data.X), data)
    ds = certify(op, data, orders=(1,))
    certified = torch.from_numpy(ds.robust_radius.values)
    low, high = certified.clone(), 8 * certified
    assert bool((attacked(op.model, data, low, ds.half_width.values, steps=12)[0] > 0).all())
    for _ in range(7):
        middle = (low + high) / 2
        flips = attacked(op.model, data, middle, ds.half_width.values, steps=12)[0] <= 0
        high, low = torch.where(flips, middle, high), torch.where(flips, low, middle)
    ratio = (high / certified).numpy()
    assert np.all(ratio > 1)
    assert np.median(ratio) < 2.6


def test_the_robust_radius_is_where_the_bound_reaches_zero():
    model, X = small_model(3)
    op = expand(model, X)
    radius = certify(op, X, orders=(2,)).robust_radius.values
    for case, r in enumerate(radius):
        at = certify(op, X[case : case + 1], radius=[0.999 * r, 1.001 * r], orders=(2,)).margin_lower_bound.values[0]
        assert at[0] > 0 > at[1]


def cut_logits(op, x, lengths):
    """Logits of an operator alone at inputs (cases, length, channels)."""
    return torch.from_numpy(op([case[:steps].T.numpy() for case, steps in zip(x, lengths.tolist(), strict=True)]))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("plain", "chebyshev"),
        ("plain", "taylor"),
        ("standardised", "empirical"),
        ("standardised", "hermite"),
        ("offsets removed", "hermite"),
    ],
)
def test_where_truncation_is_certified_the_operator_decides_as_the_model_at_every_attacked_point(kind, family):
    model, X = small_model(3, seed=3, **KINDS[kind])
    data = as_data(X, [24, 24, 17, 9, 24, 5, 13])
    op = expand(model, data)
    radii, orders = [0.0, 0.02, 0.2], (1, 2, 9)
    ds = certify(op, data, radius=radii, orders=orders, family=family)
    decided, lengths = decisions(model, data), torch.from_numpy(data.lengths)
    certified = ds.truncated_margin_lower_bound.values > 0
    cuts = [expand(model, data, family=family, order=order) for order in orders]
    counted = 0
    for r, radius in enumerate(radii):
        half = ds.half_width.values
        _, worst = attacked(model, data, radius, half, steps=12, restarts=2)
        generator = torch.Generator().manual_seed(1)
        corner = (torch.rand(worst.shape, generator=generator, dtype=torch.float64) - 0.5).sign()
        base = torch.from_numpy(data.X).transpose(1, 2)
        for x in (worst, base + radius * torch.from_numpy(half) * corner, base):
            true = margins(model(x, lengths), decided).detach()
            for k in range(len(orders)):
                cut = margins(cut_logits(cuts[k], x, lengths), decided)
                gap = (cut - true).abs().amax(1).numpy()
                assert np.all(gap <= ds.remainder_bound.values[k, :, r])
                assert np.all(cut.amin(1).numpy() >= ds.truncated_margin_lower_bound.values[k, :, r])
                sure = certified[k, :, r] & ds.robust.values[:, r]
                agreed = ((cut > 0) & (true > 0)).all(1).numpy()
                assert np.all(agreed[sure])
                counted += int(sure.sum())
        lowest = np.array(
            [
                min([k for i, k in enumerate(orders) if s[i]], default=0)
                for s in (certified[:, :, r] & ds.robust.values[:, r]).T
            ]
        )
        assert np.array_equal(ds.certified_order.values[:, r], lowest)
    assert counted > 60


def test_bounds_at_radius_zero_are_the_cut_operators_own_margins():
    model, X = small_model(seed=2)
    op = expand(model, X)
    ds = certify(op, X, orders=(1, 2, 5))
    decided = decisions(model, as_data(X))
    for k, order in enumerate((1, 2, 5)):
        cut = margins(torch.from_numpy(expand(model, X, order=order)(X)), decided)[:, 0].numpy()
        np.testing.assert_allclose(ds.truncated_margin_lower_bound.values[k, :, 0], cut, atol=1e-7)
        true = margins(model(torch.from_numpy(X).transpose(1, 2)), decided)[:, 0].detach().numpy()
        np.testing.assert_allclose(ds.remainder_bound.values[k, :, 0], abs(true - cut), atol=1e-7)
        np.testing.assert_allclose(ds.margin.values, true, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_an_orders_own_radius_lies_between_the_radii_that_are_certified_and_those_that_are_not(kind):
    model, X = small_model(3, seed=7, **KINDS[kind])
    data = as_data(X, [24, 24, 17, 9, 24, 5, 13])
    op, orders = expand(model, data), (1, 2, 6)
    radii = np.array([0.0, 0.001, 0.01, 0.03, 0.1])
    ds = certify(op, data, radius=list(radii), orders=orders)
    certified = (ds.truncated_margin_lower_bound.values > 0) & ds.robust.values
    own = ds.truncated_radius.values
    assert np.array_equal(certified[:, :, 1:], own[..., None] >= radii[1:])
    assert np.all(own <= ds.robust_radius.values)
    assert (own > 0).mean() > 0.5
    # It is certified there when asked for itself, and an attack there finds no disagreement.
    half, lengths, decided = ds.half_width.values, torch.from_numpy(data.lengths), decisions(model, data)
    for k, order in enumerate(orders):
        again = certify(op, data, radius=[float(r) for r in own[k] * (1 - 1e-9)], orders=(order,))
        lowest = again.truncated_margin_lower_bound.values[0].diagonal()
        assert np.all((lowest > 0)[own[k] > 0])
        _, x = attacked(model, data, own[k] * (1 - 1e-9), half, steps=8, restarts=2)
        cut = margins(cut_logits(expand(model, data, order=order), x, lengths), decided).amin(1).numpy()
        assert np.all((cut > 0)[own[k] > 0])


def test_bounds_grow_with_the_radius_and_certificates_shrink():
    model, X = small_model(seed=5)
    ds = certify(expand(model, X), X, radius=[0.0, 0.01, 0.1, 0.5], orders=(4, 10))
    assert np.all(np.diff(ds.margin_lower_bound.values, axis=1) < 0)
    assert np.all(np.diff(ds.truncated_margin_lower_bound.values, axis=2) < 0)
    assert np.all(np.diff(ds.remainder_bound.values, axis=2) >= 0)
    assert np.all(np.diff(ds.certified_fraction.values, axis=1) <= 0)


@pytest.mark.parametrize("remove_offset", [False, True])
def test_one_case_alone_has_the_same_certificate_and_padding_none(remove_offset):
    data = load_example("JapaneseVowels", "test").select(list(range(6)))
    torch.manual_seed(0)
    preprocessing = Preprocessing.standardise(data.X, data.lengths, remove_offset)
    model = S4D(S4DConfig(d_input=12, n_classes=9, d_model=4, d_state=6, preprocessing=preprocessing))
    op = expand(model, data)
    whole = certify(op, data, radius=[0.0, 0.01], orders=(2, 4))
    assert len(set(data.lengths.tolist())) > 2
    for case in range(6):
        alone = certify(op, data.select([case]), radius=[0.0, 0.01], orders=(2, 4))
        for name in (
            "margin_lower_bound",
            "robust_radius",
            "flipped_radius",
            "remainder_bound",
            "truncated_margin_lower_bound",
            "truncated_radius",
        ):
            np.testing.assert_allclose(alone[name].isel(case=0), whole[name].isel(case=case), rtol=1e-9, atol=1e-11)


def test_radii_count_what_the_scale_says():
    model, X = small_model(seed=1, standard=True)
    op, own = expand(model, X), model.config.preprocessing.scale
    assert own[0] != own[1]
    plain = certify(op, X, radius=[0.1, 0.2], orders=(2,))
    assert plain.radius.attrs["units"] == plain.robust_radius.attrs["units"] == "standard deviations"
    np.testing.assert_allclose(plain.half_width.values, own)
    raw = certify(op, X, radius=[0.3], orders=(2,), scale=1.0)
    assert raw.radius.attrs["units"] == "as in the data"
    assert raw.half_width.values.tolist() == [1.0, 1.0]
    half = certify(op, X, radius=[0.2, 0.4], orders=(2,), scale=[value / 2 for value in own])
    assert half.radius.attrs["units"] == "half widths"
    np.testing.assert_allclose(half.robust_radius.values, 2 * plain.robust_radius.values, rtol=1e-12)
    np.testing.assert_allclose(half.margin_lower_bound.values, plain.margin_lower_bound.values, rtol=1e-9)
    assert "offset" not in plain.attrs["set"]


def test_offsets_that_the_model_removes_are_no_part_of_what_is_certified():
    """An offset added to a case moves nothing, so a box holds more than without: its sides count, its middle does not."""
    model, X = small_model(seed=1, standard=True, remove_offset=True)
    op = expand(model, X)
    ds = certify(op, X, radius=[0.05], orders=(2,))
    assert "own offset" in ds.attrs["set"]
    moved = certify(op, X + 1000.0, radius=[0.05], orders=(2,))
    np.testing.assert_allclose(moved.margin_lower_bound.values, ds.margin_lower_bound.values, rtol=1e-6)


def test_radii_that_nobody_chose_go_from_nearly_all_certified_to_none():
    model, X = small_model(3, seed=5, cases=40)
    ds = certify(expand(model, X), X, radius=None, orders=(1, 2))
    radii, robust = ds.radius.values, ds.robust_fraction.values
    assert radii[0] == 0.0
    assert 4 <= len(radii) <= 14
    assert np.all(np.diff(radii) > 0)
    assert robust[0] == 1.0
    assert robust[1] >= 0.9
    assert robust[-1] == 0.0
    assert robust[-2] > 0.0
    assert all(len(f"{r:.2g}".replace("0", "").replace(".", "").split("e")[0]) <= 2 for r in radii[1:])


def test_orders_default_to_the_operators_own_polynomials():
    model, X = small_model(seed=6)
    X = 2 * X
    own = certify(expand(model, X, family="chebyshev", order=6), X, orders=(2, 6))
    named = certify(expand(model, X), X, orders=(2, 6), family="chebyshev")
    assert own.attrs["family"] == named.attrs["family"] == "chebyshev"
    np.testing.assert_allclose(own.remainder_bound.values, named.remainder_bound.values, rtol=1e-9)
    assert certify(expand(model, X), X, orders=(2, 6)).attrs["family"] == "hermite"


def test_a_case_far_outside_the_training_range_gets_no_truncation_certificate():
    model, X = small_model()
    op = expand(model, X)
    ds = certify(op, 50 * X, orders=(8,))
    assert np.all(ds.certified_order.values == 0)
    assert np.isinf(ds.remainder_bound.values).any()
    assert np.isfinite(ds.margin_lower_bound.values).all()


def test_the_statement_on_all_inputs_holds_the_computed_numbers():
    model, X = small_model(seed=2, standard=True)
    op = expand(model, X)
    ds = certify(op, X, orders=(2,))
    mean, scale = (np.array(getattr(model.config.preprocessing, name))[None, :, None] for name in ("mean", "scale"))
    x = (X.astype(np.float32).astype(float) - mean) / scale
    largest = abs(x).max()
    # The farthest that inputs of this size can drive a pre-activation, from a response measured step by step.
    probe = torch.zeros(3, 24, 2, dtype=torch.float64)
    probe[1, 0, 0] = probe[2, 0, 1] = 1.0
    raw = probe * torch.from_numpy(scale[0].T) + torch.from_numpy(mean[0].T)
    z = model.trace(raw, mode="step").layers[0].z.detach().numpy()
    bias, channels = z[0], z[1:] - z[0]
    bound = abs(bias).max(0) + largest * abs(channels).sum((0, 1))
    seen = abs(
        model.trace(torch.from_numpy(X.astype(np.float32).astype(float)).transpose(1, 2)).layers[0].z.detach()
    ).max()
    widest = ds.robust_radius.values.max()
    assert ds.attrs["global_box"] == (
        f"For all inputs no larger than the largest training value ({largest:.3g} after preprocessing), pre-activations are bounded by "
        f"up to {bound.max():.3g}, where training inputs reach {float(seen):.3g}; no case here is certified that far (largest certified "
        f"half width {widest:.3g})."
    )
    assert widest < largest


def test_a_trained_model_of_15_and_20_hz_is_certified_on_most_cases():
    from oplens import S4DClassifier

    train = noisy_sinusoids(n_cases=60, n_timepoints=64, sampling_rate=64.0, noise=0.3, seed=0)
    op = expand(S4DClassifier(d_model=8, d_state=8, max_epochs=30).fit(train), train)
    ds = certify(op, train, radius=[0.0, 0.02], orders=(2, 8))
    assert float(ds.robust_fraction[1]) >= 0.5
    assert float(ds.certified_fraction.sel(order=8)[1]) >= 0.5


@pytest.mark.slow
def test_selfregulation_is_certified_on_most_cases_and_no_attack_breaks_it(shared_data):
    from oplens import S4DClassifier

    folder = shared_data / "data" / "SelfRegulationSCP1"
    train, test = (read_ts(folder / f"SelfRegulationSCP1_{part}.ts") for part in ("TRAIN", "TEST"))
    op = expand(S4DClassifier(d_model=16, d_state=16, max_epochs=25).fit(train), train)
    ds = certify(op, test, radius=None)
    useful = ds.radius.values > 0
    assert float(ds.robust_fraction.values[useful].max()) >= 0.5
    assert float(ds.certified_fraction.sel(order=2).values[useful].max()) >= 0.5
    some = test.select(list(range(0, test.n_cases, 25)))
    radius = ds.robust_radius.values[::25]
    lowest, x = attacked(op.model, some, radius * (1 - 1e-9), ds.half_width.values, steps=20, restarts=2)
    assert bool((lowest > 0).all())
    agreed = expand(op.model, train, order=2)(x.transpose(1, 2).numpy()).argmax(1) == decisions(op.model, some).numpy()
    at = certify(op, some, radius=list(radius), orders=(2,)).certified_order.values
    assert np.all(agreed[np.diagonal(at) > 0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"radius": -0.1}, "at least 0"),
        ({"radius": float("nan")}, "finite"),
        ({"radius": float("inf")}, "finite"),
        ({"radius": []}, "finite"),
        ({"radius": "wide"}, "finite"),
        ({"radius": [[0.1]]}, "finite"),
        ({"orders": (0, 2)}, "at least 1"),
        ({"orders": (2, 65)}, "orders beyond 64"),
        ({"orders": ()}, "at least 1"),
        ({"orders": (2.5,)}, "whole numbers"),
        ({"orders": (True,)}, "whole numbers"),
        ({"orders": 4}, "whole numbers"),
        ({"scale": -1.0}, "half width"),
        ({"scale": (1.0, 2.0, 3.0)}, "3 half widths for 2 channels"),
        ({"family": "fourier"}, "unknown family"),
    ],
)
def test_what_cannot_be_certified_is_a_sentence(call, words):
    model, X = small_model()
    with pytest.raises(ArgumentError, match=words):
        certify(expand(model, X), X, **call)


def test_a_training_set_too_large_to_keep_is_named(monkeypatch):
    X = np.random.default_rng(0).normal(size=(4, 1, 30))
    monkeypatch.setattr("oplens.explanation.training.TRAINING_LIMIT", 0)
    op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)), X)
    with pytest.raises(ArgumentError, match=r"certify.*not kept.*fewer training cases"):
        certify(op, X)


def test_the_reference_architecture_and_single_classes_are_refused():
    X = np.zeros((2, 2, 10))
    model = S4D(S4DConfig(d_input=2, n_classes=2, d_model=3, d_state=4, architecture="reference"))
    with pytest.raises(ArgumentError, match="gates and norms move"):
        certify(expand(model, X), X)
    with pytest.raises(ArgumentError, match="two classes or more"):
        certify(expand(S4D(S4DConfig(d_input=2, n_classes=1, d_model=3, d_state=4)), X), X)


def test_the_method_is_the_same_work():
    model, X = small_model()
    op = expand(model, X)
    ds = op.certify(X, radius=[0.0, 0.1], orders=(2, 8))
    np.testing.assert_array_equal(ds.remainder_bound, certify(op, X, radius=[0.0, 0.1], orders=(2, 8)).remainder_bound)


def test_the_same_cases_padded_further_have_the_same_hash():
    from oplens.explanation.training import digest

    X = np.random.default_rng(0).normal(size=(3, 2, 9)).astype(np.float32)
    lengths = np.array([9, 4, 7])
    padded = np.concatenate((X, np.zeros((3, 2, 5), dtype=np.float32)), axis=2)
    assert digest(X, lengths) == digest(padded, lengths)
    assert digest(X, lengths) != digest(X, np.array([9, 5, 7]))
