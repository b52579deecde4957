"""Every start of the poles in every architecture through every account, each held to an oracle that shares no code with it.

What an account promises does not depend on where a model's poles started or how they are parametrised. Data sets and golden
checkpoints have their own files beside this one; the tests of each room go deeper into one account.
"""

import numpy as np
import pytest
import torch

from account_oracles import Oracle, Weights, respond
from oplens.explanation import Bands, CentredLogits, Channels, Pairs, Waves, Windows, expand
from oplens.models import S4D, Preprocessing, S4DConfig

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
