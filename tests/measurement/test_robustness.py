"""Noise on weights: the first order against dense Jacobians and closed forms, the paper's claim against its counterexample."""

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from oplens.errors import ArgumentError, DataError
from oplens.measurement.jacobians import DENSE_AT_MOST, Weights, along, grams, largest_gain, noisy_weights
from oplens.measurement.robustness import weight_noise
from oplens.models import S4D, S4DConfig, SparseLinear, Transformer, TransformerConfig
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.models.recorders import load_recorder
from oplens.results import validate
from oplens.theory import first_order, perturbation


@dataclass(frozen=True)
class Fake:
    """Any module as a recorder: the mean over real positions enters a case's answer, or every position answers."""

    module: nn.Module
    kind: str = "series"
    vocabulary: int | None = None
    every: bool = False
    name: str = "fake"

    def apply(self, parameters, x, mask=None):
        outputs = functional_call(self.module, parameters or {}, (x,))
        if self.every:
            return outputs
        keep = torch.ones(x.shape[:2]).to(outputs) if mask is None else mask.to(outputs)
        return (outputs * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)


def fake(module, **more) -> Any:
    return Fake(module.double().eval(), **more)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def inputs(*shape, seed=1):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def dense_jacobians(recorder, x, mask=None):
    """(answers, n, P) by autograd.functional, one big vector of parameters."""
    named = [(name, p.detach()) for name, p in recorder.module.named_parameters()]
    vector = torch.cat([p.flatten() for _, p in named])

    def output(theta):
        parts = torch.split(theta, [p.numel() for _, p in named])
        found = recorder.apply({n: v.reshape(p.shape) for (n, p), v in zip(named, parts, strict=True)}, x, mask)
        return found if found.ndim == 2 else found.flatten(0, 1)[(slice(None) if mask is None else mask.flatten())]

    return torch.autograd.functional.jacobian(output, vector).numpy()


def test_a_linear_model_moves_by_its_first_order_alone():
    torch.manual_seed(0)
    recorder = fake(nn.Linear(3, 2, bias=False), every=True)
    x = inputs(4, 1, 3)
    ds = weight_noise(recorder, x, sigmas=[0.01, 1.0, 100.0], draws=300, seed=3)
    # Every answer is W x, so J g = G x ~ norm(x) N(0, I_2), of mean norm sqrt(pi/2) norm(x).
    norms = np.linalg.norm(x.numpy(), axis=-1)
    expected = math.sqrt(math.pi / 2) * norms.mean()
    np.testing.assert_allclose(ds.remainder, 0, atol=1e-12)
    np.testing.assert_allclose(ds.deviation, ds.first_order, rtol=1e-12)
    assert ds.first_order_slope == pytest.approx(expected, abs=1e-8)
    assert abs(ds.first_order[1] - expected) < 4 * ds.first_order_error[1]
    assert float(ds.first_order_error[1]) < 0.05 * expected
    assert ds.slope_low < expected < ds.slope_high
    assert ds.jacobian_norm == pytest.approx(math.sqrt(2 * (norms**2).mean()), rel=1e-12)
    assert float(ds.linear_until) == math.inf
    assert math.isnan(ds.remainder_order)
    # The largest gain is the largest singular value of W, the same for all inputs.
    weight = recorder.module.weight.detach().numpy()
    assert ds.lipschitz == pytest.approx(np.linalg.norm(weight, 2), rel=1e-6)
    np.testing.assert_allclose(ds.paper_claim, ds.sigma * math.sqrt(6) * float(ds.lipschitz), rtol=1e-12)


class OneWeight(nn.Module):
    """A function of one weight, which is 1, and of the input."""

    def __init__(self, function):
        super().__init__()
        self.w, self.function = nn.Parameter(torch.tensor([1.0])), function

    def forward(self, x):
        return self.function(self.w, x)


class Counterexample(nn.Module):
    """f = T = 0 as w2 ReLU(w1 x), w1 = 100, w2 = 0."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.tensor([100.0])), nn.Parameter(torch.tensor([0.0]))

    def forward(self, x):
        return self.w2 * torch.relu(self.w1 * x)


def test_the_papers_counterexample_moves_where_its_formula_states_nothing():
    recorder = fake(Counterexample())
    ds = weight_noise(recorder, torch.ones(1, 1, 1).double(), sigmas=[0.01], draws=400, lipschitz=0.0)
    expected = 0.01 * 100 * math.sqrt(2 / math.pi)
    assert float(ds.paper_claim[0]) == 0
    assert ds.paper_claim.attrs["claim"] == "conditional"
    assert float(ds.deviation_low[0]) > 0.7
    # E abs(e2 (100 + e1)): e1 is independent of e2, so its mean 0 leaves the closed form as it is.
    assert abs(float(ds.deviation[0]) - expected) < 4 * float(ds.deviation_error[0])
    assert ds.first_order_slope == pytest.approx(100 * math.sqrt(2 / math.pi), abs=1e-6)
    assert ds.jacobian_norm == pytest.approx(100, rel=1e-12)
    stated = perturbation(
        error=0.0, noise=0.01, jacobian_norm=float(ds.jacobian_norm), curvature=1.0, parameters=2, lipschitz=0.0
    )
    assert stated["first_order_lower"] == pytest.approx(expected)
    assert stated.stated.value == 0
    # What was found of L says the same: the model is constant in x.
    measured = weight_noise(recorder, torch.ones(1, 1, 1).double(), sigmas=[0.01], draws=50)
    assert float(measured.lipschitz) == 0
    assert measured.attrs["lipschitz_source"] == "measured"
    assert measured.lipschitz.attrs["claim"] == "bound"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_a_network_against_its_dense_jacobian(every, relative):
    recorder = fake(network(), every=every)
    x, mask = inputs(3, 4, 3), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    jacobians = dense_jacobians(recorder, x, mask)
    if relative:
        sizes = [p.detach().numpy() for p in recorder.module.parameters()]
        scale = np.concatenate([np.full(p.size, np.sqrt((p**2).mean())) for p in sizes])
        jacobians = jacobians * scale
    ds = weight_noise(recorder, x, mask, sigmas=[1e-3], draws=150, relative=relative, batch_size=2)
    assert len(jacobians) == ds.attrs["n_answers"] == (9 if every else 3)
    assert ds.jacobian_norm == pytest.approx(np.sqrt((jacobians**2).sum((1, 2)).mean()), rel=1e-12)
    assert ds.jacobian_norm.attrs["claim"] == ds.first_order_slope.attrs["claim"] == "exact"
    means = [first_order(1.0, np.linalg.svd(J, compute_uv=False).tolist()).value for J in jacobians]
    assert ds.first_order_slope == pytest.approx(np.mean(means), rel=1e-7)
    assert abs(float(ds.first_order[0]) / 1e-3 - np.mean(means)) < 4 * float(ds.first_order_error[0]) / 1e-3
    total = math.sqrt((scale**2).sum()) if relative else math.sqrt(32)
    np.testing.assert_allclose(ds.paper_claim, 1e-3 * total * float(ds.lipschitz), rtol=1e-12)
    assert int(ds.n_parameters) == 32


def test_every_draw_is_compared_along_the_same_noise():
    """Means over draws and answers by a plain loop with explicit parameters and the dense Jacobian."""
    recorder = fake(network(2))
    x, sigmas = inputs(3, 2, 3), [0.01, 0.3]
    weights = noisy_weights("test", recorder, False)
    jacobians, start = dense_jacobians(recorder, x), recorder.apply(None, x).detach().numpy()
    deviation, remainder, first = np.zeros((5, 2)), np.zeros((5, 2)), np.zeros(5)
    for draw in range(5):
        noise = {name: value.numpy() for name, value in weights.direction(7, draw).items()}
        vector = np.concatenate([noise[name].ravel() for name, _ in recorder.module.named_parameters()])
        tangent = jacobians @ vector
        first[draw] = np.linalg.norm(tangent, axis=1).mean()
        for k, sigma in enumerate(sigmas):
            other = copy.deepcopy(recorder.module)
            with torch.no_grad():
                for name, p in other.named_parameters():
                    p.add_(sigma * torch.as_tensor(noise[name]))
            change = Fake(other).apply(None, x).detach().numpy() - start
            deviation[draw, k] = np.linalg.norm(change, axis=1).mean()
            remainder[draw, k] = np.linalg.norm(change - sigma * tangent, axis=1).mean()
    ds = weight_noise(recorder, x, sigmas=sigmas, draws=5, seed=7, batch_size=2)
    np.testing.assert_allclose(ds.deviation, deviation.mean(0), rtol=1e-10)
    np.testing.assert_allclose(ds.remainder, remainder.mean(0), rtol=1e-8)
    np.testing.assert_allclose(ds.first_order, np.array(sigmas) * first.mean(), rtol=1e-10)
    np.testing.assert_allclose(ds.deviation_error, deviation.std(0, ddof=1) / math.sqrt(5), rtol=1e-10)
    half = 2.7764451051977987 * deviation.std(0, ddof=1) / math.sqrt(5)  # Student, 4 degrees of freedom, 95 %
    np.testing.assert_allclose(ds.deviation_high - ds.deviation, half, rtol=1e-10)
    np.testing.assert_allclose(ds.deviation - ds.deviation_low, half, rtol=1e-10)


def test_directions_are_standard_normal_and_their_own():
    values = {"a": torch.zeros(100, 100).double(), "z": torch.zeros(5000, dtype=torch.complex128)}
    weights = Weights(values, {"a": 1.0, "z": 2.0})
    g = weights.direction(0, 0)
    assert weights.count == 20000
    assert weights.size == pytest.approx(math.sqrt(10000 + 4 * 10000))
    for found, scale in ((g["a"], 1.0), (torch.view_as_real(g["z"]), 2.0)):
        assert abs(found.mean() / scale) < 0.04
        assert found.std() / scale == pytest.approx(1, abs=0.03)
    assert torch.equal(weights.direction(0, 0)["a"], g["a"])
    others = [weights.direction(seed, draw)["a"] for seed, draw in ((0, 1), (1, 0))]
    for one, two in ((g["a"], others[0]), (g["a"], others[1]), others):
        assert abs((one * two).mean()) < 0.04


def test_linearity_ends_where_the_remainder_says():
    """y = w^2 / 2 about w = 1: J e = e, R = e^2 / 2, so E R / E |J e| = sigma sqrt(pi / 8)."""
    recorder = fake(OneWeight(lambda w, x: w**2 / 2 * x))
    ds = weight_noise(recorder, torch.ones(1, 1, 1).double(), sigmas=np.geomspace(1e-3, 1, 7), draws=300)
    assert ds.linear_until == pytest.approx(0.1 / math.sqrt(math.pi / 8), rel=0.15)
    assert ds.remainder_order == pytest.approx(2, abs=1e-6)
    assert ds.slope == pytest.approx(math.sqrt(2 / math.pi), rel=0.15)
    np.testing.assert_allclose(ds.remainder, ds.sigma**2 / 2, rtol=0.25)
    later = weight_noise(recorder, torch.ones(1, 1, 1).double(), sigmas=[1.0, 10.0], draws=20)
    assert float(later.linear_until) == 0
    assert math.isnan(later.slope)


def test_the_estimate_of_the_norm_covers_it():
    """With many numbers answered, norm(J)_F is estimated from the draws."""
    torch.manual_seed(4)
    recorder = fake(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 70)), every=True)
    x = inputs(2, 3, 2)
    ds = weight_noise(recorder, x, sigmas=[1e-4], draws=200)
    jacobians = dense_jacobians(recorder, x)
    assert ds.jacobian_norm.attrs["claim"] == ds.first_order_slope.attrs["claim"] == "measured"
    error = float(ds.jacobian_norm) - np.sqrt((jacobians**2).sum((1, 2)).mean())
    assert 0 < abs(error) < 4 * float(ds.jacobian_norm_error)
    assert float(ds.jacobian_norm_error) < 0.05 * float(ds.jacobian_norm)
    # Enough positions make whole Jacobians cost more than the sweep, although few numbers are answered.
    long = weight_noise(fake(network(), every=True), inputs(2, 6, 3), sigmas=[1e-4], draws=8)
    assert long.jacobian_norm.attrs["claim"] == "measured"


def s4d(architecture):
    torch.manual_seed(0)
    config = S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4, n_layers=1, architecture=architecture)
    return S4DRecorder.of(S4D(config))


def transformer(**more):
    torch.manual_seed(0)
    config = {"d_output": 3, "vocabulary": 5, "d_model": 16, "n_heads": 2, "d_ffn": 8, "causal": True, **more}
    return TransformerRecorder.of(Transformer(TransformerConfig(**config)))


def case(name):
    x, mask = inputs(2, 12, 2), torch.arange(12) < torch.tensor([[7], [12]])
    tokens = torch.tensor([[1, 4, 2, 0, 0], [3, 3, 1, 0, 2]])
    short = torch.arange(5) < torch.tensor([[3], [5]])
    if name.startswith("s4d"):
        return s4d(name.split()[1]), x, mask
    more = {
        "position": {"readout": "position"},
        "last": {},
        "tied": {"d_output": 5, "tied": True, "readout": "position"},
    }
    recorder = transformer(**{**more[name.split()[1]], **({"positions": "added"} if "tied" in name else {})})
    return recorder, tokens, short


def against_dense_jacobians(recorder, x, mask, sigmas, draws):
    """The sweep's norm, count and order of the remainder, and the derivative along one direction; returns the sweep."""
    jacobians = dense_jacobians(recorder, x, mask)
    ds = weight_noise(recorder, x, mask, sigmas=sigmas, draws=draws)
    assert ds.jacobian_norm == pytest.approx(np.sqrt((jacobians**2).sum((1, 2)).mean()), rel=1e-9)
    assert int(ds.n_parameters) == jacobians.shape[-1] == sum(p.numel() for p in recorder.module.parameters())
    assert ds.remainder_order == pytest.approx(2, abs=0.1)
    weights = noisy_weights("test", recorder, False)
    direction = weights.direction(0, 5)
    vector = np.concatenate([direction[n].numpy().ravel() for n, _ in recorder.module.named_parameters()])
    _, tangent = along("test", recorder, weights, direction, x, mask)
    np.testing.assert_allclose(tangent.numpy(), jacobians @ vector, rtol=1e-8, atol=1e-10)
    return ds


MODELS = ["s4d plain", "s4d reference", "transformer position", "transformer last", "transformer tied"]


@pytest.mark.parametrize("name", MODELS)
def test_models_against_dense_jacobians(name):
    recorder, x, mask = case(name)
    ds = against_dense_jacobians(recorder, x, mask, [1e-6, 1e-5, 1e-4], 9)
    np.testing.assert_allclose(ds.deviation, ds.first_order, rtol=0.02)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_hugging_face_models_against_dense_jacobians(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 11,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
    }
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=6))
    # Drawn anew: the defaults leave biases at 0 and attention all but uniform.
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    model.save_pretrained(tmp_path)
    recorder = load_recorder(tmp_path)
    x, mask = torch.tensor([[3, 9, 4, 1], [8, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    ds = against_dense_jacobians(recorder, x, mask, [1e-6, 1e-5, 1e-4, 1e-3], 12)
    assert ds.jacobian_norm.attrs["claim"] == "exact"
    assert float(ds.lipschitz) > 0


@pytest.mark.parametrize("name", ["s4d plain", "transformer position"])
def test_the_default_scales_span_the_spread_of_the_answers(name):
    recorder, x, mask = case(name)
    ds = weight_noise(recorder, x, mask, draws=4)
    outputs = recorder.apply(None, x, mask)
    rows = (outputs if outputs.ndim == 2 else outputs[mask]).detach().numpy()
    spread = math.sqrt(((rows - rows.mean(0)) ** 2).sum(1).mean())
    assert ds.output_spread == pytest.approx(spread, rel=1e-9)
    first = ds.first_order / spread
    assert ds.sizes["sigma"] == 13
    assert first[0] == pytest.approx(1e-3, rel=0.05)
    assert first[-1] == pytest.approx(1, rel=0.05)


def test_sparse_models_carry_noise_on_what_they_store():
    model = transformer(readout="position", norm="none", activation="gelu").module
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(torch.rand(p.shape, generator=torch.Generator().manual_seed(1)) < 0.3)
    sparse = TransformerRecorder.of(model.to_sparse())
    x = torch.tensor([[1, 4, 2]])
    ds = weight_noise(sparse, x, sigmas=[1e-5, 1e-4, 1e-3], draws=3)
    assert int(ds.n_parameters) == sum(p.numel() for p in sparse.module.parameters())
    assert int(ds.n_parameters) < sum(p.numel() for p in model.parameters())
    assert ds.remainder_order == pytest.approx(2, abs=0.1)
    # The sparse product itself, moved along the same noise.
    weights = noisy_weights("test", sparse, False)
    change = []
    for draw in range(3):
        other = copy.deepcopy(sparse.module)
        with torch.no_grad():
            for name, p in other.named_parameters():
                p.add_(1e-3 * weights.direction(0, draw)[name])
            change.append((other(x) - sparse.module(x)).norm(dim=-1).mean())
    np.testing.assert_allclose(ds.deviation[-1], np.mean(change), rtol=1e-10)


@pytest.mark.parametrize("name", ["s4d plain", "transformer position"])
def test_the_largest_gain_against_dense_derivatives(name):
    recorder, x, mask = case(name)
    x, mask = x[1:, :4], mask[1:, :4]
    if recorder.kind == "series":
        J = torch.autograd.functional.jacobian(lambda v: recorder.apply(None, v, mask), x.double())
        gains = [np.linalg.norm(J[0].reshape(3, -1).numpy(), 2)]
    else:
        table = recorder.module.embedding.token
        start = table(x).detach()

        def output(embedded):
            handle = table.register_forward_hook(lambda *_: embedded)
            found = recorder.apply(None, x, mask)
            handle.remove()
            return found[0]

        J = torch.autograd.functional.jacobian(output, start).reshape(4, 3, -1)
        gains = [np.linalg.norm(row.numpy(), 2) for row in J]
    found = largest_gain("test", recorder, x, mask, seed=0)
    assert found == pytest.approx(max(gains), rel=1e-3)
    assert found <= max(gains) * (1 + 1e-9), "a lower bound"
    # A model whose embedding cannot be told has no gain to state.
    if recorder.kind == "tokens":
        blind = SimpleNamespace(kind="tokens", vocabulary=17, module=recorder.module, apply=recorder.apply)
        assert math.isnan(largest_gain("test", blind, x, mask, seed=0))


def test_complex_parameters_count_as_real_pairs():
    class Phase(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Parameter(torch.tensor([1.0 + 2.0j], dtype=torch.complex128))

        def forward(self, x):
            return (self.c * self.c).real * x

    recorder = Fake(Phase().eval())
    x = torch.ones(1, 1, 1).double()
    # (a + ib)^2 has the real part a^2 - b^2, of gradient (2a, -2b) = (2, -4).
    (gram,) = grams("test", recorder, noisy_weights("test", recorder, False), x, None)
    assert gram.item() == pytest.approx(20, rel=1e-12)
    ds = weight_noise(recorder, x, sigmas=[1e-4], draws=200)
    assert int(ds.n_parameters) == 2
    assert ds.first_order_slope == pytest.approx(math.sqrt(2 / math.pi * 20), abs=1e-6)
    assert abs(float(ds.deviation[0] / 1e-4) - math.sqrt(2 / math.pi * 20)) < 4 * float(ds.deviation_error[0] / 1e-4)


def test_results_are_storable_progress_is_told_and_draws_repeat():
    import xarray as xr

    recorder, x, mask = case("transformer position")
    told = []
    few = {"sigmas": [0.01, 0.1], "draws": 3, "lipschitz": 1.0}
    ds = weight_noise(recorder, x, mask, **few, batch_size=1, progress=lambda *step: told.append(step))
    assert told == [(done, 3 * 3 * 2) for done in range(0, 19, 3)]
    again = weight_noise(recorder, x, mask, **few, batch_size=2)
    for name in ("deviation", "remainder", "first_order"):
        np.testing.assert_allclose(ds[name], again[name], rtol=1e-9)
    assert float(weight_noise(recorder, x, mask, **few, seed=1).deviation[0]) != float(ds.deviation[0])
    validate(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/robustness": ds}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sigmas": [0.1, 0.01]}, "ascending"),
        ({"sigmas": [0.0, 1.0]}, "above 0"),
        ({"sigmas": []}, "finite numbers"),
        ({"sigmas": [1.0, math.inf]}, "finite numbers"),
        ({"sigmas": "many"}, "finite numbers"),
        ({"draws": 1}, "draws=1"),
        ({"level": 1.5}, "level=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"relative": 1}, "relative=1"),
        ({"lipschitz": -1.0}, "lipschitz=-1.0"),
        ({"lipschitz": True}, "lipschitz=True"),
        ({"mask": np.ones((2, 3))}, "expected"),
        ({"mask": np.zeros((2, 2))}, "no real position"),
        ({"x": np.zeros(3)}, "expected"),
        ({"x": np.zeros((0, 2, 3))}, "expected"),
    ],
)
def test_arguments_that_cannot_work(arguments, words):
    def never(*_):
        raise AssertionError("work began")

    with pytest.raises(ArgumentError, match=words):
        weight_noise(fake(network()), **{"x": np.zeros((2, 2, 3)), "progress": never, **arguments})


def test_models_that_cannot_work():
    x = torch.ones(1, 1, 3).double()
    with pytest.raises(ArgumentError, match="float32, whose rounding"):
        weight_noise(Fake(network().eval()), x)
    with pytest.raises(ArgumentError, match="training mode"):
        weight_noise(Fake(network().double().train()), x)
    with pytest.raises(ArgumentError, match="no parameters"):
        weight_noise(Fake(nn.Tanh().eval()), x)
    with pytest.raises(ArgumentError, match="no scale of noise suggests itself"):
        weight_noise(fake(Counterexample()), 0 * x)
    with pytest.raises(ArgumentError, match=r"shape \(1, 1, 3, 1\)"):
        weight_noise(fake(nn.Sequential(nn.Linear(3, 3), nn.Unflatten(-1, (3, 1))), every=True), x)
    huge = SparseLinear(DENSE_AT_MOST, 2).double().eval()
    with pytest.raises(ArgumentError, match="134,217,728 entries"):
        weight_noise(Fake(huge), x)


def test_noise_that_breaks_the_model_is_named():
    def model():
        return OneWeight(lambda w, x: torch.log(w) * x + x)

    with pytest.raises(DataError, match=r"sigma = 1000 makes an answer NaN or infinite; give sigmas below 1000"):
        weight_noise(fake(model()), torch.ones(1, 1, 1).double(), sigmas=[1e-3, 1e3])
    broken = model()
    broken.w.data[:] = -1
    with pytest.raises(DataError, match="without any noise"):
        weight_noise(fake(broken), torch.ones(1, 1, 1).double(), sigmas=[1e-3])


def test_an_operation_without_forward_derivative_is_named():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(5, 3, mode="sum")

        def forward(self, x):
            return self.bag(x)[:, None]

    with pytest.raises(ArgumentError, match="without a forward derivative"):
        weight_noise(fake(Bag(), kind="tokens"), torch.tensor([[1, 2]]), sigmas=[0.1])
