"""The operator as a model: its logits against the network's polynomial in a time loop, its kernels against autograd."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, S4DConfig, expand
from oplens.data import noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.models import Preprocessing


def small_operator(family="hermite", order=2, ragged=False):
    torch.manual_seed(1)
    preprocessing = Preprocessing((0.3, -0.2), (1.5, 0.7))
    model = S4D(S4DConfig(d_input=2, n_classes=3, d_model=3, d_state=6, dt_max=0.4, preprocessing=preprocessing))
    rng = np.random.default_rng(0)
    lengths = [17, 9, 13, 17] if ragged else [17] * 4
    X = [rng.normal(size=(2, n)) + 0.5 for n in lengths]
    return expand(model, X, family=family, order=order), X


def polynomial(op, z):
    """p(z) by He polynomials from numpy, feature by feature; z (..., d_model)."""
    c, v, d = (t.numpy() for t in (op.expansion.centre, op.expansion.variance, op.expansion.coefficients))
    out = np.empty_like(z)
    for h in range(z.shape[-1]):
        w, s = z[..., h] - c[h], math.sqrt(v[h])
        if s == 0:
            out[..., h] = np.polynomial.polynomial.polyval(w, d[h])
        else:
            out[..., h] = np.polynomial.hermite_e.hermeval(w / s, [d[h, k] * s**k for k in range(d.shape[1])])
    return out


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("family", "order"), [("hermite", 1), ("hermite", 2), ("hermite", 5), ("taylor", 2), ("taylor", 4)]
)
def test_the_operator_alone_gives_the_truncated_logits(family, order, ragged):
    op, X = small_operator(family, order, ragged)
    found = op(X)
    for case, x in enumerate(X):
        trace = op.model.trace(torch.from_numpy(x.T.copy())[None], mode="step")
        pooled = polynomial(op, trace.layers[0].z.numpy()).mean(1)
        expected = pooled @ op.model.decoder.weight.numpy().T + op.model.decoder.bias.numpy()
        np.testing.assert_allclose(found[case], expected[0], atol=1e-12)
    np.testing.assert_allclose(found, op.explain(X).truncated_logits.values[-1], atol=1e-12)


@pytest.mark.parametrize(("family", "order"), [("hermite", 2), ("hermite", 4), ("taylor", 3)])
def test_the_kernels_are_the_derivatives_at_no_input(family, order):
    op, _ = small_operator(family, order)
    length = 11
    ds = op.kernels(length)

    def logits(x):  # the polynomial network in torch, from the preprocessed input (d_input, length)
        u = op.model.encoder.weight @ x + op.model.encoder.bias[:, None]
        system = op.system
        state = torch.zeros(3, 3, dtype=torch.complex128)
        total = torch.zeros(3, dtype=torch.float64)
        for t in range(length):
            state = system.a * state + system.b * u[:, t, None]
            w = 2 * (system.C * state).real.sum(-1) + system.D * u[:, t] - op.expansion.centre
            values = [torch.ones_like(w), w]
            for k in range(1, order):
                values.append(w * values[k] - k * op.expansion.variance * values[k - 1])
            total = total + sum(op.expansion.coefficients[:, k] * values[k] for k in range(order + 1))
        return op.model.decoder.weight @ (total / length) + op.model.decoder.bias

    zero = torch.zeros(2, length, dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(logits, zero)
    np.testing.assert_allclose(ds.h1, gradient.numpy(), atol=1e-13)
    response = np.zeros((3, length, length))
    for s in range(length):
        for t in range(s + 1):
            response[:, s, t] = ds.response.values[:, s - t]
    for index in range(3):
        hessian = torch.autograd.functional.hessian(lambda x, i=index: logits(x)[i], zero).numpy()
        W, E, a2 = ds.readout.values[index], ds.encoder.values, ds.coefficient.values[2]
        second = np.einsum("h,hd,he,hs,hst,hsr->dter", W, E, E, a2 / length, response, response)
        np.testing.assert_allclose(2 * second, hessian, atol=1e-13)


def test_the_error_against_the_model_is_the_remainder():
    train = noisy_sinusoids(n_cases=20, n_timepoints=64, seed=0)
    torch.manual_seed(0)
    op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8)), train, order=3)
    ds = op.explain(train)
    logits = op(train)
    margin = logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(ds.target - margin, ds.remainder, atol=1e-12)


def test_a_length_of_numpy_is_a_length():
    op = small_operator()[0]
    np.testing.assert_array_equal(op.kernels(np.int64(7)).h1, op.kernels(7).h1)


def test_what_has_no_kernels_is_a_sentence():
    op, X = small_operator()
    with pytest.raises(ArgumentError, match="at least 1"):
        op.kernels(0)
    with pytest.raises(ArgumentError, match="above the limit"):
        op.kernels(10**9)
    with pytest.raises(ArgumentError, match="2 input channels"):
        op(np.zeros((1, 3, 10)))
    reference = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=3, d_state=4, architecture="reference")), X)
    for call in (lambda: reference(X), lambda: reference.kernels(5)):
        with pytest.raises(ArgumentError, match="gates and norms"):
            call()
