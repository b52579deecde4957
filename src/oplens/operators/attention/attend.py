"""Attention behind one signature, whatever the family."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.attention.bigbird import bigbird, bigbird_weights
from oplens.operators.attention.families import (
    EXACT,
    FAMILIES,
    BigBird,
    Family,
    Linformer,
    Performer,
    Reformer,
    Softmax,
)
from oplens.operators.attention.linformer import linformer, linformer_weights
from oplens.operators.attention.performer import performer, performer_weights
from oplens.operators.attention.reformer import check_shared, reformer_weights
from oplens.operators.attention.softmax import softmax_weights
from oplens.operators.attention.visibility import Visibility, resolve


@dataclass(frozen=True)
class Attention:
    """What :func:`attend` returns: `output` (batch, n_heads, length_q, d_value), and `weights` where they were asked for."""

    output: Tensor
    weights: Tensor | None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    family: Family = EXACT,
    *,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    weights: bool = False,
) -> Attention:
    r"""out_i = sum_j A_ij v_j; A is exact (Softmax) or what a family puts in its place.

    Parameters
    ----------
    q : Tensor, (batch, n_heads, length_q, d_head)
    k : Tensor, (batch, n_heads, length_k, d_head)
        For Reformer the queries themselves.
    v : Tensor, (batch, n_heads, length_k, d_value)
    family : Family
        Softmax, Performer, Linformer, Reformer or BigBird.
    lengths : Tensor, (batch,) int, optional
        Keys at or past a case's length are padding: whatever they hold, NaN too, changes nothing.
    mask : Tensor of bool, optional
        True where a key may be seen: (batch, length_k), or pairs that broadcast to (batch, n_heads, length_q, length_k), which Softmax
        and Reformer take. Queries are not masked: those of padding give rows to be ignored.
    causal : bool
        Query i sees keys 0 to i. Linformer refuses.
    scale : float, optional
        Positive; 1/sqrt(d_head) when omitted.
    weights : bool
        Return A too: (batch, n_heads, length_q, length_k), quadratic in length whatever the family.

    Returns
    -------
    Attention

    Raises
    ------
    ArgumentError
        If shapes, dtypes, masks or the family do not fit each other.

    Notes
    -----
    Accuracy: *exact* for the family's own formula; rows of A sum to 1, or are 0 where nothing is visible. float16 and bfloat16 are
    computed in float32 and rounded at the end, under autocast too. Draws come from the family's seed alone; torch's global generator is left alone.
    Cost: O(length^2) for Softmax, Reformer (dense reference); O(length rank) for Linformer; O(length) for Performer and BigBird.

    Examples
    --------
    >>> q = torch.zeros(1, 1, 3, 2)
    >>> v = torch.tensor([[[[1.0], [2.0], [6.0]]]])
    >>> attend(q, q, v, causal=True).output.flatten().tolist()
    [1.0, 1.5, 3.0]
    >>> attend(q, q, v, BigBird(window=1, n_global=1, n_random=0, block_size=1), weights=True).weights[0, 0, 2].tolist()
    [0.5, 0.0, 0.5]
    """
    _check_tensors(q, k, v, family)
    if causal and family.refuses_causal:
        raise ArgumentError(f"attend(family={family}, causal=True): {family.refuses_causal}.")
    if isinstance(family, Reformer):
        check_shared(q, k)
    if isinstance(family, (BigBird, Reformer)) and q.shape[2] != k.shape[2]:
        raise ArgumentError(
            f"attend(family={family}): {q.shape[2]} queries and {k.shape[2]} keys; this family attends within one sequence."
        )
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    if not 0 < scale < math.inf:
        raise ArgumentError(
            f"attend(scale={scale}): must be positive and finite; a negative one is a sign of the queries."
        )
    seen = resolve(
        lengths, mask, causal, q, k, family=str(family), pairs_allowed=isinstance(family, (Softmax, Reformer))
    )
    dtype = v.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    visible = seen.key_columns()
    if visible is not None:
        # Selected, not multiplied: padding may hold NaN, and 0 * NaN is NaN.
        k, v = torch.where(visible, k, 0), torch.where(visible, v, 0)
        q = k if isinstance(family, Reformer) else q
    # Autocast would round scores and logarithms of features to half precision between two products.
    with nullcontext() if q.is_meta else torch.autocast(q.device.type, enabled=False):
        output, dense = _run(family, q, k, v, scale, seen, weights)
    return Attention(output.to(dtype), None if dense is None else dense.to(dtype))


def _run(
    family: Family, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Visibility, weights: bool
) -> tuple[Tensor, Tensor | None]:
    match family:
        case Performer():
            dense = performer_weights(family, q, k, scale, seen) if weights else None
            return performer(family, q, k, v, scale, seen), dense
        case BigBird():
            dense = bigbird_weights(family, q, k, scale, seen) if weights else None
            return bigbird(family, q, k, v, scale, seen), dense
        case Linformer():
            dense = linformer_weights(family, q, k, scale, seen) if weights else None
            return linformer(family, q, k, v, scale, seen)[0], dense
        case Reformer():
            found = reformer_weights(family, q, scale, seen)
        case _:
            found = softmax_weights(q, k, scale, seen)
    return found @ v, found if weights else None


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, family: Family) -> None:
    if type(family) not in FAMILIES.values():
        raise ArgumentError(
            f"attend(family={family!r}): give one of {', '.join(f.__name__ + '(...)' for f in FAMILIES.values())}."
        )
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if any(x.ndim != 4 or 0 in x.shape for x in (q, k, v)):
        raise ArgumentError(f"attend({shapes}): each needs shape (batch, n_heads, length, d_head), no dimension empty.")
    if not q.shape[:2] == k.shape[:2] == v.shape[:2] or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        raise ArgumentError(f"attend({shapes}): batch and n_heads must agree, q and k in d_head, k and v in length.")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ArgumentError(
            f"attend(q {q.dtype}, k {k.dtype}, v {v.dtype}): all three must be of one real floating-point dtype."
        )
