"""Orders of the Wiener expansion against dense sums over sites, whose covariance is read off the running model by unit impulses."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss, hermeval
from scipy.special import ndtr

from oplens import S4D, S4DConfig, expand
from oplens.explanation import Margin
from oplens.explanation.prediction.prediction import Setting, moments
from oplens.explanation.prediction.wiener import Weights, WhiteNoise, _beyond, quadratic_form
from oplens.models import Preprocessing
from oplens.operators.polynomial import gelu_coefficients

NODES, MASSES = hermegauss(80)
MASSES = MASSES / MASSES.sum()


def gelu(z):
    return z * ndtr(z)


class Dense:
    """Sites of a small model with everything explicit: means (N,), covariance (N, N), weights omega (N,)."""

    def __init__(self, remove_offset, d_input=2, length=5, d_model=3, noise=0.6, seed=0):
        torch.manual_seed(seed)
        preprocessing = Preprocessing((0.3, -0.2)[:d_input], (0.8, 1.4)[:d_input], remove_offset)
        config = S4DConfig(
            d_input=d_input, n_classes=2, d_model=d_model, d_state=4, dt_max=0.4, preprocessing=preprocessing
        )
        self.model = S4D(config).double()
        rng = np.random.default_rng(seed)
        self.signal = rng.normal(size=(d_input, length))
        self.op = expand(self.model, rng.normal(size=(4, d_input, length)))
        factor = rng.normal(size=(d_input, d_input))
        self.sigma = noise**2 * (factor @ factor.T + 0.2 * np.eye(d_input))

        def z(x):
            with torch.no_grad():
                return self.model.trace(torch.from_numpy(x.T[None].copy())).layers[0].z[0].T.numpy().ravel()

        self.mean = z(self.signal)
        impulses = np.eye(d_input * length).reshape(-1, d_input, length)
        self.paths = np.stack([z(self.signal + e) - self.mean for e in impulses], axis=1)  # (N, d_input length)
        self.R = self.paths @ np.kron(self.sigma, np.eye(length)) @ self.paths.T
        W = (self.model.decoder.weight[1] - self.model.decoder.weight[0]).detach().numpy()
        self.omega = np.repeat(W, length) / length
        self.shape = (d_model, length)

    def coefficients(self, order):
        """c_k(x) by quadrature, (order + 1, N)."""
        s = np.sqrt(np.diag(self.R))
        values = gelu(self.mean[:, None] + s[:, None] * NODES)
        rows = [
            self.omega * (values * hermeval(NODES, np.eye(order + 1)[k]) @ MASSES) / math.factorial(k) / s**k
            for k in range(order + 1)
        ]
        return np.stack(rows)

    def setting(self):
        names = self.model.config.classes
        return Setting.of(self.op, self.shape[1], torch.from_numpy(self.sigma), Margin(names[1], names[0]))


@pytest.mark.parametrize("remove_offset", [False, True])
def test_covariances_are_those_of_unit_impulses_through_the_model(remove_offset):
    dense = Dense(remove_offset)
    noise = dense.setting().noise
    d_model, length = dense.shape
    found = np.full((d_model, length, d_model, length), np.nan)
    for h, rows, block in noise.blocks():
        found[h, rows, h:] = block.numpy()
        found[h:, :, h, rows] = block.numpy().transpose(1, 2, 0)
    found = noise.scale**2 * found.reshape(d_model * length, -1)
    np.testing.assert_allclose(found, dense.R, atol=1e-13)
    np.testing.assert_allclose(noise.scale**2 * noise.variance.numpy().ravel(), np.diag(dense.R), atol=1e-13)


@pytest.mark.parametrize("remove_offset", [False, True])
def test_variances_by_order_are_dense_sums(remove_offset):
    dense = Dense(remove_offset)
    found = moments(dense.setting(), dense.signal[None], 5)
    c = dense.coefficients(5)
    expected = [math.factorial(k) * c[k] @ dense.R**k @ c[k] for k in range(1, 6)]
    np.testing.assert_allclose(found.by_order[:, 0, 0], expected, rtol=1e-9, atol=1e-16)
    bias = (dense.model.decoder.bias[1] - dense.model.decoder.bias[0]).item()
    assert found.mean[0, 0] == pytest.approx(c[0].sum() + bias, rel=1e-11)


def quadrature(dense, nodes=36):
    """Exact mean and variance of the margin over all noise, by a tensor product of Gauss-Hermite nodes."""
    x, w = hermegauss(nodes)
    w = w / w.sum()
    size = dense.signal.size
    grid = np.stack([g.ravel() for g in np.meshgrid(*[x] * size, indexing="ij")], axis=-1)
    mass = np.prod(np.stack([g.ravel() for g in np.meshgrid(*[w] * size, indexing="ij")]), axis=0)
    noise = np.einsum("cd,bdt->bct", np.linalg.cholesky(dense.sigma), grid.reshape(-1, *dense.signal.shape))
    with torch.no_grad():
        logits = dense.model(torch.from_numpy(dense.signal + noise).transpose(1, 2)).numpy()
    margin = logits[:, 1] - logits[:, 0]
    mean = mass @ margin
    return mean, mass @ (margin - mean) ** 2


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_true_variance_lies_between_the_cut_and_its_bound_at_every_order(noise):
    dense = Dense(False, d_input=1, length=3, d_model=3, noise=noise)
    mean, variance = quadrature(dense)
    for orders in (1, 2, 3, 5, 8, 14):
        found = moments(dense.setting(), dense.signal[None], orders)
        assert found.mean[0, 0] == pytest.approx(mean, abs=1e-10)
        low, high = found.variance[0, 0], found.variance_bound[0, 0]
        assert low <= variance * (1 + 1e-9)
        assert variance <= high * (1 + 1e-9)
        missing, bound = variance - low, high - low
        assert bound < 10 * missing + 1e-9 * variance  # and not by far


@pytest.mark.parametrize("remove_offset", [False, True])
def test_orders_one_and_two_are_a_quadratic_form_of_the_noise(remove_offset):
    dense = Dense(remove_offset)
    setting = dense.setting()
    weights = Weights.of(setting.noise, setting.means(dense.signal[None]), setting.readout, 3)
    slope, form = quadratic_form(setting.noise, weights, 0)
    c = dense.coefficients(2)
    paths = dense.paths @ np.kron(setting.root, np.eye(dense.shape[1]))
    np.testing.assert_allclose(slope, c[1] @ paths, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(form, paths.T @ np.diag(c[2]) @ paths, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("mean", "variance"), [(0.4, 1e-4), (0.4, 0.3), (-2.0, 1.5), (3.0, 40.0), (-6.0, 0.5)])
def test_the_rest_of_a_site_is_bounded_closely_in_small_and_large_noise(mean, variance):
    one = torch.ones(1, 1, dtype=torch.float64)
    noise = WhiteNoise(one, one * math.sqrt(variance), 1.0, False)
    m, v = mean * one, noise.variance[0]
    d = gelu_coefficients(m.reshape(-1), v, 3)[None]
    s = math.sqrt(variance)
    x = np.linspace(-12, 12, 240_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    left = gelu(mean + s * x)
    for k in range(4):  # what a projection on the first orders leaves
        left = left - (left * hermeval(x, np.eye(4)[k]) @ density) / math.factorial(k) * hermeval(x, np.eye(4)[k])
    true = left**2 @ density
    found = float(_beyond(m[None], noise, d[:, None])[0, 0, 0])
    assert true <= found * (1 + 1e-6)
    assert found < 2 * true + 1e-14
