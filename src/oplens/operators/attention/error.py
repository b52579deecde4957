"""How far an approximation is from exact attention, as numbers: against features, length and the norms of queries and keys."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.attention.attend import attend
from oplens.operators.attention.cost import AttentionCost, attention_cost
from oplens.operators.attention.draws import normals
from oplens.operators.attention.families import FAMILIES, Family, Reformer, Softmax


@dataclass(frozen=True)
class AttentionError:
    """Distance of a family from exact attention on given tensors, over the queries that see a key; *measured*.

    Attributes
    ----------
    output : float
        Frobenius norm of the outputs' difference over that of the exact outputs.
    weights : float
        Mean over queries of half the sum of abs differences of weights: 0 equal, 1 nothing in common.
    largest : float
        Largest abs difference of one weight.
    """

    output: float
    weights: float
    largest: float


@dataclass(frozen=True)
class SweepRow:
    """One setting of :func:`sweep_errors`."""

    family: Family
    length: int
    norm: float
    error: AttentionError
    cost: AttentionCost


def attention_error(
    family: Family,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> AttentionError:
    """Compare a family with exact attention on the same tensors, in float64.

    Parameters are those of :func:`attend`. For Reformer the exact side is its own attention with a single bucket (queries as keys,
    oneself only when alone): shared keys are another model, not an error of hashing. With `lengths` or a mask of keys on a
    self-attention, queries of padding are left out.

    Notes
    -----
    Accuracy: *measured*. Cost: O(length^2 d_head), since all weights are formed.

    Examples
    --------
    >>> from oplens.operators.attention.families import BigBird, Performer
    >>> q, k, v = random_heads(length=64, d_head=8, norm=1.0)
    >>> few, many = (attention_error(Performer(n_features=m), q, k, v).output for m in (16, 1024))
    >>> few > 3 * many, attention_error(BigBird(window=1, n_global=0, n_random=7, block_size=8), q, k, v).output < 1e-14
    (True, True)
    """
    q_double = q.double()
    tensors = (q_double, q_double if k is q else k.double(), v.double())
    options = {"lengths": lengths, "mask": mask, "causal": causal, "scale": scale, "weights": True}
    found = attend(*tensors, family, **options)  # type: ignore[arg-type]
    exact_family: Family = Softmax()
    if isinstance(family, Reformer):
        exact_family = dataclasses.replace(family, n_hashes=1, bucket_size=q.shape[2])
    exact = attend(*tensors, exact_family, **options)  # type: ignore[arg-type]
    assert found.weights is not None
    assert exact.weights is not None
    kept = exact.weights.sum(-1) > 0
    if q.shape[2] == k.shape[2]:
        if lengths is not None:
            kept = kept & (torch.arange(q.shape[2], device=q.device) < lengths.to(q.device)[:, None])[:, None]
        if mask is not None and mask.ndim == 2:
            kept = kept & mask[:, None]
    if not bool(kept.any()):
        raise ArgumentError(
            "attention_error: no query sees a key, so there is nothing to compare; check lengths and mask."
        )
    difference, size = (found.output - exact.output)[kept].norm(), exact.output[kept].norm()
    if not float(size):
        raise ArgumentError(
            "attention_error: exact attention returns zeros only, to which no error is relative; give other values v."
        )
    apart = (found.weights - exact.weights)[kept].abs()
    return AttentionError(float(difference / size), float(apart.sum(-1).mean() / 2), float(apart.max()))


def random_heads(
    length: int, d_head: int, norm: float, *, n_heads: int = 1, batch: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of one norm in random directions, and standard normal values: three (batch, n_heads, length, d_head) float64.

    Examples
    --------
    >>> q, k, v = random_heads(length=3, d_head=4, norm=2.0)
    >>> q.norm(dim=-1).round(decimals=12).tolist()
    [[[2.0, 2.0, 2.0]]]
    """
    if min(length, d_head, n_heads, batch) < 1 or not 0 < norm < float("inf"):
        raise ArgumentError(
            f"random_heads(length={length}, d_head={d_head}, norm={norm}, n_heads={n_heads}, batch={batch}): sizes are at least 1 and "
            "the norm is positive and finite."
        )
    q, k, v = normals(seed, 3, batch, n_heads, length, d_head).unbind(0)
    return norm * torch.nn.functional.normalize(q, dim=-1), norm * torch.nn.functional.normalize(k, dim=-1), v


def sweep_errors(
    families: Sequence[Family],
    *,
    lengths: Sequence[int] = (64, 256),
    norms: Sequence[float] = (1.0, 2.0, 4.0),
    d_head: int = 16,
    n_heads: int = 4,
    causal: bool = False,
    seed: int = 0,
) -> tuple[SweepRow, ...]:
    """Error and cost of every family at every length and norm, on :func:`random_heads` that all families share.

    Reformer takes the queries for keys. Means over `n_heads` heads.

    Notes
    -----
    Accuracy: *measured*; cost *exact* (matrix products and exponentials). Cost: O(sum of length^2 d_head n_heads).

    Examples
    --------
    >>> from oplens.operators.attention.families import Performer
    >>> rows = sweep_errors([Performer(n_features=256)], lengths=(32,), norms=(1.0, 8.0))
    >>> rows[1].error.output > 5 * rows[0].error.output
    True
    """
    for family in families:
        if type(family) not in FAMILIES.values():
            raise ArgumentError(
                f"sweep_errors(families=...{family!r}...): give families such as Performer(n_features=64)."
            )
    rows = []
    for length in lengths:
        for norm in norms:
            q, k, v = random_heads(length, d_head, norm, n_heads=n_heads, seed=seed)
            for family in families:
                keys = q if family.shares_queries else k
                error = attention_error(family, q, keys, v, causal=causal)
                cost = attention_cost(family, length, d_head, causal=causal)
                rows.append(SweepRow(family, length, float(norm), error, cost))
    return tuple(rows)
