"""Every start of the poles in every architecture through every account, each held to an oracle that shares no code with it.

What an account promises does not depend on where a model's poles started or how they are parametrised. Data sets and golden
checkpoints have their own files beside this one; the tests of each room go deeper into one account.
"""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from account_oracles import Oracle, Weights, respond
from oplens.data import Sinusoid
from oplens.explanation import Bands, CentredLogits, Channels, LayerWaves, Margin, Pairs, Waves, Windows, expand
from oplens.models import S4D, Preprocessing, S4DConfig
from oplens.results import recomputed_completeness

STARTS = {
    "lin": {},
    "inv": {"initialisation": "inv"},
    "real": {"initialisation": "real"},
    "coupled": {"coupling": 2},
    "delayed": {"phase_delay": 0.01},
    "inv, coupled and delayed": {"initialisation": "inv", "coupling": 3, "phase_delay": -0.02},
}
ONE_LAYER = {
    "plain": {},
    "bilinear": {"discretisation": "bilinear"},
    "post": {"architecture": "reference"},
    "pre": {"architecture": "reference", "prenorm": True},
    "polynomial": {"readout": "polynomial", "degree": 3},
}
STACKS = {
    "post 2": {"architecture": "reference", "n_layers": 2},
    "pre 4": {"architecture": "reference", "n_layers": 4, "prenorm": True},
}
EVERY = {**ONE_LAYER, **STACKS}
BANDS = [(0.0, 6.0), (6.0, 25.0)]
CENTRED = np.eye(3) - 1 / 3
PREPROCESSING = Preprocessing((0.3, -0.2), (1.5, 0.8), remove_offset=True)
NAMES = {"channels": ("a", "b"), "classes": ("x", "y", "z"), "sampling_rate": 50.0, "preprocessing": PREPROCESSING}


def make_model(start, architecture, **more):
    torch.manual_seed(len(start) + len(architecture))
    settings = {**NAMES, **STARTS[start], **EVERY[architecture], **more}
    model = S4D(S4DConfig(2, 3, 3, 6, dt_min=0.05, dt_max=0.6, **settings)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("norms."):
                parameter.add_(0.4 * torch.randn_like(parameter))
            elif name == "polynomial":
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.requires_grad_(False)


def make_cases(seed, lengths):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.6, 1.3, size=(2, n)) for n in lengths]


TRAIN, TEST = make_cases(0, (29, 23, 29, 17)), make_cases(1, (27, 19, 22))


class PoleWeights(Weights):
    """The oracles' weights with poles as the layer states them: they may have parameters of another kind."""

    def __init__(self, model):
        super().__init__(model)
        layer = model.layer(0)
        pole, dt = layer.poles().numpy(), layer.dt().numpy()[:, None]
        C = self["s4_layers.0.kernel.C"][..., 0] + 1j * self["s4_layers.0.kernel.C"][..., 1]
        if self.config.discretisation == "zoh":
            a, b = np.exp(pole * dt), np.expm1(pole * dt) / pole
        else:
            a, b = (1 + pole * dt / 2) / (1 - pole * dt / 2), dt / (1 - pole * dt / 2)
        self.discrete = a, b, C, self["s4_layers.0.D"]

    def system(self, layer=0):
        assert layer == 0
        return self.discrete


def oracle_of(model, family, order, monkeypatch):
    monkeypatch.setattr("account_oracles.Weights", PoleWeights)
    if model.config.readout == "polynomial":
        a = model.polynomial.numpy()

        def derivative(z, k):
            rows = [np.polynomial.polynomial.polyder(row, k) for row in a]
            return np.stack([np.polynomial.polynomial.polyval(z[h], row) for h, row in enumerate(rows)])

        monkeypatch.setattr("account_oracles.derivative", derivative)
        monkeypatch.setattr("account_oracles.gelu", lambda z: derivative(z, 0))
    return Oracle(model, TRAIN, family, order, CENTRED)


def close(found, expected, scale, tolerance=1e-10):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * scale


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_every_mode_of_running_is_the_recurrence(start, architecture):
    model = make_model(start, architecture)
    lengths = torch.tensor([x.shape[1] for x in TEST])
    padded = torch.zeros(len(TEST), int(lengths.max()), 2, dtype=torch.float64)
    for case, x in enumerate(TEST):
        padded[case, : x.shape[1]] = torch.from_numpy(x.T)
    traces = [model.trace(padded, lengths, mode) for mode in ("convolution", "recurrence", "step")]
    for index in range(model.config.n_layers):
        system = model.layer(index).system()
        values = tuple(v.numpy() for v in (system.a, system.b, system.C, system.D))
        waves, skip = respond(values, traces[0].layers[index].u.numpy().transpose(0, 2, 1))
        expected = (waves.sum(2) + skip).transpose(0, 2, 1)
        for trace in traces:
            close(trace.layers[index].z.numpy(), expected, np.abs(expected).max())
    for trace in traces[1:]:
        close(trace.logits.numpy(), traces[0].logits.numpy(), float(traces[0].logits.abs().max()))
    for case, x in enumerate(TEST):
        alone = model(torch.from_numpy(x.T.copy())[None])
        close(traces[0].logits[case : case + 1].numpy(), alone.numpy(), float(alone.abs().max()), 1e-12)


ACCOUNTS = [
    (Waves(), {"waves": True}, "hermite", 3),
    (Waves(), {"waves": True}, "taylor", 2),
    ((Channels(), Bands(BANDS)), {"channels": [0, 1], "bands": BANDS}, "hermite", 2),
    ((Waves(), Windows(2)), {"waves": True, "windows": 2}, "hermite", 2),
]


@pytest.mark.parametrize("account", ACCOUNTS, ids=lambda a: f"{a[0]!r} {a[2]} {a[3]}")
@pytest.mark.parametrize("architecture", ONE_LAYER)
@pytest.mark.parametrize("start", STARTS)
def test_orders_of_one_layer(start, architecture, account, monkeypatch):
    by, slow, family, order = account
    model = make_model(start, architecture)
    ds = expand(model, TRAIN, family=family, order=order).explain(TEST, by=by, target=CentredLogits())
    oracle = oracle_of(model, family, order, monkeypatch)
    scale = float(ds.sum_abs_terms.max())
    for case, raw in enumerate(TEST):
        found, _ = oracle.terms(raw, slow)
        for name in ("share", "full_share"):
            axis = 1 if name == "share" else 0
            cells = ds[name].isel(case=case).values
            close(cells, found[name].reshape(cells.shape), scale)
            assert cells.shape[axis] == 3
        for name in ("source_share", "order_0", "remainder", "source_full_share", "full_constant", "target"):
            close(ds[name].isel(case=case).values, found[name], scale)


@pytest.mark.parametrize("architecture", ONE_LAYER)
@pytest.mark.parametrize("start", STARTS)
def test_pairs_of_one_layer(start, architecture, monkeypatch):
    model = make_model(start, architecture)
    ds = expand(model, TRAIN, order=2).explain(TEST, by=Pairs(Waves()), target=CentredLogits())
    oracle = oracle_of(model, "hermite", 2, monkeypatch)
    for case, raw in enumerate(TEST):
        cells, names = oracle.pairs(raw, {"waves": True})
        n = cells.shape[2] - len(names)
        expected = np.moveaxis(cells[:, :, :n, :n], -1, 2)
        close(ds.pair_share.isel(case=case).values, expected, float(np.abs(cells).sum()))


PLAIN = [name for name in ONE_LAYER if EVERY[name].get("architecture") != "reference"]


def logits_of(model, x):
    """Of one raw case (d, L), alone."""
    return model(torch.from_numpy(np.ascontiguousarray(x.T))[None])[0].detach().numpy()


def bare(model):
    """The same network on preprocessed input."""
    model = copy.deepcopy(model)
    model.config = dataclasses.replace(model.config, preprocessing=Preprocessing.identity(2))
    return model


def prepared(x):
    """Preprocessed input of a raw case (d, L)."""
    centred = x - x.mean(-1, keepdims=True)
    return (centred - np.array(PREPROCESSING.mean)[:, None]) / np.array(PREPROCESSING.scale)[:, None]


@pytest.mark.parametrize("architecture", STACKS)
@pytest.mark.parametrize("start", STARTS)
def test_accounts_of_stacks(start, architecture):
    model = make_model(start, architecture)
    op = expand(model, TRAIN)
    for by in (LayerWaves(), (Channels(), Bands(BANDS)), Windows(3)):
        ds = op.explain(TEST, by=by, target=CentredLogits())
        assert recomputed_completeness(ds) < 1e-10
        for case, raw in enumerate(TEST):
            close(ds.target.isel(case=case).values, CENTRED @ logits_of(model, raw), float(ds.sum_abs_terms.max()))
            one = op.explain(TEST[case : case + 1], by=by, target=CentredLogits())
            for name in ("layer_share", "full_share"):
                if name in ds:
                    close(one[name].isel(case=0).values, ds[name].isel(case=case).values, float(ds.sum_abs_terms.max()))


def skew(weights, displacement, sites):
    """Weight between two sites of a chain: further than half a ring is nearer across the seam, where the sign turns."""
    half = sites // 2
    if -half <= displacement < half:
        return weights[displacement]
    return -weights[displacement - sites if displacement >= half else displacement + sites]


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_rings_are_the_poles_and_give_the_model_back(start, architecture):
    model = make_model(start, architecture)
    layer = model.config.n_layers - 1
    ds = expand(model, TRAIN).ring(TEST, features=[0, 2], layer=layer)
    assert float(ds.ring_residual.max()) < 1e-10
    steps = model.layer(layer).system()
    for k, feature in enumerate((0, 2)):
        n = ds.sizes["site"]
        at = dict(zip(ds.displacement.values.tolist(), ds.coupling.values[k], strict=True))
        W = np.array([[skew(at, j - i, n) for i in range(n)] for j in range(n)])
        found = np.exp(np.linalg.eigvals(W) * float(ds.dt[k]))
        a = steps.a[feature].numpy()
        for pole in np.concatenate((a, a.conj())):
            assert np.abs(found - pole).min() < 1e-7  # pairs of equal real poles are determined to the root of eps only


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_rays_meet_the_model_and_add_up(start, architecture):
    model = make_model(start, architecture)
    ds = expand(model, TRAIN).ray(TEST, order=6, target=Margin("z", "x"))
    total = ds.ray_order.sum("order") + ds.remainder
    assert float(abs(total - ds.target).max()) < 1e-10 * float(ds.sum_abs_terms.max())
    steps = sum(x.shape[1] for x in TRAIN)
    origin = sum(x.astype(np.float32).sum(-1, dtype=float) for x in TRAIN)[:, None] / steps
    for case, raw in enumerate(TEST):
        course = ds.model_course.isel(case=case)
        for eps, value in zip(ds.position.values, course.values, strict=True):
            logits = logits_of(model, origin + eps * (raw - origin))
            assert abs(value - (logits[2] - logits[0])) < 1e-10 * abs(logits).max()
        nodes = ds.isel(case=case, position=np.flatnonzero(ds.node.values))
        close(nodes.expansion_course.values, nodes.model_course.values, float(abs(nodes.model_course).max()))


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", ["inv", "coupled"])
def test_changes_do_to_the_running_model_what_is_said_of_them(start, architecture):
    """Models without training can be out of reach of a flip: then that is said."""
    model = make_model(start, architecture)
    ds = expand(model, TRAIN).steer(TEST[:1])
    changed = TEST[0] + ds.delta.values[0]
    before, after = logits_of(model, TEST[0]), logits_of(model, changed)
    to, against = (model.config.classes.index(str(ds[name].values[0])) for name in ("to", "against"))
    assert against == before.argmax()
    assert abs(float(ds.achieved_target[0]) - (after[to] - after[against])) < 1e-10 * abs(after).max()
    assert bool(ds.flipped[0]) == (after.argmax() == to)
    assert bool(ds.reached[0]) == (after[to] >= after[against])
    assert after[to] - after[against] > before[to] - before[against]


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_ablated_channels_are_the_model_without_them(start, architecture):
    model = make_model(start, architecture)
    ds = expand(model, TRAIN).ablate(TEST, by=Channels(), target=CentredLogits())
    network = bare(model)
    for case, raw in enumerate(TEST):
        x = prepared(raw)
        for rank, member in enumerate(ds.member.values.tolist()):
            without = x * (np.array(NAMES["channels"])[:, None] != member)
            change = CENTRED @ (logits_of(network, without) - logits_of(network, x))
            close(ds.actual_change.isel(case=case, rank=rank).values, change, float(abs(ds.actual_change).max()))


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_a_smaller_model_of_all_waves_is_the_model(start, architecture):
    model = make_model(start, architecture)
    smaller = expand(model, TRAIN).reduce(3 * 3 * model.config.n_layers)
    for raw in TEST:
        close(logits_of(smaller, raw), logits_of(model, raw), float(abs(logits_of(model, raw)).max()))


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("start", STARTS)
def test_an_operator_survives_its_folder(start, architecture, tmp_path):
    op = expand(make_model(start, architecture), TRAIN)
    op.save(tmp_path)
    assert type(op).load(tmp_path) == op


@pytest.mark.parametrize("architecture", PLAIN)
@pytest.mark.parametrize("start", STARTS)
def test_certificates_hold_at_corners_of_their_boxes(start, architecture):
    model, rng = make_model(start, architecture), np.random.default_rng(3)
    ds = expand(model, TRAIN, order=4).certify(TEST, radius=[0.01, 0.1], orders=(1, 4))
    assert int((ds.robust_radius > 0).sum()) > 0
    half = ds.half_width.values
    for case, raw in enumerate(TEST):
        before = logits_of(model, raw)
        for k, radius in enumerate((0.01, 0.1)):
            corners = raw + radius * half[:, None] * rng.choice([-1.0, 1.0], size=(40, *raw.shape))
            after = model(torch.from_numpy(corners).transpose(1, 2)).numpy()
            rest = np.delete(after[:, [before.argmax()]] - after, before.argmax(), 1)
            assert rest.min() >= float(ds.margin_lower_bound[case, k]) - 1e-12
            assert not bool(ds.robust[case, k]) or rest.min() > 0


@pytest.mark.parametrize("architecture", PLAIN)
@pytest.mark.parametrize("start", STARTS)
def test_signals_in_noise_are_predicted_as_simulated(start, architecture):
    model, rng = make_model(start, architecture), np.random.default_rng(4)
    signal, noise = Sinusoid(7.0, 24, 50.0, amplitude=(1.0, 0.5)), (0.6, 0.9)
    ds = expand(model, TRAIN).predict(signal, noise, target=Margin("y", "x"))
    cases = signal.values(2) + np.array(noise)[:, None] * rng.normal(size=(6000, 2, 24))
    logits = model(torch.from_numpy(cases).transpose(1, 2)).numpy()
    margin = logits[:, 1] - logits[:, 0]
    assert abs(margin.mean() - float(ds.target_mean)) < 4 * margin.std() / np.sqrt(len(margin))
    spread = np.sqrt(((margin - margin.mean()) ** 4).mean() - margin.var() ** 2) / np.sqrt(len(margin))
    assert float(ds.target_variance) - 4 * spread < margin.var() < float(ds.target_variance_bound) + 4 * spread


@pytest.mark.parametrize("architecture", PLAIN)
@pytest.mark.parametrize("start", STARTS)
def test_the_operator_alone_is_its_truncated_logits(start, architecture):
    op = expand(make_model(start, architecture), TRAIN, order=3)
    truncated = op.explain(TEST, by=Channels()).truncated_logits.isel(order=-1).values
    close(op(TEST), truncated, float(np.abs(truncated).max()))
