"""The synthetic classes hold exactly what their names say."""

from typing import Any

import numpy as np
import pytest

from oplens.data import noisy_sinusoids
from oplens.errors import ArgumentError


def test_without_noise_each_case_solves_the_oscillator_of_its_class() -> None:
    """A sampled sinusoid of frequency f obeys x[t+1] = 2 cos(2 pi f / fs) x[t] - x[t-1], whatever its phase."""
    data = noisy_sinusoids(n_cases=10, frequencies=(15, 20), sampling_rate=128, n_timepoints=50, noise=0, seed=3)
    assert data.y is not None
    for x, label in zip(data.X[:, 0], data.y, strict=True):
        f = {"15 Hz": 15.0, "20 Hz": 20.0}[label]
        np.testing.assert_allclose(x[2:], 2 * np.cos(2 * np.pi * f / 128) * x[1:-1] - x[:-2], atol=1e-12)
        w = 2 * np.pi * f / 128
        amplitude = np.hypot(x[0], (x[1] - x[0] * np.cos(w)) / np.sin(w))
        np.testing.assert_allclose(amplitude, 1.0, atol=1e-12)


def test_phases_are_spread_over_the_circle() -> None:
    data = noisy_sinusoids(n_cases=4000, noise=0, n_timepoints=100, sampling_rate=100)
    assert data.y is not None
    for label in data.classes:
        f = float(label.split()[0])
        wave = np.exp(-2j * np.pi * f * np.arange(100) / 100)
        phase = np.angle(data.X[data.y == label, 0] @ wave)
        for k in (1, 2):
            assert abs(np.exp(1j * k * phase).mean()) < 4 / np.sqrt(2000)
        counts = np.histogram(phase, bins=8, range=(-np.pi, np.pi))[0]
        assert ((counts - 250) ** 2 / 250).sum() < 24.3  # chi-square, 7 degrees of freedom, 0.1 %


def test_noise_has_the_stated_deviation_and_is_white_and_gaussian() -> None:
    quiet = noisy_sinusoids(n_cases=200, noise=0, n_timepoints=500, seed=5)
    noise = (noisy_sinusoids(n_cases=200, noise=2.0, n_timepoints=500, seed=5).X - quiet.X)[:, 0]
    n = noise.size
    assert abs(noise.mean()) < 4 * 2 / np.sqrt(n)
    assert abs(noise.std() - 2) < 4 * 2 / np.sqrt(2 * n)
    assert abs((noise**4).mean() / noise.var() ** 2 - 3) < 4 * np.sqrt(24 / n)
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 4 * 4 / np.sqrt(n)


@pytest.mark.parametrize(("n_cases", "counts"), [(10, {5}), (11, {5, 6}), (2, {1})])
def test_classes_are_balanced(n_cases: int, counts: set[int]) -> None:
    data = noisy_sinusoids(n_cases=n_cases)
    assert data.y is not None
    assert {int((data.y == c).sum()) for c in data.classes} == counts


def test_order_is_shuffled_and_the_seed_decides_it() -> None:
    one, same, other = (noisy_sinusoids(n_cases=60, seed=s) for s in (1, 1, 2))
    assert one.y is not None
    assert same.y is not None
    assert other.y is not None
    np.testing.assert_array_equal(one.X, same.X)
    assert one.y.tolist() == same.y.tolist() != other.y.tolist()
    assert not np.array_equal(one.X, other.X)
    changes = int((one.y[1:] != one.y[:-1]).sum())
    assert 15 < changes < 45  # neither sorted (1 change) nor alternating (59)


def test_metadata() -> None:
    data = noisy_sinusoids(n_cases=6, frequencies=(2.5, 40, 7), sampling_rate=100, n_timepoints=30, seed=4)
    assert data.classes == ("2.5 Hz", "40 Hz", "7 Hz")
    assert (data.sampling_rate, data.X.shape, data.channels) == (100.0, (6, 1, 30), ("signal",))
    assert data.lengths.tolist() == [30] * 6
    assert "seed=4" in data.source


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "at Nyquist": ({"frequencies": (15, 50)}, r"50 Hz is not below the Nyquist frequency 50 Hz .*above 100 Hz"),
    "above Nyquist": ({"sampling_rate": 30}, r"15 Hz is not below the Nyquist frequency 15 Hz"),
    "frequency zero": ({"frequencies": (0, 10)}, r"0 Hz must be above 0"),
    "frequency negative": ({"frequencies": (10, -5)}, r"-5 Hz must be above 0"),
    "frequency NaN": ({"frequencies": (10, float("nan"))}, r"two or more frequencies"),
    "frequency text": ({"frequencies": ("15", "20")}, r"two or more frequencies"),
    "frequencies text": ({"frequencies": "15,20"}, r"two or more frequencies"),
    "frequencies a number": ({"frequencies": 15.0}, r"two or more frequencies"),
    "one frequency": ({"frequencies": (15,)}, r"two or more frequencies"),
    "equal frequencies": ({"frequencies": (15, 15.0)}, r"same frequency"),
    "rate zero": ({"sampling_rate": 0}, r"positive number of Hz"),
    "rate negative": ({"sampling_rate": -100.0}, r"positive number of Hz"),
    "rate infinite": ({"sampling_rate": float("inf")}, r"positive number of Hz"),
    "noise negative": ({"noise": -0.1}, r"noise=-0\.1.*0 or more"),
    "noise text": ({"noise": "loud"}, r"noise='loud'.*0 or more"),
    "one case": ({"n_cases": 1}, r"n_cases=1\).*each of the 2 classes"),
    "cases a float": ({"n_cases": 10.0}, r"n_cases=10\.0"),
    "cases a boolean": ({"n_cases": True, "frequencies": (15, 20)}, r"n_cases=True"),
    "one step": ({"n_timepoints": 1}, r"n_timepoints=1\).*at least 2 steps"),
    "seed negative": ({"seed": -1}, r"seed=-1"),
    "seed None": ({"seed": None}, r"seed=None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, pattern = REFUSED[name]
    with pytest.raises(ArgumentError, match=pattern) as caught:
        noisy_sinusoids(**options)
    assert str(caught.value).startswith("noisy_sinusoids")
    assert str(caught.value).endswith(".")
