"""What a transformer is, apart from its weights."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oplens.errors import ArgumentError
from oplens.operators.attention import Family, Softmax, family_from_dict, family_to_dict

POSITIONS = ("own", "added", "learned", "none")
NORMS = ("none", "pre", "post")
ACTIVATIONS = ("relu", "gelu")
READOUTS = ("last", "mean", "position")
WEIGHTS = ("dense", "sparse")
LARGEST_WIDTH, MOST_LAYERS = 2**26, 2**12  # beyond them a file is damaged; building it would take all memory or time
_CHOICES = {
    "positions": POSITIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "readout": READOUTS,
    "weights": WEIGHTS,
}
_PER_LAYER = ("n_heads", "d_head", "d_value", "d_ffn")


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer; no heads: no attention, d_ffn 0: no feed-forward network."""

    n_heads: int
    d_head: int
    d_value: int
    d_ffn: int


@dataclass(frozen=True)
class TransformerConfig:
    """Configuration of :class:`oplens.models.transformer.Transformer`.

    Parameters
    ----------
    d_output : int
        Numbers read out: classes, real outputs, or logits over a vocabulary.
    vocabulary, d_input : int, optional
        Exactly one: tokens 0 to vocabulary - 1 enter, or d_input real numbers per position.
    d_model, n_layers : int
        Width of the residual stream; layers.
    n_heads, d_head, d_value, d_ffn : int or sequence of int, one per layer
        Heads (0: the layer has no attention), size of their queries and keys (d_model / n_heads when omitted), of their values
        (d_head when omitted), hidden units of the feed-forward network (0: none; 4 d_model when omitted).
    activation : {"gelu", "relu"}
        GELU is exact (erf).
    norm : {"pre", "post", "none"}
        LayerNorm before each sublayer (and before the readout), after each, or none.
    skip : bool
        Add each sublayer's input to its output.
    causal : bool
        Position i sees positions 0 to i: a decoder. Otherwise all: an encoder.
    attention : Family
        Of every layer; layer l draws with its seed + l.
    positions : {"own", "added", "learned", "none"}
        Sinusoids in 2 n_frequencies coordinates of their own, the first ones, beside those of the token; sinusoids added to the
        token's coordinates; a table of max_length learned vectors added to them; nothing.
    n_frequencies : int
        K, for "own": coordinates 2k and 2k + 1 hold sin(w_k i) and cos(w_k i), w_k = frequency_base^(-k/K).
    frequency_base : float
    max_length : int, optional
        Longest sequence; None: any, but learned positions need it.
    readout : {"last", "mean", "position"}
        One output from the last valid position or from the mean over valid ones, or one at every position.
    tied : bool
        The readout's weights are the token embedding's, without a bias.
    bias : bool
        Linear maps have biases (LayerNorm always has both its vectors).
    weights : {"dense", "sparse"}
        Sparse: linear maps hold their non-zero entries only (:class:`oplens.models.transformer_layers.SparseLinear`), none at first.
    dropout : float
        Of the embedding and of what sublayers return.

    Examples
    --------
    >>> config = TransformerConfig(d_output=2, vocabulary=4, d_model=16, n_layers=2, n_heads=2, d_ffn=(8, 32))
    >>> config.layers[1]
    LayerShape(n_heads=2, d_head=8, d_value=8, d_ffn=32)
    >>> TransformerConfig.from_dict(config.to_dict()) == config
    True
    """

    d_output: int
    vocabulary: int | None = None
    d_input: int | None = None
    d_model: int = 64
    n_layers: int = 2
    n_heads: int | Sequence[int] = 4
    d_head: int | Sequence[int] | None = None
    d_value: int | Sequence[int] | None = None
    d_ffn: int | Sequence[int] | None = None
    activation: str = "gelu"
    norm: str = "pre"
    skip: bool = True
    causal: bool = False
    attention: Family = dataclasses.field(default_factory=Softmax)
    positions: str = "own"
    n_frequencies: int = 4
    frequency_base: float = 10000.0
    max_length: int | None = None
    readout: str = "last"
    tied: bool = False
    bias: bool = True
    weights: str = "dense"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("d_output", "d_model", "n_layers", "n_frequencies"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in ("vocabulary", "d_input", "max_length"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in ("skip", "causal", "tied", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"TransformerConfig({name}={getattr(self, name)!r}): give True or False.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ArgumentError(
                    f"TransformerConfig({name}={getattr(self, name)!r}): choose one of {', '.join(choices)}."
                )
        for name in ("dropout", "frequency_base"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise ArgumentError(f"TransformerConfig({name}={value!r}): expected a finite number.")
            object.__setattr__(self, name, float(value))
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"TransformerConfig(dropout={self.dropout}): must be at least 0 and below 1.")
        if self.n_layers > MOST_LAYERS:
            raise ArgumentError(f"TransformerConfig(n_layers={self.n_layers}): at most {MOST_LAYERS}.")
        self._check_layers()
        self._check_ends()
        self._check_attention()

    def _check_layers(self) -> None:
        given = {name: getattr(self, name) for name in _PER_LAYER}
        heads = _per_layer("n_heads", given["n_heads"], self.n_layers, 0)
        ffn = _per_layer("d_ffn", 4 * self.d_model if given["d_ffn"] is None else given["d_ffn"], self.n_layers, 0)
        if given["d_head"] is None:
            for count in heads:
                if count and self.d_model % count:
                    raise ArgumentError(
                        f"TransformerConfig(d_model={self.d_model}, n_heads={count}): d_model is no multiple of n_heads; give d_head too."
                    )
            given["d_head"] = tuple(self.d_model // count if count else 1 for count in heads)
        sizes = _per_layer("d_head", given["d_head"], self.n_layers, 1)
        values = _per_layer("d_value", sizes if given["d_value"] is None else given["d_value"], self.n_layers, 1)
        for index, (count, hidden) in enumerate(zip(heads, ffn, strict=True)):
            if not count and not hidden:
                raise ArgumentError(
                    f"TransformerConfig: layer {index} has neither heads nor hidden units; leave it out of n_layers."
                )
        for name, value in zip(_PER_LAYER, (heads, sizes, values, ffn), strict=True):
            object.__setattr__(self, name, value)

    def _check_ends(self) -> None:
        if (self.vocabulary is None) == (self.d_input is None):
            raise ArgumentError(
                f"TransformerConfig(vocabulary={self.vocabulary}, d_input={self.d_input}): give one of them, the number of tokens or "
                "the number of real inputs per position."
            )
        if self.positions == "own" and self.d_token < 1:
            raise ArgumentError(
                f"TransformerConfig(d_model={self.d_model}, n_frequencies={self.n_frequencies}): positions take "
                f"{2 * self.n_frequencies} coordinates and leave none for the token; give a larger d_model."
            )
        if self.positions == "added" and self.d_model % 2:
            raise ArgumentError(
                f"TransformerConfig(positions='added', d_model={self.d_model}): sines and cosines come in pairs, so d_model is even."
            )
        if self.positions == "learned" and self.max_length is None:
            raise ArgumentError(
                "TransformerConfig(positions='learned', max_length=None): give max_length, the size of the table."
            )
        if self.frequency_base <= 1:
            raise ArgumentError(f"TransformerConfig(frequency_base={self.frequency_base}): must be above 1.")
        if self.tied and (self.vocabulary != self.d_output or self.d_token != self.d_model):
            raise ArgumentError(
                f"TransformerConfig(tied=True): the embedding is {self.vocabulary} x {self.d_token}, the readout {self.d_output} x "
                f"{self.d_model}; tied weights need tokens, d_output equal to the vocabulary, and no positions of their own."
            )

    def _check_attention(self) -> None:
        if not isinstance(self.attention, Family):
            raise ArgumentError(
                f"TransformerConfig(attention={self.attention!r}): expected an attention family such as Softmax()."
            )
        if self.causal and self.attention.refuses_causal:
            raise ArgumentError(
                f"TransformerConfig(causal=True, attention={self.attention}): {self.attention.refuses_causal}."
            )

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """Sizes layer by layer, counted from the input."""
        columns = zip(*(getattr(self, name) for name in _PER_LAYER), strict=True)
        return tuple(LayerShape(*sizes) for sizes in columns)

    @property
    def d_token(self) -> int:
        """Coordinates that the token (or the real inputs) has: those after the positions' own."""
        return self.d_model - (2 * self.n_frequencies if self.positions == "own" else 0)

    @property
    def last_attention(self) -> int:
        """Index of the last layer with attention, -1 if there is none: later ones act position by position."""
        return max((index for index, layer in enumerate(self.layers) if layer.n_heads), default=-1)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; :meth:`from_dict` gives the same configuration back."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **values,
            **{name: list(values[name]) for name in _PER_LAYER},
            "attention": family_to_dict(self.attention),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """Build from a dictionary such as :meth:`to_dict` returns.

        Raises
        ------
        ArgumentError
            If a key is unknown or missing, or a value cannot work.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ArgumentError(
                f"TransformerConfig: unknown keys {', '.join(unknown)}; this version knows {', '.join(sorted(known))}."
            )
        if "d_output" not in values:
            raise ArgumentError("TransformerConfig: key 'd_output' is missing.")
        values = dict(values)
        if isinstance(values.get("attention"), dict):
            values["attention"] = family_from_dict(values["attention"])
        return cls(**values)


def _integer(name: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(f"TransformerConfig({name}={value!r}): expected an integer.")
    if not least <= int(value) <= LARGEST_WIDTH:
        raise ArgumentError(f"TransformerConfig({name}={value}): must be at least {least} and at most {LARGEST_WIDTH}.")
    return int(value)


def _per_layer(name: str, value: object, n_layers: int, least: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        return (_integer(name, value, least),) * n_layers
    if len(value) != n_layers:
        raise ArgumentError(
            f"TransformerConfig({name}={value!r}): {len(value)} numbers for n_layers={n_layers} layers; give one per layer, or one for all."
        )
    return tuple(_integer(name, entry, least) for entry in value)
