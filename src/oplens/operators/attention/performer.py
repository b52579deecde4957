r"""Attention by positive random features (Performer), in linear cost.

With w_1, ..., w_m standard normal directions and q, k scaled by sqrt(scale),

    phi_f(x) = exp(w_f x - norm(x)^2 / 2) / sqrt(m),     E phi(q) phi(k) = exp(q k)
    out_i = sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j)

The paper this library began with prints phi(Q) (phi(K)^T V): without the denominator, D^-1, weights sum to anything. For independent
directions the relative variance of phi(q) phi(k) is (exp(norm(q + k)^2) - 1)/m: hopeless unless norms are small.

Features are kept as logarithms, and each query's sum is scaled by its own largest term: norms that make every phi(k) underflow give
right weights still. The causal sum carries phi(K)^T V from chunk to chunk and scales by the past alone, so a later token changes
nothing, to the last bit. Source: Choromanski et al. 2021 (arXiv 2009.14794), eq. 5 to 7 and appendix B.
"""

import math

import torch
from torch import Tensor

from oplens.operators.attention.draws import directions
from oplens.operators.attention.families import Performer
from oplens.operators.attention.visibility import Visibility, masked_softmax

CHUNK = 16  # steps of the causal sum whose pairs are formed at once


def log_features(x: Tensor, family: Performer) -> Tensor:
    """Logarithms of phi(x): x (..., d_head), already scaled, to (..., n_features).

    Examples
    --------
    >>> x = torch.tensor([[0.3, -0.1]], dtype=torch.float64)
    >>> phi = torch.exp(log_features(x, Performer(n_features=20000)))
    >>> round(float(phi @ phi.T), 2), round(math.exp(0.1), 2)
    (1.11, 1.11)
    """
    d_head = x.shape[-1]
    w = directions(family.seed, family.n_features, d_head, family.orthogonal).to(x)
    return x @ w.T - (x * x).sum(-1, keepdim=True) / 2 - math.log(family.n_features) / 2


def performer(family: Performer, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Output (batch, n_heads, length_q, d_value) in O(length n_features d_value)."""
    log_q, log_k = _log_features_of(family, q, k, scale, seen)
    if seen.causal:
        return _causal(log_q, log_k, v)
    # Scaled feature by feature by the largest key, then row by row by the largest term: the denominator is at least 1.
    largest = _finite(log_k.detach().amax(-2, keepdim=True))
    keys = torch.exp(log_k - largest)
    log_q = log_q + largest
    queries = torch.exp(log_q - log_q.detach().amax(-1, keepdim=True))
    return _divide(queries @ (keys.mT @ v), queries @ keys.sum(-2)[..., None])


def performer_weights(family: Performer, q: Tensor, k: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights (batch, n_heads, length_q, length_k), pair by pair: the slow reference of :func:`performer`."""
    log_q, log_k = _log_features_of(family, q, k, scale, seen)
    scores = torch.stack([torch.logsumexp(row[..., None, :] + log_k, dim=-1) for row in log_q.unbind(-2)], dim=-2)
    return masked_softmax(scores, seen.dense(q.shape[2], k.shape[2], q.device))


def _log_features_of(family: Performer, q: Tensor, k: Tensor, scale: float, seen: Visibility) -> tuple[Tensor, Tensor]:
    root = math.sqrt(scale)
    log_q, log_k = log_features(q * root, family), log_features(k * root, family)
    visible = seen.key_columns()
    return log_q, log_k if visible is None else log_k.masked_fill(~visible, -torch.inf)


def _causal(log_q: Tensor, log_k: Tensor, v: Tensor) -> Tensor:
    length = log_q.shape[-2]
    past = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).tril()[..., None]
    largest = log_k.detach().cummax(-2).values
    rows = _finite((log_q.detach() + largest).amax(-1, keepdim=True))
    before = torch.full_like(largest[..., :1, :], -torch.inf)
    state, total = v.new_zeros(*v.shape[:2], log_k.shape[-1], v.shape[-1]), torch.zeros_like(before)
    outputs = []
    for start in range(0, length, CHUNK):
        step = slice(start, min(start + CHUNK, length))
        n, a, b, row = step.stop - start, log_q[..., step, :], log_k[..., step, :], rows[..., step, :]
        # Hidden before the exponential: those of the future may overflow, and inf times 0 is NaN in the gradient.
        pairs = (a - row)[..., :, None, :] + b[..., None, :, :]
        near = torch.exp(pairs.masked_fill(~past[:n, :n], -torch.inf)).sum(-1)
        far = torch.exp(a - row + before)
        outputs.append(
            _divide(near @ v[..., step, :] + far @ state, near.sum(-1, keepdim=True) + (far * total).sum(-1, True))
        )
        after = largest[..., step.stop - 1 : step.stop, :]
        keys, decay = torch.exp(b - _finite(after)), torch.exp(before - _finite(after))
        state = state * decay.mT + keys.mT @ v[..., step, :]
        total = total * decay + keys.sum(-2, keepdim=True)
        before = after
    return torch.cat(outputs, dim=-2)


def _finite(largest: Tensor) -> Tensor:
    """Scales of sums without a term are 0, since -inf less -inf is NaN."""
    return largest.masked_fill(torch.isneginf(largest), 0.0)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    nothing = denominator == 0
    return (numerator / denominator.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)
