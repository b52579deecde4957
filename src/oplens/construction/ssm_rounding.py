r"""Bound on what floating point adds to a run of a built S4D.

Rounding of a run of L steps, u the dtype's, u64 that of float64 (kernels are computed in it), n the FFT's length:

    kernel     sum_n 2 abs(c_n) u64 (4 abs(log a_n) m/(1 - m)^2 + (30 + 4 P)/(1 - m)) + u norm1(k'), m = abs(a_n)
    transform  (3 phi + 8 u + gamma_C) norm2(k') R sqrt(L), phi = (1 + 8 u)^log2(n) - 1, C channels: by Parseval and Cauchy-Schwarz
    readout    of z^2: 2 Z d + d^2 + u Z^2, with abs(z) <= Z and d the two above;  decoder: gamma_(H + 1) sum abs(w' g) + abs(bias)

phi is the relative error of a transform in the 2-norm, and of an output relative to its summands' absolute sum (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, theorem 24.2, for radix 2 with accurate twiddle factors); that the library's transform is as good
is a hypothesis.
"""

import math

import numpy as np
import torch

from oplens.construction.realisation import Parameters, stored_parameters
from oplens.construction.volterra import Volterra
from oplens.models.s4d import S4D
from oplens.operators.diagonal import fft_length

_LEVEL = 8.0  # roundings per level of a transform; Higham's analysis gives 1 + gamma_4 (sqrt(2) + mu) / u, below 7
_U64 = 2.0**-53


def run_rounding(model: S4D, series: Volterra, R: float, length: int) -> list[float]:
    """Bound per output on what rounding adds to a run of at most `length` steps with abs(x) <= R.

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> from oplens.construction.ssm import build_ssm
    >>> from oplens.construction.volterra import volterra
    >>> kernel = ExponentialSum([0.5], [1.0])
    >>> model, _ = build_ssm(kernel)
    >>> 1e-15 < run_rounding(model, volterra("example", kernel, None, 0.0), 1.0, 256)[0] < 1e-12
    True
    """
    u = _U64 if model.decoder.weight.dtype == torch.float64 else 2.0**-24
    phi = math.expm1(math.log2(fft_length(length)) * math.log1p(_LEVEL * u))
    channels, features = model.config.d_input + 1, model.config.d_model
    transform = (3 * phi + 8 * u + _gamma(channels, u)) * math.sqrt(length)
    totals = [0.0] * series.n_outputs
    sizes = [0.0] * series.n_outputs
    for h, feature in enumerate(series.features):
        parameters, c = stored_parameters(model, h), feature.output
        norm1, norm2 = parameters.balls.norms(4096)
        with torch.no_grad():
            inner = R * float(model.encoder.weight[h].double().abs().sum())
            weight = abs(float(model.decoder.weight[c, h]))
        kernel = _kernel_rounding(parameters) + u * norm1
        error = inner * (kernel + transform * (norm2 + kernel)) * 1.01  # products of roundings
        largest = inner * norm1
        if feature.order == 1:
            totals[c] += weight * error
            sizes[c] += weight * (largest + error)
        else:
            totals[c] += weight * (2 * largest * error + error**2 + u * (largest + error) ** 2)
            sizes[c] += weight * (largest + error) ** 2
    bias = model.decoder.bias.detach().double().abs().tolist()
    return [total + _gamma(features + 1, u) * (size + b) for total, size, b in zip(totals, sizes, bias, strict=True)]


def _kernel_rounding(parameters: Parameters) -> float:
    """L1 norm of what float64 does to a kernel that it computes as exp(t log a)."""
    dt = math.exp(parameters.log_dt)
    steps = 4 if parameters.log_dt == 0 else 6  # roundings of t log a: of exp two, of each product one; dt = 1 has none
    used = parameters.C != 0
    log_a = ((-np.exp(parameters.log_decay) + 1j * parameters.angle) * dt)[used]
    m = np.exp(log_a.real)
    one_less = -np.expm1(log_a.real)
    with np.errstate(invalid="ignore", divide="ignore"):
        c = np.abs(parameters.C[used] * dt * np.expm1(log_a) / log_a)
        each = steps * np.abs(log_a) * m / one_less**2 + (30 + 4 * parameters.n_modes) / one_less
    return float(2 * _U64 * (c * each).sum())


def _gamma(n: int, u: float) -> float:
    return n * u / (1 - n * u)
