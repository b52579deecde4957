"""Ablation against plain loops and against the model run on data in which the part is missing."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation import Bands, CentredLogits, Channels, LayerWaves, Margin, Pairs, Waves, Windows
from oplens.explanation.interventions.ablation import ablate
from oplens.models import Preprocessing

MEAN, SCALE = np.array([0.3, -0.2]), np.array([0.5, 2.0])


def model_of(seed=0, n_classes=2, cases=5, length=18, **more):
    torch.manual_seed(seed)
    preprocessing = Preprocessing(tuple(MEAN), tuple(SCALE))
    config = S4DConfig(2, n_classes, 4, 6, dt_min=0.05, dt_max=0.5, preprocessing=preprocessing, **more)
    model = S4D(config).double()
    with torch.no_grad():
        model.decoder.weight *= 4
    return model, np.random.default_rng(seed).normal(size=(cases, 2, length))


def run(model, X):
    with torch.no_grad():
        return model(torch.from_numpy(X).transpose(1, 2)).numpy()


def arrays(model):
    system = model.layer(0).system()
    values = (system.a, system.b, system.C, system.D, model.encoder.weight, model.encoder.bias)
    return [value.detach().numpy() for value in values]


def looped(model, X):
    """z (cases, d_model, length) and waves mu (cases, d_model, P, length) driven by the input alone, step by step."""
    a, b, C, D, E, e = arrays(model)
    x = (X - MEAN[:, None]) / SCALE[:, None]
    u = np.einsum("hd,bdl->bhl", E, x)
    state, biased = np.zeros((len(X), *a.shape), complex), np.zeros(a.shape, complex)
    z, mu = np.zeros(u.shape), np.zeros((*u.shape[:2], a.shape[1], u.shape[2]))
    for t in range(X.shape[2]):
        state = a * state + b * u[:, :, t, None]
        biased = a * biased + b * e[:, None]
        mu[..., t] = 2 * (C * state).real
        z[..., t] = mu[..., t].sum(-1) + D * u[..., t] + 2 * (C * biased).real.sum(-1) + D * e
    return z, mu


def gelu(z):
    return 0.5 * z * np.vectorize(math.erfc)(-z / math.sqrt(2))


def read_out(model, pooled):
    return pooled @ model.decoder.weight.detach().numpy().T + model.decoder.bias.detach().numpy()


def hermite(op, z, order):
    """The readout polynomial cut after `order`, blocks H_0..H_3 by their definition."""
    w, v = z - op.expansion.centre.numpy()[:, None], op.expansion.variance.numpy()[:, None]
    blocks = [np.ones_like(w), w, w**2 - v, w**3 - 3 * v * w]
    return sum(op.expansion.coefficients.numpy()[:, k, None] * blocks[k] for k in range(order + 1))


@pytest.mark.parametrize("keep", [0.0, 0.3, -1.0])
def test_a_wave_taken_out_is_what_a_plain_recurrence_without_it_says(keep):
    model, X = model_of()
    op = expand(model, X, order=3)
    named = [(0, 2), (3, 0), (1, 1)]
    ds = ablate(op, X, by=Waves(), parts=named, keep=keep)
    z, mu = looped(model, X)
    np.testing.assert_allclose(read_out(model, gelu(z).mean(-1)), run(model, X), atol=1e-12)
    for rank, (h, n) in enumerate(named):
        without = z.copy()
        without[:, h] -= (1 - keep) * mu[:, h, n]
        change = read_out(model, gelu(without).mean(-1)) - read_out(model, gelu(z).mean(-1))
        np.testing.assert_allclose(ds.actual_change[:, rank], change[:, 1] - change[:, 0], atol=1e-11)
        for order in (1, 2, 3):
            cut = read_out(model, (hermite(op, without, order) - hermite(op, z, order)).mean(-1)) - read_out(
                model, 0 * z[..., 0]
            )
            np.testing.assert_allclose(ds.predicted_change.sel(order=order)[:, rank], cut[:, 1] - cut[:, 0], atol=1e-11)
    assert ds.member.values.tolist() == ["feature 0 · wave 2", "feature 3 · wave 0", "feature 1 · wave 1"]


def without_part(X, kind, index, keep, rate):
    """Raw data in which a part of the preprocessed input is scaled to `keep`."""
    x = (X - MEAN[:, None]) / SCALE[:, None]
    part = np.zeros_like(x)
    if kind == "channel":
        part[:, index] = x[:, index]
    elif kind == "window":
        edges = np.ceil(np.arange(4) * X.shape[2] / 3).astype(int)
        part[..., edges[index] : edges[index + 1]] = x[..., edges[index] : edges[index + 1]]
    else:
        low, high = ((0, 3), (3, 9))[index]
        frequency = np.fft.rfftfreq(X.shape[2], 1 / rate)
        inside = (frequency >= low) & ((frequency < high) | (high >= rate / 2))
        part = np.fft.irfft(np.fft.rfft(x) * inside, n=X.shape[2])
    return (x - (1 - keep) * part) * SCALE[:, None] + MEAN[:, None]


KINDS = {"channel": Channels(), "band": Bands([(0, 3), (3, 9)]), "window": Windows(3)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "more", [{}, {"architecture": "reference", "prenorm": True}, {"architecture": "reference", "n_layers": 2}]
)
def test_parts_of_the_input_are_taken_out_of_the_running_model(kind, more):
    model, X = model_of(1, sampling_rate=18.0, **more)
    op = expand(model, X)
    ds = ablate(op, X, by=KINDS[kind], keep=0.25)
    before = run(model, X)
    for rank in range(ds.sizes["rank"]):
        changed = without_part(X, kind, rank, 0.25, 18.0)
        change = run(model, changed) - before
        np.testing.assert_allclose(ds.actual_change[:, rank], change[:, 1] - change[:, 0], atol=1e-11)
        if not more:
            cut = op(changed) - op(X)
            np.testing.assert_allclose(ds.predicted_change[1, :, rank], cut[:, 1] - cut[:, 0], atol=1e-11)
    assert ("predicted_change" in ds) == (not more)
    assert ds.sizes["rank"] == {"channel": 2, "band": 2, "window": 3}[kind]


def test_shares_foretell_by_what_is_removed_of_them():
    model, X = model_of(2)
    op = expand(model, X)
    explained = op.explain(X, by=(Channels(), Windows(3)))
    ds = ablate(op, X, by=(Channels(), Windows(3)), parts=[("channel 2", 1), (0, 2)], keep=0.4)
    for rank, (channel, window) in enumerate(((1, 1), (0, 2))):
        full = explained.full_share[:, channel, window]
        np.testing.assert_allclose(ds.share_change[:, rank], -0.6 * full, atol=1e-14)
        orders = explained.share[:, :, channel, window]
        np.testing.assert_allclose(ds.share_change_by_order[:, :, rank], -0.6 * orders, atol=1e-14)
    assert ds.member.values.tolist() == ["channel 2 · window 1", "channel 1 · window 2"]
    actual, share = ds.actual_change.values, ds.share_change.values
    assert float(ds.share_r2) == pytest.approx(1 - ((actual - share) ** 2).sum() / (actual**2).sum())
    for order in (0, 1):
        predicted = ds.predicted_change.values[order]
        assert float(ds.change_r2[order]) == pytest.approx(1 - ((actual - predicted) ** 2).sum() / (actual**2).sum())


@pytest.mark.parametrize("prenorm", [False, True])
def test_waves_of_a_reference_layer_let_gates_and_norms_move(prenorm):
    model, X = model_of(3, architecture="reference", prenorm=prenorm)
    op = expand(model, X)
    ds = ablate(op, X, parts=[(2, 1)])
    assert "predicted_change" not in ds
    a, b, C, _, E, e = arrays(model)
    x = (X - MEAN[:, None]) / SCALE[:, None]
    encoded = np.einsum("hd,bdl->bhl", E, x) + e[:, None]
    norm, layer = model.norm(0), model.layer(0)
    gamma, beta = (v.detach().numpy()[:, None] for v in (norm.weight, norm.bias))
    variance = encoded.var(1, keepdims=True)
    u = E @ x if not prenorm else gamma * (E @ x - (E @ x).mean(1, keepdims=True)) / np.sqrt(variance + norm.eps)
    state, mu = np.zeros((len(X), a.shape[1]), complex), np.zeros((len(X), X.shape[2]))
    for t in range(X.shape[2]):
        state = a[2] * state + b[2] * u[:, 2, t, None]
        mu[:, t] = 2 * (C[2, 1] * state[:, 1]).real

    def logits(z):
        weight, bias = (v.detach().numpy() for v in (layer.convolution.weight[..., 0], layer.convolution.bias))
        halves = np.einsum("kh,bhl->bkl", weight, gelu(z)) + bias[:, None]
        hidden = encoded + halves[:, :4] / (1 + np.exp(-halves[:, 4:]))
        if not prenorm:
            centred = hidden - hidden.mean(1, keepdims=True)
            hidden = gamma * centred / np.sqrt(hidden.var(1, keepdims=True) + norm.eps) + beta
        return read_out(model, hidden.mean(-1))

    z = model.trace(torch.from_numpy(X).transpose(1, 2), mode="step").layers[0].z.detach().numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(logits(z), run(model, X), atol=1e-10)
    without = z.copy()
    without[:, 2] -= mu
    change = logits(without) - logits(z)
    np.testing.assert_allclose(ds.actual_change[:, 0], change[:, 1] - change[:, 0], atol=1e-10)
    assert float(abs(ds.actual_change).max()) > 1e-3


def test_the_largest_parts_are_taken_when_none_are_named():
    model, X = model_of(4)
    op = expand(model, X)
    size = abs(op.explain(X).full_share).mean("case").values
    ds = ablate(op, X, parts=5)
    largest = [np.unravel_index(index, size.shape) for index in np.argsort(-size.ravel())[:5]]
    assert ds.member.values.tolist() == [f"feature {h} · wave {n}" for h, n in largest]
    assert ablate(op, X).sizes["rank"] == 12
    assert ds.attrs["parts"] == "5 of 12, one at a time"


def test_decisions_without_a_part_are_counted():
    model, X = model_of(5, cases=40)
    op = expand(model, X)
    y = [("class 0", "class 1")[k % 2] for k in range(40)]
    ds = ablate(op, X, y, by=Channels())
    before = run(model, X)
    for rank in range(2):
        after = run(model, without_part(X, "channel", rank, 0.0, 1.0)).argmax(1)
        assert float(ds.agreement[rank]) == (after == before.argmax(1)).mean()
        assert float(ds.accuracy[rank]) == (after == np.arange(40) % 2).mean()
    assert float(ds.model_accuracy) == (before.argmax(1) == np.arange(40) % 2).mean()
    assert float(ds.agreement.min()) < 1
    assert "accuracy" not in ablate(op, X, by=Channels())


def test_class_centred_logits_and_margins_agree():
    model, X = model_of(6, n_classes=3)
    op = expand(model, X)
    centred = ablate(op, X, by=Channels(), target=CentredLogits())
    margin = ablate(op, X, by=Channels(), target=Margin("class 2", "class 0"))
    for name in ("actual_change", "predicted_change", "share_change"):
        gap = centred[name].sel({"class": "class 2"}) - centred[name].sel({"class": "class 0"})
        np.testing.assert_allclose(gap.transpose(*margin[name].dims), margin[name], atol=1e-12)
    assert "class" not in margin.coords


def test_cases_of_unequal_length_and_everything_described():
    model, X = model_of(7)
    cases = [X[0], X[1][:, :11], X[2][:, :5]]
    op = expand(model, cases)
    for by in (Waves(), Windows(3), Bands([(0, 0.2)])):
        together = ablate(op, cases, by=by, parts=2)
        for k, case in enumerate(cases):
            single = ablate(op, [case], by=by, parts=_named(together, by))
            np.testing.assert_allclose(together.actual_change[k], single.actual_change[0], atol=1e-11)
            np.testing.assert_allclose(together.predicted_change[:, k], single.predicted_change[:, 0], atol=1e-11)
        for name, variable in together.data_vars.items():
            assert {"units", "long_name", "claim"} <= set(variable.attrs), name
            assert not bool(np.isnan(variable).any()), name


def _named(ds, by):
    """Members of a result as the tuples that name them."""
    if isinstance(by, Bands):
        return [0]
    return [tuple(int(word.split()[-1]) for word in member.split(" · ")) for member in ds.member.values]


REFUSED = [
    ({"by": LayerWaves()}, "waves of stacks"),
    ({"by": Pairs(Waves())}, "a pair is no part"),
    ({"by": (Waves(), Channels())}, "not products of the two"),
    ({"parts": 0}, "as a list, or how many"),
    ({"parts": True}, "as a list, or how many"),
    ({"parts": "Cz"}, "as a list, or how many"),
    ({"parts": []}, "at least one part"),
    ({"parts": [(0, 9)]}, "no wave 9"),
    ({"parts": [3]}, r"give \(feature, wave\)"),
    ({"by": Channels(), "parts": ["Cz"]}, "no channel 'Cz'; there are channel 1, channel 2"),
    ({"keep": math.nan}, "finite number"),
    ({"keep": "all"}, "finite number"),
    ({"memory_limit": 10}, "above the limit"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_be_ablated_is_refused_with_a_sentence(options, sentence):
    model, X = model_of()
    with pytest.raises(ArgumentError, match=sentence):
        ablate(expand(model, X), X, **options)


def test_labels_that_the_model_has_no_logit_for_would_count_as_errors():
    model, X = model_of()
    with pytest.raises(ArgumentError, match=r"ablate\(y=...\): there are labels strange, the model knows"):
        ablate(expand(model, X), X, ["strange"] * len(X))


def test_one_class_is_nothing_to_ablate():
    model, X = model_of(n_classes=1)
    with pytest.raises(ArgumentError, match="one class"):
        ablate(expand(model, X), X)


def test_waves_of_a_stack_are_refused_with_what_can_be_had():
    model, X = model_of(architecture="reference", n_layers=2)
    with pytest.raises(ArgumentError, match="ablate channels, bands or windows"):
        ablate(expand(model, X), X)
