"""Running a built S4D beside its kernels: impulses, steps, noise, and the very inputs that cause the largest error of first order."""

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.construction import ssm_certificate
from oplens.construction.realisation import stored_parameters
from oplens.construction.ssm import DTYPES, stored_dtype
from oplens.construction.volterra import Volterra, volterra
from oplens.errors import ArgumentError
from oplens.models.s4d import S4D
from oplens.theory.statement import count, number

Extended = NDArray[np.longdouble]


@dataclass(frozen=True)
class SignalCheck:
    """One input through the model in one dtype.

    Parameters
    ----------
    dtype, signal : str
    steps : int
    largest_error : float
        max abs(output - kernels applied to the input), over steps and outputs.
    bound : float
        The certificate's, in this dtype and for this length.
    """

    dtype: str
    signal: str
    steps: int
    largest_error: float
    bound: float

    @property
    def passed(self) -> bool:
        """The error is under the bound."""
        return self.largest_error <= self.bound


@dataclass(frozen=True)
class SignalVerification:
    """What was run and what was found; claim *measured*.

    Parameters
    ----------
    input_bound : float
    length, seed : int
    checks : tuple of SignalCheck
    kernels : tuple of KernelError
        As stored, in the first dtype.
    """

    input_bound: float
    length: int
    seed: int
    checks: tuple[SignalCheck, ...]
    kernels: tuple[ssm_certificate.KernelError, ...]
    mode: str = "sampled"
    claim: str = "measured"

    @property
    def passed(self) -> bool:
        """No error was above its bound."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            **dataclasses.asdict(self),
            "checks": [{**dataclasses.asdict(check), "passed": check.passed} for check in self.checks],
            "kernels": [{**dataclasses.asdict(item), "relative": item.relative} for item in self.kernels],
            "passed": self.passed,
        }

    def __str__(self) -> str:
        """All of it as lines of text."""
        lines = [
            f"signals of size {self.input_bound:g}, {self.length:,} steps, seed {self.seed}; kernels in extended precision beside"
        ]
        lines += [
            f"  {check.dtype}, {check.signal}: largest error {check.largest_error:.4g}, certified {check.bound:.4g}"
            for check in self.checks
        ]
        return "\n".join(lines)


def verify_ssm(
    model: S4D,
    kernel1: Any = None,
    kernel2: Any = None,
    constant: float | Sequence[float] = 0.0,
    dtypes: Sequence[Any] | None = None,
    *,
    input_bound: float = 1.0,
    length: int = 1024,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SignalVerification:
    """Run a model on signals of size R and compare with its kernels.

    Parameters
    ----------
    model : S4D
        Made by :func:`build_ssm` from these kernels.
    kernel1, kernel2, constant
        As given to :func:`build_ssm`.
    dtypes : sequence of str or torch.dtype, optional
        The weights are converted to each, and certified anew; omitted: the model's own.
    input_bound : float
        R: every signal attains it.
    length : int
        Steps of the signals.
    seed : int
        Of the noise.
    progress : callable, optional
        Called with (signals done, signals in all).

    Returns
    -------
    SignalVerification

    Raises
    ------
    ArgumentError
        If the model does not have the kernels' sizes or the form that :func:`build_ssm` writes.

    Notes
    -----
    Signals: an impulse, a step, a fast and a slow sinusoid, white noise, and per output the sign of its reversed first-order kernel error,
    which no input of this size and length beats. Outputs are compared with sums over lags in extended precision, the kernels rounded
    from balls to float64; what a second-order kernel's decomposition left over is in the bound, not in the run. Accuracy: *measured*.
    Cost: O(length^2) per feature and signal.

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> from oplens.construction.ssm import build_ssm
    >>> kernel = ExponentialSum.butterworth(2, 0.2)
    >>> found = verify_ssm(build_ssm(kernel)[0], kernel, dtypes=["float64", "float32"], length=128)
    >>> found.passed, len(found.checks)
    (True, 12)
    """
    call = "verify_ssm"
    series = volterra(call, kernel1, kernel2, constant)
    ssm_certificate.check(call, model, series)
    R, steps = number(call, "input_bound", input_bound, open_below=True), count(call, "length", length, most=2**14)
    names, seed = _dtypes(call, model, dtypes), count(call, "seed", seed, 0)
    responses = [np.array(feature.kernel.balls.response(steps)) for feature in series.features]
    checks: list[SignalCheck] = []
    total = len(names) * (5 + series.n_outputs)
    for name in names:
        converted = copy.deepcopy(model).to(DTYPES[name]).eval().requires_grad_(False)
        exact = [False] * len(series.features)
        bound = ssm_certificate.certify(converted, series, exact, R, steps).error_bound
        for signal, values in signals(converted, series, R, steps, seed):
            x = torch.from_numpy(values).to(DTYPES[name])
            with torch.no_grad():
                output = converted(x[None])[0].double().numpy()
            expected = kernel_outputs(series, responses, x.double().numpy())
            error = float(np.abs(output - expected).max())
            checks.append(SignalCheck(name, signal, steps, error, bound))
            if progress is not None:
                progress(len(checks), total)
    kernels = ssm_certificate.kernel_errors(copy.deepcopy(model).to(DTYPES[names[0]]), series)
    return SignalVerification(R, steps, seed, tuple(checks), tuple(kernels))


def _dtypes(call: str, model: S4D, dtypes: Sequence[Any] | None) -> list[str]:
    if dtypes is None:
        return [stored_dtype(call, model.decoder.weight.dtype)]
    if isinstance(dtypes, (str, torch.dtype)) or not dtypes:
        raise ArgumentError(f"{call}(dtypes={dtypes!r}): give a list of dtypes, such as ['float64', 'float32'].")
    return [stored_dtype(call, dtype) for dtype in dtypes]


def signals(model: S4D, series: Volterra, R: float, steps: int, seed: int) -> list[tuple[str, NDArray[np.float64]]]:
    """Named inputs (steps, n_channels)."""
    size = (steps, series.n_channels)
    t = np.arange(steps)[:, None] + np.zeros(size)
    impulse = np.zeros(size)
    impulse[0] = R
    noise = np.random.default_rng(seed).uniform(-R, R, size)
    found = [
        ("impulse", impulse),
        ("step", np.full(size, R)),
        ("slow sinusoid", R * np.sin(2 * math.pi * 3 * t / steps)),
        ("fast sinusoid", R * np.cos(2 * math.pi * 0.23 * t)),
        ("white noise", noise),
    ]
    for output in range(series.n_outputs):
        error = np.zeros(size)
        for h, feature in enumerate(series.features):
            if (feature.output, feature.order) == (output, 1):
                difference = feature.kernel.balls.minus(stored_parameters(model, h).balls)
                error += np.outer(np.array(difference.response(steps))[::-1], feature.mixing)
        # Where a kernel has no error, or no first order, the sign of noise does as well.
        found.append((f"worst for output {output}", R * np.where(error == 0, np.sign(noise), np.sign(error))))
    return found


def kernel_outputs(
    series: Volterra, responses: list[NDArray[np.float64]], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The kernels applied to x (steps, n_channels) in extended precision: (steps, n_outputs)."""
    total: Extended = np.zeros((len(x), series.n_outputs), dtype=np.longdouble) + np.array(series.constants)
    for feature, response in zip(series.features, responses, strict=True):
        mixed = x.astype(np.longdouble) @ np.array(feature.mixing, dtype=np.longdouble)
        z = np.convolve(response.astype(np.longdouble), mixed)[: len(x)]
        total[:, feature.output] += np.longdouble(feature.weight) * z**feature.order
    return total.astype(np.float64)
