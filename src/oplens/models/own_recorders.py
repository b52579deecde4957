"""The library's own models as recorders."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oplens.models.recording import (
    Packing,
    Recording,
    check_dtype,
    check_layer,
    check_numbers,
    check_shift,
    check_tokens,
    chosen_parameters,
    count_parameters,
)
from oplens.models.s4d import S4D
from oplens.models.transformer import Transformer
from oplens.models.transformer_layers import SparseLinear
from oplens.operators.attention import BigBird, Softmax, attend


@dataclass(frozen=True)
class TransformerRecorder:
    """Our own transformer as a :class:`oplens.models.recording.Recorder`.

    Examples
    --------
    >>> from oplens.models import TransformerConfig
    >>> model = Transformer(TransformerConfig(d_output=3, vocabulary=5, d_model=16, n_heads=2, d_ffn=8))
    >>> recorder = TransformerRecorder.of(model)
    >>> recording = recorder.record(torch.tensor([[0, 4, 2, 0], [1, 1, 3, 2]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
    >>> recording.output.shape, len(recording.hidden), recording.attentions[0][0, 0, 2:].abs().sum().item()
    (torch.Size([2, 3]), 3, 0.0)
    """

    module: Transformer
    name: str
    dtype: str
    _dense: Transformer = field(repr=False, compare=False)  # the same, or where it is sparse a full one without values

    @classmethod
    def of(cls, model: Transformer, name: str = "Transformer", dtype: str = "float64") -> "TransformerRecorder":
        """A frozen copy of a model, in evaluation mode and in `dtype`."""
        kind = check_dtype("TransformerRecorder.of", dtype)
        frozen = copy.deepcopy(model).to(kind).eval().requires_grad_(False)
        dense = frozen
        if model.config.weights == "sparse":
            with torch.device("meta"):
                dense = Transformer(dataclasses.replace(model.config, weights="dense")).eval()
        return cls(frozen, name, dtype, dense)

    @property
    def kind(self) -> Literal["tokens", "series"]:
        """What enters."""
        return "series" if self.vocabulary is None else "tokens"

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.module.config.n_layers

    @property
    def causal(self) -> bool:
        """Whether it is a decoder."""
        return self.module.config.causal

    @property
    def predicts_next(self) -> bool:
        """A decoder with as many outputs at every position as it has tokens."""
        config = self.module.config
        return config.causal and config.readout == "position" and config.d_output == config.vocabulary

    @property
    def vocabulary(self) -> int | None:
        """Tokens, if tokens enter."""
        return self.module.config.vocabulary

    @property
    def max_length(self) -> int | None:
        """Longest case."""
        return self.module.config.max_length

    @property
    def d_input(self) -> int | None:
        """Real inputs per position, if they enter."""
        return self.module.config.d_input

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the model is."""
        config = self.module.config
        return {
            "architecture": "oplens Transformer",
            "parameters": count_parameters(self.module),
            "n_layers": config.n_layers,
            "d_model": config.d_model,
            "n_heads": [layer.n_heads for layer in config.layers],
            "vocabulary": config.vocabulary,
            "d_input": config.d_input,
            "d_output": config.d_output,
            "max_length": config.max_length,
            "causal": config.causal,
            "dtype": self.dtype,
            "attention": str(config.attention),
            "weights": config.weights,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        notes = []
        if self.predicts_next:
            notes.append(
                "The model is causal and answers with one number per token at every position; its outputs are read as logits of the "
                "next token."
            )
        family = self.module.config.attention
        if not isinstance(family, Softmax) and not self._fixed_pattern:
            notes.append(
                f"Attention is {family}; what a position can see depends on the case, so normalised entropy is relative to all "
                f"positions{' up to its own' if self.causal else ''}."
            )
        return tuple(notes)

    @property
    def _fixed_pattern(self) -> bool:
        """Whether the family's pattern depends on nothing but positions: blocks of an encoder are drawn among those the case has."""
        family = self.module.config.attention
        return isinstance(family, BigBird) and (self.causal or not family.n_random)

    def record(self, x: Tensor, mask: Tensor | None = None) -> Recording:
        """Run a batch; see :class:`oplens.models.recording.Recorder`."""
        packing, packed = self._pack("record", x, mask)
        check_shift("record", packing, self.visible(0, packing.longest))
        with torch.no_grad():
            trace = self.module.trace(packed, packing.lengths)
        attentions = tuple(
            None if layer.weights is None else packing.unpack_pairs(layer.weights) for layer in trace.layers
        )
        states = (trace.embedded, *(layer.hidden for layer in trace.layers))
        hidden = tuple(packing.unpack(state) for state in states)
        empty = all(attention is None for attention in attentions)
        return Recording(packing.mask, () if empty else attentions, hidden, self._output(packing, trace.output))

    def visible(self, layer: int, length: int) -> Tensor | None:
        """The blocks that BigBird sees; None for the other families."""
        check_layer("visible", layer, self.n_layers, length)
        if not self._fixed_pattern:
            return None
        zeros = torch.zeros(1, 1, length, 1, dtype=torch.float64)
        family = self.module.config.attention.for_layer(layer)
        found = attend(zeros, zeros, zeros, family, causal=self.causal, weights=True).weights
        assert found is not None
        return found[0, 0] > 0

    def apply(self, parameters: Mapping[str, Tensor] | None, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Output with other parameters; see :class:`oplens.models.recording.Recorder`.

        Notes
        -----
        Sparse weights are spread into full matrices here: the sparse product has no forward-mode derivative.
        """
        packing, packed = self._pack("apply", x, mask)
        values = chosen_parameters("apply", self.module, parameters)
        if self.module.config.weights == "sparse":
            values = _spread(self.module, values)
        return self._output(packing, functional_call(self._dense, values, (packed, packing.lengths)))

    def _pack(self, call: str, x: Tensor, mask: Tensor | None) -> tuple[Packing, Tensor]:
        if self.vocabulary is not None:
            packing = check_tokens(call, x, mask, self.vocabulary, self.max_length)
        else:
            assert self.d_input is not None
            packing = check_numbers(call, x, mask, self.d_input, self.max_length)
        return packing, packing.pack(x)

    def _output(self, packing: Packing, output: Tensor) -> Tensor:
        return packing.unpack(output) if self.module.config.readout == "position" else output


@dataclass(frozen=True)
class S4DRecorder:
    """Our own S4D classifier as a :class:`oplens.models.recording.Recorder`: raw sequences in, its preprocessing included.

    Examples
    --------
    >>> from oplens.models import S4DConfig
    >>> recorder = S4DRecorder.of(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=8)))
    >>> recording = recorder.record(torch.zeros(5, 16, 2))
    >>> recording.attentions, [tuple(state.shape) for state in recording.hidden]
    ((), [(5, 16, 4), (5, 16, 4)])
    """

    module: S4D
    name: str
    dtype: str

    @classmethod
    def of(cls, model: S4D, name: str = "S4D", dtype: str = "float64") -> "S4DRecorder":
        """A frozen copy of a model, in evaluation mode and in `dtype`; its convolution needs float32 or float64."""
        kind = check_dtype("S4DRecorder.of", dtype, ("float64", "float32"))
        return cls(copy.deepcopy(model).to(kind).eval().requires_grad_(False), name, dtype)

    kind: ClassVar[Literal["tokens", "series"]] = "series"
    predicts_next: ClassVar[bool] = False
    vocabulary: ClassVar[int | None] = None
    max_length: ClassVar[int | None] = None

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.module.config.n_layers

    @property
    def causal(self) -> bool:
        """States depend on the past, unless the case's mean is removed first."""
        preprocessing = self.module.config.preprocessing
        return preprocessing is None or not preprocessing.remove_offset

    @property
    def d_input(self) -> int | None:
        """Channels."""
        return self.module.config.d_input

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the model is."""
        config = self.module.config
        return {
            "architecture": f"oplens S4D ({config.architecture})",
            "parameters": count_parameters(self.module),
            "n_layers": config.n_layers,
            "d_model": config.d_model,
            "d_state": config.d_state,
            "n_heads": 0,
            "d_input": config.d_input,
            "d_output": config.n_classes,
            "channels": list(config.channels),
            "classes": list(config.classes),
            "causal": self.causal,
            "dtype": self.dtype,
            "attention": "none",
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        return ("The model has no attention; its hidden states are measured alone.",)

    def record(self, x: Tensor, mask: Tensor | None = None) -> Recording:
        """Run a batch; see :class:`oplens.models.recording.Recorder`."""
        packing, packed = self._pack("record", x, mask)
        model, keep = self.module, packing.packed_mask[..., None]
        with torch.no_grad():
            trace = model.trace(packed, packing.lengths)
            state, hidden = trace.encoded, [trace.encoded]
            for index, layer in enumerate(trace.layers):
                if layer.mixed is None or layer.gate is None:
                    state = model.readout(layer.z)
                else:
                    state = state + layer.mixed * layer.gate
                    state = state if model.config.prenorm else model.norm(index)(state)
                state = state * keep
                hidden.append(state)
        output = self._output(packing, trace.logits)
        return Recording(packing.mask, (), tuple(packing.unpack(state) for state in hidden), output)

    def visible(self, layer: int, length: int) -> Tensor | None:
        """Nothing is hidden: there is no attention."""
        check_layer("visible", layer, self.n_layers, length)
        return None

    def apply(self, parameters: Mapping[str, Tensor] | None, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Output with other parameters; see :class:`oplens.models.recording.Recorder`."""
        packing, packed = self._pack("apply", x, mask)
        values = chosen_parameters("apply", self.module, parameters)
        named = {f"model.{name}": value for name, value in values.items()}
        return self._output(packing, functional_call(_Traced(self.module), named, (packed, packing.lengths)))

    def _output(self, packing: Packing, logits: Tensor) -> Tensor:
        return packing.unpack(logits) if self.module.config.pooling == "none" else logits

    def _pack(self, call: str, x: Tensor, mask: Tensor | None) -> tuple[Packing, Tensor]:
        packing = check_numbers(call, x, mask, self.module.config.d_input, None)
        return packing, packing.pack(x)


class _Traced(nn.Module):
    """Logits by the general path, whose operations all have forward-mode derivatives; `forward` of the plain architecture has its own."""

    def __init__(self, model: S4D) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.model.trace(x, lengths).logits


def _spread(model: Transformer, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of the dense twin of a sparse model, a differentiable function of the sparse ones."""
    values = dict(values)
    for name, module in model.named_modules():
        if isinstance(module, SparseLinear):
            entries = values.pop(f"{name}.values")
            rows = torch.repeat_interleave(module.crow_indices.diff())
            weight = entries.new_zeros(module.d_output * module.d_input)
            weight = weight.scatter(0, rows * module.d_input + module.col_indices, entries)
            values[f"{name}.weight"] = weight.unflatten(0, (module.d_output, module.d_input))
    return values
