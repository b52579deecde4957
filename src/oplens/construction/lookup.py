r"""A: any function of n symbols in ceil(log2 n) layers of one head each, on one-hot codes of the last symbols.

Widths w_l = ceil(n / 2^(L-l)), shifts s_l = w_{l+1} - w_l <= w_l, so that halves may overlap and every n works. Layer l fetches, from
s_l positions back, the code of the w_l symbols that end there; with its own code of the last w_l symbols this makes w_{l+1}:

    FFN, for every string c of w_{l+1} symbols:   ReLU(4a + 4b - 6) - ReLU(4a + 4b - 7),
    a: own code says the last w_l symbols of c;   b: fetched code says its first w_l.

Once b is 0, up to less than 1/4, or exactly 1, the gate is exactly 0 or 1: 4a + 4b - 6 <= 4 + 1 - 6 < 0, or 2 - 1. Softmax leaves
others at most (n - 1) e^-g of the weight at score gap g, so b = 1 - (n - 1) e^-g, which rounds to 1 where that is below 2^-(t+1). The
last layer writes f(c) as 2 f(c) - f(c), two non-zero terms whatever the order of the sum.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from oplens.construction.certificate import Certificate, Margin
from oplens.construction.function import MEMORY_LIMIT, FunctionTable
from oplens.construction.scores import BASES, plan_scores, rotation
from oplens.construction.weights import (
    Entries,
    check_frequencies,
    check_table,
    choose_weights,
    dtype_name,
    empty_model,
    set_fetch,
    set_map,
    set_readout,
    uniform_slots,
)
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import count_weights
from oplens.theory import lookup_size


@dataclasses.dataclass(frozen=True)
class Halving:
    """How n symbols are gathered: widths w_0 = 1, ..., w_L = n and shifts s_0, ..., s_{L-1}."""

    widths: tuple[int, ...]
    shifts: tuple[int, ...]

    @classmethod
    def of(cls, length: int) -> "Halving":
        """The widths of a length.

        Examples
        --------
        >>> Halving.of(6)
        Halving(widths=(1, 2, 3, 6), shifts=(1, 1, 3))
        """
        depth = (length - 1).bit_length()
        widths = tuple(-(-length // 2 ** (depth - layer)) for layer in range(depth + 1))
        return cls(widths, tuple(b - a for a, b in itertools.pairwise(widths)))


def build_lookup(
    table: FunctionTable,
    dtype: Any = "float64",
    *,
    n_frequencies: int = 4,
    frequency_base: float | None = None,
    causal: bool = False,
    weights: str | None = None,
    memory_limit: float = MEMORY_LIMIT,
) -> tuple[Transformer, Certificate]:
    """Build a transformer that computes a table's function exactly, in logarithmic depth (construction A).

    Parameters
    ----------
    table : FunctionTable
        V^n values, m numbers each.
    dtype : str or torch.dtype
        float64, float32, float16 or bfloat16: of the weights and of the claim.
    n_frequencies : int
        K positional sinusoids.
    frequency_base : float, optional
        Their base; omitted: 10000 where it delivers the margin in every dtype, else a smaller one that does.
    causal : bool
        A decoder; the output is the same.
    weights : {"dense", "sparse"}, optional
        Omitted: dense up to 2^18 places.
    memory_limit : float
        Bytes.

    Returns
    -------
    Transformer, Certificate
        The output at tokens (batch, n) is (batch, m).

    Raises
    ------
    ArgumentError
        If the margin cannot be delivered in `dtype`, a value overflows in it, or the weights exceed `memory_limit`.

    Notes
    -----
    Accuracy: *exact* in IEEE arithmetic with sums in any order, where the table's values are numbers of `dtype`; else *bound*, by their
    rounding. Cost: O(V^n) hidden units and non-zeros, residual width O(V^ceil(n/2)).
    Source: the manuscript's Lema 1, with the skip connection, own positional coordinates and clipped gates that it lacks.

    Examples
    --------
    >>> import torch
    >>> model, certificate = build_lookup(FunctionTable.from_family("parity", vocabulary=2, length=5))
    >>> model(torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 0, 0]]))[:, 0].tolist()
    [1.0, 0.0]
    >>> certificate.claim, certificate.depth, certificate.certified_dtypes
    ('exact', 3, ('float64', 'float32', 'float16', 'bfloat16'))
    """
    call = "build_lookup"
    dtype, rounding = begin(call, table, dtype, n_frequencies, frequency_base, headroom=2.0)
    V, n, m, K = table.vocabulary, table.length, table.outputs, n_frequencies
    halving = Halving.of(n)
    codes = [V**w for w in halving.widths]  # sizes of one-hot codes, the last of them V^n
    own, fetched, width = code_slots(codes, K, m)
    sizes: dict[str, Any] = _sizes(codes, width, V, m, K, causal)
    nonzeros = int(lookup_size(n, V, K, m)["nonzeros"]) if n > 1 else 2 * V + m * V
    sizes["weights"] = choose_weights(call, sizes, nonzeros + m, dtype, weights, memory_limit)
    base, temperature = frequency_base or BASES[0], None
    margins: tuple[Margin, ...] = ()
    if n > 1:
        base, temperature, margins = plan_scores(call, dtype, n, halving.shifts, K, frequency_base, "rounds")
    config = TransformerConfig(**{**sizes, "frequency_base": base})
    model = empty_model(config, dtype)
    symbols = np.arange(V)
    set_token(model, symbols, own[0] + symbols, 1.0)
    if n == 1:
        _single(model, own[0] + symbols, table, width)
    for layer, shift in enumerate(halving.shifts):
        assert temperature is not None
        set_scores(model, layer, shift, temperature, K, base)
        channels = np.arange(codes[layer])
        set_fetch(model.block(layer), own[layer] + channels, fetched[layer] + channels)
        _set_gates(model, layer, codes, own, fetched, halving, table, width)
    set_readout(model, width, m)
    return model, finish("lookup", model, dtype, rounding, temperature, margins)


def begin(
    call: str, table: Any, dtype: Any, n_frequencies: int, base: float | None, headroom: float = 1.0
) -> tuple[str, float]:
    """The dtype's name, and the rounding of the table's values in it; refused where a table cannot be built."""
    name = dtype_name(call, dtype)
    check_frequencies(call, n_frequencies, base)
    return name, check_table(call, table, name, headroom)


def code_slots(codes: list[int], K: int, outputs: int) -> tuple[list[int], list[int], int]:
    """First coordinates of own and fetched codes, layer by layer, and the residual width."""
    own, fetched, width = [], [], 2 * K
    for size in codes[:-1] or codes:
        own.append(width)
        width += size
        if len(codes) > 1:
            fetched.append(width)
            width += size
    return own, fetched, width + outputs


def _sizes(codes: list[int], width: int, V: int, outputs: int, K: int, causal: bool) -> dict[str, Any]:
    layers = max(1, len(codes) - 1)
    common = common_sizes(V, outputs, width, K, causal)
    if len(codes) == 1:
        return {**common, "n_layers": 1, "n_heads": 0, "d_head": 1, "d_ffn": V}
    hidden = tuple(2 * size for size in codes[1:])
    return {
        **common,
        "n_layers": layers,
        "n_heads": 1,
        "d_head": 2 * K,
        "d_value": tuple(codes[:-1]),
        "d_ffn": hidden,
    }


def common_sizes(vocabulary: int, outputs: int, width: int, K: int, causal: bool) -> dict[str, Any]:
    """What the configurations of all constructions on tokens share."""
    return {
        "d_output": outputs,
        "vocabulary": vocabulary,
        "d_model": width,
        "n_frequencies": K,
        "causal": causal,
        "activation": "relu",
        "norm": "none",
        "readout": "last",
    }


def set_token(model: Transformer, symbols: Any, coordinates: Any, values: Any) -> None:
    """Write values at residual coordinates of symbols."""
    entries = Entries.of(symbols, coordinates, values)
    weight = model.embedding.token.weight
    first = 2 * model.config.n_frequencies
    dense = np.zeros(weight.shape)
    dense[entries.rows, entries.columns - first] = entries.values
    weight.data.copy_(weight.new_tensor(dense))


def set_scores(model: Transformer, layer: int, shift: int, temperature: float, K: int, base: float) -> None:
    """Queries and keys that look `shift` positions back."""
    attention = model.block(layer).attention
    assert attention is not None
    own = np.arange(2 * K)
    set_map(attention.query, rotation(shift, temperature, K, base))
    set_map(attention.key, Entries.of(own, own, 1.0))


def _set_gates(
    model: Transformer,
    layer: int,
    codes: list[int],
    own: list[int],
    fetched: list[int],
    halving: Halving,
    table: FunctionTable,
    width: int,
) -> None:
    """Two hidden units for every string of w_{l+1} symbols."""
    string = np.arange(codes[layer + 1])
    older = codes[layer + 1] // codes[layer]  # strings that share their first w_l symbols
    feedforward: Any = model.block(layer).feedforward
    last, first = own[layer] + string % codes[layer], fetched[layer] + string // older
    up = [Entries.of(2 * string + unit, column, 4.0) for unit in (0, 1) for column in (last, first)]
    set_map(feedforward.up, up[0] + up[1] + up[2] + up[3], np.tile([-6.0, -7.0], len(string)))
    if layer + 1 < len(halving.shifts):
        rows, values = own[layer + 1] + string[:, None], np.ones((len(string), 1))
    else:
        rows, values = width - table.outputs + np.arange(table.outputs)[None], table.values
    pair = [Entries.of(rows, 2 * string[:, None] + unit, sign * values) for unit, sign in ((0, 1.0), (1, -1.0))]
    set_map(feedforward.down, pair[0] + pair[1])


def _single(model: Transformer, code: Any, table: FunctionTable, width: int) -> None:
    """One symbol: its code selects the value."""
    feedforward: Any = model.block(0).feedforward
    symbols = np.arange(table.vocabulary)
    set_map(feedforward.up, Entries.of(symbols, code, 1.0))
    rows = width - table.outputs + np.arange(table.outputs)[None]
    set_map(feedforward.down, Entries.of(rows, symbols[:, None], table.values))


def finish(
    construction: str,
    model: Transformer,
    dtype: str,
    rounding: float,
    temperature: float | None,
    margins: tuple[Margin, ...],
) -> Certificate:
    """The certificate of a finished model."""
    config = model.config
    counts = count_weights(model)
    within = "to the last bit" if rounding == 0 else "up to the rounding of the values themselves"
    return Certificate(
        construction=construction,
        claim="exact" if rounding == 0 else "bound",
        dtype=dtype,
        statement=f"the function's value at every input, {within}, whatever the order of sums",
        hypotheses=(
            "IEEE arithmetic, rounding to nearest",
            "attention and sums of products in float32 or wider"
            if dtype in ("float16", "bfloat16")
            else f"sums in {dtype}",
            f"{config.n_frequencies} positional sinusoids of base {config.frequency_base:g}",
        ),
        error_parts=(("rounding of the values", rounding), ("arithmetic", 0.0)),
        depth=config.n_layers,
        attention_layers=sum(layer.n_heads > 0 for layer in config.layers),
        width=config.d_model,
        hidden=tuple(layer.d_ffn for layer in config.layers),
        dense=counts.slots,
        sparse=counts.nonzeros,
        readout=config.d_output,
        dense_uniform=uniform_slots(config),
        temperature=temperature,
        margins=margins,
    )
