r"""C: two layers, one head, no temperature: uniform attention is enough.

Layer 1, without attention: for every position p and bit b, with G a power of two and e_p the stored code of position p,

    slot (p, b) = ReLU(z - 1/2) - ReLU(z - 3/2),   z = 2 x_b + G (<PE(i), e_p> - |e_p|^2),

which is x_b at position p, up to rounding, and exactly 0 elsewhere and where x_b is 0: at other positions the second term of z is at
most -G gamma <= -2. Layer 2: W_Q = 0, so attention is the mean, and n times the mean is each position's bits side by side, 1 + e in
floating point. The mapping out adds C = 2^(t-2) to them and the residual stream holds -C: at C numbers are 1/2 apart, so adding C rounds
1 + e to C + 1, and what is left after -C is exactly 1. The FFN looks the bits up as in construction B.
"""

import math
from typing import Any

import numpy as np

from oplens.construction.bits import bits_of, bits_per_symbol, build_bits, set_bit_lookup
from oplens.construction.certificate import Certificate, Margin
from oplens.construction.function import MEMORY_LIMIT, FunctionTable
from oplens.construction.lookup import begin, common_sizes, finish, set_token
from oplens.construction.scores import BASES
from oplens.construction.weights import (
    DIGITS,
    DTYPES,
    Entries,
    choose_weights,
    empty_model,
    rounded,
    set_map,
    set_readout,
    sum_roundoff,
    unit_roundoff,
)
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_layers import sinusoids


def build_depth2(
    table: FunctionTable,
    dtype: Any = "float64",
    *,
    n_frequencies: int = 4,
    frequency_base: float | None = None,
    causal: bool = False,
    weights: str | None = None,
    memory_limit: float = MEMORY_LIMIT,
) -> tuple[Transformer, Certificate]:
    """Build a transformer of two layers and one head that computes a table's function exactly (one layer for n = 1).

    Parameters
    ----------
    table, dtype, n_frequencies, frequency_base, causal, weights, memory_limit
        As of :func:`oplens.construction.lookup.build_lookup`; a causal model's last position sees everything as well.

    Returns
    -------
    Transformer, Certificate
        The output at tokens (batch, n) is (batch, m). The margins are of the gates that place bits: how far, at the worst rounding, they
        stay from where they would be wrong. The weights hold a constant of their dtype, so each dtype is built for itself: `margins`
        has one entry.

    Raises
    ------
    ArgumentError
        If the gates' margin is not positive in `dtype`, a value overflows in it, or the weights exceed `memory_limit`.

    Notes
    -----
    Accuracy: *exact* in real arithmetic and in IEEE arithmetic of the dtype, residual stream included; else as of `build_lookup`.
    Cost: V^n hidden units, V^n (n ceil(log2 V) + 1 + m) non-zeros, residual width O(n log V).

    Examples
    --------
    >>> import torch
    >>> model, certificate = build_depth2(FunctionTable.from_family("palindrome", vocabulary=3, length=5))
    >>> model(torch.tensor([[1, 2, 0, 2, 1], [1, 2, 0, 2, 0]]))[:, 0].tolist()
    [1.0, 0.0]
    >>> certificate.depth, certificate.attention_layers, certificate.temperature
    (2, 1, None)
    """
    call = "build_depth2"
    dtype, rounding = begin(call, table, dtype, n_frequencies, frequency_base)
    V, n, m, K = table.vocabulary, table.length, table.outputs, n_frequencies
    if n == 1:
        model, found = build_bits(
            table,
            dtype,
            n_frequencies=K,
            frequency_base=frequency_base,
            causal=causal,
            weights=weights,
            memory_limit=memory_limit,
        )
        return model, finish("depth2", model, dtype, rounding, None, found.margins)
    beta = bits_per_symbol(V)
    slots = n * beta
    placed = 2 * K + beta
    gathered, width = placed + slots, placed + 2 * slots + m
    sizes: dict[str, Any] = {
        **common_sizes(V, m, width, K, causal),
        "n_layers": 2,
        "n_heads": (0, 1),
        "d_head": 1,
        "d_value": (1, slots),
        "d_ffn": (2 * slots, V**n),
    }
    nonzeros = len(table) * (slots + 1 + m) + V * beta + 2 * slots * (2 * K + 3) + 4 * slots + m
    sizes["weights"] = choose_weights(call, sizes, nonzeros, dtype, weights, memory_limit)
    base, margin = _plan(call, dtype, n, K, frequency_base)
    model = empty_model(TransformerConfig(**{**sizes, "frequency_base": base}), dtype)
    set_token(model, np.arange(V)[:, None], 2 * K + np.arange(beta)[None], bits_of(np.arange(V), beta))
    constant = 2.0 ** (DIGITS[dtype] - 2)
    _set_placement(model, n, beta, base, dtype, placed, gathered, constant)
    attention: Any = model.block(1).attention
    channels = np.arange(slots)
    set_map(attention.value, Entries.of(channels, placed + channels, 1.0))
    bias = np.zeros(width)
    bias[gathered + channels] = constant
    set_map(attention.output, Entries.of(gathered + channels, channels, float(n)), bias)
    set_bit_lookup(
        model.block(1).feedforward, bits_of(table.inputs(), beta).reshape(len(table), -1), gathered, table, width
    )
    set_readout(model, width, m)
    return model, finish("depth2", model, dtype, rounding, None, (margin,))


def _gain(code: Any) -> float:
    """The smallest power of two with G (|e_p|^2 - <e_i, e_p>) >= 2 for all p and i != p, so that products with it are exact."""
    gram = code @ code.T
    gap = np.diag(gram)[:, None] - gram
    np.fill_diagonal(gap, np.inf)
    return float(2.0 ** math.ceil(math.log2(2 / gap.min()))) if gap.min() > 0 else math.inf


def _biases(code: Any, gain: float, dtype: str) -> Any:
    """Of the two units of a position, (n, 2), as stored."""
    return rounded(-gain * (code**2).sum(1)[:, None] - np.array([0.5, 1.5]), dtype)


def _set_placement(
    model: Transformer, n: int, beta: int, base: float, dtype: str, placed: int, gathered: int, constant: float
) -> None:
    """Layer 1: two units for every position and bit."""
    K = model.config.n_frequencies
    code = rounded(sinusoids(n, K, base).numpy(), dtype)
    gain, feedforward = _gain(code), model.block(0).feedforward
    assert feedforward is not None
    slot = np.arange(n * beta)
    position, bit = slot // beta, slot % beta
    up = Entries.of(2 * slot, 2 * K + bit, 2.0) + Entries.of(2 * slot + 1, 2 * K + bit, 2.0)
    for unit in (0, 1):
        up = up + Entries.of(2 * slot[:, None] + unit, np.arange(2 * K)[None], gain * code[position])
    set_map(feedforward.up, up, _biases(code, gain, dtype)[position].ravel())
    bias = np.zeros(model.config.d_model)
    bias[gathered + slot] = -constant
    set_map(
        feedforward.down,
        Entries.of(placed + slot, 2 * slot, 1.0) + Entries.of(placed + slot, 2 * slot + 1, -1.0),
        bias,
    )


def _placement_margin(dtype: str, n: int, K: int, base: float) -> Margin:
    """How far the gates stay from a wrong answer when every rounding is at its worst."""
    code = rounded(sinusoids(n, K, base).numpy(), dtype)
    gain = _gain(code)
    if not math.isfinite(gain) or gain * (K + 4) > torch_max(dtype):
        return Margin(dtype, "placing gates' distance", 0.0, -math.inf)
    products, biases = gain * code @ code.T, _biases(code, gain, dtype)  # [i, p], [p, unit]
    size = 2 + gain * np.abs(code) @ np.abs(code).T
    # Products and their sum in any order, its storage before the bias is added, the bias, the storage of the result.
    u, added = unit_roundoff(dtype), sum_roundoff(dtype)
    error = 1.1 * ((2 * K + 3) * added * size + u * (np.abs(products) + 2) + u * 4)
    first, second = products + biases[:, 0], products + biases[:, 1]
    own = np.eye(n, dtype=bool)
    matched = float(
        (2 + second - error)[own].min()
    )  # the upper unit is open where the bit is 1, so that the clip is in its slope
    zero = float(-(first + error)[own].max())  # the lower one is shut where the bit is 0
    others = float(-(2 + first + error)[~own].max())  # and at every other position
    slope = 0.25 - 8 * u - float((2 * error + np.abs(first - second - 1))[own].max())
    return Margin(dtype, "placing gates' distance", 0.0, min(matched, zero, others, slope))


def torch_max(dtype: str) -> float:
    """The largest number of a dtype."""
    import torch

    return float(torch.finfo(DTYPES[dtype]).max)


def _plan(call: str, dtype: str, n: int, K: int, base: float | None) -> tuple[float, Margin]:
    """Frequency base and margin; refused where no base leaves one."""
    for candidate in BASES if base is None else (base,):
        margin = _placement_margin(dtype, n, K, candidate)
        if margin.met:
            return candidate, margin
    tried = BASES[0] if base is None else base
    margin = _placement_margin(dtype, n, K, tried)
    others = BASES if base is not None else ()
    other = next((b for b in others if _placement_margin(dtype, n, K, b).met), None)
    cure = f"frequency_base={other:g} leaves one" if other else "use float32 or float64, or another n_frequencies"
    raise ArgumentError(
        f"{call}(dtype={dtype}): with n_frequencies={K} and frequency_base={tried:g} the gates that place {n} positions have a distance of "
        f"{margin.delivered:.3g} from a wrong answer at the worst rounding, where more than 0 is needed; {cure}."
    )
