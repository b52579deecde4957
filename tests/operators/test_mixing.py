"""Mixed convolution against sums over lags, and its written-out derivatives against automatic and numerical ones."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from oplens.operators import mixing
from oplens.operators.mixing import mixed_convolution, mixed_convolution_step


def inputs(length, batch=3, channels=2, features=4, dtype=torch.float64):
    rng = np.random.default_rng(length)
    shapes = ((batch, channels, length), (features, channels), (features, length))
    return [torch.from_numpy(rng.normal(size=shape)).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("function", [mixed_convolution, mixed_convolution_step])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 97])
def test_it_is_the_sum_over_lags(function, length):
    x, weights, response = inputs(length)
    u = np.einsum("hc,bct->bht", weights.detach().numpy(), x.detach().numpy())
    expected = np.zeros((3, 4, length))
    for t in range(length):
        for lag in range(t + 1):
            expected[..., t] += response[:, lag].detach().numpy() * u[..., t - lag]
    np.testing.assert_allclose(function(x, weights, response).detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_derivatives(length):
    assert gradcheck(mixed_convolution, inputs(length))
    assert gradgradcheck(mixed_convolution, inputs(length))
    assert gradcheck(mixed_convolution_step, inputs(length))


@pytest.mark.parametrize("block", [1, 200, 10**9])
def test_blocks_change_no_value_and_no_derivative(block, monkeypatch):
    monkeypatch.setattr(mixing, "_BLOCK", block)
    variables = inputs(50, batch=7)
    seed = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4, 50)))
    fast, slow = mixed_convolution_step(*variables), mixed_convolution(*variables)
    torch.testing.assert_close(fast, slow, rtol=1e-13, atol=1e-13)
    for got, expected in zip(
        torch.autograd.grad(fast, variables, seed), torch.autograd.grad(slow, variables, seed), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_second_derivative_is_refused_where_it_is_not_written_out():
    variables = inputs(5)
    (slope,) = torch.autograd.grad(mixed_convolution_step(*variables).square().sum(), variables[2], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
