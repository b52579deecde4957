r"""Construction S: an S4D whose modes are the poles of given filters, a finite Volterra series with its kernels as given.

    y_c(t) = constant_c + sum_d sum_s k_cd(s) x_d(t - s) + sum_{s, s'} h_c(s, s') x(t - s) x(t - s')

One feature per filter: its waves are the filter's poles, its readout z (first order) or z^2 (second order), its decoder weight 1 or the
filter's weight in h. Fading memories are what finite Volterra series approximate (Boyd & Chua 1985, IEEE Trans. Circuits Syst. 32). An
exponential sum is built exactly, up to the rounding of its weights; a finite impulse response approximately; both are certified by the
L1 norm of the kernel's error, which is the largest output error that an input of size 1 can cause.

Building is the opposite of :func:`oplens.expand`: the kernels of a built model are those it was built from.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from oplens.construction import ssm_certificate
from oplens.construction.certificate import Certificate
from oplens.construction.filters import Kernel
from oplens.construction.realisation import Parameters, realise
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.construction.volterra import Volterra, volterra
from oplens.errors import ArgumentError
from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4D
from oplens.theory.statement import count, number

DTYPES = {"float64": torch.float64, "float32": torch.float32}
LENGTH = 4096  # steps up to which the rounding of a run is bounded, unless said


def build_ssm(
    kernel1: Kernel | Sequence[Any] | None = None,
    kernel2: SecondOrderKernel | Sequence[Any] | None = None,
    constant: float | Sequence[float] = 0.0,
    *,
    dtype: Any = "float64",
    n_modes: int | None = None,
    tolerance: float | None = None,
    input_bound: float = 1.0,
    length: int = LENGTH,
    channels: Sequence[str] = (),
    outputs: Sequence[str] = (),
    sampling_rate: float | None = None,
) -> tuple[S4D, Certificate]:
    """Write the weights of an S4D with given first- and second-order kernels.

    Parameters
    ----------
    kernel1 : ExponentialSum or FiniteKernel, or nested sequence of them
        One filter, or [output][channel] of filters, None where a channel does not act.
    kernel2 : SecondOrderKernel or sequence of them
        One per output, None where there is none.
    constant : float or sequence of float
        Per output.
    dtype : {"float64", "float32"} or torch.dtype
        Of the stored weights.
    n_modes : int, optional
        Modes per feature; as many as the largest filter needs when omitted. Finite kernels need it, or a tolerance.
    tolerance : float, optional
        Largest L1 error of any finite kernel; the fewest modes found that keep it, at most `n_modes` where both are given.
    input_bound : float
        R with abs(x) <= R, which the certificate is for.
    length : int
        Longest input that the rounding of a run is bounded for; the kernels' errors are bounded for any.
    channels, outputs : sequence of str
        Names; numbered when omitted.
    sampling_rate : float, optional
        Hz.

    Returns
    -------
    model : S4D
        Plain architecture, `readout="polynomial"`, `pooling="none"`: (batch, length, channels) to (batch, length, outputs).
    certificate : Certificate
        "exact" where every filter is an exponential sum without repeated poles (its rounding stands beside), else "bound".

    Raises
    ------
    ArgumentError
        If nothing is given, sizes disagree, or a kernel cannot be had with these modes.

    Notes
    -----
    Accuracy: *exact* or *bound*, see the certificate. Cost: exponential sums O(n_modes^3) in balls, finite kernels a decomposition of their
    Hankel matrix and a least-squares fit; the certificate sums kernels lag by lag, up to 2^16 of them.

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> model, certificate = build_ssm(ExponentialSum.butterworth(4, 40.0, 256.0), sampling_rate=256.0)
    >>> certificate.claim, certificate.error_bound < 1e-11, tuple(model(torch.ones(1, 100, 1, dtype=torch.float64)).shape)
    ('exact', True, (1, 100, 1))
    """
    call = "build_ssm"
    name = stored_dtype(call, dtype)
    modes = None if n_modes is None else count(call, "n_modes", n_modes)
    limit = None if tolerance is None else number(call, "tolerance", tolerance, open_below=True)
    bound = number(call, "input_bound", input_bound, open_below=True)
    steps = count(call, "length", length)
    series = volterra(call, kernel1, kernel2, constant)
    made = [realise(feature.kernel, modes, limit, name) for feature in series.features]
    # A tolerance asks for the fewest modes; a number alone is what the user gets, padded.
    size = max([1, *(item.n_modes for item in made)])  # of a gain alone one idle mode
    if modes is not None and limit is None:
        size = modes
    config = S4DConfig(
        series.n_channels,
        series.n_outputs,
        d_model=len(series.features),
        d_state=2 * size,
        readout="polynomial",
        degree=max(feature.order for feature in series.features),
        pooling="none",
        channels=tuple(channels),
        classes=tuple(outputs) or tuple(f"output {i}" for i in range(series.n_outputs)),
        sampling_rate=sampling_rate,
        dt_min=1.0,
        dt_max=1.0,
    )
    model = S4D(config).to(DTYPES[name]).eval()
    _fill(model, series, made)
    exact = [item.exact for item in made]
    return model, ssm_certificate.certify(model, series, exact, bound, steps)


def stored_dtype(call: str, dtype: Any) -> str:
    """Name of a dtype that an S4D is stored and run in, from a name, a torch or a NumPy dtype.

    Examples
    --------
    >>> stored_dtype("example", torch.float32), stored_dtype("example", np.float64)
    ('float32', 'float64')
    """
    name = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ArgumentError(f"{call}(dtype={dtype!r}): an S4D is stored and runs in float64 or float32.")
    return name


def certify_ssm(
    model: S4D,
    kernel1: Kernel | Sequence[Any] | None = None,
    kernel2: SecondOrderKernel | Sequence[Any] | None = None,
    constant: float | Sequence[float] = 0.0,
    *,
    input_bound: float = 1.0,
    length: int = LENGTH,
) -> Certificate:
    """Bound how far the stored weights of a model are from given kernels; of a model that :func:`build_ssm` made, or one converted since.

    Parameters are those of :func:`build_ssm`; features must stand in the order in which it writes them.

    Returns
    -------
    Certificate
        With claim "bound".

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> kernel = ExponentialSum([0.5], [1.0])
    >>> model, _ = build_ssm(kernel)
    >>> 1e-9 < certify_ssm(model.float(), kernel, length=256).error_bound < 1e-3
    True
    """
    call = "certify_ssm"
    series = volterra(call, kernel1, kernel2, constant)
    ssm_certificate.check(call, model, series)
    bound = number(call, "input_bound", input_bound, open_below=True)
    return ssm_certificate.certify(model, series, [False] * len(series.features), bound, count(call, "length", length))


def _fill(model: S4D, series: Volterra, made: list[Parameters]) -> None:
    """Every number of the model; modes that a filter does not need get C = 0 and the decay of S4D's own initialisation."""
    kernel, n_modes = model.layer(0).kernel, model.config.n_modes
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        kernel.log_A_real.fill_(math.log(0.5))
        for h, (feature, found) in enumerate(zip(series.features, made, strict=True)):
            n = found.n_modes
            assert n <= n_modes, "refused by realise"
            kernel.log_A_real[h, :n] = torch.from_numpy(found.log_decay)
            kernel.A_imag[h, :n] = torch.from_numpy(found.angle)
            kernel.C[h, :n] = torch.view_as_real(torch.from_numpy(np.ascontiguousarray(found.C)))
            model.layer(0).D[h] = found.D
            model.encoder.weight[h] = torch.tensor(feature.mixing, dtype=torch.float64)
            model.polynomial[h, feature.order] = 1
            model.decoder.weight[feature.output, h] = feature.weight
        model.decoder.bias.copy_(torch.tensor(series.constants, dtype=torch.float64))
