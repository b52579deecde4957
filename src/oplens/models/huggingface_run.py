"""Running a Hugging Face model on tokens that stand at the front, and finding out by trial what it is."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from oplens.errors import CheckpointError
from oplens.models.double_precision import DoublePrecision
from oplens.models.huggingface_files import Head

TRIAL = 12  # tokens that a model is tried on
# How far a row's sum may be from 1, and padding may move a state: rounding of the dtype.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Answer:
    """What a model gives for packed tokens: attention as it comes, states, and the output that its head is for."""

    attentions: tuple[Tensor | None, ...]
    hidden: tuple[Tensor, ...]
    output: Tensor


@dataclass(frozen=True)
class Runner:
    """A `transformers` model with what it is told at every call."""

    module: Any
    head: Head
    dtype: str

    @property
    def pad(self) -> int:
        """What stands at padding: the model's own token for it, since some find the end of a case by that."""
        pad = getattr(self.module.config, "pad_token_id", None)
        return pad if isinstance(pad, int) and 0 <= pad < self.module.config.vocab_size else 0

    def __call__(
        self, tokens: Tensor, mask: Tensor, values: Mapping[str, Tensor] | None = None, everything: bool = True
    ) -> Answer:
        """Answer to tokens (batch, length) with real ones first; `values` in place of parameters."""
        known = inspect.signature(self.module.forward).parameters
        free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        wishes = {
            "attention_mask": mask.long(),
            "output_attentions": everything,
            "output_hidden_states": everything,
            "return_dict": True,
            "use_cache": False,
        }
        told = {name: value for name, value in wishes.items() if name in known or (free and name != "attention_mask")}
        tokens = torch.where(mask, tokens, self.pad)
        precision = DoublePrecision() if self.dtype == "float64" else contextlib.nullcontext()
        with quiet(), offline(), precision:
            found = functional_call(self.module, dict(values or {}), (tokens,), told)
        output = found["last_hidden_state" if self.head == "no head" else "logits"]
        if not everything:
            return Answer((), (), output)
        return Answer(tuple(found.get("attentions") or ()), tuple(found.get("hidden_states") or ()), output)


@dataclass(frozen=True)
class Findings:
    """What trials told.

    Attributes
    ----------
    n_layers : int
    n_heads : tuple of int
        Of the layers with attention.
    attended : tuple of int
        Numbers of the layers with attention.
    causal : bool
        Attention sees the past only; without attention: states depend on the past only.
    predicts_next : bool
    alone : bool
        Padding changes what real positions give, so cases of different lengths run apart.
    normed : bool or None
        The last hidden state is what the model's body gives to its head, after any final norm; None: not to be told.
    """

    n_layers: int
    n_heads: tuple[int, ...]
    attended: tuple[int, ...]
    causal: bool
    predicts_next: bool
    alone: bool
    normed: bool | None


def try_out(runner: Runner, where: str, max_length: int | None) -> Findings:
    """Run a model on a few random tokens and refuse what does not answer as a model of attention or states does."""
    length = min(TRIAL, max_length or TRIAL)
    tokens = _tokens(runner, length)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    try:
        with torch.no_grad():
            answer = runner(tokens, mask)
    except Exception as error:
        raise CheckpointError(
            f"{where}: the model does not run on {length} tokens alone ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    n_layers = len(answer.hidden) - 1
    shape = (1, length)
    if n_layers < 1 or any(state.shape[:2] != shape or state.ndim != 3 for state in answer.hidden):
        raise CheckpointError(
            f"{where}: the model gives no hidden state (batch, length, d_model) per layer "
            f"({[tuple(state.shape) for state in answer.hidden][:3]}), so its layers cannot be measured."
        )
    attended = _attended(runner, answer, n_layers, where)
    weights = [weight for weight in answer.attentions if weight is not None and attended]
    _check_attention(weights, length, TOLERANCE[runner.dtype], where)
    changed = _last_changed(runner, tokens)
    past = not any(
        bool(_differs(a[:, :-1], b[:, :-1], runner)) for a, b in zip(answer.hidden, changed.hidden, strict=True)
    )
    causal = past
    if weights:
        causal = all(not bool(pattern.triu(1).any()) for pattern in patterns(runner, length))
    predicts = runner.head == "causal language model" and past and causal
    return Findings(
        n_layers,
        tuple(weight.shape[1] for weight in weights),
        attended,
        causal,
        predicts,
        _leaks(runner, tokens),
        _normed(runner, tokens, answer.hidden[-1]),
    )


def patterns(runner: Runner, length: int) -> list[Tensor]:
    """(length, length) bool of each layer with attention: the pairs that can have weight at all.

    With all parameters 0 every score is 0 (or a bias that depends on the distance), and attention is spread over all that is visible.
    Where that is not defined (a norm that divides by 0), the model's own weights on random tokens stand in.
    """
    tokens = _tokens(runner, length)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    zeros = {name: value.new_zeros(()).expand(value.shape) for name, value in runner.module.named_parameters()}
    with torch.no_grad():
        found = runner(tokens, mask, zeros).attentions
        if not all(bool(torch.isfinite(weight).all()) for weight in found if weight is not None):
            found = runner(tokens, mask).attentions
    return [(weight != 0).any(0).any(0) for weight in found if weight is not None]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's bars and advice, and give its settings back."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """No request leaves the library, also where a model would fetch a kernel or a part of another one by itself."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _tokens(runner: Runner, length: int) -> Tensor:
    """Random tokens other than the one for padding, the same every time."""
    vocabulary = runner.module.config.vocab_size
    tokens = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    return torch.where(tokens == runner.pad, (runner.pad + 1) % vocabulary, tokens)


def _attended(runner: Runner, answer: Answer, n_layers: int, where: str) -> tuple[int, ...]:
    """Layers that the attention weights belong to."""
    config, found = runner.module.config, answer.attentions
    if not getattr(config, "num_attention_heads", None) and not any(
        weight is not None and weight.ndim == 4 for weight in found
    ):
        return ()  # state-space models, and RWKV, which gives states under the name of attention
    if not any(weight is not None for weight in found):
        raise CheckpointError(
            f"{where}: the model has attention heads and returns no attention weights, although eager attention was asked for: "
            f"{type(runner.module).__name__} never forms the matrix. Measure a model of a class that does, such as BERT, GPT-2 or Llama."
        )
    if len(found) == n_layers:
        return tuple(layer for layer, weight in enumerate(found) if weight is not None)
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None) or ()
    layers = tuple(layer for layer, kind in enumerate(kinds) if "attention" in str(kind) and "linear" not in str(kind))
    if len(kinds) == n_layers and len(layers) == len(found) and all(weight is not None for weight in found):
        return layers
    raise CheckpointError(
        f"{where}: {len(found)} attention matrices come back from {n_layers} layers, and the configuration does not say which layers "
        "they are of, so none of them can be named. Measure a model that returns one per layer."
    )


def _check_attention(weights: list[Tensor], length: int, tolerance: float, where: str) -> None:
    for layer, weight in enumerate(weights):
        if weight.ndim != 4 or weight.shape[0] != 1 or weight.shape[2:] != (length, length):
            raise CheckpointError(
                f"{where}: attention comes back as {tuple(weight.shape)} for {length} tokens instead of (batch, n_heads, length, length): "
                "chunks or buckets, not a matrix over positions (as from Reformer and Longformer). A model with full attention is needed."
            )
        miss = (weight.sum(-1) - 1).abs().max()
        if not bool(miss <= tolerance):
            raise CheckpointError(
                f"{where}: rows of attention sum to 1 only within {float(miss):.3g} (matrix {layer}), so they are no distributions and have "
                "no entropy: sparse implementations and attention sinks give such rows. A model whose rows sum to 1 is needed."
            )


def _last_changed(runner: Runner, tokens: Tensor) -> Answer:
    """Answer to the same tokens with another last one."""
    vocabulary = runner.module.config.vocab_size
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % vocabulary
    other[:, -1] = torch.where(other[:, -1] == runner.pad, (runner.pad + 1) % vocabulary, other[:, -1])
    with torch.no_grad():
        return runner(other, torch.ones_like(other, dtype=torch.bool))


def _leaks(runner: Runner, tokens: Tensor) -> bool:
    """Whether three positions of padding change what stands at real ones."""
    length = tokens.shape[1] - 3
    if length < 1:
        return True
    mask = torch.arange(tokens.shape[1])[None] < length
    with torch.no_grad():
        short = runner(tokens[:, :length], mask[:, :length])
        padded = runner(tokens, mask)
    pairs = [(a, b[:, :length]) for a, b in zip(short.hidden, padded.hidden, strict=True)]
    output = padded.output if padded.output.ndim == 2 else padded.output[:, :length]
    return any(_differs(a, b, runner) for a, b in (*pairs, (short.output, output)))


def _normed(runner: Runner, tokens: Tensor, last: Tensor) -> bool | None:
    """Whether the last hidden state is what the body gives to the head."""
    body = runner.module.base_model
    if body is runner.module and runner.head != "no head":
        return None
    with torch.no_grad():
        given = Runner(body, "no head", runner.dtype)(
            tokens, torch.ones_like(tokens, dtype=torch.bool), None, False
        ).output
    return given.shape == last.shape and not _differs(given, last, runner)


def _differs(one: Tensor, two: Tensor, runner: Runner) -> bool:
    if not one.numel():
        return False
    one, two = one.double(), two.double()
    scale = one.abs().max().clamp(min=1e-30)
    return not bool((one - two).abs().max() / scale <= TOLERANCE[runner.dtype])
