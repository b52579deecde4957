"""Building a state-space model from kernels and explaining it gives the kernels back: construction and explanation are inverse."""

import numpy as np
import pytest
from scipy import signal

from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.construction.ssm import build_ssm
from oplens.explanation import Bands, Channels, Waves, expand

LAGS = 60
FILTERS = {
    "low": (2, 0.3, "low"),
    "high": (3, 0.2, "high"),
    "band": (2, (0.2, 0.4), "bandpass"),
    "low 8": (8, 0.25, "low"),
}


def cases(n_channels, n_cases=3, length=LAGS):
    return np.random.default_rng(1).normal(size=(n_cases, n_channels, length))


def impulse_response(order, cutoff, band, length=LAGS):
    return signal.sosfilt(signal.butter(order, cutoff, band, output="sos"), np.eye(1, length)[0])


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_comes_back(name):
    design = FILTERS[name]
    model, certificate = build_ssm(ExponentialSum.butterworth(design[0], design[1], band=design[2]), constant=0.25)
    found = expand(model, cases(1), order=1).kernels(LAGS)
    h1 = found.h1.values
    assert h1.shape == (1, 1, LAGS)
    assert np.abs(h1[0, 0] - impulse_response(*design)).max() < 1e-12
    # What the certificate says of the stored weights holds of what comes back.
    assert (
        np.abs(h1[0, 0] - impulse_response(*design)).sum() < dict(certificate.rounding_parts)["stored weights"] + 1e-12
    )
    assert found.h0.values.tolist() == [0.25]


def test_first_and_second_order_of_several_channels_come_back():
    poles, M = [0.8, -0.5], np.array([[1.0, 0.4], [0.4, -2.0]])
    mixing = (1.0, -0.5)
    squares = SecondOrderKernel.from_exponentials(poles, M, mixing)
    fast = ExponentialSum([0.5], [1.0])
    slow = ExponentialSum.butterworth(2, 0.3)
    model, _ = build_ssm([[fast, None], [slow, fast]], [None, squares], [1.5, -2.0])
    found = expand(model, cases(2), order=2).kernels(30)
    t = np.arange(30)
    leak, low = 0.5**t, impulse_response(2, 0.3, "low", 30)
    h1 = np.array([[leak, 0 * leak], [low, leak]])
    powers = np.array([np.power(p, t) for p in poles])
    square = np.einsum("ab,as,bt->st", M, powers, powers)
    h2 = np.zeros((2, 2, 2, 30, 30))
    h2[1] = np.multiply.outer(np.outer(mixing, mixing), square)
    assert found.h1.dims == ("class", "channel", "lag")
    assert np.abs(found.h1.values - h1).max() < 1e-13
    assert np.abs(found.h2.transpose("class", "channel", "channel_2", "lag", "lag_2").values - h2).max() < 1e-12
    np.testing.assert_allclose(found.h0.values, [1.5, -2.0], rtol=1e-13)


def test_an_approximated_template_comes_back_within_its_certificate():
    template = np.hanning(24) * np.cos(np.arange(24) / 3)
    model, certificate = build_ssm(FiniteKernel.matched(template), n_modes=5)
    found = expand(model, cases(1), order=1).kernels(400).h1.values[0, 0]
    distance = np.abs(found - np.pad(template[::-1], (0, 400 - 24))).sum()
    assert 1e-6 < distance < dict(certificate.error_parts)["kernels"] < 1.01 * distance


def test_the_waves_that_explain_are_the_poles_that_built():
    poles = [0.9 * np.exp(0.7j), 0.9 * np.exp(-0.7j), 0.6]
    model, _ = build_ssm(ExponentialSum(poles, [0.5 - 0.2j, 0.5 + 0.2j, 1.0]), n_modes=3, sampling_rate=100.0)
    op = expand(model, cases(1), order=1)
    a = op.system.a[0].numpy()
    assert min(abs(a - poles[0])) < 1e-14
    assert min(abs(a - poles[2])) < 1e-14
    # The shares of waves, of channels and of bands each add up to the filter's own answer at the last step; the padding has none.
    X = cases(1)
    t = np.arange(LAGS)
    kernel = 2 * ((0.5 - 0.2j) * poles[0] ** t).real + 0.6**t
    last = np.array([kernel @ case[0, ::-1] for case in X])
    for by in (Waves(), Channels(), Bands([(0.0, 5.0), (5.0, 20.0)])):
        ds = op.explain(X, by=by, at=-1)
        parts = [
            ds[name].sum([d for d in ds[name].dims if d not in ("case", "class")])
            for name in ds
            if name.endswith("share")
        ]
        explained = ds.order_0 + sum(part for part in parts if not part.name.startswith(("full", "source_full")))
        assert np.abs(explained.values[:, 0] - last).max() < 1e-12
        assert np.abs(ds.remainder.values).max() == 0
    assert np.abs(op.explain(X, by=Waves(), at=-1).share.values[..., 2]).max() == 0
    assert np.abs(op(X)[:, -1, 0] - last).max() < 1e-12


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_operator_alone_answers_as_the_filter_does(dtype):
    kernel2 = SecondOrderKernel([ExponentialSum([0.6], [1.0])], [0.5])
    model, certificate = build_ssm(
        ExponentialSum.butterworth(4, 0.2), kernel2, dtype=dtype, input_bound=5.0, length=LAGS
    )
    X = cases(1).clip(-5, 5)
    low = signal.sosfilt(signal.butter(4, 0.2, output="sos"), X[:, 0])
    expected = low + 0.5 * signal.lfilter([1.0], [1.0, -0.6], X[:, 0]) ** 2
    found = expand(model, X, order=2)(X)[..., 0]
    assert np.abs(found - expected).max() < certificate.error_bound
    assert np.abs(found - expected).max() < (1e-12 if dtype == "float64" else 1e-4)
