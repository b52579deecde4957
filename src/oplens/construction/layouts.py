"""Which symbols, or numbers, every position of a constructed model holds, read from its residual stream by the construction's layout."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from oplens.construction.bits import bits_per_symbol
from oplens.construction.gathering import ROUNDOFF, Gathering
from oplens.construction.lookup import Halving, code_slots
from oplens.construction.steps import Steps
from oplens.errors import ArgumentError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Sizes:
    """What a layout depends on: symbols V, positions n, outputs m, positional sinusoids K; the interval of reals; symbols' names."""

    vocabulary: int
    length: int
    outputs: int
    n_frequencies: int
    bounds: tuple[float, float] = (0.0, 1.0)
    symbols: tuple[str, ...] | None = None

    def name(self, symbol: int) -> str:
        """What a symbol is called."""
        return str(symbol) if self.symbols is None else self.symbols[symbol]


@dataclass(frozen=True)
class Holdings:
    """What a case's positions hold, and what they should.

    Parameters
    ----------
    known : array, (L + 1, n, n)
        Of position i (second axis), what it holds of input position j (third); NaN where nothing that can be read.
    held : array, (L + 1, n, n) bool
        Where the construction promises something.
    """

    known: Floats
    held: Bools

    def wrong(self, inputs: Floats, used: Bools, tolerance: float) -> Bools:
        """Places of used positions that differ from the inputs (n,) by more than the tolerance, lack them, or hold what they should not."""
        differs = ~(np.abs(self.known - inputs) <= tolerance)
        return np.asarray(used[..., None] & np.where(self.held, differs, ~np.isnan(self.known)))


def read_holdings(construction: str, steps: Steps, sizes: Sizes) -> Holdings:
    """Decode the residual stream of one case.

    Raises
    ------
    ArgumentError
        If no layout of that name is known, or the residual stream is too narrow for it.
    """
    if construction not in _LAYOUTS:
        raise ArgumentError(
            f"draw(construction={construction!r}): its layout is not known; choose from {', '.join(_LAYOUTS)}."
        )
    known, held = _LAYOUTS[construction](steps, sizes)
    return Holdings(known, held)


def _empty(steps: Steps) -> tuple[Floats, Bools]:
    layers, n, _ = steps.residual.shape
    return np.full((layers, n, n), np.nan), np.zeros((layers, n, n), dtype=bool)


def _lookup(steps: Steps, sizes: Sizes) -> tuple[Floats, Bools]:
    """One-hot codes of the last w_l symbols; after the last layer, the string whose hidden units fire at the last position."""
    V, n = sizes.vocabulary, sizes.length
    halving = Halving.of(n)
    codes = [V**width for width in halving.widths]
    own, _, _ = code_slots(codes, sizes.n_frequencies, sizes.outputs)
    known, held = _empty(steps)
    states = [
        steps.residual[layer][:, first : first + size]
        for layer, (first, size) in enumerate(zip(own, codes, strict=False))
    ]
    gates = steps.activations
    recognised = gates if n == 1 else gates[::2] - gates[1::2]
    for layer, width in enumerate((*halving.widths[: len(own)], n)):
        # What the last layer recognises is traced where it is read, at the last position.
        rows = range(n) if layer < len(own) else [n - 1]
        for i in rows:
            code = states[layer][i] if layer < len(own) else recognised
            first = i - width + 1
            held[layer, i, max(0, first) : i + 1] = first >= 0
            if np.count_nonzero(code) == 1 and code.max() == 1:
                digits = int(code.argmax()) // V ** np.arange(width - 1, -1, -1) % V
                known[layer, i, max(0, first) : i + 1] = digits[max(0, -first) :]
    return known, held


def _bits(steps: Steps, sizes: Sizes) -> tuple[Floats, Bools]:
    """Bits of the last w_l symbols, newest first."""
    n = sizes.length
    widths = Halving.of(n).widths
    known, held = _empty(steps)
    for layer, state in enumerate(steps.residual):
        width = widths[min(layer, len(widths) - 1)]
        symbols = _symbols(state, 2 * sizes.n_frequencies, sizes)
        for i in range(n):
            for back in range(i + 1):
                held[layer, i, i - back] = back < width
                known[layer, i, i - back] = symbols[i, back]
    return _shown(known, held), held


def _depth2(steps: Steps, sizes: Sizes) -> tuple[Floats, Bools]:
    """Own bits, then in the position's slot, then gathered side by side."""
    n, beta, first = sizes.length, bits_per_symbol(sizes.vocabulary), 2 * sizes.n_frequencies
    if n == 1:
        return _bits(steps, sizes)
    known, held = _empty(steps)
    own, everywhere = np.eye(n, dtype=bool), np.ones((n, n), dtype=bool)
    known[0, np.arange(n), np.arange(n)] = _symbols(steps.residual[0], first, sizes, 1)[:, 0]
    known[1] = _symbols(steps.residual[1], first + beta, sizes)
    known[2] = _symbols(steps.residual[2], first + beta + n * beta, sizes)
    held[0], held[1], held[2] = own, own, everywhere
    return _shown(known, held), held


def _reals(steps: Steps, sizes: Sizes) -> tuple[Floats, Bools]:
    """The own number, then in its slot, then all of them."""
    n, (low, high) = sizes.length, sizes.bounds
    plan = Gathering(n, sizes.n_frequencies, sizes.bounds)
    known, held = _empty(steps)
    own = np.eye(n, dtype=bool)
    for layer, state in enumerate(steps.residual):
        held[layer] = own if layer < 2 else True
        if layer == 0:
            known[0, own] = state[:, 2 * sizes.n_frequencies]
        else:
            first = plan.gathered - (n if layer == 1 else 0)
            known[layer] = state[:, first : first + n]
    return low + (high - low) * _shown(known, held), held


def _symbols(state: Floats, first: int, sizes: Sizes, count: int | None = None) -> Floats:
    """(n, count): numbers whose bits stand side by side from `first` on; NaN where they are neither 0 nor 1."""
    beta = bits_per_symbol(sizes.vocabulary)
    count = sizes.length if count is None else count
    bits = state[:, first : first + count * beta].reshape(len(state), count, beta)
    clean = ((bits == 0) | (bits == 1)).all(-1)
    return np.where(clean, bits @ 2.0 ** np.arange(beta - 1, -1, -1), np.nan)


def _shown(known: Floats, held: Bools) -> Floats:
    """Where nothing is promised, 0 is nothing."""
    return np.where(~held & (known == 0), np.nan, known)


def tolerance(construction: str, sizes: Sizes, dtype: torch.dtype) -> float:
    """By how much what is held may differ from the input: not at all for symbols, by the gathering's bound for reals."""
    if construction not in ("fourier", "piecewise-linear"):
        return 0.0
    low, high = sizes.bounds
    return (high - low) * Gathering(sizes.length, sizes.n_frequencies, sizes.bounds).error(ROUNDOFF[dtype])


_LAYOUTS: dict[str, Callable[[Steps, Sizes], tuple[Floats, Bools]]] = {
    "lookup": _lookup,
    "bits": _bits,
    "depth2": _depth2,
    "fourier": _reals,
    "piecewise-linear": _reals,
}
