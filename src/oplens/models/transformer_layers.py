"""The pieces of a transformer: linear maps, dense or of non-zero entries only; positions; attention; feed-forward network."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from oplens.errors import ArgumentError
from oplens.models.transformer_config import LayerShape, TransformerConfig
from oplens.operators.attention import Family, attend

HIDDEN_AT_ONCE = 2**21  # hidden units times positions that are in memory together when no gradient is kept


class SparseLinear(nn.Module):
    """y = W x + bias with W (d_output, d_input) stored as its non-zero entries, row by row (CSR).

    `crow_indices` (d_output + 1,), `col_indices` and `values` (nonzeros,) mean what they do in torch's CSR tensors, whose own product
    lacks half precision and was measured seven times slower in float32 on rows of two entries. Sums are formed in float32 for float16 and
    bfloat16, rounded once, and once more when the bias is added. Gradients flow to `values`, `bias` and x; forward-mode derivatives need
    :meth:`Transformer.to_dense`. A state dictionary brings its own number of entries (make optimisers after loading it).

    Examples
    --------
    >>> layer = SparseLinear(3, 2)
    >>> layer.set_entries(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.tensor([5.0, 2.0]))
    >>> layer(torch.tensor([[1.0, 10.0, 100.0]])).tolist()
    [[2.0, 500.0]]
    """

    crow_indices: Tensor
    col_indices: Tensor

    def __init__(self, d_input: int, d_output: int, bias: bool = True) -> None:
        super().__init__()
        self.d_input, self.d_output = d_input, d_output
        self.register_buffer("crow_indices", torch.zeros(d_output + 1, dtype=torch.int64))
        self.register_buffer("col_indices", torch.zeros(0, dtype=torch.int64))
        self.values = nn.Parameter(torch.zeros(0))
        self.bias = nn.Parameter(torch.zeros(d_output)) if bias else None

    @property
    def nonzeros(self) -> int:
        """Stored entries of W."""
        return len(self.values)

    def set_entries(self, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        """Make W the matrix of these entries (all others 0), in any order; each place once.

        Raises
        ------
        ArgumentError
            If the three lengths differ, an index is out of range, or a place is given twice.
        """
        if not rows.shape == columns.shape == values.shape or rows.ndim != 1:
            raise ArgumentError(
                f"SparseLinear.set_entries: {tuple(rows.shape)} rows, {tuple(columns.shape)} columns and {tuple(values.shape)} values; "
                "give three vectors of one length."
            )
        for name, index, size in (("row", rows, self.d_output), ("column", columns, self.d_input)):
            if len(index) and not 0 <= int(index.min()) <= int(index.max()) < size:
                raise ArgumentError(f"SparseLinear.set_entries: a {name} index is outside 0 to {size - 1}.")
        place, order = torch.sort(rows * self.d_input + columns)
        if bool((place[1:] == place[:-1]).any()):
            raise ArgumentError("SparseLinear.set_entries: a place is given twice; add such entries up first.")
        counts = torch.bincount(rows, minlength=self.d_output)
        device = self.crow_indices.device
        self.crow_indices = functional.pad(counts.cumsum(0), (1, 0)).to(device)
        self.col_indices = columns[order].to(device)
        self.values = nn.Parameter(values.detach()[order].to(device, self.values.dtype))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # How many entries there are is part of the state, not of the module.
        values = state_dict.get(f"{prefix}values")
        if isinstance(values, Tensor) and values.shape != self.values.shape and values.ndim == 1:
            self.allocate(len(values))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def allocate(self, nonzeros: int) -> None:
        """Room for so many entries, to be filled from a file."""
        device, dtype = self.values.device, self.values.dtype
        self.col_indices = torch.zeros(nonzeros, dtype=torch.int64, device=device)
        self.values = nn.Parameter(torch.zeros(nonzeros, dtype=dtype, device=device))

    def dense_weight(self) -> Tensor:
        """W (d_output, d_input)."""
        weight = self.values.detach().new_zeros(self.d_output, self.d_input)
        rows = torch.repeat_interleave(self.crow_indices.diff())
        weight[rows, self.col_indices] = self.values.detach()
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_input) to (..., d_output)."""
        columns = x.reshape(-1, self.d_input).T.contiguous()
        # Sums of rows picked by index: what CSR times dense is, without a tensor of all entries times all positions.
        y = functional.embedding_bag(
            self.col_indices,
            columns,
            self.crow_indices,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )
        if self.bias is not None:
            y += self.bias[:, None]
        return y.T.reshape(*x.shape[:-1], self.d_output)


def make_linear(config: TransformerConfig, d_input: int, d_output: int) -> nn.Linear | SparseLinear:
    """A linear map of the kind that the configuration asks for."""
    kind = SparseLinear if config.weights == "sparse" else nn.Linear
    return kind(d_input, d_output, bias=config.bias)


def frequencies(n_frequencies: int, base: float) -> Tensor:
    """w_k = base^(-k/K), (K,) float64, radians per position."""
    return base ** (-torch.arange(n_frequencies, dtype=torch.float64) / n_frequencies)


def sinusoids(length: int, n_frequencies: int, base: float = 10000.0) -> Tensor:
    """Positional code (length, 2K) float64: sin(w_k i) and cos(w_k i) in columns 2k and 2k + 1.

    Examples
    --------
    >>> sinusoids(2, 1).round(decimals=4).tolist()
    [[0.0, 1.0], [0.8415, 0.5403]]
    """
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(n_frequencies, base)
    return torch.stack((torch.sin(angle), torch.cos(angle)), dim=-1).flatten(1)


class Embedding(nn.Module):
    """Tokens or real inputs and their positions, to (batch, length, d_model)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        if config.vocabulary is not None:
            self.token = nn.Embedding(config.vocabulary, config.d_token)
            if config.tied:
                nn.init.normal_(self.token.weight, std=config.d_model**-0.5)
        else:
            assert config.d_input is not None
            self.input = make_linear(config, config.d_input, config.d_token)
        if config.positions == "learned":
            assert config.max_length is not None
            self.position = nn.Embedding(config.max_length, config.d_model)
            nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Tokens (batch, length) or real inputs (batch, length, d_input); what stands outside of `valid` (batch, length) is not read."""
        config, length = self.config, x.shape[1]
        if valid is not None:
            # Selected, not multiplied: padding may hold NaN or no token at all.
            x = torch.where(valid if config.vocabulary is not None else valid[..., None], x, 0)
        hidden = self.token(x) if config.vocabulary is not None else self.input(x)
        if config.positions == "learned":
            return hidden + self.position.weight[:length]
        if config.positions == "none":
            return hidden
        n = config.n_frequencies if config.positions == "own" else config.d_model // 2
        code = sinusoids(length, n, config.frequency_base).to(hidden)
        return torch.cat((code.expand(len(x), -1, -1), hidden), dim=-1) if config.positions == "own" else hidden + code


class SelfAttention(nn.Module):
    """Heads of one layer: softmax(q k / sqrt(d_head)) v or what its family puts in its place, mixed by `output`."""

    def __init__(self, config: TransformerConfig, shape: LayerShape, family: Family) -> None:
        super().__init__()
        self.family, self.causal, self.shape = family, config.causal, shape
        width = shape.n_heads * shape.d_head
        self.query = make_linear(config, config.d_model, width)
        # Reformer's keys are its queries.
        self.key = None if family.shares_queries else make_linear(config, config.d_model, width)
        self.value = make_linear(config, config.d_model, shape.n_heads * shape.d_value)
        self.output = make_linear(config, shape.n_heads * shape.d_value, config.d_model)

    def forward(self, x: Tensor, lengths: Tensor | None, weights: bool) -> tuple[Tensor, Tensor | None]:
        """(batch, length, d_model) to the same, and the attention weights (batch, n_heads, length, length) where asked for."""
        heads = (self.shape.n_heads, -1)
        q = self.query(x).unflatten(-1, heads).transpose(1, 2)
        k = q if self.key is None else self.key(x).unflatten(-1, heads).transpose(1, 2)
        v = self.value(x).unflatten(-1, heads).transpose(1, 2)
        found = attend(q, k, v, self.family, lengths=lengths, causal=self.causal, weights=weights)
        return self.output(found.output.transpose(1, 2).flatten(2)), found.weights


class FeedForward(nn.Module):
    """down(activation(up(x))), position by position."""

    def __init__(self, config: TransformerConfig, d_ffn: int) -> None:
        super().__init__()
        self.d_ffn, self.relu = d_ffn, config.activation == "relu"
        self.up = make_linear(config, config.d_model, d_ffn)
        self.down = make_linear(config, d_ffn, config.d_model)

    def activations(self, x: Tensor) -> Tensor:
        """Hidden units (..., d_ffn) of (..., d_model)."""
        hidden: Tensor = self.up(x)
        # In place: the hidden units are by far the largest tensor, and nothing else needs their inputs.
        return functional.relu(hidden, inplace=True) if self.relu else functional.gelu(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) to the same; a wide network without gradients takes some positions at a time."""
        rows = max(1, HIDDEN_AT_ONCE // self.d_ffn)
        if torch.is_grad_enabled() or x.shape[0] * x.shape[1] <= rows:
            return self.down(self.activations(x))
        parts = [self.down(self.activations(part)) for part in x.flatten(0, 1).split(rows)]
        return torch.cat(parts).reshape(x.shape)


@dataclass(frozen=True)
class BlockTrace:
    """One layer's intermediate values; rows of padding are 0.

    Attributes
    ----------
    weights : Tensor or None, (batch, n_heads, length, length)
        Attention weights; None without heads, or when they were not asked for.
    attended : Tensor or None, (batch, length, d_model)
        Residual stream after the attention sublayer; None without heads.
    activations : Tensor or None, (batch, length, d_ffn)
        Hidden units of the feed-forward network; None without one.
    hidden : Tensor, (batch, length, d_model)
        Residual stream after the layer.
    """

    weights: Tensor | None
    attended: Tensor | None
    activations: Tensor | None
    hidden: Tensor


class Block(nn.Module):
    """One layer: attention and feed-forward network, each with its norm and skip connection, either of which may be absent."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        shape = config.layers[index]
        self.norm, self.skip = config.norm, config.skip
        self.dropout = nn.Dropout(config.dropout)
        self.attention, self.norm_attention = None, None
        self.feedforward, self.norm_feedforward = None, None
        if shape.n_heads:
            self.attention = SelfAttention(config, shape, config.attention.for_layer(index))
            self.norm_attention = nn.LayerNorm(config.d_model) if config.norm != "none" else None
        if shape.d_ffn:
            self.feedforward = FeedForward(config, shape.d_ffn)
            self.norm_feedforward = nn.LayerNorm(config.d_model) if config.norm != "none" else None

    def attend(self, x: Tensor, lengths: Tensor | None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Residual stream after the attention sublayer, and its weights."""
        if self.attention is None:
            return x, None
        y, found = self.attention(self._before(self.norm_attention, x), lengths, weights)
        return self._after(self.norm_attention, x, y), found

    def feed(self, x: Tensor) -> Tensor:
        """Residual stream after the feed-forward sublayer."""
        if self.feedforward is None:
            return x
        return self._after(self.norm_feedforward, x, self.feedforward(self._before(self.norm_feedforward, x)))

    def activations(self, x: Tensor) -> Tensor | None:
        """Hidden units at the residual stream `x` that enters the feed-forward sublayer."""
        if self.feedforward is None:
            return None
        return self.feedforward.activations(self._before(self.norm_feedforward, x))

    def _before(self, norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
        return norm(x) if norm is not None and self.norm == "pre" else x

    def _after(self, norm: nn.LayerNorm | None, x: Tensor, y: Tensor) -> Tensor:
        y = self.dropout(y)
        y = x + y if self.skip else y
        return norm(y) if norm is not None and self.norm == "post" else y
