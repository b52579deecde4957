r"""The S4D sequence classifier: the plain architecture of the paper and the reference implementation's stack.

    plain      logits = W mean_t GELU(z(t)) + bias,   z = S4D(E x + e)
    reference  x_0 = E x + e;  x_l = LN(x_{l-1} + GLU(Conv(GELU(S4D(x_{l-1})))))   (post-norm; pre-norm moves LN before S4D)
               logits = W mean_t x_L(t) + bias

In the plain architecture GELU may be a polynomial of each feature's own, and the mean may be left out: y(t) = W g(z(t)) + bias at every
step. With both the model is a finite Volterra series, which GELU can never be exactly.

Parameter names equal those of the reference implementation, so its state dictionaries load as they are.
"""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from oplens.errors import ArgumentError
from oplens.models.configuration import S4DConfig
from oplens.operators import diagonal, trainable
from oplens.operators.initialisation import initial_poles
from oplens.operators.mixing import mixed_convolution, mixed_convolution_step
from oplens.operators.polynomial import Series, gelu_coefficients

Mode = Literal["convolution", "recurrence", "step"]


class S4DKernel(nn.Module):
    """Parameters of the diagonal systems of one layer; every feature starts with the same poles.

    These are `log_A_real` and `A_imag`, as in the reference implementation, or the weights of coupled rings.
    """

    def __init__(self, config: S4DConfig) -> None:
        super().__init__()
        d_model, n_modes = config.d_model, config.n_modes
        low, high = math.log(config.dt_min), math.log(config.dt_max)
        self.log_dt = nn.Parameter(torch.rand(d_model) * (high - low) + low)
        self.C = nn.Parameter(torch.view_as_real(torch.randn(d_model, n_modes, dtype=torch.cfloat)).clone())
        if config.coupling is None:
            sigma, omega = initial_poles(config.initialisation, config.d_state)
            self.log_A_real = nn.Parameter(torch.log(sigma.repeat(d_model, 1)))
            self.A_imag = nn.Parameter(omega.repeat(d_model, 1))
        else:
            start = trainable.initial_coupling(config.initialisation, config.d_state, config.coupling)
            self.log_decay = nn.Parameter(torch.full((d_model,), start.log_decay))
            self.damping = nn.Parameter(torch.tensor(start.damping, dtype=torch.float32).repeat(d_model, 1))
            self.coupling = nn.Parameter(torch.tensor(start.coupling, dtype=torch.float32).repeat(d_model, 1))
        if config.phase_delay is not None:
            poles = trainable.initial_ring_poles(config.initialisation, config.d_state, config.coupling)
            position = trainable.position_of(poles, config.phase_delay)
            assert position is not None, "refused by the configuration"
            self.delay_position = nn.Parameter(torch.full((d_model,), position.item()))

    def undelayed_poles(self, coupled: bool) -> Tensor:
        """Poles (d_model, P) complex128 before any phase delay."""
        if coupled:
            return trainable.coupled_poles(self.log_decay, self.damping, self.coupling, self.C.shape[1])
        return torch.complex(-torch.exp(self.log_A_real.double()), self.A_imag.double())


class S4DLayer(nn.Module):
    """Diagonal systems, one per feature, followed (reference architecture) by the mixing convolution and its gate."""

    def __init__(self, config: S4DConfig) -> None:
        super().__init__()
        self.discretisation = config.discretisation
        self.coupled, self.delayed = config.coupling is not None, config.phase_delay is not None
        self.D = nn.Parameter(torch.randn(config.d_model))
        self.kernel = S4DKernel(config)
        if config.architecture == "reference":
            # Kept in a Sequential so that the key is `output_linear.0`, as in the reference checkpoints.
            self.output_linear = nn.Sequential(nn.Conv1d(config.d_model, 2 * config.d_model, 1))

    @property
    def convolution(self) -> nn.Conv1d:
        """The mixing convolution H -> 2H (reference architecture); its first half is the value, its second the gate."""
        convolution = self.output_linear[0]
        assert isinstance(convolution, nn.Conv1d)
        return convolution

    def poles(self) -> Tensor:
        """Continuous-time poles (d_model, P) complex128 per unit model time, with the phase delay in them."""
        poles = self.kernel.undelayed_poles(self.coupled)
        return trainable.delayed_poles(poles, self.kernel.delay_position) if self.delayed else poles

    def phase_delay(self) -> Tensor:
        """Phase delay phi of each feature's ring in radians, (d_model,): poles() times exp(i phi) are those of the ring without it."""
        poles = self.kernel.undelayed_poles(self.coupled)
        if not self.delayed:
            return poles.real.new_zeros(len(poles))
        return trainable.phase_delay(poles, self.kernel.delay_position)

    def dt(self) -> Tensor:
        """Model time per step, (d_model,) float64."""
        return torch.exp(self.kernel.log_dt.double())

    def system(self) -> diagonal.DiagonalSystem:
        """The discrete system, always complex128: complex64 exponentials lose accuracy and were measured slower."""
        C = torch.view_as_complex(self.kernel.C.double().contiguous())
        return diagonal.discretise(self.poles(), C, self.D.double(), self.dt(), self.discretisation)


@dataclass(frozen=True)
class LayerTrace:
    """One layer's intermediate values, each (batch, length, d_model) unless said: what an account of the layer needs."""

    u: Tensor  # input of the diagonal systems (after the norm when prenorm)
    z: Tensor  # pre-activation
    mixed: Tensor | None  # value half of the convolution (before the gate)
    gate: Tensor | None  # sigmoid of the other half
    norm_scale: Tensor | None  # (batch, length): LayerNorm's divisor sqrt(var + eps)


@dataclass(frozen=True)
class Trace:
    """A forward pass with everything in it: preprocessed input (batch, length, d_input), mask (batch, length), layers, logits.

    Without pooling `pooled` (batch, length, d_model) and `logits` (batch, length, n_classes) keep their steps, 0 on padding.
    """

    x: Tensor
    mask: Tensor
    encoded: Tensor
    layers: tuple[LayerTrace, ...]
    pooled: Tensor
    logits: Tensor


class S4D(nn.Module):
    """S4D sequence classifier; see the module's equation and :class:`S4DConfig`.

    Examples
    --------
    >>> import torch
    >>> model = S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=8))
    >>> tuple(model(torch.zeros(5, 16, 2)).shape)
    (5, 3)
    """

    def __init__(self, config: S4DConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.d_input, config.d_model)
        self.s4_layers = nn.ModuleList(S4DLayer(config) for _ in range(config.n_layers))
        if config.architecture == "reference":
            self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(config.n_layers))
        if config.degree is not None:
            self.polynomial = nn.Parameter(initial_polynomial(config.degree).repeat(config.d_model, 1))
        self.dropout = nn.Dropout1d(config.dropout)
        self.decoder = nn.Linear(config.d_model, config.n_classes)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits (batch, n_classes) of raw sequences x (batch, length, d_input); steps at or past `lengths` (batch,) are ignored.

        Without pooling (batch, length, n_classes), 0 at the steps that are ignored.
        """
        if self.config.architecture == "reference":
            return self.trace(x, lengths).logits
        x, mask = self.preprocess(x, lengths)
        activated = self.dropout(self.readout(self._plain_preactivation(x, mask).transpose(1, 2)).transpose(1, 2))
        if self.config.pooling == "none":
            return self._each_step(activated.transpose(1, 2), mask)
        logits: Tensor = self.decoder(_pool(activated, mask if lengths is not None else None))
        return logits

    def readout(self, z: Tensor) -> Tensor:
        """What a pre-activation z (..., d_model) goes through: GELU, or each feature's own polynomial.

        Examples
        --------
        >>> model = S4D(S4DConfig(1, 1, d_model=1, d_state=2, readout="polynomial", degree=2))
        >>> with torch.no_grad():
        ...     model.polynomial.copy_(torch.tensor([[1.0, 0.0, 3.0]])).shape
        torch.Size([1, 3])
        >>> model.readout(torch.tensor([[2.0]])).tolist()
        [[13.0]]
        """
        if self.config.readout == "gelu":
            return functional.gelu(z)
        coefficients = self.polynomial.to(z.dtype).unbind(-1)
        value = coefficients[-1].expand_as(z)
        for coefficient in coefficients[-2::-1]:
            value = value * z + coefficient
        return value

    def _each_step(self, hidden: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.decoder(hidden)
        return torch.where(mask[..., None] > 0, logits, 0)

    def preprocess(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised input (batch, length, d_input), zero on padding, and the mask (batch, length) in the model's dtype."""
        dtype = self.decoder.weight.dtype
        self._check_input(x, lengths)
        x = x.to(torch.promote_types(x.dtype, dtype))
        batch, length, _ = x.shape
        preprocessing = self.config.preprocessing
        assert preprocessing is not None
        mean, scale = x.new_tensor(preprocessing.mean), x.new_tensor(preprocessing.scale)
        if lengths is None:
            if preprocessing.remove_offset:
                x = x - x.mean(1, keepdim=True)
            return ((x - mean) / scale).to(dtype), torch.ones(batch, length, dtype=dtype, device=x.device)
        valid = torch.arange(length, device=x.device)[None] < lengths[:, None]
        # Selected, not multiplied: padding may hold NaN, and 0 * NaN is NaN.
        x = torch.where(valid[..., None], x, 0)
        if preprocessing.remove_offset:
            x = x - x.sum(1, keepdim=True) / valid.sum(1)[:, None, None]
        x = torch.where(valid[..., None], (x - mean) / scale, 0)
        return x.to(dtype), valid.to(dtype)

    def trace(self, x: Tensor, lengths: Tensor | None = None, mode: Mode = "convolution") -> Trace:
        """Forward pass that keeps its intermediate values; `mode` says how the diagonal systems are run.

        Notes
        -----
        The three modes agree to rounding (:func:`oplens.check_consistency`). Memory: O(n_layers batch length d_model).
        """
        x, mask = self.preprocess(x, lengths)
        keep = mask[..., None]
        encoded = self.encoder(x) * keep
        hidden, layers = encoded, []
        reference = self.config.architecture == "reference"
        for index, layer in enumerate(self.s4_layers):
            assert isinstance(layer, S4DLayer)
            u, scale = hidden, None
            if reference and self.config.prenorm:
                u, scale = self._norm(index, hidden)
                u = u * keep
            z = run_system(layer.system(), u, mode)
            activated = self._drop(self.readout(z))
            if not reference:
                layers.append(LayerTrace(u, z, None, None, None))
                hidden = activated
                continue
            mixed, gate = layer.output_linear(activated.transpose(1, 2)).transpose(1, 2).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            hidden = hidden + self._drop(mixed * gate)
            if not self.config.prenorm:
                hidden, scale = self._norm(index, hidden)
            hidden = hidden * keep
            layers.append(LayerTrace(u, z, mixed, gate, scale))
        if self.config.pooling == "none":
            pooled = torch.where(keep > 0, hidden, 0)
            return Trace(x, mask, encoded, tuple(layers), pooled, self._each_step(hidden, mask))
        pooled = _pool(hidden.transpose(1, 2), mask)
        return Trace(x, mask, encoded, tuple(layers), pooled, self.decoder(pooled))

    def save_pretrained(self, directory: str | Path) -> None:
        """Write `model.safetensors` and `config.json` into a directory (temporary names, then renamed)."""
        from oplens.models.storage import save_model

        save_model(self, directory)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> "S4D":
        """Read a directory written by :meth:`save_pretrained`; refused with a sentence when damaged."""
        from oplens.models.storage import load_model

        return load_model(directory)

    def as_float64(self) -> "S4D":
        """A frozen float64 copy in evaluation mode, which explanations are computed with."""
        model = copy.deepcopy(self).double().eval()
        return model.requires_grad_(False)

    def _plain_preactivation(self, x: Tensor, valid: Tensor) -> Tensor:
        """z (batch, d_model, length) straight from the preprocessed input: the linear encoder is mixed in the frequency domain."""
        layer = self.s4_layers[0]
        assert isinstance(layer, S4DLayer)
        response = diagonal.kernel(layer.system(), x.shape[1], skip=True).to(x.dtype)
        # The encoder's bias is one more channel that is 1 on valid steps.
        channels = torch.cat((x.transpose(1, 2), valid[:, None]), dim=1)
        weights = torch.cat((self.encoder.weight, self.encoder.bias[:, None]), dim=1)
        convolution = mixed_convolution_step if weights.requires_grad else mixed_convolution
        return convolution(channels, weights, response)

    def layer(self, index: int) -> "S4DLayer":
        """Layer `index`, counted from the input."""
        layer = self.s4_layers[index]
        assert isinstance(layer, S4DLayer)
        return layer

    def norm(self, index: int) -> nn.LayerNorm:
        """LayerNorm of layer `index` (reference architecture)."""
        norm = self.norms[index]
        assert isinstance(norm, nn.LayerNorm)
        return norm

    def _norm(self, index: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.norm(index)
        scale = torch.sqrt(hidden.var(-1, unbiased=False) + norm.eps)
        return norm(hidden), scale

    def _drop(self, hidden: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(hidden.transpose(1, 2)).transpose(1, 2)
        return dropped

    def _check_input(self, x: Tensor, lengths: Tensor | None) -> None:
        config = self.config
        if x.ndim != 3 or x.shape[-1] != config.d_input or 0 in x.shape:
            raise ArgumentError(
                f"S4D: expected x of shape (batch >= 1, length >= 1, d_input={config.d_input}), got {tuple(x.shape)}; "
                "arrays in aeon's layout (cases, channels, steps) are transposed first."
            )
        if x.is_complex():
            raise ArgumentError(
                f"S4D: x is complex ({x.dtype}); give real values, e.g. x.real and x.imag as two channels."
            )
        if lengths is not None and (
            lengths.shape != x.shape[:1] or int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]
        ):
            raise ArgumentError(
                f"S4D: lengths must hold one number between 1 and {x.shape[1]} for each of the {x.shape[0]} cases."
            )


def initial_polynomial(degree: int) -> Tensor:
    """Coefficients (degree + 1,) of the polynomial nearest to GELU under a standard normal distribution: where a readout starts.

    Examples
    --------
    >>> [round(value, 4) for value in initial_polynomial(2).tolist()]
    [0.0705, 0.5, 0.2116]
    """
    zero = torch.zeros(1, dtype=torch.float64)
    coefficients = gelu_coefficients(zero, zero + 1, degree)
    return Series.hermite(zero, zero + 1, coefficients).powers()[0].float()


def run_system(system: diagonal.DiagonalSystem, u: Tensor, mode: Mode) -> Tensor:
    """Pre-activation z of u, both (batch, length, d_model), by the given mode; computed in u's dtype."""
    v = u.transpose(1, 2)
    if mode == "convolution":
        z = diagonal.convolve(v, diagonal.kernel(system, v.shape[-1], skip=True).to(v.dtype))
        return z.transpose(1, 2)
    system = _cast(system, v.dtype)
    if mode == "recurrence":
        return diagonal.scan(system, v)[0].transpose(1, 2)
    if mode != "step":
        raise ArgumentError(f"S4D.trace(mode={mode!r}): choose convolution, recurrence or step.")
    state = torch.zeros(v.shape[0], system.d_model, system.n_modes, dtype=system.log_a.dtype, device=v.device)
    steps = []
    for t in range(v.shape[-1]):
        z, state = diagonal.step(system, v[..., t], state)
        steps.append(z)
    return torch.stack(steps, dim=1)


def _cast(system: diagonal.DiagonalSystem, dtype: torch.dtype) -> diagonal.DiagonalSystem:
    complex_dtype = dtype.to_complex()
    return diagonal.DiagonalSystem(
        system.log_a.to(complex_dtype), system.b.to(complex_dtype), system.C.to(complex_dtype), system.D.to(dtype)
    )


def _pool(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over valid steps of (batch, d_model, length)."""
    if mask is None:
        return hidden.mean(-1)
    return (hidden * mask[:, None]).sum(-1) / mask.sum(-1, keepdim=True)
