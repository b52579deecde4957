r"""One batch of cases as the explanation sees it: every layout is (batch, d_model, length), float64.

The readout enters every account as  target = constant + sum_{h,t} omega_h(t) g(z_h(t)),  with z = z_bias + (what x drives).

plain       omega_h(t) = W_h p(t), p the pooling weights (oplens.explanation.steps)                 (claim: exact)
reference   omega_h(t) = (R' diag(gate(t)) A)_h, R' = p W (pre-norm) or p (W gamma / sigma)(I - 11'/H) (post-norm): gates and
            LayerNorm scales are frozen at their values on this input                              (claim: conditional)
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from oplens.explanation.steps import pooling
from oplens.models.s4d import S4D, LayerTrace
from oplens.operators import diagonal


@dataclass(frozen=True)
class Weight:
    """Readout weights of some targets: omega (batch or 1, d_model or 1, length) times outer (n_targets, d_model)."""

    omega: Tensor
    outer: Tensor


@dataclass(frozen=True)
class Batch:
    """See the module. `encoder` and `drive` give what x drives: u = drive(t) encoder x(t)."""

    x: Tensor  # (batch, d_input, length), preprocessed, zero on padding
    mask: Tensor  # (batch, length)
    lengths: Tensor  # (batch,)
    pool: Tensor  # (batch, length): mask / valid length, or 1 at the one step asked for
    encoder: Tensor  # (d_model, d_input)
    drive: Tensor  # (batch or 1, 1, length)
    u: Tensor  # (batch, d_model, length): driven by x alone, no bias
    z_bias: Tensor  # (batch or 1, d_model, length)
    z: Tensor  # (batch, d_model, length), by convolution
    u_all: Tensor  # u with its bias: what the model's layer receives
    weights: tuple[Weight, ...]
    constant: Tensor  # (batch, n_targets)
    residual: Tensor | None  # (n_targets, batch, d_input, length): weights of the residual stream on x, if there is one
    class_weights: tuple[Weight, ...]
    class_constant: Tensor  # (batch, n_classes)
    logits: Tensor  # (batch, n_classes), the model's own, pooled where it answers at every step

    @cached_property
    def u_spectrum(self) -> Tensor:
        """Transform of u, which every order's correlation needs."""
        return diagonal.spectrum(self.u)


def prepare(
    model: S4D,
    system: diagonal.DiagonalSystem,
    x: Tensor,
    lengths: Tensor,
    directions: Tensor,
    at: int | None = None,
) -> Batch:
    """Run the model on raw x (batch, length, d_input) and lay out what the accounts need."""
    trace = model.trace(x, lengths)
    layer = trace.layers[0]
    mask, length = trace.mask, x.shape[1]
    pool = pooling(mask, lengths, at)
    inputs = trace.x.transpose(1, 2)
    encoder, drive, bias = _drive(model, layer, mask)
    u = drive * torch.einsum("hd,bdl->bhl", encoder, inputs) * mask[:, None]
    response = diagonal.kernel(system, length, skip=True)
    z_bias = diagonal.convolve(bias, response)
    # The residual stream is a term of the logit itself, so it has class weights too; the targets' follow by their directions.
    class_weights, class_constant, class_residual = _readout(model, layer, mask, pool)
    weights, constant, residual = _towards(directions, class_weights, class_constant, class_residual)
    if class_residual is not None:
        streamed = torch.einsum("cbdl,bdl->bc", class_residual, inputs)
        class_constant = class_constant + streamed
    return Batch(
        x=inputs,
        mask=mask,
        lengths=lengths,
        pool=pool,
        encoder=encoder,
        drive=drive,
        u=u,
        z_bias=z_bias,
        z=layer.z.transpose(1, 2),
        u_all=layer.u.transpose(1, 2),
        weights=weights,
        constant=constant,
        residual=residual,
        class_weights=class_weights,
        class_constant=class_constant,
        logits=torch.einsum("bl,blc->bc", pool, trace.logits) if trace.logits.ndim == 3 else trace.logits,
    )


def _drive(model: S4D, layer: LayerTrace, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Effective encoder (d_model, d_input), its time-varying factor, and the bias's input (batch or 1, d_model, length)."""
    E, e = model.encoder.weight, model.encoder.bias
    if not model.config.prenorm:
        # Causal, so the same for every case on its valid steps; nothing reads it past them.
        return E, torch.ones_like(mask[:1, None]), e[:, None].expand(-1, mask.shape[-1])[None]
    norm = model.norm(0)
    assert layer.norm_scale is not None
    drive = 1 / layer.norm_scale[:, None]
    centred = norm.weight[:, None] * (E - E.mean(0, keepdim=True))
    bias = drive * (norm.weight * (e - e.mean()))[:, None] + norm.bias[:, None]
    return centred, drive, bias * mask[:, None]


def _readout(
    model: S4D, layer: LayerTrace, mask: Tensor, pool: Tensor
) -> tuple[tuple[Weight, ...], Tensor, Tensor | None]:
    """Weights, constant and residual stream of the class logits (for the residual: on x)."""
    W, bias = model.decoder.weight, model.decoder.bias
    batch = mask.shape[0]
    if model.config.architecture == "plain":
        return (Weight(pool[:, None], W),), bias.expand(batch, -1), None
    assert layer.gate is not None
    assert layer.norm_scale is not None
    d_model = W.shape[1]
    convolution = model.layer(0).convolution
    assert convolution.bias is not None
    A, alpha = convolution.weight[:d_model, :, 0], convolution.bias[:d_model]
    if model.config.prenorm:
        rows, factor, beta = W, pool, torch.zeros_like(bias)
    else:
        norm = model.norm(0)
        rows = W * norm.weight
        rows = rows - rows.mean(-1, keepdim=True)
        factor, beta = pool / layer.norm_scale, W @ norm.bias
    weights, constants = [], []
    for row in rows:
        gated = factor[..., None] * row * layer.gate  # (batch, length, d_model)
        weights.append(Weight((gated @ A).transpose(1, 2), torch.ones(1, d_model, dtype=W.dtype)))
        constants.append(gated.sum(1) @ alpha + factor.sum(-1) * (row @ model.encoder.bias))
    constant = torch.stack(constants, dim=-1) + beta + bias
    residual = torch.einsum("ch,hd,bl->cbdl", rows, model.encoder.weight, factor)
    return tuple(weights), constant, residual


def _towards(
    directions: Tensor, weights: tuple[Weight, ...], constant: Tensor, residual: Tensor | None
) -> tuple[tuple[Weight, ...], Tensor, Tensor | None]:
    """The same for the targets, linear combinations of the classes."""
    if len(weights) == 1 and weights[0].outer.shape[0] == directions.shape[1]:
        turned: tuple[Weight, ...] = (Weight(weights[0].omega, directions @ weights[0].outer),)
    else:
        omegas = torch.stack([weight.omega for weight in weights])
        turned = tuple(
            Weight(torch.einsum("c,cbhl->bhl", direction, omegas), weights[0].outer) for direction in directions
        )
    mixed = None if residual is None else torch.einsum("tc,cbdl->tbdl", directions, residual)
    return turned, constant @ directions.T, mixed
