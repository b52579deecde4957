"""What a transformer has and costs, by formulas of its configuration: parameters, bytes, floating-point operations; and real sizes."""

from dataclasses import dataclass

import torch

from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_layers import SparseLinear
from oplens.operators.attention import attention_cost

_GPT3 = {
    "d_output": 50257,
    "vocabulary": 50257,
    "max_length": 2048,
    "causal": True,
    "positions": "learned",
    "readout": "position",
    "tied": True,
}
# The paper's Table 1 gives layers, width and heads. Vocabulary, length and tied embeddings are those of GPT-3 (Brown et al. 2020,
# arXiv 2005.14165), whose sizes these are, but for its own 24 heads at 1.3B; with them 12 L d^2 + embeddings gives all five names.
PRESETS: dict[str, TransformerConfig] = {
    name: TransformerConfig(n_layers=n_layers, d_model=d_model, n_heads=n_heads, **_GPT3)  # type: ignore[arg-type]
    for name, n_layers, d_model, n_heads in (
        ("125M", 12, 768, 12),
        ("350M", 24, 1024, 16),
        ("1.3B", 24, 2048, 32),
        ("6.7B", 32, 4096, 32),
        ("175B", 96, 12288, 96),
    )
}


@dataclass(frozen=True)
class ParameterCount:
    """Trainable numbers of a dense transformer, by where they are; tied weights count once."""

    embedding: int
    positions: int
    attention: int
    feedforward: int
    norms: int
    readout: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.positions + self.attention + self.feedforward + self.norms + self.readout

    @property
    def non_embedding(self) -> int:
        """All but embeddings and readout: the N of Kaplan et al. 2020."""
        return self.attention + self.feedforward + self.norms


@dataclass(frozen=True)
class MemoryCount:
    """Bytes, of numbers alone.

    Attributes
    ----------
    weights : int
        Parameters in the given dtype.
    training : int
        Parameters, gradients in the same dtype, and Adam's two moments in float32.
    cache : int
        Keys and values of all layers for the batch: what a decoder keeps between steps.
    attention : int
        Attention weights of all layers: what a trace keeps.
    """

    weights: int
    training: int
    cache: int
    attention: int


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of matrix products in one forward pass, 2 per multiplication and addition.

    `attention` is what is done with queries, keys and values; making them is `projections`.
    """

    embedding: int
    projections: int
    attention: int
    feedforward: int
    readout: int
    positions: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.projections + self.attention + self.feedforward + self.readout

    @property
    def per_position(self) -> float:
        """Total over the number of positions of the batch."""
        return self.total / self.positions

    @property
    def training(self) -> int:
        """A forward and a backward pass: three times the total, since a product's two gradients cost one product each."""
        return 3 * self.total


@dataclass(frozen=True)
class WeightCount:
    """Of a model as it is: `slots`, places for a weight in a dense model, and `nonzeros`, weights that are not 0."""

    slots: int
    nonzeros: int


def count_parameters(config: TransformerConfig) -> ParameterCount:
    """Parameters of the dense model of this configuration.

    Notes
    -----
    Accuracy: *exact*. Cost: O(n_layers). With one width and d_ffn = 4 d_model, layers hold 12 n_layers d_model^2 plus vectors.

    Examples
    --------
    >>> {name: round(count_parameters(config).total / 1e6) for name, config in PRESETS.items()}
    {'125M': 125, '350M': 356, '1.3B': 1316, '6.7B': 6658, '175B': 174604}
    """
    d, bias = config.d_model, int(config.bias)
    attention = feedforward = norms = 0
    for layer in config.layers:
        if layer.n_heads:
            width, values = layer.n_heads * layer.d_head, layer.n_heads * layer.d_value
            maps = width * (1 if config.attention.shares_queries else 2) + values
            attention += (d + bias) * maps + (values + bias) * d
        feedforward += layer.d_ffn * (2 * d + bias) + bias * d * (layer.d_ffn > 0)
        norms += 2 * d * ((layer.n_heads > 0) + (layer.d_ffn > 0)) * (config.norm != "none")
    norms += 2 * d * (config.norm == "pre")
    rows = (config.d_input or 0) + bias if config.vocabulary is None else config.vocabulary
    embedding = rows * config.d_token
    positions = (config.max_length or 0) * d if config.positions == "learned" else 0
    readout = 0 if config.tied else (d + bias) * config.d_output
    return ParameterCount(embedding, positions, attention, feedforward, norms, readout)


def count_memory(
    config: TransformerConfig, length: int, batch: int = 1, dtype: torch.dtype = torch.float32
) -> MemoryCount:
    """Bytes that the dense model of this configuration needs for its numbers.

    Parameters
    ----------
    length, batch : int
        Sequences of the cache and of the trace.
    dtype : torch.dtype
        Of weights, gradients, cache and trace.

    Notes
    -----
    Accuracy: *exact* for what each entry names; what an allocator or a training framework adds is not in it. Cost: O(n_layers).

    Examples
    --------
    >>> round(count_memory(PRESETS["175B"], length=2048, dtype=torch.float16).weights / 1e9)
    349
    """
    _check_sizes("count_memory", config, length, batch)
    total, size = count_parameters(config).total, dtype.itemsize
    cache = sum(s.n_heads * (s.d_head + s.d_value) for s in config.layers)
    heads = sum(s.n_heads for s in config.layers)
    return MemoryCount(
        weights=total * size,
        training=total * (2 * size + 8),
        cache=cache * length * batch * size,
        attention=heads * length**2 * batch * size,
    )


def count_flops(config: TransformerConfig, length: int, batch: int = 1) -> FlopCount:
    """Matrix products of one forward pass of the dense model over `batch` sequences of `length`.

    What a readout of the last position leaves out is left out here. Attention is by family (:func:`attention_cost`).

    Notes
    -----
    Accuracy: *exact*; activations, norms, softmax and table look-ups are not counted. Cost: O(n_layers).

    Examples
    --------
    >>> found = count_flops(PRESETS["125M"], length=2048)
    >>> round(found.per_position / (2 * count_parameters(PRESETS["125M"]).non_embedding), 2)  # the rule 2 N per token
    1.9
    """
    _check_sizes("count_flops", config, length, batch)
    d, everywhere = config.d_model, batch * length
    positions, projections, attention, feedforward = everywhere, 0, 0, 0
    for index, layer in enumerate(config.layers):
        if layer.n_heads:
            width, values = layer.n_heads * layer.d_head, layer.n_heads * layer.d_value
            maps = width * (1 if config.attention.shares_queries else 2) + 2 * values
            projections += 2 * everywhere * d * maps
            cost = attention_cost(config.attention, length, layer.d_head, layer.d_value, causal=config.causal)
            attention += batch * layer.n_heads * cost.flops
        if config.readout == "last" and index >= config.last_attention:
            positions = batch
        feedforward += 4 * positions * d * layer.d_ffn
    read = everywhere if config.readout == "position" else batch
    embedding = 0 if config.d_input is None else 2 * everywhere * config.d_input * config.d_token
    return FlopCount(embedding, projections, attention, feedforward, 2 * read * d * config.d_output, everywhere)


def count_weights(model: Transformer) -> WeightCount:
    """Places for weights of a model's dense form, and how many of its weights are not 0.

    Examples
    --------
    >>> from oplens.models.transformer import Transformer
    >>> model = Transformer(TransformerConfig(d_output=1, vocabulary=2, d_model=12, n_heads=1, weights="sparse", norm="none"))
    >>> count_weights(model)
    WeightCount(slots=3693, nonzeros=8)
    """
    slots, nonzeros = 0, 0
    sparse = {
        f"{name}.values": module.d_input * module.d_output
        for name, module in model.named_modules()
        if isinstance(module, SparseLinear)
    }
    for name, parameter in model.named_parameters():
        slots += sparse.get(name, parameter.numel())
        nonzeros += int(torch.count_nonzero(parameter))
    return WeightCount(slots, nonzeros)


def _check_sizes(call: str, config: TransformerConfig, length: int, batch: int) -> None:
    for name, value in (("length", length), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{call}({name}={value!r}): a whole number of at least 1 is needed.")
    if config.max_length is not None and length > config.max_length:
        raise ArgumentError(f"{call}(length={length}): the configuration's max_length is {config.max_length}.")
