r"""Attention that fetches what stands s positions back, and how far above all others its score stands after every rounding.

    score(i, j) = lambda sum_k cos w_k (i - s - j),   W_K = I, W_Q = lambda sqrt(2K) times a rotation by w_k s

The gap over real numbers is lambda sum_k (1 - cos w_k m), m >= 1. Stored positions, rotations and scores are rounded; the delivered gap
is computed from the stored numbers, less the worst case of what rounds while the model runs.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from oplens.construction.certificate import Margin
from oplens.construction.weights import DIGITS, DTYPES, Entries, rounded, sum_roundoff, unit_roundoff
from oplens.errors import ArgumentError
from oplens.models.transformer_layers import frequencies, sinusoids

_SLACK = 0.05  # of a gap, for exp, the sum and the division of softmax: each off by less than 1e-3
BASES = (10000.0, 1000.0, 100.0, 30.0, 10.0, 4.0, 2.0)  # the manuscript's first


def rotation(shift: int, temperature: float, n_frequencies: int, base: float) -> Entries:
    """W_Q (2K, 2K): the query of position i is lambda sqrt(2K) times the code of position i - shift."""
    angle = frequencies(n_frequencies, base).numpy() * shift
    scale = temperature * math.sqrt(2 * n_frequencies)
    sine, cosine = 2 * np.arange(n_frequencies), 2 * np.arange(n_frequencies) + 1
    return (
        Entries.of(sine, sine, scale * np.cos(angle))
        + Entries.of(sine, cosine, -scale * np.sin(angle))
        + Entries.of(cosine, cosine, scale * np.cos(angle))
        + Entries.of(cosine, sine, scale * np.sin(angle))
    )


def required_gap(dtype: str, length: int, exactness: str) -> float:
    """Gap that suffices: "rounds" lets the fetched code round to 0 or 1 itself, "clips" leaves at most 1/4 for a gate to clip."""
    if exactness == "rounds":
        return (DIGITS[dtype] + 1) * math.log(2) + math.log(length - 1) + _SLACK
    # Four roundings, of the weight, the product, the sum and the mapping out, come off the quarter that the gate allows.
    return math.log((length - 1) / (0.25 - 4 * unit_roundoff(dtype))) + _SLACK


def delivered_gap(
    dtype: str, length: int, shifts: Sequence[int], temperature: float, K: int, base: float, stored: str | None = None
) -> float:
    """The least gap that a model with these shifts has in a dtype, over every position that looks back, at the worst rounding.

    Each computed score differs from that of the stored numbers by at most rho sum_k abs(q_k k_k): the query's two products and
    their sum, its storage, the scale, 2K products and their sum in any order; rho is raised by a tenth for products of roundings.
    The weights were `stored` in another dtype before, where one is given.
    """
    code = rounded(sinusoids(length, K, base).numpy(), dtype)
    u, added = unit_roundoff(dtype), sum_roundoff(dtype)
    rho = 1.1 * (u + 3 * added + (2 * K + 2) * added)
    least = math.inf
    for shift in sorted(set(shifts)):
        entries = rotation(shift, temperature, K, base)
        matrix = np.zeros((2 * K, 2 * K))
        matrix[entries.rows, entries.columns] = rounded(rounded(entries.values, stored or dtype), dtype)
        scale = 1 / math.sqrt(2 * K)
        # The query's own rounding is relative to the sum of its products' sizes, which may be larger than the query.
        query, size = code @ matrix.T * scale, np.abs(code) @ np.abs(matrix).T * scale
        for i in range(shift, length):
            score = code @ query[i]
            error = rho * (np.abs(code) @ size[i])
            gaps = score[i - shift] - score - error[i - shift] - error
            gaps[i - shift] = math.inf
            least = min(least, float(gaps.min()))
    return least


def plan_scores(
    call: str, dtype: str, length: int, shifts: Sequence[int], K: int, base: float | None, exactness: str
) -> tuple[float, float, tuple[Margin, ...]]:
    """Frequency base, inverse temperature, and the margins they have in every dtype.

    Without a base given: 10000 where it serves all dtypes, else the first of a few smaller ones that does, else one that serves `dtype`.

    Raises
    ------
    ArgumentError
        If the gap that exactness needs cannot be delivered in `dtype`, with the numbers.
    """
    found = []
    for candidate in BASES if base is None else (base,):
        own = _temperature(dtype, length, shifts, K, candidate, exactness)
        if own is None:
            continue
        # More costs nothing, so one temperature serves all dtypes where it can.
        others = [_temperature(name, length, shifts, K, candidate, exactness) for name in DTYPES]
        temperature = max([own, *(value for value in others if value is not None)])
        for value in (temperature, own):
            judged = _margins(dtype, length, shifts, value, K, candidate, exactness)
            if all(item.met for item in judged):
                return candidate, value, judged
            if any(item.met for item in judged if item.dtype == dtype):
                found.append((candidate, value, judged))
    if found:
        return found[0]
    tried = BASES[0] if base is None else base
    unit = delivered_gap(dtype, length, shifts, 1.0, K, tried)
    tries = BASES if base is not None else ()
    other = next((b for b in tries if _temperature(dtype, length, shifts, K, b, exactness) is not None), None)
    cure = f"frequency_base={other:g} delivers it" if other else "use float32 or float64, or another n_frequencies"
    raise ArgumentError(
        f"{call}(dtype={dtype}): the score gap needed is {required_gap(dtype, length, exactness):.4g} for {length} positions; with "
        f"n_frequencies={K} and frequency_base={tried:g} the gap per unit of inverse temperature, less its rounding, is {unit:.3g}, and "
        f"no inverse temperature within {dtype} delivers it; {cure}."
    )


def _margins(
    stored: str, length: int, shifts: Sequence[int], temperature: float, K: int, base: float, exactness: str
) -> tuple[Margin, ...]:
    found = []
    for dtype in DTYPES:
        gap = -math.inf
        if _finite(dtype, temperature, K):
            gap = delivered_gap(dtype, length, shifts, temperature, K, base, stored)
        found.append(Margin(dtype, "score gap", required_gap(dtype, length, exactness), gap))
    return tuple(found)


def _temperature(dtype: str, length: int, shifts: Sequence[int], K: int, base: float, exactness: str) -> float | None:
    """The least inverse temperature, rounded up to four binary digits, that delivers the gap."""
    unit = delivered_gap(dtype, length, shifts, 1.0, K, base)
    if unit <= 0:
        return None
    needed = required_gap(dtype, length, exactness)
    value = needed / unit
    for _ in range(20):
        # Few digits: the same number is then the temperature in every dtype.
        step = 2.0 ** (math.floor(math.log2(value)) - 3)
        value = math.ceil(value / step) * step
        if not _finite(dtype, value, K):
            return None
        if delivered_gap(dtype, length, shifts, value, K, base) >= needed:
            return value
        value *= 1.05
    return None


def _finite(dtype: str, temperature: float, K: int) -> bool:
    """Whether weights and queries stay inside a dtype; scores of half precisions are formed in float32."""
    return 2 * temperature * math.sqrt(2 * K) < torch.finfo(DTYPES[dtype]).max
