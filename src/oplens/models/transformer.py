r"""A transformer with the pieces that explicit constructions need, encoder or causal decoder.

    x_0 = embedding(tokens or real inputs) and positions
    x   = x + Attention_l(norm x),   x_l = x + FFN_l(norm x),   FFN(x) = W_2 act(W_1 x + b_1) + b_2
    y   = W read(norm x_L) + b,      read: the last position, the mean, or every position

Norms go before ("pre", as printed), after ("post": x = norm(x + ...), none before the readout) or nowhere; skips can be left out.
"""

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from oplens.errors import ArgumentError
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_layers import Block, BlockTrace, Embedding, SparseLinear, make_linear


@dataclass(frozen=True)
class TransformerTrace:
    """A forward pass with everything in it; rows of padding are 0.

    Attributes
    ----------
    mask : Tensor, (batch, length) bool
        True at valid positions.
    embedded : Tensor, (batch, length, d_model)
    layers : tuple of BlockTrace
    output : Tensor, (batch, d_output), or (batch, length, d_output) where every position is read
    """

    mask: Tensor
    embedded: Tensor
    layers: tuple[BlockTrace, ...]
    output: Tensor


class Transformer(nn.Module):
    """Transformer on tokens or real sequences; see the module's equations and :class:`TransformerConfig`.

    Examples
    --------
    >>> import torch
    >>> model = Transformer(TransformerConfig(d_output=3, vocabulary=5, d_model=16, n_heads=2, d_ffn=8))
    >>> tokens = torch.tensor([[0, 4, 2, 0], [1, 1, 3, 2]])
    >>> tuple(model(tokens, lengths=torch.tensor([2, 4])).shape)
    (2, 3)
    >>> [tuple(layer.weights.shape) for layer in model.trace(tokens).layers]
    [(2, 2, 4, 4), (2, 2, 4, 4)]
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.n_layers))
        self.final_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else None
        self.readout = None if config.tied else make_linear(config, config.d_model, config.d_output)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Output of tokens (batch, length) or real inputs (batch, length, d_input).

        Parameters
        ----------
        lengths : Tensor, (batch,) int, optional
            Positions at or past a case's length are padding: whatever they hold changes nothing. On any device.

        Returns
        -------
        Tensor, (batch, d_output), or (batch, length, d_output) where every position is read

        Notes
        -----
        What only the last position needs is computed there only: after the last attention a readout of "last" drops the others.
        Outputs at padding, where every position is read, mean nothing (:meth:`trace` makes them 0).
        Real inputs are rounded to the model's dtype and not searched for NaN or infinity: a NaN makes every output of its own case that
        sees it NaN, and touches no other case; recorders, which measure, refuse both.
        """
        x, lengths, valid = self._prepare(x, lengths)
        hidden = self.dropout(self.embedding(x, valid))
        read = self.config.readout == "last"
        for index in range(self.config.n_layers):
            hidden, _ = self.block(index).attend(hidden, lengths)
            if read and index >= self.config.last_attention:
                hidden, read = _last(hidden, lengths), False
            hidden = self.block(index).feed(hidden)
        return self._read(hidden)[:, 0] if self.config.readout == "last" else self._read(hidden, valid)

    def trace(self, x: Tensor, lengths: Tensor | None = None, weights: bool = True) -> TransformerTrace:
        """Forward pass that keeps its intermediate values, at every position.

        Parameters
        ----------
        weights : bool
            Keep attention weights, (batch, n_heads, length, length) per layer whatever the attention family.

        Notes
        -----
        Memory: O(n_layers batch length (d_model + d_ffn + n_heads length)).
        """
        x, lengths, valid = self._prepare(x, lengths)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid
        keep = mask[..., None]
        embedded = self.dropout(self.embedding(x, valid))
        hidden, layers = embedded, []
        for index in range(self.config.n_layers):
            block = self.block(index)
            hidden, found = block.attend(hidden, lengths, weights)
            attended = None if block.attention is None else hidden * keep
            activations = block.activations(hidden)
            hidden = block.feed(hidden)
            found = None if found is None else found * mask[:, None, :, None]
            activations = None if activations is None else activations * keep
            layers.append(BlockTrace(found, attended, activations, hidden * keep))
        if self.config.readout == "last":
            output = self._read(_last(hidden, lengths))[:, 0]
        else:
            output = self._read(hidden, valid)
            output = output * keep if self.config.readout == "position" else output
        return TransformerTrace(mask, embedded * keep, tuple(layers), output)

    def block(self, index: int) -> Block:
        """Layer `index`, counted from the input."""
        block = self.layers[index]
        assert isinstance(block, Block)
        return block

    def to_sparse(self) -> "Transformer":
        """A copy whose linear maps hold their non-zero entries only; the same outputs up to the order of sums."""
        return _convert(self, "sparse")

    def to_dense(self) -> "Transformer":
        """A copy whose linear maps are full matrices, zeros included."""
        return _convert(self, "dense")

    def as_float64(self) -> "Transformer":
        """A frozen float64 copy in evaluation mode."""
        model = copy.deepcopy(self).double().eval()
        return model.requires_grad_(False)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write `model.safetensors` and `config.json` into a directory (temporary names, then renamed)."""
        from oplens.models.transformer_storage import save_transformer

        save_transformer(self, directory)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> "Transformer":
        """Read a directory written by :meth:`save_pretrained`; refused with a sentence when damaged."""
        from oplens.models.transformer_storage import load_transformer

        return load_transformer(directory)

    def _prepare(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Checked inputs, lengths as int64 beside them, and which positions are valid."""
        config = self.config
        tokens = config.vocabulary is not None
        if x.ndim != (2 if tokens else 3) or 0 in x.shape or (not tokens and x.shape[-1] != config.d_input):
            shape = "(batch >= 1, length >= 1)" if tokens else f"(batch >= 1, length >= 1, d_input={config.d_input})"
            raise ArgumentError(f"Transformer: expected x of shape {shape}, got {tuple(x.shape)}.")
        if config.max_length is not None and x.shape[1] > config.max_length:
            raise ArgumentError(
                f"Transformer: {x.shape[1]} positions, the model was made for max_length={config.max_length}; cut the sequences."
            )
        valid = None
        if lengths is not None:
            lengths = _checked_lengths(lengths, x)
            valid = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        return (self._check_tokens(x, valid) if tokens else self._check_numbers(x)), lengths, valid

    def _check_tokens(self, x: Tensor, valid: Tensor | None) -> Tensor:
        vocabulary = self.config.vocabulary
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise ArgumentError(f"Transformer: tokens are integers, got {x.dtype}.")
        if not x.is_meta:
            read = x if valid is None else x[valid]
            low, high = int(read.min()), int(read.max())
            if low < 0 or high >= (vocabulary or 0):
                raise ArgumentError(
                    f"Transformer: tokens from {low} to {high}; the vocabulary is 0 to {vocabulary}, exclusive."
                )
        return x.long()

    def _check_numbers(self, x: Tensor) -> Tensor:
        if x.is_complex():
            raise ArgumentError(
                f"Transformer: x is complex ({x.dtype}); give real values, e.g. x.real and x.imag as two inputs."
            )
        return x.to(self._dtype())

    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _read(self, hidden: Tensor, valid: Tensor | None = None) -> Tensor:
        """Readout of (batch, length, d_model): position by position, or of the mean over `valid` positions."""
        hidden = hidden if self.final_norm is None else self.final_norm(hidden)
        if self.config.readout == "mean":
            hidden = _mean(hidden, valid)
        if self.readout is None:
            return functional.linear(hidden, self.embedding.token.weight)
        return self.readout(hidden)


def _checked_lengths(lengths: Tensor, x: Tensor) -> Tensor:
    """Lengths as int64 on the device of `x`, since bytes would index as masks do."""
    if not isinstance(lengths, Tensor):
        raise ArgumentError(
            f"Transformer: lengths must be a tensor of {len(x)} integers; got {type(lengths).__name__}."
        )
    if (
        lengths.shape != x.shape[:1]
        or lengths.is_floating_point()
        or lengths.is_complex()
        or lengths.dtype == torch.bool
    ):
        raise ArgumentError(
            f"Transformer: lengths must be {len(x)} integers, one per case; got {tuple(lengths.shape)} of {lengths.dtype}."
        )
    if not lengths.is_meta and (int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]):
        raise ArgumentError(
            f"Transformer: lengths must lie between 1 and {x.shape[1]}; got {int(lengths.min())} to {int(lengths.max())}."
        )
    return lengths.to(x.device, torch.int64)


def _mean(hidden: Tensor, valid: Tensor | None) -> Tensor:
    """(batch, d_model) over valid positions; of half precision in float32, since float16 counts to 65504 only."""
    kept = hidden.float() if hidden.dtype in (torch.float16, torch.bfloat16) else hidden
    if valid is None:
        return kept.mean(1).to(hidden.dtype)
    keep = valid[..., None].to(kept)
    return ((kept * keep).sum(1) / keep.sum(1)).to(hidden.dtype)


def _last(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """(batch, 1, d_model) of every case's last valid position."""
    if lengths is None:
        return hidden[:, -1:]
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1][:, None]


def _convert(model: Transformer, weights: str) -> Transformer:
    """A copy with linear maps of the other kind, in the same dtype, on the same device and in the same mode."""
    if model.config.weights == weights:
        return copy.deepcopy(model)
    with torch.device("meta"):
        converted = Transformer(dataclasses.replace(model.config, weights=weights))
    parameter = next(model.parameters())
    converted = converted.to(parameter.dtype).to_empty(device=parameter.device)
    sources = dict(model.named_modules())
    with torch.no_grad():
        for name, target in converted.named_modules():
            source = sources[name]
            if isinstance(target, SparseLinear):
                assert isinstance(source, nn.Linear)
                rows, columns = source.weight.nonzero(as_tuple=True)
                target.set_entries(rows, columns, source.weight[rows, columns])
            elif isinstance(target, nn.Linear):
                assert isinstance(source, SparseLinear)
                target.weight.copy_(source.dense_weight())
            for key, value in source.named_parameters(recurse=False):
                if key not in ("weight", "values") or isinstance(target, (nn.Embedding, nn.LayerNorm)):
                    getattr(target, key).copy_(value)
    return converted.train(model.training)
