"""Any Hugging Face directory as a recorder; `transformers` is the extra `hf`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from oplens.errors import ArgumentError, CheckpointError, DataError
from oplens.models.huggingface_files import read_source
from oplens.models.huggingface_load import load_module, longest_case
from oplens.models.huggingface_run import TOLERANCE, TRIAL, Findings, Runner, offline, patterns, quiet, try_out
from oplens.models.recording import (
    Packing,
    Recording,
    check_dtype,
    check_layer,
    check_shift,
    check_tokens,
    chosen_parameters,
    count_parameters,
)

# Configurations that have none of these words have no pattern beyond what a trial on a few tokens shows.
_PATTERN = re.compile("window|chunk|local|block|sparse|span|layer_types|attention_types|attention_layers|prefix|stride")

Groups = list[tuple[Tensor, int]]


@dataclass(frozen=True)
class HuggingFaceRecorder:
    """A `transformers` model on tokens as a :class:`oplens.models.recording.Recorder`; made by :func:`load_huggingface`.

    Attributes
    ----------
    runner : Runner
    found : Findings
        What trials told about it.
    """

    runner: Runner
    name: str
    max_length: int | None
    found: Findings
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    _patterns: dict[int, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kind(self) -> Literal["tokens", "series"]:
        """Tokens."""
        return "tokens"

    @property
    def module(self) -> nn.Module:
        """The `transformers` model, frozen."""
        module: nn.Module = self.runner.module
        return module

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.found.n_layers

    @property
    def causal(self) -> bool:
        """Whether attention sees the past only."""
        return self.found.causal

    @property
    def predicts_next(self) -> bool:
        """A causal language model."""
        return self.found.predicts_next

    @property
    def vocabulary(self) -> int:
        """Tokens."""
        vocabulary: int = self.runner.module.config.vocab_size
        return vocabulary

    @property
    def d_input(self) -> int | None:
        """None: tokens enter."""
        return None

    def record(self, x: Tensor, mask: Tensor | None = None) -> Recording:
        """Run a batch; see :class:`oplens.models.recording.Recorder`.

        Raises
        ------
        DataError
            Also if a row of attention does not sum to 1 or has weight on padding, or a state is not finite.
        """
        packing = check_tokens("record", x, mask, self.vocabulary, self.max_length)
        packed, real, groups = packing.pack(x), packing.packed_mask, self._groups(packing)
        if bool(packing.start.any()):
            for layer in self.found.attended:
                check_shift("record", packing, self.visible(layer, packing.longest))
        with torch.no_grad():
            parts = [self.runner(packed[rows, :width], real[rows, :width]) for rows, width in groups]
        weights = [[weight for weight in part.attentions if weight is not None] for part in parts]
        placed: dict[int, Tensor] = {}
        for index, layer in enumerate(self.found.attended):
            attention = _joined(packing, groups, [part[index] for part in weights], pairs=True)
            self._check(layer, attention, real)
            placed[layer] = packing.unpack_pairs(attention)
        hidden = [_joined(packing, groups, [part.hidden[k] for part in parts]) for k in range(self.n_layers + 1)]
        if not bool(torch.isfinite(hidden[-1][real]).all()):
            raise DataError(
                f"record: {self.name} in {self.runner.dtype} gives NaN or infinite states; half precision overflows where float32 does not: "
                "load the model with dtype='float32' or 'float64'."
            )
        return Recording(
            packing.mask,
            tuple(placed.get(layer) for layer in range(self.n_layers)) if placed else (),
            tuple(packing.unpack(state) for state in hidden),
            self._output(packing, groups, [part.output for part in parts]),
        )

    def visible(self, layer: int, length: int) -> Tensor | None:
        """Pairs (length, length) that a layer can give weight to, where these are fewer than `causal` says: windows, chunks.

        Notes
        -----
        *exact*, found by running the model with all parameters 0 (see :func:`oplens.models.huggingface_run.patterns`). Cost: a forward
        pass of one sequence, kept for the latest length; none where the configuration has no word of a pattern.
        """
        check_layer("visible", layer, self.n_layers, length)
        if layer not in self.found.attended:
            return None
        known = any(_PATTERN.search(key) and value for key, value in self.runner.module.config.to_dict().items())
        if length > TRIAL and not known:
            return None
        if length not in self._patterns:
            self._patterns.clear()
            self._patterns[length] = patterns(self.runner, length)
        pattern = self._patterns[length][self.found.attended.index(layer)]
        everything = torch.ones_like(pattern).tril() if self.causal else torch.ones_like(pattern)
        return None if torch.equal(pattern, everything) else pattern

    def apply(self, parameters: Mapping[str, Tensor] | None, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Output with other parameters; see :class:`oplens.models.recording.Recorder`."""
        packing = check_tokens("apply", x, mask, self.vocabulary, self.max_length)
        packed, real, groups = packing.pack(x), packing.packed_mask, self._groups(packing)
        values = chosen_parameters("apply", self.module, parameters)
        try:
            outputs = [
                self.runner(packed[rows, :width], real[rows, :width], values, everything=False).output
                for rows, width in groups
            ]
        except RuntimeError as error:
            if "autograd.Function" not in str(error):
                raise
            raise ArgumentError(
                f"apply: {type(self.module).__name__} holds an operation that has no forward-mode derivative (an autograd.Function of "
                "the older kind), so Jacobian-vector products are not to be had; finite differences are."
            ) from error
        return self._output(packing, groups, outputs)

    def _groups(self, packing: Packing) -> Groups:
        """Rows of the batch that run together, and their common width."""
        lengths = packing.lengths.tolist()
        single = (
            self.runner.head == "sequence classifier"
            and getattr(self.runner.module.config, "pad_token_id", None) is None
        )
        if single:  # the library cannot find the end of a case then
            return [(torch.tensor([row]), length) for row, length in enumerate(lengths)]
        if not self.found.alone or packing.plain:
            return [(torch.arange(len(lengths)), packing.longest)]
        return [
            (torch.tensor([r for r, n in enumerate(lengths) if n == width]), width) for width in sorted(set(lengths))
        ]

    def _output(self, packing: Packing, groups: Groups, outputs: list[Tensor]) -> Tensor:
        if self.runner.head == "sequence classifier":
            return torch.cat(outputs)[_order(groups)]
        return packing.unpack(_joined(packing, groups, outputs))

    def _check(self, layer: int, attention: Tensor, real: Tensor) -> None:
        tolerance = TOLERANCE[self.runner.dtype]
        miss = (attention.sum(-1) - 1).abs().amax(1)[real].max()
        padding = attention.new_zeros(())
        if not bool(real.all()):
            padding = (attention * ~real[:, None, None, :]).abs().amax((1, 3))[real].max()
        if not bool(miss <= tolerance) or not bool(padding <= tolerance):
            raise DataError(
                f"record: in layer {layer} a row of attention sums to 1 only within {float(miss):.3g} and has weight {float(padding):.3g} on "
                "padding; such rows are no distributions over the tokens. Run cases of one length, and say so to the model's authors."
            )


def load_huggingface(directory: str | Path, dtype: str = "float64") -> HuggingFaceRecorder:
    """Read a Hugging Face directory of a model on tokens, ready to be measured.

    Parameters
    ----------
    directory : str or Path
        Holds config.json and model.safetensors, whole or in parts. Nothing is downloaded; no code and no pickled object of it runs.
    dtype : {"float64", "float32", "float16", "bfloat16"}
        float64 holds throughout, also where the library would round to float32.

    Raises
    ------
    CheckpointError
        If files are missing or damaged, weights are missing, quantised or not finite, or the model gives no attention although it has
        some, rows that do not sum to 1, or chunks.
    """
    directory = Path(directory)
    kind = check_dtype("load_huggingface", dtype)
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise CheckpointError(
            f"{directory}: a Hugging Face model is read by transformers, which is not installed: pip install 'oplens[hf]'."
        ) from error
    with quiet(), offline():
        source = read_source(directory)
        module, left_out = load_module(directory, source, kind)
    where = str(directory)
    runner = Runner(module, source.head, dtype)
    max_length = longest_case(module)
    found = try_out(runner, where, max_length)
    notes = (*source.notes, *left_out, *_notes(runner, found))
    return HuggingFaceRecorder(
        runner, directory.resolve().name, max_length, found, _facts(runner, found, max_length), notes
    )


def _joined(packing: Packing, groups: Groups, parts: list[Tensor], pairs: bool = False) -> Tensor:
    """Results of the groups as one batch of the common length, zeros after each group's width."""
    if len(groups) == 1:
        return parts[0]
    padded = []
    for part, (_, width) in zip(parts, groups, strict=True):
        missing = packing.longest - width
        padded.append(functional.pad(part, (0, missing, 0, missing) if pairs else (0, 0, 0, missing)))
    return torch.cat(padded)[_order(groups)]


def _order(groups: Groups) -> Tensor:
    """Where each case of the batch stands among those of all groups."""
    return torch.cat([rows for rows, _ in groups]).argsort()


def _facts(runner: Runner, found: Findings, max_length: int | None) -> dict[str, Any]:
    import transformers

    config, module = runner.module.config, runner.module
    heads = sorted(set(found.n_heads))
    return {
        "architecture": type(module).__name__,
        "model_type": str(config.model_type),
        "head": runner.head,
        "parameters": count_parameters(module),
        "n_layers": found.n_layers,
        "d_model": int(config.hidden_size),
        "n_heads": heads[0] if len(heads) == 1 else list(found.n_heads),
        "vocabulary": int(config.vocab_size),
        "max_length": max_length,
        "causal": found.causal,
        "predicts_next": found.predicts_next,
        "dtype": runner.dtype,
        "attention": "eager" if found.attended else "none",
        "library": f"transformers {transformers.__version__}",
    }


def _notes(runner: Runner, found: Findings) -> tuple[str, ...]:
    notes = []
    if found.attended:
        notes.append("Eager attention is forced: the default implementations return no attention weights.")
    else:
        notes.append("The model has no attention weights; its hidden states are measured alone.")
    if 0 < len(found.attended) < found.n_layers:
        notes.append(f"{len(found.attended)} of {found.n_layers} layers have attention weights.")
    if runner.dtype == "float64":
        notes.append("Float64 holds throughout, also where transformers rounds to float32 by itself.")
    if runner.module.config.model_type == "big_bird":
        notes.append(
            "BigBird runs with full attention (original_full): its block-sparse rows do not sum to 1, and it would switch by length."
        )
    if found.alone:
        notes.append("Padding changes what this model computes, so cases of different lengths run apart.")
    if runner.head == "causal language model" and not found.predicts_next:
        notes.append(
            "The model has a language-model head and sees later tokens, so its outputs are no predictions of the next token."
        )
    if found.normed is not None:
        notes.append(
            "The last hidden state is what the head reads, after the final norm where there is one."
            if found.normed
            else "The last hidden state is that of the last layer, before what follows it."
        )
    return tuple(notes)
