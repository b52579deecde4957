"""Both architectures, in every mode, against models written here from numpy and torch.nn.functional."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from oplens.errors import ArgumentError
from oplens.models import S4D, Preprocessing, S4DConfig
from oracles import TextbookPlain, discrete, recurrence

MODES = ["convolution", "recurrence", "step"]
VARIANTS = [
    ("plain", 1, False, "zoh"),
    ("plain", 1, False, "bilinear"),
    ("reference", 1, False, "zoh"),
    ("reference", 2, False, "zoh"),
    ("reference", 2, True, "zoh"),
    ("reference", 3, True, "bilinear"),
]


def build(variant, seed=0, **more):
    architecture, n_layers, prenorm, method = variant
    torch.manual_seed(seed)
    config = S4DConfig(
        3,
        4,
        d_model=5,
        d_state=12,
        architecture=architecture,
        n_layers=n_layers,
        prenorm=prenorm,
        discretisation=method,
        **more,
    )
    model = S4D(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for layer in model.s4_layers:
            layer.kernel.log_dt += 2  # strong inputs, so that every nonlinearity is felt
    return model.eval()


def preactivation(weights, prefix, u, method):
    """z (batch, length, H) by the plain recurrence."""
    get = {name.removeprefix(prefix): value.numpy() for name, value in weights.items() if name.startswith(prefix)}
    A = -np.exp(get["kernel.log_A_real"]) + 1j * get["kernel.A_imag"]
    a, b = discrete(A, np.exp(get["kernel.log_dt"]), method)
    C = get["kernel.C"][..., 0] + 1j * get["kernel.C"][..., 1]
    z, _ = recurrence((a, b, C, get["D"]), u.numpy().transpose(0, 2, 1))
    return torch.from_numpy(z.transpose(0, 2, 1).copy())


def reference_logits(model, x):
    """The S4D repository's stack of unpadded, preprocessed x, layer by layer."""
    weights, config = model.state_dict(), model.config
    h = functional.linear(x, weights["encoder.weight"], weights["encoder.bias"])
    for i in range(config.n_layers):
        norm = [(config.d_model,), weights[f"norms.{i}.weight"], weights[f"norms.{i}.bias"]]
        u = functional.layer_norm(h, *norm) if config.prenorm else h
        z = preactivation(weights, f"s4_layers.{i}.", u, config.discretisation)
        mixed = functional.conv1d(
            functional.gelu(z).transpose(1, 2),
            weights[f"s4_layers.{i}.output_linear.0.weight"],
            weights[f"s4_layers.{i}.output_linear.0.bias"],
        )
        h = h + functional.glu(mixed, dim=1).transpose(1, 2)
        if not config.prenorm:
            h = functional.layer_norm(h, *norm)
    return functional.linear(h.mean(1), weights["decoder.weight"], weights["decoder.bias"])


def plain_logits(model, x):
    weights = model.state_dict()
    E, e = weights["encoder.weight"].numpy(), weights["encoder.bias"].numpy()
    z = preactivation(
        weights, "s4_layers.0.", torch.from_numpy(x.numpy() @ E.T + e), model.config.discretisation
    ).numpy()
    g = np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))))(z)
    return torch.from_numpy(g.mean(1) @ weights["decoder.weight"].numpy().T + weights["decoder.bias"].numpy())


def expected_logits(model, x):
    return (plain_logits if model.config.architecture == "plain" else reference_logits)(model, x)


def signals(batch=3, length=41, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(batch, length, 3)))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 41, 128])
def test_logits_equal_the_formulas(variant, length):
    model, x = build(variant), signals(length=length)
    expected = expected_logits(model, x)
    scale = expected.abs().max()
    assert (model(x) - expected).abs().max() < 1e-11 * scale
    assert (model.as_float64()(x) - expected).abs().max() < 1e-11 * scale
    for mode in MODES:
        assert (model.trace(x, mode=mode).logits - expected).abs().max() < 1e-11 * scale


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_trace_holds_the_parts_of_the_forward_pass(variant):
    model, x = build(variant).requires_grad_(False), signals()
    trace = model.trace(x)
    weights = model.state_dict()
    h = trace.encoded
    torch.testing.assert_close(h, functional.linear(x, weights["encoder.weight"], weights["encoder.bias"]))
    for i, layer in enumerate(trace.layers):
        torch.testing.assert_close(
            layer.z,
            preactivation(weights, f"s4_layers.{i}.", layer.u, model.config.discretisation),
            rtol=1e-10,
            atol=1e-11,
        )
        if layer.gate is None:
            h = functional.gelu(layer.z)
            continue
        before = h if model.config.prenorm else h + layer.mixed * layer.gate
        scale = torch.sqrt(before.var(-1, unbiased=False) + 1e-5)
        torch.testing.assert_close(layer.norm_scale, scale)
        normed = (before - before.mean(-1, keepdim=True)) / scale[..., None] * weights[f"norms.{i}.weight"] + weights[
            f"norms.{i}.bias"
        ]
        torch.testing.assert_close(layer.u, normed if model.config.prenorm else h)
        h = h + layer.mixed * layer.gate if model.config.prenorm else normed
    torch.testing.assert_close(trace.pooled, h.mean(1))
    torch.testing.assert_close(
        trace.logits, functional.linear(h.mean(1), weights["decoder.weight"], weights["decoder.bias"])
    )


def padded(garbage, seed=2):
    lengths = torch.tensor([41, 1, 17, 40])
    x = signals(4, 41, seed)
    for case, length in enumerate(lengths.tolist()):
        x[case, length:] = garbage
    return x, lengths


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("remove_offset", [False, True])
@pytest.mark.parametrize("garbage", [0.0, 1e12, math.nan, math.inf, -math.inf])
def test_padding_changes_nothing(variant, remove_offset, garbage):
    preprocessing = Preprocessing((0.3, -2.0, 1.0), (0.5, 2.0, 1.0), remove_offset)
    model = build(variant, preprocessing=preprocessing)
    x, lengths = padded(garbage)
    together = model(x, lengths)
    for case, length in enumerate(lengths.tolist()):
        alone = x[case : case + 1, :length]
        prepared = alone - alone.mean(1, keepdim=True) if remove_offset else alone
        mean, scale = torch.tensor([preprocessing.mean, preprocessing.scale], dtype=torch.float64)
        prepared = (prepared - mean) / scale
        expected = expected_logits(model, prepared)
        scale = float(expected.abs().max())
        assert (together[case] - expected[0]).abs().max() < 1e-11 * scale
        assert (together[case] - model(alone)[0]).abs().max() < 1e-12 * scale
        for mode in MODES:
            trace = model.trace(x, lengths, mode)
            assert (trace.logits[case] - expected[0]).abs().max() < 1e-11 * scale
            assert bool((trace.mask[case] == (torch.arange(41) < length)).all())


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_trace_is_zero_where_a_system_receives_padding(variant):
    """Accounts of a layer sum over all steps of its input."""
    x, lengths = padded(7.0)
    trace = build(variant).trace(x, lengths)
    valid = torch.arange(41)[None] < lengths[:, None]
    for received in (trace.x, trace.encoded, *(layer.u for layer in trace.layers)):
        assert not received[~valid].any()
        assert received[valid].all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_padding_reaches_no_derivative(variant):
    slopes = []
    for garbage in (0.0, math.nan):
        model = build(variant)
        x, lengths = padded(garbage)
        model(x, lengths).square().sum().backward()
        slopes.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, slope in slopes[0].items():
        assert slope is not None, name
        torch.testing.assert_close(slopes[1][name], slope, rtol=0, atol=0)


def test_training_and_frozen_models_have_the_same_input_derivatives():
    model, x = build(VARIANTS[0]), signals().requires_grad_()
    (trained,) = torch.autograd.grad(model(x).square().sum(), x)
    (frozen,) = torch.autograd.grad(model.as_float64()(x).square().sum(), x)
    torch.testing.assert_close(trained, frozen, rtol=1e-11, atol=1e-12)


def test_parameter_derivatives_of_the_plain_model_equal_the_textbook_model():
    model, textbook = build(VARIANTS[0]), TextbookPlain(3, 4, 5, 12).double()
    textbook.load_state_dict(model.state_dict())
    x = signals(7, 60)
    for m in (model, textbook):
        m(x).square().sum().backward()
    expected = dict(textbook.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-8, atol=1e-9)


def test_float32_is_close_to_float64():
    for variant in VARIANTS:
        model, x = build(variant), signals(length=200)
        exact = model(x)
        assert (model.float()(x.float()) - exact).abs().max() < 2e-5 * exact.abs().max()


def test_dropout_acts_in_training_only_and_drops_whole_features():
    model = build(VARIANTS[0], dropout=0.5)
    x = signals()
    torch.testing.assert_close(model(x), expected_logits(model, x), rtol=1e-10, atol=1e-11)
    model.train()
    torch.manual_seed(0)
    pooled = model.trace(x).pooled
    kept = model.eval().trace(x).pooled
    ratio = pooled / kept
    assert sorted(set(ratio.detach().flatten().round(decimals=9).tolist())) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("x", "lengths", "words"),
    [
        (torch.zeros(2, 3, 9), None, "d_input=3.*transposed"),
        (torch.zeros(2, 9), None, "expected x of shape"),
        (torch.zeros(2, 0, 3), None, "length >= 1"),
        (torch.zeros(0, 4, 3), torch.zeros(0, dtype=torch.int64), "batch >= 1"),
        (torch.zeros(2, 4, 3, dtype=torch.complex64), None, "complex"),
        (torch.zeros(2, 4, 3), torch.tensor([4]), "one number between 1 and 4 for each of the 2 cases"),
        (torch.zeros(2, 4, 3), torch.tensor([4, 0]), "between 1 and 4"),
        (torch.zeros(2, 4, 3), torch.tensor([5, 1]), "between 1 and 4"),
    ],
)
def test_inputs_that_cannot_work_get_a_sentence(x, lengths, words):
    with pytest.raises(ArgumentError, match=words):
        build(VARIANTS[0])(x, lengths)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match="convolution, recurrence or step"):
        build(VARIANTS[0]).trace(signals(), mode="fft")
