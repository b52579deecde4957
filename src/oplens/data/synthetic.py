"""Seeded signals whose classes are known by construction."""

import math
from collections.abc import Sequence

import numpy as np

from oplens.data.sequences import SequenceData
from oplens.errors import ArgumentError


def noisy_sinusoids(
    *,
    n_cases: int = 200,
    frequencies: Sequence[float] = (15.0, 20.0),
    sampling_rate: float = 100.0,
    n_timepoints: int = 200,
    noise: float = 0.5,
    seed: int = 0,
) -> SequenceData:
    r"""Return sinusoids of random phase in Gaussian noise, one class per frequency.

    .. math:: x(t) = \sin(2 \pi f t / f_s + \varphi) + \sigma \varepsilon_t, \quad
              \varphi \sim U[0, 2\pi), \; \varepsilon_t \sim N(0, 1)

    The phase is random, so no linear function of the samples tells the classes apart: the spectrum has to.

    Parameters
    ----------
    n_cases : int
        Cases over all classes; class counts differ by at most one, and the order is shuffled.
    frequencies : sequence of float
        Frequency of each class in Hz, two or more, above 0 and below ``sampling_rate / 2``.
    sampling_rate : float
        Steps per second (Hz).
    n_timepoints : int
        Steps per case.
    noise : float
        Standard deviation of the noise; the amplitude of the sinusoid is 1.
    seed : int
        Seed of ``numpy.random.default_rng``; the same arguments give the same values.

    Returns
    -------
    SequenceData
        X (n_cases, 1, n_timepoints); classes ``"15 Hz"``, ``"20 Hz"``, ... in the order of `frequencies`.

    Raises
    ------
    ArgumentError
        When an argument cannot work, such as a frequency at or above Nyquist.

    Examples
    --------
    >>> data = noisy_sinusoids(n_cases=6, seed=1)
    >>> data.X.shape, data.classes, sorted(data.y.tolist())
    ((6, 1, 200), ('15 Hz', '20 Hz'), ['15 Hz', '15 Hz', '15 Hz', '20 Hz', '20 Hz', '20 Hz'])
    """
    rate = _number("sampling_rate", sampling_rate, "a positive number of Hz")
    if rate <= 0:
        raise ArgumentError(f"noisy_sinusoids(sampling_rate={sampling_rate!r}): expected a positive number of Hz.")
    sigma = _number("noise", noise, "a standard deviation of 0 or more")
    if sigma < 0:
        raise ArgumentError(f"noisy_sinusoids(noise={noise!r}): expected a standard deviation of 0 or more.")
    hertz = _frequencies(frequencies, rate)
    n = _count("n_cases", n_cases, len(hertz), f"at least one case of each of the {len(hertz)} classes")
    steps = _count("n_timepoints", n_timepoints, 2, "at least 2 steps")
    seed = _count("seed", seed, 0, "a whole number of 0 or more")
    rng = np.random.default_rng(seed)

    index = rng.permutation(np.arange(n) % len(hertz))
    phase = rng.uniform(0.0, 2.0 * np.pi, size=n)
    time = np.arange(steps) / rate
    signal = np.sin(2.0 * np.pi * np.array(hertz)[index, None] * time + phase[:, None])
    signal += sigma * rng.standard_normal((n, steps))
    classes = tuple(f"{f:.15g} Hz" for f in hertz)
    return SequenceData(
        X=signal[:, None, :],
        lengths=np.full(n, steps, dtype=np.int64),
        y=np.array(classes)[index],
        channels=("signal",),
        classes=classes,
        sampling_rate=rate,
        name="noisy sinusoids",
        source=(
            f"noisy_sinusoids(n_cases={n}, frequencies={tuple(hertz)}, sampling_rate={rate}, "
            f"n_timepoints={steps}, noise={sigma}, seed={seed})"
        ),
    )


def _frequencies(frequencies: Sequence[float], rate: float) -> list[float]:
    expected = "two or more frequencies in Hz, such as (15.0, 20.0)"
    if isinstance(frequencies, str):
        raise ArgumentError(f"noisy_sinusoids(frequencies={frequencies!r}): expected {expected}.")
    try:
        hertz = [_number("frequencies", f, expected) for f in frequencies]
    except TypeError:
        raise ArgumentError(f"noisy_sinusoids(frequencies={frequencies!r}): expected {expected}.") from None
    if len(hertz) < 2:
        raise ArgumentError(f"noisy_sinusoids(frequencies={frequencies!r}): expected {expected}.")
    for f in hertz:
        if f <= 0:
            raise ArgumentError(f"noisy_sinusoids: the frequency {f:g} Hz must be above 0.")
        if f >= rate / 2:
            raise ArgumentError(
                f"noisy_sinusoids: {f:g} Hz is not below the Nyquist frequency {rate / 2:g} Hz of "
                f"sampling_rate={rate:g} and would alias; raise sampling_rate above {2 * f:g} Hz."
            )
    if len({f"{f:.15g}" for f in hertz}) < len(hertz):
        raise ArgumentError(f"noisy_sinusoids(frequencies={tuple(hertz)}): two classes have the same frequency.")
    return hertz


def _number(name: str, value: object, expected: str) -> float:
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number):
            return number
    raise ArgumentError(f"noisy_sinusoids({name}={value!r}): expected {expected}.")


def _count(name: str, value: object, least: int, expected: str) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise ArgumentError(f"noisy_sinusoids({name}={value!r}): expected {expected}.")
