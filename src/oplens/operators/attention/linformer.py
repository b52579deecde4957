r"""Attention to averages of keys (Linformer): K~ = E K and V~ = E V with E (rank, length), out = softmax(scale Q K~^T + log n) V~.

The paper learns E; here it is fixed: row g averages the n_g positions of group g, which needs no training and keeps every query's
weights a distribution over positions. The term log n_g gives a group the weight of its members, so that equal keys are attended to
equally whatever the rank. Position p belongs to a group that its number and the seed decide, `rank` neighbours to different ones:
padding moves nobody. Not causal: an average holds later positions too.
Source: Wang et al. 2020 (arXiv 2006.04768), with mean pooling for the projection. A dense reference: it forms E.
"""

import torch
from torch import Tensor

from oplens.operators.attention.draws import uniforms
from oplens.operators.attention.families import Linformer
from oplens.operators.attention.visibility import Visibility, masked_softmax


def groups(family: Linformer, length: int) -> Tensor:
    """Group of every position, (length,) int64: each run of `rank` positions has one in every group, in an order of its own.

    Examples
    --------
    >>> found = groups(Linformer(rank=3), 7)
    >>> sorted(found[:3].tolist()), sorted(found[3:6].tolist())
    ([0, 1, 2], [0, 1, 2])
    """
    rounds = -(-length // family.rank)
    return uniforms(family.seed, rounds, family.rank).argsort(-1).flatten()[:length]


def linformer(
    family: Linformer, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Visibility
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (batch, n_heads, length_q, d_value), its weights on groups and the averaging E (batch or 1, 1, rank, length_k)."""
    length = k.shape[2]
    members = torch.arange(family.rank)[:, None] == groups(family, length)
    averaging = members.to(device=k.device, dtype=k.dtype)[None]
    if seen.keys is not None:
        averaging = averaging * seen.keys[:, None]
    sizes = averaging.sum(-1, keepdim=True)
    averaging = (averaging / sizes.clamp(min=1))[:, None]
    visible = (sizes > 0)[:, None].mT
    scores = (q * scale) @ (averaging @ k).mT + torch.log(sizes.clamp(min=1))[:, None].mT
    on_groups = masked_softmax(scores, visible)
    return on_groups @ (averaging @ v), on_groups, averaging


def linformer_weights(family: Linformer, q: Tensor, k: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights on positions (batch, n_heads, length_q, length_k): each group's weight, shared equally among its members."""
    _, on_groups, averaging = linformer(family, q, k, k, scale, seen)
    return on_groups @ averaging
