"""Models that are finite Volterra series: a polynomial readout per feature, and one output per step."""

import json

import numpy as np
import pytest
import torch
from numpy.polynomial import hermite_e, polynomial
from scipy.special import ndtr

from oplens.errors import ArgumentError, CheckpointError
from oplens.models import S4D, Preprocessing, S4DConfig, check_consistency
from oplens.operators import diagonal

KINDS = {
    "polynomial": {"readout": "polynomial", "degree": 3},
    "every step": {"pooling": "none"},
    "polynomial at every step": {"readout": "polynomial", "degree": 2, "pooling": "none"},
}
PREPROCESSING = Preprocessing((0.3, -0.2), (1.5, 0.8), True)


def build(kind, seed=0, **more):
    torch.manual_seed(seed)
    settings = {"preprocessing": PREPROCESSING, "dt_min": 0.05, "dt_max": 0.6, **KINDS[kind], **more}
    model = S4D(S4DConfig(2, 3, d_model=4, d_state=6, **settings)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "polynomial":
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def cases(lengths=(13, 1, 8)):
    rng = np.random.default_rng(1)
    return [rng.normal(0.5, 1.5, size=(2, length)) for length in lengths]


def padded(found, filler=0.0):
    lengths = torch.tensor([x.shape[1] for x in found])
    X = torch.full((len(found), int(lengths.max()), 2), filler, dtype=torch.float64)
    for case, x in enumerate(found):
        X[case, : x.shape[1]] = torch.from_numpy(x.T)
    return X, lengths


def outputs(model, x):
    """Step by step with plain loops: (length, n_classes) of a raw case (2, length)."""
    w = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    x = x - x.mean(1, keepdims=True)
    x = (x - np.array(PREPROCESSING.mean)[:, None]) / np.array(PREPROCESSING.scale)[:, None]
    kernel = "s4_layers.0.kernel."
    C = w[kernel + "C"][..., 0] + 1j * w[kernel + "C"][..., 1]
    pole = -np.exp(w[kernel + "log_A_real"]) + 1j * w[kernel + "A_imag"]
    dt = np.exp(w[kernel + "log_dt"])[:, None]
    state, rows = np.zeros(pole.shape, dtype=complex), []
    for t in range(x.shape[1]):
        u = w["encoder.weight"] @ x[:, t] + w["encoder.bias"]
        state = np.exp(pole * dt) * state + np.expm1(pole * dt) / pole * u[:, None]
        z = 2 * (C * state).sum(1).real + w["s4_layers.0.D"] * u
        g = z * ndtr(z)
        if model.config.readout == "polynomial":
            g = np.array([polynomial.polyval(z[h], w["polynomial"][h]) for h in range(len(z))])
        rows.append(w["decoder.weight"] @ g + w["decoder.bias"])
    rows = np.array(rows)
    return rows if model.config.pooling == "none" else rows.mean(0)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_equations(kind):
    model = build(kind)
    raw, lengths = padded(cases(), filler=float("nan"))
    expected = [outputs(model, x) for x in cases()]
    scale = max(np.abs(value).max() for value in expected)
    found = [model(raw, lengths)] + [model.trace(raw, lengths, mode).logits for mode in ("convolution", "step")]
    for logits in (values.detach().numpy() for values in found):
        for case, value in enumerate(expected):
            if model.config.pooling == "none":
                assert not logits[case, len(value) :].any()
                assert np.abs(logits[case, : len(value)] - value).max() < 1e-12 * scale
            else:
                assert np.abs(logits[case] - value).max() < 1e-12 * scale
    alone = model(raw[:1]).detach().numpy()[0]
    assert np.abs(alone - expected[0]).max() < 1e-12 * scale


def test_what_is_pooled_is_the_readout_at_each_step():
    model = build("polynomial at every step")
    raw, lengths = padded(cases())
    trace = model.trace(raw, lengths)
    W, bias = model.decoder.weight, model.decoder.bias
    for case, length in enumerate(lengths.tolist()):
        assert not trace.pooled[case, length:].any()
        found = trace.pooled[case, :length] @ W.T + bias
        assert (found - trace.logits[case, :length]).abs().max() < 1e-12


@pytest.mark.parametrize("degree", [1, 2, 5, 9])
def test_a_new_readout_is_the_polynomial_nearest_to_gelu(degree):
    model = S4D(S4DConfig(1, 1, d_model=2, d_state=2, readout="polynomial", degree=degree))
    nodes, weights = hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    found = np.vander(nodes, degree + 1, increasing=True)
    moments = found.T @ (weights[:, None] * found)
    expected = np.linalg.solve(moments, found.T @ (weights * nodes * ndtr(nodes)))
    assert np.abs(model.polynomial.detach().numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_weight(kind):
    """Against central differences of the function itself."""
    model = build(kind)
    raw, lengths = padded(cases())
    weights = torch.randn(model(raw, lengths).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (model(raw, lengths) * weights).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name
        index = int(parameter.grad.abs().argmax())
        gradient = parameter.grad.flatten()[index].item()
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.view(-1)[index] += step
                values.append((model(raw, lengths) * weights).sum().item())
                parameter.view(-1)[index] -= step
        assert abs((values[0] - values[1]) / 2e-6 - gradient) < 1e-5 * max(1, abs(gradient)), name


def test_dropout_leaves_out_whole_features():
    model = build("polynomial at every step", dropout=0.5).train()
    with torch.no_grad():
        model.decoder.weight.copy_(torch.eye(3, 4))
        model.decoder.bias.zero_()
    torch.manual_seed(0)
    dropped = model(torch.from_numpy(np.ascontiguousarray(cases((40,))[0].T))[None])[0] == 0
    assert dropped.any()
    assert (dropped.all(0) | ~dropped.any(0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_survives_its_folder(kind, tmp_path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    loaded = S4D.from_pretrained(tmp_path)
    assert loaded.config == model.config
    raw, lengths = padded(cases())
    assert torch.equal(loaded(raw, lengths), model(raw, lengths))
    assert S4DConfig.from_dict(json.loads(json.dumps(model.config.to_dict()))) == model.config


def edited(directory, **values):
    where = directory / "config.json"
    header = json.loads(where.read_text())
    for name, value in values.items():
        if value is None:
            header["config"].pop(name)
        else:
            header["config"][name] = value
    where.write_text(json.dumps(header))


def test_folders_from_before_are_means_of_gelu(tmp_path):
    model = S4D(S4DConfig(2, 3, d_model=4, d_state=6)).eval()
    model.save_pretrained(tmp_path)
    edited(tmp_path, readout=None, degree=None, pooling=None)
    loaded = S4D.from_pretrained(tmp_path)
    assert loaded.config == model.config
    x = torch.randn(2, 9, 2)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"readout": "relu"}, "readout='relu'.*gelu, polynomial"),
        ({"readout": 2}, "readout=2.*gelu, polynomial"),
        ({"readout": ["polynomial"]}, "choose one of gelu, polynomial"),
        ({"readout": "gelu"}, r"degree=3.*only readout='polynomial' has a degree"),
        ({"readout": "gelu", "degree": None}, "unknown keys polynomial"),
        ({"degree": None}, "degree=None.*1 to 64"),
        ({"degree": 0}, "degree=0.*1 to 64"),
        ({"degree": 10**9}, "1 to 64"),
        ({"degree": 2.0}, "degree=2.0.*integer"),
        ({"degree": True}, "degree=True.*integer"),
        ({"degree": "2"}, "degree='2'.*integer"),
        ({"degree": 2}, r"polynomial has shape \(4, 4\), expected \(4, 3\)"),
        ({"pooling": "max"}, "pooling='max'.*mean, none"),
        ({"pooling": False}, "pooling=False.*mean, none"),
    ],
)
def test_damaged_folders_end_in_a_sentence(tmp_path, changes, words):
    build("polynomial").save_pretrained(tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=words) as caught:
        S4D.from_pretrained(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_folder_without_its_polynomial_is_refused(tmp_path):
    build("every step").save_pretrained(tmp_path)
    edited(tmp_path, readout="polynomial", degree=2)
    with pytest.raises(CheckpointError, match="'polynomial' is missing"):
        S4D.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"readout": "polynomial"}, "give the polynomial's degree, 1 to 64"),
        ({"degree": 2}, "leave degree out"),
        ({"readout": "polynomial", "degree": 65}, "1 to 64"),
        ({"readout": "polynomial", "degree": 2, "architecture": "reference"}, "use architecture='plain'"),
        ({"pooling": "none", "architecture": "reference"}, "use architecture='plain'"),
        ({"pooling": "last"}, "mean, none"),
    ],
)
def test_what_cannot_work_is_refused(values, words):
    with pytest.raises(ArgumentError, match=words):
        S4DConfig(2, 3, **values)


@pytest.mark.parametrize("kind", KINDS)
def test_modes_are_compared(kind, monkeypatch):
    model = build(kind)
    assert 0 < check_consistency(model, cases()).worst() < 1e-12
    assert check_consistency(model.float(), cases()).worst("float32") < 1e-4
    step = diagonal.step
    monkeypatch.setattr(diagonal, "step", lambda s, u, state: (step(s, u, state)[0] + 1e-3 * u, step(s, u, state)[1]))
    wrong = check_consistency(build(kind), cases())
    found = {d.mode: d.logits for d in wrong.differences}
    assert found["step"] > 1e-5
    assert found["recurrence"] < 1e-12
