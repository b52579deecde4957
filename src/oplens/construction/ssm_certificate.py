r"""What is certified of a built S4D: its kernels' L1 errors, and what rounding adds when it is run.

For abs(x) <= R and stored kernels k', weights w', mixtures e' the output errs, per output, by at most

    first order    sum of norm1(e k - e' k') R
    second order   sum of norm1(w k (x) k - w' k' (x) k') R^2 <= (abs(w - w') N^2 + abs(w') (N + N') d) R^2,  N = norm1(e k), d = norm1(e k - e' k')

where norms over channels add up, plus what a second-order kernel's decomposition left over. L1 norms are sums of balls with a bound on the
rest (:mod:`oplens.construction.kernel_balls`). The bound of first order is attained by x(t) = R sign of the reversed kernel error. What
a run adds in floating point: :mod:`oplens.construction.ssm_rounding`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oplens.construction.certificate import Certificate
from oplens.construction.realisation import stored_parameters
from oplens.construction.ssm_rounding import run_rounding
from oplens.construction.volterra import Volterra
from oplens.errors import ArgumentError
from oplens.models.configuration import Preprocessing
from oplens.models.s4d import S4D

_DECOMPOSED = 1e-10  # relative L1 norm up to which what a decomposition leaves over is its rounding


@dataclass(frozen=True)
class KernelError:
    """How far one feature's stored kernel is from the one it stands for.

    Parameters
    ----------
    feature, output, order : int
    norm, error : float
        Upper bounds of the L1 norms of the stored kernel and of its difference from the wanted one.
    n_modes : int
        Modes in use.
    """

    feature: int
    output: int
    order: int
    norm: float
    error: float
    n_modes: int

    @property
    def relative(self) -> float:
        """Error per norm, of upper bounds both, so that it is no bound itself."""
        return self.error / self.norm if self.norm else math.inf


def check(call: str, model: Any, series: Volterra) -> None:
    """Whether a model has the form that this construction writes, its constants and zeros among it, and the sizes of the kernels."""
    if not isinstance(model, S4D):
        raise ArgumentError(f"{call}(model={type(model).__name__}): expected an S4D that build_ssm made.")
    config = model.config
    plain = (config.readout, config.pooling, config.discretisation, config.coupling, config.phase_delay)
    if plain != ("polynomial", "none", "zoh", None, None) or config.degree not in (1, 2):
        raise ArgumentError(
            f"{call}: expected an S4D with a polynomial readout of degree 1 or 2, an output per step and zero-order hold, as build_ssm makes."
        )
    assert config.preprocessing is not None
    if config.preprocessing != Preprocessing.identity(config.d_input):
        raise ArgumentError(
            f"{call}: the model preprocesses its input; kernels are those of the raw input only without."
        )
    sizes = (config.d_input, config.n_classes, config.d_model)
    wanted = (series.n_channels, series.n_outputs, len(series.features))
    if sizes != wanted:
        raise ArgumentError(
            f"{call}: the model has {sizes[0]} channels, {sizes[1]} outputs and {sizes[2]} features, the kernels ask for {wanted}; give "
            "the kernels that it was built from."
        )
    _check_weights(call, model, series)


def _check_weights(call: str, model: S4D, series: Volterra) -> None:
    """What enters no bound has to be exactly as it is written: no bias, one power per feature, read by one output."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) > 1 or not dtypes <= {torch.float64, torch.float32}:
        raise ArgumentError(
            f"{call}: weights in {' and '.join(sorted(map(str, dtypes)))}; an S4D is certified in float64 or float32."
        )
    powers, read = torch.zeros_like(model.polynomial), torch.zeros_like(model.decoder.weight)
    for h, feature in enumerate(series.features):
        powers[h, feature.order], read[feature.output, h] = 1, 1
    for wrong, name in (
        (model.encoder.bias.any(), "its encoder has a bias"),
        (
            (model.polynomial != powers).any(),
            "a feature's readout is not the power, z or z^2, that its kernel asks for",
        ),
        (model.decoder.weight[read == 0].any(), "an output reads another one's features"),
    ):
        if bool(wrong):
            raise ArgumentError(
                f"{call}: the model is no sum of these kernels, because {name}; give the kernels that it was built from, in their order, or "
                "build it anew."
            )


def kernel_errors(model: S4D, series: Volterra) -> list[KernelError]:
    """One entry per feature; kernels that several share are summed once."""
    known: dict[Any, tuple[float, float]] = {}
    found = []
    for h, feature in enumerate(series.features):
        parameters = stored_parameters(model, h)
        key = (feature.kernel, *parameters.numbers)
        if key not in known:
            balls = parameters.balls
            known[key] = (balls.norms()[0], feature.kernel.balls.minus(balls).norms()[0])
        norm, error = known[key]
        modes = int(np.count_nonzero(parameters.C))
        found.append(KernelError(h, feature.output, feature.order, norm, error, modes))
    return found


def certify(model: S4D, series: Volterra, exact: list[bool], R: float, length: int) -> Certificate:
    """The certificate of a model's stored weights; `exact` says of which features nothing but rounding is in the error."""
    errors = kernel_errors(model, series)
    shares = [_share(model, series, item, R) for item in errors]
    kernels, stored = [0.0] * series.n_outputs, [0.0] * series.n_outputs
    for item, share, only_rounding in zip(errors, shares, exact, strict=True):
        (stored if only_rounding else kernels)[item.output] += share
    bias = model.decoder.bias.detach().double().numpy()
    for c, constant in enumerate(series.constants):
        stored[c] += abs(float(bias[c]) - constant)
    sizes = [abs(feature.weight) * item.norm**2 for feature, item in zip(series.features, errors, strict=True)]
    claim = "exact" if all(exact) and max(series.left_over) <= _DECOMPOSED * sum(sizes) else "bound"
    parts = [("kernels", max(kernels))]
    rounding = [("stored weights", max(stored)), ("arithmetic", max(run_rounding(model, series, R, length)))]
    if any(series.left_over):
        (rounding if claim == "exact" else parts).append(("decomposition", max(series.left_over) * R * R))
    inflated = [[(name, value * (1 + 1e-9)) for name, value in group] for group in (parts, rounding)]
    if not all(math.isfinite(value) for group in inflated for _, value in group):
        raise ArgumentError(
            "certificate of an S4D: no finite bound. A stored wave does not fade, or only after more steps than can be summed, or weights "
            "are not finite; build the model anew from its kernels."
        )
    return _state(model, series, errors, claim, (tuple(inflated[0]), tuple(inflated[1])), R, length)


def _share(model: S4D, series: Volterra, item: KernelError, R: float) -> float:
    """What one feature adds to the error of its output."""
    feature = series.features[item.feature]
    wanted = np.abs(np.array(feature.mixing))
    with torch.no_grad():
        mixing = model.encoder.weight[item.feature].double().numpy()
        weight = float(model.decoder.weight[feature.output, item.feature])
    true_norm = item.norm + item.error
    moved = float(np.abs(np.array(feature.mixing) - mixing).sum())
    distance = moved * true_norm + float(np.abs(mixing).sum()) * item.error
    here, there = float(np.abs(mixing).sum()) * item.norm, float(wanted.sum()) * true_norm
    slack = abs(feature.weight - weight)
    if feature.order == 1:
        return (slack * there + abs(weight) * distance) * R
    return (slack * there**2 + abs(weight) * (here + there) * distance) * R * R


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _state(
    model: S4D,
    series: Volterra,
    errors: list[KernelError],
    claim: str,
    parts: tuple[tuple[tuple[str, float], ...], tuple[tuple[str, float], ...]],
    R: float,
    length: int,
) -> Certificate:
    config = model.config
    worst = max(errors, key=lambda item: item.relative)
    orders = sorted({item.order for item in errors})
    name = {(1,): "first-order", (2,): "second-order", (1, 2): "first- and second-order"}[tuple(orders)]
    whole = (
        "every filter is a sum of decaying waves, so the kernels are these in real arithmetic; rounding bounded"
        if claim == "exact"
        else "distances of kernels in L1 bounded, their rest beyond any lag included"
    )
    statement = (
        f"{name} kernels, {_many(series.n_channels, 'channel')} to {_many(series.n_outputs, 'output')}; {whole}. The largest L1 error of a kernel is "
        f"at most {max(item.error for item in errors):.4g}, in relation to its norm about {worst.relative:.4g}"
    )
    parameters = [parameter.detach() for parameter in model.parameters()]
    return Certificate(
        construction="ssm",
        claim=claim,
        dtype="float64" if parameters[0].dtype == torch.float64 else "float32",
        statement=statement,
        hypotheses=(
            f"abs(x) <= {R:g} at every step and channel, before which x is 0; x is stored in the dtype without rounding",
            f"arithmetic: at most {length} steps, Fourier transforms as accurate as radix 2 with accurate twiddle factors, no underflow",
        ),
        error_parts=parts[0],
        rounding_parts=parts[1],
        depth=1,
        attention_layers=0,
        width=config.d_model,
        hidden=(config.d_model * config.d_state,),
        dense=sum(parameter.numel() for parameter in parameters),
        sparse=sum(int(torch.count_nonzero(parameter)) for parameter in parameters),
        readout=int(torch.count_nonzero(model.decoder.weight) + torch.count_nonzero(model.decoder.bias)),
    )
