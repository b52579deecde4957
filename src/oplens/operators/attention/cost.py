"""What one head costs on one sequence, by the formulas that the families follow: matrix products and exponentials."""

from dataclasses import dataclass

import torch

from oplens.errors import ArgumentError
from oplens.operators.attention.families import BigBird, Family, Linformer, Performer, Reformer
from oplens.operators.attention.performer import CHUNK
from oplens.operators.attention.reformer import n_buckets


@dataclass(frozen=True)
class AttentionCost:
    """Of one head on one sequence: `flops` of matrix products (2 per multiplication and addition) and `exponentials`."""

    flops: int
    exponentials: int


def attention_cost(
    family: Family, length: int, d_head: int, d_value: int | None = None, *, causal: bool = False
) -> AttentionCost:
    """Cost of :func:`attend` without weights, queries and keys of one length, projections before and after left out.

    Parameters
    ----------
    family : Family
    length, d_head : int
    d_value : int, optional
        d_head when omitted.
    causal : bool
        Dense families pay for the future they hide.

    Returns
    -------
    AttentionCost

    Notes
    -----
    Accuracy: *exact* for this implementation; drawing features, sorting and masks are not counted. Softmax and Reformer grow with
    length^2 (Reformer as a dense reference), the others with length.

    Examples
    --------
    >>> attention_cost(Performer(n_features=64), 1024, 64).flops / attention_cost(Performer(n_features=64), 512, 64).flops
    2.0
    """
    d_value = d_head if d_value is None else d_value
    if min(length, d_head, d_value) < 1:
        raise ArgumentError(f"attention_cost(length={length}, d_head={d_head}, d_value={d_value}): each is at least 1.")
    if causal and family.refuses_causal:
        raise ArgumentError(f"attention_cost(family={family}, causal=True): {family.refuses_causal}.")
    n, d, both = length, d_head, d_head + d_value
    match family:
        case Performer():
            return _performer(n, family.n_features, d, d_value, causal)
        case Linformer():
            return AttentionCost(4 * n * family.rank * both, n * family.rank)
        case BigBird():
            size, padded = family.block_size, -(-n // family.block_size) * family.block_size
            window = family.window // 2 + 1 if causal else family.window
            seen = padded * size * (window + family.n_global + family.n_random)
            seen += 0 if causal else min(family.n_global * size, n) * n
            return AttentionCost(2 * seen * both, seen)
        case Reformer():
            half = max(1, int(n_buckets(family, torch.tensor(n))) // 2)
            return AttentionCost(2 * n * n * both + 2 * n * family.n_hashes * half * d, n * n)
        case _:
            return AttentionCost(2 * n * n * both, n * n)


def _performer(n: int, m: int, d: int, d_value: int, causal: bool) -> AttentionCost:
    features = 4 * n * m * d
    if not causal:
        return AttentionCost(features + 4 * n * m * (d_value + 1), 2 * n * m)
    n_chunks = -(-n // CHUNK)
    padded = n_chunks * CHUNK
    return AttentionCost(
        features + (4 * m + 2 * CHUNK) * padded * (d_value + 1), padded * m * (CHUNK + 2) + n_chunks * m
    )
