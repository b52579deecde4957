"""Kernels, pre-activations and logits of checkpoints trained with the public S4D reference implementation."""

import numpy as np
import pytest
import torch

from oplens.models import Preprocessing, check_consistency, load_checkpoint
from oplens.operators import diagonal

NAMES = ["scp1_1layer", "scp1_2layer_stride2"]


@pytest.fixture(params=NAMES)
def golden(request, shared_data):
    folder = shared_data / "golden" / "s4d_reference"
    with np.load(folder / f"{request.param}_expected.npz") as expected:
        return load_checkpoint(folder / f"{request.param}.pth", preprocessing="none"), dict(expected)


def apart(got, expected):
    return float(np.abs(got.detach().numpy() - expected).max())


def test_float64_to_1e9(golden):
    model, expected = golden
    model = model.as_float64()
    x = torch.from_numpy(expected["inputs"]).double()
    length = x.shape[1]
    assert apart(diagonal.kernel(model.s4_layers[0].system(), length), expected["kernel_layer0"]) < 1e-9
    assert apart(model(x), expected["logits"]) < 1e-9
    for mode in ("convolution", "recurrence"):
        trace = model.trace(x[:4], mode=mode)
        assert apart(trace.layers[0].z.transpose(1, 2), expected["preactivation_layer0"]) < 1e-9
        assert apart(trace.layers[-1].z.transpose(1, 2), expected["preactivation_last"]) < 1e-9
        assert apart(trace.logits, expected["logits"][:4]) < 1e-9


def test_float32_to_2e5(golden):
    model, expected = golden
    x = torch.from_numpy(expected["inputs"])
    for mode in ("convolution", "recurrence"):
        logits = model.trace(x, mode=mode).logits
        assert logits.dtype == torch.float32
        assert apart(logits, expected["logits"]) < 2e-5
    assert apart(model(x), expected["logits"]) < 2e-5
    trace = model.trace(x[:4])
    for z, key in ((trace.layers[0].z, "preactivation_layer0"), (trace.layers[-1].z, "preactivation_last")):
        assert apart(z.transpose(1, 2), expected[key]) < 2e-5 * np.abs(expected[key]).max()


def test_preprocessing_inside_the_model_equals_standardised_data(golden, shared_data):
    model, expected = golden
    mean, scale = (3.0, -1.0, 0.5, 10.0, 0.0, 2.0), (2.0, 0.1, 5.0, 1.0, 30.0, 0.7)
    name = NAMES[model.config.n_layers - 1]
    raw = torch.from_numpy(expected["inputs"]).double() * torch.tensor(scale) + torch.tensor(mean)
    path = shared_data / "golden" / "s4d_reference" / f"{name}.pth"
    model = load_checkpoint(path, preprocessing=Preprocessing(mean, scale)).as_float64()
    assert apart(model(raw), expected["logits"]) < 1e-5  # scale is float32-rounded in the inputs, no more


def test_the_modes_agree(golden, capsys):
    model, expected = golden
    found = check_consistency(model, expected["inputs"][:3, :200].transpose(0, 2, 1))
    assert found.worst("float32") < 3e-5
    assert found.worst("float64") < 1e-12
    printed = capsys.readouterr().out
    assert "recurrence" in printed
    assert "step" in printed
