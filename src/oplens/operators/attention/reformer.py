r"""Attention within buckets of a locality-sensitive hash (Reformer), with queries that are their own keys.

Keys are the queries at length sqrt(d_head). Round r hashes x to argmax over the entries of (R_r x, -R_r x), R_r Gaussian; i sees j when
any round puts both into one bucket. A position sees itself only when it sees nothing else. Over the pairs seen, weights are a softmax:
the paper's sum over rounds, corrected for pairs that meet more than once, is the same number.

Left out is what makes the paper's version fast and approximate a second time: buckets cut into chunks of a sorted sequence, where
members of a full bucket may miss each other. A dense masked reference, quadratic in length.
The number of buckets follows from a case's own length, so padding changes nothing, but one more token may change all buckets.
Source: Kitaev, Kaiser & Levskaya 2020 (arXiv 2001.04451).
"""

import math

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators.attention.draws import normals
from oplens.operators.attention.families import Reformer
from oplens.operators.attention.visibility import Visibility, masked_softmax


def n_buckets(family: Reformer, lengths: Tensor) -> Tensor:
    """Buckets for cases of these lengths: 1 where one holds all, else the even number that gives `bucket_size` on average, or fewer.

    Examples
    --------
    >>> n_buckets(Reformer(bucket_size=4), torch.tensor([3, 4, 5, 9, 16])).tolist()
    [1, 1, 2, 4, 4]
    """
    pairs = -(-lengths // (2 * family.bucket_size))
    return torch.where(lengths <= family.bucket_size, 1, 2 * pairs)


def buckets(family: Reformer, x: Tensor, lengths: Tensor) -> Tensor:
    """Bucket of every position in every round: x (batch, n_heads, length, d_head) to (batch, n_heads, n_hashes, length) int64."""
    half = n_buckets(family, lengths) // 2
    # Without values (meta tensors), the most that this length can need.
    most = max(1, int((n_buckets(family, torch.tensor(x.shape[2])) // 2 if half.is_meta else half).max()))
    rotations = normals(family.seed, most, family.n_hashes, x.shape[-1]).to(x)
    turned = torch.einsum("bhnd,crd->bhrnc", x, rotations)
    # A short case uses the first of the rotations that a long one uses; none of them is one bucket for all.
    used = torch.arange(most, device=x.device) < half[:, None]
    turned = torch.cat((turned, -turned), dim=-1)
    return turned.masked_fill(~used.repeat(1, 2)[:, None, None, None], -torch.inf).argmax(-1)


def check_shared(q: Tensor, k: Tensor) -> None:
    """Refuse keys that are not the queries."""
    if k is not q and (k.shape != q.shape or (not q.is_meta and not torch.equal(q, k))):
        raise ArgumentError(
            "attend(family=Reformer): keys must be the queries, attend(q, q, v, ...): positions are hashed once, so what is looked "
            "for and what is found share a bucket."
        )


def reformer_weights(family: Reformer, q: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights (batch, n_heads, length, length); rows sum to 1, or are 0 where nothing is visible."""
    batch, _, length, d_head = q.shape
    norms = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    # A zero vector, as hidden keys are, stays zero: over the least float, sqrt(d_head) is infinite and 0 times it NaN, in gradients too.
    keys = math.sqrt(d_head) * (q / norms.masked_fill(norms == 0, 1.0))
    met = torch.zeros(*q.shape[:2], length, length, dtype=torch.bool, device=q.device)
    with torch.no_grad():
        for bucket in buckets(family, q, seen.ends(batch, length, q.device)).unbind(2):
            met |= bucket[..., :, None] == bucket[..., None, :]
    visible = seen.dense(length, length, q.device)
    met = met if visible is None else met & visible
    itself = torch.eye(length, dtype=torch.bool, device=q.device)
    others = met & ~itself
    alone = ~others.any(-1, keepdim=True)
    return masked_softmax((q * scale) @ keys.mT, others | (met & itself & alone))
