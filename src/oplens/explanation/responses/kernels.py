r"""The operator as a model of its own: logits of any input from its kernels alone, without the network.

With zeta_h = K~_h * (E x)_h driven by the preprocessed input, and the bias's pre-activation z_b (a function of time only), the readout
polynomial p_h(z) = sum_m a_hm (z - c_h)^m becomes one in zeta with time-dependent coefficients

    a~_hk(t) = sum_{m >= k} C(m, k) a_hm (z_b,h(t) - c_h)^(m - k)
    logits   = bias + sum_h W_h sum_t p(t) sum_k a~_hk(t) zeta_h(t)^k

so orders in w are not orders in x: each order of the polynomial feeds all lower orders of the input. First and second order kernels are

    h1[d, t]          = sum_h W_h E_hd   sum_s p(s) a~_h1(s) K~_h[s - t]
    h2[d, t; d', t']  = sum_h W_h E_hd E_hd' sum_s p(s) a~_h2(s) K~_h[s - t] K~_h[s - t']      (rank at most d_model per step: kept factored)

A model that answers at every step has no mean over s. The answer at step t is a Volterra series in the past, by lags l:

    y(t) = h0 + sum_l h1[d, l] x_d(t - l) + sum_{l, l'} h2[d, l; d', l'] x_d(t - l) x_d'(t - l') + ...
    h1[d, l]          = sum_h W_h E_hd a~_h1(t) K~_h[l]
    h2[d, l; d', l']  = sum_h W_h E_hd E_hd' a~_h2(t) K~_h[l] K~_h[l']

which does not depend on t where the encoder has no bias. With a bias it is given for the last step of a case of so many steps.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import as_sequences
from oplens.errors import ArgumentError
from oplens.explanation import training
from oplens.explanation.steps import pooling
from oplens.operators import diagonal

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

LARGEST = 2 * 2**30  # bytes of kernels that are still made


def operator_logits(op: "ExplicitOperator", X: Any) -> NDArray[np.float64]:
    """Logits (n_cases, n_classes) of the operator alone, cut at its order; plain architecture.

    Of a model that answers at every step, (n_cases, n_timepoints, n_classes), 0 past the end of a case.

    Parameters
    ----------
    X
        As for :meth:`explain`.

    Returns
    -------
    ndarray, (n_cases, n_classes), or (n_cases, n_timepoints, n_classes)
        In logit units; columns in the order of the model's classes.

    Raises
    ------
    ArgumentError, DataError
        For the reference architecture, and for sequences that are not the model's.

    Notes
    -----
    Claim: *truncated*; equal to `truncated_logits` of the highest order. Cost: a forward pass, and a multiply-add per order,
    feature and step.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> op = expand(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4)), np.ones((2, 2, 10)))
    >>> op(np.ones((5, 2, 10))).shape
    (5, 3)
    """
    _check(op, "op(X)")
    data = as_sequences(X)
    training.check_channels(op.model, data, "op(X)")
    model = op.model
    response = diagonal.kernel(op.system, data.n_timepoints, skip=True)
    whole = _coefficients(op, response)
    logits = []
    with torch.no_grad():
        for _, raw, lengths in training.chunks(data.X, data.lengths, model.config.d_model):
            x, mask = model.preprocess(raw, lengths)
            coefficients = whole[..., : raw.shape[1]]
            zeta = diagonal.convolve((x @ model.encoder.weight.T).transpose(1, 2), response)
            value = coefficients[-1].expand_as(zeta)
            for coefficient in coefficients.flip(0)[1:]:
                value = value * zeta + coefficient  # Horner, a time-dependent coefficient at each degree
            value = torch.where(mask[:, None] > 0, value, 0.0)
            if model.config.pooling == "none":
                found = (value.transpose(1, 2) @ model.decoder.weight.T + model.decoder.bias) * mask[..., None]
                logits.append(torch.nn.functional.pad(found, (0, 0, 0, data.n_timepoints - raw.shape[1])))
                continue
            pooled = torch.einsum("bhl,bl->bh", value, pooling(mask, lengths))
            logits.append(pooled @ model.decoder.weight.T + model.decoder.bias)
    return np.asarray(torch.cat(logits).numpy())


def kernels(op: "ExplicitOperator", length: int) -> "xr.Dataset":
    """First-order kernel `h1` (class, channel, time) and the factors of the higher ones, for cases of `length` steps.

    Of a model that answers at every step: the kernels of its answer by lag, `h0`, `h1` and `h2` whole and the higher ones as factors.
    Of a model that pools, the second-order kernel is sum_h readout encoder encoder sum_s coefficient(2, s) response(s - t)
    response(s - t') / length: it is kept as these factors. Plain architecture.

    Parameters
    ----------
    length : int
        Steps of the cases; of a model that answers at every step, lags (a filter forgets: as many as it remembers are enough).

    Returns
    -------
    xarray.Dataset
        `h1` (class, channel, time), logits per unit of the preprocessed input; `response` (feature, lag), `coefficient` (order,
        feature, time), `encoder` (feature, channel), `readout` (class, feature), `decoder_bias` (class).
        Of a model that answers at every step: `h0` (class), `h1` (class, channel, lag), from order 2 on `h2` (class, channel,
        channel_2, lag, lag_2), symmetric; `coefficient` (order, feature) and the other factors: the kernel of order k is
        sum_h readout coefficient(k) encoder^k response(lag) ... response(lag_k). The attribute `every_step` says whether it is the same at
        every step, or that of the last step of a case of `length` steps only.

    Raises
    ------
    ArgumentError
        For the reference architecture; for a length that is no whole number of at least 1, or whose kernels would take more than 2 GiB.

    Notes
    -----
    Claim: *exact* of the operator. Cost: a kernel and one correlation per feature and class; O(order d_model length) numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> op = expand(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=4)), np.ones((2, 2, 10)))
    >>> op.kernels(10).h1.shape
    (3, 2, 10)
    """
    import xarray as xr

    from oplens.results import provenance

    _check(op, "kernels")
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        raise ArgumentError(f"kernels(length={length!r}): give a whole number of steps, at least 1.")
    model, config = op.model, op.model.config
    length = int(length)
    size = 8 * length * ((op.order + 2) * config.d_model + config.n_classes * config.d_input)
    if config.pooling == "none" and op.order > 1:
        size += 8 * config.n_classes * (length * config.d_input) ** 2
    if size > LARGEST:
        raise ArgumentError(
            f"kernels(length={length}): the result would take {size / 2**30:.1f} GiB, above the limit of {LARGEST / 2**30:.1f} GiB; "
            "give the length of a case, or as many lags as the model remembers."
        )
    if config.pooling == "none":
        return _by_lag(op, length)
    response = diagonal.kernel(op.system, length, skip=True)
    coefficients = _coefficients(op, response)
    first = diagonal.adjoint(coefficients[1] / length, response)
    h1 = torch.einsum("ch,hd,hl->cdl", model.decoder.weight, model.encoder.weight, first)
    time = np.arange(length) / (config.sampling_rate or 1.0)
    units = "s" if config.sampling_rate else "steps"
    text = "first-order kernel: weight of the preprocessed input on a logit"
    variables = {"h1": (("class", "channel", "time"), h1, text, "logit"), **_factors(op, response)}
    text = "a~: coefficient of zeta^order, bias included"
    variables["coefficient"] = (("order", "feature", "time"), coefficients, text, "1")
    coords = {
        **_coords(op, length),
        "time": ("time", time, {"units": units, "long_name": "time of the input", "claim": "exact"}),
    }
    attrs = {**provenance(source=op.training.source), "family": op.family, "order": op.order}
    return xr.Dataset(_described(variables), coords=coords, attrs=attrs)


def _by_lag(op: "ExplicitOperator", length: int) -> "xr.Dataset":
    """Kernels of the answer at the last of `length` steps, by lag."""
    import xarray as xr

    from oplens.results import provenance

    model, config = op.model, op.model.config
    response = diagonal.kernel(op.system, length, skip=True)
    coefficients = _coefficients(op, response)[..., -1]
    W, E = model.decoder.weight, model.encoder.weight
    h0 = model.decoder.bias + W @ coefficients[0]
    h1 = torch.einsum("ch,hd,hl->cdl", W * coefficients[1], E, response)
    variables: dict[str, _Line] = {
        "h0": (("class",), h0, "constant of the answer", "output"),
        "h1": (("class", "channel", "lag"), h1, "first-order kernel of the preprocessed input by lag", "output"),
    }
    if op.order > 1:
        heard = torch.einsum("hd,hl->hdl", E, response).flatten(1)  # what a unit of input does to a pre-activation
        h2 = torch.einsum("ch,hi,hj->cij", W * coefficients[2], heard, heard)
        shape = (config.d_input, length)
        h2 = h2.unflatten(2, shape).unflatten(1, shape).transpose(2, 3)
        variables["h2"] = (
            ("class", "channel", "channel_2", "lag", "lag_2"),
            h2,
            "second-order kernel by lags",
            "output",
        )
    variables |= _factors(op, response)
    text = "a~: coefficient of zeta^order, bias included"
    variables["coefficient"] = (("order", "feature"), coefficients, text, "1")
    coords = _coords(op, length)
    coords["lag_2"] = ("lag_2", *coords["lag"][1:])
    coords["channel_2"] = ("channel_2", coords["channel"][1])
    if op.order < 2:
        del coords["lag_2"], coords["channel_2"]
    still = not bool(model.encoder.bias.any())
    attrs = {
        **provenance(source=op.training.source),
        "family": op.family,
        "order": op.order,
        "every_step": "the same at every step"
        if still
        else f"of step {length - 1} alone: the encoder's bias sets in with the case",
    }
    return xr.Dataset(_described(variables), coords=coords, attrs=attrs)


_Line = tuple[tuple[str, ...], Tensor, str, str]


def _factors(op: "ExplicitOperator", response: Tensor) -> dict[str, _Line]:
    unit = "output" if op.model.config.pooling == "none" else "logit"
    return {
        "response": (("feature", "lag"), response, "K~: response of a pre-activation, skip at lag 0", "1"),
        "encoder": (("feature", "channel"), op.model.encoder.weight, "E: channels to features", "1"),
        "readout": (("class", "feature"), op.model.decoder.weight, f"W: features to {unit}s", unit),
        "decoder_bias": (("class",), op.model.decoder.bias, f"bias of the {unit}s", unit),
    }


def _coords(op: "ExplicitOperator", length: int) -> dict[str, Any]:
    config = op.model.config
    lag = np.arange(length) / (config.sampling_rate or 1.0)
    units = "s" if config.sampling_rate else "steps"
    return {
        "class": ("class", np.array(config.classes, dtype=object)),
        "channel": ("channel", np.array(config.channels, dtype=object)),
        "feature": ("feature", np.arange(config.d_model)),
        "order": ("order", np.arange(op.order + 1)),
        "lag": ("lag", lag, {"units": units, "long_name": "time since the input", "claim": "exact"}),
    }


def _described(variables: dict[str, _Line]) -> dict[str, Any]:
    return {
        name: (dims, value.detach().numpy(), {"units": unit, "long_name": text, "claim": "exact"})
        for name, (dims, value, text, unit) in variables.items()
    }


def _coefficients(op: "ExplicitOperator", response: Tensor) -> Tensor:
    """a~ (order + 1, d_model, length): the polynomial of z - c shifted by the bias's pre-activation."""
    assert op.expansion is not None
    centre, variance = op.expansion.centre, op.expansion.variance
    powers = _powers(op.expansion.coefficients, variance)
    shift = op.model.encoder.bias[:, None] * response.cumsum(-1) - centre[:, None]
    order = op.order
    rows = []
    for k in range(order + 1):
        terms = [math.comb(m, k) * powers[:, m, None] * shift ** (m - k) for m in range(k, order + 1)]
        rows.append(torch.stack(terms).sum(0))
    return torch.stack(rows).detach()


def _powers(coefficients: Tensor, variance: Tensor) -> Tensor:
    """Coefficients of the basis H_k turned into those of powers of w, (d_model, order + 1)."""
    d_model, size = coefficients.shape
    basis = [torch.zeros(d_model, size, dtype=coefficients.dtype) for _ in range(size)]
    basis[0][:, 0] = 1
    for k in range(size - 1):
        shifted = torch.zeros_like(basis[k])
        shifted[:, 1:] = basis[k][:, :-1]
        basis[k + 1] = shifted - (k * variance[:, None] * basis[k - 1] if k else 0)
    return torch.stack([coefficients[:, k, None] * basis[k] for k in range(size)]).sum(0)


def _check(op: "ExplicitOperator", call: str) -> None:
    if op.model.config.architecture != "plain" or op.expansion is None:
        raise ArgumentError(
            f"{call}: the reference architecture's gates and norms are computed from each input, so no kernels stand for it; "
            "explain() gives its conditional account."
        )
