"""S4D-Lin, -Inv and -Real against the formulas of arXiv 2206.11893, and models that start from them."""

import json
import math

import numpy as np
import pytest
import torch

from oplens.errors import ArgumentError
from oplens.models import S4D, S4DConfig
from oplens.operators.initialisation import initial_poles
from oracles import discrete, recurrence


def formula(initialisation, n, N):
    if initialisation == "lin":
        return complex(-0.5, math.pi * n)
    if initialisation == "inv":
        return complex(-0.5, N / math.pi * (N / (2 * n + 1) - 1))
    return complex(-(n + 1), 0)


def poles(kernel):
    return -np.exp(kernel.log_A_real.detach().double().numpy()) + 1j * kernel.A_imag.detach().double().numpy()


@pytest.mark.parametrize("d_state", [2, 8, 64])
@pytest.mark.parametrize("initialisation", ["lin", "inv", "real"])
def test_models_start_at_the_poles_of_the_paper(initialisation, d_state):
    kernel = S4D(S4DConfig(1, 2, d_model=3, d_state=d_state, initialisation=initialisation)).layer(0).kernel
    expected = np.array([formula(initialisation, n, d_state) for n in range(d_state // 2)])
    for row in poles(kernel):
        np.testing.assert_allclose(row.real, expected.real, rtol=3e-7)
        np.testing.assert_allclose(row.imag, expected.imag, rtol=3e-7)


@pytest.mark.parametrize("architecture", ["plain", "reference"])
def test_a_seed_gives_the_weights_it_always_gave_and_the_same_ones_beside_other_poles(architecture):
    found = {}
    for initialisation in ("lin", "inv", "real"):
        torch.manual_seed(5)
        config = S4DConfig(2, 3, d_model=4, d_state=16, architecture=architecture, initialisation=initialisation)
        found[initialisation] = S4D(config).state_dict()
    for name, value in found["lin"].items():
        if name.endswith("log_A_real"):
            assert torch.equal(value, torch.log(0.5 * torch.ones(4, 8)))
        elif name.endswith("A_imag"):
            assert torch.equal(value, math.pi * torch.arange(8).repeat(4, 1).float())
        else:
            assert torch.equal(value, found["inv"][name]), name
            assert torch.equal(value, found["real"][name]), name
    torch.manual_seed(5)  # the order in which numbers were drawn before there was a choice
    encoder = torch.nn.Linear(2, 4)
    D, log_dt = torch.randn(4), torch.rand(4) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
    C = torch.view_as_real(torch.randn(4, 8, dtype=torch.cfloat))
    assert torch.equal(found["lin"]["encoder.weight"], encoder.weight)
    assert torch.equal(found["lin"]["s4_layers.0.D"], D)
    assert torch.equal(found["lin"]["s4_layers.0.kernel.log_dt"], log_dt)
    assert torch.equal(found["lin"]["s4_layers.0.kernel.C"], C)


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize("initialisation", ["lin", "inv", "real"])
def test_convolution_recurrence_and_step_equal_a_plain_loop(initialisation, discretisation):
    torch.manual_seed(1)
    config = S4DConfig(2, 2, d_model=3, d_state=8, initialisation=initialisation, discretisation=discretisation)
    model = S4D(config).as_float64()
    layer, x = model.layer(0), torch.randn(2, 50, 2, dtype=torch.float64)
    u = (x @ model.encoder.weight.T + model.encoder.bias).transpose(1, 2).numpy()
    a, b = discrete(poles(layer.kernel), np.exp(layer.kernel.log_dt.numpy()), discretisation)
    z, _ = recurrence((a, b, torch.view_as_complex(layer.kernel.C).numpy(), layer.D.numpy()), u)
    for mode in ("convolution", "recurrence", "step"):
        found = model.trace(x, mode=mode).layers[0].z.transpose(1, 2).numpy()
        assert np.abs(found - z).max() < 1e-10 * np.abs(z).max(), mode


def test_the_initialisation_travels_with_a_model_and_older_files_have_the_default(tmp_path):
    model = S4D(S4DConfig(1, 2, d_model=2, d_state=4, initialisation="inv"))
    model.save_pretrained(tmp_path)
    loaded = S4D.from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert loaded.config.initialisation == "inv"
    header = json.loads((tmp_path / "config.json").read_text())
    del header["config"]["initialisation"]
    (tmp_path / "config.json").write_text(json.dumps(header))
    older = S4D.from_pretrained(tmp_path)
    assert older.config.initialisation == "lin"
    assert torch.equal(older.layer(0).kernel.A_imag, model.layer(0).kernel.A_imag)


def test_unknown_initialisations_are_refused():
    with pytest.raises(ArgumentError, match=r"initialisation='legs'.*lin, inv, real"):
        S4DConfig(1, 2, initialisation="legs")
    with pytest.raises(ArgumentError, match="lin, inv, real"):
        initial_poles("legs", 4)
    for d_state in (0, 3, -2):
        with pytest.raises(ArgumentError, match="even"):
            initial_poles("lin", d_state)
