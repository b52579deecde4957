r"""B: the halving of construction A with symbols as ceil(log2 V) bits each: the residual stream has O(n log V) coordinates.

Every position keeps the bits of the symbols that end at it, newest first. Layer l fetches, from s_l positions back, the s_l symbols
that it lacks of its last w_{l+1}; its FFN writes each of their bits after a clip,

    ReLU(2b - 1/2) - ReLU(2b - 3/2),   exactly 0 for b <= 1/4, exactly 1 for b >= 3/4:

for such b both differences are numbers of the dtype, and so is theirs, so that softmax need leave only 1/4 to other positions. A last
layer, without attention, looks the n log V bits up: unit c is ReLU(sum of +-bits - |c| + 1), whole numbers all, 1 at c and 0 elsewhere.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.construction.certificate import Certificate, Margin
from oplens.construction.function import MEMORY_LIMIT, FunctionTable
from oplens.construction.lookup import Halving, begin, common_sizes, finish, set_scores, set_token
from oplens.construction.scores import BASES, plan_scores
from oplens.construction.weights import (
    Entries,
    choose_weights,
    empty_model,
    set_fetch,
    set_map,
    set_readout,
)
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig


def build_bits(
    table: FunctionTable,
    dtype: Any = "float64",
    *,
    n_frequencies: int = 4,
    frequency_base: float | None = None,
    causal: bool = False,
    weights: str | None = None,
    memory_limit: float = MEMORY_LIMIT,
) -> tuple[Transformer, Certificate]:
    """Build a transformer that computes a table's function exactly on bits: ceil(log2 n) layers that attend, and one that looks up.

    Parameters
    ----------
    table, dtype, n_frequencies, frequency_base, causal, weights, memory_limit
        As of :func:`oplens.construction.lookup.build_lookup`.

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
    Accuracy: as of `build_lookup`; the score gap needed, ln(4 (n - 1)) and a little, is that of real arithmetic.
    Cost: V^n hidden units, V^n (n ceil(log2 V) + 1 + m) non-zeros, residual width O(n log V).

    Examples
    --------
    >>> import torch
    >>> model, certificate = build_bits(FunctionTable.from_family("max", vocabulary=5, length=3))
    >>> model(torch.tensor([[1, 4, 0], [2, 0, 2]]))[:, 0].tolist()
    [4.0, 2.0]
    >>> certificate.width, certificate.hidden
    (24, (6, 6, 125))
    """
    call = "build_bits"
    dtype, rounding = begin(call, table, dtype, n_frequencies, frequency_base)
    V, n, m, K = table.vocabulary, table.length, table.outputs, n_frequencies
    beta, halving = bits_per_symbol(V), Halving.of(n)
    kept, raw = 2 * K, 2 * K + n * beta  # first coordinates of clean bits, newest symbol first, and of fetched ones
    width = 2 * K + (2 * n - 1) * beta + m
    depth = len(halving.shifts)
    sizes: dict[str, Any] = {
        **common_sizes(V, m, width, K, causal),
        "n_layers": depth + 1,
        "n_heads": (1,) * depth + (0,),
        "d_head": 2 * K,
        "d_value": (*(shift * beta for shift in halving.shifts), 1),
        "d_ffn": (*(2 * shift * beta for shift in halving.shifts), V**n),
    }
    nonzeros = V**n * (n * beta + 1 + m) + V * beta + 6 * K * depth + 8 * (n - 1) * beta + m
    sizes["weights"] = choose_weights(call, sizes, nonzeros, dtype, weights, memory_limit)
    base, temperature = frequency_base or BASES[0], None
    margins: tuple[Margin, ...] = ()
    if n > 1:
        base, temperature, margins = plan_scores(call, dtype, n, halving.shifts, K, frequency_base, "clips")
    model = empty_model(TransformerConfig(**{**sizes, "frequency_base": base}), dtype)
    set_token(model, np.arange(V)[:, None], kept + np.arange(beta)[None], bits_of(np.arange(V), beta))
    for layer, shift in enumerate(halving.shifts):
        assert temperature is not None
        set_scores(model, layer, shift, temperature, K, base)
        older = np.arange((halving.widths[layer + 1] - shift) * beta, halving.widths[layer + 1] * beta)
        set_fetch(model.block(layer), kept + older - shift * beta, raw + older - beta)
        set_clips(model.block(layer).feedforward, raw + older - beta, kept + older)
    newest_first = bits_of(table.inputs()[:, ::-1], beta).reshape(len(table), -1)
    set_bit_lookup(model.block(depth).feedforward, newest_first, kept, table, width)
    set_readout(model, width, m)
    return model, finish("bits", model, dtype, rounding, temperature, margins)


def bits_per_symbol(vocabulary: int) -> int:
    """ceil(log2 V)."""
    return (vocabulary - 1).bit_length()


def bits_of(symbols: NDArray[np.int64], beta: int) -> NDArray[np.int64]:
    """Binary digits (..., beta), highest first."""
    return np.asarray(symbols)[..., None] >> np.arange(beta - 1, -1, -1) & 1


def set_clips(feedforward: Any, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
    """Write every source coordinate, clipped to exactly 0 or 1, to its target."""
    unit = 2 * np.arange(len(source))
    set_map(
        feedforward.up,
        Entries.of(unit, source, 2.0) + Entries.of(unit + 1, source, 2.0),
        np.tile([-0.5, -1.5], len(source)),
    )
    set_map(feedforward.down, Entries.of(target, unit, 1.0) + Entries.of(target, unit + 1, -1.0))


def set_bit_lookup(feedforward: Any, bits: NDArray[np.int64], first: int, table: FunctionTable, width: int) -> None:
    """Unit c is 1 where the coordinates from `first` on are row c of `bits` (V^n, n beta), else 0, and writes f(c)."""
    unit = np.arange(len(bits))
    columns = first + np.arange(bits.shape[1])
    set_map(feedforward.up, Entries.of(unit[:, None], columns[None], 2.0 * bits - 1), 1.0 - bits.sum(1))
    rows = width - table.outputs + np.arange(table.outputs)[None]
    set_map(feedforward.down, Entries.of(rows, unit[:, None], table.values))
