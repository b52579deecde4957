"""Accounts of stacks against automatic differentiation of a network written here, its gates, scales and GELU factors detached."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from oplens.errors import ArgumentError
from oplens.explanation import Bands, CentredLogits, Channels, LayerWaves, Margin, Waves, Windows, expand
from oplens.explanation.accounts.stacks import _wave_products
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint
from oplens.operators import diagonal

RATE = 40.0


def make_model(n_layers, prenorm, seed=0, n_classes=3):
    torch.manual_seed(seed)
    config = S4DConfig(
        2, n_classes, 4, 6, n_layers, "reference", prenorm, dt_min=0.05, dt_max=0.6, channels=("a", "b"), classes=tuple("xyz"[:n_classes]),
        sampling_rate=RATE, preprocessing=Preprocessing((0.2, -0.4), (1.3, 0.7), remove_offset=seed % 2 == 1),
    )  # fmt: skip
    model = S4D(config)
    for norm in model.norms:
        torch.nn.init.normal_(norm.weight, 1, 0.5)
        torch.nn.init.normal_(norm.bias)
    return model.double()


def make_cases(seed, lengths=(31, 17, 24, 31)):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.5, 1.2, size=(2, n)) for n in lengths]


class Network:
    """One case through the reference stack by its formulas; `frozen` detaches what the conditional accounts freeze."""

    def __init__(self, model):
        self.config = model.config
        self.p = {name: value.detach().double() for name, value in model.state_dict().items()}

    def preprocess(self, raw):
        p = self.config.preprocessing
        if p.remove_offset:
            raw = raw - raw.mean(-1, keepdims=True)
        return torch.from_numpy((raw - np.array(p.mean)[:, None]) / np.array(p.scale)[:, None]).T  # (L, d)

    def response(self, layer, C, length):
        """Impulse response (H, L) with the weights C (H, P, 2), real pairs."""
        prefix = f"s4_layers.{layer}.kernel."
        pole = -torch.exp(self.p[prefix + "log_A_real"]) + 1j * self.p[prefix + "A_imag"]
        x = pole * torch.exp(self.p[prefix + "log_dt"])[:, None]
        powers = torch.exp(x[..., None] * torch.arange(length))
        return 2 * torch.einsum("hp,hpl->hl", torch.view_as_complex(C) * (torch.exp(x) - 1) / pole, powers).real

    def norm(self, layer, hidden, frozen):
        centred = hidden - hidden.mean(-1, keepdim=True)
        scale = torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
        scale = scale.detach() if frozen else scale
        return self.p[f"norms.{layer}.weight"] * centred / scale + self.p[f"norms.{layer}.bias"]

    def __call__(self, x, Cs, Ds, frozen=True, cut_inputs=False, stream_only=None):
        """Logits of x (L, d); `cut_inputs` detaches what enters every layer's systems, so that waves count in their own layer only."""
        p, length = self.p, len(x)
        hidden = x @ p["encoder.weight"].T + p["encoder.bias"]
        for layer, (C, D) in enumerate(zip(Cs, Ds, strict=True)):
            u = self.norm(layer, hidden, frozen) if self.config.prenorm else hidden
            u = u.detach() if cut_inputs else u
            response = self.response(layer, C, length)
            lag = torch.arange(length)[:, None] - torch.arange(length)[None]
            toeplitz = torch.where(lag >= 0, response[:, lag.clamp(min=0)], 0.0)
            z = torch.einsum("hij,jh->ih", toeplitz, u) + D * u
            phi = torch.special.ndtr(z)
            active = z * (phi.detach() if frozen else phi)
            weight, bias = (
                p[f"s4_layers.{layer}.output_linear.0.weight"][..., 0],
                p[f"s4_layers.{layer}.output_linear.0.bias"],
            )
            mixed, gate = (active @ weight.T + bias).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            hidden = hidden + mixed * (gate.detach() if frozen else gate)
            if not self.config.prenorm:
                hidden = self.norm(layer, hidden, frozen)
        return hidden.mean(0) @ p["decoder.weight"].T + p["decoder.bias"]

    def parameters(self):
        layers = range(self.config.n_layers)
        Cs = [self.p[f"s4_layers.{i}.kernel.C"].clone().requires_grad_() for i in layers]
        return Cs, [self.p[f"s4_layers.{i}.D"].clone().requires_grad_() for i in layers]


def layer_account(network, raw, direction):
    """Shares of waves (layer, H, P), skips (layer, H) and the encoder's stream, by gradients: each is linear in what it is differentiated by."""
    x = network.preprocess(raw).requires_grad_()
    Cs, Ds = network.parameters()
    logit = network(x, Cs, Ds, cut_inputs=True) @ direction
    grads = torch.autograd.grad(logit, [*Cs, *Ds, x])
    n = len(Cs)
    waves = torch.stack([(C * g).sum(-1) for C, g in zip(Cs, grads[:n], strict=True)])
    skips = torch.stack([D * g for D, g in zip(Ds, grads[n : 2 * n], strict=True)])
    return waves.detach().numpy(), skips.detach().numpy(), float((x * grads[-1]).sum().detach()), float(logit.detach())


def directions_of(target, classes):
    return torch.from_numpy(target.directions(classes))


def check_layers(model, cases, target, tolerance=1e-10):
    ds = expand(model, cases).explain(cases, by=LayerWaves(), target=target)
    network = Network(model)
    directions = directions_of(target, model.config.classes)
    for index, raw in enumerate(cases):
        for t, direction in enumerate(directions):
            waves, skips, stream, logit = layer_account(network, raw, direction)
            at = ds.isel(case=index) if not target.per_class else ds.isel({"case": index, "class": t})
            scale = float(at["sum_abs_terms"])
            assert abs(float(at["target"]) - logit) < tolerance * scale
            assert np.abs(at["layer_share"].values - waves).max() < tolerance * scale
            assert np.abs(at["layer_skip_share"].values - skips).max() < tolerance * scale
            assert abs(float(at["residual_share"]) - stream) < tolerance * scale
            constant = logit - waves.sum() - skips.sum() - stream
            assert abs(float(at["constant"]) - constant) < tolerance * scale
            absolute = np.abs(waves).sum() + np.abs(skips).sum() + abs(stream) + abs(constant)
            assert abs(scale - absolute) < tolerance * scale
            assert float(at["cancellation_ratio"]) == pytest.approx(absolute / abs(logit), rel=1e-8)
    return ds


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
def test_layer_waves_equal_gradients(n_layers, prenorm):
    ds = check_layers(make_model(n_layers, prenorm), make_cases(0), CentredLogits())
    assert ds["layer_share"].dims == ("case", "class", "layer", "feature", "wave")
    check_layers(make_model(n_layers, prenorm, seed=1), make_cases(1), Margin("z", "x"))


def test_layer_waves_of_the_plain_architecture_are_what_z_phi_gives():
    torch.manual_seed(0)
    model = S4D(S4DConfig(2, 2, 3, 4, dt_min=0.1, dt_max=0.6)).double()
    cases = make_cases(2)
    op = expand(model, cases, family="taylor", order=1)
    ds, orders = op.explain(cases, by=LayerWaves()), op.explain(cases, by=Waves())
    # Driven by the layer's whole input, encoder bias included: another split than by=Waves(), the same model.
    assert float(abs(ds["completeness_residual"]).max()) < 1e-13
    assert float(abs(ds["residual_share"]).max()) == 0
    shares = ds["layer_share"].isel(layer=0)
    skips = float(ds["layer_skip_share"].isel(case=0).sum())
    sources = orders["source_full_share"].isel(case=0)
    total = float(shares.isel(case=0).sum()) + skips
    assert total == pytest.approx(float(orders["full_share"].isel(case=0).sum() + sources.sum()), rel=1e-10)


PARTITIONS = [
    (Channels(), {"channels": [0, 1]}),
    (Channels(("b",)), {"channels": [1]}),
    (Bands([(0.0, 6.0), (6.0, 20.0)]), {"bands": [(0.0, 6.0), (6.0, 20.0)]}),
    (Windows(3), {"windows": 3}),
    ((Channels(), Bands([(2.0, 7.0)]), Windows(2)), {"channels": [0, 1], "bands": [(2.0, 7.0)], "windows": 2}),
]


class _Weights:
    def __init__(self, config):
        self.config = config


def split_of(x, by, config):
    """The slow split of tests/account_oracles.py, which needs a case's x (d, L) and the sampling rate only."""
    from account_oracles import Case

    case = Case.__new__(Case)
    case.x, case.length, case.w = x.detach().numpy().T, len(x), _Weights(config)
    return case.split(by)


def check_inputs(model, cases, by, slow, target, tolerance=1e-10):
    ds = expand(model, cases).explain(cases, by=by, target=target)
    network = Network(model)
    for index, raw in enumerate(cases):
        for t, direction in enumerate(directions_of(target, model.config.classes)):
            x = network.preprocess(raw).requires_grad_()
            logit = network(x, *network.parameters()) @ direction
            gradient = torch.autograd.grad(logit, x)[0].numpy().T
            parts, rest = split_of(x, slow, model.config)
            at = ds.isel(case=index) if not target.per_class else ds.isel({"case": index, "class": t})
            shares = (parts * gradient).sum((1, 2)).reshape(at["full_share"].shape)
            scale = float(at["sum_abs_terms"])
            assert abs(float(at["target"]) - float(logit.detach())) < tolerance * scale
            assert np.abs(at["full_share"].values - shares).max() < tolerance * scale
            left = float((rest * gradient).sum())
            found = at["source_full_share"].sum() if "source_full_share" in at else 0.0
            assert abs(float(found) - left) < tolerance * scale
            assert abs(float(at["full_constant"]) - (float(logit.detach()) - shares.sum() - left)) < tolerance * scale
    return ds


@pytest.mark.parametrize(("by", "slow"), PARTITIONS)
@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("n_layers", [2, 3, 4])
def test_input_parts_equal_frozen_gradient_times_input(n_layers, prenorm, by, slow):
    check_inputs(make_model(n_layers, prenorm), make_cases(0), by, slow, CentredLogits())
    check_inputs(make_model(n_layers, prenorm, seed=1), make_cases(1), by, slow, Margin("y", "z"))


def test_the_frozen_network_here_has_the_models_logits():
    """What the oracles rest on: freezing changes gradients, not values."""
    for n_layers, prenorm in ((1, False), (2, True), (3, False), (4, True), (4, False)):
        model = make_model(n_layers, prenorm)
        network = Network(model)
        for raw in make_cases(4):
            x = network.preprocess(raw)
            expected = model(torch.from_numpy(raw.T)[None], torch.tensor([raw.shape[1]]))[0]
            for frozen in (False, True):
                got = network(x, *network.parameters(), frozen=frozen)
                assert (got - expected).abs().max() < 1e-12


def golden(shared_data, name):
    folder = shared_data / "golden" / "s4d_reference"
    with np.load(folder / f"{name}_expected.npz") as expected:
        inputs = expected["inputs"].astype(np.float64)
    return load_checkpoint(folder / f"{name}.pth", preprocessing="none"), inputs.transpose(0, 2, 1)


@pytest.mark.parametrize("name", ["scp1_1layer", "scp1_2layer_stride2"])
def test_layer_waves_of_golden_checkpoints(shared_data, name):
    model, X = golden(shared_data, name)
    cases = list(X[:3, :, :300])
    ds = check_layers(model.as_float64(), cases, Margin(*model.config.classes))
    ratios = ds["cancellation_ratio"].values
    assert (ratios > 2).all()  # measured 20 to 29 at full length: stacks cancel, and the result says so


@pytest.mark.parametrize(("by", "slow"), PARTITIONS[3:4])
def test_input_parts_of_the_golden_stack(shared_data, by, slow):
    model, X = golden(shared_data, "scp1_2layer_stride2")
    check_inputs(model.as_float64(), list(X[:3, :, :300]), by, slow, Margin(*model.config.classes))


def test_gelu_of_the_oracle_is_torchs():
    z = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert (z * torch.special.ndtr(z) - functional.gelu(z)).abs().max() < 1e-15


@pytest.mark.parametrize("n_layers", [2, 3])
def test_one_case_chunks_and_order_do_not_matter(n_layers, monkeypatch):
    cases = make_cases(0)
    op = expand(make_model(n_layers, False), cases)
    for by in (LayerWaves(), (Channels(), Bands([(2.0, 7.0)]), Windows(2))):
        whole = op.explain(cases, by=by)
        name = "layer_share" if by == LayerWaves() else "full_share"
        scale = float(whole["sum_abs_terms"].max())
        for i in range(len(cases)):
            assert (
                np.abs(op.explain(cases[i : i + 1], by=by)[name].values[0] - whole[name].values[i]).max()
                < 1e-12 * scale
            )
        swapped = op.explain(cases[::-1], by=by)[name].values[::-1]
        assert np.abs(swapped - whole[name].values).max() < 1e-12 * scale
        with monkeypatch.context() as patch:
            patch.setattr("oplens.explanation.training.BATCH_BYTES", 1)
            assert np.abs(op.explain(cases, by=by)[name].values - whole[name].values).max() < 1e-12 * scale


@pytest.mark.parametrize("length", [1, 2, 5, 16, 31])
def test_products_with_waves_equal_the_mode_kernels(length):
    system = make_model(1, False).layer(0).system()
    signal = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 4, length)))
    expected = torch.einsum("tbhl,hpl->tbhp", signal, diagonal.mode_kernels(system, length))
    torch.testing.assert_close(_wave_products(system, signal), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("by", "words"), [(LayerWaves(), r"by=LayerWaves\(\)"), ((Channels(), Windows(3)), r"by=\(Channels.*Windows")]
)
def test_results_above_the_limit_are_refused_before_work_starts(by, words):
    op = expand(make_model(2, False), make_cases(0))
    with pytest.raises(ArgumentError, match=rf"explain\({words}.*would hold.*fewer cases"):
        op.explain(make_cases(0), by=by, memory_limit=100)


MEMORY = """
import json, resource, sys
import numpy as np, torch
from oplens.explanation import Bands, Channels, LayerWaves, Windows, expand
from oplens.models import S4D, S4DConfig
torch.manual_seed(0)
model = S4D(S4DConfig(3, 10, 128, 64, 4, "reference", prenorm=bool(int(sys.argv[1])), sampling_rate=100.0))
X = np.random.default_rng(0).normal(size=(8, 3, 784))
op = expand(model, X)
worst = 0.0
for by in (LayerWaves(), (Channels(), Bands(), Windows(8))):
    ds = op.explain(X, by=by)
    worst = max(worst, float((abs(ds.completeness_residual) / ds.sum_abs_terms).max()))
print(json.dumps([worst, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("prenorm", [False, True])
def test_four_layers_of_128_features_and_784_steps_fit_in_4_gib(prenorm):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(int(prenorm))], capture_output=True, text=True, check=True, timeout=600
    )
    residual, gib = json.loads(done.stdout.strip().splitlines()[-1])
    assert residual < 1e-12
    assert gib < 4  # measured 0.6
